"""Case: what a check is given, a strategy, a seed and a device; and where it keeps the arrays it is looking at."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.verify.problems import Problem, chosen
from labelwise.verify.result import NotApplicable


@dataclass
class Case:
    """A strategy under a check, and the problem it was last asked about: what is saved when the check fails."""

    strategy: Strategy
    seed: int = 0
    device: str = "cpu"
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def rng(self, *names: str | int) -> np.random.Generator:
        """Chance for the problem of this name."""
        return Key(self.seed).fold(*names).numpy()

    def keep(self, arrays: Mapping[str, Any]) -> None:
        """Remember these arrays as the problem at hand."""
        self.arrays = {name: np.asarray(value) for name, value in arrays.items() if value is not None}

    def hold(self, problem: Problem) -> None:
        """Remember this problem."""
        behind = {f"labelled_{name}": value for name, value in (problem.labelled or {}).items()}
        self.keep({**problem.arrays, **behind, "ids": problem.ids, "k": problem.k, "selection_seed": problem.seed})

    def select(
        self,
        k: int,
        arrays: Mapping[str, np.ndarray],
        ids: np.ndarray | None = None,
        labelled: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
        strategy: Strategy | None = None,
    ) -> Selection:
        """The picks on the case's device, the problem remembered."""
        n = len(next(iter(arrays.values()))) if arrays else len(ids if ids is not None else ())
        problem = Problem(arrays, np.arange(n) if ids is None else ids, k, seed, labelled, self.device)
        self.hold(problem)
        return chosen(strategy or self.strategy, problem)

    def having(self, parameters: Mapping[str, Any]) -> Strategy:
        """The strategy with these parameters, where it has them."""
        if not is_dataclass(self.strategy):
            raise NotApplicable(f"{type(self.strategy).__name__} is not a dataclass: it has no parameters to set")
        known = {one.name for one in fields(self.strategy)}
        missing = set(parameters) - known
        if missing:
            raise NotApplicable(f"{type(self.strategy).__name__} has no parameter {sorted(missing)[0]}")
        return replace(self.strategy, **parameters)


Check = Callable[[Case], None]
