"""Models compared under one strategy: means over shared seeds, paired differences, and models that are incomplete."""

import math

import numpy as np
import pytest
from scipy import stats

from labelwise.stats.curves import Curves
from labelwise.stats.metric import metric_named
from labelwise.stats.models import compare_models


def curves(values, metric="accuracy", seeds=None):
    values = np.asarray(values, dtype=np.float64)
    seeds = tuple(range(len(values))) if seeds is None else tuple(seeds)
    return Curves("random", metric_named(metric), seeds, np.array([10.0, 20.0]), np.stack([values, values + 0.1], 1))


def row_of(table, model):
    return next(row for row in table.rows if row.model == model)


def test_means_and_paired_intervals_are_those_of_the_definition():
    rng = np.random.default_rng(0)
    one, two = 0.7 + 0.05 * rng.normal(size=(2, 6)), 0.5 + 0.05 * rng.normal(size=(2, 6))
    by_data = {"a": {"x": curves(one[0]), "y": curves(one[1] - 0.2)}, "b": {"x": curves(two[0]), "y": curves(two[1])}}
    table = compare_models(by_data, "area")
    assert table.best.model == "x"
    assert table.best.mean == pytest.approx((one[0] + two[0]).mean() / 2 + 0.05)
    difference_S = ((one[1] - 0.2 - one[0]) + (two[1] - two[0])) / 2
    gap = row_of(table, "y").gap
    low, high = stats.t.interval(0.95, 5, difference_S.mean(), stats.sem(difference_S))
    assert (gap.mean, gap.low, gap.high) == pytest.approx((difference_S.mean(), low, high), rel=1e-4)
    assert (gap.seeds, gap.datasets) == (6, 2)
    assert compare_models(by_data, "last").best.mean == pytest.approx(table.best.mean + 0.05)


def test_a_seed_that_only_some_models_finished_counts_for_none():
    table = compare_models({"a": {"x": curves([0.5, 0.5, 0.9]), "y": curves([0.6, 0.6])}})
    assert table.seeds == {"a": 2}
    assert table.best.model == "y"
    assert row_of(table, "x").values["a"] == pytest.approx(0.55)


def test_a_model_with_few_seeds_or_data_sets_has_a_paired_difference_but_no_mean():
    by_data = {
        "a": {"x": curves([0.5, 0.6, 0.7, 0.8, 0.9]), "few": curves([0.6, 0.7], seeds=(0, 1))},
        "b": {"x": curves([0.5, 0.6, 0.7, 0.8, 0.9])},
    }
    table = compare_models(by_data)
    few = row_of(table, "few")
    assert table.seeds == {"a": 5, "b": 5}
    assert table.best.model == "x"
    assert math.isnan(few.mean)
    assert few.seeds == {"a": 2}
    assert math.isnan(few.largest_loss)
    assert few.gap.mean == pytest.approx(0.1)
    assert (few.gap.seeds, few.gap.datasets) == (2, 1)


def test_where_a_model_is_most_behind_and_which_way_is_better():
    by_data = {
        "a": {"x": curves([0.3, 0.4], "r2"), "y": curves([0.5, 0.6], "r2")},
        "b": {"x": curves([0.9, 0.8], "r2"), "y": curves([0.6, 0.5], "r2")},
    }
    table = compare_models(by_data)
    y = row_of(table, "y")
    assert (y.largest_loss, y.largest_loss_on) == (pytest.approx(0.3), "b")
    errors = compare_models({"a": {"x": curves([3.0, 4.0], "rmse"), "y": curves([2.0, 3.0], "rmse")}})
    assert errors.best.model == "y"
    assert row_of(errors, "x").gap.mean == pytest.approx(-1.0)


def test_errors_in_different_units_have_no_mean_over_data_sets():
    one = {"x": curves([3.0, 4.0], "rmse"), "y": curves([2.0, 3.0], "rmse")}
    table = compare_models({"a": one, "b": one})
    assert table.best is None
    assert all(math.isnan(row.mean) and row.gap is None for row in table.rows)
