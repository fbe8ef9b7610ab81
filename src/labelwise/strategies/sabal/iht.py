"""Proximal iterative hard thresholding for the sparse approximation of a pool, with momentum.

Each iteration is one read of the rows, in which a block gives its part of the gradient at z and of Phi times that
gradient (two products), and a few products over the k rows of the support (algorithm 2 with 4 and 5). z has at most
2 k entries that are not zero; of the pool's size there are only a few numbers for each row, kept beside it.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from labelwise.selection.progress import tick
from labelwise.shards import Best, Shard, Shards
from labelwise.shards.devices import sent
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.forms import wide
from labelwise.strategies.sabal.problem import (
    Problem,
    adjoint,
    beside,
    debias,
    forward,
    gather,
    length,
    line_search,
    share,
)

Prox = Literal["exact", "paper"]
# Bits that count. Iterations amplify rounding, and sums over rows round by the order of the rows: what comes out of
# them is cut to fewer bits, so that the same rows are chosen in any order, in any block, and copies of a row are tied.
KEY_BITS, STEP_BITS, MEAN_BITS = 32, 30, 36
SCRATCH = 6  # times the length of a row: blocks of rows that are still in the cache, in float64, for the second product


class Solved(NamedTuple):
    """The rows of the last support, by their key, with weights, some of which may be zero."""

    ids: Tensor
    w: Tensor
    keys: Tensor
    r_AB: Tensor
    iterations: int
    stopped: str
    share: float | None


class _Point(NamedTuple):
    """A sparse w: rows by id, their g, their weights, and R = Phi w - v."""

    ids: Tensor
    g: Factored
    w: Tensor
    r_AB: Tensor


def iht(problem: Problem, iterations: int, tolerance: float, prox: Prox) -> Solved:
    """Algorithm 2, until w moves by less than `tolerance` of its length, or for so many iterations."""
    problem = mean_cut(problem)
    pool, v_AB = problem.pool, problem.v_AB
    none = torch.empty(0, dtype=torch.int64)
    nothing = Factored(v_AB.new_empty(0, v_AB.shape[0]), v_AB.new_empty(0, v_AB.shape[1]))
    now = _Point(none, nothing, v_AB.new_empty(0), -v_AB)
    z_ids, z, rz_AB = now.ids, now.w, now.r_AB
    first, stopped, done = None, "iterations", 0
    pool.map(_begin)
    for done in range(1, iterations + 1):
        mu = _descend(problem, z_ids, z, rz_AB)
        first = share(problem) if done == 1 else first
        best = top(pool, functools.partial(_key, problem.terms.alpha, mu, prox), problem.k)
        old, now = now, _threshold(problem, best.ids, mu, now)
        z_ids, z, rz_AB, moved = _momentum(problem, old, now)
        tick(done, iterations)
        if moved <= tolerance * length(now.w):
            stopped = "tolerance"
            break
    place = torch.searchsorted(now.ids, best.ids).to(now.w.device)
    return Solved(best.ids, now.w[place], best.values, now.r_AB, done, stopped, first)


def top(pool: Shards, key: functools.partial[Tensor], k: int) -> Best:
    """The k rows of highest key, ties to the larger sigma, then to the smaller id."""
    best = pool.best(key, k)
    edge = best.values[-1]
    places = int((best.values == edge).sum())
    if places == pool.sum(functools.partial(_count, key, float(edge))):
        return best
    last = pool.best(functools.partial(_tied, key, float(edge)), places)
    above = best.values > edge
    return Best(torch.cat([best.ids[above], last.ids]), torch.cat([best.values[above], best.values[~above]]))


def mean_cut(problem: Problem) -> Problem:
    """The problem with v, a sum over rows, cut to so many bits of its largest entry."""
    size = torch.ldexp(problem.v_AB.new_ones(()), torch.frexp(problem.v_AB.abs().max()).exponent - MEAN_BITS)
    return dataclasses.replace(problem, v_AB=(problem.v_AB / size).round() * size)


def rounded(x: Tensor, bits: int = KEY_BITS) -> Tensor:
    """x (float64) to so many bits, nearest and even: the same whatever the order it was summed in, on any device."""
    drop = 53 - bits
    whole = x.view(torch.int64)
    whole = (whole + ((1 << (drop - 1)) - 1)).add_((whole >> drop).bitwise_and_(1))
    return whole.bitwise_right_shift_(drop).bitwise_left_shift_(drop).view(torch.float64)


def _descend(problem: Problem, z_ids: Tensor, z: Tensor, rz_AB: Tensor) -> float:
    """Keep z and the gradient u of f1 at z beside the rows; the length of the step down it (lines 4 and 5)."""
    problem.pool.map(functools.partial(_put_z, z_ids, z))
    parts = problem.pool.map(functools.partial(_gradient, problem, rz_AB))
    home = rz_AB.device
    along_AB = functools.reduce(torch.add, (one.to(home) for one, _ in parts)) / problem.k
    u_c, u_u, u_rest = functools.reduce(torch.add, (sums.to(home) for _, sums in parts))
    beta = problem.terms.beta
    if float(u_u) <= problem.pool.n * problem.noise**2:
        return 0.0
    mu = line_search(u_c + beta * u_rest, (along_AB * along_AB).sum() + beta * u_u)
    return float(rounded(mu, STEP_BITS))


def _threshold(problem: Problem, ids: Tensor, mu: float, old: _Point) -> _Point:
    """The positive part of z - mu u on these rows, de-biased, and again its positive part (lines 6 to 8)."""
    ids = ids.sort().values
    same = len(ids) == len(old.ids) and bool((ids == old.ids).all())
    g, k = old.g if same else wide(gather(problem, ids)), problem.k
    w = rounded((beside(problem, "z", ids) - mu * beside(problem, "u", ids)).clamp_(min=0), STEP_BITS)
    w, r_AB = debias(g, w, adjoint(g, w) / k - problem.v_AB, k, problem.terms.beta, problem.noise)
    below = w.clamp(max=0)
    return _Point(ids, g, w - below, r_AB - adjoint(g, below) / k)


def _momentum(problem: Problem, old: _Point, now: _Point) -> tuple[Tensor, Tensor, Tensor, float]:
    """z beyond w, away from the w before, by a line search (lines 9 and 10): ids, z, Phi z - v; and |w - w before|."""
    ids = torch.cat([old.ids, now.ids]).unique()
    home = now.w.device
    w, step = (torch.zeros(len(ids), dtype=torch.float64, device=home) for _ in range(2))
    w[torch.searchsorted(ids, now.ids).to(home)] = now.w
    step += w
    step[torch.searchsorted(ids, old.ids).to(home)] -= old.w
    along_AB, beta = now.r_AB - old.r_AB, problem.terms.beta
    slope = (now.r_AB * along_AB).sum() + beta * ((w - 1) @ step)
    tau = line_search(slope, (along_AB * along_AB).sum() + beta * (step @ step))
    return ids, w - tau * step, now.r_AB - tau * along_AB, length(step)


def _begin(shard: Shard) -> None:
    for name in ("z", "u", "c"):
        shard.state[name] = torch.zeros(len(shard), dtype=torch.float64, device=shard.device)


def _put_z(ids: Tensor, z: Tensor, shard: Shard) -> None:
    shard.state["z"].zero_()
    if len(ids):
        here, positions = shard.find(ids)
        shard.state["z"][positions] = z.to(shard.device)[sent(here, shard.device)]


def _gradient(problem: Problem, rz_AB: Tensor, shard: Shard) -> tuple[Tensor, Tensor]:
    """Keep c and u = 2 c + 2 beta (z - 1); sum_j u_j g_j, and the sums of u c, u u and u (z - 1)."""
    c_N, u_N, rest_N = shard.state["c"], shard.state["u"], shard.state["z"] - 1
    r_AB = rz_AB.to(shard.device)
    along_AB = torch.zeros_like(r_AB)
    for where, g in problem.form.blocks(shard, SCRATCH * r_AB.shape[1]):
        x = wide(g)
        c_N[where] = forward(x, r_AB) / problem.k
        u_N[where] = 2 * (c_N[where] + problem.terms.beta * rest_N[where])
        along_AB += adjoint(x, u_N[where])
    return along_AB, torch.stack([u_N @ c_N, u_N @ u_N, u_N @ rest_N])


def _key(alpha: float, mu: float, prox: Prox, shard: Shard) -> Tensor:
    """What the threshold keeps the largest of, with s = z - mu u.

    A row left out costs s^2 / 2 more than its best weight, [s]_+: that is the exact rule. The printed one forgets it.
    """
    s_N = shard.state["z"] - mu * shard.state["u"]
    kept_N = s_N.clamp(min=0).square_() if prox == "exact" else s_N.clamp(max=0).square_().neg_()
    return rounded(kept_N / 2 + alpha * shard.state["sigma"] ** 2)


def _count(key: functools.partial[Tensor], value: float, shard: Shard) -> int:
    return int((key(shard) == value).sum())


def _tied(key: functools.partial[Tensor], value: float, shard: Shard) -> Tensor:
    return rounded(shard.state["sigma"]).masked_fill_(key(shard) != value, -torch.inf)
