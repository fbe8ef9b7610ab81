"""Paired tests, standings and the critical-difference diagram, against SciPy and hand counts."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from labelwise.errors import ArgumentError, NumericsError
from labelwise.report import rank_diagram
from labelwise.stats.curves import Curves
from labelwise.stats.metric import metric_named
from labelwise.stats.paired import (
    EXACT,
    FLIP,
    LEAST,
    holm,
    least_p,
    name_of_test,
    paired,
    paired_test,
    sign_flip,
    t_test,
)
from labelwise.stats.standings import Ranks, ranks, win_tie_loss


def curves(name, values_ST, metric="accuracy", seeds=None, labels=None):
    values_ST = np.asarray(values_ST, dtype=np.float64)
    labels = np.arange(values_ST.shape[1]) * 10.0 + 10 if labels is None else np.asarray(labels, dtype=np.float64)
    seeds = tuple(range(len(values_ST))) if seeds is None else seeds
    return Curves(name, metric_named(metric), seeds, labels, values_ST)


@pytest.mark.parametrize("seeds", [2, 3, 5, 8])
def test_sign_flip_counts_every_pattern(seeds):
    difference_S = np.random.default_rng(seeds).normal(0.3, 1, seeds)
    sums = [abs(sum(s * d for s, d in zip(signs, difference_S))) for signs in itertools.product((1, -1), repeat=seeds)]
    expected = sum(one >= abs(difference_S.sum()) - 1e-12 for one in sums) / 2**seeds
    assert sign_flip(difference_S) == pytest.approx(expected, abs=0)


def test_sign_flip_equals_scipy():
    difference_S = np.random.default_rng(1).normal(0.4, 1, 10)
    found = stats.permutation_test(
        (difference_S,), lambda x, axis: x.mean(axis), permutation_type="samples", n_resamples=np.inf, vectorized=True
    )
    assert sign_flip(difference_S) == pytest.approx(found.pvalue)


def test_sign_flip_with_many_seeds_is_near_the_t_test():
    difference_S = np.random.default_rng(2).normal(0.25, 1, 60)
    assert sign_flip(difference_S) == pytest.approx(stats.ttest_1samp(difference_S, 0).pvalue, abs=0.01)


def test_sign_flip_of_equal_curves_is_one_and_of_one_seed_is_unknown():
    assert sign_flip(np.zeros(6)) == 1.0
    assert math.isnan(sign_flip(np.array([1.0])))
    with pytest.raises(NumericsError):
        sign_flip(np.array([1.0, np.nan]))


def test_the_least_p_is_reached():
    for seeds in (FLIP, EXACT):
        assert paired_test(np.arange(1.0, seeds + 1)).p == least_p(seeds) == 2.0 ** (1 - seeds)
    for seeds in range(LEAST):
        assert math.isnan(least_p(seeds))
    assert least_p(LEAST) == least_p(FLIP - 1) == 0


@pytest.mark.parametrize("seeds", range(2, 14))
def test_the_t_test_equals_scipy(seeds):
    difference_S = np.random.default_rng(seeds).normal(0.4, 1, seeds)
    assert t_test(difference_S) == pytest.approx(stats.ttest_1samp(difference_S, 0).pvalue, rel=1e-9)


def test_few_seeds_have_no_test_some_a_t_test_and_many_flipped_signs():
    difference_S = np.random.default_rng(0).normal(0.4, 1, 12)
    assert math.isnan(paired_test(difference_S[:4]).p)
    for seeds in (5, 9):
        assert paired_test(difference_S[:seeds]).p == t_test(difference_S[:seeds])
        assert name_of_test([seeds]) == "paired t-test"
    for seeds in (10, 12):
        assert paired_test(difference_S[:seeds]).p == sign_flip(difference_S[:seeds])
        assert name_of_test([seeds]) == "paired sign-flip test"
    assert name_of_test([5, 10]) == "paired t-test, from 10 seeds on sign-flip test,"


def test_equal_differences_have_no_spread_to_divide_by():
    assert t_test(np.zeros(5)) == 1.0
    assert t_test(np.full(5, 0.1)) == 0.0
    assert t_test(np.array([0.1, 0.1 + 1e-17, 0.1, 0.1, 0.1])) == 0.0
    with pytest.raises(NumericsError):
        t_test(np.array([1.0, np.nan, 0.0]))


def test_false_alarms_keep_to_the_level():
    draws = np.random.default_rng(0).normal(size=(2000, 8))
    share = np.mean([sign_flip(one) <= 0.05 for one in draws])
    assert 0.03 < share < 0.065


def test_holm_equals_the_written_rule():
    p = list(np.random.default_rng(3).uniform(0, 0.1, 7))
    order = np.argsort(p)
    expected, running = [0.0] * 7, 0.0
    for step, place in enumerate(order):
        running = max(running, min(1.0, (7 - step) * p[place]))
        expected[place] = running
    assert holm(p) == pytest.approx(expected)
    assert math.isnan(holm([math.nan, 0.01])[0])
    assert holm([math.nan, 0.01])[1] == 0.01


def test_paired_takes_shared_seeds_and_counts_and_knows_which_way_is_better():
    one = curves("a", [[1.0, 2.0], [1.0, 4.0]], "rmse", seeds=(3, 5))
    other = curves("b", [[2.0, 2.0, 9.0], [1.0, 5.0, 9.0]], "rmse", seeds=(3, 5), labels=[10, 20, 30])
    result = paired(one, other)
    assert result.difference == pytest.approx(0.5)  # areas 1.5, 2.5 against 2, 3: lower is better
    assert result.seeds == 2
    with pytest.raises(ArgumentError, match="share no seed"):
        paired(one, curves("b", [[1.0, 1.0]], "rmse", seeds=(9,)))
    with pytest.raises(ArgumentError, match="one metric"):
        paired(one, curves("b", [[1.0, 1.0]]))


def three(seed, seeds=8):
    base = np.random.default_rng(seed).normal(0, 0.01, (seeds, 4)) + np.linspace(0.5, 0.8, 4)
    return {
        "random": curves("random", base),
        "good": curves("good", base + 0.05),
        "same": curves("same", base + np.where(np.arange(seeds) % 2, 0.01, -0.01)[:, None]),
    }


def test_win_tie_loss_counts_both_ways():
    scores = win_tie_loss({"one": three(0), "two": three(1)})
    assert scores[("good", "random")].text == "2/0/0"
    assert scores[("random", "good")].text == "0/0/2"
    assert scores[("same", "random")].text == "0/2/0"


def test_pairs_with_too_few_seeds_for_any_outcome_have_no_score():
    assert win_tie_loss({"one": three(0, seeds=4)}) == {}
    assert win_tie_loss({"one": three(0, seeds=4), "two": three(1)})[("good", "random")].text == "1/0/0"


def test_ranks_friedman_and_critical_difference_equal_scipy_and_the_published_example():
    rng = np.random.default_rng(0)
    names, areas = "abcd", rng.normal(size=(6, 4)) + np.array([0, 0.5, 1.0, 2.0])
    areas[0, 0] = areas[0, 1]  # a tie
    experiments = {str(i): {n: curves(n, [[v, v]] * 2) for n, v in zip(names, row)} for i, row in enumerate(areas)}
    found = ranks(experiments)
    expected = stats.rankdata(-areas, axis=1).mean(0)
    assert dict(zip(found.names, found.mean)) == pytest.approx(dict(zip(names, expected)))
    assert found.p == pytest.approx(stats.friedmanchisquare(*areas.T).pvalue)
    # Demsar 2006, section 3.2.2: four classifiers on 14 data sets have the critical difference 1.25.
    experiments = {str(i): {n: curves(n, [[v, v]] * 2) for n, v in zip(names, rng.normal(size=4))} for i in range(14)}
    assert ranks(experiments).critical == pytest.approx(1.25, abs=0.005)


def test_groups_are_the_longest_runs():
    found = Ranks(tuple("abcde"), (1.0, 1.8, 2.5, 3.9, 4.0), 10, 0.01, 1.6)
    assert found.groups() == [(0, 2), (2, 4)]
    assert Ranks(("a", "b"), (1.0, 2.0), 1, math.nan, math.nan).groups() == []


def test_ranks_of_a_strategy_that_is_not_everywhere_are_refused():
    with pytest.raises(ArgumentError, match="same is not in all"):
        ranks({"one": three(0), "two": {k: v for k, v in three(1).items() if k != "same"}}, ["good", "same"])


def test_the_diagram_is_a_picture():
    found = Ranks(tuple("abcde"), (1.0, 1.8, 2.5, 3.9, 4.0), 10, 0.01, 1.6)
    assert rank_diagram.png(found, "Ranks").startswith(b"\x89PNG")
