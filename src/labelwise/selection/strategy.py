"""Strategy: a question (`needs`) and an answer (`select`). There are three levels; write the simplest that fits.

`Scored`: write `score`, and the k rows with the highest score are taken. `Greedy` (greedy.py): write `init`, `gain`
and `update`, and one row is taken at a time. `Strategy`: write `select` with `map`, `sum`, `best` and `take` of the
shards. A strategy holds parameters and no state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor

from labelwise.errors import NumericsError, RowError
from labelwise.rng import Key
from labelwise.selection.memory import Size
from labelwise.selection.selection import Selection, equal_weights
from labelwise.shards import Shards
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Needs, stored

TIE = 1e-12  # values of float64 this close, relative to their size, are tied in a greedy choice
TIE_SINGLE = 1e-6  # the same for float32


class Growth(NamedTuple):
    """The largest power by which time grows along each axis: 0 means not at all, inf that no power is known."""

    N: float = 1  # rows
    C: float = 0  # classes
    D: float = 0  # dimensions
    k: float = 1  # picks


class Strategy(ABC):
    """Chooses k rows of the pool.

    Class attributes are the facts about a method. They are written nowhere else: the README's table, `labelwise
    strategies`, recipes and the labelling page read them here.

    Attributes:
        name: how users call it; `labelwise.registry.register` makes it known.
        variants: parameters by name, for a class that has several names; then `name` is set on creation.
        picks: which rows it picks, in half a sentence.
        reason: why an item was picked, as one sentence for people who label.
        needs: the signals of pool rows and labelled rows that it reads.
        cost: arithmetic for N rows, D embedding, C classes, k picks, L labelled rows, K draws, P features.
        growth: what `cost` comes to along each axis; benchmarks/scaling.py measures it.
        paper: authors, venue and year.
        weighted: whether Selection.weights are more than ones.
        cold: whether it can choose before any row is labelled.
        known_law: whether picks are draws with known probabilities that the weights correct for.
        objective: what its recipe trains by: the name of a class of `labelwise.train`, or an Objective; None is the
            learner's own.
        restart: whether its recipe trains each round from fresh weights; False continues from the last round's weights,
            None leaves it to the learner.
    """

    name: ClassVar[str] = ""
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    picks: ClassVar[str] = ""
    reason: ClassVar[str] = ""
    needs: ClassVar[Needs] = Needs()
    cost: ClassVar[str] = ""
    growth: ClassVar[Growth | None] = None
    paper: ClassVar[str] = ""
    weighted: ClassVar[bool] = False
    cold: ClassVar[bool] = False
    known_law: ClassVar[bool] = False
    objective: ClassVar[Any] = None
    restart: ClassVar[bool | None] = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def with_history(self, history: tuple[Mapping[str, Any], ...]) -> Strategy:
        """The strategy to use after earlier rounds; called where `needs.history` is set.

        A strategy has no state, so what it learns from earlier rounds becomes a parameter of the strategy returned.

        Args:
            history: one mapping for each entry of answers, oldest first: the notes of the selection that asked for
                them, and "ids", the rows among them that the selection asked for.
        """
        return self

    def for_regression(self) -> Strategy | None:
        """The form of this strategy for regression; None where it needs class probabilities."""
        signals = stored(self.needs.pool + self.needs.labelled)
        return None if any(signal.of_classes for signal in signals) else self

    def given(self, arrays: frozenset[str]) -> Strategy:
        """The form of this strategy for the arrays, by name, that a caller passed to `labelwise.select`."""
        return self

    def memory(self, size: Size) -> int:
        """The most bytes the selection holds besides blocks of rows: for each row, for each pick, and fixed tables.

        Override it in a method that keeps more than 32 numbers for each row, or more than the columns of its picks.
        See memory.py.
        """
        return 256 * size.rows + size.k * (64 + 4 * size.row)

    def work(self, size: Size) -> float:
        """Estimated floating-point operations, of a method that may take hours; cost_warning.py warns by it."""
        return 0.0

    @abstractmethod
    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        """Choose k distinct rows.

        Args:
            pool: the rows to choose from, with the signals in `needs.pool`.
            labelled: the rows already labelled, with the signals in `needs.labelled`; it may be empty.
            k: how many rows; callers have checked that 1 <= k <= pool.n.
            key: the source of chance.
        """


class Scored(Strategy):
    """A strategy that takes the k rows with the highest score."""

    @abstractmethod
    def score(self, rows: Rows, key: Key) -> Tensor:
        """The score (n,) of each row, computed from that row alone; higher is better."""

    def memory(self, size: Size) -> int:
        return 48 * size.rows + 64 * size.k

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        best = pool.best(lambda shard: shard.each(lambda rows: self._finite_scores(rows, key)), k)
        return equal_weights(best.ids, best.values)

    def _finite_scores(self, rows: Rows, key: Key) -> Tensor:
        score_N = self.score(rows, key)
        if not isinstance(score_N, Tensor) or score_N.shape != (len(rows),):
            found = tuple(score_N.shape) if isinstance(score_N, Tensor) else type(score_N).__name__
            raise RowError(
                f"{type(self).__name__}.score must return a tensor with one number for each row, of shape "
                f"({len(rows)},); found {found}"
            )
        if not bool(torch.isfinite(score_N.sum())) and not bool(torch.isfinite(score_N).all()):
            raise_not_finite(type(self).__name__, rows.ids, score_N)
        return score_N


def tie_tolerance(pool: Shards) -> float:
    """The relative difference up to which a greedy choice takes two values of these rows as tied."""
    return max(pool.map(lambda shard: TIE if shard.dtype == torch.float64 else TIE_SINGLE))


def raise_not_finite(name: str, ids: Tensor, values: Tensor) -> NoReturn:
    """Raise NumericsError naming the first row whose value is not finite."""
    row = int((~torch.isfinite(values)).nonzero()[0])
    raise NumericsError(
        f"{name} gave row id {int(ids[row])} the value {float(values[row])}; it must be finite. "
        "The signals of that row are finite, so this is a fault of the strategy or an overflow: scale the inputs."
    )
