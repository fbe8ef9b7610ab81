"""Pools, teachers, strategies and sizes of the experiments on RandBSS, and the excess error that they measure.

The paper has no experiments: pools and sizes are ours. The excess of a fit f^ is E |f^ - f*|^2 / E |y - f*|^2 over the
pool, f* the best function of the span there: theorem 5.7 promises epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.arrays import select
from labelwise.reproduce.verdicts import Stat, stat_of
from labelwise.rng import Key
from labelwise.selection import Strategy
from labelwise.signals.spec import Basis
from labelwise.strategies import Bss, Leverage, Random, Volume
from labelwise.theory.measured_complexity import two_layer_outputs
from labelwise.theory.sample_complexity import functions

PAPER = "Sample complexity of deep active learning, 2021"
STRATEGIES: dict[str, Callable[[int], Strategy]] = {
    "RandBSS": lambda d: Bss(rank=d),
    "Leverage": lambda d: Leverage(rank=d),
    "Volume": lambda d: Volume(rank=d),
    "Uniform": lambda d: Random(),
}
LAWS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray[Any, Any]]] = {
    "Gaussian": lambda rng, n, d: rng.normal(size=(n, d)),
    "heavy-tailed": lambda rng, n, d: rng.standard_t(2.5, size=(n, d)),
    # multivariate t: whole rows are long or short
    "heavy rows": lambda rng, n, d: rng.normal(size=(n, d)) / np.sqrt(rng.chisquare(2.5, size=(n, 1)) / 2.5),
}
TEACHERS = ("linear", "polynomial", "two-layer")
NOISE = 0.3  # standard deviation of the noise, where that of the teacher is 1


@dataclass(frozen=True)
class Sizes:
    """How large the experiments are.

    Attributes:
        rows: of a pool.
        seeds: pools.
        times: numbers of labels, in functions of the basis.
        dimensions, epsilons: of the growth.
        batches, batch: of the rounds.
        networks: seeds of the network.
        k, rounds, width, epochs: of the network. Of 200 epochs at rates of 0.003, 0.01 and 0.03, and 400 at 0.01, those
            with the lowest error of random picks were taken.
    """

    rows: int
    seeds: int
    times: tuple[int, ...]
    dimensions: tuple[int, ...]
    epsilons: tuple[float, ...]
    batches: int
    batch: int
    networks: int
    k: int
    rounds: int
    width: int
    epochs: int


SIZES = {
    "smoke": Sizes(300, 2, (5, 10), (2, 3), (0.5, 0.2), 2, 20, 2, 20, 1, 8, 3),
    "small": Sizes(4000, 10, (5, 10, 20, 40), (5, 10, 20, 40), (0.15, 0.1, 0.05), 11, 40, 5, 60, 3, 64, 200),
    "paper": Sizes(
        20_000, 20, (5, 10, 20, 40, 80), (5, 10, 20, 40, 80), (0.15, 0.1, 0.05, 0.02), 22, 40, 20, 100, 9, 256, 200
    ),
}


@dataclass(frozen=True)
class Problem:
    """A pool with labels and a whitened basis."""

    x_ND: Tensor
    v_ND: Tensor
    y_N: Tensor

    @property
    def d(self) -> int:
        return self.v_ND.shape[1]

    def excess(self, ids: Tensor, weights: Tensor) -> float:
        """E |f^ - f*|^2 / E |y - f*|^2 of weighted least squares on these rows."""
        best_D = self.v_ND.T @ self.y_N / len(self.y_N)
        root_M1 = weights.sqrt()[:, None]
        fit_D = torch.linalg.lstsq(self.v_ND[ids] * root_M1, self.y_N[ids, None] * root_M1, driver="gelsd").solution[
            :, 0
        ]
        return float((fit_D - best_D).square().sum() / (self.y_N - self.v_ND @ best_D).square().mean())

    def draw(self, name: str, k: int, seed: int) -> float:
        """The excess after k rows by a strategy of STRATEGIES."""
        picks = select(STRATEGIES[name](self.d), k, basis=self.v_ND, seed=seed)
        return self.excess(torch.from_numpy(picks.ids), torch.from_numpy(picks.weights))


def problem(teacher: str, law: str, rows: int, seed: int) -> Problem:
    """A pool with a teacher.

    linear: 19 inputs and a constant, which is the basis too. polynomial: all monomials of 5 inputs to degree 2, the
    basis too. two-layer: definition 3.1 with sin, 5 inputs and 64 units, and the same monomials as basis, which
    cannot follow it.
    """
    key = Key(seed).fold("problem", teacher, law)
    rng = key.numpy()
    x_ND = torch.from_numpy(LAWS[law](rng, rows, 19 if teacher == "linear" else 5))
    basis = Basis() if teacher == "linear" else Basis("polynomial", degree=2)
    v_ND = functions(x_ND, basis=basis, seed=seed)
    if teacher == "two-layer":
        truth_N = two_layer_outputs(x_ND, "sin", width=64, count=1, seed=key.small(), scale=math.sqrt(5))[:, 0]
    else:
        truth_N = v_ND @ torch.from_numpy(rng.normal(size=v_ND.shape[1]))
    truth_N = (truth_N - truth_N.mean()) / truth_N.std()
    return Problem(x_ND, v_ND, truth_N + NOISE * torch.from_numpy(rng.normal(size=rows)))


def stats(values: Mapping[str, Sequence[float]], seeds: Sequence[int]) -> dict[str, Stat]:
    """A number by name, from values by seed."""
    return {name: stat_of(found, seeds) for name, found in values.items()}


def constant(value: float, seeds: Sequence[int]) -> Stat:
    """A number that is the same for every seed, to be compared with others."""
    return stat_of([value] * len(seeds), seeds)
