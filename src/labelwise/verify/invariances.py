"""What is true of every strategy, whatever it computes: functions of a Strategy and a Problem; CheckFailed if not."""

from __future__ import annotations

import json
import random as python_random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import numpy.random as numpy_random
import torch

from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.shards import Shards
from labelwise.shards import shards as shards_module
from labelwise.verify.problems import Problem, asked, chosen, pool_of, same, same_ids, true, with_labelled
from labelwise.verify.result import CheckFailed, NotApplicable

NUDGE = 1e-6  # how far float32 may put a number from its place
SMALLEST_BLOCK = 64  # rows; see shards/shards.py
OTHER_SEEDS = 3
MORE_SEEDS = 24


def exactly_k(strategy: Strategy, problem: Problem) -> Selection:
    """k distinct rows of those given, with weights, scores and notes that can be used."""
    got = chosen(strategy, problem)
    ids, k = got.ids.tolist(), problem.k
    true(
        len(ids) == len(set(ids)) == k, f"{k} distinct rows were asked for, found {len(ids)}, {len(set(ids))} distinct"
    )
    true(
        set(ids) <= set(problem.ids.tolist()), f"rows {sorted(set(ids) - set(problem.ids.tolist()))[:5]} were not given"
    )
    true(got.ids.dtype == np.int64, f"ids must be int64, found {got.ids.dtype}")
    for name in ("weights", "scores"):
        values = getattr(got, name)
        true(values.shape == (k,), f"{name} must have shape ({k},), found {values.shape}")
        true(bool(np.isfinite(values).all()), f"{name} must be finite")
    true(bool((got.weights >= 0).all()), "weights must be at least 0")
    if not strategy.weighted:
        true(bool((got.weights == 1).all()), "a strategy that does not say weighted = True gives weights of 1")
    json.dumps(dict(got.notes), allow_nan=False)
    return got


def any_k(strategy: Strategy, problem: Problem) -> None:
    """Exactly k rows for one pick, for those of the problem, and for the whole pool."""
    for k in (1, problem.k, len(problem.ids)):
        exactly_k(strategy, replace(problem, k=k))


def row_order(strategy: Strategy, problem: Problem) -> None:
    """The same picks in any order of the rows: also for draws, which hang on ids and not on places."""
    expected = chosen(strategy, problem)
    order = Key(0).numpy().permutation(len(problem.ids))
    for mixed in (order, np.arange(len(order))[::-1]):
        same(expected, chosen(strategy, problem.ordered(mixed)), "rows in another order")


