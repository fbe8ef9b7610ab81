"""BAIT: the batch whose Fisher information leaves the least expected error over the whole pool.

Ash, Goel, Krishnamurthy and Kakade, "Gone fishing: neural active learning with Fisher embeddings", NeurIPS 2021,
algorithm 1. With I_x the information of a row about the last layer, F its mean over labelled and unlabelled rows, and

    M = lambda + (sum over labelled of I_x) / (L + k) + c sum over the batch of I_x,    make tr(M^-1 F) small:

take 2 k rows one by one, each the one that lowers it most, then let k of them go, each the one that raises it least.
c = k / (L + k), as in the authors' programme; `consistent` takes 1 / (L + k), so that M is an average too.
fisher.py has the algebra: factors of rank C - 1 and small matrices for each row that are kept up to date. Rows
are taken and let go one by one, or on one accelerator many at a time without the host (bait_cuda.py).
Cost for each pick: n D C (C - 1) for the n rows that may be the best soon, at most N, and (C D)^2 C; once N (C D)^2.
Memory N C^2 and (C D)^2. In regression C is 1.
Departs from the paper: where C D is above `widest`, embeddings are projected at random to fewer columns; of more than
32 classes the 31 most probable stay apart and the others are one; in pools of more than 100,000 rows of more than 16
classes 15 do, and the batch is chosen from 50,000 rows drawn at random, for the error over all of them: N is 50,000
above then. The notes say so.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.memory import Size
from labelwise.selection.parameters import whole
from labelwise.selection.progress import stage, tick
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth
from labelwise.shards import Best, Shard, Shards
from labelwise.signals.spec import Embedding, Needs, Probs
from labelwise.strategies.bait import design as fisher_design
from labelwise.strategies.bait import fisher, fisher_rows
from labelwise.strategies.bait.design import Design
from labelwise.strategies.bait.fisher_rows import ALMOST
from labelwise.strategies.bait.kernels import torch as bait_cuda
from labelwise.strategies.bait.kernels.torch import WORN
from labelwise.strategies.bait.search import Search

OLD = 50  # picks after which M is inverted anew before rows are let go
RENEWED = 500  # picks after which M is inverted anew, and P and Q of all rows computed from it, when rows come back
PARTED = 50  # picks after which P and Q of rows that fell behind are let go
AHEAD = 100  # picks for which none of them should have to come back
SLOWER = 7  # thin products in float64 are that far below the rate that hours are counted with (docs/scale.md)
CLOSEST = 0.9  # of the last gain: where gains hardly fall, rows would come back at every pick
MOST_CLASSES = 32
NARROWEST, WIDEST_PROJECTION = 8, 128
LARGE = 100_000  # rows of a pool from which on the two below hold
CANDIDATES, FEWER_CLASSES = 50_000, 16
_BOTH = (Probs(), Embedding())
_NUMBERS = Needs(pool=(Embedding(),), labelled=(Embedding(),))


@register
@dataclass(frozen=True)
class Bait(Strategy):
    """Forward and backward greedy choice by Fisher information.

    Attributes:
        lambda_: what is added to the diagonal of M; 1, and 0.01 for the authors' CIFAR runs.
        oversample: how many times k rows are taken before all but k are let go.
        consistent: whether a row of the batch counts in M as a labelled one does.
        regress: the form for models of numbers, whose information is h h^T. A regression session sets it.
        widest: classes x columns up to which embeddings are left as they are.
        classes: classes up to which all stay apart; None: 32, and 16 in pools of more than 100,000 rows.
        candidates: rows, drawn at random, that the batch is chosen from, at least twice as many as are taken at first;
            None: 50,000 in pools of more than 100,000 rows; 0: all rows.
    """

    lambda_: float = 1.0
    oversample: float = 2.0
    consistent: bool = False
    regress: bool = False
    widest: int = 8000
    classes: int | None = None
    candidates: int | None = None

    name = "bait"
    picks = "the batch that most lowers the Fisher trace"
    reason = "Its label would make the model surer about all the others."
    needs = Needs(pool=_BOTH, labelled=_BOTH)
    cost = "N C^2 D (k + C D)"
    growth = Growth(C=3, D=3)  # (C D)^3 for the design
    paper = "Ash et al., NeurIPS 2021"

    def __post_init__(self) -> None:
        if not self.lambda_ > 0:
            raise ArgumentError(f"Bait(lambda_=...) is a number above 0, not {self.lambda_!r}")
        if not self.oversample >= 1:
            raise ArgumentError(f"Bait(oversample=...) is a number of at least 1, not {self.oversample!r}")
        if self.widest < 1:
            raise ArgumentError(f"Bait(widest=...) is at least 1, not {self.widest!r}")
        if self.classes is not None:
            object.__setattr__(self, "classes", whole("Bait", "classes", self.classes, 2))
        if self.candidates is not None:
            object.__setattr__(self, "candidates", whole("Bait", "candidates", self.candidates, 0))
        if self.regress:
            object.__setattr__(self, "needs", _NUMBERS)

    def for_regression(self) -> Strategy:
        return replace(self, regress=True)

    def memory(self, size: Size) -> int:
        classes, width = self._shape(size)
        rank = max(1, classes - 1)
        # P and Q of a row, and one of them again for a moment where few of the rows are kept.
        small = 8 * (2 * rank * rank + rank * rank // 4 + classes + (width if width <= fisher_rows.NARROW else 0) + 8)
        tables = 8 * 8 * (classes * width) ** 2
        taken = 8 * self._taken(size.rows, size.k) * (4 * rank * rank + classes + width)
        solved = (
            6 * 8 * fisher_rows.SOLVED * rank * (rank + classes) + 8 * fisher_design.WRITTEN * rank * classes * width
        )
        few = self._looked_at(size.rows, size.k)
        read = fisher_rows.SOLVED * (64 * width + 4 * size.row)
        steps = bait_cuda.memory(few, rank) if size.accelerator else 0
        return 64 * size.rows + tables + solved + read + steps + max(small * few, taken)

    def work(self, size: Size) -> float:
        classes, width = self._shape(size)
        few = self._looked_at(size.rows, size.k) / 4  # about as many may be the best soon, where many are taken
        picks = (2 * self.oversample - 1) * size.k  # taken and let go
        each = few + 4 * classes * width  # rows, and what M^-1 and F cost
        return SLOWER * 2.0 * classes**2 * width * (each * picks + size.rows * width / 2)

    def _shape(self, size: Size) -> tuple[int, int]:
        """Classes that stay apart and columns of the embedding."""
        classes = 1 if self.regress else min(self._apart(size.rows), max(2, size.shape(Probs)[0]))
        return classes, self._columns(classes, size.shape(Embedding)[0])

    def _apart(self, rows: int) -> int:
        """Classes up to which all stay apart."""
        return (MOST_CLASSES if rows <= LARGE else FEWER_CLASSES) if self.classes is None else self.classes

    def _columns(self, classes: int, width: int) -> int:
        """Columns of embeddings that have `width`, projected where that is too many."""
        if classes * width <= self.widest:
            return width
        return min(width, WIDEST_PROJECTION, max(NARROWEST, self.widest // classes))

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        form, notes = self._form(pool, key.fold("projection"))
        behind = fisher_rows.information(form, labelled)
        with stage(0.0, 0.1):
            total = (fisher_rows.information(form, pool) + behind) / (pool.n + labelled.n)
        taken, few = self._taken(pool.n, k), self._looked_at(pool.n, k)
        drawn = None
        if few < pool.n:
            draw = key.fold("candidates")
            drawn = fisher_rows.Drawn(draw, float(pool.best(lambda shard: draw.uniform(shard.ids), few).values[-1]))
            notes["candidates"] = f"chosen from {few:,} of the {pool.n:,} rows, drawn at random"
        known = labelled.n + k
        scale = (1 if self.consistent else k) / known
        search = Search(pool, form, drawn, functools.partial(_design, behind / known, self.lambda_, total, scale))
        try:
            notes["trace_before"] = search.trace()
            with stage(0.1, 0.7):
                picked = self._forward(search, taken)
            with stage(0.7, 1.0):
                kept = self._backward(search, [row for row, _ in picked], k)
            notes |= {"trace_after": search.trace(), "taken": taken}
        finally:
            search.close()
        chosen = [(row, score) for row, score in picked if row in kept]
        return equal_weights([row for row, _ in chosen], [score for _, score in chosen], notes)

    def _taken(self, rows: int, k: int) -> int:
        """Rows that are taken before all but k are let go."""
        return min(rows, max(k, round(self.oversample * k)))

    def _looked_at(self, rows: int, k: int) -> int:
        """Rows that the batch is chosen from."""
        wanted = (CANDIDATES if rows > LARGE else 0) if self.candidates is None else self.candidates
        return min(rows, max(wanted, 2 * self._taken(rows, k))) if wanted else rows

    def _form(self, pool: Shards, key: Key) -> tuple[fisher.Form, dict[str, float | str]]:
        """How rows are read, and notes on what is left out."""
        some = pool.take(pool.best(lambda shard: -shard.ids.double(), 1).ids)
        width = some.tensor(Embedding()).shape[1]
        classes = 1 if self.regress else max(2, some.tensor(Probs()).shape[1])
        notes: dict[str, float | str] = {}
        kept = projection = None
        apart = self._apart(pool.n)
        if classes > apart:
            notes["classes"] = f"the {apart - 1} most probable of {classes} classes stay apart, the rest is one"
            mean_C = pool.sum(_probabilities) / pool.n
            # Rounded, so that the order does not depend on the blocks the mean was summed in.
            kept = (mean_C * 1e9).round().argsort(descending=True, stable=True)[: apart - 1].sort().values
            classes = apart
        narrow = self._columns(classes, width)
        if narrow < width:
            notes["projection"] = f"embeddings projected at random from {width} to {narrow} columns"
            drawn = torch.randn(width, narrow, generator=key.generator(), dtype=torch.float64)
            projection, width = drawn / narrow**0.5, narrow
        return fisher.Form(classes, width, self.regress, kept, projection), notes

    def _forward(self, search: Search, count: int) -> list[tuple[int, float]]:
        """`count` rows with how far each lowered the trace, one by one."""
        try:
            others = search.begin(0.0)
            picked: list[tuple[int, float]] = []
            fresh = 0.0
            while len(picked) < count:
                left = min(PARTED - len(picked) % PARTED, count - len(picked))
                found = search.run(left, others, fresh)
                picked += found
                fresh = max([fresh, *(gain for _, gain in found)])
                if len(found) < left:
                    best, others, fresh = self._best(search, picked, others, fresh)
                    picked.append((int(best.ids[0]), float(best.values[0])))
                    search.take(best.ids, len(picked) == count)
                tick(len(picked), count)
                if len(picked) % PARTED == 0 and len(picked) < count:
                    others = search.part(_bar(picked))
            return picked
        finally:
            search.end()

    def _best(
        self, search: Search, picked: list[tuple[int, float]], others: float, fresh: float
    ) -> tuple[Best, float, float]:
        """The best row, with what no row without P and Q may gain, and the highest gain since M was inverted."""
        best = search.best()
        bar = _bar(picked)
        while others >= float(best.values[0]) * ALMOST or (fresh and float(best.values[0]) < WORN * fresh):
            if float(best.values[0]) < WORN * fresh or search.design.age > RENEWED:
                search.refresh()
                others, fresh = search.begin(bar), 0.0
            else:
                others = search.bring(bar)
            best, bar = search.best(), bar / 2 if bar > 1e-9 * others else 0.0
        return best, others, max(fresh, float(best.values[0]))

    def _backward(self, search: Search, rows: list[int], k: int) -> set[int]:
        """The k of these rows that are left after the others are let go, each the one that raises the trace least."""
        ids = torch.tensor(rows).sort().values
        if len(ids) == k:
            return set(rows)
        if search.design.age > OLD:
            search.refresh()
        return set(search.let_go(ids, k, PARTED).tolist())


def _design(behind_GG: Tensor, lambda_: float, target_GG: Tensor, scale: float, device: torch.device) -> Design:
    return Design(behind_GG.to(device), lambda_, target_GG.to(device), scale)


def _bar(picked: list[tuple[int, float]]) -> float:
    """What the best row will gain before many more are taken, if gains fall as they did: it pays to hold rows above."""
    if len(picked) < PARTED:
        return 0.0
    last, earlier = picked[-1][1], picked[max(0, len(picked) - AHEAD)][1]
    return last * min(last / earlier, CLOSEST) if earlier > 0 else 0.0


def _probabilities(shard: Shard) -> Tensor:
    """The sum of the probabilities of each class (C,)."""
    return torch.stack([rows.tensor(Probs()).double().sum(0) for _, rows in shard.blocks()]).sum(0).cpu()
