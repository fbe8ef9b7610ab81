"""Fisher information through the shards: its sum over rows, and the small matrices that each row keeps of it."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from labelwise.choose.fisher import Design, Form, Parts, Step, bounds, change_of_trace
from labelwise.shards import Shard, Shards

SOLVED = 2048  # rows whose small systems are solved at once
ALMOST = 1 - 1e-9  # rows within this of the best are still looked at exactly


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


def begin(form: Form, design: Design, shard: Shard) -> None:
    """P, Q and the bounds of every row of the shard."""
    rank = form.rank
    if "P" not in shard.state:
        shapes = {"P": (rank, rank), "Q": (rank, rank), "bound": (2,)}
        shapes |= {"probs": (form.classes,), "size": (rank,), "before": (rank,)}
        for name, shape in shapes.items():
            shard.state[name] = torch.empty(len(shard), *shape, dtype=torch.float64, device=shard.device)
        shard.state["taken"] = torch.zeros(len(shard), dtype=torch.bool, device=shard.device)
    middle_GG = design.middle().to(shard.device)
    for where, rows in shard.blocks(scratch=4 * form.classes * (form.width + 4 * form.classes)):
        parts = form.read(rows)
        shard.state["probs"][where], shard.state["size"][where] = parts.p_NC, parts.size_Nr
        if parts.before_Nr is not None:
            shard.state["before"][where] = parts.before_Nr
        shard.state["P"][where], shard.state["Q"][where] = design.state(parts, middle_GG)
        _bound(shard, where)


def absorb(form: Form, step: Step, pick: Tensor, shard: Shard) -> None:
    """Bring every row up to date after `pick` was taken in."""
    for where, rows in shard.blocks(scratch=16 * form.rank * (form.classes + form.rank)):
        before = None if form.regress else shard.state["before"][where]
        parts = Parts(shard.state["probs"][where], form.columns(rows), shard.state["size"][where], before)
        step.change(parts, shard.state["P"][where], shard.state["Q"][where])
        _bound(shard, where)
    shard.state["taken"] |= shard.ids == pick.to(shard.device)


def gain(shard: Shard) -> Tensor:
    """How far each row (n,) would lower the trace; -inf where it cannot be the best."""
    lower_N, upper_N = shard.state["bound"].unbind(1)
    taken = shard.state["taken"]
    gain_N = torch.full_like(lower_N, -torch.inf)
    if bool(taken.all()):
        return gain_N
    floor = lower_N.masked_fill(taken, -torch.inf).max() * ALMOST
    at = ((upper_N >= floor) & ~taken).nonzero()[:, 0]
    for part in at.split(SOLVED):
        gain_N[part] = change_of_trace(shard.state["P"][part], shard.state["Q"][part], -1)
    return gain_N


def end(shard: Shard) -> None:
    """Forget what was kept beside the rows."""
    for name in ("P", "Q", "bound", "probs", "size", "before", "taken"):
        shard.state.pop(name, None)


def _bound(shard: Shard, where: slice) -> None:
    low, high = bounds(shard.state["P"][where], shard.state["Q"][where])
    shard.state["bound"][where, 0], shard.state["bound"][where, 1] = low, high
