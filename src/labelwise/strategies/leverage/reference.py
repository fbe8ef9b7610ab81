"""Slow references of draws on a basis in float64 NumPy: explicit loops, explicit inverses, one row at a time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from labelwise.rng import Key


def whitened(psi: np.ndarray, rank: int | None = None, tol: float = 1e-10) -> np.ndarray:
    """sqrt(n) times the leading left singular vectors of psi, one column for each direction above the tolerance."""
    u, s, _ = np.linalg.svd(np.asarray(psi, np.float64), full_matrices=False)
    above = [i for i in range(len(s)) if s[i] ** 2 > tol * s[0] ** 2]
    return math.sqrt(len(psi)) * u[:, above[: len(above) if rank is None else rank]]


def with_constant(h: np.ndarray, rank: int, tol: float = 1e-10) -> np.ndarray:
    """The constant, and the leading directions of the rows measured from their mean."""
    centred = np.asarray(h, np.float64) - np.asarray(h, np.float64).mean(0)
    ones = np.ones((len(h), 1))
    return ones if rank == 1 else np.hstack([ones, whitened(centred, rank - 1, tol)])


class Procedure:
    """The procedure line by line: E by two inverses, the law over all rows, one draw for each E."""

    def __init__(self, v: np.ndarray, gamma: float):
        self.v, self.gamma = v, gamma
        self.n, self.d = v.shape
        self.mid = (4 * self.d / gamma) / (1 / (1 - gamma) - 1 / (1 + gamma))
        self.b = np.zeros((self.d, self.d))
        self.u, self.l = 2 * self.d / gamma, -2 * self.d / gamma
        self.beta: list[float] = []
        self.draws: list[tuple[int, float]] = []

    def energy(self) -> np.ndarray:
        eye = np.eye(self.d)
        return np.linalg.inv(self.u * eye - self.b) + np.linalg.inv(self.b - self.l * eye)

    def forms(self, e: np.ndarray) -> np.ndarray:
        return np.array([row @ e @ row for row in self.v])

    def step(self, choose: Callable[[np.ndarray], int]) -> bool:
        """One draw by `choose` (a row from the law); False when the natural end is reached instead."""
        e = self.energy()
        phi = float(np.trace(e))
        du, dl = self.gamma / (phi * (1 - self.gamma)), self.gamma / (phi * (1 + self.gamma))
        if (self.u + du) - (self.l + dl) >= 8 * self.d / self.gamma:
            return False
        forms = self.forms(e)
        law = forms / phi / self.n
        assert abs(law.sum() - 1) < 1e-8
        row = choose(law)
        s = self.gamma / forms[row]
        self.b += s * np.outer(self.v[row], self.v[row])
        self.u += du
        self.l += dl
        self.beta.append(self.gamma / (phi * self.mid))
        self.draws.append((row, s))
        # The largest of D'(x)|v(x)|^2 / D_j(x), times beta_j: property 2 of definition 5.5.
        self.worst = self.beta[-1] * max(float(x @ x) / (n_law * self.n) for x, n_law in zip(self.v, law) if n_law > 0)
        return True

    def inside(self) -> bool:
        lam = np.linalg.eigvalsh(self.b)
        return bool(self.l < lam[0] and lam[-1] < self.u)

    def design(self) -> np.ndarray:
        """Eigenvalues of sum_j u_j v_j v_j^T with u_j = s_j / mid."""
        return np.linalg.eigvalsh(self.b / self.mid)


def arrivals(
    rate: np.ndarray, ids: Sequence[int], key: Key, number: int, length: float
) -> list[tuple[float, int, float]]:
    """(time, row, uniform) of every arrival of one window, row by row."""
    window = key.fold("window", number)
    found = []
    for place, row in enumerate(ids):
        one = torch.tensor([row])
        time, turn = float(window.exponential(one)) / rate[place], 0
        while time < length:
            found.append((time, place, float(window.fold("keep", turn).uniform(one))))
            time += float(window.fold("next", turn).exponential(one)) / rate[place]
            turn += 1
    return sorted(found)


def bss(
    v: np.ndarray,
    ids: Sequence[int],
    k: int,
    gamma: float,
    expected: float,
    key: Key,
    start: np.ndarray | None = None,
) -> dict[int, float]:
    """u_i of each row when the next draw would add row k + 1: merged, and scaled so that sum beta is 1.

    `start` is B0/mid; the barriers begin where each has half of the potential gamma.
    """
    d = v.shape[1]
    norm = np.array([row @ row for row in v])
    per = max(1, math.floor(1 / (2 * gamma)))
    b = np.zeros((d, d))
    u, l = 2 * d / gamma, -2 * d / gamma  # noqa: E741
    if start is not None:
        b = 2 * d * (1 - gamma**2) / gamma**2 * start
        # sum_i 1/(u - lam_i) = gamma/2 where u is an eigenvalue of this matrix
        lam, ones = np.linalg.eigvalsh(b), np.full((d, d), 2 / gamma)
        u, l = np.linalg.eigvalsh(np.diag(lam) + ones)[-1], np.linalg.eigvalsh(np.diag(lam) - ones)[0]  # noqa: E741
    weight: dict[int, float] = {}
    total, draws, number = 0.0, 0, 0
    while True:
        length = 1.5 * max(expected - draws, 0.05 * expected) + 16
        queue = arrivals(norm / norm.sum(), ids, key, number, length)
        number += 1
        while queue:
            e = np.linalg.inv(u * np.eye(d) - b) + np.linalg.inv(b - l * np.eye(d))
            phi, top = np.trace(e), np.linalg.eigvalsh(e)[-1]
            added = np.zeros((d, d))
            moves = 0
            while queue and moves < per:
                _, place, uniform = queue.pop(0)
                form = v[place] @ e @ v[place]
                if uniform * top * norm[place] >= form:
                    continue
                if ids[place] not in weight and len(weight) == k:
                    return {row: s / total for row, s in weight.items()}
                weight[ids[place]] = weight.get(ids[place], 0.0) + gamma / form
                added += gamma / form * np.outer(v[place], v[place])
                moves += 1
                draws += 1
                total += gamma / phi
            b += added
            u += moves * gamma / (phi * (1 - gamma))
            l += moves * gamma / (phi * (1 + gamma))  # noqa: E741


def leverage(v: np.ndarray, ids: Sequence[int], k: int, expected: float, key: Key) -> dict[int, float]:
    """u_i = (times drawn) / (m n p_i) of each row when the next draw would add row k + 1."""
    norm = np.array([row @ row for row in v])
    p = norm / norm.sum()
    times: dict[int, int] = {}
    draws, number = 0, 0
    while True:
        length = 1.1 * max(expected - draws, 0.05 * expected) + 16
        for _, place, _ in arrivals(p, ids, key, number, length):
            if place not in times and len(times) == k:
                return {ids[i]: t / (draws * len(v) * p[i]) for i, t in times.items()}
            times[place] = times.get(place, 0) + 1
            draws += 1
        number += 1


def volume_law(v: np.ndarray, size: int) -> dict[tuple[int, ...], float]:
    """det(V_S)^2 over all sets S of d rows, as a law of sorted sets."""
    import itertools

    sets = {s: float(np.linalg.det(v[list(s)])) ** 2 for s in itertools.combinations(range(len(v)), size)}
    whole = sum(sets.values())
    return {s: value / whole for s, value in sets.items()}


def greedy_design(v: np.ndarray, k: int) -> tuple[list[int], list[float]]:
    """Places and gains of k rows, each the one that most raises det(I + sum v v^T): one inverse for each pick."""
    m, picked, gains = np.eye(v.shape[1]), [], []
    for _ in range(k):
        inverse = np.linalg.inv(m)
        gain = np.array([-np.inf if i in picked else row @ inverse @ row for i, row in enumerate(v)])
        row = int(np.argmax(gain >= gain.max() * (1 - 1e-9)))
        picked.append(row)
        gains.append(float(gain[row]))
        m += np.outer(v[row], v[row])
    return picked, gains


def features(kind: str, n: int, d: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of one of the four kinds of problems."""
    if kind == "gaussian":
        return rng.normal(size=(n, d))
    if kind == "heavy":
        return rng.standard_t(2.5, size=(n, d))
    if kind == "clustered":
        centres = 3 * rng.normal(size=(max(2, d), d))
        return centres[rng.integers(0, len(centres), n)] + 0.05 * rng.normal(size=(n, d))
    assert kind == "singular"
    return rng.normal(size=(n, d)) * 10.0 ** -np.linspace(0, 4, d)


