"""What the numbers of a paper's table decide: by paired tests, not with few seeds, not between equal picks."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from labelwise.reproduce import verdicts
from labelwise.reproduce.ally.claims import areas, baselines, clusters, labels_to_97, tightness
from labelwise.reproduce.dynamical.figures import _agreement, _highest
from labelwise.reproduce.records import fewer_seeds, same_picks, sizes
from labelwise.reproduce.verdicts import Stat, among_two, stat_of
from labelwise.stats.curves import learning_curves
from labelwise.stats.paired import t_test
from labelwise.stats.record import Record, read_records

WOBBLE = (-0.4, 0.1, 0.3, -0.2, 0.2, 0.0, -0.1, 0.1, 0.4, -0.4)


def stat(mean, wobble=1.0, seeds=5, shift=0):
    """A mean over seeds; numbers with another shift wobble otherwise."""
    values = [mean + wobble * WOBBLE[(seed + shift) % len(WOBBLE)] for seed in range(seeds)]
    centre = mean - sum(values) / seeds
    return stat_of(value + centre for value in values)


def rounds(gaps, seeds=5, others=("Random",), wobble=1.0):
    """A table by round in which dynamicAL lies so far above the others."""
    return {
        str(t): {
            "dynamicAL": stat(30 + gap, wobble, seeds),
            **{name: stat(30.0, wobble, seeds, 1 + place) for place, name in enumerate(others)},
        }
        for t, gap in enumerate(gaps)
    }


# --- tests by seed ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gaps", "wobble", "holds"),
    [
        ((0, 2, 2), 1.0, True),
        ((0, 2, 2), 9.0, None),  # the same means, and more noise
        ((0, 0.2, 2), 1.0, None),
        ((0, -2, 2), 1.0, False),
        ((0, 2, -0.2), 1.0, None),
    ],
)
def test_a_claim_on_rounds_is_tested_by_seed_in_each(gaps, wobble, holds):
    for low in ("Random", None):
        answer, shown = verdicts.every_round("dynamicAL", 1, low).ask(rounds(gaps, wobble=wobble))
        assert answer is holds
        assert f"by {gaps[-1]:+.2f} points in the last round" in shown
        assert "paired t-test, 5 seeds, Holm's correction for 2 comparisons" in shown


def test_holm_counts_every_comparison_of_a_claim():
    """One comparison at p = 0.02 passes alone, and fails as one of four."""
    seeds = np.arange(5)
    steps = {"easy": 0.01 * seeds, "close": np.array([-1.0, 0.0, 1.0, 2.0, 3.0])}
    tests = {name: t_test(1.2 + shift) for name, shift in steps.items()}
    assert 0.0125 < tests["close"] < 0.05
    row = {"dynamicAL": stat_of(31.2 + 0 * seeds), "easy": stat_of(30 - steps["easy"])}
    close = {**row, "close": stat_of(30 - steps["close"])}
    for table, holds in (({"1": {**close, "easy": close["close"]}}, True), ({"1": close, "2": close}, None)):
        low = "easy" if holds else None
        answer, shown = verdicts.every_round("dynamicAL", 1, low).ask(table)
        assert answer is holds
        assert ("Holm's correction for 4 comparisons" in shown) is (holds is None)


def test_ten_seeds_are_tested_by_flipped_signs():
    answer, shown = verdicts.above("MNIST", "a", "b").ask({"MNIST": {"a": stat(90, seeds=10), "b": stat(88, seeds=10)}})
    assert answer is True
    assert shown.endswith("p = 0.002, paired sign-flip test, 10 seeds")


def test_the_paper_is_asked_by_its_means():
    paper = {"1": {"dynamicAL": Stat(31.0, 1.0), "Random": Stat(30.0, 1.0)}}
    text = verdicts.claims_text([verdicts.every_round("dynamicAL", 1, None)], rounds((0, 1), wobble=9), paper)
    assert ": **cannot be said** (by +1.00 points in the last round; p = " in text
    assert text.endswith("by the paper's own means it holds (by +1.00 points in the last round).")


def test_every_other_claim():
    row = {"Greedy": stat(90.0), "BADGE": stat(91.0, shift=1), "Random": stat(88.0, shift=2)}
    noisy = {"Greedy": stat(90.0, 20), "BADGE": stat(91.0, 20, shift=1), "Random": stat(88.0, 20, shift=2)}
    for claim, quiet in (
        (verdicts.below_all("MNIST"), True),
        (verdicts.above("MNIST", "BADGE", "Greedy"), True),
        (verdicts.above("MNIST", "Greedy", "BADGE"), False),
        (verdicts.not_below("MNIST", ("Greedy",), "BADGE"), False),
        (verdicts.best("MNIST", ("Greedy",)), False),
        (verdicts.best("MNIST", ("BADGE",)), True),
    ):
        assert claim.ask({"MNIST": row})[0] is quiet, claim.text
        assert claim.ask({"MNIST": noisy})[0] is None, claim.text
    near = {**row, "Greedy": stat(91.0, shift=1)}
    assert verdicts.not_below("MNIST", ("Greedy",), "BADGE").ask({"MNIST": near})[0] is True


RESULTS = Path(__file__).parents[2] / "docs" / "results" / "papers"


@pytest.mark.parametrize(("table", "holds", "p"), [("table2", None, 0.101), ("table3", True, 0.0009)])
def test_the_two_tables_whose_verdicts_contradicted_their_numbers(table, holds, p):
    """Over all rounds dynamicAL differs from random with p = 0.10 in table 2, and with p = 0.001 in table 3."""
    records = read_records(RESULTS / f"dynamical-{table}.jsonl.gz")
    found = learning_curves(records)
    shift_S = found["dynamicAL"].values_ST[:, 1:].mean(1) - found["Random"].values_ST[:, 1:].mean(1)
    assert t_test(shift_S) == pytest.approx(p, rel=0.05)
    rows = {
        str(t): {name: stat_of(100 * lines.values_ST[:, t], lines.seeds) for name, lines in found.items()}
        for t in range(5)
    }
    assert verdicts.every_round("dynamicAL", 3, "Random").ask(rows)[0] is holds


# --- few seeds -------------------------------------------------------------------------------------------------------


def test_few_seeds_decide_nothing_and_their_numbers_are_shown():
    one = rounds((0, 3.72, -0.34), seeds=1)
    assert verdicts.every_round("dynamicAL", 1, "Random").ask(one) == (
        None,
        "1 seed, 5 or more are needed; by -0.34 points in the last round; not in round 2",
    )
    answer, shown = verdicts.best("2", ("dynamicAL",), "round ").ask(one)
    assert answer is None
    assert shown == "1 seed, 5 or more are needed; highest: Random 30.00, then dynamicAL 29.66"
    row = {"MNIST": {"Greedy": stat(90.0, seeds=4), "Random": stat(88.0, seeds=4)}}
    for claim in (verdicts.below_all("MNIST"), verdicts.above("MNIST", "Greedy", "Random")):
        assert claim.ask(row)[0] is None
        assert claim.ask(row)[1].startswith("4 seeds, 5 or more are needed; ")
        assert "88.00" in claim.ask(row)[1]
    budget = {"R=2": {"SVHN": stat(75.0, seeds=1)}, "R=1": {"SVHN": stat(70.0, seeds=1)}}
    assert verdicts.falling("SVHN", ("R=2", "R=1")).ask(budget) == (
        None,
        "1 seed, 5 or more are needed; R=2: 75.00, R=1: 70.00",
    )


def test_the_band_names_the_rows_it_is_of():
    paper = {row: {"Random": Stat(86.0, 1.0)} for row in ("MNIST", "SVHN")}
    ours = {"MNIST": {"Random": Stat(85.0, 1.0, 3)}, "SVHN": {"Random": Stat(83.0, None, 1)}}
    assert verdicts.near(ours, paper).startswith("1 of 1 means on MNIST, the rows with several seeds, are within")
    assert verdicts.near({**ours, "SVHN": {"Random": Stat(83.0, 1.0, 3)}}, paper).startswith("1 of 2 means are within")


# --- equal picks -----------------------------------------------------------------------------------------------------


def ran(picks, first=None, by="area"):
    """Runs of one seed with these picks by method and batch, and these accuracies of the first model."""
    records = [
        Record(f"MNIST/m/{name}/0", name, 0, t, 10, {"accuracy": (first or {}).get(name, 0.5)}, picked=batch)
        for name, batches in picks.items()
        for t, batch in enumerate([*batches, []])
    ]
    sheet = SimpleNamespace(name="MNIST", row="MNIST", seeds=2)
    return SimpleNamespace(sheet=sheet, records=records)


def test_methods_that_made_the_same_picks_are_not_compared():
    one = ran({"IHT": [[1, 2], [3]], "IHT, bias only": [[2, 1], [3]], "Variance only": [[1, 2], [4]]})
    same = same_picks([one], "area")
    assert same == {("MNIST", frozenset({"IHT", "IHT, bias only"})): 2}
    assert set(same_picks([one], "round")) == {(str(t), frozenset({"IHT", "IHT, bias only"})) for t in range(3)}
    row = {name: stat(20.59) for name in ("IHT", "IHT, bias only", "Variance only")}
    answer, shown = verdicts.above("MNIST", "IHT", "IHT, bias only").ask({"MNIST": row}, same)
    assert answer is None
    assert "made the same picks in all 2 batches" in shown
    answer, shown = verdicts.above("MNIST", "IHT", "Variance only").ask({"MNIST": row}, same)
    assert answer is None
    assert "same picks" not in shown


# --- figures ---------------------------------------------------------------------------------------------------------


def curves(levels, seeds=5):
    """Flat curves at these accuracies, seeds a hundredth apart."""
    return [
        Record(f"d/m/{name}/{seed}", name, seed, t, 10 * (t + 1), {"accuracy": level + 0.01 * seed})
        for name, level in levels.items()
        for seed in range(seeds)
        for t in range(2)
    ]


def test_more_clusters():
    names = ["1 cluster", "20 clusters", "50 clusters"]
    flat = clusters("mnist", names, curves(dict(zip(names, (0.80, 0.895, 0.894)))))
    assert "the more clusters the better: **does not hold** (1 cluster 82.00 ± 1.58, 20 clusters 91.50" in flat
    assert "the other way: 20 clusters to 50 clusters (p < 0.001); paired t-test" in flat
    assert "**holds**" in clusters("mnist", names, curves(dict(zip(names, (0.80, 0.85, 0.90)))))
    assert "**cannot be said** (1 seed, 5 or more are needed; " in clusters(
        "mnist", names, curves(dict(zip(names, (0.8, 0.85, 0.9))), 1)
    )


def test_bounds_and_baselines():
    found = curves({"epsilon=auto": 0.894, "epsilon=20.0": 0.892, "epsilon=0.05": 0.896})
    assert "epsilon=auto lies above epsilon=20.0 on mnist: **holds**" in tightness("mnist", found)
    assert "is epsilon=auto: **does not hold**" in tightness("mnist", found)
    found = curves({"badge": 0.914, "bait": 0.915, "ally": 0.89, "random": 0.88})
    assert baselines("mnist", 200, "mnist", found).count("**holds**") == 2
    assert "ally is among the two highest on svhn: **does not hold**" in baselines("svhn", 1000, "svhn", found)
    assert among_two("svhn", "badge").ask(areas("svhn", found))[0] is True
    assert "ally lies above random on digits" in baselines("svhn", 200, "digits", found)


def test_labels_to_the_papers_level():
    numbers = {
        "ally": {"mean": [0.8, 0.9], "labels_to_97": 180.0},
        "random": {"mean": [0.7, 0.8], "labels_to_97": None},
    }
    assert labels_to_97(numbers).endswith("that is to 87.3 %, by the mean curves: ally 180; not reached by random.")


def test_gammas_that_cannot_be_told_apart():
    def by_seed(mean):
        return [value / 100 for value in stat(100 * mean).by_seed.values()]

    areas = {"gamma=0": by_seed(0.92), "gamma=2": by_seed(0.92)[::-1], "random": by_seed(0.8)}
    assert "gamma = 2 highest: **cannot be said** (highest: " in _highest(areas)
    assert "highest: **does not hold**" in _highest({**areas, "gamma=0": by_seed(0.96)})
    assert "highest: **holds**" in _highest({**areas, "gamma=0": by_seed(0.85)})
    assert "(1 seed, 5 or more are needed; " in _highest({name: values[:1] for name, values in areas.items()})


def test_agreement_beyond_chance():
    text = _agreement({"a": 0.24, "b": -0.43, "c": 0.5}, 30)
    assert "beyond the 0.26 that 30" in text
    assert "a: tau = 0.24: **cannot be said**" in text
    assert "b: tau = -0.43: **does not hold: the orders are opposed**" in text
    assert "c: tau = 0.50: **holds**" in text
    assert "0.10 that 200" in _agreement({"a": 0.0}, 200)


def test_a_page_counts_the_seeds_that_it_shows(monkeypatch):
    monkeypatch.setattr("labelwise.reproduce.records.pool_rows", lambda sheet: 100)
    one = ran({"IHT": [[1]]})
    model = SimpleNamespace(kind="lenet5", parameters={})
    one.sheet.__dict__.update(data="mnist", valid=False, start=4, rounds=1, k=1, model=model)
    assert ", 1 seed of 2; lenet5" in sizes([one])
    one.sheet.seeds = 1
    assert ", 1 seed; lenet5" in sizes([one])
    assert fewer_seeds([one], {"MNIST": 3}) == ["MNIST: 1 seed where the paper has 3."]
    assert fewer_seeds([one], {"MNIST": 1}) == []
