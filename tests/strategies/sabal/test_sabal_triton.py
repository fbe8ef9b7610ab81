"""The Triton kernels against those in PyTorch: on CUDA, or on the CPU by Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import numpy as np
import pytest
import torch
from by_backend import select

import labelwise as lw
from labelwise.strategies import Sabal
from labelwise.strategies.sabal.backends import GraphGreedy, GraphIht, TritonGreedy, TritonIht
from labelwise.strategies.sabal.kernels.tuning import IterationTuning, StepTuning, TritonTuning
from recorded_graphs import record_graphs, record_launches
from second_device import AWAY, second_device

interpreted = importlib.util.find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1"
pytestmark = [] if interpreted else pytest.mark.gpu
# Small enough that rows are in several tiles and several programs, and one program reads several tiles.
SMALL = TritonTuning(
    chunk=7,
    score_programs=2,
    slope_programs=2,
    adjoint_programs=2,
    score_tile=(16, 16, 4),
    pass_tile=(16, 16, 4),
    support_tile=(16, 16, 4),
)


@pytest.fixture(autouse=True)
def bounds_of_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter of Triton 3.6 converts arrays of one entry to numbers, which NumPy refuses from 2.4 on."""
    if not interpreted:
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda one: int(one.handle.data.item()))

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", patched)


def _inputs(seed: int, copies: int, dtype: Any, n: int = 50, c: int = 3, d: int = 20) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    z, h = rng.normal(size=(n, c)) * 2, rng.normal(size=(n, d)) + 0.3
    probs, label_probs = (torch.from_numpy(z / t).softmax(1) for t in (1.0, 1.7))
    inputs = {"probs": probs, "label_probs": label_probs, "embedding": torch.from_numpy(h)}
    device = "cpu" if interpreted else "cuda"
    return {name: values.repeat(copies, 1).to(device, dtype) for name, values in inputs.items()}


def _same(got: lw.Selection, expected: lw.Selection, near: float) -> None:
    assert got.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(got.weights, expected.weights, rtol=near, atol=near)
    np.testing.assert_allclose(got.scores, expected.scores, rtol=near, atol=near)
    assert got.notes["objective"] == pytest.approx(expected.notes["objective"], rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize(("alpha", "beta", "tau"), [(1e-2, 1e-1, 1.0), (1e2, 1e-4, 1.0), (0.0, 1e-2, 2.0)])
def test_greedy(alpha: float, beta: float, tau: float, copies: int, dtype: Any) -> None:
    """With copies, three rows and more are tied."""
    strategy, inputs = Sabal("greedy", alpha, beta, tau, second_order=copies == 1), _inputs(copies, copies, dtype)
    got = select(strategy, 18, inputs, TritonGreedy(SMALL))
    expected = select(strategy, 18, inputs, GraphGreedy(StepTuning()))
    _same(got, expected, 1e-9 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rule", ["exact", "paper"])
@pytest.mark.parametrize(("alpha", "beta"), [(1e-8, 1e-6), (1e-2, 1e-1), (3e3, 1e-1)])
def test_iht(alpha: float, beta: float, rule: Any, dtype: Any) -> None:
    for copies in (1, 3):
        inputs = _inputs(copies, copies, dtype)
        strategy = Sabal("iht", alpha, beta, iterations=9 if beta > 1e-2 else 3, prox=rule)
        got = select(strategy, 17, inputs, TritonIht(SMALL, chunk=2))
        expected = select(strategy, 17, inputs, GraphIht(IterationTuning()))
        _same(got, expected, 1e-7)
        assert got.notes["iterations"] == expected.notes["iterations"]
        for note in ("share", "share_after"):
            assert got.notes[note] == pytest.approx(expected.notes[note], rel=1e-6)


@pytest.mark.parametrize("share", [0.1, 0.7])
def test_a_share_of_the_variance(share: float) -> None:
    inputs = _inputs(5, 1, torch.float64)
    for solver, ours, plain in (
        ("greedy", TritonGreedy(SMALL), GraphGreedy(StepTuning())),
        ("iht", TritonIht(SMALL, chunk=2), GraphIht(IterationTuning())),
    ):
        strategy = Sabal(solver, beta=0.1, iterations=9, variance_share=share)  # type: ignore[arg-type]
        got, expected = select(strategy, 11, inputs, ours), select(strategy, 11, inputs, plain)
        _same(got, expected, 1e-7)
        assert got.notes["alpha"] == expected.notes["alpha"]
        assert got.notes["share"] == pytest.approx(share, rel=1e-5)
        assert got.notes["share_after"] == pytest.approx(expected.notes["share_after"], rel=1e-6)


def test_nothing_changes_once_a_loop_has_stopped() -> None:
    """Passes over rows do nothing then, so that more iterations may be asked for than are needed."""
    inputs = _inputs(1, 1, torch.float64)
    strategy = Sabal("iht", 1e6, 0.1)
    one, many = (select(strategy, 10, inputs, TritonIht(SMALL, chunk=chunk)) for chunk in (1, 25))
    assert one.notes["stopped"] == many.notes["stopped"] == "tolerance"
    assert one == many


STEPS = ("score_rows", "pick_row", "rescore_rows", "pick_rescored", "cut_weights", "move_residual")
PASSES = ("gradients", "adjoints", "sum_programs", "step_length")


@pytest.mark.skipif(not interpreted, reason="needs Triton with TRITON_INTERPRET=1")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("solver", ["greedy", "iht"])
def test_launches_are_recorded_with_tensors_of_the_device(
    solver: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a stand-in for a device and for its graphs: what is launched once is right at every replay."""
    from labelwise.strategies.sabal.kernels import triton

    backend, plain, kernels = {
        "greedy": (TritonGreedy(SMALL), GraphGreedy(StepTuning()), (*PASSES, *STEPS)),
        "iht": (TritonIht(SMALL, chunk=2), GraphIht(IterationTuning()), (*PASSES, "key_rows", "take_rows")),
    }[solver]
    strategy, inputs = Sabal(solver, 1e-2, 1e-1, iterations=6), _inputs(1, 1, dtype)
    expected = select(strategy, 14, inputs, plain)
    with second_device() as mode:
        graphs = record_graphs(monkeypatch, mode)
        record_launches(monkeypatch, graphs, triton, kernels)
        got = select(strategy, 14, {name: values.to(AWAY) for name, values in inputs.items()}, backend)
    _same(got, expected, 1e-9 if dtype == torch.float64 else 1e-5)
    assert graphs.launched == set(kernels)
    assert (graphs.recorded, graphs.replayed) == (1, 14 if solver == "greedy" else 6)
