"""Read signals: one pass over the rows for all signals, as a stream of `Rows`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from labelwise.errors import ModelError, NeedError
from labelwise.pool import Pool
from labelwise.signals.check import check_classes
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Features, LossJvp, Signal, stored


class Labelled(NamedTuple):
    """The rows that a model was trained on, for signals computed from them."""

    ids: Tensor
    labels: Tensor


class Reader(Protocol):
    """Gives signals of rows: a trained model and how to run it.

    A reader may also have `read_labelled(labelled, batches)`, which is called before LossJvp is read, and an attribute
    `takes_frame`: whether it is given the rows of a frame as they are, and not their features.
    """

    def gives(self, signal: Signal) -> bool:
        """Whether it can give `signal`."""

    def read(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        """One column for each of `signals` (stored ones), for a batch of inputs, in one pass.

        Columns stay on the device that computed them.
        """


def read(
    reader: Reader | None,
    pool: Pool,
    ids: Tensor,
    signals: tuple[Signal, ...],
    batch: int = 256,
    labelled: Labelled | None = None,
    device: str | None = "cpu",
    half: bool = False,
) -> Iterator[Rows]:
    """The rows `ids` of the pool with all `signals`, in one pass over the pool.

    Args:
        reader: gives the signals; None where all of them are `Features()`, which come from the pool.
        pool: holds the inputs.
        ids: (n,) the rows to read.
        signals: what to read of each row.
        batch: rows of one batch.
        labelled: the rows that the reader's model was trained on, for LossJvp.
        device: where columns are put; None leaves them on the device that computed them.
        half: store columns with several numbers for each row in float16.

    Yields:
        Rows of one batch each: ids on the CPU, columns in float32, or in float64 where the model computes in float64.

    Raises:
        NeedError: the reader is missing or does not give a signal.
        ModelError: the model gives rows of different shapes, or numbers outside the range of float16 with `half`.
    """
    wanted = stored(signals)
    of_model = tuple(signal for signal in wanted if not isinstance(signal, Features))
    for signal in of_model:
        _check_given(reader, signal)
    read_labelled = getattr(reader, "read_labelled", None)
    if callable(read_labelled) and labelled is not None and any(isinstance(signal, LossJvp) for signal in of_model):
        read_labelled(labelled, functools.partial(_labelled_batches, pool, labelled, batch))
    batches = _read_batches(reader, pool, ids, wanted, of_model, batch, device)
    return map(_to_half, batches) if half else batches


def _read_batches(
    reader: Reader | None,
    pool: Pool,
    ids: Tensor,
    wanted: tuple[Signal, ...],
    of_model: tuple[Signal, ...],
    batch: int,
    device: str | None,
) -> Iterator[Rows]:
    shapes: dict[Signal, torch.Size] = {}
    if reader is None or not of_model:
        for ids_B in ids.split(batch) if len(ids) else ():
            yield Rows(ids_B, {signal: as_column(pool.raw(ids_B), device) for signal in wanted})
        return
    for ids_B, inputs in pool.batches(ids, batch, getattr(reader, "takes_frame", False)):
        found = reader.read(inputs, of_model)
        for signal in wanted:
            if signal not in found:
                found[signal] = _features(pool, ids_B, inputs)
            _check_shape(signal, found[signal], ids_B, shapes)
        check_classes(shapes)
        yield Rows(ids_B, {signal: as_column(found[signal], device) for signal in wanted})


def _labelled_batches(pool: Pool, labelled: Labelled, batch: int) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and labels of the labelled rows, batch by batch."""
    start = 0
    for ids_B, inputs in pool.batches(labelled.ids, batch):
        yield inputs, labelled.labels[start : start + len(ids_B)]
        start += len(ids_B)


def as_column(column: Tensor, device: str | None = None) -> Tensor:
    """The column in float32, or in float64 if it is in float64; on `device`, or on its own if that is None."""
    dtype = torch.float64 if column.dtype == torch.float64 else torch.float32
    return column.detach().to(column.device if device is None else device, dtype)


def _to_half(rows: Rows) -> Rows:
    """The rows with columns of several numbers for each row in float16."""
    return Rows(rows.ids, {signal: _half(signal, rows.ids, column) for signal, column in rows.columns.items()})


def _half(signal: Signal, ids: Tensor, column: Tensor) -> Tensor:
    if column.ndim < 2:
        return column  # such as squared norms: few bytes, and too small for float16
    rounded = column.half()
    overflows = (rounded.isinf() & column.isfinite()).flatten(1).any(1)
    if bool(overflows.any()):
        row = int(overflows.nonzero()[0])
        raise ModelError(
            f"{signal!r}: half=True stores numbers up to 65,504, found {float(column[row].abs().max()):.4g} in the row "
            f"with id {int(ids[row])}; scale the model's outputs, or leave out half=True"
        )
    return rounded


def _features(pool: Pool, ids: Tensor, inputs: Any) -> Tensor:
    """Features of rows whose inputs are already read, so that no file is decoded twice."""
    if pool.features is None and isinstance(inputs, Tensor) and not pool.is_sparse:
        return Pool.of(inputs, ids=ids).raw(ids)
    return pool.raw(ids)


def _check_given(reader: Reader | None, signal: Signal) -> None:
    if reader is None:
        raise NeedError(
            f"{signal!r} needs a trained model, and there is none yet. Label some rows first (random, typiclust and "
            f"probcover choose without a model), or, with lw.select, {signal.hint}."
        )
    if not reader.gives(signal):
        raise NeedError(
            f"{type(reader).__name__} does not give {signal!r}. {signal.model_hint}; or, with lw.select, {signal.hint}."
        )


def _check_shape(signal: Signal, column: Tensor, ids: Tensor, shapes: dict[Signal, torch.Size]) -> None:
    """Check that a column has one row for each id, and the shape of earlier batches."""
    width = shapes.setdefault(signal, column.shape[1:])
    if column.shape != (len(ids), *width):
        raise ModelError(
            f"{signal!r}: expected shape {(len(ids), *width)} for the batch of {len(ids)} rows from id {int(ids[0])}, "
            f"found {tuple(column.shape)}. The model must give the same shape for every row; check what its forward "
            "does with a batch of another size."
        )
