"""What the meter says, as `meter.json` holds it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from labelwise.errors import StoreError

FILE = "meter.json"

Metric = Literal["accuracy", "rmse"]


@dataclass(frozen=True)
class Span:
    """A value and its 95 % interval; `high` None: open, at least `low`."""

    value: float
    low: float
    high: float | None


@dataclass(frozen=True)
class Meter:
    """What the test slice says after a round.

    Attributes:
        round, after: which model this is about, and the last event it had seen.
        labels: it was trained on so many.
        test: test rows with a label.
        metric, score: accuracy or RMSE of the model on rows it has not seen; None without a test row.
        control: the same of a model trained on as many random labels.
        needed: random labels for the score that was reached.
        saved: needed less labels.
        hours: saved, in time of people, at `seconds` for a label.
        beyond: whether needed and control lie beyond what was measured, on the curve's continuation.
        gain: of the metric, by the next `batch` labels.
        stop, stop_reason: whether to stop, and why, or why not.
        early: why it is too early to tell what was saved; "" when it is not.
        words: all of it in plain sentences.
    """

    round: int
    after: int
    labels: int
    test: int
    metric: Metric
    score: Span | None
    control: Span | None
    needed: Span | None
    saved: Span | None
    hours: Span | None
    seconds: float | None
    beyond: bool
    gain: Span | None
    batch: int
    stop: bool
    stop_reason: str
    early: str
    words: list[str]


def read_meter(folder: Path) -> Meter | None:
    """What `measure` wrote last."""
    path = folder / FILE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        for name in ("score", "control", "needed", "saved", "hours", "gain"):
            found[name] = None if found[name] is None else Span(**found[name])
        return Meter(**found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({error}); remove it, the next round writes another") from error
