"""The sentences of the report over experiments: what each strategy is worth, and what was tested."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labelwise.bench.report.experiments import Experiment, MetricGroup
from labelwise.io.text import many
from labelwise.stats.curves import area
from labelwise.stats.record import Record
from labelwise.stats.verdict import ORACLE, Verdict

CORRECTED = (
    "Wins and losses are counted after Holm's correction for the strategies compared on the same experiment. In "
    "brackets are the single tests without it, which find a difference in one of twenty cases where there is none."
)


def summary(experiments: Sequence[Experiment]) -> list[str]:
    """What does not count, then one plain sentence for each strategy, those that beat random most often first."""
    lines = [f"{one.name} is not counted. {one.warning}" for one in experiments if one.warning]
    names = {name: None for one in experiments for name in one.verdicts}
    if not names:
        return [*lines, _nothing_beside(experiments)]
    untold, counted = [], []
    for name in names:
        found = [one.verdicts[name] for one in experiments if name in one.verdicts and not one.warning]
        able = [each for each in found if each.outcome != "open"]
        if able:
            counted.append((_order(able), name, _against_random(able)))
        elif found:
            fewest = min(found, key=lambda each: each.test.seeds)
            seeds = f"{many(fewest.test.seeds, 'seed')}, {fewest.needed} or more are needed"
            untold.append(f"{name} cannot be compared with random yet: {seeds}.")
        else:
            untold.append(f"{name} ran on no experiment that counts.")
    shown = [CORRECTED] if any(each.compared > 1 for one in experiments for each in one.verdicts.values()) else []
    told = [f"{name} {said}." for _, name, said in sorted(counted)]
    return [*lines, *(shown if counted else []), *told, *untold, *same_picks(experiments)]


def _nothing_beside(experiments: Sequence[Experiment]) -> str:
    if any("random" in one.curves for one in experiments):
        return "Nothing that shares a seed with random was run beside it, so there is nothing to compare."
    return "Random was not run, so there is nothing to compare the strategies with."


def _order(able: Sequence[Verdict]) -> tuple[float, float]:
    """Losses less wins, as a share of the experiments: by the verdicts, then by the single tests."""
    verdicts = sum((each.outcome == "worse") - (each.outcome == "better") for each in able)
    singles = sum((each.single == "worse") - (each.single == "better") for each in able)
    return verdicts / len(able), singles / len(able)


def _against_random(able: Sequence[Verdict]) -> str:
    won, lost, same = (sum(each.outcome == what for each in able) for what in ("better", "worse", "same"))
    plus, minus = (sum(each.single == what for each in able) for what in ("better", "worse"))
    if len(able) == 1:
        text = {"better": "beats random", "worse": "loses to random"}.get(
            able[0].outcome, "makes no measurable difference to random"
        )
        text += " on the only experiment"
    elif not won and not lost:
        text = f"makes no measurable difference to random on any of {len(able)} experiments"
    else:
        text = f"beats random on {won or 'none'} of {len(able)} experiments"
        text += f", loses to it on {lost}" if lost else ""
        text += f", no measurable difference on {same}" if same else ""
    alone = plus != won or minus != lost
    return text + (f" (single tests: {plus} better, {minus} worse)" if alone else "")


def tests_text(one: Experiment) -> str:
    """The paired tests of an experiment in a sentence or two."""
    if "random" not in one.curves:
        return "Random was not run here, so nothing is tested."
    if not one.verdicts:
        return "Nothing was run beside random here, so nothing is tested."
    every = one.verdicts
    groups = {what: [name for name in every if every[name].outcome == what] for what in ("better", "worse", "open")}
    first = next(iter(every.values()))
    said = [f"better than random: {', '.join(groups['better'])}"] if groups["better"] else []
    said += [f"worse: {', '.join(groups['worse'])}"] if groups["worse"] else []
    if len(groups["open"]) == len(every):
        seeds = many(max(each.test.seeds for each in every.values()), "seed")
        tested = f"No strategy can be compared with random yet: {seeds}, {first.needed} or more are needed."
    else:
        holm = f"After Holm's correction for {first.compared} strategies at 5 %" if first.compared > 1 else "At 5 %"
        tested = f"{holm}, {'; '.join(said) if said else 'no strategy differs measurably from random'}."
        if groups["open"]:
            tested += f" Not to be compared yet, for want of seeds ({first.needed}): {', '.join(groups['open'])}."
    every_seed = {seed for lines in one.curves.values() for seed in lines.seeds}
    short = [f"{name} {len(one.curves[name].seeds)}" for name in one.incomplete]
    few = [f"Seeds that are there, of {len(every_seed)}: {', '.join(short)}."] if short else []
    return " ".join([tested, *few, *_own_training(one), *headroom(one), *elsewhere(one)])


def _own_training(one: Experiment) -> list[str]:
    """Strategies whose model differs from random's while their labels are the same: they train in their own way."""
    first, said = one.curves["random"], []
    for name in one.verdicts:
        own = one.curves[name]
        seeds = [seed for seed in own.seeds if seed in first.seeds]
        if own.labels_T[0] != first.labels_T[0] or not seeds:
            continue
        mine, randoms = (
            each.values_ST[[each.seeds.index(seed) for seed in seeds], 0].tolist() for each in (own, first)
        )
        if mine != randoms:
            there, here = (_value(one.metric, sum(values) / len(values)) for values in (mine, randoms))
            said.append(
                f"{name} trains by rules of its own: on the same first {int(own.labels_T[0])} labels its model has "
                f"{one.metric} {there}, random's {here}, so its curve shows training and choice together."
            )
    return said


def _value(metric: str, value: float) -> str:
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.3g}"


def ranks_text(group: MetricGroup) -> str:
    """What the average ranks tell, and who has none."""
    if group.ranks is None:
        return "There are no ranks: fewer than two strategies have all seeds on every experiment that counts."
    if math.isnan(group.ranks.critical):
        few = "One experiment is" if group.ranks.experiments == 1 else "So few strategies are"
        told = f"{few} too few to tell average ranks apart."
    else:
        differ = (
            "the average ranks differ" if group.ranks.p <= 0.05 else "no difference of the average ranks can be told"
        )
        told = (
            f"Friedman's test over {group.ranks.experiments} experiments: p = {group.ranks.p:.2g}, {differ}. "
            "Strategies joined by a bar are not told apart at 5 % (Nemenyi, critical difference "
            f"{group.ranks.critical:.2f})."
        )
    without = [
        f"{name} ({_why(group, name)})"
        for name in dict.fromkeys(name for one in group.experiments for name in one.curves)
        if name not in group.ranks.names
    ]
    return told + (f" Without a rank: {', '.join(without)}." if without else "")


def _why(group: MetricGroup, name: str) -> str:
    if name == ORACLE:
        return "it looks at the test rows"
    absent = [one.name for one in group.experiments if name not in one.curves]
    if absent:
        return f"not run on {', '.join(absent)}"
    return f"seeds missing on {', '.join(one.name for one in group.experiments if name in one.incomplete)}"


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
    runs = {record.run for record in own}
    said = []
    for name in dict.fromkeys(record.strategy for record in own):
        every = {record.run for record in records if record.strategy == name}
        mine = sorted(every & runs)
        some = (
            f" ({len(mine)} of {many(len(every), 'run')}, from {mine[0]} to {mine[-1]})"
            if len(mine) < len(every)
            else ""
        )
        said.append(name + some)
    return ", ".join(said)
