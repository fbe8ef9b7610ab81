import math

import numpy as np
import pytest
import torch

import labelwise as lw
import references_bayes as slow
from labelwise.keys import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import LogProbs
from labelwise.strategies import AcsFw, acs_fw


def _sequence(log_probs: np.ndarray, k: int, monkeypatch: pytest.MonkeyPatch, strategy: AcsFw) -> list[int]:
    """Every index Frank-Wolfe takes, repeats included."""
    seen: list[int] = []
    plain = acs_fw._row

    def noted(pool: Shards, pick: torch.Tensor) -> tuple[torch.Tensor, float]:
        seen.append(int(pick[0]))
        return plain(pool, pick)

    monkeypatch.setattr(acs_fw, "_row", noted)
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


def test_repeats_are_gone_past_until_k_rows_are_distinct():
    log_probs = slow.random_log_probs(np.random.default_rng(3), 40, 3, 3)
    got = lw.select("acs-fw", 12, log_probs=log_probs)
    assert got.notes["steps"] > 12 or got.notes["filled_by_score"] > 0
    assert len(set(got.ids.tolist())) == 12


def test_what_frank_wolfe_does_not_find_is_filled_by_score():
    """Rows that all lie on one line: one weight fits the sum exactly, and no second step helps."""
    log_probs = np.repeat(slow.random_log_probs(np.random.default_rng(0), 1, 6, 3), 30, 0)
    got = lw.select("acs-fw", 7, log_probs=log_probs)
    assert got.ids.tolist() == list(range(7))
    assert got.notes["distinct"] == 1
    assert got.notes["filled_by_score"] == 6
    assert got.notes["stopped"] == "no step helps any more"
    assert (got.weights == 1).all()  # a row that was filled in has the smallest weight found


def test_the_number_of_steps_is_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(acs_fw, "STEPS", 1)
    log_probs = slow.random_log_probs(np.random.default_rng(3), 40, 2, 3)
    got = lw.select("acs-fw", 10, log_probs=log_probs)
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


@pytest.mark.parametrize("kwargs", [{"entropy": math.nan}, {"entropy": "x"}, {"projections": 0}, {"projections": 2.5}])
def test_parameters_are_checked(kwargs: dict):
    with pytest.raises(lw.errors.ArgumentError, match="AcsFw"):
        AcsFw(**kwargs)
