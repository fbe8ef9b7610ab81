"""k-center and k-means++ as a user's own `Greedy`: a few lines each, one pass over all rows for each pick."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import labelwise as lw
from labelwise.signals.rows import Rows, sq_near, sq_norm
from labelwise.signals.spec import Embedding, HeadGrad, Needs, Signal

GRADIENT = HeadGrad(label="argmax")


class OwnKCenter(lw.Greedy):
    """Farthest first, from the origin on; the state of a row is its distance and, which saves time, its length."""

    needs = Needs(pool=(Embedding(),))
    signal: Signal = Embedding()

    def init(self, rows: Rows, carry: Any) -> Tensor:
        return sq_norm(rows[self.signal])[:, None].repeat(1, 2)

    def gain(self, rows: Rows, state: Tensor, carry: Any) -> Tensor:
        return state[:, 0]

    def update(self, rows: Rows, state: Tensor, carry: Any, pick: Rows) -> Tensor:
        near_N = sq_near(rows[self.signal], state[:, 1], pick[self.signal])
        return torch.stack([torch.minimum(state[:, 0], near_N), state[:, 1]], 1)


class OwnBadge(OwnKCenter):
    """k-means++ on last-layer gradients, from the origin on."""

    needs = Needs(pool=(GRADIENT,))
    signal = GRADIENT
    sampled = True

    def gain(self, rows: Rows, state: Tensor, carry: Any) -> Tensor:
        return state[:, 0].log()


ALL: dict[str, type[lw.Greedy]] = {"badge": OwnBadge, "kcenter": OwnKCenter}
