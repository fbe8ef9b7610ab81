"""What `bss`, `leverage` and `volume` share: a basis whitened on the pool, and draws merged into k weighted rows."""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.selection.progress import stage
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Size, Strategy
from labelwise.shards import Shard, Shards
from labelwise.signals.spec import Basis, Features, Needs, Weight
from labelwise.strategies.leverage.joint import Past
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened, basis_width, whitened

LABELS_PER_FUNCTION = 12  # labels, of all rounds, for each function of the basis: epsilon about 1
MIN_LABELS_PER_FUNCTION = 5  # below this the lower barrier is not above 0
MAX_FUNCTIONS = 256  # by default: a decomposition costs the cube of their number
FEW = 3  # functions, or a tenth of those available: up to here there is a warning
NEARLY_UNIFORM = 0.3  # share of the draws that uniform ones would have to be changed in
WHITENING = 0.7  # approximate share of the time
DRAWS_PER_ROW = 32  # at most, for each row wanted


@dataclass(frozen=True)
class BasisStrategy(Strategy):
    """A strategy that sees a row as functions of it, whitened on the pool. Subclasses write `choose`.

    Args:
        basis: the functions whose span is to be learnt: the name of a map or a `Basis`. An array given as `basis=` to
            `select` replaces it.
        rank: the maximum of functions; None is a twelfth of all labels, this batch included, and at most 256. Never
            more than a fifth of them.
        tol: eigenvalues below this share of the largest are no direction; None is 1e-10 (1e-6 in float32).

    Raises:
        ArgumentError: a parameter is out of range.
    """

    basis: str | Basis | Mapping[str, Any] = field(default_factory=Basis)
    rank: int | None = None
    tol: float | None = None

    needs = Needs(pool=(Basis(),), labelled=(Basis(), Weight()), optional=True)
    census_notes: ClassVar[Mapping[str, Any]] = {}  # further notes of a selection of the whole pool

    def __post_init__(self) -> None:
        name = type(self).__name__
        basis = _as_basis(name, self.basis)
        if self.rank is not None and (not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1):
            raise ArgumentError(f"{name}(rank=...) must be a whole number of at least 1, found {self.rank!r}")
        if self.tol is not None and not (isinstance(self.tol, int | float) and 0 <= self.tol < 1):
            raise ArgumentError(f"{name}(tol=...) must be from 0 up to below 1, found {self.tol!r}")
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "needs", Needs((basis,), (basis, Weight()), optional=True))
        object.__setattr__(self, "cold", basis.map != "last_layer")
        self.check_parameters(basis)

    def check_parameters(self, basis: Basis) -> None:
        """Check the parameters of the subclass, and set the attributes that follow from them.

        Raises:
            ArgumentError: a parameter is out of range.
        """
        return

    def memory(self, size: Size) -> int:
        assert isinstance(self.basis, Basis)
        functions = basis_width(self.basis, size)
        rank = min(functions, self.max_rank(int(size.k), size.labelled))
        census = 400 * size.rows if size.k == size.rows else 0
        inputs = size.shape(Features)[0] * self.basis.hidden if self.basis.map == "tangent" else 0
        rows = min(size.rows, self.rows_together(size, functions, rank))
        together = rows * (4 * size.row + 8 * (3 * functions + 2 * rank + 8))
        matrices = 8 * (12 * functions**2 + 32 * rank**2 + 3 * inputs)
        return 96 * size.rows + census + matrices + together + 512 * size.k

    def max_rank(self, k: int, labelled: int) -> int:
        """The maximum of functions that the labels of all rounds determine."""
        labels = self.labels_of_design(k, labelled)
        if self.rank is None:
            return max(1, min(labels // LABELS_PER_FUNCTION, MAX_FUNCTIONS))
        return max(1, min(self.rank, labels // MIN_LABELS_PER_FUNCTION))

    def labels_of_design(self, k: int, labelled: int) -> int:
        """The labels that a batch of k is part of."""
        return k + labelled

    @abstractmethod
    def rows_together(self, size: Size, functions: int, rank: int) -> int:
        """The maximum of rows in one table of v."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        assert isinstance(self.basis, Basis)
        with ExitStack() as stack:
            with stage(0.0, WHITENING):
                cap = self.max_rank(k, labelled.n)
                basis = stack.enter_context(whitened(pool, self.basis, cap, self.tol, key))
            stack.enter_context(stage(WHITENING, 1.0))
            if k == pool.n:
                return _census(pool, basis, key, labelled.n, {**basis.notes(), **self.census_notes})
            picks = self.choose(pool, Past.of(labelled, basis, pool.n), basis, k, key)
            notes = {**picks.notes, **self._warning(pool, basis, self.labels_of_design(k, labelled.n))}
        return Selection(picks.ids, picks.weights, picks.scores, notes)

    def _warning(self, pool: Shards, basis: Whitened, labels: int) -> dict[str, str]:
        """A note where few of many functions decide the draws; none elsewhere."""
        used, available = basis.rank, basis.available
        if used >= available or used > max(FEW, available // 10):
            return {}
        if self.rank is None:
            limit, each = MAX_FUNCTIONS, LABELS_PER_FUNCTION
        else:
            limit, each = self.rank, MIN_LABELS_PER_FUNCTION
        wanted = min(available, limit)
        if used < wanted:
            why = f"since {labels:,} labels determine no more; about {each * wanted:,} are enough for {wanted:,}"
        else:
            why = f"{'by default' if self.rank is None else 'by its rank'}; rank= allows more"
        other = pool.sum(functools.partial(_off_uniform, used)).item() / (2 * pool.n)
        law = "nearly uniform sampling" if other < NEARLY_UNIFORM else "sampling by these few alone"
        return {
            "warning": (
                f"{self.name} uses {used:,} of {available:,} functions, {why}. This is {law}: by leverage {other:.0%} "
                f"of the draws are other than uniform ones, and the most probable row is drawn "
                f"{basis.condition_number / used:,.3g} times as often as the average one"
            )
        }

    @abstractmethod
    def choose(self, pool: Shards, past: Past, basis: Whitened, k: int, key: Key) -> Selection:
        """Select k rows, fewer than the pool has; every row has |v|^2 as state "leverage"."""


class Draws:
    """Draws until the next one would add row k + 1, with repeats merged.

    Attributes:
        weight: the sum of weights of each row, in the order of first draws.
        score: the score of each row.
        squares: the sum of squared weights of all draws.
        count: the number of draws.
        is_full: whether a draw was refused because it would have added row k + 1.
    """

    def __init__(self, k: int):
        self.k = k
        self.weight: dict[int, float] = {}
        self.score: dict[int, float] = {}
        self.squares = 0.0
        self.count = 0
        self.is_full = False

    @staticmethod
    def most(k: int) -> float:
        """The maximum of draws; after it rows at random fill the batch."""
        return float(DRAWS_PER_ROW * k + 256)

    def add(self, row: int, weight: float, score: float) -> bool:
        """Add a draw. Returns False, and adds nothing, where it would add row k + 1."""
        if row not in self.weight:
            if len(self.weight) == self.k:
                self.is_full = True
                return False
            self.score[row] = score
        self.weight[row] = self.weight.get(row, 0.0) + weight
        self.squares += weight * weight
        self.count += 1
        return True


def merge_draws(pool: Shards, draws: Draws, unit: float, past: Past, key: Key, notes: Mapping[str, Any]) -> Selection:
    """The rows drawn, each with `unit` times its weight; rows at random fill a batch that is short of k.

    A row that fills the batch represents itself alone, 1 of the pool's n, and the rows drawn all others.
    """
    ids = torch.tensor(list(draws.weight), dtype=torch.int64)
    weight_M = unit * np.array(list(draws.weight.values()), dtype=np.float64)
    score_M = np.array(list(draws.score.values()), dtype=np.float64)
    missing = draws.k - len(ids)
    if missing:
        fill = pool.best(functools.partial(_random_others, key, ids), missing)
        ids = torch.cat([ids, fill.ids])
        weight_M = np.concatenate([weight_M * (1 - missing / pool.n), np.full(missing, draws.k / pool.n)])
        score_M = np.concatenate([score_M, np.zeros(missing)])
    counts = {
        "draws": draws.count,
        "distinct": draws.k - missing,
        "filled": missing,
        "effective_sample_size": past.effective_sample_size(draws.k, float(weight_M.sum()), float(weight_M @ weight_M)),
        "effective_rows": _effective(float(weight_M.sum()), float(weight_M @ weight_M)),
        "effective_draws": _effective(unit * sum(draws.weight.values()), draws.squares * unit * unit),
        "weight_scale": draws.k,
    }
    return Selection(ids.numpy(), weight_M, score_M, {**notes, **counts})


def _census(pool: Shards, basis: Whitened, key: Key, labelled: int, notes: Mapping[str, Any]) -> Selection:
    """Every row of the pool, once, with weight 1: estimates of the pool are then exact."""
    best = pool.best(lambda shard: key.uniform(shard.ids), pool.n)
    score = {i: s for part in pool.map(_scores) for i, s in zip(*part)}
    counts = {
        "labels": pool.n + labelled,
        "eigenvalues": [1.0, 1.0],
        "good": True,
        "design_condition": 1.0,
        "draws": pool.n,
        "distinct": pool.n,
        "filled": 0,
        "effective_sample_size": float(pool.n + labelled),
        "effective_rows": float(pool.n),
        "effective_draws": float(pool.n),
        "weight_scale": pool.n,
    }
    scores = [score[i] / basis.rank for i in best.ids.tolist()]
    return Selection(best.ids.numpy(), np.ones(pool.n), np.array(scores), {**notes, **counts})


def _as_basis(name: str, basis: str | Basis | Mapping[str, Any]) -> Basis:
    """A Basis from the name of a map, from a Basis, or from its fields as JSON has them."""
    if isinstance(basis, Basis):
        return basis
    if isinstance(basis, Mapping):
        return Basis(**basis)
    if isinstance(basis, str):
        return Basis(map=basis)  # type: ignore[arg-type]
    raise ArgumentError(f"{name}(basis=...) is the name of a map or a Basis, found {basis!r}")


def _effective(total: float, squares: float) -> float:
    return total * total / squares if squares > 0 else 0.0


def _off_uniform(rank: int, shard: Shard) -> Tensor:
    """The sum over rows of the distance of the leverage, over its mean, from 1."""
    return (shard.state[LEVERAGE] / rank - 1).abs().sum().reshape(1).cpu()


def _scores(shard: Shard) -> tuple[list[int], list[float]]:
    return shard.ids.tolist(), shard.state[LEVERAGE].tolist()


def _random_others(key: Key, selected: Tensor, shard: Shard) -> Tensor:
    """A uniform number for every row that is not selected."""
    return key.uniform(shard.ids).masked_fill_(torch.isin(shard.ids, selected.to(shard.device)), -torch.inf)
