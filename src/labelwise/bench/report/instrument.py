"""The page of the suite `instrument`: which parts of a recipe pay, where, and whether a certificate predicts the error.

All sentences come from the numbers of `stats/factorial.py`. Effects are of the area under the learning curve: points
of accuracy, or percent of random's error for numbers. Whether a part pays is decided over all sets of a task together,
where it pays on each of them; Holm's correction is over each of these families.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.bench.report.certificate_notes import certificate_notes, pool_error, with_ratio
from labelwise.bench.report.load_runs import experiment_of, finished_runs, goals_of, joined, source_of
from labelwise.errors import StoreError
from labelwise.io.files import write_text
from labelwise.io.text import many, markdown_table
from labelwise.recommend import Situation, recommend
from labelwise.stats.curves import learning_curves
from labelwise.stats.factorial import (
    Combination,
    Effect,
    Prediction,
    Values,
    against_reference,
    corrected,
    interaction,
    label_of,
    main_effects,
    overall,
    predictions,
    simple_effects,
    values_of,
)
from labelwise.stats.paired import holm
from labelwise.stats.record import Record
from labelwise.stats.verdict import LEVEL

RANDOM = Combination("random", "none", "mean")
LEVELS = (("weigh", "sabal", "none"), ("weigh", "own", "none"), ("train", "primal-dual", "mean"))
WORDS = {
    "weigh sabal": "weigh sabal",
    "weigh own": "weigh law or density",
    "train primal-dual": "train primal-dual",
}
USEFUL = 0.3  # of a rank correlation, below which a note does not tell good models from bad ones
EFFECT_NOTE = (
    "Difference of the area under the learning curve, averaged over all combinations of the other parts: points of "
    "accuracy, or percent of random's error for numbers; more is better. Where the test passes, the verdict stands "
    "with it. The rows of all sets have 95 % intervals over seeds, without correction: they are about these sets."
)
CHOOSE_NOTE = "Each strategy against random, averaged over the weights and the training that both were run with."
PREDICTION_NOTE = (
    "Spearman's rank correlation of a note with the error on all rows of the pool, labelled ones included, among runs "
    "of one experiment and one seed with equally many labels, averaged over label counts. Below 0, more of it goes "
    "with less error. The last column counts the experiments in which it differs from 0 after Holm's correction."
)
ALL_SETS = {"classify": "all sets of classes", "regress": "all sets of numbers"}
UNIT = {"classify": "points of accuracy", "regress": "% of random's error"}
CERTIFICATE = ("seen", "unseen", "least eigenvalue", "largest eigenvalue", "effective sample size")
RATIO = ("approximation ratio", "distance of the ratio from 1")
FEW_SEEDS = "there are too few seeds for a verdict"
MOST = 12  # rows of the table of combinations


@dataclass(frozen=True)
class Findings:
    """The numbers of the page.

    Attributes:
        experiments: the values of each cell, by experiment.
        tasks: "classify" or "regress", by experiment.
        runs, expected: finished runs, and those the configurations ask for.
        effects: by family: "main" effects of weights and training, the same by strategy ("simple"), interactions
            ("crossed"), every strategy against random ("chosen"), and every cell against the recommended strategy
            with no weights and the mean ("combinations").
        overall: the same over all experiments of a task, whose name is their experiment.
        references: that cell, by experiment.
        predictions: of the notes.
        labels: the fewest and the most labels of a round.
        minutes: of one process, by the seconds in the records.
    """

    experiments: Mapping[str, Values]
    tasks: dict[str, str]
    runs: int
    expected: int
    effects: dict[str, list[Effect]]
    overall: dict[str, list[Effect]]
    references: dict[str, Combination]
    predictions: list[Prediction]
    labels: tuple[int, int]
    minutes: float


def read_findings(runs: Sequence[Path]) -> Findings:
    """The numbers of the finished runs in these folders.

    Raises:
        StoreError: none of them has parts.
    """
    sources = [source_of(run) for run in runs]
    goals = goals_of(sources)
    by_experiment: dict[str, list[Record]] = {}
    for record in joined(sources):
        if Combination.of(record.strategy) is not None:
            by_experiment.setdefault(experiment_of(record), []).append(record)
    if not by_experiment:
        raise StoreError(
            f"{', '.join(map(str, runs))}: runs of recipes with parts were expected, such as those of the suite "
            "instrument; found none"
        )
    experiments: dict[str, Values] = {}
    tasks: dict[str, str] = {}
    found, labels, done, expected, seconds = list[Prediction](), set[int](), 0, 0, 0.0
    for name, records in by_experiment.items():
        wanted = {run: labels for run, labels in goals.get(name, {}).items() if Combination.of(run[0]) is not None}
        whole = finished_runs(name, records, {name: dict(wanted)} if wanted else {})
        done, expected = done + whole.finished, expected + whole.expected
        seconds += sum(one.train_seconds + one.select_seconds + one.read_seconds for one in records)
        if not whole.records:
            continue
        labels |= {one.labels for one in whole.records}
        metric = "accuracy" if "accuracy" in whole.records[0].metrics else "rmse"
        tasks[name] = "classify" if metric == "accuracy" else "regress"
        experiments[name] = values_of(learning_curves(whole.records, metric), RANDOM)
        found += predictions(name, with_ratio(whole.records), certificate_notes(), pool_error)
    reference = {name: _recommended(tasks[name], values) for name, values in experiments.items()}
    strategies = dict.fromkeys(cell.choose for values in experiments.values() for cell in values)
    families = {
        "main": [one for level in LEVELS for one in main_effects(experiments, *level)],
        "simple": [one for level in LEVELS for one in simple_effects(experiments, *level)],
        "crossed": [one for weigh in ("sabal", "own") for one in interaction(experiments, weigh)],
        "chosen": [
            one
            for name in strategies
            if name != "random"
            for one in main_effects(experiments, "choose", name, "random")
        ],
        "combinations": against_reference(experiments, reference.__getitem__),
    }
    return Findings(
        experiments,
        tasks,
        done,
        expected,
        {name: corrected(family) for name, family in families.items()},
        {name: corrected(overall(family, tasks.__getitem__)) for name, family in families.items()},
        reference,
        _corrected(found),
        (min(labels, default=0), max(labels, default=0)),
        seconds / 60,
    )


def write_instrument(runs: Sequence[Path], out: Path, command: str) -> list[str]:
    """Write instrument.md and instrument.json into `out`; return the sentences at the head of the page."""
    findings = read_findings(runs)
    lines = sentences(findings)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "instrument.md", page(findings, lines, command))
    write_text(out / "instrument.json", json.dumps(as_json(findings), indent=1) + "\n")
    return lines


def sentences(found: Findings) -> list[str]:
    """What the numbers say, in about ten lines."""
    seeds = {len(runs) for values in found.experiments.values() for runs in values.values()}
    lines = [
        f"{many(found.runs, 'run')} of {found.expected:,}: {many(len(found.experiments), 'experiment')}, up to "
        f"{many(max((len(values) for values in found.experiments.values()), default=0), 'combination')} of parts, "
        f"{min(seeds, default=0)} to {max(seeds, default=0)} seeds, {found.labels[0]} to {found.labels[1]} labels. "
        "Verdicts are by Student's paired t-test at 5 % after Holm's correction."
    ]
    lines.append(f"**choose**: {_chosen(found)}")
    for part, level, _ in LEVELS:
        name = f"{part} {level}"
        every = [one for one in found.overall["main"] if one.name == name]
        lines.append(f"**{WORDS[name]}**: {_pays([one for one in found.effects['main'] if one.name == name], every)}")
    lines.append(_by_strategy(found.overall["simple"]))
    lines.append(_interactions(found.overall["crossed"]))
    lines.append(_combinations(found))
    lines.append(_predicts(found.predictions, "the certificate", CERTIFICATE))
    lines.append(_predicts(found.predictions, "the approximation ratio", RATIO))
    return lines


def page(found: Findings, lines: Sequence[str], command: str) -> str:
    """The page in Markdown."""
    titles = ["experiment", *(WORDS[f"{part} {level}"] for part, level, _ in LEVELS)]
    rows = []
    for name in found.experiments:
        by_name = {one.name: one for one in found.effects["main"] if one.experiment == name}
        rows.append([name, *(_effect_text(by_name.get(f"{part} {level}")) for part, level, _ in LEVELS)])
    for task, title in ALL_SETS.items():
        by_name = {one.name: one for one in found.overall["main"] if one.experiment == task}
        if by_name:
            rows.append([title, *(_interval_text(by_name.get(f"{part} {level}")) for part, level, _ in LEVELS)])
    chosen = [
        [_worded(name), *_counts(each, found.overall["chosen"])] for name, each in _ranked(found.effects["chosen"])
    ]
    simple: dict[str, list[Effect]] = {}
    for one in found.effects["simple"]:
        simple.setdefault(one.name, []).append(one)
    strategies = [[_worded(name), *_counts(each, found.overall["simple"])] for name, each in simple.items()]
    best = _ranked(found.effects["combinations"])[:MOST]
    combinations = [[_worded(name), *_counts(each, found.overall["combinations"])] for name, each in best]
    notes: dict[str, list[Prediction]] = {}
    for one_note in found.predictions:
        notes.setdefault(one_note.note, []).append(one_note)
    predicted = [
        [
            name,
            f"{np.mean([one.test.difference for one in each]):+.2f}",
            f"{min(one.test.difference for one in each):+.2f} to {max(one.test.difference for one in each):+.2f}",
            f"{sum(one.p <= LEVEL for one in each)} of {len(each)}",
        ]
        for name, each in notes.items()
    ]
    references = Counter(label_of(cell) for cell in found.references.values())
    numbered = "\n".join(f"{number}. {line}" for number, line in enumerate(lines, 1))
    counted = [*ALL_SETS.values(), "better", "same", "worse", "too few seeds"]
    parts = [
        f"# Choose, weigh, train, certify: which parts pay\n\n{numbered}",
        f"\n## Effect of each part\n\n{EFFECT_NOTE}\n",
        markdown_table(titles, rows),
        f"\n## Effect of choosing\n\n{CHOOSE_NOTE}\n",
        markdown_table(["strategy", *counted], chosen),
        "\n## By strategy\n",
        markdown_table(["effect", *counted], strategies),
        "\n## The best combinations\n\nAgainst the recommended strategy without weights, trained on the mean, "
        f"or random where that was not run ({', '.join(references)}), by the mean difference.\n",
        markdown_table(["combination", *counted], combinations),
        f"\n## Do the notes predict the error?\n\n{PREDICTION_NOTE}\n",
        markdown_table(["note", "mean", "range over experiments", "different from 0"], predicted),
        f"\nThe runs took {found.minutes:,.0f} minutes of training, reading and choosing, by the clock of one process. "
        f"Made by `{command}`.\n",
    ]
    return "\n".join(parts)


def as_json(found: Findings) -> dict[str, Any]:
    """All numbers of the page."""

    def effects(family: Sequence[Effect]) -> list[dict[str, Any]]:
        return [
            {
                "experiment": one.experiment,
                "effect": one.name,
                "difference": one.test.difference,
                "seeds": one.test.seeds,
                "p": _number(one.test.p),
                "holm": _number(one.p),
                "outcome": one.outcome,
            }
            for one in family
        ]

    return {
        "runs": found.runs,
        "labels": list(found.labels),
        "expected": found.expected,
        "minutes": found.minutes,
        "main": effects(found.effects["main"]),
        "by_strategy": effects(found.effects["simple"]),
        "interactions": effects(found.effects["crossed"]),
        "choose": effects(found.effects["chosen"]),
        "combinations": effects(found.effects["combinations"]),
        "over_all_sets": {name: effects(family) for name, family in found.overall.items()},
        "references": {name: label_of(cell) for name, cell in found.references.items()},
        "predictions": [
            {"experiment": one.experiment, "note": one.note, "correlation": one.test.difference, "holm": _number(one.p)}
            for one in found.predictions
        ],
    }


def _recommended(task: str, values: Values) -> Combination:
    """The recommended strategy without weights and with the mean, where it was run; else random."""
    cell = Combination(_recommended_strategy(task), "none", "mean")
    return cell if cell in values else RANDOM


def _recommended_strategy(task: str) -> str:
    """The recommended strategy of all batches but the first, which is random here."""
    recipe = recommend(Situation(model="network", task="regress" if task == "regress" else "classify")).recipe
    return recipe.rpartition("+")[2]


def _corrected(found: Sequence[Prediction]) -> list[Prediction]:
    values = holm([one.test.p for one in found])
    return [Prediction(one.experiment, one.note, one.test, p) for one, p in zip(found, values)]


def _pays(family: Sequence[Effect], every: Sequence[Effect]) -> str:
    """Whether a part pays, and where: by its effects on experiments and over all of a task."""
    if not family:
        return "was not run."
    if _open(family):
        verdict = FEW_SEEDS
    else:
        paid = [ALL_SETS[one.experiment] for one in every if one.outcome == "better"]
        cost = [ALL_SETS[one.experiment] for one in every if one.outcome == "worse"]
        stated = [f"{verb} over {' and '.join(where)}" for verb, where in (("pays", paid), ("costs", cost)) if where]
        verdict = ", ".join(stated) or "makes no measurable difference over all sets together"
        where = [one.experiment.rpartition("/")[0] for one in family if one.outcome == "better"]
        not_where = [one.experiment.rpartition("/")[0] for one in family if one.outcome == "worse"]
        each = [f"{word} on {', '.join(names)}" for word, names in (("better", where), ("worse", not_where)) if names]
        verdict += f"; {', '.join(each)}" if each else "; better or worse on no single one"
    means = [f"{_interval_text(one)} {UNIT[one.experiment]}" for one in every]
    return f"{verdict}; on average {', '.join(means)}; {many(len(family), 'experiment')}."


def _chosen(found: Findings) -> str:
    """Which strategies pay, over all experiments of a task."""
    stated = []
    for task in ALL_SETS:
        each = sorted(
            (one for one in found.overall["chosen"] if one.experiment == task),
            key=lambda one: -one.test.difference,
        )
        if not each:
            continue
        if _open(each):
            return f"{FEW_SEEDS}."
        parts = []
        for outcome, verb in (
            ("better", "better than random"),
            ("worse", "worse"),
            ("same", "no measurable difference"),
        ):
            names = [
                f"{one.name.removeprefix('choose ')} ({one.test.difference:+.2f})"
                for one in each
                if one.outcome == outcome
            ]
            if names:
                parts.append(f"{verb}: {', '.join(names)}")
        stated.append(f"over {ALL_SETS[task]}, in {UNIT[task]}, {'; '.join(parts)}")
    return f"{'. '.join(one[0].upper() + one[1:] for one in stated)}." if stated else "only random was run."


def _worded(name: str) -> str:
    """The name of an effect or of a combination as it is read."""
    return name.replace("weigh own", WORDS["weigh own"])


def _open(family: Sequence[Effect]) -> bool:
    """Whether no test of a family can pass, with the seeds there are."""
    return all(one.outcome == "open" for one in family)


def _by_strategy(every: Sequence[Effect]) -> str:
    """For which strategies a part pays, over all experiments of a task."""
    if _open(every):
        return f"There is no verdict by strategy: {FEW_SEEDS}."
    stated = []
    for outcome, verb in (("better", "gain"), ("worse", "lose")):
        each = sorted((one for one in every if one.outcome == outcome), key=lambda one: -abs(one.test.difference))
        names = ", ".join(
            f"{_worded(one.name)} ({one.test.difference:+.2f} {UNIT[one.experiment]})" for one in each[:3]
        )
        if names:
            stated.append(f"{len(each)} of {len(every)} pairs of a strategy and a part {verb}, most {names}")
    if not stated:
        return "For no single strategy does a part make a measurable difference over all sets."
    return f"By strategy, over all sets of a task: {'; '.join(stated)}."


def _interactions(every: Sequence[Effect]) -> str:
    """Whether weights help more or less under primal-dual training, over all experiments of a task."""
    if _open(every):
        return f"Whether weights and primal-dual training interact is open: {FEW_SEEDS}."
    passed = [one for one in every if one.outcome in ("better", "worse")]
    if not passed:
        return "Weights and primal-dual training do not interact measurably over all sets: their effects add up."
    named = "; ".join(
        f"{_worded(one.name)} over {ALL_SETS[one.experiment]}, {'more' if one.outcome == 'better' else 'less'} than "
        f"the sum ({_plain_text(one)} {UNIT[one.experiment]})"
        for one in passed
    )
    return f"Weights and primal-dual training interact: {named}."


def _combinations(found: Findings) -> str:
    """Whether a combination earns the place of the recommendation: better over all sets of a task, worse on none."""
    every = found.overall["combinations"]
    if not every or _open(every):
        return f"Whether a combination beats the recommended strategy is open: {FEW_SEEDS}."
    worse = {(found.tasks[one.experiment], one.name) for one in found.effects["combinations"] if one.outcome == "worse"}
    stated = []
    for task, title in ALL_SETS.items():
        wins = sorted(
            (
                one
                for one in every
                if one.experiment == task and one.outcome == "better" and (task, one.name) not in worse
            ),
            key=lambda one: -one.test.difference,
        )
        if wins:
            named = "; ".join(f"{_worded(one.name)} ({_plain_text(one)} {UNIT[task]})" for one in wins[:3])
            stated.append(f"better than {_reference(found, task)} over {title}, and worse on none: {named}")
        elif any(one.experiment == task for one in every):
            stated.append(f"over {title} no combination is better than {_reference(found, task)} without losing on one")
    text = "; ".join(stated)
    return f"{text[0].upper()}{text[1:]}."


def _reference(found: Findings, task: str) -> str:
    """What the combinations of a task are compared with: random on sets where the recommended strategy was not run."""
    chosen = {cell.choose for name, cell in found.references.items() if found.tasks[name] == task}
    if chosen == {_recommended_strategy(task)}:
        return f"the recommended strategy ({', '.join(chosen)})"
    return (
        f"{' or '.join(sorted(chosen))} (the recommended strategy, {_recommended_strategy(task)}, was not run on each)"
    )


def _ranked(family: Sequence[Effect]) -> list[tuple[str, list[Effect]]]:
    """Effects by name, those that were measured on most experiments and have the largest mean first."""
    by_name: dict[str, list[Effect]] = {}
    for one in family:
        by_name.setdefault(one.name, []).append(one)
    return sorted(by_name.items(), key=lambda pair: -float(np.mean([one.test.difference for one in pair[1]])))


def _predicts(found: Sequence[Prediction], what: str, names: Sequence[str]) -> str:
    best, each = "", list[Prediction]()
    for name in names:
        some = [one for one in found if one.note == name]
        if some and (not each or abs(_mean(some)) > abs(_mean(each))):
            best, each = name, some
    if not each:
        return f"Whether {what} predicts the error on the pool is open: no runs have it."
    if all(math.isnan(one.test.p) for one in each):
        return f"Whether {what} predicts the error on the pool is open: {FEW_SEEDS}."
    mean, passed = _mean(each), sum(one.p <= LEVEL for one in each)
    verdict = "predicts" if abs(mean) >= USEFUL and passed > len(each) / 2 else "does not predict"
    return (
        f"Among runs with equally many labels {what} {verdict} the error on the pool: its best number, {best}, has a "
        f"rank correlation of {mean:+.2f} on average, different from 0 on {passed} of {many(len(each), 'experiment')}."
    )


def _mean(each: Sequence[Prediction]) -> float:
    return float(np.mean([one.test.difference for one in each]))


def _counts(each: Sequence[Effect], every: Sequence[Effect]) -> list[str]:
    """How many effects of one name have which outcome, and the effect over all sets of each task."""
    outcome = Counter(one.outcome for one in each)
    by_task = {one.experiment: one for one in every if one.name == each[0].name}
    counts = [str(outcome[kind]) for kind in ("better", "same", "worse", "open")]
    return [*(_interval_text(by_task.get(task)) for task in ALL_SETS), *counts]


def _effect_text(one: Effect | None) -> str:
    if one is None:
        return "–"
    return f"{one.test.difference:+.2f}{' (' + one.outcome + ')' if one.outcome in ('better', 'worse') else ''}"


def _interval_text(one: Effect | None) -> str:
    if one is None:
        return "–"
    verdict = f" ({one.outcome})" if one.outcome in ("better", "worse") else ""
    return f"{_plain_text(one)}{verdict}"


def _plain_text(one: Effect) -> str:
    return f"{one.test.difference:+.2f} ± {one.half_width:.2f}"


def _number(value: float) -> float | None:
    return None if math.isnan(value) else value
