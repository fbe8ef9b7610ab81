"""P and Q next to the rows, and greedy steps on one accelerator without the host.

**Cached rows.** Only some rows of a shard have P and Q, which are updated after every pick. For the others two numbers
are known from when P and Q were last computed, which bound what they can ever gain (`fisher.future_gain_bounds`).
While that is below the best gain among the cached rows, no row is missed; when it is not, rows are added to the cache.

**Steps.** A step finds a row, adds or removes it, and updates the other rows. All it needs is on the device: the
design, P and Q of the rows, and a bound of what each row gains. It solves the `solved` rows of highest bound exactly.
Where a row outside of them may be as good, where rows that are not cached may be, where gains have lost digits, or
where M is not positive definite, the step does nothing and neither do those after it. The host reads how many were
done, makes the next one itself, and continues; so the picks are the same, and no step is ever undone. On CUDA a step is
captured in a graph and replayed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.backends import is_accelerator
from labelwise.shards import Shard
from labelwise.shards.graphs import captured
from labelwise.strategies.bait import fisher
from labelwise.strategies.bait.design import Design, solve_cholesky
from labelwise.strategies.bait.fisher import ADD, Factors, RowReader, Update

TIE = 1e-11  # relative; sums in float64 that have not lost digits differ by less
NEARLY, SLIGHTLY_MORE = 1 - 1e-9, 1 + 1e-9  # rows within this of the best are solved exactly
MIN_GAIN_SHARE = 1e-4  # a gain this far below the highest since M was inverted has lost the digits that decide ties
SOLVE_BLOCK = 2048  # rows whose small systems are solved at once
FLOOR_ROWS = 32  # rows that are solved first, for a lower bound of the best gain
HUGE = 1e300  # a gain above all others; infinity times 0 would not be a number
LAST_LOT = torch.iinfo(torch.int64).max
PER_ROW = ("cached", "P", "Q", "probs", "h", "traces", "selected")  # state of the cached rows
_graphs: WeakKeyDictionary[Shard, _Graph] = WeakKeyDictionary()


@dataclass(frozen=True)
class Tuning:
    """Sizes and periods; they change time and memory, and no pick except for `large_pool` and the two after it.

    Args:
        refresh_before_removal: picks after which M is inverted again before rows are removed.
        refresh_period: picks after which M is inverted again when rows enter the cache.
        prune_period: picks after which rows with a low bound leave the cache.
        lookahead: picks for which none of them should have to come back.
        max_gain_decay: ratio of gains assumed where gains hardly fall; rows would come back at every pick.
        extend_share: one in this many rows may be cached while the cache is extended in a second array.
        narrow: columns up to which embeddings are cached too, and not read again for every pick.
        solved_numbers: numbers of P whose systems an accelerator solves at once; its working set fits its cache.
        min_solved: rows that are solved at once, however large P is.
        min_captured: steps from which on a CUDA graph pays.
        large_pool: rows from which on the two below hold.
        candidates: rows drawn at random that the batch is selected from.
        few_classes: classes that stay separate.
    """

    refresh_before_removal: int = 50
    refresh_period: int = 500
    prune_period: int = 50
    lookahead: int = 100
    max_gain_decay: float = 0.9
    extend_share: int = 4
    narrow: int = 128
    solved_numbers: int = 1 << 19
    min_solved: int = 64
    min_captured: int = 8
    large_pool: int = 100_000
    candidates: int = 50_000
    few_classes: int = 16

    def solved(self, rank: int) -> int:
        """Rows whose systems are solved at once on an accelerator."""
        return max(self.min_solved, self.solved_numbers // rank**2)


class Sample(NamedTuple):
    """A random sample of rows: those whose uniform number, hashed from the id, is at least `least`."""

    key: Key
    least: float


class Problem(NamedTuple):
    """What every shard needs to know."""

    reader: RowReader
    sample: Sample | None  # the rows to select from; None is all
    tuning: Tuning


# ---- the cache of P and Q ------------------------------------------------------------------------------------------


def compute_cache(problem: Problem, design: Design, largest: float, threshold: float, shard: Shard) -> float:
    """Compute P and Q, from their definition, of the rows whose bound is at least `threshold`.

    Args:
        largest: `design.eigenvalue_bound()`.

    Returns:
        An upper bound of the gains of all other rows.
    """
    state, sample = shard.state, problem.sample
    if "bounds" not in state:
        rows = torch.arange(len(shard), device=shard.device)
        state["candidates"] = rows if sample is None else rows[sample.key.uniform(shard.ids) >= sample.least]
        state["bounds"] = torch.full((len(state["candidates"]), 2), HUGE, dtype=torch.float64, device=shard.device)
    for name in PER_ROW:
        state.pop(name, None)
    _compute(problem, design, largest, threshold, (_bound(shard, largest) >= threshold).nonzero()[:, 0], shard)
    return _rest_bound(shard, largest)


def extend_cache(problem: Problem, design: Design, largest: float, threshold: float, shard: Shard) -> float:
    """Compute P and Q also of the other rows whose bound is at least `threshold`.

    Returns:
        An upper bound of the gains of all other rows.
    """
    state = shard.state
    bound = _bound(shard, largest)
    bound[state["cached"]] = -torch.inf
    new = (bound >= threshold).nonzero()[:, 0]
    if problem.tuning.extend_share * (len(new) + len(state["cached"])) > len(state["candidates"]):
        return compute_cache(problem, design, largest, threshold, shard)  # no memory for two of the large arrays
    old = {name: state.pop(name) for name in PER_ROW if name in state}
    _compute(problem, design, largest, threshold, new, shard)
    for name, array in old.items():
        state[name] = torch.cat([array, state[name]])
    return _rest_bound(shard, largest)


def _compute(problem: Problem, design: Design, largest: float, threshold: float, rows_n: Tensor, shard: Shard) -> None:
    """Cache P and Q, from their definition, of those of these rows whose new bound is at least `threshold`."""
    state, reader = shard.state, problem.reader
    design = design.with_tables(state)
    _allocate(problem, shard, len(rows_n))
    inverse_GG, sandwich_GG, count = design.inverse_GG.to(shard.device), design.sandwich().to(shard.device), 0
    scratch = 4 * reader.classes * (reader.width + 4 * reader.classes)
    for positions, block in shard.some_blocks(state["candidates"][rows_n], scratch):
        which, rows_n = rows_n[: len(positions)], rows_n[len(positions) :]
        factors = reader.read(block)
        p_nrr, q_nrr = design.compute_pq(factors, inverse_GG, sandwich_GG)
        state["bounds"][which] = torch.stack(fisher.future_gain_bounds(p_nrr, q_nrr, largest), 1)
        stay = (_bound(shard, largest, which) >= threshold).nonzero()[:, 0]
        to = slice(count, count + len(stay))
        state["cached"][to], state["P"][to], state["Q"][to] = which[stay], p_nrr[stay], q_nrr[stay]
        if factors.p_NC is not None:
            state["probs"][to] = factors.p_NC[stay]
        if "h" in state:
            state["h"][to] = factors.h_ND[stay]
        count = to.stop
    _restrict(problem, shard, torch.arange(count, device=shard.device))
    state["traces"] = fisher.traces(state["P"], state["Q"])
    state["selected"] = torch.zeros(count, dtype=torch.bool, device=shard.device)


def prune_cache(problem: Problem, largest: float, threshold: float, shard: Shard) -> float:
    """Remove the rows that were selected or whose bound is below `threshold`.

    Returns:
        An upper bound of the gains of all rows that are not cached.
    """
    state = shard.state
    for block in _slices(shard, shard.block_rows(8 * state["P"][:1].numel())):
        found = torch.stack(fisher.future_gain_bounds(state["P"][block], state["Q"][block], largest), 1)
        state["bounds"][state["cached"][block]] = found.masked_fill(state["selected"][block, None], -HUGE)
    _restrict(problem, shard, (_bound(shard, largest, state["cached"]) >= threshold).nonzero()[:, 0])
    return _rest_bound(shard, largest)


def update_cache(problem: Problem, update: Update, pick: Tensor, shard: Shard) -> None:
    """Update P and Q after the row with the id `pick` was added."""
    state, update = shard.state, update.to(shard.device)
    state["selected"] |= shard.ids[state["candidates"][state["cached"]]] == pick.to(shard.device)
    state["bounds"][state["cached"][state["selected"]]] = -HUGE
    for block in _update_blocks(problem.reader, shard):
        p_nrr, q_nrr = state["P"][block], state["Q"][block]
        update.apply(_factors(problem.reader, shard, block), p_nrr, q_nrr)
        state["traces"][block] = fisher.traces(p_nrr, q_nrr)


def gain(shard: Shard) -> Tensor:
    """The gain (n,) of each row; -inf where it cannot be the highest, or the row is selected."""
    state = shard.state
    gain_N = torch.full((len(shard),), -torch.inf, dtype=torch.float64, device=shard.device)
    p_n, q_n = state["traces"].unbind(1)
    # tr Q / (1 + tr P) <= gain <= tr Q; the exact gains of a few rows are a better floor.
    likely = (q_n / (1 + p_n)).masked_fill(state["selected"], -torch.inf)
    if not bool((likely > -torch.inf).any()):
        return gain_N
    first = likely.topk(min(FLOOR_ROWS, len(likely))).indices
    floor = _solve(shard, first[~state["selected"][first]], gain_N).max() * NEARLY
    candidates = ((q_n * SLIGHTLY_MORE >= floor) & ~state["selected"]).nonzero()[:, 0]
    for part in candidates.split(SOLVE_BLOCK):
        _, upper = fisher.gain_bounds(state["P"][part], state["Q"][part])
        _solve(shard, part[upper >= floor], gain_N)
    return gain_N


def clear_cache(shard: Shard) -> None:
    """Free all state of the cache."""
    for name in ("candidates", "bounds", *PER_ROW):
        shard.state.pop(name, None)


def _solve(shard: Shard, rows_n: Tensor, gain_N: Tensor) -> Tensor:
    """The exact gains of these cached rows; written into `gain_N` too."""
    value = fisher.trace_change(shard.state["P"][rows_n], shard.state["Q"][rows_n], ADD)
    gain_N[shard.state["candidates"][shard.state["cached"][rows_n]]] = value
    return value


def _bound(shard: Shard, largest: float, rows_n: Tensor | None = None) -> Tensor:
    """Upper bounds of the gains of these candidate rows, or of all."""
    bounds_n2 = shard.state["bounds"] if rows_n is None else shard.state["bounds"][rows_n]
    return torch.minimum(largest * bounds_n2[:, 0], bounds_n2[:, 1])


def _rest_bound(shard: Shard, largest: float) -> float:
    """An upper bound of the gains of rows that are not cached; -inf where there is none."""
    bound = _bound(shard, largest)
    bound[shard.state["cached"]] = -torch.inf
    return float(bound.max()) if len(bound) else -torch.inf


def _allocate(problem: Problem, shard: Shard, count: int) -> None:
    """Allocate the state of this many cached rows."""
    reader = problem.reader
    shapes: dict[str, tuple[int, ...]] = {"P": (reader.rank, reader.rank), "Q": (reader.rank, reader.rank)}
    shapes |= {} if reader.regress else {"probs": (reader.classes,)}
    shapes |= {"h": (reader.width,)} if reader.width <= problem.tuning.narrow else {}
    for name, shape in shapes.items():
        shard.state[name] = torch.empty(count, *shape, dtype=torch.float64, device=shard.device)
    shard.state["cached"] = torch.empty(count, dtype=torch.int64, device=shard.device)


def _restrict(problem: Problem, shard: Shard, stay: Tensor) -> None:
    """Restrict the cache to these of its rows; in place, so that there are never two of the large arrays."""
    for name in PER_ROW:
        array = shard.state.get(name)
        if array is None or len(array) == len(stay):
            continue
        to = 0
        for part in stay.split(SOLVE_BLOCK):
            array[to : to + len(part)] = array[part]
            to += len(part)
        # A small part of a large array is copied, so that the memory of the rest is freed.
        shard.state[name] = array[:to].clone() if problem.tuning.extend_share * to < len(array) else array[:to]


def _slices(shard: Shard, size: int) -> list[slice]:
    """The cached rows in blocks of `size`."""
    count = len(shard.state["cached"])
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def _update_blocks(reader: RowReader, shard: Shard) -> list[slice]:
    """The cached rows in blocks that are updated at once."""
    size = shard.block_rows(16 * reader.rank * (reader.classes + reader.rank))
    if not is_accelerator(shard.device):
        size = min(size, fisher.rows_in_cache(reader.classes))
    return _slices(shard, size)


def _factors(reader: RowReader, shard: Shard, index: slice | Tensor) -> Factors:
    """The factors of some cached rows."""
    state = shard.state
    if "h" in state:
        h_nD = state["h"][index]
    else:
        h_nD = reader.embeddings(shard.rows(state["candidates"][state["cached"][index]]))
    return Factors(None if reader.regress else state["probs"][index], h_nD)


# ---- steps on one accelerator --------------------------------------------------------------------------------------


class Candidates(NamedTuple):
    """The rows that steps choose from."""

    p_Nrr: Tensor
    q_Nrr: Tensor
    traces_N2: Tensor
    excluded_N: Tensor  # whether a row cannot be chosen any more
    lots_N: Tensor  # of tied rows the smallest lot wins
    ids_N: Tensor
    blocks: list[slice]
    factors: Callable[[slice | Tensor], Factors]


class Limits(NamedTuple):
    """Where steps stop."""

    steps: int
    solved: int  # rows that a step solves exactly
    rest_bound: float = -torch.inf  # of the gains of rows that are not candidates
    highest_gain: float = 0.0  # since M was last inverted


class Done(NamedTuple):
    """Steps that were made."""

    positions: Tensor  # of the rows among the candidates, on the device
    ids: Tensor
    values: Tensor  # how far each changed the trace
    open_rows: int  # the most rows that had to be solved in a step; above `Limits.solved` where they were too many


class _Graph(NamedTuple):
    """The last graph of a shard's steps."""

    side: torch.cuda.Stream
    pool: Any
    replay: Callable[[], None]


