"""BAIT: the batch whose Fisher information leaves the least expected error over the whole pool.

Ash, Goel, Krishnamurthy and Kakade, "Gone fishing: neural active learning with Fisher embeddings", NeurIPS 2021,
algorithm 1. With I_x the information of a row about the last layer, F its mean over labelled and unlabelled rows, and

    M = lambda + (sum over labelled of I_x) / (L + k) + c sum over the batch of I_x,    make tr(M^-1 F) small:

add 2 k rows one by one, each the one that lowers it most, then remove k of them, each the one that raises it least.
c = k / (L + k), as in the authors' programme; `consistent` takes 1 / (L + k), so that M is an average too.
fisher.py has the algebra: factors of rank C - 1, and small matrices for each row that are updated after every pick.
search.py has the two loops. On one accelerator they make many steps without the host (kernels/torch.py).
Cost for each pick: n D C (C - 1) for the n rows that may be the best soon, at most N, and (C D)^2 C; once N (C D)^2.
Memory N C^2 and (C D)^2. In regression C is 1.
Departs from the paper: where C D is above `widest`, embeddings are projected at random to fewer columns; of more than
32 classes the 31 most probable stay separate and the others become one; in pools of more than 100,000 rows of more than
16 classes 15 do, and the batch is selected from 50,000 rows drawn at random, for the error over all of them: N is
50,000 above then. The notes say so.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.io.arguments import check_fields, check_whole
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.progress import stage
from labelwise.selection.selection import equal_weights
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shard, Shards
from labelwise.signals.spec import Embedding, Needs, Probs
from labelwise.strategies.bait.design import FLUSH_BLOCK, Design
from labelwise.strategies.bait.fisher import RowReader
from labelwise.strategies.bait.kernels.torch import SOLVE_BLOCK, Problem, Sample, Tuning, steps_memory
from labelwise.strategies.bait.search import backward_search, forward, open_search

THIN_PRODUCT_COST = (
    7  # thin products in float64, relative to the rate that run times are estimated with (docs/scale.md)
)
MAX_CLASSES = 32
MIN_PROJECTION, MAX_PROJECTION = 8, 128
_BOTH = (Probs(), Embedding())
_REGRESSION = Needs(pool=(Embedding(),), labelled=(Embedding(),))


@register
@dataclass(frozen=True)
class Bait(Strategy):
    """Forward and backward greedy selection by Fisher information.

    Args:
        lambda_: what is added to the diagonal of M; 1, and 0.01 for the authors' CIFAR runs.
        oversample: how many times k rows are added before all but k are removed.
        consistent: whether a row of the batch counts in M as a labelled one does.
        regress: the form for models of numbers, whose information is h h^T. A regression session sets it.
        widest: classes x columns up to which embeddings are not projected.
        classes: classes up to which all stay separate; None: 32, and 16 in pools of more than 100,000 rows.
        candidates: rows, drawn at random, that the batch is selected from, at least twice as many as are added at
            first; None: 50,000 in pools of more than 100,000 rows; 0: all rows.

    Raises:
        ArgumentError: a parameter is out of range.
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
    tuning: ClassVar[Tuning] = Tuning()
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
        check_fields(self, check_whole, "classes", least=2)
        check_fields(self, check_whole, "candidates", least=0)
        if self.regress:
            object.__setattr__(self, "needs", _REGRESSION)

    def for_regression(self) -> Strategy:
        return replace(self, regress=True)

    def memory(self, size: Size) -> int:
        classes, width = self._shape(size)
        rank = max(1, classes - 1)
        embedding = width if width <= self.tuning.narrow else 0
        # P and Q of a row, and one of them again while the cache is restricted to few of its rows.
        cached = 8 * (2 * rank * rank + rank * rank // 4 + classes + embedding + 8)
        tables = 8 * 8 * (classes * width) ** 2
        added = 8 * self._added(size.rows, size.k) * (4 * rank * rank + classes + width)
        solved = 6 * 8 * SOLVE_BLOCK * rank * (rank + classes) + 8 * FLUSH_BLOCK * rank * classes * width
        candidates = self._candidate_rows(size.rows, size.k)
        read = SOLVE_BLOCK * (64 * width + 4 * size.row)
        steps = steps_memory(self.tuning, candidates, rank) if size.accelerator else 0
        return 64 * size.rows + tables + solved + read + steps + max(cached * candidates, added)

    def work(self, size: Size) -> float:
        classes, width = self._shape(size)
        updated = self._candidate_rows(size.rows, size.k) / 4  # on average in the cache, where many rows are added
        steps = (2 * self.oversample - 1) * size.k  # added and removed
        per_step = updated + 4 * classes * width  # rows, and what M^-1 and F cost
        return THIN_PRODUCT_COST * 2.0 * classes**2 * width * (per_step * steps + size.rows * width / 2)

    def _shape(self, size: Size) -> tuple[int, int]:
        """Separate classes, and columns of the embedding after projection."""
        classes = 1 if self.regress else min(self._max_classes(size.rows), max(2, size.shape(Probs)[0]))
        return classes, self._projected_width(classes, size.shape(Embedding)[0])

    def _max_classes(self, rows: int) -> int:
        """Classes up to which all stay separate."""
        if self.classes is not None:
            return self.classes
        return MAX_CLASSES if rows <= self.tuning.large_pool else self.tuning.few_classes

    def _projected_width(self, classes: int, width: int) -> int:
        """Columns of embeddings that have `width`, after a projection where that is too many."""
        if classes * width <= self.widest:
            return width
        return min(width, MAX_PROJECTION, max(MIN_PROJECTION, self.widest // classes))

    def _added(self, rows: int, k: int) -> int:
        """Rows that are added before all but k are removed."""
        return min(rows, max(k, round(self.oversample * k)))

    def _candidate_rows(self, rows: int, k: int) -> int:
        """Rows that the batch is selected from."""
        if self.candidates is not None:
            wanted = self.candidates
        else:
            wanted = self.tuning.candidates if rows > self.tuning.large_pool else 0
        return min(rows, max(wanted, 2 * self._added(rows, k))) if wanted else rows

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        reader, notes = self._reader(pool, key.fold("projection"))
        labelled_GG = reader.information(labelled)
        with stage(0.0, 0.1):
            target_GG = (reader.information(pool) + labelled_GG) / (pool.n + labelled.n)
        added, candidates = self._added(pool.n, k), self._candidate_rows(pool.n, k)
        sample = None
        if candidates < pool.n:
            chance = key.fold("candidates")
            least = float(pool.best(lambda shard: chance.uniform(shard.ids), candidates).values[-1])
            sample = Sample(chance, least)
            notes["candidates"] = f"chosen from {candidates:,} of the {pool.n:,} rows, drawn at random"
        labels = labelled.n + k
        scale = (1 if self.consistent else k) / labels
        make_design = functools.partial(_make_design, labelled_GG / labels, self.lambda_, target_GG, scale)
        search = open_search(pool, Problem(reader, sample, self.tuning), make_design)
        try:
            notes["trace_before"] = search.trace()
            with stage(0.1, 0.7):
                picked = forward(search, added)
            with stage(0.7, 1.0):
                remaining = backward_search(search, [row for row, _ in picked], k)
            notes |= {"trace_after": search.trace(), "taken": added}
        finally:
            search.close()
        batch = [(row, score) for row, score in picked if row in remaining]
        return equal_weights([row for row, _ in batch], [score for _, score in batch], notes)

    def _reader(self, pool: Shards, key: Key) -> tuple[RowReader, dict[str, float | str]]:
        """How rows are read, with notes on classes that are merged and on the projection."""
        row = pool.take(pool.best(lambda shard: -shard.ids.double(), 1).ids)
        width = row.tensor(Embedding()).shape[1]
        classes = 1 if self.regress else max(2, row.tensor(Probs()).shape[1])
        notes: dict[str, float | str] = {}
        separate = projection = None
        most = self._max_classes(pool.n)
        if classes > most:
            notes["classes"] = f"the {most - 1} most probable of {classes} classes stay apart, the rest is one"
            mean_C = pool.sum(_sum_of_probabilities) / pool.n
            # Rounded, so that the order does not depend on the blocks the mean was summed in.
            order = (mean_C * 1e9).round().argsort(descending=True, stable=True)
            separate, classes = order[: most - 1].sort().values, most
        narrow = self._projected_width(classes, width)
        if narrow < width:
            notes["projection"] = f"embeddings projected at random from {width} to {narrow} columns"
            normal = torch.randn(width, narrow, generator=key.generator(), dtype=torch.float64)
            projection, width = normal / narrow**0.5, narrow
        return RowReader(classes, width, self.regress, separate, projection), notes


def _make_design(labelled_GG: Tensor, lambda_: float, target_GG: Tensor, scale: float, device: torch.device) -> Design:
    return Design(labelled_GG.to(device), lambda_, target_GG.to(device), scale)


def _sum_of_probabilities(shard: Shard) -> Tensor:
    """The sum of the probabilities of each class (C,)."""
    return torch.stack([rows.tensor(Probs()).double().sum(0) for _, rows in shard.blocks()]).sum(0).cpu()
