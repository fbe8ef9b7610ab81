"""Check the arrays, tensors, frames and Series given to `labelwise.select`. Inner modules do not check again."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, BudgetError, NeedError, RowError
from labelwise.io.arguments import is_sparse
from labelwise.io.frames import frame_numbers, index_of, is_frame, is_series, library_of, native_frame, plain_values
from labelwise.pool import Pool
from labelwise.pool.row_keys import RowKeys, are_keys
from labelwise.selection.strategy import Size, Strategy
from labelwise.shards import Shards, computed_in, shards_of
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
    Weight,
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
ONE_PER_ROW = ("ids", "y", "weights")
SHAPES = {1: "(rows,)", 2: "(rows, columns)", 3: "(rows, draws, classes)"}
MAX_COPIED = 1 << 20  # bytes of an array that may be copied under a limit on memory


def _tensors(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    return {
        name: as_tensor(name, value, 1 if name in ONE_PER_ROW else ARRAYS[name][1])
        for name, value in arrays.items()
        if value is not None
    }


@dataclass(frozen=True)
class Inputs:
    """The arguments of `labelwise.select`, checked: what is chosen, and from which rows.

    Attributes:
        strategy: in its form for these arrays.
        k: how many rows.
        ids: (N,) the rows of the pool.
        columns: what the strategy reads of the pool, over the caller's memory.
        labelled: the labelled rows; none where the strategy reads none, or where arrays of the pool stand for them.
        dtype: one precision for both, the wider one: they are measured against each other.
        is_named: whether ids were given.
        row_keys: what the user calls the rows of the pool; None where that is their ids.
        library: the library of the frames; "" if there is none.
        given: those columns as the caller gave them, except for frames and Series, which are arrays here.
    """

    strategy: Strategy
    k: int
    ids: Tensor
    columns: dict[Signal, Tensor]
    labelled: Shards
    dtype: torch.dtype
    is_named: bool
    row_keys: RowKeys | None
    library: str
    given: dict[Signal, Any]

    def size(self, rows: int) -> Size:
        """The size of the selection where one process has this many of the rows."""
        return Size.of(rows, self.k, self.columns, self.dtype, self.labelled.n, self.is_named)


def read_inputs(strategy: Strategy, k: Any, arrays: Mapping[str, Any], labelled: Any, is_limited: bool) -> Inputs:
    """Check the arguments of `labelwise.select`.

    An embedding with columns of texts, dates or categories is encoded as a pool of that frame is. The ids of the rows
    are the index of pandas frames, if no ids are given.

    Args:
        strategy: chooses the rows.
        k: how many rows to choose.
        arrays: those of the pool, by name.
        labelled: the argument of that name.
        is_limited: whether there is a limit on memory, so that large arrays must not be copied.
    """
    found = dict(arrays)
    frames = [value for value in found.values() if is_frame(value) or is_series(value)]
    encoder = None
    for name, value in arrays.items():
        if is_frame(value):
            numbers = frame_numbers(native_frame(value))
            if numbers is None and name == "embedding":
                encoder = Pool.frame(value)
                numbers = encoder.inputs(encoder.ids)
            found[name] = _checked(name, numbers)
        elif name != "ids" and is_series(value):
            found[name] = plain_values(value)
    found["ids"] = _ids(arrays, "the pool")
    keys = RowKeys(found["ids"]) if found["ids"] is not None and are_keys(found["ids"]) else None
    if keys is not None:
        found["ids"] = keys.ids
    if isinstance(labelled, Mapping):
        labelled = _labelled(labelled, encoder, keys is not None, found["ids"] is not None)
    if is_limited:
        _refuse_copies(found, "")
        _refuse_copies(labelled if isinstance(labelled, Mapping) else {}, "labelled ")
    pool = _tensors(found)
    ids, past = row_ids(pool, "the pool"), _labelled_tensors(labelled)
    strategy = strategy.given(frozenset(pool))
    k = check_budget(k, len(ids))
    columns, past_columns = _columns_for(strategy, pool, past, ids.device)
    dtype = max(computed_in(columns), computed_in(past_columns), key=lambda kind: kind.itemsize)
    shards = _labelled_shards(past, past_columns, ids, dtype)
    is_named = "ids" in pool or (shards.n > 0 and "ids" in past)
    library = library_of(frames[0]) if frames else ""
    given = {one: found[name] for one, column in columns.items() for name, array in pool.items() if array is column}
    return Inputs(strategy, k, ids, columns, shards, dtype, is_named, keys, library, given)


def _columns_for(
    strategy: Strategy, pool: Mapping[str, Tensor], past: Mapping[str, Tensor], device: torch.device
) -> tuple[dict[Signal, Tensor], dict[Signal, Tensor]]:
    """The columns of the pool and of the labelled rows that a strategy reads, over the caller's memory.

    There are none of labelled rows where it needs none, or where arrays of the pool were given in place of them.
    """
    name, needs = type(strategy).__name__, strategy.needs
    instead = needs.instead if all(signal.array in pool for signal in needs.instead) else ()
    columns = _columns(name, needs.pool + instead, pool, device, "")
    if instead or not past or not needs.labelled:
        return columns, {}
    labelled = _columns(name, needs.labelled, past, device, "labelled ")
    _check_widths(columns, labelled)
    return columns, labelled


def check_budget(k: Any, free: int) -> int:
    """`k`, an integer of any library, as one of Python. Raises BudgetError unless 1 <= k <= free."""
    count = whole_rows(k)
    if free == 0:
        raise BudgetError("there is no row to choose from: the pool is empty or every row is labelled")
    if count < 1:
        raise BudgetError(f"k must be at least 1, found {count}")
    if count > free:
        raise BudgetError(f"k = {count} rows were asked for, but only {free} are free; ask for at most {free}")
    return count


def whole_rows(k: Any) -> int:
    """A Python integer, whose arithmetic does not overflow; flags and arrays with an axis are refused."""
    flag = isinstance(k, bool) or getattr(k, "dtype", None) in (torch.bool, np.bool_)
    try:
        if not flag and not getattr(k, "shape", ()):
            return operator.index(k)
    except TypeError:  # no integer
        pass
    raise BudgetError(f"k must be a whole number of rows, found {k!r}")


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
    if where:  # labelled rows without weights count equally
        by_signal[Weight()] = _row_weights(given)
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


def _row_weights(given: Mapping[str, Tensor]) -> Tensor:
    """The weights of labelled rows in float32, which decides nothing about the precision of the other columns."""
    first = next(iter(given.values()))
    weights = given.get("weights", torch.ones(len(first), device=first.device)).to(torch.float32)
    if bool((weights < 0).any()):
        row = int((weights < 0).nonzero()[0])
        raise ArgumentError(f"labelled weights are at least 0, found {float(weights[row])} in row {row}")
    return weights


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
    past: Mapping[str, Tensor], columns: Mapping[Signal, Tensor], pool_ids: Tensor, dtype: torch.dtype
) -> Shards:
    """Shards of the rows already labelled, checked; none of their ids is one of the pool's."""
    if not columns:
        return Shards([])
    ids, has_ids = row_ids(past, "labelled"), "ids" in past
    if has_ids:
        both = ids[torch.isin(ids, pool_ids)]
        if len(both):
            raise RowError(
                f"row id {int(both[0])} is in labelled and in the pool ({len(both)} such rows); a row that is labelled "
                "is not chosen again: leave it out of the arrays of the pool"
            )
    # Values are checked under the caller's ids; where there are none, the rows then get ids that the pool does not use.
    named = shards_of(ids, columns, 1, dtype, "labelled row id" if has_ids else "labelled row")
    named.map(lambda shard: sum(1 for _ in shard.blocks()))
    return named if has_ids else shards_of(min(0, int(pool_ids.min())) - 1 - ids, columns, 1, dtype, "labelled row")


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
    if tensor.dtype in (torch.uint16, torch.uint32):
        tensor = tensor.to(torch.int64)  # the lowest version of torch cannot index the others
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
    if is_sparse(value):
        raise ArgumentError(
            f"{name} is a dense array; found a sparse {type(value).__name__}. Pass {name}.toarray(), or fewer columns "
            "by TruncatedSVD of scikit-learn; lw.Session takes sparse rows as a pool"
        )
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


