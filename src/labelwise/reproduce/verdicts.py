"""Claims of a paper about its tables, tested on our numbers and compared with the paper's own.

A claim is made of comparisons "this lies above that". Each is tested by seed (stats/paired.py: Student's paired t-test
below ten seeds, flipped signs from ten on), after Holm's correction for the comparisons of the claim. It holds if all
of them pass and does not hold if one passes the other way; otherwise it cannot be said. The paper's numbers have no
seeds: there the order of the means decides.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from labelwise.io.text import many
from labelwise.stats.paired import LEAST, holm, name_of_test, paired_test
from labelwise.stats.verdict import LEVEL


@dataclass(frozen=True)
class Stat:
    """A mean over seeds, in per cent or seconds, with its standard deviation where there are several."""

    mean: float
    std: float | None = None
    seeds: int = 0
    by_seed: Mapping[int, float] = field(default_factory=dict)  # empty where only the mean is known

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"

    @property
    def numbers(self) -> dict[str, Any]:
        """For JSON."""
        return {"mean": self.mean, "std": self.std, "seeds": self.seeds}


def stat_of(values: Iterable[float], seeds: Sequence[int] | None = None) -> Stat:
    """Mean, and the deviation where there are several; `seeds` are those of the values, 0, 1, ... if not given."""
    found = [float(value) for value in values]
    by_seed = dict(zip(range(len(found)) if seeds is None else seeds, found))
    return Stat(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found), by_seed)


Rows = Mapping[str, Mapping[str, Stat]]  # by row, then by column
Answer = tuple[bool | None, str]  # whether it holds (None if it cannot be said), and the numbers
Same = Mapping[tuple[str, frozenset[str]], int]  # columns of a row with the same picks, and the number of batches


@dataclass(frozen=True)
class Comparison:
    """One number that a claim puts above another, less a margin."""

    name: str  # of the two, for the answer
    high: Stat
    low: Stat
    margin: float = 0.0
    pair: tuple[str, frozenset[str]] | None = None  # row and columns, to look up equal picks

    @property
    def gap(self) -> float:
        """By how much the means are as the claim says."""
        return self.high.mean - self.low.mean + self.margin

    def by_seed(self) -> list[float]:
        """The same for each seed that both have."""
        shared = sorted(set(self.high.by_seed) & set(self.low.by_seed))
        return [self.high.by_seed[seed] - self.low.by_seed[seed] + self.margin for seed in shared]


Compared = tuple[list[Comparison], str]  # what a claim compares, and the numbers as words


@dataclass(frozen=True)
class Claim:
    """A sentence, and the comparisons that it makes of a table; None where the table does not have its numbers."""

    text: str
    compare: Callable[[Rows], Compared | None]
    allowed: int = 0  # comparisons that may go the other way
    from_paper: bool = True  # False: a question of ours, which the paper's numbers do not answer

    def ask(self, rows: Rows, same: Same | None = None) -> Answer:
        """Whether it holds."""
        found = self.compare(rows)
        if found is None:
            return None, ""
        comparisons, numbers = found
        if not all(one.high.seeds and one.low.seeds for one in comparisons):
            return sum(one.gap <= 0 for one in comparisons) <= self.allowed, numbers
        tests = [paired_test(np.array(one.by_seed() or [math.nan])) for one in comparisons]
        seeds = min(test.seeds if one.by_seed() else 0 for one, test in zip(comparisons, tests))
        if seeds < LEAST:
            return None, f"{many(seeds, 'seed')}, {LEAST} or more are needed; {numbers}"
        p = holm([test.p for test in tests])
        above = sum(value <= LEVEL and test.difference > 0 for value, test in zip(p, tests))
        below = sum(value <= LEVEL and test.difference < 0 for value, test in zip(p, tests))
        holds = False if below > self.allowed else True if above >= len(tests) - self.allowed else None
        batches = [(same or {}).get(one.pair or ("", frozenset()), 0) for one in comparisons]
        equal = [
            f"the two made the same picks in all {count} batches: they cannot differ" for count in batches if count
        ]
        signs = [test.difference for test in tests]
        return holds, "; ".join([numbers, _tested(holds, comparisons, p, signs, seeds), *equal])


def _tested(
    holds: bool | None, comparisons: Sequence[Comparison], p: Sequence[float], signs: Sequence[float], seeds: int
) -> str:
    """The tests in words: the largest p value of a claim that holds, else the comparisons that decide."""
    method = f"{name_of_test([seeds])}, {many(seeds, 'seed')}"
    if len(p) == 1:
        return f"{_p(p[0])}, {method}"
    method += f", Holm's correction for {len(p)} comparisons"
    if holds:
        return f"{_p(max(p))} or less, {method}"
    reversed_ = [value <= LEVEL and sign < 0 for value, sign in zip(p, signs)]
    undecided = [value > LEVEL or sign < 0 for value, sign in zip(p, signs)]
    outcome, is_named = ("not decided", undecided) if holds is None else ("the other way", reversed_)
    named = [f"{one.name} ({_p(value)})" for one, value, show in zip(comparisons, p, is_named) if show]
    more = f" and {len(named) - 3} more" if len(named) > 3 else ""
    return f"{outcome}: {', '.join(named[:3])}{more}; {method}"


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"


def claims_text(claims: Sequence[Claim], ours: Rows, paper: Rows, same: Same | None = None) -> str:
    """The claims as a list, each with the answer of our numbers and of the paper's own."""
    return "\n".join(f"- {_line(claim, ours, paper, same)}" for claim in claims)


