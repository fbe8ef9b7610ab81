"""The checks of SABAL's propositions fail where a proposition is broken on purpose."""

from __future__ import annotations

import numpy as np
import pytest
from torch import Tensor

import labelwise as lw
from labelwise.shards import Shard
from labelwise.strategies.sabal import reference as slow
from labelwise.strategies.sabal.vectors import Gradients, Losses
from labelwise.verify import check_strategy


def outcome(check: str) -> tuple[str, str]:
    (found,) = check_strategy(lw.strategies.Sabal(), checks=[check]).outcomes
    return found.status, found.why


@pytest.mark.parametrize("check", ["proposition C.1", "proposition 3.1"])
def test_they_hold(check: str):
    assert outcome(check) == ("passed", "")


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        (lambda loss, norm: norm(loss), "shift-invariance"),
        (lambda loss, norm: slow_q(loss, norm) ** 0.5, "homogeneity"),
        (lambda loss, norm: float(np.abs(loss - loss.mean()).min()), "triangle inequality"),
        (lambda loss, norm: 0.0, "no constant is at distance 0"),
    ],
    ids=["the norm itself", "a root", "the least deviation", "nothing"],
)
def test_what_is_no_seminorm_is_caught(broken, why, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(slow, "seminorm", broken)
    status, found = outcome("proposition C.1")
    assert status == "failed"
    assert why in found


slow_q = slow.seminorm


def test_losses_that_are_not_centred_are_caught(monkeypatch: pytest.MonkeyPatch):
    """Then the length of a vector is not q of the loss."""
    plain = Losses.prepare

    def prepare(self: Losses, shard: Shard) -> Tensor:
        plain(self, shard)
        shard.state["mean"] += 0.1
        return shard.state["mean"].double().sum(0)[None]

    monkeypatch.setattr(Losses, "prepare", prepare)
    assert outcome("proposition C.1")[0] == "failed"


@pytest.mark.parametrize("kind", [Gradients, Losses])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_a_wrong_sigma_is_caught(kind: type, factor: float, monkeypatch: pytest.MonkeyPatch):
    plain = kind.prepare

    def prepare(self: Gradients | Losses, shard: Shard) -> Tensor:
        total = plain(self, shard)
        shard.state["sigma"] *= factor
        return total

    monkeypatch.setattr(kind, "prepare", prepare)
    status, why = outcome("proposition 3.1")
    assert status == "failed"
    assert "bound" in why


def test_labels_that_stay_unknown_break_the_bound(monkeypatch: pytest.MonkeyPatch):
    """Without the known labels of the batch (equation 9), the rows in it vary too."""
    plain = slow.variance_terms
    unknown = lambda g, q, w, true, b: plain(g, q, np.zeros_like(w), true, b)  # noqa: E731
    monkeypatch.setattr(slow, "variance_terms", unknown)
    status, why = outcome("proposition 3.1")
    assert status == "failed"
    assert "above the bound" in why
