"""The experiments on RandBSS, tiny: every one runs, and its numbers are those of the definitions."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.reproduce.bss import figures, network, setup
from labelwise.reproduce.bss.setup import Problem, problem
from labelwise.reproduce.paper_pages import claim_rows
from labelwise.reproduce.registry import Setting, reproduce
from labelwise.reproduce.verdicts import stat_of
from labelwise.train.torch.initialise import make_model, reinitialise

TINY = setup.Sizes(150, 2, (5, 7), (2, 3), (0.5, 0.2), 2, 20, 2, 15, 1, 8, 2)
SMOKE = Setting("smoke")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setitem(setup.SIZES, "smoke", TINY)


@pytest.mark.slow
@pytest.mark.parametrize("figure", ["excess", "growth", "rounds", "conditions", "network"])
def test_each_writes_a_picture_its_numbers_and_claims(figure, tmp_path, monkeypatch):
    lines = []
    result = reproduce(f"bss/{figure}", replace(SMOKE, on_progress=lines.append), tmp_path, "the command")
    assert (tmp_path / f"bss-{figure}.png").read_bytes().startswith(b"\x89PNG")
    numbers = json.loads((tmp_path / f"bss-{figure}.json").read_text())
    assert numbers["verdict"] == result.verdict
    assert lines
    claims = [line for line in result.verdict.splitlines() if line.startswith("- ")]
    assert len(claim_rows(result.verdict)) == len(claims) > 1
    page = (tmp_path / "bss.md").read_text()
    assert "2 seeds, 5 or more are needed" in page
    if figure == "excess":
        assert numbers["dimension"]["linear, Gaussian"] == 20
        assert len(numbers["excess"]) == 6
        assert all(len(by_k["100"]) == 2 for by_k in numbers["excess"]["linear, heavy-tailed"].values())
    if figure == "growth":
        assert set(numbers["labels"]["Gaussian"]) == {"2 0.5", "2 0.2", "3 0.5", "3 0.2"}
        assert all(0 < value <= 150 for value in numbers["labels"]["Gaussian"]["3 0.2"]["RandBSS"])
    if figure == "rounds":
        assert list(numbers["excess"]["heavy rows"]["RandBSS, joint weights"]) == ["20", "40"]
        assert list(numbers["excess"]["heavy rows"]["Leverage, joint weights"]) == ["40"]
    if figure == "conditions":
        assert len(numbers["procedure"]) == 9
        assert all(0 < max(row) < 1 for row in numbers["distance"]["relu"].values())
    if figure == "network":
        assert numbers["labels"] == [15, 30]
        assert len(result.records) == 2 * 2 * 5 * 2
        page = (tmp_path / "bss-network.md").read_text()
        monkeypatch.setattr(network, "rounds", None)  # nothing runs
        again = reproduce("bss/network", replace(SMOKE, page=True), tmp_path)
        assert again.numbers == result.numbers
        assert (tmp_path / "bss-network.md").read_text() == page


@pytest.mark.parametrize("teacher", setup.TEACHERS)
@pytest.mark.parametrize("law", ["Gaussian", "heavy-tailed"])
def test_the_excess_is_that_of_a_weighted_fit(teacher: str, law: str):
    one = problem(teacher, law, 400, 0)
    assert one.d in (20, 21)
    rng = np.random.default_rng(0)
    ids, weights = rng.permutation(400)[:100], rng.exponential(size=100)
    v, y, root = one.v_ND.numpy(), one.y_N.numpy(), np.sqrt(weights)
    best = v @ np.linalg.lstsq(v, y, rcond=None)[0]
    fit = v @ np.linalg.lstsq(v[ids] * root[:, None], y[ids] * root, rcond=None)[0]
    wanted = np.mean((fit - best) ** 2) / np.mean((y - best) ** 2)
    assert one.excess(torch.from_numpy(ids), torch.from_numpy(weights)) == pytest.approx(wanted)
    assert one.excess(torch.arange(400), torch.ones(400).double()) < 1e-20
    again = problem(teacher, law, 400, 0)
    assert torch.equal(one.y_N, again.y_N)
    assert not torch.equal(one.y_N, problem(teacher, law, 400, 1).y_N)


def test_only_the_two_layer_teacher_is_outside_the_span():
    def left(teacher: str) -> float:
        one: Problem = problem(teacher, "Gaussian", 4000, 0)
        return float((one.y_N - one.v_ND @ (one.v_ND.T @ one.y_N / 4000)).square().mean())

    assert left("linear") == pytest.approx(setup.NOISE**2, rel=0.1)
    assert left("polynomial") == pytest.approx(setup.NOISE**2, rel=0.1)
    assert left("two-layer") > 1.2 * setup.NOISE**2


def test_a_claim_over_rows_holds_where_every_row_does():
    low, high = stat_of([1.0, 1.1, 0.9, 1.0, 1.05]), stat_of([2.0, 2.1, 1.9, 2.2, 2.0])
    claim = figures._all_above("b is above a", "b", "a")
    assert claim.ask({"x": {"a": low, "b": high}, "y": {"a": low, "b": high}})[0] is True
    assert claim.ask({"x": {"a": low, "b": high}, "y": {"a": high, "b": low}})[0] is False
    assert claim.ask({})[0] is None
    falls = figures._falling("net", ("one", "two"))
    assert falls.ask({"net": {"one": high, "two": low}})[0] is True
    assert falls.ask({"net": {"one": low, "two": high}})[0] is False


def test_the_network_is_that_of_definition_31():
    net = make_model(lambda: network.TwoLayer(3, 8), lw.rng.Key(0))
    assert isinstance(net, network.TwoLayer)
    assert [name for name, _ in net.named_parameters()] == ["hidden"]  # a is fixed
    assert (net.signs.abs() * 8**0.5).tolist() == pytest.approx([1.0] * 8)
    x = torch.randn(5, 3, generator=lw.rng.Key(1).generator())
    w = net.hidden.detach()
    wanted = sum(net.signs[r] * torch.relu(x @ w[:, r]) for r in range(8))
    torch.testing.assert_close(net(x)[:, 0], wanted)
    assert not torch.equal(reinitialise(net, lw.rng.Key(2)).hidden, net.hidden)


def test_the_sampler_draws_by_weight_and_the_loss_has_none():
    for name, (strategy, weights, sampler) in network.CONTENDERS.items():
        assert not (weights and sampler == "weights"), name  # never both
        assert strategy.cold, name  # all choose their first batch
    assert network.CONTENDERS[network.SAMPLER][2] == "weights"
