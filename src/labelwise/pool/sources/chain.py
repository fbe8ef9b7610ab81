"""Rows of several pools, one after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.pool.source import Source, content
from labelwise.pool.sources.arrays import as_array

Part = tuple[Source, np.ndarray]  # a source, and the positions of its rows


class ChainSource:
    """The rows of the first part, then those of the second, and so on. All are tensors of one shape, or texts.

    The fingerprint of arrays and of texts is that of the same rows in one array or list.
    """

    def __init__(self, parts: Sequence[Part]):
        self.parts = tuple(parts)
        self.ends = np.cumsum([len(positions) for _, positions in self.parts])
        kinds = [source.kind for source, _ in self.parts]
        examples = [source.inputs(positions[:1]) for source, positions in self.parts]
        forms = [_form(example) for example in examples]
        if len(set(kinds)) > 1 or len(set(forms)) > 1:
            raise ArgumentError(
                f"new rows are like those of the pool, which has {kinds[0]} ({forms[0]}); found {kinds[-1]} "
                f"({forms[-1]})"
            )
        if not isinstance(examples[0], Tensor | list):
            raise ArgumentError(
                f"a pool of {kinds[0]} whose batches are of type {type(examples[0]).__name__} cannot get new rows; "
                "make a dataset of all rows, and start a session with it"
            )
        self.kind = kinds[0]
        self.column = getattr(self.parts[0][0], "column", None)  # of a frame that the texts come from
        self.library = getattr(self.parts[0][0], "library", "")
        self.whole = all(getattr(source, "whole", False) for source, _ in self.parts)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def inputs(self, positions: np.ndarray) -> Any:
        found: Any = None
        for number, (source, own) in enumerate(self.parts):
            where = np.flatnonzero(self._numbers(positions) == number)
            if not len(where):
                continue
            rows = source.inputs(own[positions[where] - (self.ends[number] - len(own))])
            if len(where) == len(positions):
                return rows
            if found is None:
                found = rows.new_empty(len(positions), *rows.shape[1:]) if isinstance(rows, Tensor) else {}
            if isinstance(rows, Tensor):
                found[torch.from_numpy(where)] = rows
            else:
                found.update(zip(where.tolist(), rows, strict=True))
        return found if isinstance(found, Tensor) else [found[row] for row in range(len(positions))]

    def name(self, position: int) -> str | None:
        (number,) = self._numbers(np.array([position]))
        source, own = self.parts[number]
        return source.name(int(own[position - (self.ends[number] - len(own))]))

    def sample(self, positions: np.ndarray) -> bytes:
        rows = self.inputs(positions)
        return content(as_array(rows) if isinstance(rows, Tensor) else rows)

    def _numbers(self, positions: np.ndarray) -> np.ndarray:
        """The part of each position."""
        return np.searchsorted(self.ends, positions, side="right")


def _form(inputs: Any) -> str:
    if isinstance(inputs, Tensor):
        return f"{str(inputs.dtype).removeprefix('torch.')} of shape {tuple(inputs.shape[1:])}"
    return f"of type {type(inputs).__name__}"