KINDS = ("gaussian", "heavy", "clustered", "singular")


def joint_weights(weights: Sequence[Sequence[float]], n: int) -> list[float]:
    """Weights of the labels of all rounds: the estimates of the rounds, each in full, and their levelled mean.

    The estimate of round t of a sum over the pool counts earlier rows once and lets its batch stand for all others. Of
    the coefficients c_t, which sum to 1, those are taken that would weigh all rows equally if draws were uniform.
    """
    done = [0, *np.cumsum([len(batch) for batch in weights]).tolist()]
    rounds = len(weights)
    equations, right = [], [1.0]
    equations.append([1.0] * rounds)
    for s in range(rounds - 1):  # a row of batch s weighs as much as one of batch s + 1
        one = [0.0] * rounds
        for t, sign in ((s, 1.0), (s + 1, -1.0)):
            one[t] += sign * (n - done[t]) / len(weights[t])
            for later in range(t + 1, rounds):
                one[later] += sign
        equations.append(one)
        right.append(0.0)
    c = np.linalg.solve(np.array(equations), np.array(right))
    found = []
    for s, batch in enumerate(weights):
        for w in batch:
            found.append(float(c[s] * (n - done[s]) * w / len(batch) + c[s + 1 :].sum()))
    return [value * done[-1] / n for value in found]


