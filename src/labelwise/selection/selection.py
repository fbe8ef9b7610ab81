"""Selection: the answer of a strategy, checked once, on creation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from labelwise.errors import ArgumentError, NumericsError, RowError
from labelwise.io.frames import library_of, make_frame


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows chosen for labelling, in the order in which they were chosen.

    Attributes:
        ids: (k,) distinct ids: int64, or objects where the user named the rows by texts, tuples or the like.
        weights: (k,) float64, the weight of each row's loss in training; ones where the strategy gives no weights.
        scores: (k,) float64, the value by which each row was chosen; higher is better.
        notes: facts about this selection, numbers and short texts that go into JSON.
        reason: why a row was chosen, as one sentence; "" where that is not known.
        library: the library of the frame that the rows came in, such as "pandas"; "" for others.

    Raises:
        RowError: the arrays differ in length, or ids are not integers or not distinct.
        NumericsError: a weight or score is not finite, or a weight is below 0.

    >>> import labelwise as lw
    >>> picks = lw.select("margin", k=2, probs=np.array([[0.9, 0.1], [0.5, 0.5], [0.7, 0.3]]))
    >>> picks.ids, picks.scores.round(2), picks.weights
    (array([1, 2]), array([ 0. , -0.4]), array([1., 1.]))
    """

    ids: np.ndarray
    weights: np.ndarray
    scores: np.ndarray
    notes: Mapping[str, Any] = field(default_factory=dict)
    reason: str = ""
    library: str = ""

    def __post_init__(self) -> None:
        given = np.asarray(self.ids)
        if given.size and given.dtype.kind not in "iuO":
            raise RowError(f"ids of a Selection are integers, found {given.dtype}: {given.ravel()[:3].tolist()}")
        kind = np.dtype(object) if given.dtype == object else np.dtype(np.int64)
        for name, dtype in (("ids", kind), ("weights", np.float64), ("scores", np.float64)):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=dtype))
        if not (self.ids.ndim == 1 and self.ids.shape == self.weights.shape == self.scores.shape):
            raise RowError(
                "a Selection holds ids, weights and scores of one length; found shapes "
                f"{self.ids.shape}, {self.weights.shape}, {self.scores.shape}"
            )
        if len(set(self.ids.tolist())) != len(self.ids):
            twice = Counter(self.ids.tolist()).most_common(1)[0][0]
            raise RowError(f"a Selection holds distinct ids; id {twice!r} occurs more than once")
        for name in ("weights", "scores"):
            bad = ~np.isfinite(getattr(self, name))
            if bad.any():
                raise NumericsError(f"{name} of a Selection must be finite; row id {self.ids[bad][0]!s} is not")
        if (self.weights < 0).any():
            raise NumericsError(f"weights must be at least 0; row id {self.ids[self.weights < 0][0]!s} is below")

    def __len__(self) -> int:
        return len(self.ids)

    def to_frame(self, like: Any = None) -> Any:
        """The picks as a frame, in the order in which they were chosen.

        Args:
            like: "pandas", "polars", "pyarrow", or a frame of one of them; None takes the library the rows came in.

        Returns:
            A frame with columns weight, score and reason. In pandas the ids are its index, so that
            `frame.loc[picks.ids].join(picks.to_frame())` gives the rows; in the others they are a column id.

        Raises:
            ArgumentError: the rows did not come in a frame, and `like` says no library.

        >>> Selection([4, 2], [1, 1], [0.5, 0.25]).to_frame("pyarrow").column_names
        ['id', 'weight', 'score', 'reason']
        """
        library = like if isinstance(like, str) else self.library if like is None else library_of(like)
        if not library:
            raise ArgumentError('the rows did not come in a frame; write to_frame("pandas"), "polars" or "pyarrow".')
        columns = {"weight": self.weights, "score": self.scores, "reason": [self.reason] * len(self)}
        return make_frame(library, "id", self.ids, columns)

    def __eq__(self, other: object) -> bool:
        """The same rows in the same order, with the same weights and scores."""
        if not isinstance(other, Selection):
            return NotImplemented
        return all(np.array_equal(getattr(self, n), getattr(other, n)) for n in ("ids", "weights", "scores"))

    __hash__ = None  # type: ignore[assignment]


def equal_weights(ids: Any, scores: Any, notes: Mapping[str, Any] | None = None) -> Selection:
    """A Selection in which every row has weight one."""
    return Selection(np.asarray(ids), np.ones(len(ids)), np.asarray(scores), dict(notes or {}))
