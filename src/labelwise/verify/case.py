"""Case: what a check receives (strategy, seed, device), and the registry of checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any

import numpy as np

from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.verify.problems import Problem, picks_of
from labelwise.verify.result import NotApplicable


@dataclass
class Case:
    """A strategy to check, and the arrays of its last problem, which are saved when the check fails."""

    strategy: Strategy
    seed: int = 0
    device: str = "cpu"
    arrays: dict[str, np.ndarray] = field(default_factory=dict)

    def rng(self, *names: str | int) -> np.random.Generator:
        """A random generator for the problem of this name."""
        return Key(self.seed).fold(*names).numpy()

    def record(self, arrays: Mapping[str, Any]) -> None:
        """Remember the arrays of the current problem."""
        self.arrays = {name: np.asarray(value) for name, value in arrays.items() if value is not None}

    def record_problem(self, problem: Problem) -> None:
        """Remember the current problem."""
        labelled = {f"labelled_{name}": value for name, value in (problem.labelled or {}).items()}
        self.record({**problem.arrays, **labelled, "ids": problem.ids, "k": problem.k, "selection_seed": problem.seed})

    def select(
        self,
        k: int,
        arrays: Mapping[str, np.ndarray],
        ids: np.ndarray | None = None,
        labelled: Mapping[str, np.ndarray] | None = None,
        seed: int = 0,
        strategy: Strategy | None = None,
    ) -> Selection:
        """Select on the device of the case, and remember the problem."""
        n = len(next(iter(arrays.values()))) if arrays else len(ids if ids is not None else ())
        problem = Problem(arrays, np.arange(n) if ids is None else ids, k, seed, labelled, self.device)
        self.record_problem(problem)
        return picks_of(strategy or self.strategy, problem)

    def with_parameters(self, parameters: Mapping[str, Any]) -> Strategy:
        """The strategy with these parameters; NotApplicable where it does not have them."""
        if not is_dataclass(self.strategy):
            raise NotApplicable(f"{type(self.strategy).__name__} is not a dataclass: it has no parameters to set")
        known = {one.name for one in fields(self.strategy)}
        missing = set(parameters) - known
        if missing:
            raise NotApplicable(f"{type(self.strategy).__name__} has no parameter {sorted(missing)[0]}")
        return replace(self.strategy, **parameters)


Check = Callable[[Case], None]
CHECKS: dict[str, dict[str, Check]] = {}  # by the name of a strategy, then by the title of a check


def checks(strategy: str, title: str = "reference") -> Callable[[Check], Check]:
    """Decorator: the function checks the strategy of this name; `labelwise verify` lists it under `title`.

    It raises CheckFailed where the strategy is wrong, and NotApplicable where there is nothing to check.
    """

    def add(check: Check) -> Check:
        CHECKS.setdefault(strategy, {})[title] = check
        return check

    return add
