"""Columns about labelled rows that no model has to be asked for: their labels, and what training published of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from labelwise.pool import Ledger
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Features, Label, Signal
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