def ids_renamed(strategy: Strategy, problem: Problem) -> None:
    """Other ids in the same order: the same rows, unless picks are drawn by a hash of the id."""
    tried = [problem]
    if strategy.needs.labelled and not strategy.needs.instead and "embedding" in problem.arrays:
        tried.append(with_labelled(strategy, problem))  # some draw only while nothing is labelled
    for one in tried:
        expected = chosen(strategy, one)
        if _by_chance(strategy, one, expected, range(1, 1 + OTHER_SEEDS)):
            continue
        behind = one.labelled and {n: 3 * v + 1 if n == "ids" else v for n, v in one.labelled.items()}
        got = chosen(strategy, replace(one, ids=3 * one.ids + 1, labelled=behind))
        changed = got.ids.tolist() != (3 * expected.ids + 1).tolist()
        if changed and _by_chance(strategy, one, expected, range(1 + OTHER_SEEDS, 1 + MORE_SEEDS)):
            continue
        same_ids((got.ids - 1) // 3, expected.ids, "ids i renamed to 3 i + 1")
        return
    raise NotApplicable("draws are hashed from ids: other ids are other draws, and the same ids the same (row order)")


def _by_chance(strategy: Strategy, problem: Problem, expected: Selection, seeds: range) -> bool:
    """Whether another seed gives other picks."""
    others = (chosen(strategy, replace(problem, seed=problem.seed + step)) for step in seeds)
    return any(other.ids.tolist() != expected.ids.tolist() for other in others)


@contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """Blocks of so many bytes, but at least 64 rows, on every device."""
    before = shards_module.CPU_BLOCK_BYTES, shards_module.DEVICE_BLOCK_BYTES
    shards_module.CPU_BLOCK_BYTES = shards_module.DEVICE_BLOCK_BYTES = size
    try:
        yield
    finally:
        shards_module.CPU_BLOCK_BYTES, shards_module.DEVICE_BLOCK_BYTES = before


def _in_shards(strategy: Strategy, problem: Problem, count: int) -> Selection:
    suited, pool, labelled = pool_of(strategy, problem, count)
    return suited.select(pool, labelled, problem.k, Key(problem.seed))


def block_size(strategy: Strategy, problem: Problem, sizes: tuple[int, ...] = (1, 10_000), count: int = 1) -> None:
    """The same picks whatever the size of the blocks that rows are read in, also with rows in another order."""
    if len(problem.ids) <= SMALLEST_BLOCK:
        raise NotApplicable(f"{len(problem.ids)} rows are one block whatever its size; give more than {SMALLEST_BLOCK}")
    expected = _in_shards(strategy, problem, 1)
    for size in sizes:
        order = Key(size).numpy().permutation(len(problem.ids))
        with blocks_of(size):
            same(expected, _in_shards(strategy, problem, count), f"blocks of {size} bytes in {count} shards")
            mixed = _in_shards(strategy, problem.ordered(order), count)
            same(expected, mixed, f"blocks of {size} bytes in {count} shards, rows in another order")


def shard_count(strategy: Strategy, problem: Problem, counts: tuple[int, ...] = (2, 5)) -> None:
    """The same picks in any number of shards, and through the door that users take."""
    one = _in_shards(strategy, problem, 1)
    for count in counts:
        same(one, _in_shards(strategy, problem, count), f"rows in {count} shards")
    same(one, chosen(strategy, problem), "through labelwise.select")


def labelled_order(strategy: Strategy, problem: Problem) -> None:
    """The same picks in any order of the labelled rows, named by their ids."""
    if not strategy.needs.labelled:
        raise NotApplicable("asks nothing about labelled rows")
    named = with_labelled(strategy, problem)
    turned = {name: value[::-1].copy() for name, value in (named.labelled or {}).items()}
    mixed = replace(named, labelled=turned)
    same(chosen(strategy, named), chosen(strategy, mixed), "labelled rows in another order")


def precision(strategy: Strategy, problem: Problem) -> None:
    """The same numbers computed in float32 and in float64: the same picks, where no two of them are nearly tied."""
    if not problem.arrays:
        raise NotApplicable("reads no array")
    single = problem.cast(np.float32)
    wide = single.cast(np.float64)
    for k in (problem.k, max(1, problem.k // 2), 1):
        expected = chosen(strategy, replace(wide, k=k))
        nudged = (chosen(strategy, replace(_nudged(wide, turn), k=k)) for turn in range(3))
        if all(other.ids.tolist() == expected.ids.tolist() for other in nudged):
            got = chosen(strategy, replace(single, k=k))
            same(expected, got, "computed in float32", scores=False)
            return
    raise NotApplicable(f"a change of {NUDGE:g} of the numbers changes the picks: rows are nearly tied")


def _nudged(problem: Problem, turn: int) -> Problem:
    """Numbers moved by what float32 may move them; probabilities still sum to one as nearly as is asked."""
    arrays = {}
    for name, value in problem.arrays.items():
        noise = Key(turn).fold("nudge", name).numpy().uniform(-NUDGE, NUDGE, value.shape)
        arrays[name] = value * (1 + noise)
    return replace(problem, arrays=arrays)


def device(strategy: Strategy, problem: Problem) -> None:
    """The same picks on a CUDA device as on the CPU, in float64."""
    if not torch.cuda.is_available():
        raise NotApplicable("torch sees no CUDA device here")
    wide = problem.cast(np.float64)
    expected = chosen(strategy, replace(wide, device="cpu"))
    same(expected, chosen(strategy, replace(wide, device="cuda")), "on CUDA")


def nan_refused(strategy: Strategy, problem: Problem) -> None:
    """A NaN in any array is an error that names it, and the shards are left clean."""
    names = sorted({signal.array for signal in asked(strategy.given(frozenset(problem.arrays)), problem.arrays)})
    if not names:
        raise NotApplicable("reads no array")
    for name in names:
        spoilt = np.array(problem.arrays[name], np.float64)
        spoilt[len(spoilt) // 2] = np.nan
        bad = replace(problem, arrays={**problem.arrays, name: spoilt})
        suited, pool, labelled = pool_of(strategy, bad, 3)
        try:
            suited.select(pool, labelled, problem.k, Key(problem.seed))
        except NumericsError:
            _clean(pool, f"after an error about {name}")
            continue
        raise CheckFailed(f"a NaN in {name} was not noticed: read rows by shard.blocks() or shard.each()")


def state_left(strategy: Strategy, problem: Problem) -> None:
    """Nothing is kept: not beside the rows, not in the columns, not in the strategy."""
    suited, pool, labelled = pool_of(strategy, problem, 3)
    before = _memory(suited)
    columns = pool.map(lambda shard: {signal: id(column) for signal, column in shard.columns.items()})
    first = suited.select(pool, labelled, problem.k, Key(problem.seed))
    _clean(pool, "afterwards")
    after = pool.map(lambda shard: {signal: id(column) for signal, column in shard.columns.items()})
    true(columns == after, "the columns of a shard are not those it had")
    true(before == _memory(suited), f"the strategy changed: it was {before}, it is {_memory(suited)}")
    other = replace(problem, seed=problem.seed + 1, k=max(1, problem.k // 2))
    suited.select(pool, labelled, other.k, Key(other.seed))
    same(first, suited.select(pool, labelled, problem.k, Key(problem.seed)), "the same question asked again")


def _clean(pool: Shards, when: str) -> None:
    left = sorted({name for names in pool.map(lambda shard: list(shard.state)) for name in names} - {"by_id"})
    true(not left, f"state {left} is left beside the rows {when}: remove it in a `finally`")
    true(not any(pool.map(lambda shard: len(shard.shift))), f"a shift of the columns is left {when}")


def _memory(strategy: Strategy) -> dict[str, str]:
    return {name: repr(value) for name, value in getattr(strategy, "__dict__", {}).items()}


def chance_by_key(strategy: Strategy, problem: Problem) -> None:
    """Chance comes from the key alone: the same seed gives the same picks, global generators stay where they are."""
    before = _generators()
    first = chosen(strategy, problem)
    true(before == _generators(), "a global generator (torch, NumPy or random) was used: draw from the Key")
    same(first, chosen(strategy, problem), "the same seed again")


def _generators() -> tuple[bytes, str, int]:
    place = numpy_random.get_state(legacy=False)  # noqa: NPY002  looked at, not drawn from
    return bytes(torch.get_rng_state().tolist()), repr(place), hash(python_random.getstate())


def inputs_untouched(strategy: Strategy, problem: Problem) -> None:
    """What the user passed is not written to."""
    before = {name: value.copy() for name, value in problem.arrays.items()}
    chosen(strategy, problem)
    for name, value in problem.arrays.items():
        true(np.array_equal(before[name], value, equal_nan=True), f"{name} was changed; work on a copy")


Invariance = Callable[[Strategy, Problem], None]
INVARIANCES: dict[str, Invariance] = {
    "k rows": any_k,
    "row order": row_order,
    "ids": ids_renamed,
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
