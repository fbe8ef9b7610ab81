"""A strategy of your own (unsure rows, far from each other), checked for the rules of all, and compared with two."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import labelwise as lw
from labelwise.registry import register
from labelwise.signals.rows import Rows, sq_dist, sq_norm
from labelwise.signals.spec import Embedding, Needs, Probs


@register
class FarAndUnsure(lw.Greedy):
    name = "far-and-unsure"
    reason = "The model is unsure, and nothing like it is in the batch."
    needs = Needs(pool=(Probs(), Embedding()))

    def init(self, rows: Rows, carry: object) -> Tensor:
        return sq_norm(rows[Embedding()]) + 1

    def gain(self, rows: Rows, state: Tensor, carry: object) -> Tensor:
        p = rows.tensor(Probs())
        return -(p * p.clamp_min(1e-12).log()).sum(1) * state.sqrt()

    def update(self, rows: Rows, state: Tensor, carry: object, pick: Rows) -> Tensor:
        return state.minimum(sq_dist(rows[Embedding()], pick[Embedding()])[:, 0])


print(lw.verify.check_strategy(FarAndUnsure()))
X, y = load_digits(return_X_y=True)
for recipe in ("random", "entropy", "far-and-unsure"):
    model, test = LogisticRegression(max_iter=1000), (X[1000:] / 16, y[1000:])
    curves = []
    for seed in range(3):
        records = lw.rounds(X[:1000] / 16, y[:1000], model, recipe, k=20, n=4, seed=seed, test=test)
        curves.append([record.metrics["accuracy"] for record in records])
    print(recipe, "accuracy after each round:", np.mean(curves, 0).round(3))
