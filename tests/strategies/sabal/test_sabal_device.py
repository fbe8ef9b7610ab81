"""The greedy loops of an accelerator where many rows are too near each other for their own precision."""

import numpy as np
import pytest
import torch
from by_backend import select

import labelwise as lw
from labelwise.selection.backends import triton_refusal
from labelwise.strategies import Sabal
from labelwise.strategies.sabal.backends import GraphGreedy
from labelwise.strategies.sabal.kernels.torch import TorchSteps
from labelwise.strategies.sabal.kernels.tuning import StepTuning

cuda = pytest.mark.gpu
STRATEGIES = (Sabal(), Sabal(alpha=1.0, beta=1e-4), Sabal(alpha=0.0, beta=0.0))


def near_rows(copies: int = 1, apart: float = 1e-5, rows: int = 120, dtype: type = np.float32) -> dict[str, np.ndarray]:
    """Rows that differ from the first by little, as embeddings of a network that has hardly been trained do."""
    rng = np.random.default_rng(1)
    z = 2 * rng.normal(size=(rows, 4))
    inputs = {"embedding": 1 + apart * rng.normal(size=(rows, 9))}
    for name, temperature in (("probs", 1.0), ("label_probs", 1.5)):
        p = np.exp((z[:1] + apart * z) / temperature)
        inputs[name] = p / p.sum(1, keepdims=True)
    return {name: np.tile(array, (copies, 1)).astype(dtype) for name, array in inputs.items()}


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: f"{one.alpha}-{one.beta}")
@pytest.mark.parametrize("copies", [1, 3])
def test_rows_that_are_near_are_told_apart_on_the_device(strategy, copies, monkeypatch):
    inputs = near_rows(copies)
    expected = lw.select(strategy, 30, **inputs)
    hosts = []
    by_float64 = TorchSteps._best_by_float64
    monkeypatch.setattr(TorchSteps, "_best_by_float64", lambda steps: (hosts.append(1), by_float64(steps))[1])
    got = select(strategy, 30, inputs, GraphGreedy(StepTuning()))
    assert got.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(got.weights, expected.weights, atol=1e-6)
    got = select(strategy, 30, inputs, GraphGreedy(StepTuning(near=4)))  # more rows are near: the host picks
    assert got.ids.tolist() == expected.ids.tolist()
    assert hosts


def test_few_near_rows_do_not_ask_the_host(monkeypatch):
    inputs = near_rows(rows=60)
    expected = lw.select("sabal-greedy", 20, **inputs)
    monkeypatch.setattr(TorchSteps, "_best_by_float64", None)
    assert select(Sabal(), 20, inputs, GraphGreedy(StepTuning())).ids.tolist() == expected.ids.tolist()


@cuda
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda one: f"{one.alpha}-{one.beta}")
@pytest.mark.parametrize("rows", [120, 5000])
def test_kernels_tell_near_rows_apart(strategy, dtype, rows):
    if triton_refusal() is not None:
        pytest.skip("needs Triton")
    inputs = near_rows(2, rows=rows, dtype=dtype)
    here = lw.select(strategy, 40, **inputs)
    there = lw.select(strategy, 40, **{name: torch.from_numpy(array).cuda() for name, array in inputs.items()})
    assert there.ids.tolist() == here.ids.tolist()
    np.testing.assert_allclose(there.weights, here.weights, atol=1e-6)
