"""Invariances: what must hold for every strategy. A check takes a Strategy and a Problem, and may raise CheckFailed."""

from __future__ import annotations

import json
import random as python_random
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.random as numpy_random
import torch

from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.shards import Shards
from labelwise.verify.chi_square import ALARM, chi_square_p
from labelwise.verify.problems import (
    Problem,
    expect,
    expect_ids,
    expect_same,
    picks_of,
    shards_for,
    signals_read,
    with_labelled,
)
from labelwise.verify.result import CheckFailed, NotApplicable

PERTURBATION = 1e-6  # relative; more than the rounding of float32
SMALLEST_BLOCK = 64  # rows; see shards/shard.py
COPIES, BUCKET = 6, 10  # of each row, and rows with neighbouring ids, as in a pool that is sorted by class
TIED_PICKS, TIED_SEEDS = 4, 16
OTHER_SEEDS = 3
MORE_SEEDS = 24


def exactly_k(strategy: Strategy, problem: Problem) -> Selection:
    """A selection of k distinct rows of the pool, with finite scores, weights of at least 0, and notes for JSON."""
    got = picks_of(strategy, problem)
    ids, k = got.ids.tolist(), problem.k
    distinct, unknown = len(set(ids)), sorted(set(ids) - set(problem.ids.tolist()))
    expect(len(ids) == distinct == k, f"expected {k} distinct rows, found {len(ids)}, of which {distinct} distinct")
    expect(not unknown, f"rows {unknown[:5]} are not in the pool")
    expect(got.ids.dtype == np.int64, f"ids must be int64, found {got.ids.dtype}")
    for name in ("weights", "scores"):
        values = getattr(got, name)
        expect(values.shape == (k,), f"{name} must have shape ({k},), found {values.shape}")
        expect(bool(np.isfinite(values).all()), f"{name} must be finite")
    expect(bool((got.weights >= 0).all()), "weights must be at least 0")
    if not strategy.weighted:
        expect(bool((got.weights == 1).all()), "weights must be 1 unless the strategy has weighted = True")
    json.dumps(dict(got.notes), allow_nan=False)
    return got


def any_k(strategy: Strategy, problem: Problem) -> None:
    """Exactly k rows for one pick, for those of the problem, and for the whole pool."""
    for k in (1, problem.k, len(problem.ids)):
        exactly_k(strategy, replace(problem, k=k))


def row_order(strategy: Strategy, problem: Problem) -> None:
    """The same picks in any order of the rows, also for draws, which depend on ids and not on positions."""
    expected = picks_of(strategy, problem)
    order = Key(0).numpy().permutation(len(problem.ids))
    for shuffled in (order, np.arange(len(order))[::-1]):
        expect_same(expected, picks_of(strategy, problem.ordered(shuffled)), "rows in another order")


