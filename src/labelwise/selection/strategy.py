"""Strategy: a question (`needs`) and an answer (`select`). There are three levels; write the simplest that fits.

`Scored`: write `score`, and the k rows with the highest score are taken. `Greedy` (greedy.py): write `init`, `gain`
and `update`, and one row is taken at a time. `Strategy`: write `select` with `map`, `sum`, `best` and `take` of the
shards. A strategy holds parameters and no state.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor

from labelwise.errors import NumericsError, RowError
from labelwise.rng import Key
from labelwise.selection.selection import Selection, equal_weights
from labelwise.shards import Shards, computed_in
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Needs, Signal, stored


@dataclass(frozen=True)
class Size:
    """How large a selection is.

    Attributes:
        rows: rows of the pool, in one process.
        k: picks.
        shapes: shape of one row in each stored column: (C,) for probabilities, (K, C) for draws.
        number: bytes of one number in computations, 4 or 8.
        labelled: rows already labelled.
        named: whether the caller gave ids.
        accelerator: whether the rows are in an accelerator's memory.
    """

    rows: int
    k: int
    shapes: Mapping[Signal, tuple[int, ...]]
    number: int = 4
    labelled: int = 0
    named: bool = False
    accelerator: bool = False

    @staticmethod
    def of(
        rows: int,
        k: int,
        columns: Mapping[Signal, Tensor],
        dtype: torch.dtype | None = None,
        labelled: int = 0,
        named: bool = False,
    ) -> Size:
        """The size of a selection from rows with columns such as these, on the device of the columns."""
        shapes = {signal: tuple(column.shape[1:]) or (1,) for signal, column in columns.items()}
        number = (computed_in(columns) if dtype is None else dtype).itemsize
        accelerator = any(column.device.type != "cpu" for column in columns.values())
        return Size(rows, k, shapes, number, labelled, named, accelerator)

    def shape(self, kind: type[Signal]) -> tuple[int, ...]:
        """The shape of one row in the column of this kind; (1,) where there is no such column."""
        return next((shape for signal, shape in self.shapes.items() if isinstance(signal, kind)), (1,))

    @property
    def with_labelled(self) -> Size:
        """The size for a strategy that treats labelled rows as it treats those of the pool."""
        return replace(self, rows=self.rows + self.labelled)

    @property
    def numbers(self) -> int:
        """Numbers of one row, all columns together."""
        return sum(math.prod(shape) for shape in self.shapes.values())

    @property
    def row(self) -> int:
        """Bytes of one row as it is computed with, all columns together."""
        return self.numbers * self.number


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
        also: what others call it, for the error about an unknown name.
        variants: parameters by name, for a class that has several names; then `name` is set on creation.
        picks: which rows it picks, in half a sentence.
        reason: why an item was picked, as one sentence for people who label.
        needs: the signals of pool rows and labelled rows that it reads.
        cost: arithmetic for N rows, D embedding, C classes, k picks, L labelled rows, K draws, P features.
        growth: what `cost` comes to along each axis; benchmarks/scaling.py measures it.
        paper: authors, venue and year.
        weighted: whether Selection.weights are more than ones.
        trains_weighted: whether its recipe trains with those weights, where the learner can.
        cold: whether it can choose before any row is labelled.
        known_law: whether picks are draws with known probabilities that the weights correct for.
        objective: what its recipe trains by: the name of a class of `labelwise.train`, or an Objective; None is the
            learner's own.
        restart: whether its recipe trains each round from fresh weights; False continues from the last round's weights,
            None leaves it to the learner.

    >>> import labelwise as lw
    >>> margin = lw.strategies.get("margin")
    >>> margin.cost, margin.weighted, margin.needs.pool
    ('N C', False, (Probs(),))
    """

    name: ClassVar[str] = ""
    also: ClassVar[tuple[str, ...]] = ()
    variants: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    picks: ClassVar[str] = ""
    reason: ClassVar[str] = ""
    needs: ClassVar[Needs] = Needs()
    cost: ClassVar[str] = ""
    growth: ClassVar[Growth | None] = None
    paper: ClassVar[str] = ""
    weighted: ClassVar[bool] = False
    trains_weighted: ClassVar[bool] = False
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

        Returns:
            A strategy with what it has learnt as a parameter.
        """
        return self

    def for_regression(self) -> Strategy | None:
        """The form of this strategy for regression; None where it needs class probabilities.

        Returns:
            A strategy, this one as a rule; or None.
        """
        signals = stored(self.needs.pool + self.needs.labelled)
        return None if any(signal.of_classes for signal in signals) else self

    def given(self, arrays: frozenset[str]) -> Strategy:
        """The form of this strategy for the arrays, by name, that a caller passed to `labelwise.select`.

        Args:
            arrays: their names, such as "probs".

        Returns:
            A strategy, this one as a rule.
        """
        return self

    def memory(self, size: Size) -> int:
        """The most bytes the selection holds besides blocks of rows: for each row, for each pick, and fixed tables.

        Override it in a method that keeps more than 32 numbers for each row, or more than the columns of its picks.
        See memory.py.

        Args:
            size: the size of the problem: rows, k, columns of each signal.

        Returns:
            Bytes.
        """
        return 256 * size.rows + size.k * (64 + 4 * size.row)

    def work(self, size: Size) -> float:
        """Estimated floating-point operations, of a method that may take hours; run.py warns by it.

        Args:
            size: the size of the problem.

        Returns:
            Operations; 0 if it is never long.
        """
        return 0.0

    @abstractmethod
    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        """Choose k distinct rows.

        Args:
            pool: the rows to choose from, with the signals in `needs.pool`.
            labelled: the rows already labelled, with the signals in `needs.labelled`; it may be empty.
            k: how many rows; callers have checked that 1 <= k <= pool.n.
            key: the source of chance.

        Returns:
            A Selection of exactly k distinct ids.

        Raises:
            NeedError: the strategy cannot choose from the signals that were given.
            RowError, NumericsError: the strategy gave scores of another shape, or some that are not finite.
        """


class Scored(Strategy):
    """A strategy that takes the k rows with the highest score, ties by lot.

    >>> import numpy as np
    >>> import labelwise as lw
    >>> from labelwise.signals.spec import Needs, Probs
    >>> class LeastSure(lw.Scored):
    ...     needs = Needs(pool=(Probs(),))
    ...
    ...     def score(self, rows, key):
    ...         return -rows.tensor(Probs()).amax(1)
    >>> lw.select(LeastSure(), k=1, probs=np.array([[0.9, 0.1], [0.6, 0.4]])).ids
    array([1])
    """

    @abstractmethod
    def score(self, rows: Rows, key: Key) -> Tensor:
        """The score (n,) of each row, computed from that row alone; higher is better.

        Args:
            rows: a block of n rows with the declared signals: `rows[Signal()]`, `rows.tensor(Signal())`.
            key: the source of chance, for scores that are drawn: `key.uniform(rows.ids)`.

        Returns:
            A tensor (n,), finite.
        """

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


def raise_not_finite(name: str, ids: Tensor, values: Tensor) -> NoReturn:
    """Raise NumericsError naming the first row whose value is not finite."""
    row = int((~torch.isfinite(values)).nonzero()[0])
    raise NumericsError(
        f"{name} gave row id {int(ids[row])} the value {float(values[row])}; it must be finite. "
        "The signals of that row are finite, so this is a fault of the strategy or an overflow: scale the inputs."
    )
