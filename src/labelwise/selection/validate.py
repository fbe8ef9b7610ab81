"""Check the arguments of `labelwise.select`, and run the strategy on the arrays. Inner modules do not check again."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, BudgetError, NeedError, RowError
from labelwise.pool.sources.arrays import Mapped, file_of
from labelwise.rng import Key
from labelwise.selection.memory import Size, block_bytes
from labelwise.selection.placement import PlacementPolicy, placement_note
from labelwise.selection.run import DEFAULT_OPTIONS, RunOptions, run_selection
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Strategy
from labelwise.shards import Shards, computed_in, shards_of
from labelwise.shards.factories import array_parts
from labelwise.shards.ray import Ray, engine_of
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

# The signals that an argument of `select` gives, and its number of axes.
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
SHAPES = {1: "(rows,)", 2: "(rows, columns)", 3: "(rows, draws, classes)"}
MAX_COPIED = 1 << 20  # bytes of an array that may be copied under a limit on memory


def select_from_arrays(
    strategy: Strategy,
    k: int,
    arrays: Mapping[str, Any],
    labelled: Mapping[str, Any] | None,
    seed: int,
    engine: Any = None,
    options: RunOptions = DEFAULT_OPTIONS,
) -> Selection:
    """Check the arguments of `labelwise.select` and select; the arguments are those described there."""
    name = type(strategy).__name__
    cluster = engine_of(engine)
    if options.limit is not None:
        _refuse_copies(arrays, "")
        _refuse_copies(labelled if isinstance(labelled, Mapping) else {}, "labelled ")
    given = _tensors(arrays)
    strategy = strategy.given(frozenset(given))
    ids = row_ids(given, "the pool")
    k = check_budget(k, len(ids))
    instead = strategy.needs.instead if all(signal.array in given for signal in strategy.needs.instead) else ()
    columns = _columns(name, strategy.needs.pool + instead, given, ids.device, "")
    labelled_given = _labelled_tensors(labelled)
    rows = -(-len(ids) // (1 if cluster is None else cluster.parts(len(ids))))  # in one process
    past = Shards([])
    if not labelled_given or not strategy.needs.labelled or instead:
        dtype = computed_in(columns)
        size = Size.of(rows, k, columns, named="ids" in given)
        block = block_bytes(strategy, size, options.limit)
    else:
        labelled_columns = _columns(name, strategy.needs.labelled, labelled_given, ids.device, "labelled ")
        _check_widths(columns, labelled_columns)
        # One precision for both, the wider one: they are measured against each other.
        dtype = max(computed_in(columns), computed_in(labelled_columns), key=lambda kind: kind.itemsize)
        labelled_rows = len(next(iter(labelled_columns.values())))
        size = Size.of(rows, k, columns, dtype, labelled_rows, "ids" in given or "ids" in labelled_given)
        block = block_bytes(strategy, size, options.limit)
        past = _labelled_shards(labelled_given, labelled_columns, ids, dtype).in_blocks(block)
    policy = PlacementPolicy(strategy, k, rows, size.labelled, options.limit)
    with _pool(cluster, ids, columns, _files(columns, given, arrays), dtype, policy, block) as pool:
        picks = run_selection(strategy, pool, past, k, key_of(seed), options)
        place = placement_note(pool) if cluster is not None and cluster.gpus else ""
    return replace(picks, notes={**picks.notes, "place": place}) if place else picks


@contextmanager
def _pool(
    cluster: Ray | None,
    ids: Tensor,
    columns: Mapping[Signal, Tensor],
    files: Mapping[Signal, Mapped],
    dtype: torch.dtype,
    policy: PlacementPolicy,
    block: int | None,
) -> Iterator[Shards]:
    """Within, the rows in this process or in a cluster's workers; a worker with a GPU calls the policy itself."""
    if cluster is None:
        yield shards_of(ids, columns, dtype=dtype).in_blocks(block)
        return
    device = ("cuda", replace(policy, share=min(1.0, cluster.gpus))) if cluster.gpus else ("cpu", None)
    parts = array_parts(ids, columns, files, dtype, cluster.parts(len(ids)), *device)
    with cluster.shards(parts, [len(part.ids) for part in parts]) as pool:
        yield pool if cluster.gpus else pool.in_blocks(block)


def _files(
    columns: Mapping[Signal, Tensor], given: Mapping[str, Tensor], arrays: Mapping[str, Any]
) -> dict[Signal, Mapped]:
    """The files of those columns that are mapped files."""
    files: dict[Signal, Mapped] = {}
    for signal, column in columns.items():
        file = next(file_of(arrays[name], column) for name, tensor in given.items() if tensor is column)
        if file is not None:
            files[signal] = file
    return files


