"""BSS, leverage scores and volume sampling, with the same noise or against their distribution."""

from __future__ import annotations

from collections import Counter

import numpy as np
import torch

from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Basis
from labelwise.strategies.leverage import reference as slow
from labelwise.strategies.leverage.volume import draw_spanning_rows
from labelwise.strategies.leverage.weighted_batch import Draws
from labelwise.strategies.leverage.weighted_sampling import PoissonSampler, expected_draws
from labelwise.strategies.leverage.whiten import LEVERAGE, whitened
from labelwise.verify.case import Case, checks
from labelwise.verify.chi_square import ALARM, chi_square_p
from labelwise.verify.problems import by_lot, expect, expect_close, expect_ids

TURNS = 250


def _pool(psi: np.ndarray, ids: np.ndarray) -> Shards:
    return shards_of(torch.from_numpy(ids), {Basis(): torch.from_numpy(psi)})


def _whitened(psi: np.ndarray, ids: np.ndarray, rank: int, k: int, seed: int) -> tuple[np.ndarray, float]:
    """The whitened rows, checked against a singular value decomposition, and the expected draws for k rows."""
    pool = _pool(psi, ids)
    with whitened(pool, Basis(), rank, None, Key(seed)) as basis:
        expected = expected_draws(pool, LEVERAGE, k, Draws.most(k))
        v = basis.transform(pool.take(torch.from_numpy(ids))).numpy()
    by_svd = slow.whitened(psi, rank)
    expect_close(v @ v.T, by_svd @ by_svd.T, "the whitened basis", 0.0, 1e-6 * float((by_svd**2).sum(1).max()))
    return v, expected


@checks("bss")
def bss(case: Case) -> None:
    """The same draws by inverses of explicit matrices and waiting times row by row: picks and weights."""
    for turn, kind in enumerate(slow.KINDS):
        rng = case.rng("bss", turn)
        psi, ids = slow.features(kind, 60, 3, rng), rng.permutation(1000)[:60] - 300
        gamma, k = (0.45, 0.12)[turn % 2], int(rng.integers(15, 40))
        v, expected = _whitened(psi, ids, 3, k, turn)
        strategy = case.with_parameters({"gamma": gamma, "rank": 3, "retries": 0})
        got = case.select(k, {"basis": psi}, ids, seed=turn, strategy=strategy)
        found = slow.bss(v, ids.tolist(), k, gamma, expected, Key(turn).fold("try", 0))
        expect_ids(got.ids, list(found), f"{kind} rows, gamma = {gamma}")
        expect_close(got.weights / k, list(found.values()), "weights", 1e-6)


@checks("leverage")
def leverage(case: Case) -> None:
    """The same draws in proportion to leverage: picks and weights."""
    for turn, kind in enumerate(slow.KINDS):
        rng = case.rng("leverage", turn)
        psi, ids = slow.features(kind, 60, 3, rng), rng.permutation(500)[:60] - 100
        k = int(rng.integers(10, 45))
        _, expected = _whitened(psi, ids, 2, k, turn)
        got = case.select(k, {"basis": psi}, ids, seed=turn, strategy=case.with_parameters({"rank": 2}))
        found = slow.leverage(slow.whitened(psi, 2), ids.tolist(), k, expected, Key(turn))
        expect_ids(got.ids, list(found), f"{kind} rows")
        expect_close(got.weights / k, list(found.values()), "weights", 1e-6)


@checks("volume")
def volume(case: Case) -> None:
    """The greedy rule by one inverse for each pick; the weights of the sampled rule correct for its probabilities."""
    for turn, kind in enumerate(slow.KINDS):
        rng = case.rng("volume", turn)
        psi, ids = slow.features(kind, 80, 4, rng), by_lot(rng.permutation(500)[:80] - 100)
        rows, gains = slow.greedy_design(slow.whitened(psi), 30)
        got = case.select(30, {"basis": psi}, ids, strategy=case.with_parameters({"rank": 4, "rule": "greedy"}))
        expect_ids(got.ids, ids[rows], f"greedy design, {kind} rows")
        expect_close(got.scores, gains, "gains", 1e-6)
        picks = case.select(30, {"basis": psi}, ids, seed=turn, strategy=case.with_parameters({"rank": 4}))
        row_of = {int(i): row for row, i in enumerate(ids)}
        v = slow.whitened(psi)[[row_of[int(i)] for i in picks.ids]]
        times = picks.weights * (v**2).sum(1) / 4 * picks.notes["draws"] / 30
        expect_close(times, times.round(), "times each row was drawn", 0.0, 1e-5)
        expect_close(times.sum(), picks.notes["draws"], "draws in all", 1e-6)


@checks("volume", "law")
def volume_law(case: Case) -> None:
    """Spanning rows in proportion to their squared volume, by enumeration of all sets."""
    for d in (1, 2):
        psi = slow.features("heavy", 8, d, case.rng("volume law", d))
        law = slow.volume_law(slow.whitened(psi), d)
        pool = _pool(psi, np.arange(8))
        case.record({"basis": psi})
        seen: Counter[tuple[int, ...]] = Counter()
        with whitened(pool, Basis(), d, None, Key(0)) as basis:
            for turn in range(TURNS):
                draws = Draws(8)
                sampler = PoissonSampler(pool, LEVERAGE, Key(1000 * case.seed + turn))
                draw_spanning_rows(pool, basis, sampler, draws)
                seen[tuple(sorted(draws.weight))] += 1
        p = chi_square_p([seen[rows] for rows in law], list(law.values()))
        expect(p > ALARM, f"spanning rows do not follow the squared volume: chi-square p = {p:.2g}")
