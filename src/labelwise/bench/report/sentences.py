"""Sentences of the benchmark report: the verdict on each strategy, what was tested, and what to know of the rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from labelwise.bench.report.experiments import Experiment, MetricGroup
from labelwise.io.text import many
from labelwise.stats import training_warnings
from labelwise.stats.curves import area
from labelwise.stats.paired import name_of_test
from labelwise.stats.record import Record
from labelwise.stats.verdict import ORACLE, Verdict

CORRECTED = (
    "Wins and losses are counted after Holm's correction for all strategies compared on an experiment. Brackets show "
    "the single tests without correction, which report a difference in one of twenty cases where there is none."
)


def summary(experiments: Sequence[Experiment]) -> list[str]:
    """Sentences for the head of a report.

    First the experiments that do not count, then one sentence for each strategy, best first, then equal picks.
    """
    lines = [f"{one.name} is not counted. {one.warning}" for one in experiments if one.warning]
    lines += warned_line(experiments)
    names = {name: None for one in experiments for name in one.verdicts}
    if not names:
        return [*lines, _nothing_to_compare(experiments)]
    counted: list[tuple[tuple[float, float], str, str]] = []
    undecided: dict[str, list[str]] = {}
    for name in names:
        found = [one.verdicts[name] for one in experiments if name in one.verdicts and not one.warning]
        able = [each for each in found if each.outcome != "open"]
        if able:
            counted.append((_order(able), name, _against_random(able)))
        elif found:
            fewest = min(found, key=lambda each: each.test.seeds)
            seeds = f"{many(fewest.test.seeds, 'seed')}, {fewest.needed} or more are needed"
            undecided.setdefault(f"cannot be compared with random yet: {seeds}.", []).append(name)
        else:
            undecided.setdefault("ran on no experiment that counts.", []).append(name)
    note = [CORRECTED] if any(each.compared > 1 for one in experiments for each in one.verdicts.values()) else []
    verdicts = [f"{name} {verdict}." for _, name, verdict in sorted(counted)]
    open_lines = [f"{', '.join(each)} {why}" for why, each in undecided.items()]
    return [*lines, *(note if counted else []), *verdicts, *open_lines, *same_picks(experiments)]


def warned_line(experiments: Sequence[Experiment]) -> list[str]:
    """A sentence on the experiments with warnings of training."""
    found = {one.name: training_warnings.training_warnings(one.records) for one in experiments}
    rounds = sum(warned.rounds for by_strategy in found.values() for warned in by_strategy.values())
    if not rounds:
        return []
    names = [name for name, by_strategy in found.items() if by_strategy]
    listed = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
    return [f"Training had hardly learnt in {many(rounds, 'round')} of {listed}: see the sentences below their tables."]


def _nothing_to_compare(experiments: Sequence[Experiment]) -> str:
    if any("random" in one.curves for one in experiments):
        return "No other strategy shares a seed with random, so there is nothing to compare."
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
            able[0].outcome, "does not differ measurably from random"
        )
        text += " on the only experiment"
    elif not won and not lost:
        text = f"does not differ measurably from random on any of {len(able)} experiments"
    else:
        text = f"beats random on {won or 'none'} of {len(able)} experiments"
        text += f", loses to it on {lost}" if lost else ""
        text += f", no measurable difference on {same}" if same else ""
    differs = plus != won or minus != lost
    return text + (f" (single tests: {plus} better, {minus} worse)" if differs else "")


def tests_text(one: Experiment) -> str:
    """The paired tests of an experiment in a sentence or two."""
    if "random" not in one.curves:
        return "Random was not run here, so nothing is tested."
    if not one.verdicts:
        return "Only random was run here, so nothing is tested."
    every = one.verdicts
    groups = {what: [name for name in every if every[name].outcome == what] for what in ("better", "worse", "open")}
    first = next(iter(every.values()))
    parts = [f"better than random: {', '.join(groups['better'])}"] if groups["better"] else []
    parts += [f"worse: {', '.join(groups['worse'])}"] if groups["worse"] else []
    if len(groups["open"]) == len(every):
        seeds = many(max(each.test.seeds for each in every.values()), "seed")
        tested = f"No strategy can be compared with random yet: {seeds}, {first.needed} or more are needed."
    else:
        holm = f" after Holm's correction for {first.compared} strategies" if first.compared > 1 else ""
        by = name_of_test(each.test.seeds for each in every.values() if each.outcome != "open")
        tested = (
            f"By the {by} at 5 %{holm}, {'; '.join(parts) if parts else 'no strategy differs measurably from random'}."
        )
        if groups["open"]:
            tested += f" Too few seeds to compare yet ({first.needed} are needed): {', '.join(groups['open'])}."
    every_seed = {seed for lines in one.curves.values() for seed in lines.seeds}
    short = [f"{name} ({len(one.curves[name].seeds)})" for name in one.incomplete]
    few = [f"Strategies with fewer than the {len(every_seed)} seeds: {', '.join(short)}."] if short else []
    warned, starts = training_warnings.sentences(one.records), starts_of_rounds(one)
    return " ".join([tested, *few, *warned, *starts, *_own_training(one), *oracle_note(one), *other_environments(one)])


def starts_of_rounds(one: Experiment) -> list[str]:
    """A sentence on the weights that each strategy's rounds start from, where the records say so."""
    warm: dict[str, bool] = {}
    for record in one.records:
        found = record.notes.get("training", {}).get("warm_start")
        if found is not None:
            warm[record.strategy] = warm.get(record.strategy, False) or found
    if not warm:
        return []
    going_on = [name for name, found in warm.items() if found]
    if not going_on:
        return ["Every strategy trains from new weights in each round."]
    if len(going_on) == len(warm):
        return ["Every strategy trains on from the weights of the round before."]
    verb, its = ("train", "their curves show") if len(going_on) > 1 else ("trains", "its curve shows")
    return [
        f"{', '.join(going_on)} {verb} on from the weights of the round before, the others from new ones: {its} "
        "training and selection together (`training: restart` in the configuration compares on equal terms)."
    ]


