"""Rows that a function makes a batch of: tokenised texts that are padded, or items with a collate function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, LabelwiseError, SourceError
from labelwise.pool.source import Source, content

LABEL_KEYS = ("label", "labels", "label_ids", "target")  # of dict rows; never inputs
Collate = Callable[[list[Any]], Any]
_ENDLESS = 10**9  # the length limit of a tokenizer that has none


class RowSource(Source, Protocol):
    """A source that gives its rows one by one."""

    def rows(self, positions: np.ndarray) -> list[Any]:
        """The rows at `positions`, in this order, without their labels."""


class CollatedSource:
    """The rows of another source, each encoded on reading if there is `encode`, and made a batch by `collate`."""

    def __init__(self, source: RowSource, collate: Collate, encode: Collate | None = None):
        self.source = source
        self.tools: dict[str, Any] = {}  # the arguments of `Pool.of` that it was made with
        self.reading: Any = None  # how new rows of a Hugging Face dataset are read
        self.collate_rows = collate
        self.encode = encode
        self.kind = source.kind if encode is None else f"tokenised {source.kind}"
        self.whole = getattr(source, "whole", False) and encode is None

    def __len__(self) -> int:
        return len(self.source)

    def inputs(self, positions: np.ndarray) -> Any:
        if not len(positions):
            return _no_rows(self.inputs(np.zeros(1, np.int64)))
        return self.collate(self.items(positions))

    def items(self, positions: np.ndarray) -> list[Any]:
        """The rows one by one, encoded and not padded."""
        rows = self.source.rows(positions)
        return rows if self.encode is None else self.encode(rows)

    def collate(self, items: list[Any]) -> Any:
        """A batch of rows that `items` gave."""
        try:
            batch = self.collate_rows(items)
        except LabelwiseError:
            raise
        except Exception as error:  # of many kinds: the function is the user's
            raise SourceError(
                f"collate= made no batch of {len(items)} rows, the first of type {type(items[0]).__name__} "
                f"({type(error).__name__}: {error}). It takes a list of rows of the pool, without their labels."
            ) from error
        if not isinstance(batch, Mapping):
            return batch
        for name, values in batch.items():
            if name in LABEL_KEYS:
                raise ArgumentError(
                    f"collate= returns {name!r}, which would reach the model as an input. Return inputs alone; labels "
                    "are told to the session."
                )
            if not isinstance(values, Tensor):
                raise ArgumentError(
                    f"collate= must return tensors, but {name!r} is a {type(values).__name__}; collators of "
                    'transformers do so with return_tensors="pt".'
                )
            if len(values) != len(items):
                raise ArgumentError(
                    f"collate= must return one entry for each of {len(items)} rows; {name!r} has shape "
                    f"{tuple(values.shape)}."
                )
        return dict(batch)

    def as_texts(self, positions: np.ndarray) -> list[str] | None:
        """The texts that rows are made of, if they are known."""
        as_texts = getattr(self.source, "as_texts", None)
        return as_texts(positions) if callable(as_texts) else None

    def name(self, position: int) -> str | None:
        return self.source.name(position)

    def sample(self, positions: np.ndarray) -> bytes:
        encoded = b"" if self.encode is None else content(self.items(positions))
        return self.source.sample(positions) + encoded

    def part(self, positions: np.ndarray) -> tuple[CollatedSource, np.ndarray | None]:
        part = getattr(self.source, "part", None)
        source, rows = (self.source, positions) if part is None else part(positions)
        return CollatedSource(source, self.collate_rows, self.encode), rows


def with_collate(source: RowSource, collate: Any, tokenizer: Any) -> CollatedSource:
    """The source with the function or the tokenizer that a caller gave; texts are tokenised, token ids padded.

    Raises:
        ArgumentError: both or neither are given, or one of them cannot be used.
    """
    if collate is not None and tokenizer is not None:
        raise ArgumentError("give collate= or tokenizer=, not both; a collator of transformers holds its tokenizer.")
    if tokenizer is None:
        if not callable(collate):
            raise ArgumentError(f"collate is a function of a list of rows that returns a batch, not {collate!r:.60}.")
        made = CollatedSource(source, collate)
        made.tools = {"collate": collate}
        return made
    if not callable(tokenizer) or not callable(getattr(tokenizer, "pad", None)):
        raise ArgumentError(
            "tokenizer is a tokenizer of transformers, which is called with texts and has a method pad, not "
            f"{type(tokenizer).__name__}. For another one pass collate=, a function of a list of rows."
        )
    is_text = source.kind == "texts" or getattr(source, "is_text", False)
    made = CollatedSource(source, Pad(tokenizer), Tokenise(tokenizer) if is_text else None)
    made.tools = {"tokenizer": tokenizer}
    return made


class Tokenise:
    """Tokenises texts with a tokenizer of transformers: a dict of lists for each text, cut off at its limit."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __call__(self, texts: list[str]) -> list[dict[str, Any]]:
        limit = getattr(self.tokenizer, "model_max_length", None)
        found = self.tokenizer(list(texts), truncation=limit is not None and limit < _ENDLESS)
        return [{name: values[row] for name, values in found.items()} for row in range(len(texts))]


class Pad:
    """Pads tokenised rows to the longest of them with a tokenizer of transformers."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer

    def __call__(self, rows: list[Any]) -> Any:
        noted = getattr(self.tokenizer, "deprecation_warnings", None)
        if isinstance(noted, dict):  # it advises to pad while tokenising, which would pad to the longest row of all
            noted["Asking-to-pad-a-fast-tokenizer"] = True
        try:
            return self.tokenizer.pad(rows, return_tensors="pt")
        except ValueError as error:
            raise SourceError(f"the tokenizer cannot pad these rows: {error}") from error


class Stack:
    """Stacks columns of rows that have the same length in every row; real numbers in `dtype`."""

    def __init__(self, dtype: torch.dtype):
        self.dtype = dtype

    def __call__(self, rows: list[Any]) -> dict[str, Tensor]:
        return {name: self._stacked(name, [row[name] for row in rows]) for name in rows[0]}

    def _stacked(self, name: str, values: Sequence[Any]) -> Tensor:
        lengths = sorted({len(value) for value in values if hasattr(value, "__len__")})
        if len(lengths) > 1:
            raise SourceError(
                f"{name!r} has {lengths[0]} to {lengths[-1]} entries in these rows, so they make no batch without "
                "padding. Pass tokenizer= to Pool.of or Pool.hugging, or collate=DataCollatorWithPadding(tokenizer)."
            )
        try:
            if all(isinstance(value, Tensor) for value in values):
                column = torch.stack(list(values))
            else:
                column = torch.from_numpy(np.array(values))
        except (TypeError, ValueError) as error:
            raise SourceError(
                f"the rows of column {name!r} do not make a tensor ({error}). Name the columns that the model takes "
                "with columns=[...], or pass collate=, a function of a list of rows."
            ) from error
        return column.to(self.dtype) if column.is_floating_point() else column


def _no_rows(batch: Any) -> Any:
    """The batch without its rows."""
    if isinstance(batch, Mapping):
        return {name: values[:0] for name, values in batch.items()}
    if isinstance(batch, list | tuple) and batch and isinstance(batch[0], Tensor):
        return [values[:0] for values in batch]
    return batch[:0]
