"""What a reader of the report has to know of its rows: which made the same picks, which come from another machine, and
what the oracle among them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from labelwise.io.text import many
from labelwise.stats.curves import area
from labelwise.stats.record import Record
from labelwise.stats.verdict import ORACLE

if TYPE_CHECKING:
    from labelwise.bench.report.report import Experiment

Environment = tuple[tuple[str, str], ...]  # names with values, without the seed


def same_picks(experiments: Sequence[Experiment]) -> list[str]:
    """A sentence for each group of strategies that chose the same rows in every round of every seed they ran."""
    where: dict[tuple[str, ...], list[tuple[str, int]]] = {}
    for one in experiments:
        groups: dict[Any, list[str]] = {}
        for name in one.curves:
            picks = {(r.seed, r.round): tuple(sorted(r.picked)) for r in one.records if r.strategy == name and r.picked}
            if picks:
                groups.setdefault(frozenset(picks.items()), []).append(name)
        for picks, names in groups.items():
            if len(names) > 1:
                where.setdefault(tuple(sorted(names)), []).append((one.name, len(picks)))
    return [_same(names, found, len(experiments)) for names, found in where.items()]


def _same(names: Sequence[str], found: Sequence[tuple[str, int]], experiments: int) -> str:
    batches = sum(count for _, count in found)
    on = ", ".join(name for name, _ in found)
    if len(found) == experiments:
        on = "the only experiment" if experiments == 1 else f"all {experiments} experiments"
    return (
        f"{', '.join(names[:-1])} and {names[-1]} picked the same rows in every round of every seed "
        f"({many(batches, 'batch')}) on {on}: what differs between them there is not the choice of rows."
    )


def environments(records: Sequence[Record]) -> dict[str, str]:
    """What the records ran on: name and value; where there are several, each with the rows that belong to it."""
    groups: dict[Environment, list[Record]] = {}
    for record in records:
        groups.setdefault(_environment(record), []).append(record)
    if len(groups) < 2:
        return {name: value for group in groups for name, value in group}
    shared = set.intersection(*(set(group) for group in groups))
    first = next(iter(groups))
    found = {name: value for name, value in first if (name, value) in shared}
    for place, (group, own) in enumerate(groups.items()):
        differs = ", ".join(f"{name} {value}" for name, value in group if (name, value) not in shared)
        found[f"Environment {place + 1}"] = f"{_rows(own, records)}: {differs or 'nothing else is known'}"
    found["Seconds and memory"] = "compare within one environment only"
    return found


def elsewhere(one: Experiment) -> list[str]:
    """A sentence where rows of an experiment were measured in another environment than random's."""
    own: dict[str, set[Environment]] = {}
    for record in one.records:
        own.setdefault(record.strategy, set()).add(_environment(record))
    base = own.get("random") or next(iter(own.values()), set())
    other = [name for name, found in own.items() if found != base]
    if not other:
        return []
    verb = "was" if len(other) == 1 else "were"
    return [
        f"{', '.join(other)} {verb} measured in another environment than the other rows (see What was run): seconds "
        "and memory do not compare."
    ]


def headroom(one: Experiment) -> list[str]:
    """What the oracle of these records is, and who lies above it."""
    if ORACLE not in one.curves:
        return []
    notes = [record.notes.get("selection") or {} for record in one.records if record.strategy == ORACLE]
    told = next((note for note in notes if "tried" in note or "candidates" in note), {})
    return [_searched(told) + _above(one)]


def _searched(note: Mapping[str, Any]) -> str:
    bound = "a lower bound of the headroom, since few of all batches are tried"
    if "tried" in note:
        return (
            f"The oracle takes in each round the best on the test rows of {note['tried']} batches, trained with their "
            f"true labels ({note.get('search', 'greedy')}): {bound}."
        )
    if "candidates" in note:
        return (
            f"The oracle of these records, made by an earlier version, takes the best on the test rows of "
            f"{note['candidates']} random batches: {bound}, and a weak one."
        )
    return f"The oracle chooses by the test rows: {bound}."


def _above(one: Experiment) -> str:
    means = {name: float(area(lines).mean()) for name, lines in one.curves.items()}
    sign = 1 if one.table.metric.higher else -1
    better = [name for name, value in means.items() if sign * (value - means[ORACLE]) > 0]
    if better:
        return f" There is more than it shows; above it by the mean area: {', '.join(better)}."
    return " By the mean area no strategy is above it."


def _environment(record: Record) -> Environment:
    return tuple((name, value) for name, value in record.environment.items() if name != "seed")


def _rows(own: Sequence[Record], records: Sequence[Record]) -> str:
    """The strategies of these records; one that has others too is said with its runs."""
    held = {record.run for record in own}
    said = []
    for name in dict.fromkeys(record.strategy for record in own):
        every = {record.run for record in records if record.strategy == name}
        mine = sorted(every & held)
        some = (
            f" ({len(mine)} of {many(len(every), 'run')}, from {mine[0]} to {mine[-1]})"
            if len(mine) < len(every)
            else ""
        )
        said.append(name + some)
    return ", ".join(said)
