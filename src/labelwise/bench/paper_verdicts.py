"""What a paper claims of its tables, asked of our numbers and of the paper's own: orders and bands, not equality."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Stat:
    """A mean over seeds, in per cent or seconds, with its standard deviation where there are several."""

    mean: float
    std: float | None = None
    seeds: int = 0

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.std is None else f"{self.mean:.2f} ± {self.std:.2f}"


Rows = Mapping[str, Mapping[str, Stat]]  # by row, then by column
Answer = tuple[bool | None, str]  # whether it holds, None where it cannot be said, and the numbers


@dataclass(frozen=True)
class Claim:
    """A sentence and how to ask numbers whether it holds."""

    text: str
    ask: Callable[[Rows], Answer]


def said(claims: Sequence[Claim], ours: Rows, paper: Rows) -> str:
    """The claims, each with what our numbers say and what the paper's own say."""
    return "\n".join(f"- {_line(claim, ours, paper)}" for claim in claims)


def _line(claim: Claim, ours: Rows, paper: Rows) -> str:
    holds, shown = claim.ask(ours)
    text = f"{claim.text}: **{_word(holds)}**" + (f" ({shown})" if shown else "")
    if paper:
        holds, shown = claim.ask(paper)
        text += f"; in the paper's own numbers it {_word(holds)}" + (f" ({shown})" if shown else "")
    return text + "."


def _word(holds: bool | None) -> str:
    return "cannot be said" if holds is None else "holds" if holds else "does not hold"


def below_all(row: str, low: str = "Random") -> Claim:
    """One column lies below every other by more than its own deviation."""

    def ask(rows: Rows) -> Answer:
        found = rows.get(row, {})
        others = {name: stat.mean for name, stat in found.items() if name != low}
        if low not in found or not others or found[low].std is None:
            return None, ""
        nearest = min(others, key=lambda name: others[name])
        gap = others[nearest] - found[low].mean
        return gap > (found[low].std or 0.0), f"{low} {found[low]}, the lowest other is {nearest} {found[nearest]}"

    return Claim(f"{low} lies below every informed method on {row} by more than its own deviation", ask)


def above(row: str, high: str, low: str) -> Claim:
    """One column lies above another by more than the other's deviation."""

    def ask(rows: Rows) -> Answer:
        found = rows.get(row, {})
        if high not in found or low not in found or found[low].std is None:
            return None, ""
        gap = found[high].mean - found[low].mean
        return gap > (found[low].std or 0.0), f"{high} {found[high]}, {low} {found[low]}"

    return Claim(f"{high} lies above {low} on {row} by more than the deviation of {low}", ask)


def beside(row: str, names: Sequence[str], other: str) -> Claim:
    """Columns are not more than a deviation below another: the larger of the two deviations."""

    def ask(rows: Rows) -> Answer:
        found = rows.get(row, {})
        if any(name not in found or found[name].std is None for name in (*names, other)):
            return None, ""
        gaps = {name: found[other].mean - found[name].mean for name in names}
        fine = all(gap <= max(found[name].std or 0.0, found[other].std or 0.0) for name, gap in gaps.items())
        return fine, ", ".join(f"{name} {found[name]}" for name in (*names, other))

    return Claim(f"{' and '.join(names)} are within a deviation of {other} on {row}, or above", ask)


def best(row: str, names: Sequence[str], what: str = "") -> Claim:
    """The highest mean of a row is one of these columns."""

    def ask(rows: Rows) -> Answer:
        found = rows.get(row, {})
        if len(found) < 2 or any(name not in found for name in names):
            return None, ""
        first = max(found, key=lambda name: found[name].mean)
        return first in names, f"highest: {first} {found[first]}"

    return Claim(f"the highest of {what}{row} is {' or '.join(names)}", ask)


def every_round(high: str, first: int, low: str | None) -> Claim:
    """A column lies above another, or above all, in every round from one on."""
    whom = low or "every other method"

    def ask(rows: Rows) -> Answer:
        rounds = [row for row in rows if int(row) >= first]
        if not rounds or any(high not in rows[row] or (low is not None and low not in rows[row]) for row in rounds):
            return None, ""
        others = {row: [low] if low is not None else [name for name in rows[row] if name != high] for row in rounds}
        if any(not names for names in others.values()):
            return None, ""
        gaps = {row: rows[row][high].mean - max(rows[row][one].mean for one in others[row]) for row in rounds}
        lost = [row for row, gap in gaps.items() if gap <= 0]
        shown = f"by {gaps[rounds[-1]]:+.2f} points in the last round"
        return not lost, shown + (f"; not in round {', '.join(lost)}" if lost else "")

    return Claim(f"{high} lies above {whom} in every round from {first} on", ask)


def falling(column: str, rows_in_order: Sequence[str]) -> Claim:
    """A column falls from row to row."""

    def ask(rows: Rows) -> Answer:
        if any(column not in rows.get(row, {}) for row in rows_in_order):
            return None, ""
        means = [rows[row][column].mean for row in rows_in_order]
        fine = all(a > b for a, b in pairwise(means))
        return fine, ", ".join(f"{row}: {mean:.2f}" for row, mean in zip(rows_in_order, means))

    return Claim(f"{column}: the more rounds the better at the same budget", ask)


def shorter(column: str, names: Sequence[str], other: str) -> Claim:
    """Rows of a table of seconds are below another row."""

    def ask(rows: Rows) -> Answer:
        if any(column not in rows.get(name, {}) for name in (*names, other)):
            return None, ""
        times = {name: rows[name][column].mean for name in (*names, other)}
        return all(times[name] < times[other] for name in names), ", ".join(f"{n} {t:.3g} s" for n, t in times.items())

    return Claim(f"{column}: {' and '.join(names)} take less time than {other}", ask)


def near(ours: Rows, paper: Rows) -> str:
    """How many means are within two deviations of the paper's, ours and the paper's together."""
    pairs = [
        (stat, paper[row][column]) for row, found in ours.items() for column, stat in found.items()
        if column in paper.get(row, {})
    ]  # fmt: skip
    pairs = [(a, b) for a, b in pairs if a.std is not None and b.std is not None]
    if not pairs:
        return ""
    fine = sum(abs(a.mean - b.mean) <= 2 * math.hypot(a.std or 0.0, b.std or 0.0) for a, b in pairs)
    away = sum(a.mean - b.mean for a, b in pairs) / len(pairs)
    return (
        f"{fine} of {len(pairs)} means are within two deviations (ours and the paper's together) of the paper's; on "
        f"average ours are {abs(away):.1f} points {'higher' if away > 0 else 'lower'}."
    )
