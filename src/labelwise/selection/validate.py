"""The door for arrays: checks what a user passes, then hands rows to a strategy. Rooms behind it do not check again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, BudgetError, NeedError, RowError
from labelwise.pool.sources.mapped import Mapped, file_of
from labelwise.rng import Key
from labelwise.selection.as_tensor import as_tensor, refuse_copies
from labelwise.selection.placement import Rule, placed
from labelwise.selection.run import PLAIN, How, checked, select_kept, size_of
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Strategy
from labelwise.shards import Shards, computed_in, shards_of
from labelwise.shards.factories import array_parts
from labelwise.shards.ray.ray_shards import Ray, engine_of
from labelwise.signals.check import check_classes
from labelwise.signals.spec import (
    Basis,
    Duals,
    Embedding,
    Features,
    GradNorm,
    GradSketch,
    Label,
    LabelProbs,
    LogProbs,
    LossJvp,
    Probs,
    Signal,
)

# Which signals an argument of `select` gives, and how many axes it has.
ARRAYS: dict[str, tuple[tuple[Signal, ...], int]] = {
    "probs": ((Probs(),), 2),
    "label_probs": ((LabelProbs(),), 2),
    "embedding": ((Embedding(), Features()), 2),
    "log_probs": ((LogProbs(),), 3),
    "basis": ((Basis(),), 2),
    "duals": ((Duals(),), 1),
    "grad_sqnorm": ((GradNorm(),), 1),
    "grad_dot": ((LossJvp(),), 1),
    "grad_sketch": ((GradSketch(),), 2),
}
ONE_PER_ROW = ("ids", "y")


def choose(
    strategy: Strategy,
    k: int,
    arrays: Mapping[str, Any],
    labelled: Mapping[str, Any] | None,
    seed: int,
    engine: Any = None,
    how: How = PLAIN,
) -> Selection:
    """Check the arguments of `labelwise.select` and choose."""
    name = type(strategy).__name__
    cluster = engine_of(engine)
    if how.limit is not None:
        refuse_copies(arrays, "")
        refuse_copies(labelled if isinstance(labelled, Mapping) else {}, "labelled ")
    given = _tensors(arrays)
    strategy = strategy.given(frozenset(given))
    ids = row_ids(given, "the pool")
    check_budget(k, len(ids))
    instead = strategy.needs.instead if all(one.array in given for one in strategy.needs.instead) else ()
    columns = _columns(name, strategy.needs.pool + instead, given, ids.device, "")
    behind = _labelled_arrays(labelled)
    here = -(-len(ids) // (1 if cluster is None else cluster.parts(len(ids))))  # rows in one process
    if not behind or not strategy.needs.labelled or instead:
        block = checked(strategy, size_of(here, k, columns, named="ids" in given), how)
        rule = Rule(strategy, int(k), here, 0, how.limit)
        with _pool(cluster, ids, columns, _files(columns, given, arrays), computed_in(columns), rule, block) as pool:
            return _noted(select_kept(strategy, pool, Shards([]), k, key_of(seed), how), pool, cluster)
    beside = _columns(name, strategy.needs.labelled, behind, ids.device, "labelled ")
    _check_widths(columns, beside)
    # One precision for both, the wider one: they are measured against each other.
    dtype = max(computed_in(columns), computed_in(beside), key=lambda kind: kind.itemsize)
    size = size_of(here, k, columns, dtype, len(next(iter(beside.values()))), "ids" in given or "ids" in behind)
    block = checked(strategy, size, how)
    past = _labelled_shards(behind, beside, ids, dtype).in_blocks(block)
    rule = Rule(strategy, int(k), here, size.labelled, how.limit)
    with _pool(cluster, ids, columns, _files(columns, given, arrays), dtype, rule, block) as pool:
        return _noted(select_kept(strategy, pool, past, k, key_of(seed), how), pool, cluster)


@contextmanager
def _pool(
    cluster: Ray | None,
    ids: Tensor,
    columns: Mapping[Signal, Tensor],
    files: Mapping[Signal, Mapped],
    dtype: torch.dtype,
    rule: Rule,
    block: int | None,
) -> Iterator[Shards]:
    """The rows where the engine holds them, in blocks of so many bytes; a worker with a GPU asks the rule itself."""
    if cluster is None:
        yield shards_of(ids, columns, dtype=dtype).in_blocks(block)
        return
    asked = ("cuda", replace(rule, share=min(1.0, cluster.gpus))) if cluster.gpus else ("cpu", None)
    makers = array_parts(ids, columns, files, dtype, cluster.parts(len(ids)), *asked)
    with cluster.shards(makers, [len(maker.ids) for maker in makers]) as pool:
        yield pool if cluster.gpus else pool.in_blocks(block)


def _noted(picks: Selection, pool: Shards, cluster: Ray | None) -> Selection:
    """The picks with where workers made them, if those have a GPU."""
    said = placed(pool) if cluster is not None and cluster.gpus else ""
    return replace(picks, notes={**picks.notes, "place": said}) if said else picks


def _files(
    columns: Mapping[Signal, Tensor], given: Mapping[str, Tensor], arrays: Mapping[str, Any]
) -> dict[Signal, Mapped]:
    """Where columns lie that are in files, by the arrays that were passed."""
    found: dict[Signal, Mapped] = {}
    for signal, column in columns.items():
        file = next(file_of(arrays[name], column) for name, tensor in given.items() if tensor is column)
        if file is not None:
            found[signal] = file
    return found


def key_of(seed: int) -> Key:
    """The key of a run, from the user's seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ArgumentError(f"seed must be an integer of at least 0, found {seed!r}")
    return Key(int(seed))


