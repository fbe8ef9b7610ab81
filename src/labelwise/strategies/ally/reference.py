"""Slow references in float64 NumPy for ALLY, BAIT and ALBL: explicit matrices, one row at a time."""

from __future__ import annotations

import math

import numpy as np


def duals(losses: list[list[float]], epsilon: float, eta: float) -> list[list[float]]:
    """Duals of each row after each visit: eta times the running sum of slack, held at zero from below."""
    history = []
    current = [0.0] * len(losses[0])
    for seen in losses:
        current = [max(0.0, dual + eta * (loss - epsilon)) for dual, loss in zip(current, seen)]
        history.append(list(current))
    return history


def walk(scores: np.ndarray, clusters: np.ndarray, ids: np.ndarray, k: int, room: int) -> list[int]:
    """Points in falling score (ties to the smaller id), taken while their cluster has room; then without regard."""
    order = sorted(range(len(ids)), key=lambda i: (-scores[i], ids[i]))
    used: dict[int, int] = {}
    picked: list[int] = []
    for i in order:
        if len(picked) < k and used.get(int(clusters[i]), 0) < room:
            used[int(clusters[i])] = used.get(int(clusters[i]), 0) + 1
            picked.append(i)
    for i in order:
        if len(picked) < k and i not in picked:
            picked.append(i)
    return [int(ids[i]) for i in picked]


def fisher_of(p: np.ndarray | None, h: np.ndarray) -> np.ndarray:
    """(diag p - p p^T) kron h h^T; h h^T in regression."""
    square = np.outer(h, h)
    return square if p is None else np.kron(np.diag(p) - np.outer(p, p), square)


def bait(
    probs: np.ndarray | None,
    embedding: np.ndarray,
    k: int,
    labelled: tuple[np.ndarray | None, np.ndarray] | None = None,
    lambda_: float = 1.0,
    consistent: bool = False,
    oversample: int = 2,
) -> tuple[list[int], list[int]]:
    """Rows taken forward, in order, and those left after pruning, in that order: every trace from an inverse."""
    ours = [fisher_of(None if probs is None else probs[i], embedding[i]) for i in range(len(embedding))]
    behind = []
    if labelled is not None:
        theirs, rows = labelled
        behind = [fisher_of(None if theirs is None else theirs[i], rows[i]) for i in range(len(rows))]
    count = len(behind)
    target = np.sum([*ours, *behind], 0) / (len(ours) + count)
    c = (1 if consistent else k) / (count + k)
    start = lambda_ * np.eye(len(target)) + (sum(behind) / (count + k) if count else 0)

    def trace(batch: list[int]) -> float:
        return float(np.trace(np.linalg.solve(start + c * sum((ours[i] for i in batch), np.zeros_like(start)), target)))

    taken: list[int] = []
    for _ in range(min(oversample * k, len(ours))):
        options = [(trace([*taken, i]), i) for i in range(len(ours)) if i not in taken]
        least = min(value for value, _ in options)
        taken.append(min(i for value, i in options if value <= least + 1e-10 * abs(least)))
    left = list(taken)
    while len(left) > k:
        options = [(trace([j for j in left if j != i]), i) for i in left]
        least = min(value for value, _ in options)
        left.remove(max(i for value, i in options if value <= least + 1e-10 * abs(least)))
    return taken, left


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
