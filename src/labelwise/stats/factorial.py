"""Factorial comparison of recipes: the effect of each part, interactions, and whether a note predicts the error.

A cell is a combination of parts, run on several experiments (a data set and a model) with the same seeds. The value of
a run is its area under the curve: in points for shares such as accuracy, in percent of the reference's area, fewer
being better, for errors such as RMSE. Positive differences are improvements.

Effects are differences between two levels of a part, averaged over all combinations of the other parts that have both;
one number for each seed and experiment, and a paired test over seeds. An interaction is the difference of two effects.
An effect over all experiments of a task is their mean, seed by seed: one test where there would be many small ones.
Holm's correction is over all tests of one family. The test is Student's at any number of seeds, not the flipped signs
of paired.py: with ten seeds their p is at least 0.002, which in a family of more than 25 tests can never pass.

Whether a note of the fits, such as the share of the pool that labels see, predicts the error is measured among runs of
one experiment with equally many labels, so that the number of labels cannot make them agree: Spearman's rank
correlation, averaged over label counts, one for each seed, and the same test of its mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from labelwise.stats.curves import Array, Curves, area, half_width
from labelwise.stats.paired import LEAST, Paired, holm, t_test
from labelwise.stats.record import Record
from labelwise.stats.verdict import LEVEL

FEWEST_RUNS = 5  # of a rank correlation


@dataclass(frozen=True)
class Combination:
    """A combination of parts. `weigh` is "none", "sabal", or "own" for weights by law or by density.

    >>> Combination.of("badge | weigh density | train weighted | certify basis")
    Combination(choose='badge', weigh='own', train='mean')
    >>> Combination.of("badge") is None
    True
    """

    choose: str
    weigh: str
    train: str

    @staticmethod
    def of(recipe: str) -> Combination | None:
        """The cell of a recipe; None for one that does not name its weights and its training."""
        choose, *parts = (part.strip() for part in recipe.split("|"))
        found = dict(part.split(" ", 1) for part in parts if " " in part)
        if not {"weigh", "train"} <= set(found):
            return None
        weigh = found["weigh"] if found["weigh"] in ("none", "sabal") else "own"
        return Combination(choose, weigh, found["train"] if found["train"] == "primal-dual" else "mean")


Values = Mapping[Combination, Mapping[int, float]]  # by cell and seed: the value of a run, more is better


@dataclass(frozen=True)
class Effect:
    """A difference between levels of a part on one experiment, with its test."""

    experiment: str
    name: str
    test: Paired
    p: float = math.nan  # after Holm's correction
    by_seed: Mapping[int, float] = field(default_factory=dict)

    @property
    def half_width(self) -> float:
        """Half of the 95 % interval of the difference, without correction; NaN for one seed."""
        return float(half_width(np.array(list(self.by_seed.values()))))

    @property
    def outcome(self) -> str:
        """ "better", "worse", "same", or "open" with too few seeds for any outcome."""
        if self.test.seeds < LEAST:
            return "open"
        if not self.p <= LEVEL:
            return "same"
        return "better" if self.test.difference > 0 else "worse"


def values_of(curves: Mapping[str, Curves], reference: Combination) -> dict[Combination, dict[int, float]]:
    """The values of the cells of one experiment; `reference` has 100 % of the error in one that is measured by it."""
    found: dict[Combination, dict[int, float]] = {}
    for recipe, one in curves.items():
        cell = Combination.of(recipe)
        if cell is not None:
            found[cell] = dict(zip(one.seeds, area(one).tolist()))
    metric = next(iter(curves.values())).metric
    if metric.higher:
        return {cell: {seed: 100 * value for seed, value in runs.items()} for cell, runs in found.items()}
    whole = found.get(reference, {})
    return {
        cell: {seed: -100 * value / whole[seed] for seed, value in runs.items() if whole.get(seed)}
        for cell, runs in found.items()
    }


def effect(
    experiment: str, name: str, values: Values, pairs: Sequence[tuple[Combination, Combination]]
) -> Effect | None:
    """The mean over pairs of cells of the first one less the second, by seed; None where no pair was run."""
    there = [(one, other) for one, other in pairs if one in values and other in values]
    seeds = _shared(values, [cell for pair in there for cell in pair])
    if not there or not seeds:
        return None
    return _tested(
        experiment,
        name,
        {seed: float(np.mean([values[a][seed] - values[b][seed] for a, b in there])) for seed in seeds},
    )


def main_effects(experiments: Mapping[str, Values], part: str, level: str, against: str) -> list[Effect]:
    """The effect of a level of a part against another one, on each experiment, averaged over all other parts."""
    found = (
        effect(name, f"{part} {level}", values, _pairs(values, part, level, against))
        for name, values in experiments.items()
    )
    return [one for one in found if one is not None]


def simple_effects(experiments: Mapping[str, Values], part: str, level: str, against: str) -> list[Effect]:
    """The same effects for each strategy that chooses."""
    found = []
    for name, values in experiments.items():
        for choose in dict.fromkeys(cell.choose for cell in values):
            pairs = [pair for pair in _pairs(values, part, level, against) if pair[0].choose == choose]
            found.append(effect(name, f"{choose} | {part} {level}", values, pairs))
    return [one for one in found if one is not None]


def interaction(experiments: Mapping[str, Values], weigh: str) -> list[Effect]:
    """By how much weights help more under primal-dual training than under the mean, averaged over strategies."""
    found = []
    for name, values in experiments.items():
        rows = []
        for choose in dict.fromkeys(cell.choose for cell in values):
            four = [Combination(choose, w, t) for t in ("primal-dual", "mean") for w in (weigh, "none")]
            if all(cell in values for cell in four):
                rows.append(four)
        seeds = _shared(values, [cell for four in rows for cell in four])
        if rows and seeds:
            crossed = {
                s: float(np.mean([values[a][s] - values[b][s] - values[c][s] + values[d][s] for a, b, c, d in rows]))
                for s in seeds
            }
            found.append(_tested(name, f"weigh {weigh} x train primal-dual", crossed))
    return found


def overall(family: Sequence[Effect], group: Callable[[str], str]) -> list[Effect]:
    """The effects of one name over all experiments of a group, such as those of one task: their mean by seed.

    Args:
        family: effects on single experiments.
        group: the group of an experiment, which takes its place in the result. An effect that was not measured on every
            experiment that the family has of the group is left out: its mean would be of other experiments.

    Returns:
        One effect for each name and group, over the seeds that all its experiments have.
    """
    members: dict[str, set[str]] = {}
    for one in family:
        members.setdefault(group(one.experiment), set()).add(one.experiment)
    by_name: dict[tuple[str, str], list[Effect]] = {}
    for one in family:
        by_name.setdefault((group(one.experiment), one.name), []).append(one)
    found = []
    for (where, name), each in by_name.items():
        seeds = set.intersection(*(set(one.by_seed) for one in each))
        if len(each) == len(members[where]) and seeds:
            mean = {seed: float(np.mean([one.by_seed[seed] for one in each])) for seed in sorted(seeds)}
            found.append(_tested(where, name, mean))
    return found


def against_reference(experiments: Mapping[str, Values], reference: Callable[[str], Combination]) -> list[Effect]:
    """Every other cell against the reference of its experiment."""
    found = []
    for name, values in experiments.items():
        base = reference(name)
        found += [effect(name, label_of(cell), values, [(cell, base)]) for cell in values if cell != base]
    return [one for one in found if one is not None]


def corrected(family: Sequence[Effect]) -> list[Effect]:
    """The effects with Holm's p values over the family."""
    return [replace(one, p=p) for one, p in zip(family, holm([one.test.p for one in family]))]


