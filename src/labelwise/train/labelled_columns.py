"""The labelled rows with the columns a strategy needs: labels, what training published, and signals of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from labelwise.pool import Ledger, Pool
from labelwise.shards import Shards, place
from labelwise.shards.devices import wait_for
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Features, Label, LossJvp, Needs, Signal, Weight, stored
from labelwise.train.learner import Fit


def labelled_rows(
    pool: Pool,
    needs: Needs,
    ledger: Ledger,
    fit: Callable[[], Fit],
    batch: int,
    device: torch.device,
    half: bool = False,
) -> Shards:
    """Read the labelled rows with the signals that `needs` asks for, and place them on `device`.

    Labels and published signals are not read again. With `half`, columns are rounded as those of the pool's rows are,
    so that a row that appears twice stays equal to itself.
    """
    labelled = labelled_by_id(ledger)
    if not len(labelled.ids):
        return Shards([])
    signals = stored(needs.labelled)
    columns = _published_columns(labelled, signals, fit)
    if Weight() in signals:
        columns[Weight()] = ledger.joint_weights(len(pool))[ledger.labelled.argsort()].float()
    wanted = tuple(signal for signal in signals if signal not in columns)
    stream = read(reader_for(wanted, fit), pool, labelled.ids, wanted, batch, labelled, device=None, half=half)
    placed = place((_add_columns(rows, labelled.ids, columns) for rows in stream), len(labelled.ids), device=device)
    wait_for(device)
    return placed


def labelled_by_id(ledger: Ledger) -> Labelled:
    """The labelled rows and their labels, in ascending order of ids."""
    order = ledger.labelled.argsort()
    return Labelled(ledger.labelled[order], ledger.labels[order])


def rows_for_gradients(ledger: Ledger, needs: Needs, fit: Callable[[], Fit]) -> Labelled:
    """The labelled rows whose loss gradients are summed for LossJvp: those the model is trained on."""
    labelled = labelled_by_id(ledger)
    if not any(isinstance(signal, LossJvp) for signal in stored(needs.pool)):
        return labelled
    is_trained = ~torch.isin(labelled.ids, fit().held_out)
    return Labelled(labelled.ids[is_trained], labelled.labels[is_trained])


def reader_for(wanted: tuple[Signal, ...], fit: Callable[[], Fit]) -> Reader | None:
    """The model if one of these signals comes from it, else None."""
    return fit().reader if any(not isinstance(signal, Features) for signal in wanted) else None


def _published_columns(labelled: Labelled, signals: tuple[Signal, ...], fit: Callable[[], Fit]) -> dict[Signal, Tensor]:
    """Those of `signals` that the answers or training know; `fit` trains if need be."""
    columns: dict[Signal, Tensor] = {}
    if Label() in signals:
        columns[Label()] = labelled.labels
    if any(not isinstance(signal, Features | Label | Weight) for signal in signals):
        trained = fit()
        index = torch.searchsorted(trained.ids, labelled.ids)
        columns |= {
            signal: trained.published[signal][index]
            for signal in signals
            if signal in trained.published and signal != Weight()
        }
    return columns


def _add_columns(rows: Rows, ids: Tensor, columns: Mapping[Signal, Tensor]) -> Rows:
    """`rows` with more columns, which are given for ascending `ids`."""
    if not columns:
        return rows
    index = torch.searchsorted(ids, rows.ids)
    return Rows(rows.ids, {**rows.columns, **{signal: column[index] for signal, column in columns.items()}})