def key_of(seed: int) -> Key:
    """The key of a run, from the user's seed."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise ArgumentError(f"seed must be an integer of at least 0, found {seed!r}")
    return Key(int(seed))


def check_budget(k: Any, free: int) -> int:
    """`k` as a Python integer, whose arithmetic does not overflow. Raises BudgetError unless 1 <= k <= free."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer):
        raise BudgetError(f"k must be a whole number of rows, found {k!r}")
    if free == 0:
        raise BudgetError("there is no row to choose from: the pool is empty or every row is labelled")
    if k < 1:
        raise BudgetError(f"k must be at least 1, found {k}")
    if k > free:
        raise BudgetError(f"k = {k} rows were asked for, but only {free} are free; ask for at most {free}")
    return int(k)


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: as_tensor(name, value, 1 if name in ONE_PER_ROW else ARRAYS[name][1])
        for name, value in arrays.items()
        if value is not None
    }


def row_ids(given: Mapping[str, Tensor], owner: str) -> Tensor:
    """The ids of the rows of some arrays, which must agree in length: `ids` if given, else 0..N-1."""
    lengths = {name: len(array) for name, array in given.items()}
    if not lengths:
        raise NeedError(
            f"no array was given for {owner}; pass at least one of {', '.join(ARRAYS)} or ids, one entry for each row"
        )
    if len(set(lengths.values())) > 1:
        found = ", ".join(f"{name} {n}" for name, n in lengths.items())
        raise RowError(f"all arrays of {owner} must have one entry for each row; found lengths: {found}")
    n = next(iter(lengths.values()))
    if "ids" not in given:
        placement = next(iter(given.values())).device
        return torch.arange(n, device=placement)
    ids = given["ids"]
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise RowError(f"ids must be integers, found {ids.dtype}")
    ids = ids.to(torch.int64)
    unique, counts = ids.unique(return_counts=True)
    if len(unique) != len(ids):
        more = counts > 1
        raise RowError(f"ids must be distinct; id {int(unique[more][0])} occurs {int(counts[more][0])} times")
    return ids


def _columns(
    name: str, signals: tuple[Signal, ...], given: Mapping[str, Tensor], device: torch.device, where: str
) -> dict[Signal, Tensor]:
    """The columns a strategy needs, over the caller's memory. `where` is "labelled " in errors about labelled rows."""
    by_signal = {signal: given[array] for array, (gives, _) in ARRAYS.items() if array in given for signal in gives}
    if LabelProbs() not in by_signal and Probs() in by_signal:
        by_signal[LabelProbs()] = by_signal[Probs()]
    if "y" in given:
        by_signal[Label()] = given["y"]
    columns = {}
    for signal in _stored_signals(name, signals, given, by_signal, where):
        # The number of draws is the array's, whatever number a strategy would ask of a model.
        plain = LogProbs() if isinstance(signal, LogProbs) else Basis() if isinstance(signal, Basis) else signal
        if plain not in by_signal:
            raise NeedError(f"{name} needs {where}{signal.array}, which was not given: {signal.hint}")
        column = by_signal[plain]
        if column.device != device:
            raise RowError(
                f"all arrays must be on one device; {where}{signal.array} is on {column.device}, others on {device}"
            )
        if 0 in column.shape[1:]:
            raise RowError(f"{where}{signal.array} must have at least one column, found shape {tuple(column.shape)}")
        columns[signal] = column
    check_classes({signal: column.shape[1:] for signal, column in columns.items()})
    return columns


def _stored_signals(
    name: str, signals: tuple[Signal, ...], given: Mapping[str, Tensor], by_signal: Mapping[Signal, Tensor], where: str
) -> tuple[Signal, ...]:
    """The columns to store: an array `basis` replaces the map that would make it from another array."""
    wanted: list[Signal] = []
    for signal in signals:
        if isinstance(signal, Basis) and "basis" in given:
            wanted.append(signal)
            continue
        if isinstance(signal, Basis) and any(part not in by_signal for part in signal.stored()):
            raise NeedError(f"{name} needs {where}{signal.array}, which was not given: {signal.hint}")
        wanted.extend(signal.stored())
    return tuple(dict.fromkeys(wanted))


