"""ALLY's studies run small from records to picture, and generation raises duals within bounds."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from labelwise.bench.data.load import Data, load
from labelwise.errors import ArgumentError, SourceError
from labelwise.pool import Pool
from labelwise.reproduce.ally import data as ally_data
from labelwise.reproduce.ally import figures, setup
from labelwise.reproduce.ally.data import as_the_paper, sizes_of
from labelwise.reproduce.curves import against_random, labels_to, saved_numbers
from labelwise.reproduce.registry import Setting, reproduce, reproductions
from labelwise.rng import Key
from labelwise.signals.model.reader import ModelReader
from labelwise.stats.record import Record
from labelwise.strategies.ally.dual_head import DualHead
from labelwise.theory import most_informative

TINY = setup.Sizes(20, 10, 1, 1, (16,), 1e-2, 15, epsilons=(0.2, 20.0), copies=(1, 2), images=3)


@pytest.fixture(scope="module")
def digits() -> setup.Study:
    return setup.Study(load("digits", limit=200), TINY, Setting())


def test_every_figure_is_registered():
    assert {f"ally/figure{i}" for i in range(1, 7)} <= set(reproductions())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["figure2", "figure4", "figure5", "figure6"])
def test_curves(name: str, digits: setup.Study):
    result = getattr(figures, name)(Setting(), digits)
    assert result.picture.startswith(b"\x89PNG")
    text = json.dumps(result.numbers, allow_nan=False)
    assert '"labels": [20, 30]' in text
    assert result.verdict
    assert result.table.startswith("| ")
    assert {record.labels for record in result.records} == {20, 30}
    if name == "figure2":
        assert (
            "cannot be compared yet, 5 seeds or more are needed: entropy, badge, kcenter, bait, ally." in result.verdict
        )
        assert set(result.numbers["accuracy"]) == {"random", "entropy", "badge", "kcenter", "bait", "ally"}
        starts = {shown["mean"][0] for shown in result.numbers["accuracy"].values()}
        assert len(starts) <= 2  # the same first batch; only ALLY trains otherwise
    if name == "figure5":
        assert set(result.numbers["lost"]) == {"entropy", "ally", "ally in 1 cluster"}


@pytest.mark.slow
def test_regression_by_rows_and_by_person():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 4)).astype("float32")
    y = x[:, 0] * 3 + 10
    pool, test = Pool.of(x[:120], labels=y[:120]), Pool.of(x[120:], labels=y[120:])
    data = Data("made", "table", "regress", "rmse", pool, test, None, None, "none")
    result = figures.figure3(Setting(), setup.Study(data, TINY, Setting()))
    assert set(result.numbers["rows"]["rmse"]) == {"random", "kcenter", "bait", "ally"}
    assert set(result.numbers["person"]) == {"rmse", "r2", "against_random"}
    assert {record.run.split("/")[0] for record in result.records} == {"made by rows", "made by person"}
    for split in setup.splits(setup.Study(data, TINY, Setting())):
        parts = [set(part.ids.tolist()) for part in (split.pool, split.valid)]
        assert [len(part) for part in parts] == [108, 12]
        assert len(split.test) == 40
        assert not parts[0] & parts[1]
    rows, _ = setup.splits(setup.Study(data, TINY, Setting()))
    assert not set(rows.pool.ids.tolist()) & set(rows.test.ids.tolist())


@pytest.mark.slow
def test_images_on_their_way(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(ally_data.SIZES, "small", replace(TINY, limit=300, epochs=40))
    result = reproduce("ally/figure1", Setting(), tmp_path)
    assert (tmp_path / "ally-figure1.png").read_bytes().startswith(b"\x89PNG")
    duals = json.loads((tmp_path / "ally-figure1.json").read_text())["duals"]
    assert len(duals) == 5
    page = (tmp_path / "ally-figure1.md").read_text()
    assert result.verdict in page
    assert "Python " in page
    assert result.verdict in (tmp_path / "README.md").read_text()
    assert np.mean(duals[-1]) > np.mean(duals[0])
    assert result.numbers["steps"] == [0, 50, 100, 150, 200]


# --- panels, pages and data ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_panel_has_its_own_batches_and_page(tmp_path):
    few, more = (reproduce(f"ally/figure2{end}", Setting("smoke", seeds=1), tmp_path) for end in ("", "-svhn-1000"))
    assert (few.numbers["k"], more.numbers["k"]) == (10, 50)
    assert "this is the panel svhn, b = 1000; here b = 50." in more.verdict
    assert "Labels to 97 % of the best last accuracy" in more.verdict
    assert (
        "One of the eight panels of figure 2: svhn, b = 1000." in (tmp_path / "ally-figure2-svhn-1000.md").read_text()
    )
    assert (tmp_path / "ally-figure2.md").exists()


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["figure2", "figure3", "figure4", "figure6"])
def test_kept_pages_are_made_without_data(figure: str, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("LABELWISE_DATA", raising=False)
    monkeypatch.setattr(setup, "load", None)  # nothing is read
    results = Path(__file__).parents[3] / "docs" / "results" / "papers"
    for end in ("json", "jsonl.gz"):
        shutil.copy(results / f"ally-{figure}.{end}", tmp_path)
    result = reproduce(f"ally/{figure}", Setting("paper", page=True), tmp_path)
    before = json.loads((results / f"ally-{figure}.json").read_text())
    assert before["data"] == result.numbers["data"] == ("parkinsons" if figure == "figure3" else "mnist")
    assert result.verdict == before["verdict"]
    assert "The claims of the paper, tested by seed" in result.verdict


def test_a_figure_without_its_data_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LABELWISE_DATA", str(tmp_path))
    with pytest.raises(SourceError, match="'mnist' was not found"):
        reproduce("ally/figure2", Setting("paper"), tmp_path)
    with pytest.raises(
        ArgumentError, match="digits has 1438 rows to choose from, fewer than the 2200 labels of the paper"
    ):
        reproduce("ally/figure2", Setting("paper", data="digits"), tmp_path)


def test_processes_share_a_study():
    setting = Setting("smoke", saved_numbers={"not": "hashed"})
    first, again = (setup._loaded(setting, "digits", ally_data.SIZES["smoke"]) for _ in range(2))
    assert first is again


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


def test_who_beats_random():
    def records(name: str, gain: float) -> list[Record]:
        own = 0.004 if name == "ally" else 0.0  # above random in half of the seeds, below in the others
        at = [(s, n) for s in range(10) for n in (10, 60, 110)]
        values = {(s, n): 0.5 + 0.001 * n + gain + 0.002 * s + own * (-1) ** s for s, n in at}
        return [Record(f"d/m/{name}/{s}", name, s, n, n, {"accuracy": v}) for (s, n), v in values.items()]

    found = [*records("random", 0), *records("good", 0.03), *records("ally", 0), *records("bad", -0.03)]
    numbers = saved_numbers(found, "accuracy")
    assert numbers["good"]["saved"] > 0.1 > numbers["bad"]["saved"]
    assert numbers["good"]["area_p"] == numbers["bad"]["area_p"] == 2 / 1024
    assert numbers["good"]["area_gain"] == pytest.approx(0.03, abs=0.005)
    said = against_random(found, "accuracy")
    assert "Holm's correction for 3 strategies): better: good; worse: bad; no measurable difference: ally." in said
    assert said.endswith("ALLY does not measurably beat random here.")
    assert "does not" not in against_random([*records("random", 0), *records("ally", 0.03)], "accuracy")


def test_labels_to_a_level():
    assert labels_to([10, 20, 30], [0.1, 0.5, 0.4], 0.3) == 15.0
    assert labels_to([10, 20], [0.6, 0.7], 0.5) == 10.0
    assert labels_to([10, 20], [0.1, 0.2], 0.5) is None


def test_stl10_is_split_as_in_the_paper():
    chance = torch.Generator().manual_seed(0)
    x, y = torch.rand(40, 3, 4, 4, generator=chance), torch.randint(10, (40,), generator=chance)
    names = tuple("0123456789")
    parts = [Pool.of(x[rows], labels=y[rows], classes=names) for rows in (slice(0, 15), slice(15, 40))]
    data = Data("stl10", "image", "classify", "accuracy", *parts, names, None, "none")
    assert as_the_paper(data, 0, "small") is data
    split = as_the_paper(data, 0, "paper")
    assert (len(split.pool), len(split.test)) == (30, 10)
    assert not set(split.pool.ids.tolist()) & set(split.test.ids.tolist())
    assert split.labels.equal(y[split.pool.ids])
    assert sizes_of("classify", "paper", "stl10").lr == 1e-3
