"""Curves: means, bands, areas and label counts against values computed by hand or by brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.errors import ArgumentError, NumericsError
from labelwise.stats.curves import (
    Curves,
    area,
    at,
    band,
    half_width,
    labels_to_reach,
    labels_to_reach_by_seed,
    learning_curves,
    seed_curves,
    t975,
)
from labelwise.stats.metric import metric_named
from labelwise.stats.record import Record


def lines(values, labels, metric="accuracy", strategy="badge"):
    values = np.atleast_2d(np.array(values, dtype=float))
    return Curves(strategy, metric_named(metric), tuple(range(len(values))), np.array(labels, dtype=float), values)


def record(strategy="badge", seed=0, labels=10, value=0.5, round=0, experiment="digits/mlp", name="accuracy"):
    return Record(f"{experiment}/{strategy}/{seed}", strategy, seed, round, labels, {name: value})


def test_curves_are_sorted_by_labels_and_grouped():
    records = [record(labels=20, value=0.7), record(labels=10, value=0.5), record("random", labels=10, value=0.4)]
    assert seed_curves(records) == {("badge", 0): [(10, 0.5), (20, 0.7)], ("random", 0): [(10, 0.4)]}
    assert list(learning_curves(records)) == ["badge", "random"]


def test_seeds_meet_on_the_counts_all_have():
    records = [record(seed=s, labels=n, value=s + n / 100) for s in (3, 1) for n in (10, 20, 30)]
    records += [record(seed=2, labels=10, value=0.0)]
    short = learning_curves(records)["badge"]
    assert short.seeds == (1, 2, 3)
    assert short.labels_T.tolist() == [10]
    full = learning_curves([one for one in records if one.seed != 2])["badge"]
    assert full.seeds == (1, 3)
    np.testing.assert_allclose(full.values_ST, [[1.1, 1.2, 1.3], [3.1, 3.2, 3.3]])


def test_records_that_make_no_curve_are_refused():
    with pytest.raises(ArgumentError, match="mix the experiments digits/mlp and mnist/mlp"):
        learning_curves([record(), record("random", experiment="mnist/mlp")])
    with pytest.raises(ArgumentError, match="Two records of 'badge' with seed 0 have 10 labels"):
        learning_curves([record(), record(round=1)])
    with pytest.raises(ArgumentError, match="no label count in common"):
        learning_curves([record(seed=0, labels=10), record(seed=1, labels=11)])
    with pytest.raises(ArgumentError, match="no metric 'rmse'; it has accuracy"):
        learning_curves([record()], "rmse")
    with pytest.raises(NumericsError, match=r"Round 4 of the run 'digits/mlp/badge/0' has accuracy = nan"):
        learning_curves([record(value=float("nan"), round=4)])
    with pytest.raises(ArgumentError, match="higher=True or higher=False"):
        learning_curves([record(name="novel")], "novel")
    assert not learning_curves([record(name="novel")], "novel", higher=False)["badge"].metric.higher


def test_the_band_by_hand():
    three = lines([[1.0, 2.0], [2.0, 2.0], [3.0, 2.0]], [10, 20])
    np.testing.assert_allclose(band(three).mean_T, [2, 2])
    np.testing.assert_allclose(band(three, "std").high_T, [3, 2])
    np.testing.assert_allclose(band(three, "se").low_T, [2 - 1 / 3**0.5, 2])
    np.testing.assert_allclose(band(three, "t95").high_T, [2 + 4.3027 / 3**0.5, 2])
    assert np.isnan(band(lines([[1.0, 2.0]], [10, 20])).low_T).all()
    with pytest.raises(ArgumentError, match="t95, se, std"):
        half_width(three.values_ST, "range")


def test_the_t_quantiles_are_those_of_scipy():
    stats = pytest.importorskip("scipy.stats")
    found = [t975(n) for n in range(1, 200)]
    np.testing.assert_allclose(found, stats.t.ppf(0.975, np.arange(1, 200)), rtol=1e-4)


def test_the_area_of_a_straight_line_is_its_middle():
    straight = lines([[0.2, 0.4, 1.0], [0.0, 0.0, 0.0]], [10, 20, 50])
    np.testing.assert_allclose(area(straight), [0.6, 0.0])
    np.testing.assert_allclose(area(straight, "mean"), [1.6 / 3, 0.0])
    np.testing.assert_allclose(area(lines([[0.7]], [10])), [0.7])
    with pytest.raises(ArgumentError, match="'trapezoid' or 'mean'"):
        area(straight, "simpson")


grids = st.lists(st.integers(1, 500), min_size=2, max_size=8, unique=True).map(sorted)


@settings(max_examples=60, deadline=None)
@given(labels=grids, data=st.data())
def test_the_area_does_not_change_when_points_on_the_lines_are_added(labels, data):
    values = data.draw(st.lists(st.floats(0, 1), min_size=len(labels), max_size=len(labels)))
    dense = np.union1d(np.linspace(labels[0], labels[-1], 50), labels)
    expected = area(lines([values], labels))[0]
    assert area(lines([np.interp(dense, labels, values)], dense))[0] == pytest.approx(expected, abs=1e-9)
    assert min(values) - 1e-9 <= expected <= max(values) + 1e-9


def test_values_between_counts_and_never_outside():
    found = at(lines([[0.2, 0.4]], [10, 20]), [9, 10, 15, 20, 21])
    np.testing.assert_allclose(found, [[np.nan, 0.2, 0.3, 0.4, np.nan]])


def test_labels_to_reach_by_hand():
    bumpy = lines([[0.4, 0.6, 0.5, 0.8]], [10, 20, 30, 40])
    assert labels_to_reach(bumpy, 0.5) == pytest.approx(15)
    assert labels_to_reach(bumpy, 0.6) == pytest.approx(20)
    assert labels_to_reach(bumpy, 0.7) == pytest.approx(35)  # from the best so far, 0.6 held until 30
    assert labels_to_reach(bumpy, 0.3) == 10
    assert labels_to_reach(bumpy, 0.81) is None


def test_a_level_missed_by_rounding_is_reached():
    assert labels_to_reach(lines([[0.1, 0.3]], [10, 20]), 0.1 + 0.2) == 20


def test_labels_to_reach_of_a_metric_that_falls():
    assert labels_to_reach(lines([[2.0, 1.0, 1.5, 0.5]], [10, 20, 30, 40], "rmse"), 0.75) == pytest.approx(35)
    assert labels_to_reach(lines([[2.0, 1.0]], [10, 20], "nll"), 0.9) is None


def test_labels_to_reach_by_seed_and_on_the_mean():
    two = lines([[0.0, 1.0], [0.0, 0.5]], [0, 10])
    np.testing.assert_allclose(labels_to_reach_by_seed(two, 0.6), [6, np.nan])
    assert labels_to_reach(two, 0.6) == pytest.approx(8)


@settings(max_examples=80, deadline=None)
@given(labels=grids, data=st.data())
def test_labels_to_reach_is_where_a_fine_walk_first_gets_there(labels, data):
    values = data.draw(st.lists(st.integers(0, 20), min_size=len(labels), max_size=len(labels)))
    level = data.draw(st.integers(0, 40)) / 2
    best = np.maximum.accumulate(values)
    fine = np.linspace(labels[0], labels[-1], 20_001)
    there = fine[np.interp(fine, labels, best) >= level - 1e-9]
    found = labels_to_reach(lines([values], labels), level)
    if found is None:
        assert max(values) < level
    else:
        assert found == pytest.approx(there[0], abs=(labels[-1] - labels[0]) / 20_000 + 1e-6)


def test_a_known_metric_knows_its_direction():
    assert metric_named("accuracy").higher
    assert not metric_named("rmse").higher
    with pytest.raises(ArgumentError, match="lower is better"):
        metric_named("rmse", higher=True)
