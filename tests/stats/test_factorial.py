"""Effects of parts, interactions and rank correlations, on numbers that are known."""

import math

import numpy as np
import pytest
from scipy.stats import spearmanr

import labelwise as lw
from labelwise.stats.curves import learning_curves
from labelwise.stats.factorial import (
    Combination,
    against_reference,
    corrected,
    interaction,
    main_effects,
    overall,
    predictions,
    simple_effects,
    spearman,
    values_of,
)
from labelwise.stats.paired import Paired, holm, t_test

RANDOM = Combination("random", "none", "mean")
SEEDS = range(10)


def made(extra=lambda cell, seed: 0.0):
    """Values of 3 x 2 x 2 cells: noise by seed that all cells share, noise of their own, and what `extra` adds."""
    rng = np.random.default_rng(5)
    shared = rng.normal(size=len(SEEDS))
    cells = [
        Combination(c, w, t)
        for c in ("random", "badge", "bss")
        for w in ("none", "sabal")
        for t in ("mean", "primal-dual")
    ]
    return {cell: {seed: shared[seed] + 0.01 * rng.normal() + extra(cell, seed) for seed in SEEDS} for cell in cells}


def test_a_main_effect_is_the_mean_difference_over_the_other_parts():
    values = made(lambda cell, seed: 0.5 * (cell.weigh == "sabal") + 0.2 * (cell.choose == "badge"))
    (found,) = main_effects({"one": values}, "weigh", "sabal", "none")
    by_hand = [
        np.mean(
            [
                values[Combination(c, "sabal", t)][s] - values[Combination(c, "none", t)][s]
                for c in ("random", "badge", "bss")
                for t in ("mean", "primal-dual")
            ]
        )
        for s in SEEDS
    ]
    assert found.test == Paired(np.mean(by_hand), t_test(np.array(by_hand)), 10)
    assert found.half_width == pytest.approx(2.262157 * np.std(by_hand, ddof=1) / 10**0.5, rel=1e-4)
    (found,) = corrected([found])
    assert found.outcome == "better"
    assert found.test.difference == pytest.approx(0.5, abs=0.01)
    assert main_effects({"one": values}, "weigh", "own", "none") == []


def test_effects_by_strategy_show_where_a_part_pays():
    values = made(lambda cell, seed: {"badge": 1.0, "bss": -1.0}.get(cell.choose, 0.0) * (cell.train == "primal-dual"))
    found = {
        one.name: one.outcome for one in corrected(simple_effects({"one": values}, "train", "primal-dual", "mean"))
    }
    assert found["badge | train primal-dual"] == "better"
    assert found["bss | train primal-dual"] == "worse"
    assert found["random | train primal-dual"] == "same"


@pytest.mark.parametrize(("size", "outcome"), [(0.0, "same"), (0.3, "better"), (-0.3, "worse")])
def test_an_interaction_is_what_two_parts_do_beyond_their_sum(size, outcome):
    def extra(cell, seed):
        both = cell.weigh == "sabal" and cell.train == "primal-dual"
        return 2.0 * (cell.weigh == "sabal") + 1.0 * (cell.train == "primal-dual") + size * both

    (found,) = corrected(interaction({"one": made(extra)}, "sabal"))
    assert found.test.difference == pytest.approx(size, abs=0.02)
    assert found.outcome == outcome


def test_corrections_are_over_the_family_and_few_seeds_are_open():
    family = against_reference({"one": made()}, lambda name: RANDOM)
    assert len(family) == 11
    assert [one.p for one in corrected(family)] == holm([one.test.p for one in family])
    few = {cell: {seed: runs[seed] for seed in range(3)} for cell, runs in made().items()}
    assert {one.outcome for one in corrected(against_reference({"one": few}, lambda name: RANDOM))} == {"open"}


def test_ten_seeds_are_enough_for_a_large_family():
    experiments = {f"{n}": made(lambda cell, seed: 0.5 * (cell.weigh == "sabal")) for n in range(40)}
    assert {one.outcome for one in corrected(main_effects(experiments, "weigh", "sabal", "none"))} == {"better"}


