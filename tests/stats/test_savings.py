"""Labels saved: by hand, by brute force, censored, paired, and how often the interval is right."""

import itertools
import math

import numpy as np
import pytest

from labelwise.errors import ArgumentError
from labelwise.report.tables import saved_text, speed_text
from labelwise.rng import Key
from labelwise.stats.curves import Curves, crossing, labels_to_reach
from labelwise.stats.metric import metric_named
from labelwise.stats.savings import interval, labels_saved

COUNTS = np.arange(20.0, 221.0, 20.0)


def lines(strategy, values, labels, metric="accuracy", seeds=None):
    values = np.atleast_2d(np.array(values, dtype=float))
    seeds = tuple(range(len(values))) if seeds is None else seeds
    return Curves(strategy, metric_named(metric), seeds, np.array(labels, dtype=float), values)


def same(strategy, values, labels, metric="accuracy", seeds=5):
    """Every seed alike."""
    return lines(strategy, np.tile(values, (seeds, 1)), labels, metric)


def test_the_share_by_hand():
    # Both reach 0.8: random at its last count 50, the strategy half way from 20 to 40.
    saved = labels_saved(same("badge", [0.4, 0.6, 1.0], [10, 20, 40]), same("random", [0.4, 0.8], [10, 50]))
    assert saved.level == pytest.approx(0.8)
    assert (saved.labels, saved.labels_random) == (pytest.approx(30), pytest.approx(50))
    assert saved.share == pytest.approx(0.4)
    assert (saved.low, saved.high) == (pytest.approx(0.4), pytest.approx(0.4))
    assert saved.bound == "exact"
    assert saved.speed_up == (pytest.approx(50 / 30),) * 3


def test_a_strategy_that_loses():
    saved = labels_saved(same("bad", [0.4, 0.6], [10, 50]), same("random", [0.4, 0.8], [10, 50]))
    assert (saved.labels, saved.labels_random) == (pytest.approx(50), pytest.approx(30))
    assert saved.share == pytest.approx(1 - 50 / 30)
    assert saved.below_zero
    assert speed_text(saved) == "0.60 (0.60 to 0.60)"


def test_a_metric_that_falls_mirrors_one_that_rises():
    rng = np.random.default_rng(0)
    a, b = rng.random((2, 5, 4))
    up = labels_saved(lines("a", a, [1, 2, 3, 4]), lines("random", b, [1, 2, 3, 4]))
    down = labels_saved(lines("a", -a, [1, 2, 3, 4], "rmse"), lines("random", -b, [1, 2, 3, 4], "rmse"))
    assert (up.share, up.low, up.high, up.labels) == (down.share, down.low, down.high, down.labels)
    assert up.level == -down.level


def test_identical_curves_show_no_difference():
    values = np.random.default_rng(0).normal(0.5, 0.2, (5, 10))
    saved = labels_saved(lines("copy", values, COUNTS[:10]), lines("random", values.copy(), COUNTS[:10]))
    assert (saved.share, saved.low, saved.high) == (0, 0, 0)
    assert not saved.above_zero
    assert not saved.below_zero


def test_random_that_never_gets_there_gives_a_lower_bound():
    good, random = same("good", [0.4, 0.9], [10, 30]), same("random", [0.4, 0.8], [10, 50])
    saved = labels_saved(good, random, level=0.85)
    assert saved.labels == pytest.approx(28)
    assert saved.labels_random is None
    assert saved.bound == "at least"
    assert saved.share == pytest.approx(1 - 28 / 50)
    assert (saved.low, saved.high) == (pytest.approx(1 - 28 / 50), 1)
    assert saved_text(saved) == "≥ 44 % (44 % or more)"
    assert speed_text(saved) == "≥ 1.79 (1.79 or more)"
    final = labels_saved(good, random, level="final")
    assert final.level == pytest.approx(0.9)
    assert final.share == pytest.approx(1 - 30 / 50)


def test_a_strategy_that_never_gets_there_gives_an_upper_bound():
    saved = labels_saved(same("bad", [0.4, 0.7], [10, 50]), same("random", [0.4, 0.8], [10, 50]), level=0.75)
    assert saved.bound == "at most"
    assert saved.labels is None
    assert saved.share == pytest.approx(1 - 50 / 45)
    assert (saved.low, saved.high) == (-math.inf, pytest.approx(1 - 50 / 45))
    assert saved_text(saved) == "≤ −11 % (−11 % or less)"
    assert speed_text(saved) == "≤ 0.90 (0.00 to 0.90)"


def test_a_level_nobody_reaches_is_not_compared():
    saved = labels_saved(same("a", [0.4, 0.7], [10, 50]), same("random", [0.4, 0.8], [10, 50]), level=0.95)
    assert saved.bound == "unknown"
    assert math.isnan(saved.share)
    assert interval(saved) == "not bounded"
    assert saved_text(saved) == speed_text(saved) == "–"
    assert math.isnan(saved.speed_up[0])


def test_equal_budgets_and_a_level_out_of_reach_save_at_least_nothing():
    saved = labels_saved(same("a", [0.4, 0.9], [10, 50]), same("random", [0.4, 0.8], [10, 50]), level="final")
    assert (saved.share, saved.bound) == (0, "at least")
    assert not saved.above_zero


