"""Recommendations: the findings for each situation, computed from the kept records of benchmarks.

`scripts/make_recommendations.py` writes it to labelwise/recommend/findings.json; the rule that chooses is in
labelwise/recommend/findings.py.
"""

from __future__ import annotations

import functools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labelwise import strategies
from labelwise.bench.report.load_runs import (
    RECORDS,
    experiment_of,
    finished_runs,
    goals_of,
    source_of,
    training_rules,
)
from labelwise.bench.suite.suite import Suite
from labelwise.errors import StoreError
from labelwise.recommend import Tried, eligible, recipe_of
from labelwise.recommend.situation import COLD, COLD_NUMBERS, SITUATIONS
from labelwise.signals.spec import Basis, Embedding, Features, Label, Weight
from labelwise.stats.curves import Curves, learning_curves
from labelwise.stats.paired import holm, least_p, paired
from labelwise.stats.record import Record
from labelwise.stats.savings import labels_saved
from labelwise.stats.summary import no_learning_warning
from labelwise.stats.verdict import ORACLE, Verdict, verdicts

AGAINST = "random"
DIGITS = 4
DRAWS = 100  # of the bootstrap, whose interval is not used here


@dataclass(frozen=True)
class Where:
    """The records of a situation.

    Attributes:
        folders: in the folder of results.
        instead: taken where none of `folders` has records.
        metric: of the experiments that count.
        datasets: their names; None counts all.
        model_free: whether only strategies count that read nothing but embeddings.
        first: whether the first model alone decides, and not the whole curve.
        whole: the folder of runs of whole recipes, with seeds that chose nothing.
    """

    folders: tuple[str, ...]
    instead: tuple[str, ...] = ()
    metric: str = "accuracy"
    datasets: tuple[str, ...] | None = None
    model_free: bool = False
    first: bool = False
    whole: str = ""


WHOLE = "recommended"
WHERE = {
    "network": Where(("core",), whole=WHOLE),
    "embeddings": Where(("core",), model_free=True, whole=WHOLE),
    COLD: Where(("cold",), first=True),
    COLD_NUMBERS: Where(("cold-regression",), metric="rmse", first=True),
    "regression": Where(("regression",), instead=("core",), metric="rmse"),
    "trees": Where(("trees",)),
    "many-classes": Where(("core", "texts"), datasets=("banking77", "clinc150"), whole=WHOLE),
}


@dataclass(frozen=True)
class RunCurves:
    """A folder of results: the curves of each strategy by experiment, of those that count, and the configurations."""

    folder: str
    experiments: dict[str, dict[str, Curves]]
    suites: tuple[Suite, ...]


@dataclass(frozen=True)
class Outcome:
    """A strategy on one experiment."""

    strategy: str
    share: float  # of labels saved
    found: Verdict


def findings_from(results: Path) -> dict[str, Any]:
    """The content of findings.json: every situation that has records in this folder of results."""
    read = functools.cache(lambda folder: read_run_curves(results, folder))
    found = {name: _situation(where, read) for name, where in WHERE.items()}
    situations = {name: {"title": SITUATIONS[name], **one} for name, one in found.items() if one is not None}
    first = situations[COLD]["choice"] if COLD in situations else AGAINST
    for name, one in situations.items():
        one["confirmed"] = confirmed(recipe_of(first, one["choice"]), WHERE[name], one["sets"], read)
    return {"written by": "python scripts/make_recommendations.py", "situations": situations}


def confirmed(recipe: str, where: Where, names: Iterable[str], read: Any) -> dict[str, Any] | None:
    """The numbers of a whole recipe, after Holm's correction over the data sets.

    None where it did not run on all data sets of the experiments `names` of the situation, "folder/data/model".
    """
    run = read(where.whole) if where.whole and recipe != AGAINST else None
    if run is None:
        return None
    sets = {name: curves for name, curves in run.experiments.items() if _wanted(name, curves, where)}
    there = {name.partition("/")[0] for name, curves in sets.items() if recipe in curves}
    if not sets or not there >= {name.split("/")[-2] for name in names}:
        return None
    found = over_data_sets(recipe, list(sets.values()))
    seeds = min(one.found.test.seeds for one in found)
    return {"records": f"docs/results/{run.folder}", "seeds": seeds, "tried": asdict(_tried(recipe, found))}


def over_data_sets(recipe: str, sets: Sequence[Mapping[str, Curves]]) -> list[Outcome]:
    """A recipe against random on each data set, after Holm's correction over the data sets."""
    tests = [paired(curves[recipe], curves[AGAINST]) for curves in sets]
    corrected, least = holm([test.p for test in tests]), holm([least_p(test.seeds) for test in tests])
    return [
        Outcome(recipe, _share(curves, recipe), Verdict(test, p, low, len(tests)))
        for curves, test, p, low in zip(sets, tests, corrected, least)
    ]


