"""Verdict: whether a strategy is better than random, worse, or neither. It is decided here and nowhere else.

The paired test on the area under the curve decides (paired.py), after Holm's correction over all strategies that are
compared in the experiment. Labels saved (saved.py) are the size of the effect at one level: they are said beside the
verdict with their interval, also where that includes 0, and never decide.

Where no outcome could have passed the test, for want of seeds, there is no verdict yet. How many seeds it takes follows
from the number of strategies compared: `seeds_needed`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from labelwise.io.text import many
from labelwise.stats.curves import Curves
from labelwise.stats.paired import Paired, holm, least_p, paired, seeds_needed
from labelwise.stats.savings import Saved, interval, percent

LEVEL = 0.05
ORACLE = "oracle"  # looks at the test rows: it shows the headroom and is no contender
Outcome = Literal["better", "worse", "same", "open"]  # open: too few seeds for any outcome


@dataclass(frozen=True)
class Verdict:
    """What the tests say of one strategy beside the one compared with."""

    test: Paired
    p: float  # after Holm's correction
    least: float  # the smallest that p could have been with these seeds
    compared: int  # strategies that were compared in the experiment

    @property
    def outcome(self) -> Outcome:
        """After the correction: the verdict."""
        return _outcome(self.test, self.p, self.least)

    @property
    def single(self) -> Outcome:
        """Of the test by itself, as if no other strategy had been compared."""
        return single(self.test)

    @property
    def needed(self) -> int:
        """How many seeds a verdict takes here."""
        return seeds_needed(self.compared, LEVEL)


def verdicts(by_strategy: Mapping[str, Curves], against: str = "random") -> dict[str, Verdict]:
    """The verdict on each strategy that shares seeds and label counts with the one compared with."""
    random = by_strategy.get(against)
    tests = {
        name: paired(lines, random)
        for name, lines in by_strategy.items()
        if random is not None and name not in (against, ORACLE) and _meet(lines, random)
    }
    corrected = holm([test.p for test in tests.values()])
    # Holm's p falls with every single p, so it is smallest where all are as small as their seeds allow.
    least = holm([least_p(test.seeds) for test in tests.values()])
    return {name: Verdict(test, p, low, len(tests)) for (name, test), p, low in zip(tests.items(), corrected, least)}


def single(test: Paired) -> Outcome:
    """What one test says where nothing else is compared."""
    return _outcome(test, test.p, least_p(test.seeds))


def sentence(verdict: Verdict, saved: Saved) -> str:
    """The verdict with the size of the effect: "better than random: it saves about 31 % of labels (12 % to 44 %)"."""
    found = verdict.outcome
    if found == "open":
        return f"cannot be compared yet: {many(verdict.test.seeds, 'seed')}, {verdict.needed} or more are needed"
    if found == "same":
        return f"no measurable difference from {saved.against}"
    return f"{found} than {saved.against}: {_size(found, saved)}"


def _size(found: Outcome, saved: Saved) -> str:
    """Labels saved in words that fit the verdict; at one level they may say otherwise than the whole curve."""
    if saved.bound == "unknown":
        return f"neither it nor {saved.against} reaches the level at which labels are counted"
    if not saved.above_zero and not saved.below_zero:
        return f"labels saved {percent(saved.share)} ({interval(saved)}, which includes 0)"
    fewer = saved.above_zero
    contrary = "" if fewer == (found == "better") else "over the whole curve, though at the level both reach "
    if fewer:
        about = "at least" if saved.bound == "at least" else "about"
        verb = (
            f"it needs {about} {percent(saved.share)} fewer labels"
            if contrary
            else (f"it saves {about} {percent(saved.share)} of labels")
        )
        return f"{contrary}{verb} ({interval(saved)})"
    about = "at least" if saved.bound == "at most" else "about"
    most = f"to {percent(-saved.low)}" if math.isfinite(saved.low) else "or more"
    return f"{contrary}it needs {about} {percent(-saved.share)} more labels ({percent(-saved.high)} {most})"


def _outcome(test: Paired, p: float, least: float) -> Outcome:
    if not least <= LEVEL:  # also where it is not a number: one seed
        return "open"
    if p > LEVEL or test.difference == 0:
        return "same"
    return "better" if test.difference > 0 else "worse"


def _meet(one: Curves, other: Curves) -> bool:
    return bool(set(one.seeds) & set(other.seeds)) and bool(set(one.labels_T.tolist()) & set(other.labels_T.tolist()))