def _own_training(one: Experiment) -> list[str]:
    """A sentence for each strategy whose model differs from random's with the same labels: it trains differently."""
    if one.own_start:
        return ["Each strategy chose its own first batch, so the curves begin at different models."]
    first, sentences = one.curves["random"], []
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
            sentences.append(
                f"{name} trains differently: with the same first {int(own.labels_T[0])} labels its model has "
                f"{one.metric} {there} and random's {here}, so its curve shows training and selection together."
            )
    return sentences


def _value(metric: str, value: float) -> str:
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.3g}"


def ranks_text(group: MetricGroup) -> str:
    """What the average ranks show, and which strategies have none."""
    if group.ranks is None:
        return "There are no ranks: fewer than two strategies have all seeds on every experiment that counts."
    if math.isnan(group.ranks.critical):
        few = "One experiment is" if group.ranks.experiments == 1 else "So few strategies are"
        text = f"{few} too few to compare average ranks."
    else:
        differ = (
            "the average ranks differ" if group.ranks.p <= 0.05 else "the average ranks do not differ significantly"
        )
        text = (
            f"Friedman's test over {group.ranks.experiments} experiments: p = {group.ranks.p:.2g}, {differ}. "
            "Strategies joined by a bar do not differ at 5 % (Nemenyi, critical difference "
            f"{group.ranks.critical:.2f})."
        )
    without = [
        f"{name} ({_why(group, name)})"
        for name in dict.fromkeys(name for one in group.experiments for name in one.curves)
        if name not in group.ranks.names
    ]
    return text + (f" Without a rank: {', '.join(without)}." if without else "")


def _why(group: MetricGroup, name: str) -> str:
    if name == ORACLE:
        return "it uses the test rows"
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
        f"({many(batches, 'batch')}) on {on}: differences between them there do not come from the selection."
    )


def environments(records: Sequence[Record]) -> dict[str, str]:
    """The environments of the records as names and values; where there are several, each with its rows."""
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
        found[f"Environment {place + 1}"] = f"{_rows(own, records)}: {differs or 'no other difference is recorded'}"
    found["Seconds and memory"] = "compare within one environment only"
    return found


def other_environments(one: Experiment) -> list[str]:
    """A sentence if some strategies of an experiment were measured in another environment than random."""
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
        "and memory cannot be compared."
    ]


def oracle_note(one: Experiment) -> list[str]:
    """How the oracle of these records chose, and which strategies are above it."""
    if ORACLE not in one.curves:
        return []
    notes = [record.notes.get("selection") or {} for record in one.records if record.strategy == ORACLE]
    search = next((note for note in notes if "tried" in note or "candidates" in note), {})
    return [_oracle_search(search) + _above_oracle(one)]


def _oracle_search(note: Mapping[str, Any]) -> str:
    bound = "a lower bound of what is possible, because few of all batches are tried"
    if "tried" in note:
        return (
            f"In each round the oracle takes the best of {note['tried']} batches on the test rows, trained with their "
            f"true labels ({note.get('search', 'greedy')}): {bound}."
        )
    if "candidates" in note:
        return (
            f"The oracle of these records is of an earlier version and takes the best of {note['candidates']} random "
            f"batches on the test rows: {bound}, and a weak one."
        )
    return f"The oracle chooses by the test rows: {bound}."


def _above_oracle(one: Experiment) -> str:
    means = {name: float(area(lines).mean()) for name, lines in one.curves.items()}
    sign = 1 if one.table.metric.higher else -1
    better = [name for name, value in means.items() if sign * (value - means[ORACLE]) > 0]
    if better:
        return f" More is possible than it shows: {', '.join(better)} above it by mean area."
    return " No strategy is above it by mean area."


def _environment(record: Record) -> Environment:
    return tuple((name, value) for name, value in record.environment.items() if name != "seed")


def _rows(own: Sequence[Record], records: Sequence[Record]) -> str:
    """The strategies of these records; one with runs elsewhere too is listed with its runs."""
    runs = {record.run for record in own}
    parts = []
    for name in dict.fromkeys(record.strategy for record in own):
        every = {record.run for record in records if record.strategy == name}
        mine = sorted(every & runs)
        some = (
            f" ({len(mine)} of {many(len(every), 'run')}, from {mine[0]} to {mine[-1]})"
            if len(mine) < len(every)
            else ""
        )
        parts.append(name + some)
    return ", ".join(parts)
