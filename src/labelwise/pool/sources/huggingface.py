"""Rows of a Hugging Face `datasets.Dataset`, known by its interface: the package itself is never imported."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, SourceError
from labelwise.pool.source import content
from labelwise.pool.sources.images import Size, checked_size, decode, shaped
from labelwise.pool.sources.table import Columns

_LABELS = ("label", "labels")


def is_hugging(source: Any) -> bool:
    """Whether `source` comes from the package `datasets`; which of its kinds it is, HuggingSource checks."""
    modules = {kind.__module__.split(".")[0] for kind in type(source).__mro__}
    return "datasets" in modules and hasattr(source, "column_names")


class HuggingSource:
    """One column of texts or images, or several of numbers, read in batches by row."""

    kind = "hugging"

    def __init__(self, dataset: Any, wanted: Columns, size: Size, dtype: torch.dtype):
        if isinstance(dataset.column_names, dict):
            splits = ", ".join(dataset.column_names)
            raise ArgumentError(f"a pool is one split of a DatasetDict; choose one of {splits}, such as data['train'].")
        if not hasattr(dataset, "__len__"):
            raise ArgumentError(
                "a pool needs a datasets.Dataset with a length; this one is a stream. Load it without streaming=True."
            )
        self.wanted = _completed(dataset, wanted)
        self.dataset = dataset
        self.rows = _only(dataset, Columns(self.wanted.text, self.wanted.image, self.wanted.columns).names())
        self.height, self.width = checked_size(size)
        self.dtype = dtype

    def __len__(self) -> int:
        return len(self.dataset)

    def inputs(self, positions: np.ndarray) -> Any:
        batch = self.rows[positions.tolist()]
        if self.wanted.text is not None:
            return [self._text(value, row) for value, row in zip(batch[self.wanted.text], positions.tolist())]
        if self.wanted.image is not None:
            return self._pixels(batch[self.wanted.image], positions)
        columns = [self._numbers(batch[name], name) for name in self.wanted.columns or ()]
        return torch.cat(columns, dim=1).to(self.dtype)

    def name(self, position: int) -> str | None:
        if self.wanted.text is None:
            return None
        words = " ".join(self.inputs(np.array([position]))[0].split())
        return words if len(words) <= 80 else words[:79] + "…"

    def sample(self, positions: np.ndarray) -> bytes:
        # Pixels are left out: decoders may differ in the last bit from version to version.
        which = repr((self.wanted.names(), self.height, self.width)).encode()
        if self.wanted.image is not None:
            return which
        values = self.inputs(positions)
        return which + content(values.numpy() if isinstance(values, Tensor) else values)

    def labels(self) -> Any:
        """The label column, or None."""
        return None if self.wanted.label is None else list(_only(self.dataset, [self.wanted.label])[self.wanted.label])

    def classes(self) -> tuple[str, ...] | None:
        """The names of a ClassLabel column."""
        feature = dict(self.dataset.features or {}).get(self.wanted.label)
        names = getattr(feature, "names", None)
        return tuple(names) if names else None

    def _text(self, value: Any, row: int) -> str:
        if not isinstance(value, str):
            raise SourceError(f"row {row}: column {self.wanted.text!r} holds {value!r:.60}; a text was expected.")
        return value

    def _numbers(self, values: Any, name: str) -> Tensor:
        try:
            column = torch.from_numpy(np.array(values, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise SourceError(f"column {name!r} does not hold numbers ({error}); name others with columns=.") from error
        return column.flatten(1) if column.ndim > 1 else column[:, None]

    def _pixels(self, values: Sequence[Any], positions: np.ndarray) -> Tensor:
        batch = np.empty((len(positions), 3, self.height, self.width), np.float32)
        for place, (value, row) in enumerate(zip(values, positions.tolist())):
            try:
                encoded = value.get("bytes") or value.get("path") if isinstance(value, dict) else None
                found = decode(encoded, self.height, self.width) if encoded else shaped(value, self.height, self.width)
            except Exception as error:
                raise SourceError(f"row {row}: the image in {self.wanted.image!r} cannot be read ({error}).") from error
            batch[place] = found.transpose(2, 0, 1)
        return torch.from_numpy(batch).div_(255)


def _completed(dataset: Any, wanted: Columns) -> Columns:
    """Check the columns named; where none makes the row take the image column, else the text, else the numbers."""
    names, features = list(dataset.column_names), dict(dataset.features or {})
    for name in wanted.names():
        if name not in names:
            raise SourceError(f"there is no column {name!r} in the dataset; its columns are {', '.join(names)}.")
    label = wanted.label or next((name for name in _LABELS if name in names), None)
    if any(way is not None for way in (wanted.text, wanted.image, wanted.columns)):
        return Columns(wanted.text, wanted.image, wanted.columns, label)
    rest = [name for name in names if name != label]
    images = [name for name in rest if type(features.get(name)).__name__ == "Image"]
    texts = [name for name in rest if getattr(features.get(name), "dtype", None) in ("string", "large_string")]
    if len(images) == 1:
        return Columns(image=images[0], label=label)
    if "text" in texts or len(texts) == 1:
        return Columns(text="text" if "text" in texts else texts[0], label=label)
    if rest and not texts and not images:
        return Columns(columns=tuple(rest), label=label)
    raise SourceError(
        f"which column makes a row? The dataset has {', '.join(names)}; use Pool.hugging(dataset, text=...), "
        "image=... or columns=[...]."
    )


def _only(dataset: Any, columns: list[str]) -> Any:
    """The dataset with these columns alone, so that others (images) are not decoded to be thrown away."""
    plain = dataset.with_format(None) if hasattr(dataset, "with_format") else dataset
    return plain.select_columns(columns) if hasattr(plain, "select_columns") else plain
