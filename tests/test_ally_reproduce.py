"""ALLY's studies run small from records to picture, and generation raises duals within bounds."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from labelwise.bench import reproduce_ally
from labelwise.bench.curve_numbers import labels_to
from labelwise.bench.data import Data, load
from labelwise.bench.reproductions import Setting, reproduce, reproductions
from labelwise.choose.dual_head import DualHead
from labelwise.errors import ArgumentError
from labelwise.keys import Key
from labelwise.pool import Pool
from labelwise.signals.forward import ModelReader
from labelwise.theory import most_informative

TINY = reproduce_ally.Sizes(20, 10, 1, 1, (16,), 1e-2, 15, epsilons=(0.2, 20.0), copies=(1, 2), images=3)


@pytest.fixture(scope="module")
def digits() -> reproduce_ally.Study:
    return reproduce_ally.Study(load("digits", limit=200), TINY, Setting())


def test_every_figure_is_registered():
    assert {f"ally/figure{i}" for i in range(1, 7)} <= set(reproductions())


@pytest.mark.parametrize("name", ["figure2", "figure4", "figure5", "figure6"])
def test_curves(name: str, digits: reproduce_ally.Study):
    result = getattr(reproduce_ally, name)(Setting(), digits)
    assert result.picture.startswith(b"\x89PNG")
    text = json.dumps(result.numbers, allow_nan=False)
    assert '"labels": [20, 30]' in text
    assert result.verdict
    if name == "figure2":
        assert set(result.numbers["accuracy"]) == {"random", "entropy", "badge", "kcenter", "bait", "ally"}
        starts = {shown["mean"][0] for shown in result.numbers["accuracy"].values()}
        assert len(starts) <= 2  # the same first batch; only ALLY trains otherwise
    if name == "figure5":
        assert set(result.numbers["lost"]) == {"entropy", "ally", "ally, 1 clusters"}


def test_regression_by_rows_and_by_person():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 4)).astype("float32")
    y = x[:, 0] * 3 + 10
    pool, test = Pool.of(x[:120], labels=y[:120]), Pool.of(x[120:], labels=y[120:])
    data = Data("made", "table", "regress", "rmse", pool, test, None, None, "none")
    result = reproduce_ally.figure3(Setting(), reproduce_ally.Study(data, TINY, Setting()))
    assert set(result.numbers["rows"]["rmse"]) == {"random", "kcenter", "bait", "ally"}
    assert set(result.numbers["person"]) == {"rmse", "r2"}
    rows, held = reproduce_ally._by_rows(reproduce_ally.Study(data, TINY, Setting()))
    assert (len(rows), len(held)) == (120, 40)
    assert not set(rows.ids.tolist()) & set(held.ids.tolist())


def test_images_on_their_way(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(reproduce_ally.SIZES, "small", replace(TINY, limit=300, epochs=40))
    result = reproduce("ally/figure1", Setting(), tmp_path)
    assert (tmp_path / "ally-figure1.png").read_bytes().startswith(b"\x89PNG")
    duals = json.loads((tmp_path / "ally-figure1.json").read_text())["duals"]
    assert len(duals) == 5
    assert np.mean(duals[-1]) > np.mean(duals[0])
    assert result.numbers["steps"] == [0, 50, 100, 150, 200]


def model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(9, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def test_generation_raises_duals_within_bounds_and_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    net = model().train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x = torch.rand(6, 1, 3, 3)
    embedding = ModelReader(net).read(x, ())  # reading alone is no problem either
    assert embedding == {}
    h = torch.rand(80, 8)
    head = DualHead().fit(h, h[:, 0] + h[:, 1], torch.arange(80), Key(0))
    made = most_informative(net, head, x, steps=40, step=0.02, snapshots=4)
    assert made.inputs.shape == (5, 6, 1, 3, 3)
    assert made.steps == (0, 10, 20, 30, 40)
    assert torch.equal(made.inputs[0], x)
    assert float(made.inputs.min()) >= 0
    assert float(made.inputs.max()) <= 1
    assert bool((made.duals[-1] >= made.duals[0] - 1e-6).all())
    assert float((made.duals[-1] - made.duals[0]).max()) > 0
    assert net.training
    assert all(parameter.grad is None for parameter in net.parameters())
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    # An entry moves by at most `step` in one step, and each input moves on its own.
    alone = most_informative(ModelReader(net), head, x[:1], steps=1, step=0.02, snapshots=1)
    assert float((alone.inputs[1] - alone.inputs[0]).abs().max()) == pytest.approx(0.02, abs=1e-6)
    together = most_informative(net, head, x, steps=1, step=0.02, snapshots=1)
    assert torch.allclose(together.inputs[1, :1], alone.inputs[1], atol=1e-6)


def test_generation_goes_up_the_slope_of_a_known_head():
    net = nn.Linear(2, 2)

    def head(h: torch.Tensor) -> torch.Tensor:
        return 3 * h[:, 0] - h[:, 1]

    made = most_informative(net, head, torch.tensor([[0.5, 0.5]]), steps=10, step=0.01, snapshots=1)
    assert made.inputs[-1].tolist()[0] == pytest.approx([0.6, 0.5 - 0.1 / 3])
    assert made.duals[:, 0].tolist() == pytest.approx([1.0, 1.8 - 0.5 + 0.1 / 3])
    end = most_informative(net, head, torch.tensor([[0.5, 0.5]]), steps=200, step=0.01)
    assert end.inputs[-1].tolist() == [[1.0, 0.0]]


@pytest.mark.parametrize("bad", [{"steps": 0}, {"step": 0.0}, {"low": 2.0}, {"snapshots": 300}, {"high": 0.1}])
def test_arguments_of_generation(bad: dict):
    with pytest.raises(ArgumentError):
        most_informative(nn.Linear(2, 2), lambda h: h[:, 0], torch.tensor([[0.5, 0.5]]), **bad)


def test_labels_to_a_level():
    assert labels_to([10, 20, 30], [0.1, 0.5, 0.4], 0.3) == 15.0
    assert labels_to([10, 20], [0.6, 0.7], 0.5) == 10.0
    assert labels_to([10, 20], [0.1, 0.2], 0.5) is None
