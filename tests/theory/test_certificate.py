"""Certificates: equal to dense eigenvalues, in any blocks; the approximation ratio equal to explicit gradients."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, NeedError, NumericsError, RowError
from labelwise.pool import Pool
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import Labelled
from labelwise.signals.spec import Weight
from labelwise.theory import reference
from labelwise.theory.certificate import approximation_ratio, certificate_of, certify
from labelwise.theory.dynamics import Dynamics
from second_device import AWAY, second_device

rng = np.random.default_rng(0)
PSI = rng.standard_t(4, size=(400, 12)) * np.logspace(0, -2, 12) + 3.0
ROWS = rng.permutation(400)[:60].tolist()
WEIGHTS = rng.lognormal(size=60)


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize(("count", "rank"), [(60, None), (60, 13), (60, 40), (5, 4), (5, 40), (1, 1)])
def test_equal_to_dense_eigenvalues(constant, count, rank):
    name = "embedding" if constant else "basis"
    found = lw.certificate(ROWS[:count], WEIGHTS[:count], **{name: PSI}, rank=rank)
    used = min(found.rank_available, max(1, count // 12) if rank is None else rank)
    expected = reference.certificate(PSI, ROWS[:count], WEIGHTS[:count], used, constant)
    assert found.rank == used
    np.testing.assert_allclose(found.eigenvalues, np.maximum(expected["eigenvalues"], 0), atol=1e-8)
    assert found.seen == pytest.approx(expected["seen"], abs=1e-9)
    assert found.unseen == pytest.approx(expected["unseen"])
    assert found.effective_sample_size == pytest.approx(WEIGHTS[:count].sum() ** 2 / (WEIGHTS[:count] ** 2).sum())


def test_blocks_do_not_matter_and_weights_of_zero_see_nothing():
    whole = certify([torch.from_numpy(PSI)], torch.from_numpy(PSI[ROWS]), WEIGHTS)
    parts = certify(torch.from_numpy(PSI).split(7), torch.from_numpy(PSI[ROWS]), WEIGHTS)
    np.testing.assert_allclose(whole.eigenvalues, parts.eigenvalues)
    some = lw.certificate(ROWS[:8], [1, 1, 1, 0, 0, 0, 0, 0], embedding=PSI)
    assert some.seen == pytest.approx(lw.certificate(ROWS[:3], embedding=PSI).seen)


@pytest.mark.parametrize("power", [-980, -600, 600, 980])
def test_the_unit_of_the_features_does_not_matter(power):
    size = 2.0**power  # 1e-295 to 1e295: their squares vanish or overflow
    expected = lw.certificate(ROWS, WEIGHTS, embedding=PSI, rank=8)
    assert lw.certificate(ROWS, WEIGHTS, embedding=PSI * size, rank=8) == expected
    blocks = torch.from_numpy(PSI * size).split([1] * 100 + [300])  # the unit grows from block to block
    found = certify(blocks, torch.from_numpy(PSI[ROWS] * size), WEIGHTS, rank=8)
    np.testing.assert_allclose(found.eigenvalues, expected.eigenvalues)
    assert found.seen == pytest.approx(expected.seen)
    with pytest.raises(NumericsError, match="Scale the columns"):
        lw.certificate([0, 1], embedding=np.array([[1.7e308], [-1.7e308], [0.0]]))


def test_rows_of_a_second_device_have_the_same_certificate():
    p = rng.dirichlet([1, 1, 1], 400)
    expected = lw.certificate(ROWS, WEIGHTS, embedding=PSI, probs=p)
    with second_device() as second:
        away = [torch.from_numpy(one).to(AWAY) for one in (PSI, p, WEIGHTS)]
        found = lw.certificate(ROWS, away[2], embedding=away[0], probs=away[1])
    np.testing.assert_allclose(found.eigenvalues, expected.eigenvalues)
    assert found.ratio == pytest.approx(expected.ratio)
    assert max(second.crossed) <= len(ROWS) * PSI.shape[1]  # labelled rows and second moments, never the pool


def test_the_whole_pool_is_a_perfect_sample():
    found = lw.certificate(range(400), embedding=PSI)
    np.testing.assert_allclose(found.eigenvalues, (1, 1))
    assert (found.good, found.seen, found.unseen) == (True, pytest.approx(1), 0)
    assert found.sentence() == "Your labels see 100 % of what varies in the pool."


def test_of_all_functions_it_is_the_certificate_of_bss():
    strategy = lw.strategies.Bss(rank=13)
    picks = lw.select(strategy, 100, embedding=PSI, seed=1)
    found = lw.certificate(picks, embedding=PSI, rank=13)
    scale = picks.weights.mean()  # bss leaves its weights as they are, training scales them
    np.testing.assert_allclose(found.eigenvalues, np.array(picks.notes["eigenvalues"]) / scale, rtol=1e-6)


def test_a_session_measures_the_weights_it_trains_with():
    X, y = PSI.astype("float32"), (PSI[:, 0] > 3).astype(int)
    al = lw.Session(X, LogisticRegression(), "margin | weigh sabal | certify basis", classes=2)
    al.tell(ROWS, y[ROWS])
    found, weights = al.fit().notes["certificate"], al.fit().published[Weight()].numpy()
    expected = lw.certificate(sorted(ROWS), weights, embedding=X)
    np.testing.assert_allclose(found["eigenvalues"], expected.eigenvalues, rtol=1e-5)
    assert al.certificate().notes() == found


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 3)).double()


def test_the_ratio_is_that_of_explicit_gradients():
    pool, model = Pool.of(PSI), network()
    labels, batch = torch.arange(20) % 3, torch.arange(30, 45)
    found = approximation_ratio(ModelReader(model), pool, Labelled(torch.arange(20), labels), batch, rows=4)
    dynamics, x = Dynamics(model), torch.from_numpy(PSI)
    along = dynamics.gradient(x[:20], labels)
    expected = dynamics.ratio((x[batch], dynamics.pseudo_labels(x[batch])), along)
    assert found.value == pytest.approx(expected.value, rel=1e-6)


def test_the_ratio_of_the_last_layer_is_that_of_explicit_gradients():
    p = rng.dirichlet([1, 1, 1], 400)
    y = rng.integers(3, size=60)
    found = lw.certificate(ROWS, embedding=PSI, probs=p, y=y, batch=ROWS[40:])
    g = {row: np.outer(p[row] - np.eye(3)[p[row].argmax()], PSI[row]) for row in ROWS[40:]}
    old = sum(np.outer(p[row] - np.eye(3)[one], PSI[row]) for row, one in zip(ROWS[:40], y))
    new = sum(g.values())
    expected = (sum((one**2).sum() for one in g.values()) + 2 * (new * old).sum()) / (
        (new**2).sum() + 2 * (new * old).sum()
    )
    assert found.ratio == pytest.approx(expected)
    assert found.notes()["approximation_ratio"] == found.ratio
    alone = lw.certificate(ROWS[40:41], embedding=PSI, probs=p)
    assert alone.ratio == pytest.approx(1)  # one row is what it promises


def test_without_a_model_the_features_are_measured():
    found = certificate_of(None, Pool.of(PSI), torch.tensor(ROWS), torch.from_numpy(WEIGHTS))
    expected = lw.certificate(ROWS, WEIGHTS, embedding=PSI)
    np.testing.assert_allclose(found.eigenvalues, expected.eigenvalues)


def test_names_of_rows():
    names = [f"row {i}" for i in range(400)]
    found = lw.certificate([names[row] for row in ROWS], WEIGHTS, embedding=PSI, ids=names)
    assert found == lw.certificate(ROWS, WEIGHTS, embedding=PSI)


@pytest.mark.parametrize(
    ("arguments", "error", "why"),
    [
        ({}, NeedError, "embedding=.*or basis="),
        ({"embedding": PSI, "basis": PSI}, NeedError, "one of the two"),
        ({"basis": PSI, "probs": PSI}, NeedError, "probs= needs embedding="),
        ({"embedding": PSI, "rank": 0}, ArgumentError, "rank is a whole number"),
        ({"embedding": PSI, "weights": [1.0]}, RowError, "one for each of 60"),
        ({"embedding": PSI, "weights": [-1.0] * 60}, ArgumentError, "at least 0"),
        ({"embedding": PSI, "weights": [0.0] * 60}, ArgumentError, "not all 0"),
        ({"embedding": PSI[:5]}, RowError, "labelled: distinct ids.*is not"),
        ({"embedding": PSI, "probs": np.full((4, 3), 1 / 3)}, RowError, "400 rows were expected"),
        ({"embedding": PSI, "probs": np.full((400, 3), 1 / 3), "batch": ROWS[:3]}, NeedError, "pass y="),
        ({"embedding": PSI, "probs": np.full((400, 3), 1 / 3), "y": [1]}, RowError, "y: one for each"),
    ],
)
def test_arguments_are_checked(arguments, error, why):
    with pytest.raises(error, match=why):
        lw.certificate(ROWS, arguments.pop("weights", None), **arguments)


def test_a_row_twice_is_refused():
    with pytest.raises(RowError, match="occurs twice"):
        lw.certificate([1, 1], embedding=PSI)