def read_run_curves(results: Path, folder: str) -> RunCurves | None:
    """The finished runs in a folder of results; None where there are no records."""
    if not (results / folder / RECORDS).is_file():
        return None
    source = source_of(results / folder)
    if not source.records:
        raise StoreError(f"{results / folder / RECORDS}: records were expected, found none")
    by_name: dict[str, list[Record]] = {}
    for record in source.records:
        by_name.setdefault(experiment_of(record), []).append(record)
    goals = goals_of([source])
    finished = {name: finished_runs(name, records, goals).records for name, records in by_name.items()}
    return RunCurves(
        folder,
        {
            name: learning_curves(records, "accuracy" if "accuracy" in records[0].metrics else "rmse")
            for name, records in sorted(finished.items())
            if records and not no_learning_warning(records)
        },
        source.suites,
    )


def outcomes(curves: Mapping[str, Curves], first: bool = False) -> list[Outcome]:
    """Every registered strategy of an experiment against random; with `first`, by the first model alone."""
    share = _first_share if first else _share
    tests = _first_verdicts(curves) if first else verdicts(curves, AGAINST)
    return [Outcome(name, share(curves, name), found) for name, found in tests.items() if name in strategies.ALL]


def tried_from(outcomes_by_set: Sequence[Sequence[Outcome]]) -> tuple[Tried, ...]:
    """What the outcomes on several sets say about each strategy, the highest median first."""
    by_strategy: dict[str, list[Outcome]] = {}
    for one in (outcome for each in outcomes_by_set for outcome in each):
        by_strategy.setdefault(one.strategy, []).append(one)
    found = [_tried(name, each) for name, each in by_strategy.items()]
    return tuple(sorted(found, key=lambda one: (-one.saved, one.strategy)))


def _situation(where: Where, read: Any) -> dict[str, Any] | None:
    runs = [run for run in map(read, where.folders) if run is not None]
    runs = runs or [run for run in map(read, where.instead) if run is not None]
    by_set = {
        f"{run.folder}/{name}": [one for one in outcomes(curves, where.first) if _counts(one.strategy, where)]
        for run in runs
        for name, curves in run.experiments.items()
        if _wanted(name, curves, where)
    }
    tried = tried_from(list(by_set.values()))
    if not tried:
        return None
    best = eligible(tried, len(by_set))
    return {
        "choice": best[0].strategy if best else AGAINST,
        "records": [f"docs/results/{run.folder}" for run in runs],
        "sets": list(by_set),
        "seeds": min(one.found.test.seeds for each in by_set.values() for one in each),
        "training": training_rules(((run.folder, run.suites) for run in runs), by_set),
        "tried": [asdict(one) for one in tried],
    }


def _wanted(name: str, curves: Mapping[str, Curves], where: Where) -> bool:
    """Whether an experiment counts in a situation."""
    of_data = where.datasets is None or name.partition("/")[0] in where.datasets
    return AGAINST in curves and curves[AGAINST].metric.name == where.metric and of_data


def _counts(strategy: str, where: Where) -> bool:
    if not where.model_free:
        return True
    needs = strategies.get(strategy).needs
    free = Embedding | Features | Basis | Label | Weight
    return all(isinstance(signal, free) for signal in needs.pool + needs.labelled)


def _tried(name: str, each: Sequence[Outcome]) -> Tried:
    shares = [one.share for one in each]
    return Tried(
        strategy=name,
        saved=round(statistics.median(shares), DIGITS),
        low=round(min(shares), DIGITS),
        high=round(max(shares), DIGITS),
        sets=len(each),
        better=sum(one.found.outcome == "better" for one in each),
        below=sum(one.found.single == "worse" for one in each),
        lower=sum(one.found.test.difference < 0 for one in each),
        open=sum(one.found.single == "open" for one in each),
    )


def _first_verdicts(by_strategy: Mapping[str, Curves]) -> dict[str, Verdict]:
    """The verdicts on the first models alone."""
    first = {
        name: replace(lines, labels_T=lines.labels_T[:1], values_ST=lines.values_ST[:, :1])
        for name, lines in by_strategy.items()
        if name != ORACLE
    }
    return verdicts(first, AGAINST)


def _share(by_strategy: Mapping[str, Curves], name: str) -> float:
    """Labels saved at the best level that both reach."""
    return labels_saved(by_strategy[name], by_strategy[AGAINST], draws=DRAWS).share


def _first_share(by_strategy: Mapping[str, Curves], name: str) -> float:
    """Labels saved at the level of the better of the two first models: what the first batch is worth."""
    one, random = by_strategy[name], by_strategy[AGAINST]
    levels = [float(lines.values_ST[:, 0].mean()) for lines in (one, random)]
    if levels[0] == levels[1]:
        return 0.0
    best = max(levels) if one.metric.higher else min(levels)
    return labels_saved(one, random, level=best, draws=DRAWS).share
