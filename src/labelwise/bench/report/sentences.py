"""The sentences of the report over experiments: what each strategy is worth, and what was tested."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labelwise.bench.report.notes import elsewhere, headroom, same_picks
from labelwise.io.text import many
from labelwise.stats.verdict import ORACLE

if TYPE_CHECKING:
    from labelwise.bench.report.report import Experiment, Overall
    from labelwise.stats.verdict import Verdict

CORRECTED = (
    "Wins and losses are counted after Holm's correction for the strategies compared on the same experiment. In "
    "brackets are the single tests without it, which find a difference in one of twenty cases where there is none."
)


def summary(experiments: Sequence[Experiment]) -> list[str]:
    """What does not count, then one plain sentence for each strategy, those that beat random most often first."""
    lines = [f"{one.name} is not counted. {one.nothing}" for one in experiments if one.nothing]
    names = {name: None for one in experiments for name in one.against}
    if not names:
        return [*lines, _nothing_beside(experiments)]
    untold, counted = [], []
    for name in names:
        found = [one.against[name] for one in experiments if name in one.against and not one.nothing]
        able = [each for each in found if each.outcome != "open"]
        if able:
            counted.append((_order(able), name, _against_random(able)))
        elif found:
            fewest = min(found, key=lambda each: each.test.seeds)
            seeds = f"{many(fewest.test.seeds, 'seed')}, {fewest.needed} or more are needed"
            untold.append(f"{name} cannot be compared with random yet: {seeds}.")
        else:
            untold.append(f"{name} ran on no experiment that counts.")
    shown = [CORRECTED] if any(each.compared > 1 for one in experiments for each in one.against.values()) else []
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
    if not one.against:
        return "Nothing was run beside random here, so nothing is tested."
    every = one.against
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
    short = [f"{name} {len(one.curves[name].seeds)}" for name in one.short]
    few = [f"Seeds that are there, of {len(every_seed)}: {', '.join(short)}."] if short else []
    return " ".join([tested, *few, *_own_training(one), *headroom(one), *elsewhere(one)])


def _own_training(one: Experiment) -> list[str]:
    """Strategies whose model differs from random's while their labels are the same: they train in their own way."""
    first, said = one.curves["random"], []
    for name in one.against:
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


def ranks_text(group: Overall) -> str:
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


def _why(group: Overall, name: str) -> str:
    if name == ORACLE:
        return "it looks at the test rows"
    absent = [one.name for one in group.experiments if name not in one.curves]
    if absent:
        return f"not run on {', '.join(absent)}"
    return f"seeds missing on {', '.join(one.name for one in group.experiments if name in one.short)}"
