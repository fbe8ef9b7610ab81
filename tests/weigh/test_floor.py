"""The floor on the effective sample size."""

import numpy as np
import pytest

from labelwise.weigh.floor import FLOOR, effective_share, tempered


@pytest.mark.parametrize("seed", range(5))
def test_the_largest_power_that_is_enough(seed):
    w = np.random.default_rng(seed).lognormal(sigma=2.0, size=40)
    assert effective_share(w) < FLOOR
    found, power = tempered(w)
    assert effective_share(found) == pytest.approx(FLOOR)
    assert effective_share(w ** (power + 0.01)) < FLOOR
    assert found.mean() == pytest.approx(1)
    assert (found.argsort() == w.argsort()).all()


def test_weights_above_the_floor_are_scaled_alone():
    found, power = tempered(np.array([1.0, 2.0, 3.0]))
    assert (power, found.tolist()) == (1.0, [0.5, 1.0, 1.5])


def test_where_too_few_weights_are_above_zero_all_become_equal():
    assert tempered(np.array([1.0] + [0.0] * 9))[0].tolist() == [1.0] * 10
