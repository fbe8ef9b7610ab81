import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.strategies.bayesian import reference as slow
from labelwise.strategies.bayesian.joint_entropy import mutual_information


@pytest.mark.parametrize("scale", [0.0, 0.5, 3.0, 40.0])
def test_picks_and_scores_are_those_of_the_loop(scale: float):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        log_probs = slow.random_log_probs(rng, 30, 7, 4, scale)
        got = lw.select("bald", 8, log_probs=log_probs)
        scores = slow.bald(log_probs)
        assert np.allclose(got.scores, [scores[i] for i in got.ids], rtol=0, atol=1e-12)
        assert np.allclose(got.scores, sorted(scores, reverse=True)[:8], rtol=0, atol=1e-12)
        if scale in (0.5, 3.0):
            assert got.ids.tolist() == sorted(range(30), key=lambda i: -scores[i])[:8]


def test_a_probability_of_zero_is_no_trouble():
    certain = np.log(np.eye(3)[[0, 1, 2, 0]] + 0.0, where=np.eye(3)[[0, 1, 2, 0]] > 0, out=np.full((4, 3), -np.inf))
    agreed = np.broadcast_to(certain[0], (4, 3))
    got = lw.select("bald", 2, log_probs=np.stack([agreed, certain]))
    assert got.ids.tolist() == [1, 0]
    # Four draws that are sure of classes 0, 1, 2, 0: H[1/2, 1/4, 1/4] - 0.
    assert got.scores == pytest.approx([1.5 * np.log(2), 0.0], abs=1e-12)


def test_one_draw_tells_nothing():
    log_probs = slow.random_log_probs(np.random.default_rng(0), 20, 1, 5)
    assert lw.select("bald", 20, log_probs=log_probs).scores == pytest.approx(0, abs=1e-12)


def test_never_below_zero_nor_above_its_bounds():
    rng = np.random.default_rng(1)
    for dtype in (np.float64, np.float32, np.float16):
        log_probs = slow.random_log_probs(rng, 200, 6, 3, 5.0).astype(dtype)
        scores = lw.select("bald", 200, log_probs=log_probs).scores
        assert (scores >= 0).all()
        assert (scores <= np.log(3) + 1e-3).all()


def test_information_leaves_its_argument_alone():
    log_probs = torch.tensor(slow.random_log_probs(np.random.default_rng(0), 5, 3, 2))
    before = log_probs.clone()
    mutual_information(log_probs)
    assert torch.equal(log_probs, before)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda x: x * 0, "sums to 3 under draw 0"),
        (lambda x: np.where(np.arange(3) == 1, np.nan, x), "Row id 0 sums to nan"),
        (lambda x: np.where(np.arange(3) == 1, np.inf, x), "Row id 0 sums to inf"),
        (lambda x: np.where(np.arange(3) == 1, -np.inf, x), "pass their log_softmax"),
        (lambda x: np.exp(x), "if they are probabilities, pass their log"),
    ],
)
def test_what_is_no_log_of_probabilities_is_refused(spoil, says: str):
    log_probs = slow.random_log_probs(np.random.default_rng(0), 6, 4, 3)
    with pytest.raises(lw.errors.NumericsError, match=says):
        lw.select("bald", 2, log_probs=spoil(log_probs))


def test_shapes_are_checked_at_the_door():
    log_probs = slow.random_log_probs(np.random.default_rng(0), 6, 4, 3)
    with pytest.raises(lw.errors.RowError, match=r"log_probs must have 3 axes \(rows, draws, classes\)"):
        lw.select("bald", 2, log_probs=log_probs[:, 0])
    with pytest.raises(lw.errors.RowError, match="at least one column"):
        lw.select("bald", 2, log_probs=log_probs[:, :0])
    with pytest.raises(lw.errors.NeedError, match="Bald needs log_probs"):
        lw.select("bald", 2, probs=np.full((6, 3), 1 / 3))
