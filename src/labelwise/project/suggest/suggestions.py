"""Suggestions: a class for each item that waits, from what was most often right on the random test rows.

A source is the class names, an endpoint, or the model of the project. It is measured on test rows, whose own
suggestions are never shown. It is trusted from MIN_ROWS rows on, if the lower end of the 95 % interval of its accuracy
is above the share of the commonest class. The best trusted source suggests, where its calibrated chance is above one
half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.signals.model.calibration import label_temperature
from labelwise.stats.estimate import pool_mean

FILE = "suggestions.json"
MIN_ROWS = 20  # test rows on which a source is measured before it is trusted
LIKELY = 0.5  # the chance above which a class is suggested
_REMEDY = "remove it; the worker writes it again"


@dataclass(frozen=True)
class Guesses:
    """What a source guesses: (class, chance) by row for test rows and for items that wait. None: it does not know.

    `chances` are those of calibrated logits; where there are none, it is the share of the test rows that are right.
    """

    name: str
    test: Mapping[int, str | None]
    waiting: Mapping[int, str | None]
    chances: Mapping[int, float] | None = None


@dataclass(frozen=True)
class Measured:
    """How often a source is right on the test rows with a label, and the 95 % interval of that."""

    name: str
    rows: int
    right: int
    low: float
    high: float
    baseline: float  # the share of the commonest class

    @property
    def trusted(self) -> bool:
        """Whether its suggestions may be shown."""
        return self.rows >= MIN_ROWS and self.low > self.baseline

    @property
    def words(self) -> str:
        """One sentence for people."""
        if self.rows < MIN_ROWS:
            return f"Suggestions by {self.name}: measured on {self.rows} of {MIN_ROWS} random test items so far."
        share = (
            f"right on {self.right} of {self.rows} random test items ({100 * self.low:.0f} to {100 * self.high:.0f} %)"
        )
        if self.trusted:
            return f"Suggestions by {self.name}: {share}."
        return (
            f"Suggestions by {self.name} are not used: {share}, not clearly above always naming the commonest class "
            f"({100 * self.baseline:.0f} %)."
        )


@dataclass(frozen=True)
class Suggestion:
    """A suggested class and the chance that it is right."""

    value: str
    chance: float


@dataclass(frozen=True)
class Suggestions:
    """The content of `suggestions.json`.

    Attributes:
        by: the source that suggests; "" if none is trusted.
        sources: what each source got right, the best first.
        rows: a suggestion for each waiting row that has one.
        trouble: what keeps a source from working.
    """

    by: str = ""
    sources: tuple[Measured, ...] = ()
    rows: Mapping[int, Suggestion] = None  # type: ignore[assignment]
    trouble: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows", dict(self.rows or {}))

    @property
    def words(self) -> list[str]:
        """For people: the source that suggests, or those that are measured, and trouble."""
        shown = [one for one in self.sources if one.name == self.by] or list(self.sources)
        return [*(one.words for one in shown), *([self.trouble] if self.trouble else [])]

    def write(self, folder: Path) -> None:
        """Write `suggestions.json`."""
        rows = {str(row): [one.value, round(one.chance, 4)] for row, one in self.rows.items()}
        sources = [asdict(one) for one in self.sources]
        write_checked(folder / FILE, {"by": self.by, "sources": sources, "rows": rows, "trouble": self.trouble})


def read_suggestions(folder: Path) -> Suggestions:
    """What the worker wrote last; nothing before that."""
    try:
        found = read_checked(folder / FILE, _REMEDY, early=None)
        rows = {int(row): Suggestion(str(value), float(chance)) for row, (value, chance) in found["rows"].items()}
        sources = tuple(Measured(**one) for one in found["sources"])
        return Suggestions(str(found["by"]), sources, rows, str(found["trouble"]))
    except FileNotFoundError:
        return Suggestions()
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StoreError(f"{folder / FILE} cannot be read ({error}); {_REMEDY}") from error


def measure(name: str, guesses: Mapping[int, str | None], truth: Mapping[int, str]) -> Measured:
    """Compare guesses with the labels of test rows."""
    rows = [row for row in truth if row in guesses]
    right = np.array([guesses[row] == truth[row] for row in rows], np.float64)
    names = [truth[row] for row in rows]
    baseline = max((names.count(one) for one in set(names)), default=0) / max(len(names), 1)
    if not rows:
        return Measured(name, 0, 0, 0.0, 1.0, 0.0)
    found = pool_mean(right, np.ones(len(rows)), share=True)
    return Measured(name, len(rows), int(right.sum()), found.low, found.high, baseline)


def choose(sources: list[Guesses], truth: Mapping[int, str], trouble: str = "") -> Suggestions:
    """Measure the sources and take the suggestions of the best one that is trusted."""
    measured = {one.name: measure(one.name, one.test, truth) for one in sources}
    order = sorted(sources, key=lambda one: -measured[one.name].right / max(measured[one.name].rows, 1))
    best = next((one for one in order if measured[one.name].trusted), None)
    listed = tuple(measured[one.name] for one in order)
    if best is None:
        return Suggestions("", listed, {}, trouble)
    share = measured[best.name].right / measured[best.name].rows
    rows = {}
    for row, value in best.waiting.items():
        chance = share if best.chances is None else best.chances[row]
        if value is not None and chance > LIKELY:
            rows[row] = Suggestion(value, chance)
    return Suggestions(best.name, listed, rows, trouble)


def of_logits(
    name: str,
    classes: tuple[str, ...],
    test: tuple[list[int], np.ndarray],
    waiting: tuple[list[int], np.ndarray],
    truth: Mapping[int, str],
    more: tuple[np.ndarray, np.ndarray] | None = None,
) -> Guesses:
    """Guesses of a source that gives logits: (rows, logits (n, C)) of the test rows and of those that wait.

    The temperature is fitted on the test rows and on `more`: logits and class numbers of other rows with a label that
    the source has not learnt from. These were chosen because they are hard, as those that wait are.
    """
    known = [at for at, row in enumerate(test[0]) if truth.get(row) in classes]
    logit_NC, label_N = test[1][known], np.array([classes.index(truth[test[0][at]]) for at in known], np.int64)
    if more is not None:
        logit_NC, label_N = np.concatenate([logit_NC, more[0]]), np.concatenate([label_N, more[1].astype(np.int64)])
    fits = torch.from_numpy(logit_NC), torch.from_numpy(label_N)
    temperature = label_temperature(*fits)[0] if len(label_N) else 1.0
    p_NC = torch.from_numpy(waiting[1] / temperature).softmax(1) if len(waiting[0]) else torch.empty(0, 1)
    return Guesses(
        name,
        {row: classes[best] for row, best in zip(test[0], _best(test[1]))},
        {row: classes[best] for row, best in zip(waiting[0], _best(waiting[1]))},
        dict(zip(waiting[0], p_NC.amax(1).tolist())),
    )


def _best(logit_NC: np.ndarray) -> list[int]:
    return logit_NC.argmax(1).tolist() if len(logit_NC) else []
