"""Claims of a paper about its tables, tested on our numbers and on the paper's own: orders and bands, not equality.

A claim stays undecided for one seed, for gaps no larger than between runs that should be equal, and for two methods
with the same picks. The numbers are shown in any case.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True)
class Stat:
    """A mean over seeds, in per cent or seconds, with its standard deviation where there are several."""

    mean: float
    std: float | None = None
    seeds: int = 0

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


def stat_of(values: Iterable[float]) -> Stat:
    """Mean, and the deviation where there are several."""
    found = [float(value) for value in values]
    return Stat(statistics.fmean(found), statistics.stdev(found) if len(found) > 1 else None, len(found))


Rows = Mapping[str, Mapping[str, Stat]]  # by row, then by column
Answer = tuple[bool | None, str]  # whether it holds (None if undecided), and the numbers


@dataclass(frozen=True)
class Doubt:
    """What keeps numbers from deciding a claim.

    Attributes:
        apart: by row, the gap in points between runs that should be equal.
        same: which columns of a row have the same picks, with the number of batches.
    """

    apart: Mapping[str, float] = field(default_factory=dict)
    same: Mapping[tuple[str, frozenset[str]], int] = field(default_factory=dict)

    def of(self, row: str) -> float:
        """The gap in points that decides nothing in a row."""
        return self.apart.get(row, 0.0)


NO_DOUBT = Doubt()


@dataclass(frozen=True)
class Claim:
    """A sentence and a test whether numbers support it."""

    text: str
    test: Callable[[Rows, Doubt], Answer]

    def ask(self, rows: Rows, doubt: Doubt = NO_DOUBT) -> Answer:
        """Whether it holds."""
        return self.test(rows, doubt)


def claims_text(claims: Sequence[Claim], ours: Rows, paper: Rows, doubt: Doubt = NO_DOUBT) -> str:
    """The claims as a list, each with the answer of our numbers and of the paper's own."""
    return "\n".join(f"- {_line(claim, ours, paper, doubt)}" for claim in claims)


def _line(claim: Claim, ours: Rows, paper: Rows, doubt: Doubt) -> str:
    holds, shown = claim.ask(ours, doubt)
    text = f"{claim.text}: **{_word(holds)}**" + (f" ({shown})" if shown else "")
    if paper:
        holds, shown = claim.ask(paper)
        text += f"; in the paper's own numbers it {_word(holds)}" + (f" ({shown})" if shown else "")
    return text + "."


def _word(holds: bool | None) -> str:
    return "cannot be said" if holds is None else "holds" if holds else "does not hold"


def _alone(stats: Iterable[Stat]) -> bool:
    """Whether any number is of one seed. The paper's numbers do not tell their seeds."""
    return any(stat.seeds == 1 for stat in stats)


def _decided(holds: bool, gap: float, shown: str, stats: Sequence[Stat], apart: float) -> Answer:
    """The answer; undecided for one seed or a gap no larger than between equal runs."""
    if _alone(stats):
        return None, f"one seed; {shown}"
    if any(stat.std is None for stat in stats):
        return None, shown
    if apart and abs(gap) <= apart:
        return None, f"{shown}; {_equal(apart)}"
    return holds, shown


def _equal(apart: float) -> str:
    return f"runs that should be equal are up to {apart:.2f} points apart"


def below_all(row: str, low: str = "Random") -> Claim:
    """One column lies below every other by more than its own deviation."""

    def ask(rows: Rows, doubt: Doubt) -> Answer:
        found = rows.get(row, {})
        others = {name: stat.mean for name, stat in found.items() if name != low}
        if low not in found or not others:
            return None, ""
        nearest = min(others, key=lambda name: others[name])
        gap = others[nearest] - found[low].mean
        shown = f"{low} {found[low]}, the lowest other is {nearest} {found[nearest]}"
        return _decided(gap > (found[low].std or 0.0), gap, shown, [found[low]], doubt.of(row))

    return Claim(f"{low} lies below every informed method on {row} by more than its own deviation", ask)


def above(row: str, high: str, low: str) -> Claim:
    """One column lies above another by more than the other's deviation."""

    def ask(rows: Rows, doubt: Doubt) -> Answer:
        found = rows.get(row, {})
        if high not in found or low not in found:
            return None, ""
        shown = f"{high} {found[high]}, {low} {found[low]}"
        if batches := doubt.same.get((row, frozenset((high, low)))):
            same = f"the two made the same picks in all {batches} batches"
            return None, f"{shown}; {same}: the comparison says nothing of what sets them apart"
        gap = found[high].mean - found[low].mean
        return _decided(gap > (found[low].std or 0.0), gap, shown, [found[low]], doubt.of(row))

    return Claim(f"{high} lies above {low} on {row} by more than the deviation of {low}", ask)


def not_below(row: str, names: Sequence[str], other: str) -> Claim:
    """Columns lie at most one deviation (the larger of the two) below another."""

    def ask(rows: Rows, doubt: Doubt) -> Answer:
        found = rows.get(row, {})
        if any(name not in found for name in (*names, other)):
            return None, ""
        shown = ", ".join(f"{name} {found[name]}" for name in (*names, other))
        gaps = {name: found[other].mean - found[name].mean for name in names}
        far = [gap for name, gap in gaps.items() if gap > max(found[name].std or 0.0, found[other].std or 0.0)]
        return _decided(not far, max(far, default=math.inf), shown, [found[n] for n in (*names, other)], doubt.of(row))

    return Claim(f"{' and '.join(names)} are within a deviation of {other} on {row}, or above", ask)