def check_budget(k: int, free: int) -> None:
    """Raise BudgetError unless 1 <= k <= free."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise BudgetError(f"k must be a whole number of rows, found {k!r}")
    if free == 0:
        raise BudgetError("there is no row to choose from: the pool is empty or every row is labelled")
    if k < 1:
        raise BudgetError(f"k must be at least 1, found {k}")
    if k > free:
        raise BudgetError(f"k = {k} rows were asked for, but only {free} are free; ask for at most {free}")


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: as_tensor(name, value, 1 if name in ONE_PER_ROW else ARRAYS[name][1])
        for name, value in arrays.items()
        if value is not None
    }


def row_ids(given: Mapping[str, Tensor], whose: str) -> Tensor:
    """The ids of the rows of some arrays, which must agree in length: `ids` if given, else 0..N-1."""
    lengths = {name: len(array) for name, array in given.items()}
    if not lengths:
        raise NeedError(
            f"no array was given for {whose}; pass at least one of {', '.join(ARRAYS)} or ids, one entry for each row"
        )
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise RowError(f"all arrays of {whose} must have one entry for each row; found lengths: {found}")
    n = next(iter(lengths.values()))
    if "ids" not in given:
        home = next(iter(given.values())).device
        return torch.arange(n, device=home)
    ids = given["ids"]
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise RowError(f"ids must be integers, found {ids.dtype}")
    ids = ids.to(torch.int64)
    unique, counts = ids.unique(return_counts=True)
    if len(unique) != len(ids):
        more = counts > 1
        raise RowError(f"ids must be distinct; id {int(unique[more][0])} is there {int(counts[more][0])} times")
    return ids


def _columns(
    name: str, signals: tuple[Signal, ...], given: Mapping[str, Tensor], device: torch.device, where: str
) -> dict[Signal, Tensor]:
    """The columns a strategy needs, over the user's own memory."""
    by_signal = {signal: given[array] for array, (gives, _) in ARRAYS.items() if array in given for signal in gives}
    if LabelProbs() not in by_signal and Probs() in by_signal:
        by_signal[LabelProbs()] = by_signal[Probs()]
    if "y" in given:
        by_signal[Label()] = given["y"]
    columns = {}
    for signal in _given_as(name, signals, given, by_signal, where):
        # An array of draws has as many as it has, whatever number a strategy would ask of a model.
        given_as = LogProbs() if isinstance(signal, LogProbs) else Basis() if isinstance(signal, Basis) else signal
        if given_as not in by_signal:
            raise NeedError(f"{name} needs {where}{signal.array}, which was not given: {signal.how}")
        column = by_signal[given_as]
        if column.device != device:
            raise RowError(
                f"all arrays must be on one device; {where}{signal.array} is on {column.device}, others on {device}"
            )
        if 0 in column.shape[1:]:
            raise RowError(f"{where}{signal.array} must have at least one column, found shape {tuple(column.shape)}")
        columns[signal] = column
    check_classes({signal: column.shape[1:] for signal, column in columns.items()})
    return columns


def _given_as(
    name: str, signals: tuple[Signal, ...], given: Mapping[str, Tensor], by_signal: Mapping[Signal, Tensor], where: str
) -> tuple[Signal, ...]:
    """The columns to keep: an array `basis` takes the place of the map that would make it from another array."""
    wanted: list[Signal] = []
    for signal in signals:
        if isinstance(signal, Basis) and "basis" in given:
            wanted.append(signal)
            continue
        if isinstance(signal, Basis) and any(part not in by_signal for part in signal.stored()):
            raise NeedError(f"{name} needs {where}{signal.array}, which was not given: {signal.how}")
        wanted.extend(signal.stored())
    return tuple(dict.fromkeys(wanted))


def _labelled_arrays(labelled: Any) -> dict[str, Tensor]:
    """What was passed as `labelled`, as tensors."""
    if labelled is None:
        return {}
    known = (*ARRAYS, *ONE_PER_ROW)
    if not isinstance(labelled, Mapping):
        raise ArgumentError(
            f"labelled must be a dict of arrays such as dict(embedding=..., y=...), found {type(labelled).__name__}"
        )
    for key in labelled:
        if key not in known:
            raise ArgumentError(f"labelled= has an unknown entry {key!r}; it may hold: {', '.join(known)}")
    return _tensors(labelled)


def _labelled_shards(
    given: Mapping[str, Tensor], columns: Mapping[Signal, Tensor], pool: Tensor, dtype: torch.dtype
) -> Shards:
    """Shards of the rows already labelled, checked; their ids meet none of the pool's."""
    own = row_ids(given, "labelled")
    if "ids" in given:
        both = own[torch.isin(own, pool)]
        if len(both):
            raise RowError(
                f"row id {int(both[0])} is in labelled and in the pool ({len(both)} such rows); a row that is labelled "
                "is not chosen again: leave it out of the arrays of the pool"
            )
        whose = "labelled row id"
    else:
        whose = "labelled row"
    # Checked under the caller's names; then, where there are none, under ids that the pool does not use.
    named = shards_of(own, columns, 1, dtype, whose)
    named.map(lambda shard: sum(1 for _ in shard.blocks()))
    return named if "ids" in given else shards_of(min(0, int(pool.min())) - 1 - own, columns, 1, dtype, whose)


def _check_widths(pool: Mapping[Signal, Tensor], labelled: Mapping[Signal, Tensor]) -> None:
    """Columns of the same signal must be equally wide in the pool and in the labelled rows."""
    for signal in pool.keys() & labelled.keys():
        mine, theirs = pool[signal].shape[1:], labelled[signal].shape[1:]
        if mine != theirs:
            here, there = (" x ".join(str(size) for size in shape) for shape in (mine, theirs))
            raise RowError(f"{signal.array} has {here} columns in the pool and {there} in labelled; they must be equal")
