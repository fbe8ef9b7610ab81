"""What the numbers of a paper's table may decide: not with one seed, not within noise, not between equal picks."""

from types import SimpleNamespace

import pytest

from labelwise.reproduce import verdicts
from labelwise.reproduce.ally.claims import among_two, areas, baselines, clusters, labels_to_97, tightness
from labelwise.reproduce.dynamical.figures import _agreement, _highest
from labelwise.reproduce.records import fewer_seeds, find_doubts, sizes
from labelwise.reproduce.verdicts import Doubt, Stat
from labelwise.stats.record import Record


def rounds(gaps, seeds=5, others=("Random",)):
    """A table by round in which dynamicAL lies so far above the others."""
    std = 1.0 if seeds > 1 else None
    return {
        str(t): {"dynamicAL": Stat(30 + gap, std, seeds), **{name: Stat(30.0, std, seeds) for name in others}}
        for t, gap in enumerate(gaps)
    }


# --- noise -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gaps", "apart", "holds"),
    [
        ((0, 2, 2), 0.0, True),
        ((0, 2, 2), 1.45, True),
        ((0, 2, 0.64), 1.45, None),
        ((0, 0.2, -0.2), 1.45, None),
        ((0, -2, 2), 1.45, False),
        ((0, 2, -0.2), 0.0, False),
        ((0, 0, 2), 0.0, False),
    ],
)
def test_differences_of_runs_that_should_be_equal_decide_nothing(gaps, apart, holds):
    doubt = Doubt({str(t): apart for t in range(3)})
    for low in ("Random", None):
        answer, shown = verdicts.every_round("dynamicAL", 1, low).ask(rounds(gaps), doubt)
        assert answer is holds
        assert f"by {gaps[-1]:+.2f} points in the last round" in shown
        assert ("up to 1.45 points apart" in shown) is (holds is None)


def test_the_paper_is_asked_without_our_doubts():
    table = rounds((0, 1, 1))
    text = verdicts.claims_text(
        [verdicts.every_round("dynamicAL", 1, None)], table, table, Doubt({"1": 1.45, "2": 1.45})
    )
    assert ": **cannot be said** (by +1.00 points in the last round; runs that should be equal are up to 1.45" in text
    assert text.endswith("in the paper's own numbers it holds (by +1.00 points in the last round).")


def test_noise_in_every_other_claim():
    row = {"Greedy": Stat(90.0, 0.2, 5), "BADGE": Stat(91.0, 0.2, 5), "Random": Stat(88.0, 0.2, 5)}
    noisy = Doubt({"MNIST": 3.0})
    for claim, quiet in (
        (verdicts.below_all("MNIST"), True),
        (verdicts.above("MNIST", "BADGE", "Greedy"), True),
        (verdicts.not_below("MNIST", ("Greedy",), "BADGE"), False),
        (verdicts.best("MNIST", ("Greedy",)), False),
    ):
        assert claim.ask({"MNIST": row})[0] is quiet
        answer, shown = claim.ask({"MNIST": row}, noisy)
        assert answer is None
        assert "up to 3.00 points apart" in shown
    within = verdicts.not_below("MNIST", ("Greedy",), "BADGE").ask(
        {"MNIST": {**row, "Greedy": Stat(90.9, 0.2, 5)}}, noisy
    )
    assert within[0] is True


# --- one seed --------------------------------------------------------------------------------------------------------


def test_one_seed_decides_nothing_and_its_numbers_are_shown():
    one = rounds((0, 3.72, -0.34), seeds=1)
    assert verdicts.every_round("dynamicAL", 1, "Random").ask(one) == (
        None,
        "one seed; by -0.34 points in the last round; not in round 2",
    )
    answer, shown = verdicts.best("2", ("dynamicAL",), "round ").ask(one)
    assert answer is None
    assert shown == "one seed; highest: Random 30.00, then dynamicAL 29.66"
    row = {"MNIST": {"Greedy": Stat(90.0, None, 1), "Random": Stat(88.0, None, 1)}}
    for claim in (verdicts.below_all("MNIST"), verdicts.above("MNIST", "Greedy", "Random")):
        assert claim.ask(row)[0] is None
        assert "one seed; " in claim.ask(row)[1]
        assert "88.00" in claim.ask(row)[1]
    assert verdicts.not_below("MNIST", ("Greedy",), "Random").ask(row) == (None, "one seed; Greedy 90.00, Random 88.00")
    budget = {"R=2": {"SVHN": Stat(75.0, None, 1)}, "R=1": {"SVHN": Stat(70.0, None, 1)}}
    assert verdicts.falling("SVHN", ("R=2", "R=1")).ask(budget) == (None, "one seed; R=2: 75.00, R=1: 70.00")


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
    doubt = find_doubts([one], "area")
    assert doubt.same == {("MNIST", frozenset({"IHT", "IHT, bias only"})): 2}
    row = {name: Stat(20.59, 4.72, 3) for name in ("IHT", "IHT, bias only", "Variance only")}
    answer, shown = verdicts.above("MNIST", "IHT", "IHT, bias only").ask({"MNIST": row}, doubt)
    assert answer is None
    assert "made the same picks in all 2 batches" in shown
    assert verdicts.above("MNIST", "IHT", "Variance only").ask({"MNIST": row}, doubt)[0] is False


def test_the_points_between_first_models_are_those_of_one_seed():
    one = ran({"Random": [[1]], "dynamicAL": [[2]]}, {"Random": 0.30, "dynamicAL": 0.3145})
    assert find_doubts([one], "round").apart == pytest.approx({"0": 1.45, "1": 1.45})
    assert find_doubts([one], "area").apart == pytest.approx({"MNIST": 1.45})


# --- figures ---------------------------------------------------------------------------------------------------------


def curves(levels, seeds=3):
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
    assert "each step by more than a deviation: **does not hold** (1 cluster 81.00 ± 1.00, 20 clusters 90.50" in flat
    assert flat.endswith("no more than a deviation from 20 clusters to 50 clusters).")
    assert "**holds**" in clusters("mnist", names, curves(dict(zip(names, (0.80, 0.85, 0.90)))))
    assert "**cannot be said** (one seed; " in clusters("mnist", names, curves(dict(zip(names, (0.8, 0.85, 0.9))), 1))


def test_bounds_and_baselines():
    found = curves({"epsilon=auto": 0.894, "epsilon=20.0": 0.892, "epsilon=0.05": 0.896})
    assert tightness("mnist", found).count("**does not hold**") == 2
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
    areas = {"gamma=0": [0.91, 0.93], "gamma=2": [0.909, 0.930], "random": [0.8, 0.81]}
    assert "**cannot be said**: no measurable difference to gamma=0 (0.05 points" in _highest(areas)
    assert _highest({**areas, "gamma=0": [0.95, 0.96]}).endswith("**does not hold**.")
    assert _highest({**areas, "gamma=0": [0.85, 0.86]}).endswith("**holds**.")
    assert "of one seed" in _highest({name: values[:1] for name, values in areas.items()})


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
