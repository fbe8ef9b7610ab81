"""Labelled data of one training: inputs in memory, hold-out and folds, and the order of the rows in an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.train.objectives.loss import Loss

CACHE_BYTES = 1 << 30  # labelled sets are small; a larger one is read from the pool batch by batch


class LabelledInputs:
    """Model inputs of the rows `ids` by their position: read once, or from the pool if they are too many.

    Random transforms inside a Dataset are drawn when a row is read, so rows that are read once see one draw: chance
    in training belongs in the learner's `augment`.
    """

    def __init__(self, pool: Pool, ids: Tensor, cache_bytes: int = CACHE_BYTES):
        self.pool = pool
        self.ids = ids
        self.cache: Any = None
        self._items: list[Any] | None = None  # of a pool with a collate function: padded batch by batch
        if _bytes(pool.inputs(ids[:1])) * len(ids) <= cache_bytes:
            self._items = pool.items(ids)
            self.cache = pool.inputs(ids) if self._items is None else None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Tensor) -> Any:
        """Inputs of the rows at these positions."""
        if self._items is not None:
            return self.pool.collate([self._items[position] for position in index.tolist()])
        return self.pool.inputs(self.ids[index]) if self.cache is None else take_rows(self.cache, index)


@dataclass(frozen=True)
class ValidationRows:
    """Labelled rows that are not trained on.

    Attributes:
        inputs: their inputs, among others.
        index: (m,) their positions there.
        labels: (m,) their labels.
        among_labelled: whether they are held-out labelled rows, for which the objective has weights.
    """

    inputs: LabelledInputs
    index: Tensor
    labels: Tensor
    among_labelled: bool


@dataclass(frozen=True)
class TrainSet:
    """What to train on. Rows are named by their position among the labelled rows, also towards the objective.

    Attributes:
        inputs: of all labelled rows.
        labels: (n,) of all labelled rows.
        index: positions of the rows that are trained on.
        loss: compares outputs with labels.
        validation: rows to validate on, or None.
    """

    inputs: LabelledInputs
    labels: Tensor
    index: Tensor
    loss: Loss
    validation: ValidationRows | None


def check_validation(valid: Any) -> tuple[Pool, Tensor]:
    """The pool and labels (m,) of the argument `valid`."""
    if not isinstance(valid, tuple) or len(valid) != 2:
        raise ArgumentError("valid is a pair (inputs or Pool, labels).")
    inputs, labels = valid
    pool = inputs if isinstance(inputs, Pool) else Pool.of(inputs)
    labels = torch.as_tensor(labels)
    if labels.shape != (len(pool),):
        raise LabelError(f"valid: {len(pool)} labels were expected, shape {tuple(labels.shape)} was found.")
    return pool, labels


def take_rows(inputs: Any, index: Tensor) -> Any:
    """The rows at these positions of a batch of inputs."""
    if isinstance(inputs, Tensor):
        return inputs[index.to(inputs.device)]
    if isinstance(inputs, Mapping):
        return {name: take_rows(value, index) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list) and inputs and isinstance(inputs[0], Tensor | Mapping):
        return [take_rows(value, index) for value in inputs]
    return [inputs[position] for position in index.tolist()]


def _bytes(inputs: Any) -> int:
    if isinstance(inputs, Tensor):
        return inputs.numel() * inputs.element_size()
    if isinstance(inputs, Mapping):
        return sum(_bytes(value) for value in inputs.values())
    if isinstance(inputs, tuple | list):
        return sum(_bytes(value) for value in inputs)
    return len(inputs) if isinstance(inputs, str) else 0


def holdout_rows(ids: Tensor, groups: Tensor, share: float, key: Key, strict: bool) -> Tensor:
    """Which labelled rows (n,) are held out: those whose draw from (key, id) is below `share`, in every round the same.

    Args:
        ids: (n,) the labelled rows.
        groups: (n,) their classes; zeros in regression.
        share: from 0 to below 1.
        key: the same in every round.
        strict: hold out these rows without exception. If False, a class is never held out as a whole: the row with
            the highest draw is trained on until another row of the class is.
    """
    draw_n = key.uniform(ids)
    out_n = draw_n < share
    if strict:
        return out_n
    for group in groups[out_n].unique().tolist():
        of_group = (groups == group).nonzero()[:, 0]
        if bool(out_n[of_group].all()):
            out_n[of_group[draw_n[of_group].argmax()]] = False
    return out_n


def assign_folds(ids: Tensor, labels: Tensor, count: int, key: Key) -> Tensor:
    """The fold 0..count-1 of each row (n,), every class spread evenly; by key and ids, not by order."""
    _, by_class = _draw_order(ids, labels, key)
    fold = torch.empty_like(by_class)
    fold[by_class] = torch.arange(len(ids)) % count
    return fold


def _draw_order(ids: Tensor, labels: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """Positions of the rows by their draw, and by class and within a class by their draw."""
    by_draw = key.uniform(ids).argsort()
    return by_draw, by_draw[labels[by_draw].argsort(stable=True)]


def split_epoch(index: Tensor, size: int, key: Key, rate_n: Tensor | None) -> list[Tensor]:
    """The rows at `index` in the order of one epoch, in batches of `size`; drawn by `rate_n` where that is given.

    No batch holds one row, which batch norm cannot normalise.
    """
    shuffled = torch.randperm(len(index), generator=key.generator())
    order = index[shuffled] if rate_n is None else weighted_order(index, rate_n, key)
    if len(order) == 1:
        return [order.repeat(2)]
    batches = list(order.split(size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def weighted_order(index: Tensor, rate_n: Tensor, key: Key) -> Tensor:
    """As many of the positions `index` as there are, drawn with replacement in proportion to their rates.

    Theorem 4.2 of "Sample complexity of deep active learning": what minimises sum_i u_i loss_i is found by drawing
    rows with probability u_i / sum_j u_j and minimising their plain loss. It is the weighted objective up to a factor,
    so the two are never combined.
    """
    rate = rate_n.cpu().double()[index]
    if not bool(rate.any()):
        raise ArgumentError("all weights of the rows that are trained on are 0: there is nothing to draw.")
    return index[torch.multinomial(rate, len(index), replacement=True, generator=key.generator())]
