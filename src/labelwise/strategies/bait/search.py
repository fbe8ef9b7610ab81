"""What BAIT asks of rows and design, wherever the design is kept: the same questions for both places.

With rows in several shards, or on the CPU, the design is in this process, and the shards are told of every row that is
taken. With all rows in one shard on an accelerator it is kept beside them (fisher_design.py), and rows are taken many
at a time (fisher_device.py): the host waits for one answer in many picks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from labelwise.selection.progress import tick
from labelwise.shards import Best, Shard, Shards
from labelwise.strategies.bait import backward, fisher_rows
from labelwise.strategies.bait.design import TABLES, Design
from labelwise.strategies.bait.fisher import Form, Parts, Step, together
from labelwise.strategies.bait.kernels import torch as bait_cuda
from labelwise.strategies.bait.kernels.torch import Limits

T = TypeVar("T")

HERE = torch.device("cpu")
SPARE = 2  # times the rows that had to be solved so far in a step are made room for in those that follow


class Search:
    """Rows, how they are read, and the design.

    Attributes:
        design: what is known of the batch; without its tables where they are beside the rows.
        beside: whether they are.
    """

    def __init__(
        self, pool: Shards, form: Form, drawn: fisher_rows.Drawn | None, make: Callable[[torch.device], Design]
    ):
        """`make` gives the design, on the device that it is told."""
        self._pool, self._form, self._drawn = pool, form, drawn
        devices = pool.map(_device)
        self.beside = len(devices) == 1 and devices != [HERE.type]
        if self.beside:
            (self.design,) = pool.map(functools.partial(_settle, make))
        else:
            self.design = make(HERE)
        self._wide = bait_cuda.narrowest(form.rank)  # rows that a step on a device solves exactly

    def trace(self) -> float:
        """tr(M^-1 F)."""
        return self._ask(Design.trace)

    def refresh(self) -> None:
        """Invert M anew."""
        self._ask(Design.refresh)

    def begin(self, bar: float) -> float:
        """Compute P and Q of the rows that may gain as much as `bar` anew; what none of the others may gain."""
        return self._hold(functools.partial(fisher_rows.begin, self._form, self.design, self._drawn), bar)

    def bring(self, bar: float) -> float:
        """Compute P and Q of others that may gain as much as `bar`; what none of the rest may gain."""
        return self._hold(functools.partial(fisher_rows.bring, self._form, self.design), bar)

    def part(self, bar: float) -> float:
        """Let go of P and Q of rows that cannot gain as much as `bar`; what none without may gain."""
        return self._hold(fisher_rows.part, bar)

    def _hold(self, fn: Callable[..., float], bar: float) -> float:
        return max(self._pool.map(functools.partial(fn, self._ask(Design.largest), bar)))

    def best(self) -> Best:
        """The row that lowers the trace most, of those whose P and Q are there."""
        return self._pool.best(fisher_rows.gain, 1, fisher_rows.TIE)

    def take(self, ids: Tensor, last: bool) -> None:
        """Take a row in; P and Q of the others are not needed after the last."""
        row = self._form.read(self._pool.take(ids))
        step = self._ask(functools.partial(_moved, row))
        if not last:
            self._pool.map(functools.partial(fisher_rows.absorb, self._form, step, ids))

    def run(self, many: int, others: float, fresh: float) -> list[tuple[int, float]]:
        """Take up to so many rows in without the host, where the design is beside them; with their gains."""
        picked: list[tuple[int, float]] = []
        crowded = self.beside
        while crowded and len(picked) < many:
            limits = Limits(many - len(picked), self._wide, others, fresh)
            ids, values, open_ = self._there(functools.partial(bait_cuda.take, self._form, limits))
            picked += zip(ids.tolist(), values.tolist())
            fresh, crowded = max([fresh, *values.tolist()]), open_ > self._wide
            self._wide = max(bait_cuda.narrowest(self._form.rank), SPARE * open_)
        return picked

    def let_go(self, ids: Tensor, k: int, piece: int) -> Tensor:
        """The k of these rows that are left after the others are let go, each the one that raises the trace least.

        Beside rows, `piece` of them go before the host is told.
        """
        many = len(ids) - k
        if not self.beside:
            parts = [self._form.read(self._pool.take(some).to(HERE)) for some in ids.split(fisher_rows.SOLVED)]
            taken = backward.Taken({})
            taken.begin(together(parts), self.design)
            for number in range(many):
                taken.let_go(1, self.design)
                tick(number + 1, many)
            return ids[taken.left]
        self._there(functools.partial(backward.begin, self._form, ids))
        for start in range(0, many, piece):
            stop = min(start + piece, many)
            self._there(functools.partial(backward.let_go, stop - start))
            tick(stop, many)
        (left,) = self._pool.map(backward.left)
        return ids[left]

    def end(self) -> None:
        """Forget what was kept beside the rows; the design stays."""
        self._pool.map(fisher_rows.end)

    def close(self) -> None:
        """Forget all of it."""
        self._pool.map(_forget)

    def _ask(self, fn: Callable[[Design], T]) -> T:
        """fn of the design."""
        return self._there(functools.partial(_alone, fn)) if self.beside else fn(self.design)

    def _there(self, fn: Callable[[Design, Shard], T]) -> T:
        """fn of the design and the shard that it is kept beside."""
        ((answer, self.design),) = self._pool.map(functools.partial(_beside, fn, self.design))
        return answer


def _device(shard: Shard) -> str:
    return shard.device.type


def _settle(make: Callable[[torch.device], Design], shard: Shard) -> Design:
    """Make the design beside the rows; the rest of it travels."""
    design = make(shard.device)
    shard.state.update(design.tables)
    return design.without()


def _beside(fn: Callable[[Design, Shard], T], design: Design, shard: Shard) -> tuple[T, Design]:
    """fn of the design beside this shard, which is then written out: rows that moved are not kept elsewhere."""
    whole = design.at(shard.state)
    answer = fn(whole, shard)
    whole.write()
    return answer, whole.without()


def _alone(fn: Callable[[Design], T], design: Design, shard: Shard) -> T:
    return fn(design)


def _moved(row: Parts, design: Design) -> Step:
    return design.move(row, -1)


def _forget(shard: Shard) -> None:
    bait_cuda.forget(shard)
    backward.end(shard)
    for name in TABLES:
        shard.state.pop(name, None)
