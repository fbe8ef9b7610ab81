"""Strategy: a question (`needs`) and an answer (`select`). Three levels, take the lowest that fits.

`Scored`: write `score`, the k highest are taken. `Greedy`: write `init`, `gain` and `update`, one row is taken at a
time. `Strategy`: write `select` with the four verbs of the shards. Strategies hold parameters and no state.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple, NoReturn

import torch
from torch import Tensor

from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.selection import greedy_cuda
from labelwise.selection.memory import Size
from labelwise.selection.progress import tick
from labelwise.selection.selection import Selection, equal_weights
from labelwise.shards import Best, Shard, Shards
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Needs, stored

TIE = 1e-12  # values this close, relative to their size, are tied in a greedy choice (float64; float32 has its own)
TIE_SINGLE = 1e-6


class Growth(NamedTuple):
    """The largest power that time grows with along each axis; 0 is not at all, inf is that no power is known."""

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
        known_law: whether picks are draws by a known distribution that their weights undo.
        objective: what its recipe trains by: the name of a class of `labelwise.train`, or an Objective; None is the
            learner's own.
        restart: whether its recipe trains each round from fresh weights; False goes on from the last round's weights,
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
        """The strategy to use after earlier rounds, for one whose needs have `history`.

        `history` holds, for each entry of answers, the oldest first, the notes of the selection that asked for them
        and "ids", the rows among them that it had asked for. What was learnt from them becomes a parameter: a
        strategy has no state.
        """
        return self

    def for_regression(self) -> Strategy | None:
        """The form of this strategy for a model of numbers; None where it needs class probabilities."""
        asked = stored(self.needs.pool + self.needs.labelled)
        return None if any(signal.of_classes for signal in asked) else self

    def given(self, arrays: frozenset[str]) -> Strategy:
        """This strategy in the form that suits the arrays, by name, that a user passed to `select`."""
        return self

    def memory(self, size: Size) -> int:
        """Bytes held at most beside blocks of rows: for every row and pick, and fixed; see memory.py.

        A method that keeps more than a few numbers beside a row says so here. This one is enough for any method that
        keeps up to 32 of them and takes its picks' columns together.
        """
        return 256 * size.rows + size.k * (64 + 4 * size.row)

    def work(self, size: Size) -> float:
        """Estimated floating-point operations of a method that may take hours; see runtime_warning.py."""
        return 0.0

    @abstractmethod
    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        """k distinct rows of `pool`. `labelled` holds the rows already labelled, with the signals in needs.labelled.

        Callers have checked that 1 <= k <= pool.n.
        """


class Scored(Strategy):
    """A strategy that takes the k rows with the highest score."""

    @abstractmethod
    def score(self, rows: Rows, key: Key) -> Tensor:
        """The score (n,) of each row, from that row alone; higher is better."""

    def memory(self, size: Size) -> int:
        return 48 * size.rows + 64 * size.k

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        best = pool.best(lambda shard: shard.each(lambda rows: self._checked(rows, key)), k)
        return equal_weights(best.ids, best.values)

    def _checked(self, rows: Rows, key: Key) -> Tensor:
        score_N = self.score(rows, key)
        if not bool(torch.isfinite(score_N.sum())) and not bool(torch.isfinite(score_N).all()):
            raise_not_finite(type(self).__name__, rows.ids, score_N)
        return score_N


class Greedy(Strategy):
    """A strategy that takes one row at a time: the one with the highest gain, or one drawn with weight exp(gain).

    For each row it keeps a state beside the row, (n,) or (n, ...); a small carry is the same everywhere. The loop
    here owns what every greedy method needs: rows already taken, ties, draws and checks of the numbers.
    """

    sampled: ClassVar[bool] = False

    def start(self, pool: Shards, labelled: Shards, k: int) -> Any:
        """The carry before the first pick."""
        return None

    @abstractmethod
    def init(self, rows: Rows, carry: Any) -> Tensor:
        """The state (n, ...) of each row before the first pick."""

    @abstractmethod
    def gain(self, rows: Rows, state: Tensor, carry: Any) -> Tensor:
        """What each row (n,) would add to the batch; higher is better."""

    @abstractmethod
    def update(self, rows: Rows, state: Tensor, carry: Any, pick: Rows) -> Tensor:
        """The state of each row after `pick`, one row, was taken."""

    def advance(self, carry: Any, pick: Rows) -> Any:
        """The carry after `pick` was taken."""
        return carry

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        try:
            carry = self.start(pool, labelled, k)
            pool.map(functools.partial(_begin, self, carry))
            ids, scores = (self._by_chunks if pool.on_one_device else self._one_by_one)(pool, carry, k, key)
        finally:
            pool.map(_end)
        return equal_weights(ids, scores)

    def _one_by_one(self, pool: Shards, carry: Any, k: int, key: Key) -> tuple[list[int], list[float]]:
        """Ids and scores of k picks, with a question to all shards for each."""
        picked = []
        for step in range(k):
            best = self._best(pool, carry, key.fold(step))
            pick = pool.take(best.ids)
            carry = self.advance(carry, pick)
            pool.map(functools.partial(greedy_cuda.absorb, self, carry, pick))
            picked.append((int(best.ids[0]), float(best.values[0])))
            tick(step + 1, k)
        return [row for row, _ in picked], [score for _, score in picked]

    def _by_chunks(self, pool: Shards, carry: Any, k: int, key: Key) -> tuple[list[int], list[float]]:
        """The same picks, where a device would wait for the host at each of them."""
        ids: list[int] = []
        scores: list[float] = []
        slack = tie(pool)
        while len(ids) < k:
            keys = [key.fold(step) for step in range(len(ids), min(k, len(ids) + greedy_cuda.CHUNK))]
            (found,) = pool.map(functools.partial(greedy_cuda.picks, self, carry, keys, slack))
            if found.wrong is not None:
                raise_not_finite(type(self).__name__, torch.tensor([found.wrong[0]]), torch.tensor([found.wrong[1]]))
            carry = found.carry
            ids += found.ids
            scores += found.scores
            tick(len(ids), k)
        return ids, scores

    def _best(self, pool: Shards, carry: Any, key: Key) -> Best:
        """The next pick with its score: its gain or, where it was drawn, the weight it was drawn with."""
        best = pool.best(functools.partial(_gain, self, carry, key if self.sampled else None), 1, tie(pool))
        if not self.sampled:
            return best
        if best.values[0] == -torch.inf:  # every free row has weight zero (copies of what was taken): all are as good
            ids = pool.best(functools.partial(_lottery, key), 1).ids
            return Best(ids, torch.zeros(1, dtype=torch.float64))
        gain = float(best.values[0] - key.gumbel(best.ids)[0])
        return Best(best.ids, torch.tensor([math.exp(min(gain, greedy_cuda.LARGEST_EXPONENT))], dtype=torch.float64))


def tie(pool: Shards) -> float:
    """How close two values of these rows are, relative to their size, when a greedy choice takes them as tied."""
    return max(pool.map(lambda shard: TIE if shard.dtype == torch.float64 else TIE_SINGLE))


def _begin(strategy: Greedy, carry: Any, shard: Shard) -> None:
    shard.state["row"] = shard.each(lambda rows: strategy.init(rows, carry))
    shard.state["taken"] = torch.zeros(len(shard), dtype=torch.bool, device=shard.device)


def _gain(strategy: Greedy, carry: Any, noise: Key | None, shard: Shard) -> Tensor:
    """The gain of each row, -inf for rows already taken."""
    gain_N, fine_N = greedy_cuda.gains(strategy, carry, shard)
    if not bool(fine_N.all()):
        raise_not_finite(type(strategy).__name__, shard.ids[~fine_N], gain_N[~fine_N])
    if noise is not None:
        gain_N = gain_N + noise.gumbel(shard.ids)  # float64: the draw must not depend on rounding
    return gain_N.masked_fill_(shard.state["taken"], -torch.inf)


def _lottery(noise: Key, shard: Shard) -> Tensor:
    """An equal chance for every row that is still free."""
    return noise.uniform(shard.ids).masked_fill(shard.state["taken"], -torch.inf)


def _end(shard: Shard) -> None:
    shard.state.pop("row", None)
    shard.state.pop("taken", None)


def raise_not_finite(name: str, ids: Tensor, values: Tensor) -> NoReturn:
    """Raise NumericsError naming the first row whose value is not finite."""
    row = int((~torch.isfinite(values)).nonzero()[0])
    raise NumericsError(
        f"{name} gave row id {int(ids[row])} the value {float(values[row])}; it must be finite. "
        "The signals of that row are finite, so this is a fault of the strategy or an overflow: scale the inputs."
    )