def test_the_interval_is_that_of_every_resample():
    """Four seeds have 256 resamples: the interval lies in their range, and its ends are values among them."""
    rng = np.random.default_rng(3)
    labels = [10, 20, 30, 40]
    a = np.sort(rng.random((4, 4)), axis=1) + 0.1
    b = np.sort(rng.random((4, 4)), axis=1)
    every = []
    for picks in itertools.product(range(4), repeat=4):
        one, two = lines("a", a[list(picks)], labels), lines("random", b[list(picks)], labels)
        level = min(one.values_ST.mean(0).max(), two.values_ST.mean(0).max())
        every.append(1 - labels_to_reach(one, level) / labels_to_reach(two, level))
    saved = labels_saved(lines("a", a, labels), lines("random", b, labels), draws=20_000)
    # t with 3 degrees of freedom, widened by (4/3)^(1/2), leaves 0.00012 outside on each side: the extremes.
    assert saved.low == pytest.approx(min(every))
    assert saved.high == pytest.approx(max(every))
    assert saved.low < saved.share < saved.high


def test_pairing_by_seed_removes_what_seeds_share():
    rng = np.random.default_rng(1)
    shared = rng.normal(0, 0.2, (6, 1))
    rise = 0.5 + 0.4 * np.linspace(0, 1, 11)
    random, ahead = lines("random", rise + shared, COUNTS), lines("a", rise + 0.04 + shared, COUNTS)
    assert labels_saved(ahead, random).above_zero
    turned = Curves("a", ahead.metric, ahead.seeds, ahead.labels_T, ahead.values_ST[[1, 2, 3, 4, 5, 0]])
    apart = labels_saved(turned, random)
    assert apart.high - apart.low > 5 * (labels_saved(ahead, random).high - labels_saved(ahead, random).low)


def test_only_shared_seeds_are_compared_in_any_order():
    values = np.random.default_rng(2).random((6, 3))
    whole = lines("a", values[:4], [1, 2, 3], seeds=(0, 1, 2, 3))
    more = lines("random", values[[0, 1, 2, 3, 5]], [1, 2, 3], seeds=(0, 1, 2, 3, 9))
    assert labels_saved(whole, more).seeds == 4
    assert labels_saved(whole, more).high == 0  # the same curves, once the extra seed is left out
    with pytest.raises(ArgumentError, match="share no seed"):
        labels_saved(lines("a", values[:1], [1, 2, 3], seeds=(7,)), more)


def test_one_key_one_interval():
    a, b = np.random.default_rng(4).random((2, 8, 6))
    one, two = lines("a", a, range(6, 12)), lines("random", b, range(6, 12))
    assert labels_saved(one, two, key=Key(5)) == labels_saved(one, two, key=Key(5))
    few = {labels_saved(one, two, key=Key(i), draws=100).low for i in range(8)}
    assert len(few) > 1


@pytest.mark.parametrize("seeds", [1, 2, 3])
def test_few_seeds_show_no_interval(seeds):
    saved = labels_saved(
        same("a", [0.4, 0.9], [10, 50], seeds=seeds), same("random", [0.4, 0.8], [10, 50], seeds=seeds)
    )
    assert saved.share == pytest.approx(0.16)  # 42 labels instead of 50
    assert saved_text(saved) == "16 %"
    assert speed_text(saved) == "1.19"


def test_bad_arguments_are_refused():
    a, random = same("a", [0.4, 0.9], [10, 50]), same("random", [0.4, 0.8], [10, 50])
    with pytest.raises(ArgumentError, match="already reached by both"):
        labels_saved(a, random, level=0.3)
    for level in ("best", math.nan):
        with pytest.raises(ArgumentError, match="'common', 'final' or a finite number"):
            labels_saved(a, random, level=level)
    with pytest.raises(ArgumentError, match="one metric"):
        labels_saved(same("a", [1.0, 0.5], [10, 50], "rmse"), random)
    with pytest.raises(ArgumentError, match="100 draws"):
        labels_saved(a, random, draws=3)


def noisy(rng, rate, shared_S1):
    rise_T = 0.97 - 0.6 * np.exp(-((COUNTS / rate) ** 0.7))
    start_ST = (shared_S1 + rng.normal(0, 0.01, shared_S1.shape)) * np.exp(-COUNTS / 100)
    return rise_T + start_ST + rng.normal(0, 0.008, (len(shared_S1), len(COUNTS)))


@pytest.mark.parametrize("rate", [60.0, 40.0])
def test_the_interval_holds_the_truth_about_as_often_as_it_says(rate):
    truths = [0.97 - 0.6 * np.exp(-((COUNTS / r) ** 0.7)) for r in (rate, 60.0)]
    level = np.array([min(curve.max() for curve in truths)])
    truth = 1 - crossing(COUNTS, truths[0][None], level)[0] / crossing(COUNTS, truths[1][None], level)[0]
    rng = np.random.default_rng(0)
    covered, better = 0, 0
    for trial in range(200):
        shared_S1 = rng.normal(0, 0.015, (5, 1))
        one, two = (lines(n, noisy(rng, r, shared_S1), COUNTS) for n, r in (("a", rate), ("random", 60.0)))
        saved = labels_saved(one, two, key=Key(trial), draws=500)
        covered += saved.low <= truth <= saved.high
        better += saved.above_zero
    assert covered >= 180
    assert better <= 10 if rate == 60.0 else better >= 190
