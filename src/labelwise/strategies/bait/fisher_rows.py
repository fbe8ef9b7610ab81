"""Fisher information through the shards: its sum over rows, and the small matrices that rows keep of it.

Only some rows are held, with P and Q that are brought up to date after every pick. Of the others two numbers are known,
from when P and Q were last there, by which they can never gain more than some bound (`fisher.ever`). While that is
below the best gain among those held, no row is missed. When it is not, rows are brought back (`begin`).
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.shards import Shard, Shards
from labelwise.strategies.bait.design import Design
from labelwise.strategies.bait.fisher import Form, Parts, Step, bounds, change_of_trace, ever, in_cache, traces

TIE = 1e-11  # relative; differences of float64 sums that are not worn are better than this
SOLVED = 2048  # rows whose small systems are solved at once
FIRST = 32  # rows that are solved for a floor
ALMOST, MORE = 1 - 1e-9, 1 + 1e-9  # rows within this of the best are still looked at exactly
# Columns up to which embeddings are kept beside P and Q, and not read again for every pick; projected ones always are.
NARROW = 128
FEW = 4  # one in so many rows may be held while others are brought beside them
UNKNOWN = 1e300  # a gain that no row has; infinity times nothing would not be a number
PER_ROW = ("held", "P", "Q", "probs", "h", "traces", "taken")  # of the rows that are held


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
        p_NC, h_ND = form.read(rows)
        both_NG = h_ND if p_NC is None else (p_NC[:, :, None] * h_ND[:, None, :]).flatten(1)
        for c in range(form.classes):
            here, to = slice(c * form.width, (c + 1) * form.width), (c + 1) * form.width
            total_GG[here, here] += both_NG[:, here].T @ h_ND
            if p_NC is not None:
                total_GG[here, :to] -= both_NG[:, here].T @ both_NG[:, :to]
    lower = torch.block_diag(*[torch.ones(form.width, form.width, dtype=torch.float64)] * form.classes)
    total_GG = total_GG.cpu()
    return total_GG + total_GG.T * (1 - lower)


def begin(form: Form, design: Design, drawn: Drawn | None, largest: float, bar: float, shard: Shard) -> float:
    """P and Q, from their definition, of the rows that may gain as much as `bar`; what none of the others may gain.

    `largest` is `design.largest()`.
    """
    state = shard.state
    if "ever" not in state:
        at = torch.arange(len(shard), device=shard.device)
        state["at"] = at if drawn is None else at[drawn.key.uniform(shard.ids) >= drawn.least]
        state["ever"] = torch.full((len(state["at"]), 2), UNKNOWN, dtype=torch.float64, device=shard.device)
    for name in PER_ROW:
        state.pop(name, None)
    _compute(form, design, largest, bar, (_bound(shard, largest) >= bar).nonzero()[:, 0], shard)
    return _others(shard, largest)


def bring(form: Form, design: Design, largest: float, bar: float, shard: Shard) -> float:
    """Hold also the other rows that may gain as much as `bar`; what none of the rest may gain."""
    state = shard.state
    bound = _bound(shard, largest)
    bound[state["held"]] = -torch.inf
    coming = (bound >= bar).nonzero()[:, 0]
    if FEW * (len(coming) + len(state["held"])) > len(state["at"]):
        return begin(form, design, None, largest, bar, shard)  # there is no room for two of the large arrays
    there = {name: state.pop(name) for name in PER_ROW if name in state}
    _compute(form, design, largest, bar, coming, shard)
    for name, array in there.items():
        state[name] = torch.cat([array, state[name]])
    return _others(shard, largest)


def _compute(form: Form, design: Design, largest: float, bar: float, held: Tensor, shard: Shard) -> None:
    """P and Q, from their definition, of these rows as the ones that are held, if they may gain as much as `bar`."""
    state = shard.state
    design = design.at(state)
    _room(form, shard, len(held))
    inverse_GG, middle_GG, kept = design.inverse_GG.to(shard.device), design.middle().to(shard.device), 0
    for at, rows in shard.some_blocks(state["at"][held], 4 * form.classes * (form.width + 4 * form.classes)):
        which, held = held[: len(at)], held[len(at) :]
        read = form.read(rows)
        p_nrr, q_nrr = design.state(read, inverse_GG, middle_GG)
        state["ever"][which] = torch.stack(ever(p_nrr, q_nrr, largest), 1)
        stay = (_bound(shard, largest, which) >= bar).nonzero()[:, 0]
        to = slice(kept, kept + len(stay))
        state["held"][to], state["P"][to], state["Q"][to] = which[stay], p_nrr[stay], q_nrr[stay]
        if read.p_NC is not None:
            state["probs"][to] = read.p_NC[stay]
        if "h" in state:
            state["h"][to] = read.h_ND[stay]
        kept = to.stop
    _only(shard, torch.arange(kept, device=shard.device))
    state["traces"] = traces(state["P"], state["Q"])
    state["taken"] = torch.zeros(kept, dtype=torch.bool, device=shard.device)


def part(largest: float, bar: float, shard: Shard) -> float:
    """Let go of P and Q of the rows that were taken or cannot gain as much as `bar`; what none without may gain."""
    state = shard.state
    for where in _slices(shard, shard.block_rows(8 * state["P"][:1].numel())):
        found = torch.stack(ever(state["P"][where], state["Q"][where], largest), 1)
        state["ever"][state["held"][where]] = found.masked_fill(state["taken"][where, None], -UNKNOWN)
    _only(shard, (_bound(shard, largest, state["held"]) >= bar).nonzero()[:, 0])
    return _others(shard, largest)


def absorb(form: Form, step: Step, pick: Tensor, shard: Shard) -> None:
    """Bring P and Q up to date after `pick` was taken in."""
    state, step = shard.state, step.to(shard.device)
    state["taken"] |= shard.ids[state["at"][state["held"]]] == pick.to(shard.device)
    state["ever"][state["held"][state["taken"]]] = -UNKNOWN
    for where in blocks(form, shard):
        p_nrr, q_nrr = state["P"][where], state["Q"][where]
        step.change(parts(form, shard, where), p_nrr, q_nrr)
        state["traces"][where] = traces(p_nrr, q_nrr)


def gain(shard: Shard) -> Tensor:
    """How far each row (n,) would lower the trace; -inf where it cannot be the best, or may not be taken."""
    state = shard.state
    gain_N = torch.full((len(shard),), -torch.inf, dtype=torch.float64, device=shard.device)
    p_n, q_n = state["traces"].unbind(1)
    # tr Q / (1 + tr P) <= gain <= tr Q; what a few rows gain is a better floor.
    likely = (q_n / (1 + p_n)).masked_fill(state["taken"], -torch.inf)
    if not bool((likely > -torch.inf).any()):
        return gain_N
    first = likely.topk(min(FIRST, len(likely))).indices
    floor = _exactly(shard, first[~state["taken"][first]], gain_N).max() * ALMOST
    open_ = ((q_n * MORE >= floor) & ~state["taken"]).nonzero()[:, 0]
    for some in open_.split(SOLVED):
        _, upper = bounds(state["P"][some], state["Q"][some])
        _exactly(shard, some[upper >= floor], gain_N)
    return gain_N


def end(shard: Shard) -> None:
    """Forget what was kept beside the rows."""
    for name in ("at", "ever", *PER_ROW):
        shard.state.pop(name, None)


def _exactly(shard: Shard, which: Tensor, gain_N: Tensor) -> Tensor:
    """What these of the rows that are held gain, by solving; written to its place too."""
    value = change_of_trace(shard.state["P"][which], shard.state["Q"][which], -1)
    gain_N[shard.state["at"][shard.state["held"][which]]] = value
    return value


def _bound(shard: Shard, largest: float, which: Tensor | None = None) -> Tensor:
    """What these rows, or all that may be taken, gain at most."""
    ever_n2 = shard.state["ever"] if which is None else shard.state["ever"][which]
    return torch.minimum(largest * ever_n2[:, 0], ever_n2[:, 1])


def _others(shard: Shard, largest: float) -> float:
    """What no row that is not held can gain more than; -inf where there is none."""
    bound = _bound(shard, largest)
    bound[shard.state["held"]] = -torch.inf
    return float(bound.max()) if len(bound) else -torch.inf


def _room(form: Form, shard: Shard, count: int) -> None:
    """Make room for so many rows that are held."""
    shapes: dict[str, tuple[int, ...]] = {"P": (form.rank, form.rank), "Q": (form.rank, form.rank)}
    shapes |= {} if form.regress else {"probs": (form.classes,)}
    shapes |= {"h": (form.width,)} if form.width <= NARROW else {}
    for name, shape in shapes.items():
        shard.state[name] = torch.empty(count, *shape, dtype=torch.float64, device=shard.device)
    shard.state["held"] = torch.empty(count, dtype=torch.int64, device=shard.device)


def _only(shard: Shard, stay: Tensor) -> None:
    """Of the rows that are held, hold only these; in place, so that there are never two of the large arrays."""
    for name in PER_ROW:
        array = shard.state.get(name)
        if array is None or len(array) == len(stay):
            continue
        to = 0
        for some in stay.split(SOLVED):
            array[to : to + len(some)] = array[some]
            to += len(some)
        # A small part of a large array is copied, so that the rest of it is given back.
        shard.state[name] = array[:to].clone() if FEW * to < len(array) else array[:to]


def _slices(shard: Shard, size: int) -> list[slice]:
    """The rows that are held, in blocks of `size`."""
    count = len(shard.state["held"])
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def blocks(form: Form, shard: Shard) -> list[slice]:
    """The rows that are held, in blocks that a step changes at once."""
    size = shard.block_rows(16 * form.rank * (form.classes + form.rank))
    if shard.device.type == "cpu":
        size = min(size, in_cache(form.classes))
    return _slices(shard, size)


def parts(form: Form, shard: Shard, where: slice | Tensor) -> Parts:
    """Some of the rows that are held."""
    state = shard.state
    h_nD = state["h"][where] if "h" in state else form.columns(shard.rows(state["at"][state["held"][where]]))
    return Parts(None if form.regress else state["probs"][where], h_nD)
