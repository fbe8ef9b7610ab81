"""The solver of SABAL by proximal iterative hard thresholding, with momentum (algorithm 2): a loop over iterations.

Each iteration is one read of the rows, in which a block gives its part of the gradient at z and of Phi times that
gradient (two products), and a few products over the k rows of the support (algorithm 2 with 4 and 5). z has at most
2 k entries that are not zero; of the pool's size there are only a few numbers for each row.

`ShardRows` stores them in any shards, and the host follows every iteration. `DeviceRows` is for one accelerator: z, w,
R and the support stay there, on CUDA the iteration is captured in a graph and replayed, and the host waits only once
for many. Rows are in the order of sigma, then of lot, when they are sorted by key, so that a stable sort leaves ties as
`top` does. Once w has stopped moving, an iteration changes nothing. All of it is in float64, whatever rows are stored
in.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.selection.progress import tick
from labelwise.shards import Best, Shard, Shards
from labelwise.shards.devices import to_device
from labelwise.shards.graphs import captured
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.kernels.torch import (
    MEAN_BITS,
    Prox,
    TorchIteration,
    debias_taken,
    descent_step,
    line_search,
    rounded,
    threshold_key,
    threshold_weight,
)
from labelwise.strategies.sabal.problem import Problem, gather, gather_state, share
from labelwise.strategies.sabal.vectors import adjoint, forward, wide

SCRATCH = 6  # times the length of a row: blocks of rows that are still in the cache, in float64, for the second product


class Solved(NamedTuple):
    """The rows of the last support, by their key, with weights, some of which may be zero."""

    ids: Tensor
    w: Tensor
    keys: Tensor
    r_AB: Tensor
    iterations: int
    stopped: str
    shares: tuple[float | None, float | None]  # of the variance in the key of the first threshold, and after the last


@dataclasses.dataclass(frozen=True)
class Stop:
    """When IHT stops: after `iterations`, or when w moves by at most `tolerance` times its length."""

    iterations: int
    tolerance: float


class IhtRows(ABC):
    """The state of IHT: for each row z, u and whether it is in the support; w of the support, and R.

    Attributes:
        done: iterations made.
        going: whether w still moves.
        r_AB: R = Phi w - v, for the w of the last iteration.
    """

    done = 0
    going = True
    r_AB: Tensor

    def __init__(self, problem: Problem, stop: Stop, prox: Prox):
        self.problem, self.stop, self.prox = problem, stop, prox

    def share(self) -> float | None:
        """How much of the key of the next threshold is variance."""
        return share(self.problem, self.key_at_alpha_0())

    def key_at_alpha_0(self) -> Callable[[Shard], Tensor]:
        """What the key of the next threshold has of each row besides the variance."""
        return functools.partial(_key, 0.0, float(self._next_step()), self.prox)

    @abstractmethod
    def advance(self) -> None:
        """One iteration or several, but not more than are still to be made."""

    @abstractmethod
    def solved(self) -> tuple[Tensor, Tensor, Tensor]:
        """Ids, w and keys of the rows of the support, by their key."""

    def iterate(self) -> None:
        """One iteration: lines 4 to 10 of algorithm 2."""
        beta = self.problem.terms.beta
        mu = self._descend()
        self._threshold(mu)
        r_AB = self._debias()
        w, step = self._moves()
        along_AB, square = r_AB - self.r_AB, step @ step
        slope = (r_AB * along_AB).sum() + beta * ((w - 1) @ step)
        tau = line_search(slope, (along_AB * along_AB).sum() + beta * square)
        # z continues from w in the direction of its last step.
        self._store(w, w - tau * step, r_AB, r_AB - tau * along_AB)
        self._continue_if(square.sqrt() > self.stop.tolerance * torch.linalg.vector_norm(w))

    @abstractmethod
    def _descend(self) -> Tensor:
        """Store u = grad f1(z), in shards with z. Returns the length of the step down it (lines 4 and 5)."""

    @abstractmethod
    def _next_step(self) -> Tensor:
        """As `_descend`, also once the loop has stopped."""

    @abstractmethod
    def _threshold(self, mu: Tensor) -> None:
        """Take the k rows of highest key, with the positive part of z - mu u as their new weights (line 6)."""

    @abstractmethod
    def _debias(self) -> Tensor:
        """De-bias the new weights and cut them at zero (lines 7 and 8). Returns R for them."""

    @abstractmethod
    def _moves(self) -> tuple[Tensor, Tensor]:
        """The new w and how far it is from the w before, for the same rows, all others being zero in both."""

    @abstractmethod
    def _store(self, w: Tensor, z: Tensor, r_AB: Tensor, rz_AB: Tensor) -> None:
        """Store the new w and z, for the rows of `_moves`, and Phi w - v and Phi z - v."""

    @abstractmethod
    def _continue_if(self, moves: Tensor) -> None:
        """This was the last iteration unless `moves`, a truth value on the device."""


def iht(problem: Problem, stop: Stop, start: Callable[[Problem, Stop], IhtRows]) -> Solved:
    """Algorithm 2, until it stops. `start` makes the state before the first iteration, w = z = 0."""
    rows = start(mean_cut(problem), stop)
    first = rows.share()
    while rows.done < stop.iterations and rows.going:
        rows.advance()
        tick(rows.done, stop.iterations)
    stopped = "iterations" if rows.going else "tolerance"
    return Solved(*rows.solved(), rows.r_AB, rows.done, stopped, (first, rows.share()))


def first_key(problem: Problem) -> Callable[[Shard], Tensor]:
    """What the exact key of the first threshold has of each row besides the variance."""
    return ShardRows(mean_cut(problem), Stop(1, 0.0), "exact").key_at_alpha_0()


def mean_cut(problem: Problem) -> Problem:
    """The problem with v, a sum over rows, cut to MEAN_BITS bits of its largest entry."""
    size = torch.ldexp(problem.v_AB.new_ones(()), torch.frexp(problem.v_AB.abs().max()).exponent - MEAN_BITS)
    return dataclasses.replace(problem, v_AB=(problem.v_AB / size).round() * size)


# ---- rows in any shards ---------------------------------------------------------------------------------------------


class ShardRows(IhtRows):
    """Rows in any shards. The host knows the support by ids in order, with its g in float64."""

    def __init__(self, problem: Problem, stop: Stop, prox: Prox):
        super().__init__(problem, stop, prox)
        self._noise = problem.noise
        v_AB = problem.v_AB
        self._ids = self._old_ids = self._z_ids = torch.empty(0, dtype=torch.int64)
        self._w = self._old_w = self._z = v_AB.new_empty(0)
        self._g = Factored(v_AB.new_empty(0, v_AB.shape[0]), v_AB.new_empty(0, v_AB.shape[1]))
        self.r_AB = self._rz_AB = -v_AB
        self._mu: Tensor | None = None  # of the step down from z, where it is known
        problem.pool.map(_prepare)

    def advance(self) -> None:
        self.iterate()
        self.done += 1

    def solved(self) -> tuple[Tensor, Tensor, Tensor]:
        positions = torch.searchsorted(self._ids, self._best.ids).to(self._w.device)
        return self._best.ids, self._w[positions], self._best.values

    def _descend(self) -> Tensor:
        if self._mu is None:
            self._mu = self._sweep()
        return self._mu

    def _sweep(self) -> Tensor:
        problem, device = self.problem, self.r_AB.device
        problem.pool.map(functools.partial(_put_z, self._z_ids, self._z))
        parts = problem.pool.map(functools.partial(_gradient, problem, self._rz_AB))
        along_AB, square = (functools.reduce(torch.add, (one.to(device) for one in column)) for column in zip(*parts))
        return descent_step(square, along_AB / problem.k, problem, self._noise)

    def _next_step(self) -> Tensor:
        return self._descend()

    def _threshold(self, mu: Tensor) -> None:
        problem, step = self.problem, float(mu)
        self._best = top(problem.pool, functools.partial(_key, problem.terms.alpha, step, self.prox), problem.k)
        ids = self._best.ids.sort().values
        self._old_ids, self._old_w = self._ids, self._w
        if not torch.equal(ids, self._ids):
            self._ids, self._g = ids, wide(gather(problem, ids))
        self._w = threshold_weight(gather_state(problem, "z", ids) - step * gather_state(problem, "u", ids))

    def _debias(self) -> Tensor:
        self._w, r_AB = debias_taken(self.problem, self._g, self._w, self._noise)
        return r_AB

    def _moves(self) -> tuple[Tensor, Tensor]:
        self._z_ids, device = torch.cat([self._old_ids, self._ids]).unique(), self._w.device
        w, old_w = (torch.zeros(len(self._z_ids), dtype=torch.float64, device=device) for _ in range(2))
        w[torch.searchsorted(self._z_ids, self._ids).to(device)] = self._w
        old_w[torch.searchsorted(self._z_ids, self._old_ids).to(device)] = self._old_w
        return w, w - old_w

    def _store(self, w: Tensor, z: Tensor, r_AB: Tensor, rz_AB: Tensor) -> None:
        self._z, self.r_AB, self._rz_AB, self._mu = z, r_AB, rz_AB, None

    def _continue_if(self, moves: Tensor) -> None:
        self.going = bool(moves)


def top(pool: Shards, key: functools.partial[Tensor], k: int) -> Best:
    """The k rows of highest key, ties to the larger sigma, then by lot."""
    best = pool.best(key, k)
    edge = best.values[-1]
    count = int((best.values == edge).sum())
    if count == pool.sum(functools.partial(_count, key, float(edge))):
        return best
    last = pool.best(functools.partial(_tied, key, float(edge)), count)
    above = best.values > edge
    return Best(torch.cat([best.ids[above], last.ids]), torch.cat([best.values[above], best.values[~above]]))


def _prepare(shard: Shard) -> None:
    for name in ("z", "u", "c"):
        shard.state[name] = torch.zeros(len(shard), dtype=torch.float64, device=shard.device)


def _put_z(ids: Tensor, z: Tensor, shard: Shard) -> None:
    shard.state["z"].zero_()
    if len(ids):
        found, positions = shard.find(ids)
        shard.state["z"][positions] = z.to(shard.device)[to_device(found, shard.device)]


def _gradient(problem: Problem, rz_AB: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """Store c and u = 2 c + 2 beta (z - 1). Returns sum_j u_j g_j and u.u."""
    c_N, u_N, rest_N = shard.state["c"], shard.state["u"], shard.state["z"] - 1
    r_AB = rz_AB.to(shard.device)
    along_AB = torch.zeros_like(r_AB)
    for where, g in problem.vectors.blocks(shard, SCRATCH * r_AB.shape[1]):
        x = wide(g)
        c_N[where] = forward(x, r_AB) / problem.k
        u_N[where] = 2 * (c_N[where] + problem.terms.beta * rest_N[where])
        along_AB += adjoint(x, u_N[where])
    return along_AB, u_N @ u_N


def _key(alpha: float, mu: float, prox: Prox, shard: Shard) -> Tensor:
    """What the threshold takes the k largest of."""
    return threshold_key(shard.state["z"] - mu * shard.state["u"], alpha * shard.state["sigma"] ** 2, prox)


def _count(key: functools.partial[Tensor], value: float, shard: Shard) -> int:
    return int((key(shard) == value).sum())


def _tied(key: functools.partial[Tensor], value: float, shard: Shard) -> Tensor:
    return rounded(shard.state["sigma"]).masked_fill_(key(shard) != value, -torch.inf)


# ---- rows in one shard on an accelerator ----------------------------------------------------------------------------


class DeviceRows(IhtRows):
    """Rows in one shard. All of the state is on its device, w and z with a number for each row."""

    def __init__(
        self, problem: Problem, stop: Stop, shard: Shard, make: Callable[[Problem, Shard], TorchIteration], chunk: int
    ):
        """`make` makes the passes over rows, `chunk` is how many iterations are made between two waits of the host."""
        passes = make(problem, shard)
        super().__init__(problem, stop, passes.prox)
        self._shard, self._chunk, self._passes = shard, chunk, passes
        n, k, device = len(shard), problem.k, shard.device
        self.r_AB, self._rz_AB = -problem.v_AB, -problem.v_AB
        self._w_N, self._z_N, self._u_N = (self.r_AB.new_zeros(n) for _ in range(3))
        self._positions, self._keys = torch.zeros(k, dtype=torch.int64, device=device), self.r_AB.new_zeros(k)
        self._next_key = self.r_AB.new_full((1,), -torch.inf)  # the best key of the rows that are not taken
        self._going = torch.ones(1, dtype=torch.int32, device=device)
        self._done = torch.zeros(1, dtype=torch.int32, device=device)
        shard.state["z"], shard.state["u"] = self._z_N, self._u_N
        state = [self._w_N, self._z_N, self.r_AB, self._rz_AB, self._positions, self._keys, self._next_key]
        self._step = captured(self.iterate, [*state, self._going, self._done])

    def advance(self) -> None:
        for _ in range(min(self._chunk, self.stop.iterations - self.done)):
            self._step()
        self.done, self.going = int(self._done), bool(self._going)  # here the host waits

    def solved(self) -> tuple[Tensor, Tensor, Tensor]:
        ids, keys = self._shard.ids[self._positions].cpu(), self._keys.cpu()
        # Ties are broken by lot, except for those at the edge where more rows are tied than may be taken.
        crowded = (keys == keys[-1]) & (keys[-1] == self._next_key.cpu())
        lots = self._shard.ties.lots(ids).masked_fill(crowded, torch.iinfo(torch.int64).max)
        by_lot = lots.argsort(stable=True)
        order = by_lot[keys[by_lot].argsort(descending=True, stable=True)]
        w = self._w_N[self._positions[order.to(self._positions.device)]]
        return ids[order], w, keys[order]

    def _descend(self) -> Tensor:
        return self._passes.descend(self._rz_AB, self._z_N, self._u_N, self._going)

    def _next_step(self) -> Tensor:
        self._going.fill_(1)  # the passes do nothing without
        return self._descend()

    def _threshold(self, mu: Tensor) -> None:
        ranked = torch.sort(self._passes.keys(self._z_N, self._u_N, mu), descending=True, stable=True)
        self._new_positions, self._new_w = self._passes.take(self._z_N, self._u_N, mu, ranked.indices)
        self._ranked_keys = ranked.values

    def _debias(self) -> Tensor:
        self._new_w, r_AB = self._passes.debias(self._new_positions, self._new_w, self._going)
        return r_AB

    def _moves(self) -> tuple[Tensor, Tensor]:
        w_N = torch.zeros_like(self._w_N).index_copy_(0, self._new_positions, self._new_w)
        return w_N, w_N - self._w_N

    def _store(self, w: Tensor, z: Tensor, r_AB: Tensor, rz_AB: Tensor) -> None:
        k, keys, going = self.problem.k, self._ranked_keys, self._going != 0
        new = {
            self._z_N: z,
            self._rz_AB: rz_AB,
            self._w_N: w,
            self.r_AB: r_AB,
            self._positions: self._new_positions,
            self._keys: keys[:k],
        }
        if k < len(w):
            new[self._next_key] = keys[k : k + 1]
        for buffer, values in new.items():
            buffer.copy_(torch.where(going, values, buffer))

    def _continue_if(self, moves: Tensor) -> None:
        self._done += self._going
        self._going *= moves
