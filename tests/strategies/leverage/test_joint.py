"""The labels of all rounds together: joint weights, the joint design and its certificate, means without bias."""

import json

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

import labelwise as lw
from labelwise.errors import ArgumentError, NumericsError
from labelwise.pool import Ledger
from labelwise.rng import Key
from labelwise.shards import shards_of
from labelwise.signals.spec import Basis, Weight
from labelwise.strategies.leverage import reference
from labelwise.strategies.leverage.reference import features, joint_eigenvalues, joint_weights, with_constant
from labelwise.strategies.leverage.weighted_batch import Draws
from labelwise.strategies.leverage.weighted_sampling import expected_draws
from labelwise.strategies.leverage.whiten import LEVERAGE, whitened


def rounds_of(strategy: lw.Strategy, x: np.ndarray, sizes: list[int], seed: int) -> tuple[Ledger, lw.Selection]:
    """A ledger of several batches, each told of the ones before, and the last batch."""
    ledger = Ledger()
    for number, k in enumerate(sizes):
        done = ledger.labelled.numpy()
        free = np.setdiff1d(np.arange(len(x)), done)
        past = {"embedding": x[done], "weights": ledger.joint_weights(len(x)).numpy()} if len(done) else None
        picks = lw.select(strategy, k, embedding=x[free], ids=free, labelled=past, seed=1000 * seed + number)
        ledger.add(number, picks.ids, [0] * k, picks.weights)
    return ledger, picks


@pytest.mark.parametrize("sizes", [[5], [4, 4, 4], [7, 2, 11], [3, 9, 8]])
def test_joint_weights_are_the_levelled_mean_of_the_estimates_of_all_rounds(sizes: list[int]):
    rng, n = np.random.default_rng(0), 20
    weights = [rng.exponential(size=k).tolist() for k in sizes]
    ledger, row = Ledger(), 0
    for number, batch in enumerate(weights):
        ledger.add(number, range(row, row + len(batch)), [0] * len(batch), batch)
        row += len(batch)
    found = ledger.joint_weights(n).tolist()
    if row < n:
        assert found == pytest.approx(joint_weights(weights, n))
        assert found[-sizes[-1] :] == pytest.approx(weights[-1])  # the last batch has its own
    else:
        assert found == [1.0] * n  # nothing is left to stand for


def test_uniform_draws_and_rows_that_were_not_asked_for_keep_their_weight():
    ledger = Ledger()
    ledger.add(0, [3, 1], [0, 1])
    ledger.add(1, [0, 4], [0, 1], [1.0, 1.0])
    ledger.retract(2, [1])
    assert ledger.joint_weights(9).tolist() == [1.0, 1.0, 1.0]


def test_an_answer_taken_back_is_free_again():
    ledger = Ledger()
    ledger.add(0, [0, 1], [0, 1], [0.4, 1.6])
    ledger.add(1, [2, 3], [0, 1], [0.5, 1.5])
    ledger.retract(2, [0])
    # 10 rows: 9 are left after the first round, 7 now
    assert ledger.joint_weights(10).tolist() == pytest.approx([1 + 0.6 * 7 / 9, 0.5, 1.5])


@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
def test_notes_are_of_the_joint_design(name: str):
    x = features("heavy", 500, 3, np.random.default_rng(1))
    ledger, _ = rounds_of(lw.strategies.get(name), x, [60, 30], 0)
    done, weights = ledger.labelled.numpy(), ledger.joint_weights(500).numpy()
    free = np.setdiff1d(np.arange(500), done)
    past = {"embedding": x[done], "weights": weights}
    picks = lw.select(name, 40, embedding=x[free], ids=free, labelled=past, seed=3)
    ones = np.hstack([x, np.ones((500, 1))])
    lam = joint_eigenvalues(ones[free], ones[done], weights, ones[picks.ids], picks.weights)
    assert picks.notes["rank"] == 4  # 130 labels determine all functions, 40 would determine 3
    assert picks.notes["eigenvalues"] == pytest.approx([lam[0], lam[-1]], rel=1e-5)
    ledger.add(2, picks.ids, [0] * 40, picks.weights)
    joint = ledger.joint_weights(500).numpy()
    assert picks.notes["effective_sample_size"] == pytest.approx(joint.sum() ** 2 / (joint**2).sum(), rel=1e-5)
    assert picks.notes["labels"] == 130
    if name == "bss":
        low, high = picks.notes["barriers"]
        assert 0 < low < lam[0] < lam[-1] < high
    json.dumps(dict(picks.notes), allow_nan=False)


