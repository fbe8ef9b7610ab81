"""Slow references for SABAL in float64 NumPy, written from the paper: explicit vectors and a dense Phi."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


def gradient_vectors(p: np.ndarray, q: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expected gradients (N, C D) and E |g(y) - E g| (N,), from the gradient of the loss for every label."""
    return _expected(label_gradients(p, h), q)


def label_gradients(p: np.ndarray, h: np.ndarray) -> np.ndarray:
    """The gradient of the loss for every label (N, C, C D)."""
    n, c = p.shape
    return np.stack([((p - np.eye(c)[y])[:, :, None] * h[:, None, :]).reshape(n, -1) for y in range(c)], 1)


def loss_vectors(log_probs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Expected centred losses (N, K) and E |g(y) - E g| (N,), with the mean prediction of the draws."""
    return _expected(label_losses(log_probs), np.exp(log_probs).mean(1))


def label_losses(log_probs: np.ndarray) -> np.ndarray:
    """The loss under every draw for every label, less its mean over draws (N, C, K)."""
    loss: np.ndarray = log_probs.mean(1, keepdims=True) - log_probs
    return loss.transpose(0, 2, 1)


def _expected(g: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    mean = (q[:, :, None] * g).sum(1)
    return mean, (q * np.linalg.norm(g - mean[:, None, :], axis=2)).sum(1)


@dataclass
class Problem:
    """Problem 2 with a dense Phi (m, n)."""

    v: np.ndarray
    phi: np.ndarray
    sigma: np.ndarray
    alpha: float
    beta: float

    @staticmethod
    def of(g: np.ndarray, sigma: np.ndarray, b: int, alpha: float, beta: float) -> Problem:
        """From the raw vectors and the raw sigma, scaled as in the paper."""
        return Problem(g.mean(0), g.T / b, sigma / len(g), alpha, beta)

    def f1(self, w: np.ndarray) -> float:
        return float(((self.v - self.phi @ w) ** 2).sum() + self.beta * ((w - 1) ** 2).sum())

    def f(self, w: np.ndarray) -> float:
        return self.f1(w) - self.alpha * float((self.sigma[w > 0] ** 2).sum())

    def grad(self, w: np.ndarray) -> np.ndarray:
        gradient: np.ndarray = 2 * self.phi.T @ (self.phi @ w - self.v) + 2 * self.beta * (w - 1)
        return gradient

    def line_search(self, u: np.ndarray, w: np.ndarray) -> float:
        """Algorithm 4."""
        along = self.phi @ u
        curve = along @ along + self.beta * (u @ u)
        slope = (self.phi @ w - self.v) @ along + self.beta * ((w - 1) @ u)
        return float(slope / curve) if curve > 0 else 0.0

    def debias(self, w: np.ndarray) -> np.ndarray:
        """Algorithm 5."""
        u = np.where(w != 0, self.grad(w), 0.0)
        return w - self.line_search(u, w) * u

    def share(self, rest: np.ndarray) -> float:
        """How much of a score is variance, by its spread over rows; `rest` (n,) is the other term."""
        variance = self.alpha * np.std(self.sigma**2)
        return float(variance / (variance + np.std(rest)))

    def alpha_of_share(self, share: float, rest: np.ndarray) -> float:
        """The alpha with which the variance has this share, to six digits."""
        return float(f"{share / (1 - share) * np.std(rest) / np.std(self.sigma**2):.6g}")

    def greedy_rest(self, w: np.ndarray, tau: float = 1.0, second_order: bool = False) -> np.ndarray:
        """What the score of algorithm 1 has of each row not taken besides the variance and beta."""
        rest: np.ndarray = 2 * tau * self.phi.T @ (self.phi @ w - self.v)
        return rest + tau**2 * (self.phi**2).sum(0) if second_order else rest

    def iht_rest(self, z: np.ndarray) -> np.ndarray:
        """What the exact key of algorithm 2 has of each row besides the variance."""
        u = self.grad(z)
        return 0.5 * np.maximum(z - self.line_search(u, z) * u, 0) ** 2


Norm = Callable[[np.ndarray], float]
GOLDEN = (5**0.5 - 1) / 2


def seminorm(loss: np.ndarray, norm: Norm) -> float:
    """q(L) of equation 5, the infimum over constants c of the norm of L + c, by golden-section search.

    Args:
        loss: (m,) the loss at m parameters.
        norm: a norm that a constant adds to at every parameter alike, so that the best c is in the range of -L.
    """
    low, high = -float(loss.max()), -float(loss.min())
    for _ in range(60):
        inner = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        if norm(loss + inner[0]) <= norm(loss + inner[1]):
            high = inner[1]
        else:
            low = inner[0]
    return norm(loss + (low + high) / 2)


def variance_terms(g: np.ndarray, q: np.ndarray, w: np.ndarray, true: np.ndarray, b: int) -> tuple[float, float]:
    """Both terms on the left of proposition 3.1, with the label of every row of positive weight known.

    Args:
        g: (n, C, m) the vector of every row for every label, whose Euclidean length is q of the loss.
        q: (n, C) the distribution of labels.
        w: (n,) weights.
        true: (n,) the labels of the rows of positive weight.
        b: how many rows have one.

    Returns:
        The expected length of the variation of the loss on all rows, and of the loss on the weighted ones.
    """
    n, classes = q.shape
    law = np.where((w > 0)[:, None], np.eye(classes)[true], q)  # equation 9
    mean = (law[:, :, None] * g).sum(1)
    whole = weighted = 0.0
    for labels in itertools.product(range(classes), repeat=n):
        chance = float(np.prod(law[np.arange(n), labels]))
        moved = g[np.arange(n), labels] - mean
        whole += chance * float(np.linalg.norm(moved.sum(0) / n))
        weighted += chance * float(np.linalg.norm(w @ moved / b))
    return whole, weighted


def greedy(
    problem: Problem, b: int, tau: float = 1.0, second_order: bool = False
) -> tuple[list[int], np.ndarray, list[float]]:
    """Algorithm 1: picks in order, w, and minus the minimised value of each pick."""
    n = problem.phi.shape[1]
    w = np.zeros(n)
    picks: list[int] = []
    scores: list[float] = []
    for _ in range(b):
        value = tau * problem.grad(w) - problem.alpha * problem.sigma**2
        if second_order:
            value += tau**2 * ((problem.phi**2).sum(0) + problem.beta)
        value[picks] = np.inf
        j = int(value.argmin())
        picks.append(j)
        scores.append(-float(value[j]))
        e = np.eye(n)[j]
        w = problem.debias(w - problem.line_search(e, w) * e)
        w[w < 0] = 0
    return picks, w, scores


def prox(problem: Problem, s: np.ndarray, b: int, rule: str) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Line 6 of algorithm 2: the support, w, and what each row is ranked by, higher first."""
    if rule == "exact":
        key = 0.5 * np.maximum(s, 0) ** 2 + problem.alpha * problem.sigma**2
    else:
        key = -(0.5 * np.maximum(-s, 0) ** 2 - problem.alpha * problem.sigma**2)
    support = sorted(range(len(s)), key=lambda j: (-key[j], -problem.sigma[j], j))[:b]
    w = np.zeros_like(s)
    w[support] = np.maximum(s[support], 0)
    return support, w, key


def iht(problem: Problem, b: int, iterations: int, tolerance: float, rule: str) -> tuple[list[int], np.ndarray, int]:
    """Algorithm 2: the last support by key, w, and how many iterations were made."""
    n = problem.phi.shape[1]
    w, z = np.zeros(n), np.zeros(n)
    support: list[int] = []
    done = 0
    while done < iterations:
        done += 1
        old = w
        u = problem.grad(z)
        s = z - problem.line_search(u, z) * u
        support, w, _ = prox(problem, s, b, rule)
        w = problem.debias(w)
        w[w < 0] = 0
        z = w - problem.line_search(w - old, w) * (w - old)
        if np.linalg.norm(w - old) <= tolerance * np.linalg.norm(w):
            break
    return support, w, done


def prox_by_brute_force(problem: Problem, s: np.ndarray, b: int) -> float:
    """The infimum of |w - s|^2 / 2 - alpha sum_{w_j > 0} sigma_j^2 over w >= 0 with at most b entries above zero.

    A row whose best weight is 0 gets the bonus in the limit of a small weight.
    """
    best = np.inf
    for size in range(b + 1):
        for support in itertools.combinations(range(len(s)), size):
            best = min(best, prox_value(problem, s, list(support)))
    return best


def prox_value(problem: Problem, s: np.ndarray, support: list[int]) -> float:
    """The infimum for one support."""
    w = np.zeros_like(s)
    w[support] = np.maximum(s[support], 0)
    return float(0.5 * ((w - s) ** 2).sum() - problem.alpha * (problem.sigma[support] ** 2).sum())


def support_weights(phi: np.ndarray, v: np.ndarray, beta: float, steps: int = 200_000) -> np.ndarray:
    """The weights that minimise f1 over the columns of phi (m, M): projected gradient to convergence."""
    w = np.ones(phi.shape[1])
    table, c = phi.T @ phi + beta * np.eye(len(w)), phi.T @ v + beta
    size = float(np.linalg.eigvalsh(table)[-1])
    for _ in range(steps):
        new = np.maximum(w - (table @ w - c) / size, 0)
        if np.abs(new - w).max() <= 1e-14 * np.abs(new).max():
            break
        w = new
    return w
