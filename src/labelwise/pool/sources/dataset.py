"""Rows of a map-style torch Dataset: items are x, (x, y) or dicts; a batch of inputs is collated as torch does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset, default_collate

from labelwise.errors import ArgumentError, LabelError, SourceError
from labelwise.pool.source import content
from labelwise.pool.sources.arrays import as_array
from labelwise.pool.sources.collated import LABEL_KEYS

# The names under which datasets keep their answers.
_LABEL_ATTRIBUTES = ("targets", "labels")


class DatasetSource:
    """Items of a Dataset. Their labels are left out of the inputs: y of (x, y), `label`, `labels`, `target` of dicts.

    The fingerprint takes the dataset's type and length, not its content: items may be augmented at random. Only a
    TensorDataset, whose items are fixed, gives its content.
    """

    kind = "dataset"

    def __init__(self, dataset: Any):
        if not callable(getattr(dataset, "__len__", None)):
            raise ArgumentError(
                f"a pool needs a map-style Dataset, with __getitem__ and __len__; {type(dataset).__name__} has no "
                "__len__. Read an IterableDataset into a list of items first."
            )
        self.dataset = dataset
        self.whole = isinstance(dataset, TensorDataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def inputs(self, positions: np.ndarray) -> Any:
        if isinstance(self.dataset, TensorDataset) and len(self.dataset.tensors) <= 2:
            tensor = self.dataset.tensors[0]
            return tensor[torch.from_numpy(positions).to(tensor.device)]
        if not len(positions):
            return _emptied(self.inputs(np.zeros(1, np.int64)))
        try:
            return default_collate(self.rows(positions))
        except (TypeError, RuntimeError) as error:
            raise SourceError(
                f"the items of {type(self.dataset).__name__} do not make a batch: {error}. Give a Dataset whose "
                "items are tensors, numbers or texts of one shape, or pass collate=, a function of a list of items."
            ) from error

    def rows(self, positions: np.ndarray) -> list[Any]:
        """The items at `positions`, without their labels."""
        return [_split(item, row)[0] for item, row in self._items(positions)]

    def name(self, position: int) -> str | None:
        return None

    def sample(self, positions: np.ndarray) -> bytes:
        if isinstance(self.dataset, TensorDataset):
            return content(as_array(self.inputs(positions)))
        return type(self.dataset).__qualname__.encode()

    def part(self, positions: np.ndarray) -> tuple[DatasetSource, np.ndarray | None]:
        if type(self.dataset) is not TensorDataset:  # what a Dataset holds, and where, is known to itself alone
            return self, positions
        rows = torch.from_numpy(positions)
        return DatasetSource(TensorDataset(*(one[rows.to(one.device)].cpu() for one in self.dataset.tensors))), None

    def labels(self) -> Any:
        """The labels of all rows: from the dataset's own list of them if it keeps one, else by reading every item."""
        if isinstance(self.dataset, TensorDataset) and len(self.dataset.tensors) == 2:
            return self.dataset.tensors[1]
        for attribute in _LABEL_ATTRIBUTES:
            values = getattr(self.dataset, attribute, None)
            if isinstance(values, list | tuple | np.ndarray | Tensor) and len(values) == len(self):
                return values
        found = []
        for item, row in self._items(np.arange(len(self))):
            label = _split(item, row)[1]
            if label is None:
                raise LabelError(
                    f'labels="dataset": item {row} of {type(self.dataset).__name__} has no label; items (x, y) or '
                    f"dicts with one of {', '.join(LABEL_KEYS)} were expected. Pass the labels themselves instead."
                )
            found.append(label.item() if isinstance(label, Tensor | np.generic) else label)
        return found

    def classes(self) -> tuple[str, ...] | None:
        """The class names the dataset keeps, if it does."""
        names = getattr(self.dataset, "classes", None)
        known = isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)
        return tuple(names) if names and known else None

    def _items(self, positions: np.ndarray) -> list[tuple[Any, int]] | Any:
        many = getattr(self.dataset, "__getitems__", None)  # torch's own way to read several items at once
        rows = positions.tolist()
        if callable(many) and len(rows) <= 4096:
            return list(zip(many(rows), rows))
        return ((self._item(row), row) for row in rows)

    def _item(self, row: int) -> Any:
        try:
            return self.dataset[row]
        except Exception as error:
            raise SourceError(
                f"item {row} of {type(self.dataset).__name__} cannot be read: {type(error).__name__}: {error}"
            ) from error


def _split(item: Any, row: int) -> tuple[Any, Any]:
    """x and y of an item; y is None when it has none."""
    if isinstance(item, Mapping):
        label = next((item[key] for key in LABEL_KEYS if key in item), None)
        return {key: value for key, value in item.items() if key not in LABEL_KEYS}, label
    if isinstance(item, tuple | list):
        if len(item) == 1:
            return item[0], None
        if len(item) == 2:
            return item[0], item[1]
        raise SourceError(
            f"item {row} of the Dataset is a {type(item).__name__} of {len(item)}; x, (x, y) or a dict was expected. "
            "Wrap the Dataset so that several inputs are one dict."
        )
    return item, None


def _emptied(batch: Any) -> Any:
    """A batch with the form of `batch` and no rows."""
    if isinstance(batch, Mapping):
        return {key: _emptied(value) for key, value in batch.items()}
    if isinstance(batch, Tensor):
        return batch[:0]
    return [] if all(isinstance(part, str) for part in batch) else [_emptied(part) for part in batch]
