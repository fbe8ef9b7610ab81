"""Steps that an accelerator replays from a graph make the picks of the CPU; see tests/recorded_graphs.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import labelwise as lw
from labelwise.strategies import AcsFw, Bait, Sabal
from labelwise.strategies.sabal.backends import GramGreedy, GraphGreedy, GraphIht
from labelwise.strategies.sabal.greedy import ListTuning
from labelwise.strategies.sabal.kernels.tuning import IterationTuning, StepTuning
from recorded_graphs import record_graphs
from second_device import AWAY, second_device
from tuned import changed

CLASSES, MANY_CLASSES = 5, 140
# Small enough that there are several graphs, and that the host makes some of the picks.
SMALL = (
    GraphGreedy(StepTuning(chunk=8, bucket=8, near=4)),
    GramGreedy(ListTuning(most_steps=8, rows_per_step=4, shortest=16, longest=32, few=0.0, older=4, bucket=16)),
)
CASES: dict[str, tuple[Any, int]] = {
    "greedy": (Sabal(), CLASSES),
    "greedy without beta": (Sabal(alpha=0.0, beta=0.0), CLASSES),
    "greedy, unit weights": (Sabal(unit_weights=True), CLASSES),
    "greedy, many classes": (Sabal(), MANY_CLASSES),
    "greedy, many classes, unit weights": (Sabal(unit_weights=True), MANY_CLASSES),
    "iht": (Sabal("iht", 1e-2, 0.1, iterations=30), CLASSES),
    "bait": (Bait(), CLASSES),
    "acs-fw": (AcsFw(), CLASSES),
}


def arrays(strategy: Any, classes: int, dtype: torch.dtype) -> dict[str, Tensor]:
    chance = torch.Generator().manual_seed(0)
    z, h = (torch.randn(150, width, generator=chance, dtype=dtype) for width in (classes, 9))
    if isinstance(strategy, AcsFw):
        draws = z[:, None] + torch.randn(150, 24, classes, generator=chance, dtype=dtype)
        return {"log_probs": draws.log_softmax(2)}
    given = {"probs": (2 * z).softmax(1), "embedding": h}
    return given | ({} if isinstance(strategy, Bait) else {"label_probs": z.softmax(1)})


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["usual", "small"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_replayed_steps_make_the_picks_of_the_cpu(
    name: str, dtype: torch.dtype, tuning: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, classes = CASES[name]
    given, k = arrays(strategy, classes, dtype), 40
    expected = lw.select(strategy, k, **given)
    if tuning == "small":
        iht = GraphIht(IterationTuning(chunk=3, part=100))
        strategy = changed(strategy, backends={"greedy": SMALL, "iht": (iht,)})
    with second_device() as mode:
        graphs = record_graphs(monkeypatch, mode)
        away: dict[str, Any] = {one: values.to(AWAY) for one, values in given.items()}
        found = lw.select(strategy, k, **away)
    assert graphs.recorded <= 4 + k // 8
    assert graphs.replayed >= (20 if strategy.name == "sabal-iht" else k)
    assert found.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-6)