def _labelled(labelled: Mapping[str, Any], encoder: Pool | None, by_key: bool, by_index: bool) -> dict[str, Any]:
    found = dict(labelled)
    for name, value in labelled.items():
        if is_frame(value):
            if encoder is not None and name == "embedding":
                rows = encoder.like(value)
                found[name] = rows.inputs(rows.ids)
            else:
                found[name] = _checked(f"labelled {name}", frame_numbers(native_frame(value)))
        elif name != "ids" and is_series(value):
            found[name] = plain_values(value)
    ids = _ids(labelled, "labelled") if by_index else labelled.get("ids")
    if ids is not None:
        found["ids"] = RowKeys(ids).ids if by_key else plain_values(ids)
    return found


def _checked(name: str, numbers: Any) -> Any:
    if numbers is None:
        raise ArgumentError(
            f"{name} must be an array of numbers; the frame has columns of another kind. Choose its numeric columns."
        )
    return numbers


def _ids(arrays: Mapping[str, Any], owner: str) -> Any:
    """The ids given, else the index that the pandas frames and Series share; None where there is neither."""
    if arrays.get("ids") is not None:
        return plain_values(arrays["ids"])
    named = {name: index_of(value) for name, value in arrays.items() if is_frame(value) or is_series(value)}
    indexes = {name: index for name, index in named.items() if index is not None}
    if not indexes:
        return None
    first = next(iter(indexes))
    for name, index in indexes.items():
        if not index.equals(indexes[first]):
            raise RowError(
                f"the rows of {first} and {name} of {owner} have different indexes; bring them into one order, or pass "
                "ids="
            )
    return plain_values(indexes[first])