def joint_start(free: int, past: np.ndarray, weights: np.ndarray, k: int) -> np.ndarray:
    """B0/mid for a batch of k, vector by vector, with `past` the labelled rows whitened on the free ones.

    Args:
        free: the number of free rows.
        past: functions of the labelled rows.
        weights: their joint weights before the batch.
    """
    eye, rows = np.eye(past.shape[1]), len(past)
    now = 1 + (weights - 1) * (free - k) / free
    whole = (free * eye + sum(np.outer(v, v) for v in past)) / (free + rows)
    lam, q = np.linalg.eigh(sum(a * np.outer(v, v) for a, v in zip(now, past)) / (rows + k) - whole + eye)
    return sum((min(max(x, 0.0), 1.0) * np.outer(v, v) for x, v in zip(lam, q.T)), np.zeros_like(eye))


def joint_eigenvalues(
    free: np.ndarray, past: np.ndarray, weights: np.ndarray, batch: np.ndarray, given: np.ndarray
) -> np.ndarray:
    """Eigenvalues of the weighted design of the labelled rows and of a batch, relative to that of the whole pool.

    Args:
        free, past: functions of the free and of the labelled rows.
        weights: the joint weights of the labelled rows before the batch.
        batch, given: functions and weights of the rows of the batch.
    """
    k, share = len(batch), (len(free) - len(batch)) / len(free)
    whole = (free.T @ free + past.T @ past) / (len(free) + len(past))
    now = 1 + (weights - 1) * share
    design = ((past * now[:, None]).T @ past + (batch * given[:, None]).T @ batch) / (len(past) + k)
    root = np.linalg.cholesky(whole)
    half = np.linalg.solve(root, design)
    return np.linalg.eigvalsh(np.linalg.solve(root, half.T))