@pytest.mark.parametrize("kind", ["heavy", "gaussian", "clustered", "singular"])
@pytest.mark.parametrize("warm", [True, False])
def test_the_joint_design_lies_between_its_barriers_in_every_round(kind: str, warm: bool):
    for seed in range(3):
        x = features(kind, 300, 4, np.random.default_rng(seed))
        strategy, ledger = lw.strategies.Bss(rank=5, warm=warm), Ledger()
        for number in range(4):
            done = ledger.labelled.numpy()
            free = np.setdiff1d(np.arange(300), done)
            past = {"embedding": x[done], "weights": ledger.joint_weights(300).numpy()} if number else None
            picks = lw.select(strategy, 30, embedding=x[free], ids=free, labelled=past, seed=seed)
            low, high = picks.notes["eigenvalues"]
            assert picks.notes["barriers"][0] < low <= high < picks.notes["barriers"][1]
            ledger.add(number, picks.ids, [0] * 30, picks.weights)


@pytest.mark.parametrize("kind", reference.KINDS)
@pytest.mark.parametrize("gamma", [0.45, 0.12])
def test_a_later_batch_is_that_of_the_slow_reference(kind: str, gamma: float):
    """Of two labelled rows longer than all free ones, one counts too little and one too much."""
    for seed in range(3):
        rng, d, k = np.random.default_rng(seed), 3, 25
        psi, weights, ids = features(kind, 120, d, rng), rng.exponential(size=30), np.arange(30, 120)
        psi[:2], weights[:2] = 100 * np.eye(2, 3), (0.0, 9.0)
        free, known = (
            shards_of(torch.as_tensor(rows), {name: torch.from_numpy(column) for name, column in columns.items()})
            for rows, columns in ((ids, {Basis(): psi[30:]}), (np.arange(30), {Basis(): psi[:30], Weight(): weights}))
        )
        got = lw.strategies.Bss(gamma=gamma, rank=d, retries=0).select(free, known, k, Key(seed))
        with whitened(free, Basis(), d, None, Key(seed)) as basis:
            expected = expected_draws(free, LEVERAGE, k, Draws.most(k))
            v, past = (
                basis.transform(part.take(torch.as_tensor(rows))).numpy()
                for part, rows in ((free, ids), (known, np.arange(30)))
            )
        start = reference.joint_start(90, past, weights, k)
        assert np.linalg.eigvalsh(start)[[0, -1]] == pytest.approx([0, 1], abs=1e-9)  # clipped on both sides
        slow = reference.bss(v, ids.tolist(), k, gamma, expected, Key(seed).fold("try", 0), start)
        assert got.ids.tolist() == list(slow)
        assert np.allclose(got.weights / k, list(slow.values()), rtol=1e-7)


