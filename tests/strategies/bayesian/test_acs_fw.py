import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.rng import Key
from labelwise.shards import Shard, Shards, shards_of
from labelwise.signals.spec import LogProbs
from labelwise.strategies import AcsFw
from labelwise.strategies.bayesian import acs_fw, frank_wolfe
from labelwise.strategies.bayesian import reference as slow
from labelwise.strategies.bayesian.kernels import torch as kernels
from labelwise.verify.problems import by_lot
from tuned import tuned


def _sequence(log_probs: np.ndarray, k: int, monkeypatch: pytest.MonkeyPatch, strategy: AcsFw) -> list[int]:
    """Every index Frank-Wolfe takes, repeats included."""
    seen: list[int] = []
    plain = acs_fw.frank_wolfe

    def recording(*args: Any) -> frank_wolfe.Path:
        path = plain(*args)
        seen.extend(path.sequence)
        return path

    monkeypatch.setattr(acs_fw, "frank_wolfe", recording)
    strategy.select(
        shards_of(torch.arange(len(log_probs)), {LogProbs(): torch.tensor(log_probs)}), Shards([]), k, Key(0)
    )
    return seen


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("entropy", [0.0, 0.7])
def test_the_sequence_of_indices_is_that_of_the_loop(seed: int, entropy: float, monkeypatch: pytest.MonkeyPatch):
    rng = np.random.default_rng(seed)
    n, draws, classes = int(rng.integers(15, 50)), int(rng.integers(2, 12)), int(rng.integers(2, 6))
    log_probs = slow.random_log_probs(rng, n, draws, classes)
    k = int(rng.integers(1, 12))
    vectors = slow.acs_vectors(log_probs, entropy)
    sequence, weights, objective = slow.acs_fw(vectors, k)
    got = lw.select(AcsFw(entropy), k, log_probs=log_probs)
    assert got.notes["steps"] == len(sequence)
    assert _sequence(log_probs, k, monkeypatch, AcsFw(entropy))[: len(sequence)] == sequence
    assert len(set(got.ids.tolist())) == k
    distinct = got.notes["distinct"]
    assert got.ids[:distinct].tolist() == [i for i in dict.fromkeys(sequence) if i in weights]
    expected = np.array([weights[i] for i in got.ids[:distinct].tolist()])
    assert got.weights[:distinct] / got.weights[0] == pytest.approx(expected / expected[0], rel=1e-8)
    assert got.weights.mean() == pytest.approx(1)
    assert got.notes["objective"] == pytest.approx(objective, rel=1e-6, abs=1e-9)
    assert got.notes["objective_share"] == pytest.approx(objective / float(vectors.sum(0) @ vectors.sum(0)), rel=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("draws", [3, 40, 400])
def test_steps_guessed_by_sketches_are_those_of_single_steps(dtype, draws: int, monkeypatch: pytest.MonkeyPatch):
    """Also with copies of rows, rows in several shards, and rows too short to be sketched."""
    log_probs = slow.random_log_probs(np.random.default_rng(1), 450, draws, 4)
    log_probs = np.concatenate([log_probs, log_probs[:150]]).astype(dtype)
    ids = torch.from_numpy(np.random.default_rng(2).permutation(600))
    columns = {LogProbs(): torch.tensor(log_probs)}
    found, sweeps = [], []
    plain = frank_wolfe.compute_scores
    monkeypatch.setattr(frank_wolfe, "compute_scores", lambda *args: sweeps.append(1) or plain(*args))
    for lookahead in (1, 64):
        sweeps.clear()
        pool = Shards(
            [Shard(ids[part], {s: c[part] for s, c in columns.items()}) for part in torch.arange(600).chunk(3)]
        )
        got = tuned(AcsFw(), lookahead=lookahead).select(pool, Shards([]), 60, Key(0))
        found.append((got.ids.tolist(), got.notes["steps"], got.notes["objective"]))
        if lookahead == 1:
            assert len(sweeps) == 3 * got.notes["steps"]
    assert found[0][:2] == found[1][:2]
    assert found[0][2] == pytest.approx(found[1][2], rel=1e-9)
    if draws == 400:  # most steps are made without a product of all rows
        assert len(sweeps) < 3 * found[1][1] / 2
    assert not any(set(shard.state) - {"by_id"} for shard in pool._shards)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_bound_holds_for_every_row(dtype: torch.dtype):
    """At a later gap no row is further from its estimate than its tail times the rest."""
    chance = torch.Generator().manual_seed(0)
    vectors_NJ = (torch.randn(300, 20, generator=chance) @ torch.randn(20, 64, generator=chance)).to(dtype)
    vectors_NJ += 0.1 * torch.randn(300, 64, generator=chance).to(dtype)
    shard = Shard(torch.arange(300), {})
    shard.state["vector"], shard.state["sigma"] = vectors_NJ, vectors_NJ.double().norm(dim=1)
    basis_JW = torch.linalg.qr(vectors_NJ[:12].double().T).Q
    kernels.compute_sketch(basis_JW, shard)
    gaps_TJ = torch.randn(8, 64, generator=chance, dtype=torch.float64).cumsum(0)
    first = frank_wolfe._Gap(basis_JW.T, gaps_TJ[0])
    kernels.compute_scores(gaps_TJ[0], shard)
    for gap_J in gaps_TJ:
        estimate = first.estimate(frank_wolfe._Gap(basis_JW.T, gap_J))
        exact_N = vectors_NJ.double() @ gap_J / shard.state["sigma"]
        guess_N = estimate.share * shard.state["score"] + estimate.along_W.to(dtype) @ shard.state["sketch"]
        off_N = (guess_N.double() - exact_N).abs()
        rounding = kernels.rounding(shard) * estimate.size
        assert (off_N <= shard.state["tail"].double() * estimate.rest + rounding).all()
        row, count = kernels.guess_row(estimate, 0.0, shard)
        assert shard.state["to_check"][exact_N.argmax()]
        assert count == int(shard.state["to_check"].sum())
        assert row.score <= float(exact_N.max()) + rounding
    assert off_N.max() > rounding  # the estimate is one


def test_steps_repeat_rows_until_k_are_distinct():
    log_probs = slow.random_log_probs(np.random.default_rng(3), 40, 3, 3)
    got = lw.select("acs-fw", 12, log_probs=log_probs)
    assert got.notes["steps"] > 12 or got.notes["filled_by_score"] > 0
    assert len(set(got.ids.tolist())) == 12


def test_what_frank_wolfe_does_not_find_is_filled_by_score():
    """Rows that all lie on one line: one weight fits the sum exactly, and no second step helps."""
    log_probs = np.repeat(slow.random_log_probs(np.random.default_rng(0), 1, 6, 3), 30, 0)
    got = lw.select("acs-fw", 7, log_probs=log_probs)
    assert got.ids.tolist() == by_lot(np.arange(30))[:7].tolist()
    assert got.notes["distinct"] == 1
    assert got.notes["filled_by_score"] == 6
    assert got.notes["stopped"] == "no step helps any more"
    assert got.weights == pytest.approx(1, abs=1e-12)  # rows that fill the batch have the smallest weight found


def test_the_number_of_steps_is_bounded():
    log_probs = slow.random_log_probs(np.random.default_rng(3), 40, 2, 3)
    got = lw.select(tuned(AcsFw(), max_steps=1), 10, log_probs=log_probs)
    assert got.notes["steps"] == 10
    assert got.notes["stopped"] == "1 k steps"
    assert got.notes["distinct"] + got.notes["filled_by_score"] == 10


def test_the_gap_falls_with_more_rows():
    log_probs = slow.random_log_probs(np.random.default_rng(4), 300, 50, 4)
    shares = [lw.select("acs-fw", k, log_probs=log_probs).notes["objective_share"] for k in (1, 5, 20, 80)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] < shares[0] / 5


def test_a_class_ruled_out_by_a_draw_does_not_rule_the_row():
    log_probs = slow.random_log_probs(np.random.default_rng(5), 20, 4, 3)
    log_probs[3, 1] = [0.0, -math.inf, -math.inf]
    vectors = slow.acs_vectors(log_probs, 0.7)
    sequence, weights, _ = slow.acs_fw(vectors, 5)
    got = lw.select("acs-fw", 5, log_probs=log_probs)
    assert np.isfinite(got.scores).all()
    assert got.ids[: got.notes["distinct"]].tolist() == [i for i in dict.fromkeys(sequence) if i in weights]


def test_projections_keep_inner_products_in_the_mean():
    log_probs = slow.random_log_probs(np.random.default_rng(6), 100, 60, 4)
    project = acs_fw._projection(60, 4000, Key(1))
    vectors = torch.tensor(slow.acs_vectors(log_probs, 0.7))
    assert ((vectors @ project) @ (vectors @ project).T - vectors @ vectors.T).abs().max() < 0.15 * vectors.norm(
        dim=1
    ).max() ** 2
    a = lw.select(AcsFw(projections=10), 15, log_probs=log_probs, seed=1)
    b = lw.select(AcsFw(projections=10), 15, log_probs=log_probs, seed=2)
    assert a.ids.tolist() == lw.select(AcsFw(projections=10), 15, log_probs=log_probs, seed=1).ids.tolist()
    assert a.ids.tolist() != b.ids.tolist()


def test_the_plain_loop_of_the_benchmark_takes_the_same_rows(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    monkeypatch.setattr(acs_fw, "frank_wolfe", acs_fw.frank_wolfe)  # the benchmark puts a clock around it
    import bayes

    shape = (200, 30, 2, 12)
    ours, plain = bayes.ours("acs-fw", shape), bayes.plain_acs("acs-fw", shape)
    assert ours["picks"] == plain["picks"]
    left = math.sqrt(ours["notes"]["objective_share"])
    assert plain["remark"] == f"left over {left:.4f}"
    lines = bayes.table("acs-fw", shape, {"ours": ours, "plain loop": {**plain, "seconds": 3 * ours["seconds"]}})
    assert "| 3.0 x | 12 of 12 |" in lines[-2]
    assert "not installed" in bayes.table("acs-fw", shape, {"ours": ours, "peer": {"stopped": "not installed"}})[-2]


@pytest.mark.parametrize("kwargs", [{"entropy": math.nan}, {"entropy": "x"}, {"projections": 0}, {"projections": 2.5}])
def test_parameters_are_checked(kwargs: dict):
    with pytest.raises(lw.errors.ArgumentError, match="AcsFw"):
        AcsFw(**kwargs)


def test_what_rounding_leaves_is_no_score():
    """All rows on one line: one of them says all; the rest of the batch is filled by lot, whatever the last bits."""
    left = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        draws = np.repeat(slow.random_log_probs(rng, 211, 1, 4), 7, 1)
        got = lw.select("acs-fw", 20, log_probs=draws)
        assert got.notes["distinct"] < 4
        free = [row for row in by_lot(np.arange(211)) if row not in got.ids[: got.notes["distinct"]]]
        assert got.ids[got.notes["distinct"] :].tolist() == free[: got.notes["filled_by_score"]]
        left.append(got.notes["objective"])
    assert any(left)  # of some something is left
