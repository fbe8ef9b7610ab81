"""ALBL: a bandit over strategies, which draws one of them for each batch.

Hsu and Lin, "Active learning by learning", AAAI 2015, in the batch form that BADGE compares with (Ash et al., ICLR
2020). With K arms of weights w, all 1 at first,

    p_a = (1 - K p_min) w_a / sum w + p_min,    p_min = 1 / (10 K);    an arm is drawn by p and selects the whole batch
    next round: reward = mean over labelled rows of (classified right) / chance_i
                w_a *= exp( p_min / 2 (reward + sqrt(log(K / delta) / K) / p_a) )    for the arm that was drawn

where chance_i is the probability of the arm that selected row i, 1 for rows that no arm selected. Cost: that of the
arm drawn. The reward is training accuracy, a weak signal; it is computed as published.
The bandit's state is in the notes of its selections: the arm, its probability, and the weights of all arms. A session
stores them with the answers and passes them back (`with_history`); with `lw.select`, pass
`Albl(history=({"ids": s.ids, **s.notes}, ...))` from the selections so far.
Departs from the original: an arm chooses a batch and not a row, and p_min does not fall with the horizon, as in BADGE.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import ArgumentError, NeedError
from labelwise.registry import get, register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shard, Shards
from labelwise.signals.spec import Embedding, Label, Needs, Probs

_REWARD = (Probs(), Label())


@register
@dataclass(frozen=True)
class Albl(Strategy):
    """Draws one of several strategies for each batch, more often the ones after which the model did well.

    Args:
        arms: names of strategies.
        delta: the probability of failure that the bandit's bound allows.
        history: notes of earlier selections, the oldest first, each with "ids", the rows it selected.

    Raises:
        ArgumentError: fewer than two different arms, an arm with a history of its own, or `delta` out of range.
    """

    arms: tuple[str, ...] = ("confidence", "kcenter")
    delta: float = 0.1
    history: tuple[Mapping[str, Any], ...] = ()

    name = "albl"
    picks = "a bandit over confidence and kcenter"
    reason = "Chosen by the method that has helped most so far."
    needs = Needs(pool=(Probs(), Embedding()), labelled=(Embedding(), *_REWARD), history=True)
    cost = "that of the arm drawn"
    growth = Growth(C=1, D=1)
    paper = "Hsu & Lin, AAAI 2015"

    def __post_init__(self) -> None:
        for name in ("arms", "history"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.arms) < 2 or len(set(self.arms)) != len(self.arms):
            raise ArgumentError(f"Albl(arms=...) are names of at least two different strategies, not {self.arms!r}")
        if not 0 < self.delta < 1:
            raise ArgumentError(f"Albl(delta=...) is above 0 and below 1, not {self.delta!r}")
        needs = [get(name).needs for name in self.arms]
        if any(need.history for need in needs):
            raise ArgumentError("Albl(arms=...): an arm that learns from its own history cannot be one of several")
        pool = tuple(dict.fromkeys(signal for need in needs for signal in need.pool))
        labelled = tuple(dict.fromkeys([*(signal for need in needs for signal in need.labelled), *_REWARD]))
        object.__setattr__(self, "needs", Needs(pool, labelled, history=True))

    def with_history(self, history: tuple[Mapping[str, Any], ...]) -> Strategy:
        return replace(self, history=history)

    def for_regression(self) -> None:
        return None  # rewards are of classes

    def memory(self, size: Size) -> int:
        return max(get(name).memory(size) for name in self.arms)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        weights, reward = self._weights(labelled)
        least = 1 / (10 * len(self.arms))
        p = [(1 - len(self.arms) * least) * weight / sum(weights) + least for weight in weights]
        arm = _draw_index(p, key.fold("arm"))
        picks = get(self.arms[arm]).select(pool, labelled, k, key.fold("batch"))
        notes = {
            "arm": self.arms[arm],
            "probability": p[arm],
            "arm_weights": dict(zip(self.arms, weights)),
            "probabilities": dict(zip(self.arms, p)),
            **({} if reward is None else {"reward": reward}),
        }
        return Selection(picks.ids, picks.weights, picks.scores, {**picks.notes, **notes})

    def _weights(self, labelled: Shards) -> tuple[list[float], float | None]:
        """The weights of the arms, and the reward of the last arm drawn; None before the first."""
        past = [notes for notes in self.history if "arm" in notes]
        if not past:
            return [1.0] * len(self.arms), None
        last = past[-1]
        weights = [float(last["arm_weights"][name]) for name in self.arms]
        chance = {int(row): float(notes["probability"]) for notes in past for row in notes["ids"]}
        reward = self._reward(labelled, chance)
        least = 1 / (10 * len(self.arms))
        bonus = math.sqrt(math.log(len(self.arms) / self.delta) / len(self.arms)) / float(last["probability"])
        weights[self.arms.index(last["arm"])] *= math.exp(least / 2 * (reward + bonus))
        return weights, reward

    def _reward(self, labelled: Shards, chance: dict[int, float]) -> float:
        if not labelled.n:
            raise NeedError(
                "Albl has a history and computes the reward of the last arm from the labelled rows: pass "
                "labelled=dict(probs=..., y=..., ids=...) and what its arms need"
            )

        def correct(shard: Shard) -> Tensor:
            """The sum over correctly classified rows of 1 / chance, in float64."""
            total = torch.zeros((), dtype=torch.float64)
            for _, rows in shard.blocks():
                correct_B = (rows.tensor(Probs()).argmax(1) == rows.tensor(Label()).long()).double().cpu()
                chance_B = torch.tensor([chance.get(row, 1.0) for row in rows.ids.tolist()], dtype=torch.float64)
                total += (correct_B / chance_B).sum()
            return total

        return float(labelled.sum(correct)) / labelled.n


def _draw_index(p: list[float], key: Key) -> int:
    """An index drawn with these probabilities."""
    draw = float(key.numpy().random()) * sum(p)
    for index, share in enumerate(p):
        draw -= share
        if draw < 0:
            return index
    return len(p) - 1
