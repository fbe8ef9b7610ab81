"""Verdict: whether a strategy is better than random, worse, or neither. Only this module decides it.

The paired test on the area under the curve decides (paired.py), after Holm's correction over all strategies compared in
the experiment. Labels saved (savings.py) give the size of the effect at one level: they are shown with the verdict and
their interval, even if that includes 0, and never decide.

If there are too few seeds for any outcome to pass the test, there is no verdict yet. `seeds_needed` says how many are
needed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from labelwise.io.text import many, percent
from labelwise.stats.curves import Curves
from labelwise.stats.paired import Paired, holm, least_p, paired, seeds_needed
from labelwise.stats.savings import Saved, interval

LEVEL = 0.05
ORACLE = "oracle"  # a curve, not a strategy: it uses the test rows to estimate what is possible
Outcome = Literal["better", "worse", "same", "open"]  # open: too few seeds for any outcome


@dataclass(frozen=True)
class Verdict:
    """The test of one strategy against the baseline, corrected for all that were tested.

    Attributes:
        test: the paired test on the areas under the curves.
        p: its p after Holm's correction.
        least: the smallest p that these seeds allow, after the same correction.
        compared: how many strategies the experiment tested.
    """

    test: Paired
    p: float
    least: float
    compared: int

    @property
    def outcome(self) -> Outcome:
        """After the correction: the verdict."""
        return _outcome(self.test, self.p, self.least)

    @property
    def single(self) -> Outcome:
        """The outcome without correction, as if no other strategy had been compared."""
        return single(self.test)

    @property
    def needed(self) -> int:
        """How many seeds a verdict needs here."""
        return seeds_needed(self.compared, LEVEL, self.test.seeds)


def verdicts(by_strategy: Mapping[str, Curves], against: str = "random") -> dict[str, Verdict]:
    """The verdict on each strategy that shares seeds and label counts with the baseline `against`.

    Args:
        by_strategy: the learning curves by strategy.
        against: the strategy that is compared with.

    Returns:
        By strategy; those that share no seeds or counts are left out.
    """
    random = by_strategy.get(against)
    tests = {
        name: paired(lines, random)
        for name, lines in by_strategy.items()
        if random is not None and name not in (against, ORACLE) and _overlap(lines, random)
    }
    corrected = holm([test.p for test in tests.values()])
    # Holm's p falls with every single p, so it is smallest where all are as small as their seeds allow.
    least = holm([least_p(test.seeds) for test in tests.values()])
    compared = max(1, sum(math.isfinite(test.p) for test in tests.values()))
    return {name: Verdict(test, p, low, compared) for (name, test), p, low in zip(tests.items(), corrected, least)}


def single(test: Paired) -> Outcome:
    """The outcome of one test without correction."""
    return _outcome(test, test.p, least_p(test.seeds))


def sentence(verdict: Verdict, saved: Saved) -> str:
    """The verdict with the size of the effect: "better than random: it saves about 31 % of labels (12 % to 44 %)".

    Args:
        verdict: of a paired test.
        saved: the labels saved.
    """
    outcome = verdict.outcome
    if outcome == "open":
        return f"cannot be compared yet: {many(verdict.test.seeds, 'seed')}, {verdict.needed} or more are needed"
    if outcome == "same":
        return f"no measurable difference from {saved.against}"
    return f"{outcome} than {saved.against}: {_size(outcome, saved)}"


def _size(outcome: Outcome, saved: Saved) -> str:
    """Labels saved in words; at one level they may contradict the verdict on the whole curve."""
    if saved.bound == "unknown":
        return f"neither it nor {saved.against} reaches the level at which labels are counted"
    if not saved.above_zero and not saved.below_zero:
        return f"labels saved {percent(saved.share)} ({interval(saved)}, which includes 0)"
    fewer = saved.above_zero
    contrary = "" if fewer == (outcome == "better") else "over the whole curve, though at the level both reach "
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


def _overlap(one: Curves, other: Curves) -> bool:
    return bool(set(one.seeds) & set(other.seeds)) and bool(set(one.labels_T.tolist()) & set(other.labels_T.tolist()))
