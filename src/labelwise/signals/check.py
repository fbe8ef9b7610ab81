"""Checks of a column when it is first read: finite numbers, valid probabilities, equal numbers of classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from labelwise.errors import NumericsError, RowError
from labelwise.signals.spec import GradNorm, LabelProbs, LogProbs, Probs, Signal

SUM_TOLERANCE = 1e-3  # float32 softmax over thousands of classes is within 1e-4; half precision is read as 1e-2
HALF_SUM_TOLERANCE = 1e-2


def check_classes(shapes: Mapping[Signal, Sequence[int]]) -> None:
    """Raise RowError unless all class probabilities have the same number of classes; `shapes` are those of a row."""
    classes = {s.array: shape[-1] for s, shape in shapes.items() if isinstance(s, Probs | LabelProbs | LogProbs)}
    if len(set(classes.values())) > 1:
        found = ", ".join(f"{array} {count}" for array, count in classes.items())
        raise RowError(
            f"all class probabilities must have the same classes in the same order; found {found}. Pass one column for "
            "each class in each of them."
        )


def check_block(signal: Signal, ids: Tensor, values: Tensor, stored: torch.dtype, whose: str = "row id") -> None:
    """Raise NumericsError naming the first bad row of a block.

    Args:
        signal: what the values are.
        ids: (n,) the rows.
        values: (n, ...) the block.
        stored: the dtype the column is stored in, which sets the tolerance for sums of probabilities.
        whose: what an id is called in the message.
    """
    flat_NV = values.reshape(len(values), -1)
    if isinstance(signal, Probs | LabelProbs):
        _check_probabilities(signal, ids, flat_NV, stored, whose)
    elif isinstance(signal, LogProbs):
        _check_log_probabilities(signal, ids, values, stored, whose)
    # A finite sum has only finite terms. Large finite terms may overflow it, so then each number is checked.
    elif not bool(torch.isfinite(flat_NV.sum())):
        check_finite(signal, ids, flat_NV, whose)
    if isinstance(signal, GradNorm) and len(flat_NV) and bool(flat_NV.amin() < 0):
        row = int(flat_NV[:, 0].argmin())
        raise NumericsError(
            f"{signal.array} ({signal!r}) must hold squared lengths, which are at least 0, but {whose} {int(ids[row])} "
            f"holds {float(flat_NV[row, 0]):.6g}. Pass the squared length of each row's gradient, not its logarithm "
            "or a difference."
        )


def check_finite(signal: Signal, ids: Tensor, flat_NV: Tensor, whose: str = "row id") -> None:
    """Raise NumericsError naming the first row (V,) with a number that is not finite."""
    bad_N = ~torch.isfinite(flat_NV).all(1)
    if bool(bad_N.any()):
        row = int(bad_N.nonzero()[0])
        column = int((~torch.isfinite(flat_NV[row])).nonzero()[0])
        raise NumericsError(
            f"{signal.array} ({signal!r}) must be finite, but {whose} {int(ids[row])} holds "
            f"{float(flat_NV[row, column])} in column {column} ({int(bad_N.sum())} such rows in this block). "
            "Correct the row or leave it out of the pool."
        )


def _check_probabilities(signal: Signal, ids: Tensor, p_NC: Tensor, stored: torch.dtype, whose: str) -> None:
    tolerance = HALF_SUM_TOLERANCE if stored in (torch.float16, torch.bfloat16) else SUM_TOLERANCE
    sum_N = p_NC.sum(1)
    fine_N = (sum_N - 1).abs() <= tolerance
    if bool(fine_N.all()) and bool(p_NC.amin() >= 0):
        return
    check_finite(signal, ids, p_NC, whose)
    bad_N = ~fine_N | (p_NC.amin(1) < 0)
    row = int(bad_N.nonzero()[0])
    raise NumericsError(
        f"{signal.array} ({signal!r}) must hold probabilities: at least 0, with a row sum of 1 within {tolerance}. "
        f"{whose[0].upper()}{whose[1:]} {int(ids[row])} sums to {float(sum_N[row]):.6g} and its smallest entry is "
        f"{float(p_NC[row].amin()):.6g} ({int(bad_N.sum())} such rows in this block). "
        "If these are logits, pass their softmax."
    )


def _check_log_probabilities(signal: Signal, ids: Tensor, log_NKC: Tensor, stored: torch.dtype, whose: str) -> None:
    """Check logs of probabilities: -inf is a probability of 0; any other number that is not finite breaks the sum."""
    tolerance = HALF_SUM_TOLERANCE if stored in (torch.float16, torch.bfloat16) else SUM_TOLERANCE
    sum_NK = log_NKC.exp().sum(2)
    bad_NK = ~((sum_NK - 1).abs() <= tolerance)  # a NaN is bad too
    if not bool(bad_NK.any()):
        return
    row, draw = (int(index) for index in bad_NK.nonzero()[0])
    raise NumericsError(
        f"{signal.array} ({signal!r}) must hold logs of probabilities that sum to 1 over the classes within "
        f"{tolerance}, under every draw; -inf stands for 0. {whose[0].upper()}{whose[1:]} {int(ids[row])} sums to "
        f"{float(sum_NK[row, draw]):.6g} under draw {draw} ({int(bad_NK.any(1).sum())} such rows in this block). "
        "If these are logits, pass their log_softmax; if they are probabilities, pass their log."
    )