def test_over_all_experiments_many_small_effects_are_one_large_one():
    rng = np.random.default_rng(3)
    sizes = dict(zip("abcdef", (0.2, 0.2, 0.2, 0.2, 0.2, -3.0)))
    experiments = {
        name: made(lambda cell, seed, size=size: size * (cell.weigh == "sabal") + 0.4 * rng.normal())
        for name, size in sizes.items()
    }
    family = main_effects(experiments, "weigh", "sabal", "none")
    group = {name: "last" if name == "f" else "first" for name in experiments}.__getitem__
    found = {one.experiment: one for one in corrected(overall(family, group))}
    by_hand = {s: np.mean([one.by_seed[s] for one in family if one.experiment != "f"]) for s in SEEDS}
    assert found["first"].by_seed == pytest.approx(by_hand)
    assert found["first"].test.p == pytest.approx(t_test(np.array(list(by_hand.values()))))
    assert [found["first"].outcome, found["last"].outcome] == ["better", "worse"]
    assert "same" in {one.outcome for one in corrected(family)}


def test_an_effect_that_was_not_measured_everywhere_has_no_mean_over_all():
    whole, part = made(), {cell: runs for cell, runs in made().items() if cell.choose != "badge"}
    family = against_reference({"whole": whole, "part": part}, lambda name: RANDOM)
    assert {one.name.split(" | ")[0] for one in overall(family, lambda name: "all")} == {"random", "bss"}


def record(recipe, seed, labels, notes=None, **metrics):
    return lw.Record(f"set/mlp/{recipe}/{seed}", recipe, seed, labels // 10, labels, metrics, notes=notes or {})


def test_values_are_points_of_accuracy_or_percent_of_randoms_error():
    recipes = ("random | weigh none | train mean", "badge | weigh law | train weighted", "random")
    rise = dict(zip(recipes, (0.0, 0.1, 0.5)))
    records = [record(r, 0, n, accuracy=0.5 + rise[r], rmse=4 - 10 * rise[r]) for r in recipes for n in (10, 20)]
    shares = values_of(learning_curves(records, "accuracy"), RANDOM)
    assert shares == {RANDOM: {0: pytest.approx(50)}, Combination("badge", "own", "mean"): {0: pytest.approx(60)}}
    errors = values_of(learning_curves(records, "rmse"), RANDOM)
    assert errors == {RANDOM: {0: pytest.approx(-100)}, Combination("badge", "own", "mean"): {0: pytest.approx(-75)}}


def missed(one):
    return 1 - one.metrics["accuracy"]


def test_a_note_that_orders_the_runs_predicts_the_error_and_labels_alone_do_not():
    rng = np.random.default_rng(0)
    records = []
    for seed in SEEDS:
        for labels in (10, 20, 30):
            for cell in range(8):
                error = 0.5 - 0.01 * labels + 0.01 * cell
                noise = rng.normal()
                # `trend` knows the labels alone; `none` is noise.
                notes = {"good": -cell, "trend": labels + 1e-3 * noise, "none": rng.normal()}
                records.append(record(f"r{cell}", seed, labels, notes, accuracy=1 - error))
    notes = {name: (lambda one, name=name: one.notes[name]) for name in ("good", "trend", "none")}
    found = {one.note: one for one in predictions("set", records, notes, missed)}
    assert found["good"].test.difference == pytest.approx(-1)
    assert found["good"].test.p < 0.01
    assert abs(found["trend"].test.difference) < 0.3
    assert found["none"].test.p > 0.01
    assert predictions("set", records, {"missing": lambda one: None}, missed) == []
    assert predictions("set", records, notes, lambda one: None) == []


def test_spearman_is_scipys():
    rng = np.random.default_rng(1)
    for _ in range(5):
        x, y = rng.integers(5, size=20), rng.normal(size=20)
        assert spearman(x, y) == pytest.approx(spearmanr(x, y).statistic)
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))
    assert math.isnan(spearman([], []))