def ids_renamed(strategy: Strategy, problem: Problem) -> None:
    """The same rows under other ids in the same order, unless picks are drawn by a hash of the id."""
    problems = [problem]
    if strategy.needs.labelled and not strategy.needs.instead and "embedding" in problem.arrays:
        problems.append(with_labelled(strategy, problem))  # some strategies draw only while nothing is labelled
    for one in problems:
        expected = picks_of(strategy, one)
        if _is_random(strategy, one, expected, range(1, 1 + OTHER_SEEDS)):
            continue
        labelled = one.labelled and {n: 3 * v + 1 if n == "ids" else v for n, v in one.labelled.items()}
        got = picks_of(strategy, replace(one, ids=3 * one.ids + 1, labelled=labelled))
        changed = got.ids.tolist() != (3 * expected.ids + 1).tolist()
        if changed and _is_random(strategy, one, expected, range(1 + OTHER_SEEDS, 1 + MORE_SEEDS)):
            continue
        expect_ids((got.ids - 1) // 3, expected.ids, "ids i renamed to 3 i + 1")
        return
    raise NotApplicable(
        "draws are hashes of ids, so other ids give other draws; the check of row order covers the same ids"
    )


def ties_by_chance(strategy: Strategy, problem: Problem) -> None:
    """Copies of a row are equally likely to be picked, though their ids rise class by class."""
    size = COPIES * BUCKET
    if problem.labelled is not None and strategy.needs.instead:
        raise NotApplicable("it is checked with the arrays that take the place of labelled rows")
    if len(problem.ids) < size:
        raise NotApplicable(f"it takes the ids of {size} rows; found {len(problem.ids)}")
    ids, k = np.sort(problem.ids)[:size], min(problem.k, TIED_PICKS)
    for distinct in (1, BUCKET):
        rows = np.arange(size) % distinct
        copies = replace(problem, arrays={name: value[rows] for name, value in problem.arrays.items()}, ids=ids, k=k)
        seeds = range(problem.seed, problem.seed + TIED_SEEDS)
        picked = np.concatenate([picks_of(strategy, replace(copies, seed=seed)).ids for seed in seeds])
        counts = np.bincount(np.searchsorted(ids, picked) // BUCKET, minlength=COPIES)
        p = chi_square_p(counts, np.full(COPIES, 1 / COPIES))
        expect(
            p > ALARM,
            f"copies of {distinct} rows were picked {counts.tolist()} times, from the smallest ids to the largest "
            f"(chi-square p = {p:.2g}); ties must not follow ids or the order of rows: rank rows by Shards.best, or "
            "take the smallest of Shard.lots",
        )


def _is_random(strategy: Strategy, problem: Problem, expected: Selection, seeds: range) -> bool:
    """Whether another seed gives other picks."""
    others = (picks_of(strategy, replace(problem, seed=problem.seed + step)) for step in seeds)
    return any(other.ids.tolist() != expected.ids.tolist() for other in others)


def _in_shards(strategy: Strategy, problem: Problem, count: int = 1, block: int | None = None) -> Selection:
    """The picks from `count` shards, in blocks of at most `block` bytes but at least 64 rows."""
    suited, pool, labelled = shards_for(strategy, problem, count)
    return suited.select(pool.in_blocks(block), labelled.in_blocks(block), problem.k, Key(problem.seed))


def block_size(strategy: Strategy, problem: Problem, sizes: tuple[int, ...] = (1, 10_000), count: int = 1) -> None:
    """The same picks for every block size, also with rows in another order."""
    if len(problem.ids) <= SMALLEST_BLOCK:
        raise NotApplicable(f"{len(problem.ids)} rows always fit into one block; pass more than {SMALLEST_BLOCK}")
    expected = _in_shards(strategy, problem)
    for size in sizes:
        order = Key(size).numpy().permutation(len(problem.ids))
        same, shuffled = (_in_shards(strategy, one, count, size) for one in (problem, problem.ordered(order)))
        expect_same(expected, same, f"blocks of {size} bytes in {count} shards")
        expect_same(expected, shuffled, f"blocks of {size} bytes in {count} shards, rows in another order")


def shard_count(strategy: Strategy, problem: Problem, counts: tuple[int, ...] = (2, 5)) -> None:
    """The same picks in any number of shards, and by `labelwise.select`."""
    one = _in_shards(strategy, problem, 1)
    for count in counts:
        expect_same(one, _in_shards(strategy, problem, count), f"rows in {count} shards")
    expect_same(one, picks_of(strategy, problem), "by labelwise.select")


def labelled_order(strategy: Strategy, problem: Problem) -> None:
    """The same picks in any order of the labelled rows, with their ids."""
    if not strategy.needs.labelled:
        raise NotApplicable("reads no labelled rows")
    problem = with_labelled(strategy, problem)
    turned = {name: value[::-1].copy() for name, value in (problem.labelled or {}).items()}
    other = replace(problem, labelled=turned)
    expect_same(picks_of(strategy, problem), picks_of(strategy, other), "labelled rows in another order")


def precision(strategy: Strategy, problem: Problem) -> None:
    """The same picks from the same numbers in float32 and in float64, where rows are not nearly tied."""
    if not problem.arrays:
        raise NotApplicable("reads no array")
    single = problem.cast(np.float32)
    wide = single.cast(np.float64)
    for k in (problem.k, max(1, problem.k // 2), 1):
        expected = picks_of(strategy, replace(wide, k=k))
        perturbed = (picks_of(strategy, replace(_perturbed(wide, turn), k=k)) for turn in range(3))
        if all(other.ids.tolist() == expected.ids.tolist() for other in perturbed):
            got = picks_of(strategy, replace(single, k=k))
            expect_same(expected, got, "computed in float32", scores=False)
            return
    raise NotApplicable(f"a relative change of {PERTURBATION:g} of the numbers changes the picks: rows are nearly tied")


def _perturbed(problem: Problem, turn: int) -> Problem:
    """Numbers changed by what float32 may change them; probabilities still sum to one within the tolerance."""
    arrays = {}
    for name, value in problem.arrays.items():
        noise = Key(turn).fold("nudge", name).numpy().uniform(-PERTURBATION, PERTURBATION, value.shape)
        arrays[name] = value * (1 + noise)
    return replace(problem, arrays=arrays)


def device(strategy: Strategy, problem: Problem) -> None:
    """The same picks on a CUDA device as on the CPU, in float64."""
    if not torch.cuda.is_available():
        raise NotApplicable("torch finds no CUDA device")
    wide = problem.cast(np.float64)
    expected = picks_of(strategy, replace(wide, device="cpu"))
    expect_same(expected, picks_of(strategy, replace(wide, device="cuda")), "on CUDA")


def nan_refused(strategy: Strategy, problem: Problem) -> None:
    """A NaN in any array raises an error, and the shards are left clean."""
    names = sorted({signal.array for signal in signals_read(strategy.given(frozenset(problem.arrays)), problem.arrays)})
    if not names:
        raise NotApplicable("reads no array")
    for name in names:
        spoilt = np.array(problem.arrays[name], np.float64)
        spoilt[len(spoilt) // 2] = np.nan
        bad = replace(problem, arrays={**problem.arrays, name: spoilt})
        suited, pool, labelled = shards_for(strategy, bad, 3)
        try:
            suited.select(pool, labelled, problem.k, Key(problem.seed))
        except NumericsError:
            _clean(pool, f"after an error about {name}")
            continue
        raise CheckFailed(f"a NaN in {name} raised no NumericsError: read rows by shard.blocks() or shard.each()")


def state_left(strategy: Strategy, problem: Problem) -> None:
    """A selection leaves nothing behind: not in the state of shards, not in columns, not in the strategy."""
    suited, pool, labelled = shards_for(strategy, problem, 3)
    before = _attributes(suited)
    columns = pool.map(lambda shard: {signal: id(column) for signal, column in shard.columns.items()})
    first = suited.select(pool, labelled, problem.k, Key(problem.seed))
    _clean(pool, "afterwards")
    after = pool.map(lambda shard: {signal: id(column) for signal, column in shard.columns.items()})
    expect(columns == after, "the columns of a shard were replaced")
    expect(before == _attributes(suited), f"the strategy changed from {before} to {_attributes(suited)}")
    other = replace(problem, seed=problem.seed + 1, k=max(1, problem.k // 2))
    suited.select(pool, labelled, other.k, Key(other.seed))
    expect_same(first, suited.select(pool, labelled, problem.k, Key(problem.seed)), "the same selection repeated")


def _clean(pool: Shards, when: str) -> None:
    left = sorted({name for names in pool.map(lambda shard: list(shard.state)) for name in names} - {"by_id"})
    expect(not left, f"shard.state still holds {left} {when}: remove it in a `finally`")
    expect(not any(pool.map(lambda shard: len(shard.shift))), f"columns are still shifted {when}")


def _attributes(strategy: Strategy) -> dict[str, str]:
    return {name: repr(value) for name, value in getattr(strategy, "__dict__", {}).items()}


def chance_by_key(strategy: Strategy, problem: Problem) -> None:
    """Random numbers come from the key alone: the same seed gives the same picks, and no global generator is used."""
    before = _generators()
    first = picks_of(strategy, problem)
    expect(before == _generators(), "a global generator (torch, NumPy or random) was used: draw from the Key")
    expect_same(first, picks_of(strategy, problem), "the same seed")


def _generators() -> tuple[bytes, str, int]:
    numpy_state = numpy_random.get_state(legacy=False)  # noqa: NPY002  read, not drawn from
    return bytes(torch.get_rng_state().tolist()), repr(numpy_state), hash(python_random.getstate())


def inputs_untouched(strategy: Strategy, problem: Problem) -> None:
    """The arrays that the user passed are not written to."""
    before = {name: value.copy() for name, value in problem.arrays.items()}
    picks_of(strategy, problem)
    for name, value in problem.arrays.items():
        expect(np.array_equal(before[name], value, equal_nan=True), f"{name} was changed; work on a copy")


Invariance = Callable[[Strategy, Problem], None]
INVARIANCES: dict[str, Invariance] = {
    "k rows": any_k,
    "row order": row_order,
    "ids": ids_renamed,
    "ties": ties_by_chance,
    "blocks": block_size,
    "shards": shard_count,
    "labelled order": labelled_order,
    "dtype": precision,
    "device": device,
    "NaN": nan_refused,
    "state": state_left,
    "chance": chance_by_key,
    "inputs": inputs_untouched,
}
