"""Fisher information through the shards: its sum over rows, and the small matrices that each row keeps of it."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.choose.fisher import Design, Form, Parts, Step, bounds, change_of_trace
from labelwise.keys import Key
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows

SOLVED = 2048  # rows whose small systems are solved at once
ALMOST = 1 - 1e-9  # rows within this of the best are still looked at exactly


class Drawn(NamedTuple):
    """Rows drawn at random: those whose number, hashed from their id, is at least so large."""

    key: Key
    least: float


def information(form: Form, shards: Shards) -> Tensor:
    """The sum of V^T V over all rows (C D, C D), on the CPU."""
    size = form.classes * form.width
    if not shards.n:
        return torch.zeros(size, size, dtype=torch.float64)
    total: Tensor = shards.sum(functools.partial(_information, form))
    return total


def _information(form: Form, shard: Shard) -> Tensor:
    size = form.classes * form.width
    total_GG = torch.zeros(size, size, dtype=torch.float64, device=shard.device)
    for _, rows in shard.blocks(scratch=4 * size):
        p_NC, h_ND, _, before = form.read(rows)
        both_NG = (p_NC[:, :, None] * h_ND[:, None, :]).flatten(1)
        for c in range(form.classes):
            here, to = slice(c * form.width, (c + 1) * form.width), (c + 1) * form.width
            total_GG[here, here] += both_NG[:, here].T @ h_ND
            if before is not None:
                total_GG[here, :to] -= both_NG[:, here].T @ both_NG[:, :to]
    lower = torch.block_diag(*[torch.ones(form.width, form.width, dtype=torch.float64)] * form.classes)
    total_GG = total_GG.cpu()
    return total_GG + total_GG.T * (1 - lower)


def begin(form: Form, design: Design, drawn: Drawn | None, shard: Shard) -> None:
    """P, Q and the bounds of every row of the shard, or of those that are drawn."""
    rank = form.rank
    if "P" not in shard.state:
        if drawn is not None:
            shard.state["at"] = (drawn.key.uniform(shard.ids) >= drawn.least).nonzero()[:, 0]
        count = len(shard.state.get("at", shard.ids))
        shapes = {"P": (rank, rank), "Q": (rank, rank), "bound": (2,)}
        shapes |= {"probs": (form.classes,), "size": (rank,), "before": (rank,)}
        for name, shape in shapes.items():
            shard.state[name] = torch.empty(count, *shape, dtype=torch.float64, device=shard.device)
        shard.state["taken"] = torch.zeros(count, dtype=torch.bool, device=shard.device)
    middle_GG = design.middle().to(shard.device)
    for where, rows in _blocks(shard, 4 * form.classes * (form.width + 4 * form.classes)):
        parts = form.read(rows)
        shard.state["probs"][where], shard.state["size"][where] = parts.p_NC, parts.size_Nr
        if parts.before_Nr is not None:
            shard.state["before"][where] = parts.before_Nr
        shard.state["P"][where], shard.state["Q"][where] = design.state(parts, middle_GG)
        _bound(shard, where)


def absorb(form: Form, step: Step, pick: Tensor, shard: Shard) -> None:
    """Bring every row up to date after `pick` was taken in."""
    for where, rows in _blocks(shard, 16 * form.rank * (form.classes + form.rank)):
        before = None if form.regress else shard.state["before"][where]
        parts = Parts(shard.state["probs"][where], form.columns(rows), shard.state["size"][where], before)
        step.change(parts, shard.state["P"][where], shard.state["Q"][where])
        _bound(shard, where)
        shard.state["taken"][where] |= rows.ids == pick.to(shard.device)


def gain(shard: Shard) -> Tensor:
    """How far each row (n,) would lower the trace; -inf where it cannot be the best, or may not be taken."""
    gain_N = torch.full((len(shard),), -torch.inf, dtype=torch.float64, device=shard.device)
    lower_n, upper_n = shard.state["bound"].unbind(1)
    taken = shard.state["taken"]
    if bool(taken.all()):
        return gain_N
    floor = lower_n.masked_fill(taken, -torch.inf).max() * ALMOST
    open_ = ((upper_n >= floor) & ~taken).nonzero()[:, 0]
    at = shard.state.get("at")
    for part in open_.split(SOLVED):
        value = change_of_trace(shard.state["P"][part], shard.state["Q"][part], -1)
        gain_N[part if at is None else at[part]] = value
    return gain_N


def end(shard: Shard) -> None:
    """Forget what was kept beside the rows."""
    for name in ("at", "P", "Q", "bound", "probs", "size", "before", "taken"):
        shard.state.pop(name, None)


def _blocks(shard: Shard, scratch: int) -> Iterator[tuple[slice, Rows]]:
    """Blocks of the rows that may be taken, with their place in what is kept of them."""
    if "at" not in shard.state:
        yield from shard.blocks(scratch)
        return
    start = 0
    for part, rows in shard.some_blocks(shard.state["at"], scratch):
        yield slice(start, start + len(part)), rows
        start += len(part)


def _bound(shard: Shard, where: slice) -> None:
    low, high = bounds(shard.state["P"][where], shard.state["Q"][where])
    shard.state["bound"][where, 0], shard.state["bound"][where, 1] = low, high