def test_labelled_rows_longer_than_all_free_ones_do_not_widen_the_barriers():
    """Rows of a multivariate t(1): what the labelled ones lack of the pool, no free row can give."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 4)) / np.abs(rng.normal(size=(600, 1)))
    barriers = []
    for batches in range(2, 6):
        _, picks = rounds_of(lw.strategies.Bss(), x, [40] * batches, 0)
        low, high = picks.notes["barriers"]
        assert low < picks.notes["eigenvalues"][0] <= picks.notes["eigenvalues"][1] < high
        barriers.append((low, high))
    assert min(barriers)[0] > -1
    assert max(high for _, high in barriers) < 3


def test_a_negative_weight_of_a_labelled_row_is_refused():
    x = np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(ArgumentError, match=r"found -1\.0 in row 1"):
        lw.select("bss", 5, embedding=x[5:], labelled={"embedding": x[:2], "weights": [1.0, -1.0]})


@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
def test_few_of_many_functions_are_a_warning_with_numbers(name: str):
    rng = np.random.default_rng(0)
    for kind, law in (("gaussian", "nearly uniform sampling"), ("heavy", "sampling by these few alone")):
        x = features(kind, 600, 60, rng)
        text = lw.select(name, 40, embedding=x).notes["warning"]
        v = with_constant(x, 3)
        share = np.abs((v**2).sum(1) / 3 - 1).mean() / 2
        assert text.startswith(
            f"{name} uses 3 of 61 functions, since 40 labels determine no more; about 732 are enough for 61. "
            f"This is {law}: by leverage {share:.0%} of the draws are other than uniform ones"
        )
        assert f"is drawn {(v**2).sum(1).max() / 3:,.3g} times as often" in text


def test_the_warning_ends_as_labels_come_in_also_in_batches_of_a_labelling_page():
    x = features("gaussian", 400, 10, np.random.default_rng(1))
    ranks, warned = [], []
    for batches in range(1, 7):
        _, picks = rounds_of(lw.strategies.Bss(), x, [20] * batches, 0)
        ranks.append(picks.notes["rank"])
        warned.append("warning" in picks.notes)
    assert ranks == [1, 3, 5, 6, 8, 10]  # a twelfth of all labels, not of the batch
    assert warned == [True, True, False, False, False, False]


def test_the_warning_names_what_limits_the_functions():
    x = features("gaussian", 700, 60, np.random.default_rng(2))
    assert "by its rank; rank= allows more" in lw.select(lw.strategies.Bss(rank=2), 100, embedding=x).notes["warning"]
    text = lw.select(lw.strategies.Leverage(rank=61), 20, embedding=x).notes["warning"]
    assert "uses 4 of 61 functions, since 20 labels determine no more; about 305 are enough for 61" in text
    assert "warning" not in lw.select("bss", 700, embedding=x).notes  # every row


# --- simulations -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
def test_weighted_means_over_rounds_have_no_bias(name: str):
    """The mean of |x|^2 and of a step, over five rounds from a heavy-tailed pool; weights as they were are far off."""
    x = np.random.default_rng(5).standard_t(2.5, size=(600, 3))
    values = np.stack([(x**2).sum(1), (x[:, 0] > 1).astype(float)])
    truth, found, before = values.mean(1), [], []
    for seed in range(60):
        ledger, _ = rounds_of(lw.strategies.get(name), x, [40] * 5, seed)
        ids, joint, plain = ledger.labelled.numpy(), ledger.joint_weights(600).numpy(), ledger.weights.numpy()
        found.append(values[:, ids] @ joint / len(ids) / truth)
        before.append(values[:, ids] @ plain / len(ids) / truth)
    error = np.std(found, 0) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, 0) - 1) < 3.5 * error).all(), (np.mean(found, 0), error)
    assert np.mean(before, 0)[0] < 0.85


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bss", "leverage"])
def test_eleven_batches_of_heavy_tailed_rows_are_fitted_as_the_whole_pool_is(name: str):
    """Excess error of weighted least squares, in units of the best one's, over six pools."""
    joint, plain, random = [], [], []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.standard_t(2.5, size=(4000, 6))
        y = x @ rng.normal(size=6) + np.abs(x[:, 0]) * x[:, 0] + rng.normal(size=4000)
        ledger, _ = rounds_of(lw.strategies.get(name), x, [40] * 11, seed)
        ids = ledger.labelled.numpy()
        joint.append(excess(x, y, ids, ledger.joint_weights(4000).numpy()))
        plain.append(excess(x, y, ids, ledger.weights.numpy()))
        random.append(excess(x, y, rng.permutation(4000)[:440], np.ones(440)))
    assert np.mean(joint) < 0.02
    assert np.mean(joint) < 0.2 * np.mean(plain)
    assert np.mean(joint) < 0.1 * np.mean(random)


