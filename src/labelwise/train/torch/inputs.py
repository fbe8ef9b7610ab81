"""The inputs of the labelled rows in memory, so that training slices batches instead of reading the pool each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from labelwise.pool import Pool
from labelwise.rng import Key

HELD_BYTES = 1 << 30  # labelled sets are small; one that is not is read from the pool batch by batch


class LabelledInputs:
    """Model inputs of the rows `ids` by their place among them: read once, or from the pool when they are too many.

    Random transforms inside a Dataset are drawn when a row is read, so rows that are read once see one draw: chance
    in training belongs in the learner's `augment`.
    """

    def __init__(self, pool: Pool, ids: Tensor, held_bytes: int = HELD_BYTES):
        self.pool = pool
        self.ids = ids
        self.held: Any = None
        if _bytes(pool.inputs(ids[:1])) * len(ids) <= held_bytes:
            self.held = pool.inputs(ids)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Tensor) -> Any:
        """Inputs of the rows at these places."""
        return self.pool.inputs(self.ids[index]) if self.held is None else take(self.held, index)


def take(inputs: Any, index: Tensor) -> Any:
    """Some rows of a batch of inputs."""
    if isinstance(inputs, Tensor):
        return inputs[index.to(inputs.device)]
    if isinstance(inputs, Mapping):
        return {name: take(value, index) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list) and inputs and isinstance(inputs[0], Tensor | Mapping):
        return [take(value, index) for value in inputs]
    return [inputs[place] for place in index.tolist()]


def _bytes(inputs: Any) -> int:
    if isinstance(inputs, Tensor):
        return inputs.numel() * inputs.element_size()
    if isinstance(inputs, Mapping):
        return sum(_bytes(value) for value in inputs.values())
    if isinstance(inputs, tuple | list):
        return sum(_bytes(value) for value in inputs)
    return len(inputs) if isinstance(inputs, str) else 0


def held_out(ids: Tensor, labels: Tensor, share: float, key: Key) -> tuple[Tensor, Tensor]:
    """Places of the rows to train on and of those held out, each in order.

    About `share` of every class is held out, and never the last row of a class. Which rows depends on the key and on
    their ids, not on their order.
    """
    by_draw, grouped = _drawn(ids, labels, key)
    size_C = torch.bincount(labels)
    size_n = size_C[labels[grouped]]
    rank_n = torch.arange(len(ids)) - (size_C.cumsum(0) - size_C)[labels[grouped]]
    part = torch.empty(len(ids), dtype=torch.float64)
    part[grouped] = ((rank_n + 0.5) / size_n).double().masked_fill(rank_n == size_n - 1, torch.inf)
    count = min(round(share * len(ids)), int(torch.isfinite(part).sum()))
    # Lowest part first takes rows from every class in turn; the draw decides between classes of one size.
    out = by_draw[part[by_draw].argsort(stable=True)][:count].sort().values
    kept = torch.ones(len(ids), dtype=torch.bool)
    kept[out] = False
    return kept.nonzero()[:, 0], out


def folds(ids: Tensor, labels: Tensor, count: int, key: Key) -> Tensor:
    """The fold 0..count-1 of each row, every class spread evenly over them; by key and ids, not by order."""
    _, grouped = _drawn(ids, labels, key)
    fold = torch.empty_like(grouped)
    fold[grouped] = torch.arange(len(ids)) % count
    return fold


def _drawn(ids: Tensor, labels: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """Places of the rows by their draw, and by class and inside a class by their draw."""
    by_draw = key.uniform(ids).argsort()
    return by_draw, by_draw[labels[by_draw].argsort(stable=True)]