def steps_memory(tuning: Tuning, rows: int, rank: int) -> int:
    """Bytes that steps allocate for this many rows."""
    return 64 * rows + 12 * 8 * min(rows, tuning.solved(rank)) * rank**2


def add_rows(problem: Problem, limits: Limits, design: Design, shard: Shard) -> tuple[Tensor, Tensor, int]:
    """Add up to `limits.steps` rows, each the best of the cached ones.

    Returns:
        Their ids, their gains and `Done.open_rows`.
    """
    state = shard.state
    positions_n = state["candidates"][state["cached"]]
    if not len(positions_n):
        return positions_n.cpu(), torch.empty(0, dtype=torch.float64), 0
    factors = functools.partial(_factors, problem.reader, shard)
    blocks = _update_blocks(problem.reader, shard)
    arrays = state["P"], state["Q"], state["traces"], state["selected"]
    rows = Candidates(*arrays, shard.lots[positions_n], shard.ids[positions_n], blocks, factors)
    done = Steps(problem.tuning, design, rows, ADD, limits).run(shard)
    state["bounds"].index_fill_(0, state["cached"][done.positions], -HUGE)
    return done.ids, done.values, done.open_rows


class Steps:
    """Steps of one kind, add (sign -1) or remove (+1), with all their state on the device."""

    def __init__(self, tuning: Tuning, design: Design, rows: Candidates, sign: int, limits: Limits):
        self.tuning, self.design, self.rows, self.sign, self.limits = tuning, design, rows, sign, limits
        zero = functools.partial(torch.zeros, device=rows.p_Nrr.device)
        self.bound_N = torch.empty_like(rows.traces_N2[:, 0])
        self.positions = zero(limits.steps, dtype=torch.int64)
        self.values = zero(limits.steps, dtype=torch.float64)
        self.step, self.open_rows = zero(1, dtype=torch.int64), zero(1, dtype=torch.int64)
        self.highest_gain = torch.full_like(self.values[:1], limits.highest_gain)
        self.active = zero(1, dtype=torch.bool)
        for block in rows.blocks:
            self._update_bounds(block)

    def run(self, shard: Shard) -> Done:
        """Make as many steps as can be made without the host."""
        step = self._step
        if self.limits.steps >= self.tuning.min_captured:
            step = _captured(step, [self.active], shard)  # inactive: nothing changes while it is captured
        self.active.fill_(True)
        for _ in range(self.limits.steps):
            step()
        ids = self.rows.ids_N[self.positions]
        found = torch.cat([self.step, self.open_rows, ids, self.values.view(torch.int64)]).cpu()  # the host waits
        count, open_rows = found[:2].tolist()
        ids, values = found[2:].view(2, -1)[:, :count]
        if count:
            self.design.record(self.rows.factors(self.positions[:count]), self.sign)
        return Done(self.positions[:count], ids.clone(), values.clone().view(torch.float64), open_rows)

    def _step(self) -> None:
        """Add or remove one row, while `active`."""
        rows, sign = self.rows, self.sign
        position, score, is_certain, open_rows = self._best()
        self.open_rows.copy_(torch.where(self.active, torch.maximum(self.open_rows, open_rows), self.open_rows))
        row = rows.factors(position)
        z_Gr, w_Gr, is_definite = self.design.low_rank_change(row, sign)
        self.active &= is_certain & is_definite
        self.positions.index_copy_(0, self.step, position)
        self.values.index_copy_(0, self.step, -sign * score)
        self.step += self.active
        self.highest_gain.copy_(torch.where(self.active, torch.maximum(self.highest_gain, score), self.highest_gain))
        rows.excluded_N.index_copy_(0, position, rows.excluded_N.index_select(0, position) | self.active)
        z_Gr, w_Gr = (torch.where(self.active, one, 0.0) for one in (z_Gr, w_Gr))
        update = self.design.apply(z_Gr, w_Gr, row.classes, sign)
        for block in rows.blocks:
            update.apply(rows.factors(block), rows.p_Nrr[block], rows.q_Nrr[block])
            self._update_bounds(block)

    def _update_bounds(self, block: slice) -> None:
        """Upper bounds of the scores of these rows, without solving."""
        p_nrr, q_nrr = self.rows.p_Nrr[block], self.rows.q_Nrr[block]
        self.rows.traces_N2[block] = fisher.traces(p_nrr, q_nrr)
        is_add = self.sign == ADD
        self.bound_N[block] = fisher.gain_bounds(p_nrr, q_nrr)[1] if is_add else -fisher.rise_bound(p_nrr, q_nrr)

    def _best(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The best row, its score, whether it is certain to be the best, and how many rows may be: (1,) each.

        A score is the gain of a row that is added, and minus the rise of one that is removed.
        """
        rows, limits = self.rows, self.limits
        bound_N = self.bound_N.masked_fill(rows.excluded_N, -torch.inf)
        top_T = bound_N.topk(limits.solved, sorted=False).indices if limits.solved < len(bound_N) else None
        excluded_T, lots_T = (
            one if top_T is None else one.index_select(0, top_T) for one in (rows.excluded_N, rows.lots_N)
        )
        score_T, is_definite_T = self._scores(top_T)
        score_T = score_T.masked_fill(excluded_T, -torch.inf)
        top = score_T.amax(0, keepdim=True)
        first = torch.where(score_T >= top - TIE * top.abs(), lots_T, LAST_LOT).argmin(0, keepdim=True)
        position, score = first if top_T is None else top_T.index_select(0, first), score_T.index_select(0, first)
        floor = score * NEARLY if self.sign == ADD else -score.abs() * SLIGHTLY_MORE
        open_rows = (bound_N >= floor).sum(0, keepdim=True)
        is_certain = (score > -torch.inf) & (limits.rest_bound < floor) & (open_rows <= limits.solved)
        is_certain &= (is_definite_T | excluded_T).all()
        if self.sign == ADD:
            is_certain &= score >= MIN_GAIN_SHARE * self.highest_gain
        return position, score, is_certain, open_rows

    def _scores(self, top_T: Tensor | None) -> tuple[Tensor, Tensor]:
        """The exact scores of these rows, and whether the system of each is positive definite."""
        p_Nrr, q_Nrr = self.rows.p_Nrr, self.rows.q_Nrr
        rank, found = p_Nrr.shape[-1], []
        eye_rr = torch.eye(rank, dtype=torch.float64, device=p_Nrr.device)
        size = self.tuning.solved(rank)
        for start in range(0, len(p_Nrr) if top_T is None else len(top_T), size):
            part = slice(start, start + size)
            p_srr, q_srr = (x[part] if top_T is None else x.index_select(0, top_T[part]) for x in (p_Nrr, q_Nrr))
            # tr A^-1 Q is the sum of L^-1 times L^-1 Q, number by number.
            right = torch.cat([eye_rr.expand_as(q_srr), q_srr], 2)
            both, is_definite_s = solve_cholesky(eye_rr - self.sign * p_srr, right)
            found.append((-self.sign * (both[:, :, :rank] * both[:, :, rank:]).sum((1, 2)), is_definite_s))
        return torch.cat([score for score, _ in found]), torch.cat([is_definite for _, is_definite in found])


def free_graph(shard: Shard) -> None:
    """Free the graph of this shard's steps and its memory."""
    _graphs.pop(shard, None)


def _captured(step: Callable[[], None], state: list[Tensor], shard: Shard) -> Callable[[], None]:
    """`step` as a graph. The last graph lives until the next one exists, so that they share memory in turn."""
    if shard.device.type != "cuda":
        return step
    before = _graphs.get(shard)
    side = torch.cuda.Stream(shard.device) if before is None else before.side
    pool = torch.cuda.graph_pool_handle() if before is None else before.pool
    _graphs[shard] = _Graph(side, pool, captured(step, state, pool, side))
    return _graphs[shard].replay
