"""What `bss`, `leverage` and `volume` have in common: a basis whitened on the pool, and a budget its rank follows."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.selection.memory import Size
from labelwise.selection.progress import stage
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Strategy
from labelwise.shards import Shards
from labelwise.signals.spec import Basis, Features, Needs
from labelwise.strategies.leverage.weighted_batch import census
from labelwise.strategies.leverage.whiten import Whitened, whitened, width_of

LABELS_PER_FUNCTION = 12  # labels for each function of the basis: epsilon about 1
FEWEST_LABELS_PER_FUNCTION = 5  # below this the lower barrier is not above 0
WHITENING = 0.7  # of the time, about
WIDEST = 256  # functions kept by default: a decomposition costs the cube of them


@dataclass(frozen=True)
class OnBasis(Strategy):
    """A strategy that sees a row by functions of it, whitened on the pool. Write `choose`.

    Args:
        basis: the functions whose span is to be learnt: the name of a map or a `Basis`. An array given as `basis=` to
            `select` takes its place.
        rank: how many functions to keep at most; None is k/12 and at most 256. Never more than k/5.
        tol: eigenvalues below this share of the largest are no direction; None is 1e-10 (1e-6 in float32).
    """

    basis: str | Basis | Mapping[str, Any] = field(default_factory=Basis)
    rank: int | None = None
    tol: float | None = None

    needs = Needs(pool=(Basis(),))
    census_notes: ClassVar[Mapping[str, Any]] = {}  # what else a selection of the whole pool says of itself

    def __post_init__(self) -> None:
        name, basis = type(self).__name__, as_basis(type(self).__name__, self.basis)
        if self.rank is not None and (not isinstance(self.rank, int) or isinstance(self.rank, bool) or self.rank < 1):
            raise ArgumentError(f"{name}(rank=...) must be a whole number of at least 1, found {self.rank!r}")
        if self.tol is not None and not (isinstance(self.tol, int | float) and 0 <= self.tol < 1):
            raise ArgumentError(f"{name}(tol=...) must be from 0 up to below 1, found {self.tol!r}")
        object.__setattr__(self, "basis", basis)
        object.__setattr__(self, "needs", Needs((basis,)))
        object.__setattr__(self, "cold", basis.map != "last_layer")
        self.settle(basis)

    def settle(self, basis: Basis) -> None:
        """Check the parameters of the strategy's own, and set what follows from them."""
        return

    def memory(self, size: Size) -> int:
        assert isinstance(self.basis, Basis)
        functions = width_of(self.basis, size)
        rank = min(functions, rank_cap(self.rank, int(size.k)))
        whole = 400 * size.rows if size.k == size.rows else 0  # a census says something of every row
        inputs = size.shape(Features)[0] * self.basis.hidden if self.basis.map == "tangent" else 0
        taken = min(size.rows, self.taken(size, functions, rank)) * (4 * size.row + 8 * (3 * functions + 2 * rank + 8))
        return 96 * size.rows + whole + 8 * (12 * functions**2 + 32 * rank**2 + 3 * inputs) + taken + 512 * size.k

    @abstractmethod
    def taken(self, size: Size, functions: int, rank: int) -> int:
        """How many rows are brought together at most."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        assert isinstance(self.basis, Basis)
        k = int(k)  # a small NumPy integer would overflow in counts of draws
        with ExitStack() as held:
            with stage(0.0, WHITENING):
                basis = held.enter_context(whitened(pool, self.basis, rank_cap(self.rank, k), self.tol, key))
            held.enter_context(stage(WHITENING, 1.0))
            if k == pool.n:
                return census(pool, basis, key, {**basis.notes(), **self.census_notes})
            return self.choose(pool, labelled, basis, k, key)

    @abstractmethod
    def choose(self, pool: Shards, labelled: Shards, basis: Whitened, k: int, key: Key) -> Selection:
        """k rows, fewer than the pool has; every row keeps |v|^2 as state "leverage" meanwhile."""


def as_basis(name: str, basis: str | Basis | Mapping[str, Any]) -> Basis:
    """A Basis from the name of a map, from a Basis, or from its fields as JSON holds them."""
    if isinstance(basis, Basis):
        return basis
    if isinstance(basis, Mapping):
        return Basis(**basis)
    if isinstance(basis, str):
        return Basis(map=basis)  # type: ignore[arg-type]
    raise ArgumentError(f"{name}(basis=...) is the name of a map or a Basis, found {basis!r}")


def rank_cap(rank: int | None, k: int) -> int:
    """How many functions k labels can carry."""
    if rank is None:
        return max(1, min(k // LABELS_PER_FUNCTION, WIDEST))
    return max(1, min(rank, k // FEWEST_LABELS_PER_FUNCTION))
