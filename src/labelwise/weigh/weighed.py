"""WeighedLearner: trains a learner with weights that are made for the labelled rows, whatever they were drawn with.

`sabal`: after a first fit with equal weights, the gradients of the last layer are read over the whole pool, and the
labelled rows get the weights that minimise SABAL's f1 (strategies/sabal/support.py): with them, these rows have nearly
the pool's mean gradient. The learner is then trained again, with the weights: twice the training and one sweep.
Departs from the paper: the gradient is that of a loss at distance one from the prediction, which is the embedding h.
The paper's (p - q) h^T, and BADGE's (p - e) h^T, are small on rows that the model was trained on, whose labels it
knows: weights by them would follow the fit instead of where the rows lie.
`law`: the weights that the rows were drawn with, in the joint design of all rounds.

Weights leave an effective sample size of at least FLOOR of the labelled rows: beta of f1 is doubled until they do, and
weights by law are raised to the largest power from 0 to 1 with which they do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.pool import Pool
from labelwise.signals.read import Reader, read
from labelwise.signals.rows import Factored
from labelwise.signals.spec import Embedding, Weight
from labelwise.strategies.sabal.support import Support
from labelwise.train.learner import Fit, Learner, TrainingData, WrappingLearner
from labelwise.weigh.floor import FLOOR, effective_share, tempered

BATCH = 256  # rows of a forward pass
DOUBLINGS = 60
WEIGHTS = "weigh"  # in the state of a fit


class WeighedLearner(WrappingLearner):
    """Trains a learner with weights of the labelled rows; the fit publishes them as `Weight()`, of mean 1."""

    def __init__(self, learner: Learner, by: Literal["sabal", "law"] = "sabal", beta: float | None = None):
        """Weigh the rows of `learner`.

        Args:
            learner: one that uses the weights it is given.
            by: where the weights come from.
            beta: of f1; None is the mean of |phi|^2 over the labelled rows, so that scaling the embedding by a constant
                changes nothing.
        """
        if by not in ("sabal", "law"):
            raise ArgumentError(f'by is "sabal" or "law", not {by!r}.')
        if beta is not None and not beta >= 0:
            raise ArgumentError(f"beta is a number of at least 0, or None, not {beta!r}.")
        self.learner = learner
        self.by = by
        self.beta = beta
        self.task = getattr(learner, "task", "classify")

    def fit_data(self, data: TrainingData) -> Fit:
        """Weigh the rows, then train on them."""
        if self.by == "law":
            given = data.weights if data.weights is not None else torch.ones(len(data.ids))
            weight_M, power = tempered(given.double().numpy())
            notes: dict[str, Any] = {"by": "law", "power": power}
            first = 0.0
        else:
            fit = replace(data, weights=None).fit(self.learner)
            weight_M, notes = sabal_weights(fit.reader, data.pool, data.ids, self.beta)
            first = fit.notes.get("seconds", 0.0)
        notes |= {"effective_share": effective_share(weight_M), "floor": FLOOR}
        weights = torch.from_numpy(weight_M)
        fit = replace(data, weights=weights).fit(self.learner)
        notes = {**fit.notes, "weigh": notes}
        if "seconds" in notes:
            notes["seconds"] += first
        state = None if fit.state is None else {**fit.state, WEIGHTS: weights}
        return replace(fit, published={**fit.published, Weight(): weights}, notes=notes, state=state)

    def restore(self, state: dict[str, Tensor], ids: Tensor) -> Fit:
        """Rebuild a fit from its `state`; `ids` (n,) are the rows it was trained on."""
        fit = self.learner.restore({name: value for name, value in state.items() if name != WEIGHTS}, ids)
        return replace(fit, published={**fit.published, Weight(): state[WEIGHTS]})


def sabal_weights(
    reader: Reader, pool: Pool, ids: Tensor, beta: float | None = None
) -> tuple[np.ndarray, dict[str, Any]]:
    """Weights (M,), of mean 1, with which the rows `ids` stand for the pool; and notes on f1.

    Args:
        reader: the model.
        pool: all rows, labelled ones included. They are read once, block by block.
        ids: (M,) the labelled rows.
        beta: of f1; None is the mean of |phi|^2 over the rows.
    """
    total_D: Tensor | None = None
    for rows in read(reader, pool, pool.ids, (Embedding(),), BATCH, device=None):
        here_D = rows.tensor(Embedding()).double().sum(0)
        total_D = here_D if total_D is None else total_D.add_(here_D)
    assert total_D is not None, "a pool has rows"
    found = [rows.tensor(Embedding()).double() for rows in read(reader, pool, ids, (Embedding(),), BATCH, device=None)]
    h_MD = torch.cat(found)
    g, v_1D = Factored(h_MD.new_ones(len(h_MD), 1), h_MD), (total_D / len(pool))[None]
    support = Support.of(g, v_1D)
    beta = support.scale if beta is None else beta
    for _ in range(DOUBLINGS):
        best = support.solve(beta)
        weight_M = best.weight_M.numpy()
        if effective_share(weight_M) >= FLOOR:
            break
        beta = 2 * beta if beta > 0 else 1e-6 * support.scale
    else:
        weight_M = np.ones(len(ids))
    notes = {"by": "sabal", "beta": beta, "f1": [best.before, best.after], "steps": best.steps}
    return weight_M / weight_M.mean(), notes
