"""Columns about labelled rows that no model has to be asked for: their labels, and what training published of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from labelwise.pool import Ledger, Pool
from labelwise.shards import Shards, place
from labelwise.shards.devices import wait_for
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Features, Label, Needs, Signal, stored
from labelwise.train.fit import Fit


def known_columns(
    ids: Tensor, signals: tuple[Signal, ...], ledger: Ledger, fit: Callable[[], Fit]
) -> dict[Signal, Tensor]:
    """Those of `signals` that are known of the labelled rows `ids`, which rise; `fit` trains if it has to be asked."""
    known: dict[Signal, Tensor] = {}
    if Label() in signals:
        known[Label()] = ledger.labels[ledger.labelled.argsort()]
    if any(not isinstance(signal, Features | Label) for signal in signals):
        trained = fit()
        at = torch.searchsorted(trained.ids, ids)
        known |= {signal: trained.published[signal][at] for signal in signals if signal in trained.published}
    return known


def beside(rows: Rows, ids: Tensor, known: Mapping[Signal, Tensor]) -> Rows:
    """Rows with columns that were known, given for `ids`, which rise."""
    if not known:
        return rows
    at = torch.searchsorted(ids, rows.ids)
    return Rows(rows.ids, {**rows.columns, **{signal: column[at] for signal, column in known.items()}})


def reader_for(wanted: tuple[Signal, ...], fit: Callable[[], Fit]) -> Reader | None:
    """The model, where one of these signals comes from it."""
    return fit().reader if any(not isinstance(signal, Features) for signal in wanted) else None


def looked_back(ledger: Ledger) -> Labelled:
    """The labelled rows for signals that look back at them, by id."""
    order = ledger.labelled.argsort()
    return Labelled(ledger.labelled[order], ledger.labels[order])


def labelled_rows(
    pool: Pool,
    needs: Needs,
    ledger: Ledger,
    fit: Callable[[], Fit],
    batch: int,
    device: torch.device,
    half: bool = False,
) -> Shards:
    """The labelled rows with what is needed of them, on `device`; what the answers and training know is not read.

    With `half` they are rounded as the rows of the pool are: a row that is there twice stays so.
    """
    behind = looked_back(ledger)
    if not len(behind.ids):
        return Shards([])
    signals = stored(needs.labelled)
    known = known_columns(behind.ids, signals, ledger, fit)
    wanted = tuple(signal for signal in signals if signal not in known)
    stream = read(reader_for(wanted, fit), pool, behind.ids, wanted, batch, behind, device=None, half=half)
    placed = place((beside(rows, behind.ids, known) for rows in stream), len(behind.ids), device=device)
    wait_for(device)
    return placed
