"""Greedy sparse approximation from inner products alone, as on an accelerator with many classes, on CPU tensors."""

import dataclasses
from typing import Any

import numpy as np
import pytest
from by_backend import select

import labelwise as lw
from labelwise.strategies import Sabal
from labelwise.strategies.sabal import greedy as sabal_greedy
from labelwise.strategies.sabal import reference as slow
from labelwise.strategies.sabal import scoreboard
from labelwise.strategies.sabal.backends import GramGreedy
from labelwise.strategies.sabal.greedy import GRAM_TUNING, ListTuning
from labelwise.strategies.sabal.kernels.torch import GramSupport

SETTINGS = [(1e-2, 1e-1, 1.0), (3e3, 1e-1, 1.0), (1e2, 1e-4, 1.0), (0.0, 1e-2, 2.0)]


def _softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _inputs(seed: int, n: int = 60, c: int = 3, d: int = 4, zeros: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    z, h = rng.normal(size=(n, c)) * 2, rng.normal(size=(n, d)) + 0.3
    h[:zeros] = 0.0
    return {"probs": _softmax(z), "label_probs": _softmax(z / 1.7), "embedding": h}


def _draws(seed: int, n: int = 60, draws: int = 12, c: int = 3) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, 1, c)) * 2 + rng.normal(size=(n, draws, c))
    return {"log_probs": np.log(_softmax(z))}


def by_products(strategy: Sabal, k: int, inputs: dict[str, np.ndarray], **tuning: Any) -> lw.Selection:
    """A selection by this backend."""
    return select(strategy, k, inputs, GramGreedy(dataclasses.replace(GRAM_TUNING, **tuning)))


