"""Reading: the union of what is asked, one sweep over the rows, a stream of Rows."""

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
    """The rows that a model was trained on, for signals that look back at them."""

    ids: Tensor
    labels: Tensor


class Reader(Protocol):
    """Something that knows numbers about rows: a trained model, with what it takes to ask it."""

    def gives(self, signal: Signal) -> bool:
        """Whether it can give `signal`."""

    def read(self, inputs: Any, signals: tuple[Signal, ...]) -> dict[Signal, Tensor]:
        """One column for each of `signals` (stored ones), for a batch of inputs, in one pass whatever is asked.

        A column is left on the device that computed it: a selection may go on there.
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
    """The rows `ids` of the pool with all `signals`, `batch` rows at a time, in one sweep.

    Columns are in float32, or in float64 where the model computes in float64; on `device`, or where the model computed
    them if that is None. With `half`, columns of several numbers a row are in float16. Ids are on the CPU.
    `Features()` come from the pool and need no reader.
    """
    wanted = stored(signals)
    of_model = tuple(signal for signal in wanted if not isinstance(signal, Features))
    for signal in of_model:
        _check_given(reader, signal)
    look_back = getattr(reader, "look_back", None)
    if callable(look_back) and labelled is not None and any(isinstance(signal, LossJvp) for signal in of_model):
        look_back(labelled, functools.partial(_labelled_batches, pool, labelled, batch))
    swept = _sweep(reader, pool, ids, wanted, of_model, batch, device)
    return map(_halved, swept) if half else swept


def _sweep(
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
            yield Rows(ids_B, {signal: settled(pool.raw(ids_B), device) for signal in wanted})
        return
    for ids_B, inputs in pool.batches(ids, batch):
        found = reader.read(inputs, of_model)
        for signal in wanted:
            if signal not in found:
                found[signal] = _features(pool, ids_B, inputs)
            _check_shape(signal, found[signal], ids_B, shapes)
        check_classes(shapes)
        yield Rows(ids_B, {signal: settled(found[signal], device) for signal in wanted})


def _labelled_batches(pool: Pool, labelled: Labelled, batch: int) -> Iterator[tuple[Any, Tensor]]:
    """Inputs and labels of the labelled rows, some at a time."""
    start = 0
    for ids_B, inputs in pool.batches(labelled.ids, batch):
        yield inputs, labelled.labels[start : start + len(ids_B)]
        start += len(ids_B)


def settled(column: Tensor, device: str | None = None) -> Tensor:
    """A column as rows hold it: in float64 if it is in float64, else in float32; on `device`, or where it is."""
    wide = column.dtype == torch.float64
    return column.detach().to(column.device if device is None else device, torch.float64 if wide else torch.float32)


def _halved(rows: Rows) -> Rows:
    """Rows whose columns of several numbers are in float16."""
    return Rows(rows.ids, {signal: _half(signal, rows.ids, column) for signal, column in rows.columns.items()})


def _half(signal: Signal, ids: Tensor, column: Tensor) -> Tensor:
    if column.ndim < 2:
        return column  # squared norms and the like: few bytes, and float16 has no such small numbers
    rounded = column.half()
    lost = (rounded.isinf() & column.isfinite()).flatten(1).any(1)
    if bool(lost.any()):
        row = int(lost.nonzero()[0])
        raise ModelError(
            f"{signal!r}: half=True keeps numbers up to 65,504, found {float(column[row].abs().max()):.4g} in the row "
            f"with id {int(ids[row])}; scale what the model gives, or leave half=True out"
        )
    return rounded


def _features(pool: Pool, ids: Tensor, inputs: Any) -> Tensor:
    """Features of rows whose inputs are already read: a file is not decoded a second time."""
    if pool.features is None and isinstance(inputs, Tensor):
        return Pool.of(inputs, ids=ids).raw(ids)
    return pool.raw(ids)


def _check_given(reader: Reader | None, signal: Signal) -> None:
    if reader is None:
        raise NeedError(
            f"{signal!r} comes from a trained model and there is none yet. Label some rows first (random, typiclust "
            f"and probcover choose without a model), or, with lw.select, {signal.how}."
        )
    if not reader.gives(signal):
        raise NeedError(
            f"{signal!r} is not given by {type(reader).__name__}. {signal.ways}; or, with lw.select, {signal.how}."
        )


def _check_shape(signal: Signal, column: Tensor, ids: Tensor, shapes: dict[Signal, torch.Size]) -> None:
    """A column has one row for each id, and the same width in every batch."""
    width = shapes.setdefault(signal, column.shape[1:])
    if column.shape != (len(ids), *width):
        raise ModelError(
            f"{signal!r}: shape {(len(ids), *width)} was expected of the batch of {len(ids)} rows from id "
            f"{int(ids[0])}, {tuple(column.shape)} was found. The model has to give every row the same shape; look at "
            "what its forward does with a batch of another size."
        )
