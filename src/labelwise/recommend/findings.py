"""Findings: what the kept records of benchmarks say about every strategy in each situation, and the rule that chooses.

findings.json holds the numbers. `python scripts/make_recommendations.py` writes it from the records in docs/results,
and a test checks that it is what the records give.

The rule: of the strategies that ran on all data sets of the situation and were below random on none of them, the one
with the highest median share of labels saved, if that is above 0; else random. Below random means worse by the paired
test on the area under the curve, at 5 % without correction, which is the strict side: Holm's forgives more.

Of many strategies the best looks better than it is, and the correction for all of them hides what one strategy does. So
the recipe that follows is measured again, first batch included, with seeds that chose nothing (`Confirmed`).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from labelwise.io.text import percent

FILE = "findings.json"
GOAL = 0.3  # the share of labels that a recommendation should save at the median
GOAL_BETTER = (5, 7)  # on 5 of 7 sets it should be better than random
SHOWN = 3  # strategies that are named where none is recommended


@dataclass(frozen=True)
class Tried:
    """What the records say about one strategy in one situation.

    Attributes:
        strategy: its name.
        saved: the median over data sets of the share of labels saved against random.
        low: the smallest share.
        high: the largest share.
        sets: data sets it ran on.
        better: on how many of them it was better than random after Holm's correction.
        below: on how many it was worse by the test without correction.
        lower: on how many its mean area was lower, by any amount.
        open: on how many there were too few seeds for any outcome.
    """

    strategy: str
    saved: float
    low: float
    high: float
    sets: int
    better: int
    below: int
    lower: int
    open: int = 0


@dataclass(frozen=True)
class Confirmed:
    """The recommended recipe as a whole, first batch included, on seeds that chose nothing.

    Attributes:
        records: the folder of the records.
        seeds: how many.
        tried: the numbers; `strategy` is the recipe, and `better` is after Holm's correction over the data sets.
    """

    records: str
    seeds: int
    tried: Tried


@dataclass(frozen=True)
class Findings:
    """The records of one situation.

    Attributes:
        situation: its name; see `SITUATIONS` in situation.py.
        records: the folders of the records.
        sets: the experiments, each a data set with a model.
        seeds: the fewest seeds of a strategy.
        training: the training rule of each model, by its name.
        tried: every strategy, the highest median first.
        choice: the strategy that the rule chooses; "random" where none is eligible.
        confirmed: the recipe that follows, measured again; None where it was not.
    """

    situation: str
    records: tuple[str, ...]
    sets: tuple[str, ...]
    seeds: int
    training: dict[str, str]
    tried: tuple[Tried, ...]
    choice: str
    confirmed: Confirmed | None = None

    @property
    def unit(self) -> str:
        """What is counted: data sets, or experiments where one ran with several models or features."""
        names = {name.split("/")[-2] for name in self.sets}
        return "data set" if len(names) == len(self.sets) else "experiment"


def why_not(tried: Tried, sets: int) -> str:
    """Why the rule passes over a strategy; "" if it is eligible."""
    if tried.sets < sets:
        return f"ran on {tried.sets} of {sets}"
    if tried.open:
        return f"too few seeds on {tried.open}"
    if tried.below:
        return f"below random on {tried.below}"
    return "" if tried.saved > 0 else "saves nothing"


def eligible(tried: tuple[Tried, ...], sets: int) -> list[Tried]:
    """The strategies that the rule allows, the best first.

    >>> one, other = Tried("one", 0.3, 0.1, 0.4, 2, 1, 0, 0), Tried("other", 0.4, -0.1, 0.9, 2, 1, 1, 1)
    >>> [each.strategy for each in eligible((one, other), 2)]
    ['one']
    """
    return sorted((one for one in tried if not why_not(one, sets)), key=lambda one: (-one.saved, one.strategy))


def why_none(found: Findings, obstacles: Mapping[str, str]) -> str:
    """The strategies that saved most, each with why it is not recommended.

    Args:
        found: the findings of a situation.
        obstacles: why a strategy that the rule allows cannot run here, by its name.
    """
    first = [one for one in found.tried if one.strategy in obstacles or why_not(one, len(found.sets))][:SHOWN]
    return ", ".join(
        f"{one.strategy} ({percent(one.saved)}; {obstacles.get(one.strategy) or why_not(one, len(found.sets))})"
        for one in first
    )


@functools.cache
def read_findings() -> dict[str, Findings]:
    """The findings of every situation that has records."""
    text = files("labelwise.recommend").joinpath(FILE).read_text(encoding="utf-8")
    return {name: findings_of(name, found) for name, found in json.loads(text)["situations"].items()}


def findings_of(situation: str, found: dict[str, Any]) -> Findings:
    """The findings of one entry of findings.json."""
    tried = tuple(Tried(**one) for one in found["tried"])
    again = found.get("confirmed")
    return Findings(
        situation,
        tuple(found["records"]),
        tuple(found["sets"]),
        found["seeds"],
        dict(found["training"]),
        tried,
        found["choice"],
        None if again is None else Confirmed(again["records"], again["seeds"], Tried(**again["tried"])),
    )
