"""Slow references of measured_complexity.py in float64 NumPy: the definitions, with explicit inverses and loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from labelwise.strategies.leverage.reference import Procedure

Array = np.ndarray[Any, np.dtype[np.float64]]


def expected_excess(v: Array, ids: Sequence[int], weights: Sequence[float], noise: Array) -> float:
    """sum over labelled rows of noise_i |d f^/d y_i|^2: the change of the fit on the whole pool by one label."""
    gram = sum((w * np.outer(v[i], v[i]) for i, w in zip(ids, weights)), np.zeros((v.shape[1], v.shape[1])))
    total = 0.0
    for i, w in zip(ids, weights):
        by_label = np.linalg.inv(gram) @ (w * v[i])
        total += noise[i] * float(np.mean([(row @ by_label) ** 2 for row in v]))
    return total / float(np.mean(noise))


def alpha_condition_number(v: Array, law: Array) -> float:
    """Definition 5.4, the supremum over h as the largest eigenvalue of v(x) v(x)^T."""
    found = 0.0
    for row, share in zip(v, law):
        sup = float(np.linalg.eigvalsh(np.outer(row, row))[-1])
        if sup > 0:
            found = max(found, sup / len(v) / share)
    return found


def procedure(v: Array, epsilon: float, rows: Sequence[int]) -> dict[str, Any]:
    """Definition 5.5 on the procedure that draws these rows, one after the other, until its natural end."""
    gamma, queue = math.sqrt(epsilon) / 3, list(rows)
    run = Procedure(v, gamma)
    numbers, worst = [], 0.0
    while True:
        forms = run.forms(run.energy())
        number = alpha_condition_number(v, forms / forms.sum())
        if not queue or not run.step(lambda law: queue.pop(0)):
            break
        numbers.append(number)
        worst = max(worst, run.beta[-1] * number)
    lam = run.design()
    return {
        "condition_numbers": (min(numbers), max(numbers)),
        "sum_beta": sum(run.beta),
        "worst": worst,
        "eigenvalues": (float(lam[0]), float(lam[-1])),
    }


def two_layer(x: Array, w: Array, a: Array, phi: Any) -> Array:
    """Definition 3.1, unit by unit."""
    return sum((a[r] * phi(x @ w[:, r]) for r in range(len(a))), np.zeros(len(x))) / math.sqrt(len(a))


def basis_distance(v: Array, outputs: Array) -> Array:
    """Claim 5.3: the mean squared residual of a least-squares fit of each column."""
    fits = [np.linalg.lstsq(v, column, rcond=None)[0] for column in outputs.T]
    return np.array([np.mean((column - v @ fit) ** 2) for column, fit in zip(outputs.T, fits)])


def certificate(psi: Array, labelled: Sequence[int], weights: Array, rank: int, constant: bool) -> dict[str, Any]:
    """Dense: functions whitened by a singular value decomposition of all rows, rows projected by least squares."""
    shift = psi.mean(0) if constant else np.zeros(psi.shape[1])
    u, s, _ = np.linalg.svd(psi - shift, full_matrices=False)
    width = int((s**2 > 1e-10 * s[0] ** 2).sum())
    v = math.sqrt(len(psi)) * u[:, :width]
    if constant:
        v = np.column_stack([np.ones(len(psi)), v])
    w = np.asarray(weights) / np.mean(weights)
    design = sum(one * np.outer(v[i, :rank], v[i, :rank]) for i, one in zip(labelled, w)) / len(labelled)
    lam = np.linalg.eigvalsh(design)
    span = (psi - shift)[[i for i, one in zip(labelled, w) if one > 0]].T
    inside = [span @ np.linalg.lstsq(span, row, rcond=1e-10)[0] for row in psi - shift]
    return {
        "eigenvalues": (float(lam[0]), float(lam[-1])),
        "seen": float(np.square(inside).sum() / np.square(psi - shift).sum()),
        "unseen": 1 - int(np.linalg.matrix_rank(span, tol=1e-5 * np.linalg.norm(span, 2))) / width,
    }
