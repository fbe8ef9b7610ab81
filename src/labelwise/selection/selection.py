"""Selection: the answer of a strategy, checked once, on creation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labelwise.errors import NumericsError, RowError


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows chosen for labelling, in the order in which they were chosen.

    Attributes:
        ids: (k,) int64, distinct global ids.
        weights: (k,) float64, the weight of each row's loss in training; ones where the strategy gives no weights.
        scores: (k,) float64, the value by which each row was chosen; higher is better.
        notes: facts about this selection, numbers and short texts that go into JSON.
    """

    ids: np.ndarray
    weights: np.ndarray
    scores: np.ndarray
    notes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        given = np.asarray(self.ids)
        if given.size and given.dtype.kind not in "iu":
            raise RowError(f"ids of a Selection are integers, found {given.dtype}: {given.ravel()[:3].tolist()}")
        for name, dtype in (("ids", np.int64), ("weights", np.float64), ("scores", np.float64)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
        if not (self.ids.ndim == 1 and self.ids.shape == self.weights.shape == self.scores.shape):
            raise RowError(
                "a Selection holds ids, weights and scores of one length; found shapes "
                f"{self.ids.shape}, {self.weights.shape}, {self.scores.shape}"
            )
        unique, counts = np.unique(self.ids, return_counts=True)
        if len(unique) != len(self.ids):
            raise RowError(f"a Selection holds distinct ids; id {int(unique[counts > 1][0])} occurs more than once")
        for name in ("weights", "scores"):
            bad = ~np.isfinite(getattr(self, name))
            if bad.any():
                raise NumericsError(f"{name} of a Selection must be finite; row id {int(self.ids[bad][0])} is not")
        if (self.weights < 0).any():
            raise NumericsError(f"weights must be at least 0; row id {int(self.ids[self.weights < 0][0])} is below")

    def __len__(self) -> int:
        return len(self.ids)

    def __eq__(self, other: object) -> bool:
        """The same rows in the same order, with the same weights and scores."""
        if not isinstance(other, Selection):
            return NotImplemented
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in ("ids", "weights", "scores"))

    __hash__ = None  # type: ignore[assignment]


def equal_weights(ids: Any, scores: Any, notes: Mapping[str, Any] | None = None) -> Selection:
    """A Selection in which every row has weight one."""
    return Selection(np.asarray(ids), np.ones(len(ids)), np.asarray(scores), dict(notes or {}))