def _labelled_tensors(labelled: Any) -> dict[str, Tensor]:
    """The arrays passed as `labelled`, as tensors."""
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
    """Shards of the rows already labelled, checked; none of their ids is one of the pool's."""
    ids = row_ids(given, "labelled")
    if "ids" in given:
        both = ids[torch.isin(ids, pool)]
        if len(both):
            raise RowError(
                f"row id {int(both[0])} is in labelled and in the pool ({len(both)} such rows); a row that is labelled "
                "is not chosen again: leave it out of the arrays of the pool"
            )
        owner = "labelled row id"
    else:
        owner = "labelled row"
    # Values are checked under the caller's ids; where there are none, the rows then get ids that the pool does not use.
    named = shards_of(ids, columns, 1, dtype, owner)
    named.map(lambda shard: sum(1 for _ in shard.blocks()))
    return named if "ids" in given else shards_of(min(0, int(pool.min())) - 1 - ids, columns, 1, dtype, owner)


def _check_widths(pool: Mapping[Signal, Tensor], labelled: Mapping[Signal, Tensor]) -> None:
    """Columns of the same signal must be equally wide in the pool and in the labelled rows."""
    for signal in pool.keys() & labelled.keys():
        shapes = pool[signal].shape[1:], labelled[signal].shape[1:]
        if shapes[0] != shapes[1]:
            here, there = (" x ".join(str(size) for size in shape) for shape in shapes)
            raise RowError(f"{signal.array} has {here} columns in the pool and {there} in labelled; they must be equal")


def as_tensor(name: str, value: Any, axes: int) -> Tensor:
    """A tensor over the caller's memory, without a copy where torch allows it; checked.

    Args:
        name: what an error calls the array.
        value: an array, a tensor, or nested lists of numbers.
        axes: the number of axes it must have.

    Raises:
        ArgumentError: if it does not hold real numbers, is sparse, or has masked entries.
        RowError: if it has another number of axes.
    """
    tensor = value.detach() if isinstance(value, Tensor) else _from_numpy(name, value)
    if tensor.layout != torch.strided:
        raise ArgumentError(f"{name} is a sparse tensor; pass a dense one: {name}.to_dense()")
    if tensor.is_complex():
        raise ArgumentError(f"{name} must hold real numbers, found {tensor.dtype}")
    if tensor.ndim != axes:
        raise RowError(f"{name} must have {axes} axes {SHAPES[axes]}, found shape {tuple(tensor.shape)}")
    return tensor


def _from_numpy(name: str, value: Any) -> Tensor:
    """`value` as NumPy reads it, as a tensor that shares its memory where torch can."""
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise ArgumentError(f"{name} has masked entries; fill them or leave those rows out, then pass a plain array")
    if isinstance(value, list | tuple) and any(isinstance(one, Tensor) for one in value):
        value = [one.detach().cpu().numpy() if isinstance(one, Tensor) else one for one in value]
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise RowError(f"{name} is not an array: {error}") from error
    if array.dtype == object or array.dtype.kind not in "fiub":
        raise ArgumentError(f"{name} must be an array of numbers, found dtype {array.dtype}")
    if _copy_reason(array):
        if array.dtype == np.uint64 and name == "ids" and array.size and array.max() > np.iinfo(np.int64).max:
            raise RowError(f"ids must fit 64 bits with a sign, found {int(array.max())}")
        array = array.astype(_torch_dtype(array.dtype, name), order="C")
    with warnings.catch_warnings():
        # A mapped file opened for reading is not writable; nothing here writes to what the user passed.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _torch_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """The nearest number type that torch has."""
    if dtype == np.uint64:
        return np.dtype(np.int64 if name == "ids" else np.float64)
    return np.dtype(np.float64) if dtype == np.longdouble else dtype.newbyteorder("=")


def _copy_reason(array: np.ndarray) -> str:
    """Why torch cannot use an array without a copy; "" where it can."""
    if array.dtype.byteorder not in "=|":
        return "its bytes are in the order of another machine"
    if array.dtype in (np.uint64, np.longdouble):
        return f"torch has no {array.dtype}"
    if any(step < 0 or step % array.itemsize for step in array.strides):
        return "its rows or columns are in steps backwards, or of parts of a number"
    return ""


def _refuse_copies(arrays: Mapping[str, Any], owner: str) -> None:
    """Raise ArgumentError where an array would have to be copied whole, which a limit on memory does not allow for."""
    for name, value in arrays.items():
        reason = _copy_reason(value) if isinstance(value, np.ndarray) and value.dtype.kind in "fiu" else ""
        if reason and value.nbytes > MAX_COPIED:
            raise ArgumentError(
                f"{owner}{name} cannot be used where it lies ({reason}): {value.nbytes / 1e6:,.0f} MB would be copied, "
                "which max_memory does not allow for; write it once as float32 or float64 in order and pass that, "
                "or leave max_memory out"
            )
