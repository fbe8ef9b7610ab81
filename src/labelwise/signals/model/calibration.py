"""Temperature scaling: the T for which softmax(logits / T) fits labels best, and the calibration error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError, NumericsError

COLDEST, HOTTEST = 0.05, 20.0
_STEPS = 200  # bisection alone needs 60 for the whole range; Newton takes about 6


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """The T in [0.05, 20] that minimises the mean negative log-likelihood of softmax(logits / T), in float64.

    With b = 1 / T the loss is convex in b: its slope is mean(E_p[z] - z_y) and its curvature mean(Var_p[z]). Newton's
    step is taken while it stays between the bounds on b, else bisection. The result is an end of the range if the
    loss still falls there, as it does when every row is classified correctly; it is 1 if all logits of each row are
    equal, so that every T fits equally well.

    Args:
        logits: (N, C) of rows that the model was not trained on.
        labels: (N,) class numbers.

    Raises:
        LabelError: shapes or classes do not fit.
        NumericsError: a logit is not finite.

    >>> z = torch.tensor([[2.0, 0.0], [2.0, 0.0], [2.0, 0.0], [2.0, 0.0]])
    >>> round(fit_temperature(z, torch.tensor([0, 0, 0, 1])), 6)  # 2 / log 3: three of four are right
    1.820478
    """
    z_NC, y_N = logits.detach().to(torch.float64), labels.to(logits.device, torch.int64)
    _check(z_NC, y_N)
    z_NC = z_NC - z_NC.gather(1, y_N[:, None])  # the loss is then logsumexp(b z)
    low, high = 1 / HOTTEST, 1 / COLDEST
    slope_low, slope_high = _slope(z_NC, low)[0], _slope(z_NC, high)[0]
    if slope_low >= 0 >= slope_high:
        return 1.0
    if slope_low >= 0:
        return HOTTEST
    if slope_high <= 0:
        return COLDEST
    b = 1.0
    for _ in range(_STEPS):
        slope, curvature = _slope(z_NC, b)
        low, high = (b, high) if slope < 0 else (low, b)
        newton = b - slope / curvature if curvature > 0 else low
        new = newton if low < newton < high else (low + high) / 2
        if abs(new - b) <= 1e-12 * b:
            return 1 / new
        b = new
    return 1 / b


def label_temperature(logits: Tensor, labels: Tensor) -> tuple[float, str]:
    """The temperature for LabelProbs from held-out rows, and a note if the fit ended at an end of its range.

    At the cold end every row is classified correctly and the loss falls with the temperature: no temperature is best,
    and one that makes every label certain is useless. The temperature is 1 then.
    """
    temperature = fit_temperature(logits, labels)
    if temperature == COLDEST:
        return (
            1.0,
            f"{len(labels)} held-out rows do not determine it (the fit ended at {COLDEST}): LabelProbs are Probs",
        )
    return temperature, f"the fit ended at the end of its range, {HOTTEST}" if temperature == HOTTEST else ""


def note_temperature(rows: tuple[Tensor, Tensor] | None, notes: dict[str, Any]) -> float:
    """The temperature for LabelProbs from logits and labels of held-out rows, if any; it is also written to `notes`.

    `ece_before` and `ece_after` are the expected calibration errors of the held-out rows without and with it. The
    temperature was fitted on the same rows; with one parameter the bias is small.
    """
    temperature, note = 1.0, "no held-out rows: LabelProbs are Probs. A TorchLearner takes valid= or holdout="
    if rows is not None:
        logits, labels = rows
        temperature, note = label_temperature(logits, labels)
        notes["ece_before"] = expected_calibration_error(logits.softmax(1), labels)
        notes["ece_after"] = expected_calibration_error((logits / temperature).softmax(1), labels)
    if note:
        notes["temperature_note"] = note
    notes["temperature"] = temperature
    return temperature


def expected_calibration_error(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
    """The mean gap between confidence (the largest probability) and accuracy, over equal bins of the confidence.

    >>> p = torch.tensor([[0.75, 0.25]] * 4)
    >>> expected_calibration_error(p, torch.tensor([0, 0, 0, 1])), expected_calibration_error(p, torch.tensor([0] * 4))
    (0.0, 0.25)
    """
    if bins < 1:
        raise ArgumentError(f"bins must be at least 1, found {bins}")
    p_NC, y_N = probs.detach().to(torch.float64), labels.to(probs.device, torch.int64)
    _check(p_NC, y_N)
    confidence_N, guess_N = p_NC.max(1)
    bin_N = (confidence_N * bins).ceil().long().clamp(1, bins) - 1  # bin j holds (j / bins, (j + 1) / bins]
    gap_N = (guess_N == y_N).double() - confidence_N
    gap = torch.zeros(bins, dtype=torch.float64, device=p_NC.device).index_add_(0, bin_N, gap_N)
    return float(gap.abs().sum() / len(p_NC))


def _slope(z_NC: Tensor, b: float) -> tuple[float, float]:
    """First and second derivative by b of the mean of logsumexp(b z)."""
    p_NC = (b * z_NC).softmax(1)
    mean_N1 = (p_NC * z_NC).sum(1, keepdim=True)
    variance_N = (p_NC * (z_NC - mean_N1).square()).sum(1)
    return float(mean_N1.mean()), float(variance_N.mean())


def _check(values_NC: Tensor, labels_N: Tensor) -> None:
    if values_NC.ndim != 2 or labels_N.ndim != 1 or len(values_NC) != len(labels_N) or not len(labels_N):
        raise LabelError(
            "expected an (N, C) array with at least one row and one label for each row, found shapes "
            f"{tuple(values_NC.shape)} and {tuple(labels_N.shape)}"
        )
    if not bool(torch.isfinite(values_NC).all()):
        row = int((~torch.isfinite(values_NC).all(1)).nonzero()[0])
        raise NumericsError(f"numbers to calibrate must be finite; row {row} of {len(values_NC)} is not")
    outside_N = (labels_N < 0) | (labels_N >= values_NC.shape[1])
    if bool(outside_N.any()):
        row = int(outside_N.nonzero()[0])
        raise LabelError(
            f"expected labels from 0 to {values_NC.shape[1] - 1}; row {row} has the label {int(labels_N[row])}"
        )
