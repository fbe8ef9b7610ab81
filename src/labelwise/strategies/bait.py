"""BAIT: the batch whose Fisher information leaves the least expected error over the whole pool.

Ash, Goel, Krishnamurthy and Kakade, "Gone fishing: neural active learning with Fisher embeddings", NeurIPS 2021,
algorithm 1. With I_x the information of a row about the last layer, F its mean over labelled and unlabelled rows, and

    M = lambda + (sum over labelled of I_x) / (L + k) + c sum over the batch of I_x,    make tr(M^-1 F) small:

take 2 k rows one by one, each the one that lowers it most, then let k of them go, each the one that raises it least.
c = k / (L + k), as in the authors' programme; `consistent` takes 1 / (L + k), so that M is an average too.
choose/fisher.py has the algebra: factors of rank C - 1 and small matrices for each row that are kept up to date.
Cost for each pick: N D C (C - 1), after one N (C D)^2; memory N C^2 and (C D)^2. In regression C is 1.
Departs from the paper: where C D is above `widest`, embeddings are projected at random to fewer columns; of more than
32 classes the 31 most probable stay apart and the others are one; and in pools of more than 100,000 rows the batch is
chosen from 50,000 rows drawn at random, for the error over all of them: N is 50,000 above then. The notes say so.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labelwise.choose import Selection, Strategy, fisher, fisher_rows
from labelwise.choose.memory import Size
from labelwise.choose.parameters import whole
from labelwise.choose.progress import tick
from labelwise.choose.selection import equal_weights
from labelwise.choose.strategy import Growth
from labelwise.errors import ArgumentError
from labelwise.keys import Key
from labelwise.shards import Shard, Shards
from labelwise.signals.spec import Embedding, Needs, Probs

TIE = 1e-11  # relative; differences of float64 sums that are not worn are better than this
WORN = 1e-4  # a gain this far below those at the last refresh has lost digits that ties are told by
OLD = 50  # picks after which M is inverted anew before rows are let go
MOST_CLASSES = 32
NARROWEST, WIDEST_PROJECTION = 8, 128
LARGE, CANDIDATES = 100_000, 50_000  # rows from which on the batch is chosen from so many of them
_BOTH = (Probs(), Embedding())
_NUMBERS = Needs(pool=(Embedding(),), labelled=(Embedding(),))


@dataclass(frozen=True)
class Bait(Strategy):
    """Forward and backward greedy choice by Fisher information.

    Attributes:
        lambda_: what is added to the diagonal of M; 1, and 0.01 for the authors' CIFAR runs.
        oversample: how many times k rows are taken before all but k are let go.
        consistent: whether a row of the batch counts in M as a labelled one does.
        regress: the form for models of numbers, whose information is h h^T. A regression session sets it.
        widest: classes x columns up to which embeddings are left as they are.
        candidates: rows, drawn at random, that the batch is chosen from, at least twice as many as are taken at first;
            None: 50,000 in pools of more than 100,000 rows; 0: all rows.
    """

    lambda_: float = 1.0
    oversample: float = 2.0
    consistent: bool = False
    regress: bool = False
    widest: int = 8000
    candidates: int | None = None

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
        if self.candidates is not None:
            object.__setattr__(self, "candidates", whole("Bait", "candidates", self.candidates, 0))
        if self.regress:
            object.__setattr__(self, "needs", _NUMBERS)

    def for_regression(self) -> Strategy:
        return replace(self, regress=True)

    def memory(self, size: Size) -> int:
        width = size.shape(Embedding)[0]
        classes = 1 if self.regress else min(MOST_CLASSES, max(2, size.shape(Probs)[0]))
        if classes * width > self.widest:
            width = min(width, WIDEST_PROJECTION, max(NARROWEST, self.widest // classes))
        rank = max(1, classes - 1)
        small = 8 * (2 * rank * rank + 2 * rank + classes + 2)  # P and Q of a row, and what they are kept up to date by
        tables = 8 * 8 * (classes * width) ** 2
        solved = 6 * 8 * (fisher_rows.SOLVED + round(self.oversample * size.k)) * rank * (rank + classes)
        few = self._looked_at(size.rows, size.k)
        return 64 * size.rows + small * few + tables + solved + 64 * fisher_rows.SOLVED * width

    def work(self, size: Size) -> float:
        width, classes = size.shape(Embedding)[0], 1 if self.regress else min(MOST_CLASSES, size.shape(Probs)[0])
        if classes * width > self.widest:
            width = min(width, WIDEST_PROJECTION, max(NARROWEST, self.widest // classes))
        few = self._looked_at(size.rows, size.k)
        return 2.0 * classes**2 * width * (few * self.oversample * size.k + size.rows * classes * width)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        form, notes = self._form(pool, key.fold("projection"))
        behind = fisher_rows.information(form, labelled)
        total = (fisher_rows.information(form, pool) + behind) / (pool.n + labelled.n)
        known = labelled.n + k
        design = fisher.Design(behind / known, self.lambda_, total, (1 if self.consistent else k) / known)
        notes["trace_before"] = design.trace()
        taken, few = self._taken(pool.n, k), self._looked_at(pool.n, k)
        drawn = None
        if few < pool.n:
            draw = key.fold("candidates")
            drawn = fisher_rows.Drawn(draw, float(pool.best(lambda shard: draw.uniform(shard.ids), few).values[-1]))
            notes["candidates"] = f"chosen from {few:,} of the {pool.n:,} rows, drawn at random"
        try:
            picked = self._forward(pool, form, design, drawn, taken)
        finally:
            pool.map(fisher_rows.end)
        kept = self._backward(pool, form, design, [row for row, _ in picked], k)
        notes |= {"trace_after": design.trace(), "taken": taken}
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
        if classes > MOST_CLASSES:
            notes["classes"] = f"the {MOST_CLASSES - 1} most probable of {classes} classes stay apart, the rest is one"
            mean_C = pool.sum(_probabilities) / pool.n
            # Rounded, so that the order does not depend on the blocks the mean was summed in.
            kept = (mean_C * 1e9).round().argsort(descending=True, stable=True)[: MOST_CLASSES - 1].sort().values
            classes = MOST_CLASSES
        if classes * width > self.widest:
            narrow = min(width, WIDEST_PROJECTION, max(NARROWEST, self.widest // classes))
            notes["projection"] = f"embeddings projected at random from {width} to {narrow} columns"
            drawn = torch.randn(width, narrow, generator=key.generator(), dtype=torch.float64)
            projection, width = drawn / narrow**0.5, narrow
        return fisher.Form(classes, width, self.regress, kept, projection), notes

    def _forward(
        self, pool: Shards, form: fisher.Form, design: fisher.Design, drawn: fisher_rows.Drawn | None, count: int
    ) -> list[tuple[int, float]]:
        """`count` rows with how far each lowered the trace, one by one."""
        pool.map(functools.partial(fisher_rows.begin, form, design, drawn))
        picked: list[tuple[int, float]] = []
        fresh = 0.0
        for number in range(count):
            best = pool.best(fisher_rows.gain, 1, TIE)
            if fresh and float(best.values[0]) < WORN * fresh:
                design.refresh()
                pool.map(functools.partial(fisher_rows.begin, form, design, drawn))
                best, fresh = pool.best(fisher_rows.gain, 1, TIE), 0.0
            fresh = max(fresh, float(best.values[0]))
            picked.append((int(best.ids[0]), float(best.values[0])))
            step = design.move(form.read(pool.take(best.ids)), -1)
            tick(number + 1, count)
            if number + 1 < count:
                pool.map(functools.partial(fisher_rows.absorb, form, step, best.ids))
        return picked

    def _backward(self, pool: Shards, form: fisher.Form, design: fisher.Design, rows: list[int], k: int) -> set[int]:
        """The k of these rows that are left after the others are let go, each the one that raises the trace least."""
        ids = torch.tensor(rows).sort().values
        if len(ids) == k:
            return set(ids.tolist())
        if design.age > OLD:
            design.refresh()
        parts = form.read(pool.take(ids).to(torch.device("cpu")))
        p_Mrr, q_Mrr = design.state_of_few(parts)
        left = torch.ones(len(ids), dtype=torch.bool)
        for _ in range(len(ids) - k):
            rise_M = fisher.change_of_trace(p_Mrr, q_Mrr, 1).masked_fill(~left, torch.inf)
            least = rise_M.min()
            # Of rows that are as good the one with the largest id goes: the smaller ids stay.
            gone = int((rise_M <= least + TIE * least.abs()).nonzero()[-1])
            left[gone] = False
            design.move(parts.row(gone), 1).change(parts, p_Mrr, q_Mrr)
        return set(ids[left].tolist())


def _probabilities(shard: Shard) -> Tensor:
    """The sum of the probabilities of each class (C,)."""
    return torch.stack([rows.tensor(Probs()).double().sum(0) for _, rows in shard.blocks()]).sum(0).cpu()
