"""Made-up regression pools in which few rows decide much: heavy tails, long rows, and clusters of unequal size."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

WIDTH = 12  # columns
FREEDOM = 2.5  # of Student's law: the variance is finite, the fourth moment is not
CLUSTERS = 20


def heavy_tailed(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Independent t(2.5) columns; the target is linear except for the size of the first column, with noise."""
    x_ND = rng.standard_t(FREEDOM, size=(n, WIDTH))
    return x_ND, x_ND @ _slopes(rng) + np.abs(x_ND[:, 0]) + rng.normal(size=n)


def heavy_rows(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Multivariate t(2.5): whole rows are long or short; the target is linear except for the length of the row."""
    x_ND = rng.normal(size=(n, WIDTH)) / np.sqrt(rng.chisquare(FREEDOM, size=(n, 1)) / FREEDOM)
    return x_ND, x_ND @ _slopes(rng) + 0.5 * np.linalg.norm(x_ND, axis=1) + rng.normal(size=n)


def clustered(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Clusters whose sizes fall as 1, 1/2, 1/3 ...; the target is a small network of the row, with noise."""
    size_C = 1 / np.arange(1, CLUSTERS + 1)
    centre_CD = 2 * rng.normal(size=(CLUSTERS, WIDTH))
    x_ND = centre_CD[rng.choice(CLUSTERS, n, p=size_C / size_C.sum())] + 0.3 * rng.normal(size=(n, WIDTH))
    hidden_NH = np.tanh(x_ND @ rng.normal(size=(WIDTH, 8)) / np.sqrt(WIDTH))
    return x_ND, 3 * hidden_NH @ rng.normal(size=8) + 0.5 * rng.normal(size=n)


def _slopes(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=WIDTH)


MAKERS: dict[str, Callable[[int, np.random.Generator], tuple[np.ndarray, np.ndarray]]] = {
    "heavy-tailed": heavy_tailed,
    "heavy-rows": heavy_rows,
    "clustered": clustered,
}
