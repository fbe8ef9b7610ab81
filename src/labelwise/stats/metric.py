"""Metric: which way is better, and how its values are written."""

from __future__ import annotations

import math
from dataclasses import dataclass

from labelwise.errors import ArgumentError


@dataclass(frozen=True)
class Metric:
    """A number measured on the test rows after each round.

    Attributes:
        name: its key in `Record.metrics`.
        title: what an axis or a table calls it.
        higher: whether more is better.
        percent: whether it is a share, written as a percentage.
    """

    name: str
    title: str
    higher: bool
    percent: bool = False

    def text(self, value: float, digits: int | None = None) -> str:
        """The value as people read it: shares in per cent with one decimal, the rest with three.

        Args:
            value: of the metric; a dash stands for one that is not finite.
            digits: decimals, where not one or three.

        >>> metric_named("accuracy").text(0.9412), metric_named("rmse").text(0.5)
        ('94.1', '0.500')
        """
        if not math.isfinite(value):
            return "–"
        if self.percent:
            return f"{100 * value:.{1 if digits is None else digits}f}"
        return f"{value:.{3 if digits is None else digits}f}"

    @property
    def unit(self) -> str:
        """What follows a value: " %" for shares, nothing otherwise."""
        return " %" if self.percent else ""


_KNOWN = (
    Metric("accuracy", "test accuracy", True, True),
    Metric("balanced_accuracy", "balanced test accuracy", True, True),
    Metric("f1", "test F1", True, True),
    Metric("r2", "test R²", True),
    Metric("error", "test error", False, True),
    Metric("nll", "test negative log-likelihood", False),
    Metric("loss", "test loss", False),
    Metric("brier", "test Brier score", False),
    Metric("ece", "test calibration error", False, True),
    Metric("rmse", "test RMSE", False),
    Metric("mse", "test MSE", False),
    Metric("mae", "test MAE", False),
)
METRICS = tuple(known.name for known in _KNOWN)


def metric_named(name: str, higher: bool | None = None) -> Metric:
    """The metric of this name. For a name not known here, `higher` has to say which way is better.

    Args:
        name: "accuracy", "rmse" or another.
        higher: whether more of it is better.

    Raises:
        ArgumentError: `higher` is missing, or contradicts what is known.
    """
    for known in _KNOWN:
        if known.name == name:
            if higher is not None and higher != known.higher:
                way = "higher" if known.higher else "lower"
                raise ArgumentError(f"For the metric {name!r} {way} is better; found higher={higher}. Leave it out.")
            return known
    if higher is None:
        raise ArgumentError(
            f"Whether more or less of the metric {name!r} is better is not known; known metrics: "
            f"{', '.join(METRICS)}. Pass higher=True or higher=False."
        )
    return Metric(name, f"test {name}", higher)