def excess(x: np.ndarray, y: np.ndarray, ids: np.ndarray, weights: np.ndarray) -> float:
    """The mean squared error on the pool of a fit on some rows, over the best one's, less 1."""
    best = LinearRegression().fit(x, y)
    fitted = LinearRegression().fit(x[ids], y[ids], sample_weight=weights)
    return float(np.mean((fitted.predict(x) - y) ** 2) / np.mean((best.predict(x) - y) ** 2) - 1)


@pytest.mark.parametrize("exponent", [-660, 500, 660])
@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
def test_picks_do_not_depend_on_the_scale_of_the_features(name: str, exponent: int):
    """From 1e-199 to 1e199, also with labelled rows: no square leaves the range of float64."""
    x = np.random.default_rng(0).normal(size=(120, 4)).round(3)
    known = {"weights": np.random.default_rng(1).exponential(size=20)}
    one, other = (
        lw.select(name, 30, embedding=y[20:], labelled={"embedding": y[:20], **known}, seed=0)
        for y in (x, np.ldexp(x, exponent))
    )
    assert other.notes["rank"] == one.notes["rank"] == 4
    assert len(other) == 30
    assert other.ids.tolist() == one.ids.tolist()
    assert other.weights == pytest.approx(one.weights)


@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
@pytest.mark.parametrize(
    "kind", ["mixed", "rows", "one huge labelled row", "one huge free row", "copies", "n < P", "constant"]
)
def test_extreme_rows_give_a_batch_with_finite_weights(name: str, kind: str):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5))
    if kind == "mixed":
        x = x * 10.0 ** np.array([-200, -100, 0, 100, 200])
    elif kind == "rows":
        x = x * 10.0 ** rng.uniform(-200, 200, size=(60, 1))
    elif kind.startswith("one huge"):
        x[0 if "labelled" in kind else -1] = 1e200
    elif kind == "copies":
        x = np.repeat(x[:2], 30, axis=0)
    elif kind == "n < P":
        x = rng.normal(size=(60, 90))
    else:
        x[:] = 7.0
    found = lw.select(name, 15, embedding=x[20:], labelled={"embedding": x[:20], "weights": np.ones(20)}, seed=0)
    assert len(set(found.ids.tolist())) == 15
    assert np.isfinite(found.weights).all()
    assert all(np.isfinite(found.notes["eigenvalues"]))


@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
def test_numbers_at_the_ends_of_float64_are_refused_in_a_sentence(name: str):
    for size in (1e-308, 1e308):
        x = np.random.default_rng(0).uniform(-1, 1, size=(40, 3)) * size
        with pytest.raises(NumericsError, match=r"1e-300 to 1e\+300 were expected, .* Scale the columns"):
            lw.select(name, 10, embedding=x)


@pytest.mark.parametrize("name", ["bss", "leverage", "volume"])
def test_all_rows_are_the_pool_itself(name: str):
    x = np.random.default_rng(0).standard_t(2, size=(30, 2))
    known = {"embedding": x[:9], "weights": np.random.default_rng(1).exponential(size=9)}
    notes = lw.select(name, 21, embedding=x[9:], labelled=known).notes
    assert notes["eigenvalues"] == [1, 1]
    assert notes["good"]
    assert notes["labels"] == notes["effective_sample_size"] == 30


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_random_features_do_not_depend_on_the_scale_of_rows(size: float):
    x = np.random.default_rng(0).normal(size=(80, 3))
    bss = lw.strategies.Bss(basis="random_features")
    scaled = lw.select(bss, 20, embedding=x * size, seed=0)
    assert scaled.notes["rank_available"] == lw.select(bss, 20, embedding=x, seed=0).notes["rank_available"] > 1