def _line(claim: Claim, ours: Rows, paper: Rows, same: Same | None) -> str:
    holds, numbers = claim.ask(ours, same)
    text = f"{claim.text}: **{word(holds)}**" + (f" ({numbers})" if numbers else "")
    if paper and claim.from_paper:
        holds, numbers = claim.ask(paper)
        text += f"; by the paper's own means it {word(holds)}" + (f" ({numbers})" if numbers else "")
    return text + "."


def word(holds: bool | None) -> str:
    """The answer in words."""
    return "cannot be said" if holds is None else "holds" if holds else "does not hold"


def _pair(row: str, *names: str) -> tuple[str, frozenset[str]]:
    return row, frozenset(names)


def _listed(stats: Mapping[str, Stat], names: Iterable[str]) -> str:
    return ", ".join(f"{name} {stats[name]}" for name in names)


def below_all(row: str, low: str = "Random", without: Container[str] = ()) -> Claim:
    """One column lies below every other, except for those named in `without`."""

    def compare(rows: Rows) -> Compared | None:
        stats = rows.get(row, {})
        others = [name for name in stats if name != low and name not in without]
        if low not in stats or not others:
            return None
        nearest = min(others, key=lambda name: stats[name].mean)
        numbers = f"{low} {stats[low]}, the lowest other is {nearest} {stats[nearest]}"
        return [Comparison(name, stats[name], stats[low], pair=_pair(row, name, low)) for name in others], numbers

    return Claim(f"{low} lies below every informed method on {row}", compare)


def above(row: str, high: str, low: str) -> Claim:
    """One column lies above another."""

    def compare(rows: Rows) -> Compared | None:
        stats = rows.get(row, {})
        if high not in stats or low not in stats:
            return None
        return [Comparison(low, stats[high], stats[low], pair=_pair(row, high, low))], _listed(stats, (high, low))

    return Claim(f"{high} lies above {low} on {row}", compare)


def not_below(row: str, names: Sequence[str], other: str) -> Claim:
    """Columns lie at most one deviation (the larger of the two) below another."""

    def compare(rows: Rows) -> Compared | None:
        stats = rows.get(row, {})
        if any(name not in stats for name in (*names, other)):
            return None
        margins = {name: max(stats[name].std or 0.0, stats[other].std or 0.0) for name in names}
        comparisons = [
            Comparison(name, stats[name], stats[other], margins[name], _pair(row, name, other)) for name in names
        ]
        return comparisons, _listed(stats, (*names, other))

    are = "are" if len(names) > 1 else "is"
    return Claim(f"{' and '.join(names)} {are} at most a deviation below {other} on {row}", compare)


def best(row: str, names: Sequence[str], what: str = "") -> Claim:
    """The highest mean of a row is one of these columns; the next one is shown too."""

    def compare(rows: Rows) -> Compared | None:
        stats = rows.get(row, {})
        others = [name for name in stats if name not in names]
        if not others or any(name not in stats for name in names):
            return None
        own, other = (max(group, key=lambda name: stats[name].mean) for group in (names, others))
        first, second = (own, other) if stats[own].mean > stats[other].mean else (other, own)
        numbers = f"highest: {first} {stats[first]}, then {second} {stats[second]}"
        return [Comparison(name, stats[own], stats[name], pair=_pair(row, own, name)) for name in others], numbers

    return Claim(f"the highest of {what}{row} is {' or '.join(names)}", compare)