def best(row: str, names: Sequence[str], what: str = "") -> Claim:
    """The highest mean of a row is one of these columns; the next one is shown too."""

    def ask(rows: Rows, doubt: Doubt) -> Answer:
        found = rows.get(row, {})
        others = [name for name in found if name not in names]
        if not others or any(name not in found for name in names):
            return None, ""
        own, other = (max(group, key=lambda name: found[name].mean) for group in (names, others))
        gap = found[own].mean - found[other].mean
        first, second = (own, other) if gap > 0 else (other, own)
        shown = f"highest: {first} {found[first]}, then {second} {found[second]}"
        if abs(gap) <= max(found[name].std or 0.0 for name in (first, second)):
            shown += ", less than a deviation apart"
        return _decided(gap > 0, gap, shown, [found[first], found[second]], doubt.of(row))

    return Claim(f"the highest of {what}{row} is {' or '.join(names)}", ask)


def every_round(high: str, first: int, low: str | None) -> Claim:
    """A column lies above another, or above all, in every round from one on."""
    whom = low or "every other method"

    def ask(rows: Rows, doubt: Doubt) -> Answer:
        rounds = [row for row in rows if int(row) >= first]
        if not rounds or any(high not in rows[row] or (low is not None and low not in rows[row]) for row in rounds):
            return None, ""
        others = {row: [low] if low is not None else [name for name in rows[row] if name != high] for row in rounds}
        if any(not names for names in others.values()):
            return None, ""
        gaps = {row: rows[row][high].mean - max(rows[row][one].mean for one in others[row]) for row in rounds}
        lost = [row for row, gap in gaps.items() if gap <= 0]
        shown = f"by {gaps[rounds[-1]]:+.2f} points in the last round"
        shown += f"; not in round {', '.join(lost)}" if lost else ""
        if _alone(rows[row][one] for row in rounds for one in (high, *others[row])):
            return None, f"one seed; {shown}"
        clear = {row: abs(gap) > doubt.of(row) for row, gap in gaps.items()}
        if any(clear[row] or not doubt.of(row) for row in lost):
            return False, shown
        if not all(clear.values()):
            within = f"within that in round {', '.join(row for row in rounds if not clear[row])}"
            return None, f"{shown}; {_equal(max(map(doubt.of, rounds)))}, {within}"
        return True, shown

    return Claim(f"{high} lies above {whom} in every round from {first} on", ask)


def falling(column: str, rows_in_order: Sequence[str]) -> Claim:
    """A column falls from row to row."""

    def ask(rows: Rows, doubt: Doubt) -> Answer:
        if any(column not in rows.get(row, {}) for row in rows_in_order):
            return None, ""
        found = [rows[row][column] for row in rows_in_order]
        shown = ", ".join(f"{row}: {stat.mean:.2f}" for row, stat in zip(rows_in_order, found))
        if _alone(found):
            return None, f"one seed; {shown}"
        return all(a.mean > b.mean for a, b in pairwise(found)), shown

    return Claim(f"{column}: the more rounds the better at the same budget", ask)


def rising(text: str, row: str, names: Sequence[str]) -> Claim:
    """Each column of a row lies above the one before it by more than the larger of their deviations."""

    def ask(rows: Rows, doubt: Doubt) -> Answer:
        found = rows.get(row, {})
        if len(names) < 2 or any(name not in found for name in names):
            return None, ""
        shown = ", ".join(f"{name} {found[name]}" for name in names)
        if any(found[name].std is None for name in names):
            return None, f"one seed; {shown}" if _alone(found[name] for name in names) else shown
        steps = {f"{a} to {b}": (found[a], found[b]) for a, b in pairwise(names)}
        flat = [name for name, (a, b) in steps.items() if b.mean - a.mean <= max(a.std or 0.0, b.std or 0.0)]
        return not flat, shown + (f"; no more than a deviation from {', '.join(flat)}" if flat else "")

    return Claim(text, ask)


def shorter(column: str, names: Sequence[str], other: str) -> Claim:
    """Rows of a table of seconds are below another row."""

    def ask(rows: Rows, doubt: Doubt) -> Answer:
        if any(column not in rows.get(name, {}) for name in (*names, other)):
            return None, ""
        found = {name: rows[name][column] for name in (*names, other)}
        shown = ", ".join(f"{name} {stat.mean:.3g} s" for name, stat in found.items())
        if _alone(found.values()):
            return None, f"timed once; {shown}"
        return all(found[name].mean < found[other].mean for name in names), shown

    return Claim(f"{column}: {' and '.join(names)} take less time than {other}", ask)


def near(ours: Rows, paper: Rows) -> str:
    """How many means are within two deviations of the paper's, ours and the paper's together, and which rows count."""
    pairs = [
        (row, stat, paper[row][column]) for row, found in ours.items() for column, stat in found.items()
        if column in paper.get(row, {})
    ]  # fmt: skip
    counted = [(row, a, b) for row, a, b in pairs if a.std is not None and b.std is not None]
    if not counted:
        return ""
    fine = sum(abs(a.mean - b.mean) <= 2 * math.hypot(a.std or 0.0, b.std or 0.0) for _, a, b in counted)
    away = sum(a.mean - b.mean for _, a, b in counted) / len(counted)
    rows, every = (list(dict.fromkeys(row for row, *_ in some)) for some in (counted, pairs))
    some = "" if rows == every else f" on {', '.join(rows)}, the rows with several seeds,"
    return (
        f"{fine} of {len(counted)} means{some} are within two deviations (ours and the paper's together) of the "
        f"paper's; on average ours are {abs(away):.1f} points {'higher' if away > 0 else 'lower'}."
    )
