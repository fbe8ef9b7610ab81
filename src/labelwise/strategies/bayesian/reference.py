"""Slow references for the Bayesian strategies: loops straight from the papers, in float64, on dense arrays."""

from __future__ import annotations

import itertools
import math

import numpy as np


def random_log_probs(rng: np.random.Generator, n: int, draws: int, classes: int, scale: float = 2.0) -> np.ndarray:
    """(n, K, C) log probabilities: the draws of a row scatter around logits of its own."""
    z = rng.normal(size=(n, 1, classes)) * scale + rng.normal(size=(n, draws, classes)) * rng.uniform(
        0, scale, (n, 1, 1)
    )
    log_probs: np.ndarray = z - np.log(np.exp(z).sum(2, keepdims=True))
    return log_probs


def entropy(p: np.ndarray) -> float:
    return -sum((value * math.log(value) for value in np.asarray(p).reshape(-1).tolist() if value > 0), 0.0)


def bald(log_probs: np.ndarray) -> list[float]:
    """H[mean_k p_k] - mean_k H[p_k] of each row."""
    scores = []
    for row in np.exp(log_probs):
        scores.append(entropy(row.mean(0)) - sum(entropy(draw) for draw in row) / len(row))
    return scores


def joint_entropy(rows: np.ndarray) -> float:
    """Entropy of the labels of these rows (t, K, C) together: every configuration enumerated."""
    rows = np.asarray(rows)
    _, draws, classes = rows.shape
    total = 0.0
    for labels in itertools.product(range(classes), repeat=len(rows)):
        p = sum(math.prod(float(rows[i, k, y]) for i, y in enumerate(labels)) for k in range(draws)) / draws
        total -= p * math.log(p) if p > 0 else 0.0
    return total


def batch_information(probs: np.ndarray) -> float:
    """What the labels of a batch (t, K, C) together tell about the draw, in nats."""
    expected = sum(sum(entropy(draw) for draw in row) / len(row) for row in probs)
    return joint_entropy(probs) - expected


def batchbald(log_probs: np.ndarray, k: int) -> tuple[list[int], list[float]]:
    """Plain greedy with every joint entropy enumerated; ties (1e-9) to the earlier row."""
    probs = np.exp(log_probs)
    selected: list[int] = []
    gains: list[float] = []
    value = 0.0
    for _ in range(k):
        new = {i: batch_information(probs[[*selected, i]]) for i in range(len(probs)) if i not in selected}
        top = max(new.values())
        best = min(i for i, v in new.items() if v >= top - 1e-9)
        selected.append(best)
        gains.append(new[best] - value)
        value = new[best]
    return selected, gains


def acs_vectors(log_probs: np.ndarray, weight: float) -> np.ndarray:
    """L_n[k] = K^-1/2 (sum_y q_ny log p_k(y) + weight H[q_n])."""
    n, draws, classes = log_probs.shape
    out = np.zeros((n, draws))
    for i in range(n):
        q = np.exp(log_probs[i]).mean(0)
        for k in range(draws):
            expected = sum(q[y] * max(log_probs[i, k, y], math.log(1e-12)) for y in range(classes))
            out[i, k] = (expected + weight * entropy(q)) / math.sqrt(draws)
    return out


def acs_fw(vectors: np.ndarray, k: int) -> tuple[list[int], dict[int, float], float]:
    """Frank-Wolfe until k rows have a weight: the sequence of indices, the weights, |L - L_w|^2."""
    sigma_n = [math.sqrt(float(v @ v) + 1e-6) for v in vectors]
    sigma = sum(sigma_n)
    target = vectors.sum(0)
    weights = np.zeros(len(vectors))
    sequence: list[int] = []
    while (weights > 0).sum() < k and len(sequence) < 20 * k:
        weighted = weights @ vectors
        scores = [float(vectors[i] @ (target - weighted)) / sigma_n[i] for i in range(len(vectors))]
        f = int(np.argmax(scores))
        a = sigma / sigma_n[f] * vectors[f]
        gamma = min(1.0, float((a - weighted) @ (target - weighted)) / float((a - weighted) @ (a - weighted)))
        if gamma <= 1e-12:
            break
        weights = (1 - gamma) * weights
        weights[f] += gamma * sigma / sigma_n[f]
        sequence.append(f)
    gap = target - weights @ vectors
    return sequence, {i: float(w) for i, w in enumerate(weights) if w > 0}, float(gap @ gap)
