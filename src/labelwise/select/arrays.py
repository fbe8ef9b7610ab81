"""The door for arrays: checks what a user passes, then hands rows to a strategy. Rooms behind it do not check again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, BudgetError, NeedError, RowError
from labelwise.keys import Key
from labelwise.select.selection import Selection
from labelwise.select.strategy import Strategy
from labelwise.shards import Shards, shards_of
from labelwise.signals.spec import Embedding, Features, LabelProbs, Probs, Signal, stored

# Which signals an argument of `select` gives, and how many axes it has.
ARRAYS: dict[str, tuple[tuple[Signal, ...], int]] = {
    "probs": ((Probs(),), 2),
    "label_probs": ((LabelProbs(),), 2),
    "embedding": ((Embedding(), Features()), 2),
}
ONE_PER_ROW = ("ids", "y")


def choose(
    strategy: Strategy, k: int, arrays: Mapping[str, Any], labelled: Mapping[str, Any] | None, seed: int
) -> Selection:
    """Check the arguments of `labelwise.select` and choose."""
    name = type(strategy).__name__
    given = {key: as_tensor(key, value) for key, value in arrays.items() if value is not None}
    ids = row_ids(given, "the pool")
    check_budget(k, len(ids))
    pool = _shards(name, strategy.needs.pool, given, ids, "")
    behind = _labelled(name, strategy, labelled, pool)
    return strategy.select(pool, behind, k, key_of(seed))


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


def as_tensor(name: str, value: Any) -> Tensor:
    """A tensor over the user's memory, without a copy, of a real number type."""
    if isinstance(value, Tensor):
        tensor = value.detach()
    else:
        array = np.asarray(value)
        if array.dtype == object or array.dtype.kind not in "fiub":
            raise ArgumentError(f"{name} must be an array of numbers, found dtype {array.dtype}")
        if array.dtype.byteorder not in "=|":
            array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype == np.uint64 or array.dtype == np.longdouble:
            array = array.astype(np.int64 if array.dtype == np.uint64 else np.float64)
        with warnings.catch_warnings():
            # A mapped file opened for reading is not writable; nothing here writes to what the user passed.
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            tensor = torch.from_numpy(array if all(s >= 0 for s in array.strides) else array.copy())
    if tensor.is_complex():
        raise ArgumentError(f"{name} must hold real numbers, found {tensor.dtype}")
    axes = 1 if name in ONE_PER_ROW else ARRAYS[name][1]
    if tensor.ndim != axes:
        shape = "(rows,)" if axes == 1 else "(rows, columns)"
        raise RowError(f"{name} must have {axes} axes {shape}, found shape {tuple(tensor.shape)}")
    return tensor


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
        raise RowError(f"ids must be distinct; id {int(unique[counts > 1][0])} is there {int(counts.max())} times")
    return ids


def _shards(name: str, signals: tuple[Signal, ...], given: Mapping[str, Tensor], ids: Tensor, where: str) -> Shards:
    """The columns a strategy needs, as shards over the user's own memory."""
    by_signal = {signal: given[array] for array, (gives, _) in ARRAYS.items() if array in given for signal in gives}
    if LabelProbs() not in by_signal and Probs() in by_signal:
        by_signal[LabelProbs()] = by_signal[Probs()]
    columns = {}
    for signal in stored(signals):
        if signal not in by_signal:
            raise NeedError(f"{name} needs {where}{signal.array}, which was not given: {signal.how}")
        column = by_signal[signal]
        if column.device != ids.device:
            raise RowError(
                f"all arrays must be on one device; {where}{signal.array} is on {column.device}, "
                f"others are on {ids.device}"
            )
        if column.shape[1] == 0:
            raise RowError(f"{where}{signal.array} must have at least one column, found shape {tuple(column.shape)}")
        columns[signal] = column
    return shards_of(ids, columns)


def _labelled(name: str, strategy: Strategy, labelled: Mapping[str, Any] | None, pool: Shards) -> Shards:
    """Shards of the rows already labelled; none when nothing was passed and the strategy can do without."""
    known = (*ARRAYS, *ONE_PER_ROW)
    for key in labelled or {}:
        if key not in known:
            raise ArgumentError(f"labelled= has an unknown entry {key!r}; it may hold: {', '.join(known)}")
    given = {key: as_tensor(key, value) for key, value in (labelled or {}).items() if value is not None}
    if not given or not strategy.needs.labelled:
        return Shards([])
    n = len(row_ids(given, "labelled"))
    # The rows keep no name of their own here: ids below zero cannot be confused with rows of the pool.
    ids = torch.arange(-1, -1 - n, -1, device=next(iter(given.values())).device)
    behind = _shards(name, strategy.needs.labelled, given, ids, "labelled ")
    _check_widths(pool, behind)
    return behind


def _check_widths(pool: Shards, labelled: Shards) -> None:
    """Columns of the same signal must be equally wide in the pool and in the labelled rows."""
    for mine in pool.map(_widths)[:1]:
        for theirs in labelled.map(_widths)[:1]:
            for signal in mine.keys() & theirs.keys():
                if mine[signal] != theirs[signal]:
                    raise RowError(
                        f"{signal.array} has {mine[signal]} columns in the pool and {theirs[signal]} in labelled; "
                        "they must be equal"
                    )


def _widths(shard: Any) -> dict[Signal, int]:
    return {signal: column.shape[1] for signal, column in shard.columns.items()}
