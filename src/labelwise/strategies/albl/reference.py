"""Slow reference of ALBL: the probabilities of the arms by the written rule."""

from __future__ import annotations

import math


def albl(rewards: list[float], arms: list[int], delta: float = 0.1, count: int = 2) -> list[list[float]]:
    """Probabilities of the arms in each round, given the arm drawn and the reward it then earned."""
    least = 1 / (10 * count)
    weights = [1.0] * count
    history = []
    for number in range(len(arms) + 1):
        total = sum(weights)
        p = [(1 - count * least) * weight / total + least for weight in weights]
        history.append(p)
        if number < len(arms):
            arm = arms[number]
            bonus = math.sqrt(math.log(count / delta) / count) / p[arm]
            weights[arm] *= math.exp(least / 2 * (rewards[number] + bonus))
    return history