def label_of(cell: Combination) -> str:
    """A cell in the words of a recipe; "own" weights are those by law or density."""
    return f"{cell.choose} | weigh {cell.weigh} | train {cell.train}"


@dataclass(frozen=True)
class Prediction:
    """Spearman's rank correlation of a note with the error, on one experiment; negative where more is better."""

    experiment: str
    note: str
    test: Paired  # the mean over seeds, and the test that it is 0
    p: float = math.nan


def predictions(
    experiment: str,
    records: Iterable[Record],
    notes: Mapping[str, Callable[[Record], float | None]],
    error: Callable[[Record], float | None],
) -> list[Prediction]:
    """How each note goes with the error among runs of equally many labels.

    Args:
        experiment: its name.
        records: its records.
        notes: by name, the note of a record; None where it has none.
        error: the error of a record, less being better; None leaves the record out.
    """
    groups: dict[tuple[int, int], list[tuple[Record, float]]] = {}
    for record in records:
        if (missed := error(record)) is not None:
            groups.setdefault((record.seed, record.labels), []).append((record, missed))
    found = []
    for name, note in notes.items():
        by_seed: dict[int, list[float]] = {}
        for (seed, _), group in groups.items():
            both = [(value, missed) for record, missed in group if (value := note(record)) is not None]
            rho = spearman([one for one, _ in both], [other for _, other in both])
            if len(both) >= FEWEST_RUNS and not math.isnan(rho):
                by_seed.setdefault(seed, []).append(rho)
        if by_seed:
            found.append(Prediction(experiment, name, _test([float(np.mean(values)) for values in by_seed.values()])))
    return found


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation, ties by their mean rank; NaN where one of the two does not vary.

    >>> spearman([1, 2, 3, 4], [1, 2, 4, 3])
    0.8
    """
    a, b = _ranks(np.asarray(x, np.float64)), _ranks(np.asarray(y, np.float64))
    a, b = a - a.mean() if len(a) else a, b - b.mean() if len(b) else b
    size = math.sqrt(float(a @ a) * float(b @ b))
    return round(float(a @ b) / size, 12) if size > 0 else math.nan


def _ranks(x: Array) -> Array:
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    ranks: Array = (np.cumsum(count) - (count - 1) / 2)[place]
    return ranks


def _tested(experiment: str, name: str, by_seed: Mapping[int, float]) -> Effect:
    return Effect(experiment, name, _test(list(by_seed.values())), by_seed=by_seed)


def _test(differences: Sequence[float]) -> Paired:
    """Student's paired t-test at any number of seeds from LEAST on; why is in the head of this file."""
    difference_S = np.array(differences)
    p = t_test(difference_S) if len(difference_S) >= LEAST else math.nan
    return Paired(float(difference_S.mean()), p, len(difference_S))


def _pairs(values: Values, part: str, level: str, against: str) -> list[tuple[Combination, Combination]]:
    """Cells with this level of a part, each with the cell that has the other level and the same other parts."""
    return [(cell, replace(cell, **{part: against})) for cell in values if getattr(cell, part) == level]


def _shared(values: Values, cells: Sequence[Combination]) -> list[int]:
    """The seeds that all these cells have."""
    seeds = [set(values[cell]) for cell in cells]
    return sorted(set.intersection(*seeds)) if seeds else []