@pytest.mark.parametrize(("alpha", "beta", "tau"), SETTINGS)
def test_picks_and_weights_are_those_of_the_paper(alpha: float, beta: float, tau: float):
    for seed in range(4):
        inputs, b, second = _inputs(seed), (5, 17, 40)[seed % 3], seed % 4 == 3
        got = by_products(Sabal("greedy", alpha, beta, tau, second_order=second), b, inputs)
        vectors = slow.gradient_vectors(inputs["probs"], inputs["label_probs"], inputs["embedding"])
        picks, w, scores = slow.greedy(slow.Problem.of(*vectors, b, alpha, beta), b, tau, second)
        assert got.ids.tolist() == picks
        np.testing.assert_allclose(got.weights, w[picks], rtol=1e-7, atol=1e-9)
        np.testing.assert_allclose(got.scores, scores, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("form", [_inputs, _draws])
def test_picks_are_those_of_the_lists_of_the_cpu(form, dtype: type):
    """With copies of rows, and up to the last row of the pool."""
    for seed, copies, k in ((0, 1, 60), (2, 3, 40)):
        inputs = {a: np.tile(v, (copies,) + (1,) * (v.ndim - 1)).astype(dtype) for a, v in form(seed).items()}
        for strategy in (Sabal(), Sabal(alpha=1e2, beta=1e-4), Sabal(unit_weights=True)):
            expected, got = lw.select(strategy, k, **inputs), by_products(strategy, k, inputs)
            assert got.ids.tolist() == expected.ids.tolist()
            near = 1e-7 if dtype is np.float64 else 1e-4
            np.testing.assert_allclose(got.weights, expected.weights, rtol=near, atol=near)
            np.testing.assert_allclose(got.scores, expected.scores, rtol=near, atol=near)
            assert got.notes["objective"] == pytest.approx(expected.notes["objective"], rel=near, abs=1e-12)


def test_rows_of_zeros_and_no_pull():
    """Half of the gradients are zero, weights are free, and picks go beyond the rank."""
    for seed in range(3):
        inputs = _inputs(seed, zeros=30)
        for beta in (0.0, 0.1):
            got = by_products(Sabal(alpha=0.0, beta=beta), 50, inputs)
            expected = lw.select(Sabal(alpha=0.0, beta=beta), 50, **inputs)
            assert len(set(got.ids.tolist())) == 50
            upto = 50 if beta else 8  # without the pull what is left is rounding once R is zero
            assert got.ids[:upto].tolist() == expected.ids[:upto].tolist()


@pytest.mark.parametrize("older", [0, 4])
def test_wrong_guesses_are_undone(older: int, monkeypatch: pytest.MonkeyPatch):
    """Lists far too short: most picks are undone at first, some are made by a sweep in float64."""
    inputs, seen, exact = _inputs(5, n=300, c=5, d=16), [], []
    expected = lw.select(Sabal(), 80, **inputs)
    check, by_float64 = scoreboard.Scoreboard.check, scoreboard.Scoreboard.exact

    def checked(scores: scoreboard.Scoreboard, trial: scoreboard.Trial) -> int:
        good = check(scores, trial)
        seen.append((len(trial.ids), good, scores.r_AB is trial.r_AB))
        return good

    monkeypatch.setattr(scoreboard.Scoreboard, "check", checked)
    monkeypatch.setattr(scoreboard.Scoreboard, "exact", lambda *args: exact.append(1) or by_float64(*args))
    tuning = {"older": older, "shortest": 2, "rows_per_step": 2}
    got = by_products(Sabal(), 80, inputs, **tuning)
    assert got.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(got.weights, expected.weights, rtol=1e-7, atol=1e-9)
    assert any(good < steps for steps, good, _ in seen)
    assert {full for _, _, full in seen} == {True, False}
    twice = {key: np.tile(value[:40], (4, 1)).astype(np.float32) for key, value in inputs.items()}
    assert by_products(Sabal(), 100, twice, **tuning).ids.tolist() == lw.select(Sabal(), 100, **twice).ids.tolist()
    assert exact


def test_rows_that_moved_most_go_with_the_check(monkeypatch: pytest.MonkeyPatch):
    """Then the pool's product with R is made less often, and the picks are the same."""
    inputs, check, found = _inputs(7, n=1500, c=8, d=16), scoreboard.Scoreboard.check, {}
    for older in (0, 32):
        fresh: list[bool] = []

        def checked(scores: scoreboard.Scoreboard, trial: scoreboard.Trial, fresh=fresh) -> int:
            good = check(scores, trial)
            fresh.append(scores.r_AB is trial.r_AB)
            return good

        monkeypatch.setattr(scoreboard.Scoreboard, "check", checked)
        got = by_products(Sabal(), 100, inputs, shortest=128, longest=256, older=older)
        found[older] = got.ids.tolist(), sum(fresh)
    assert found[0][0] == found[32][0]
    assert found[32][1] < found[0][1] / 2


@pytest.mark.parametrize("unit", [False, True])
def test_room_for_the_support_grows(unit: bool, monkeypatch: pytest.MonkeyPatch):
    """What was known of the rows picked so far comes along."""
    inputs, strategy = _inputs(3, n=300, c=5, d=16), Sabal(unit_weights=unit)
    expected = lw.select(strategy, 90, **inputs)
    made: list[int] = []
    monkeypatch.setattr(sabal_greedy, "GramSupport", lambda *given: made.append(given[1]) or GramSupport(*given))
    got = by_products(strategy, 90, inputs, bucket=64)
    assert made == [64, 90]
    assert got.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(got.weights, expected.weights, rtol=1e-7, atol=1e-9)


def test_what_stands_in_the_places_of_picks_to_come_does_not_count(monkeypatch: pytest.MonkeyPatch):
    """Those of picks that were undone, say."""
    inputs = _inputs(3, n=300, c=5, d=16)

    def spoilt(*given) -> GramSupport:
        made = GramSupport(*given)
        for buffer in (made.g.left, made.g.right, made.f_T, made.c_T, made.gram_TS, made.w, made.weights_WS):
            buffer.fill_(37.0)
        return made

    monkeypatch.setattr(sabal_greedy, "GramSupport", spoilt)
    got, expected = by_products(Sabal(), 70, inputs), lw.select(Sabal(), 70, **inputs)
    assert got.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(got.weights, expected.weights, rtol=1e-7, atol=1e-9)


def test_it_is_for_wide_rows_on_an_accelerator():
    asked = []

    class Seen:
        def __init__(self, device: str, classes: int):
            self.device, self.classes = type("D", (), {"type": device, "__str__": lambda one: device})(), classes

        def __len__(self) -> int:
            return self.classes

    for device, classes, k in (("cuda", 1000, 100), ("cuda", 10, 100), ("cpu", 1000, 100), ("cuda", 1000, 17_000)):
        asked.append(GramGreedy(ListTuning()).supports(type("P", (), {"v_AB": Seen(device, classes), "k": k})()))
    assert asked == [
        None,
        "vectors have 10 lines, it is for more than 128",
        "rows are on cpu",
        "17000 picks have too many products, it is for at most 16384",
    ]