def among_two(row: str, name: str) -> Claim:
    """A column has one of the two highest means of a row."""

    def compare(rows: Rows) -> Compared | None:
        stats = rows.get(row, {})
        if name not in stats or len(stats) < 3:
            return None
        ranked = sorted(stats, key=lambda one: -stats[one].mean)
        return [Comparison(one, stats[name], stats[one]) for one in stats if one != name], _listed(stats, ranked)

    return Claim(f"{name} is among the two highest on {row}", compare, allowed=1)


def every_round(high: str, first: int, low: str | None) -> Claim:
    """A column lies above another, or above all, in every round from one on."""

    def compare(rows: Rows) -> Compared | None:
        rounds = [row for row in rows if int(row) >= first]
        others = {row: [low] if low is not None else [name for name in rows[row] if name != high] for row in rounds}
        known = all(high in rows[row] and others[row] and set(others[row]) <= set(rows[row]) for row in rounds)
        if not rounds or not known:
            return None
        gaps = {row: rows[row][high].mean - max(rows[row][one].mean for one in others[row]) for row in rounds}
        lost = [row for row, gap in gaps.items() if gap <= 0]
        numbers = f"by {gaps[rounds[-1]]:+.2f} points in the last round"
        numbers += f"; not in round {', '.join(lost)}" if lost else ""
        comparisons = [
            Comparison(
                f"{f'{one}, ' * (low is None)}round {row}", rows[row][high], rows[row][one], pair=_pair(row, high, one)
            )
            for row in rounds
            for one in others[row]
        ]
        return comparisons, numbers

    return Claim(f"{high} lies above {low or 'every other method'} in every round from {first} on", compare)


def falling(column: str, rows_in_order: Sequence[str]) -> Claim:
    """A column falls from row to row."""

    def compare(rows: Rows) -> Compared | None:
        if any(column not in rows.get(row, {}) for row in rows_in_order):
            return None
        numbers = ", ".join(f"{row}: {rows[row][column]}" for row in rows_in_order)
        return [
            Comparison(f"{one} to {next_one}", rows[one][column], rows[next_one][column])
            for one, next_one in pairwise(rows_in_order)
        ], numbers

    return Claim(f"{column}: the more rounds the better at the same budget", compare)


def rising(text: str, row: str, names: Sequence[str]) -> Claim:
    """Each column of a row lies above the one before it."""

    def compare(rows: Rows) -> Compared | None:
        stats = rows.get(row, {})
        if len(names) < 2 or any(name not in stats for name in names):
            return None
        compared = [Comparison(f"{a} to {b}", stats[b], stats[a], pair=_pair(row, a, b)) for a, b in pairwise(names)]
        return compared, _listed(stats, names)

    return Claim(text, compare)


def shorter(column: str, names: Sequence[str], other: str) -> Claim:
    """Rows of a table of seconds are below another row: measured times of one machine, which have no seeds."""

    def compare(rows: Rows) -> Compared | None:
        if any(column not in rows.get(name, {}) for name in (*names, other)):
            return None
        stats = {name: rows[name][column] for name in (*names, other)}
        numbers = ", ".join(f"{name} {stat.mean:.3g} s" for name, stat in stats.items())
        return [Comparison(name, Stat(stats[other].mean), Stat(stats[name].mean)) for name in names], numbers

    return Claim(f"{column}: {' and '.join(names)} take less time than {other}", compare)


def near(ours: Rows, paper: Rows) -> str:
    """How many means are within two deviations of the paper's, ours and the paper's together, and which rows count."""
    pairs = [
        (row, stat, paper[row][column]) for row, found in ours.items() for column, stat in found.items()
        if column in paper.get(row, {})
    ]  # fmt: skip
    counted = [(row, a, b) for row, a, b in pairs if a.std is not None and b.std is not None]
    if not counted:
        return ""
    within = sum(abs(a.mean - b.mean) <= 2 * math.hypot(a.std or 0.0, b.std or 0.0) for _, a, b in counted)
    shift = sum(a.mean - b.mean for _, a, b in counted) / len(counted)
    rows, every = (list(dict.fromkeys(row for row, *_ in some)) for some in (counted, pairs))
    some = "" if rows == every else f" on {', '.join(rows)}, the rows with several seeds,"
    return (
        f"{within} of {len(counted)} means{some} are within two deviations (ours and the paper's together) of the "
        f"paper's; on average ours are {abs(shift):.1f} points {'higher' if shift > 0 else 'lower'}."
    )
