"""Replay: the labelled rows of a project as a simulation, with the project's features and its model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.bench.data.load import Data
from labelwise.bench.suite.compare import Comparison
from labelwise.errors import BudgetError, LabelError
from labelwise.pool import Pool
from labelwise.project.exchange.entries import classes_of
from labelwise.project.loop.model import head_learner
from labelwise.project.project import Project
from labelwise.recipes import get
from labelwise.rng import Key
from labelwise.signals.spec import LogProbs
from labelwise.train.laplace import laplace

FEWEST = 30  # labelled rows; with fewer the test rows tell nothing
ONLY = (
    "The rows were chosen for labelling by a strategy, except those of the test slice, so they are not a sample of the "
    "whole pool: the comparison holds on these rows only"
)


@dataclass(frozen=True)
class Replay:
    """The labelled rows of a project: features, labels, and whether each was chosen or drawn at random."""

    name: str
    kind: str
    task: str
    rows: np.ndarray
    x_ND: Tensor
    label_N: np.ndarray
    classes: tuple[str, ...] | None
    test_rows: int
    recipe: str
    k: int

    @property
    def metric(self) -> str:
        """What is measured."""
        return "rmse" if self.task == "regress" else "accuracy"

    @property
    def digest(self) -> str:
        """16 hex digits that change when rows, features or labels do."""
        content = (self.rows.tobytes(), self.x_ND.numpy().tobytes(), self.label_N.tobytes())
        return hashlib.sha256(b"".join(content)).hexdigest()[:16]

    def data(self, seed: int, share: float) -> Data:
        """Rows to choose from and rows to test on; each seed sets other rows aside."""
        order = Key(seed).fold("replay", "test").uniform(torch.from_numpy(self.rows)).argsort(stable=True)
        count = max(1, round(share * len(self.rows)))
        test, rest = order[:count].sort().values.numpy(), order[count:].sort().values.numpy()
        kind: Any = self.kind
        task: Any = self.task
        return Data(self.name, kind, task, self.metric, self._part(rest), self._part(test), self.classes, None, "own")

    def learner(self, data: Data, recipe: str) -> Any:
        """The model of the project, with draws of its weights for a recipe that asks for them."""
        task: Any = self.task
        made = head_learner(self.x_ND.shape[1], len(self.classes or ()), task)
        needs_draws = any(isinstance(signal, LogProbs) for signal in get(recipe).strategy.needs.pool)
        return laplace(made) if needs_draws and task == "classify" else made

    def plan(self, recipes: tuple[str, ...], seeds: int, k: int | None, share: float) -> Comparison:
        """Rounds of k rows, a tenth of what there is by default, up to four fifths of it."""
        free = len(self.rows) - max(1, round(share * len(self.rows)))
        size = k or max(2, min(self.k, free // 10))
        start = max(size, 2 * len(self.classes or ()))
        rounds = (int(0.8 * free) - start) // size
        if rounds < 2:
            raise BudgetError(
                f"{free} labelled rows to choose from are too few for two rounds of {size} after {start} first labels; "
                "label more, take a smaller -k or a smaller --test"
            )
        return Comparison(recipes, tuple(range(seeds)), start=start, k=size, n=rounds)

    def _part(self, places: np.ndarray) -> Pool:
        labels = self.label_N[places]
        whole = labels if self.task == "regress" else labels.astype(np.int64)
        return Pool.of(self.x_ND[torch.from_numpy(places)], ids=self.rows[places], labels=whole, classes=self.classes)


def replay_of(project: Project) -> Replay:
    """What can be replayed of a project: every row with an agreed label, of both slices."""
    project.require_one_label("labelwise bench replay")
    settings = project.settings
    agreed = {row: one.value for row, one in sorted(project.store.answers().items()) if one.value is not None}
    if len(agreed) < FEWEST:
        raise BudgetError(f"{len(agreed)} rows have a label; a replay needs at least {FEWEST} to say anything")
    classes = classes_of(project)
    used = tuple(name for name in classes if name in set(agreed.values()))
    if settings.task == "classify" and len(used) < 2:
        raise LabelError(f"all labels are {used[0]!r}; a replay needs two classes at least")
    rows = np.array(list(agreed), np.int64)
    label_N = np.array([float(value) if settings.task == "regress" else used.index(value) for value in agreed.values()])
    return Replay(
        name=settings.name,
        kind=settings.kind,
        task=settings.task,
        rows=rows,
        x_ND=project.pool.inputs(rows).clone(),
        label_N=label_N,
        classes=used if settings.task == "classify" else None,
        test_rows=int(np.isin(rows, project.reserve).sum()),
        recipe=settings.recipe,
        k=settings.k,
    )
