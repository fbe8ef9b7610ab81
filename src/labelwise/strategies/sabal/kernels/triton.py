"""Inner kernels of SABAL in Triton, for rows whose factors fit into registers, and the classes that launch them.

They hold the formulas of kernels/torch.py and are tested against these. Importing this file needs Triton. Numbers that
count in float64 come in tensors: a kernel's own float arguments are single. `state` holds whether the loop continues
and, for greedy, how many rows are picked; where it does not, passes over rows leave everything as it is.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from labelwise.shards import Shard
from labelwise.shards.graphs import captured
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.kernels.torch import KEY_BITS, STEP_BITS, Prox, Steps, TorchIteration
from labelwise.strategies.sabal.kernels.tuning import Tile, TritonTuning
from labelwise.strategies.sabal.problem import Problem, residual
from labelwise.strategies.sabal.vectors import TINY

# ---- both solvers: u = grad f1, sum u g, and the step down u --------------------------------------------------------


@triton.jit
def gradients(  # type: ignore[no-untyped-def]
    left, right, places, r_AB, w, u, squares_P, largest_P, par2, state, count,
    A: tl.constexpr, B: tl.constexpr, AP: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    INDEXED: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    """u = 2 <phi, R> + 2 beta (w - 1), in float64, and by program the sum of its squares and its largest size.

    `par2` holds 2 / k and 2 beta. Where INDEXED, row i is row places[i], and u is zero where w is. EXTRA counts for
    the row that `count` does not include yet.
    """
    pid = tl.program_id(0)
    if tl.load(state) != 0:
        rows = tl.load(count) + EXTRA
        lane, col, line = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, AP)
        scale, pull = tl.load(par2), tl.load(par2 + 1)
        squares, largest = tl.zeros([BN], tl.float64), tl.zeros([BN], tl.float64)
        for start in range(pid * BN, rows, tl.num_programs(0) * BN):
            row = start + lane
            here = row < rows
            place = row.to(tl.int64)
            if INDEXED:
                place = tl.load(places + row, mask=here, other=0)
            both = here[:, None] & (line < A)[None, :]
            weight = tl.load(left + place[:, None] * A + line[None, :], mask=both, other=0.0).to(tl.float64)
            products = tl.zeros([BN, AP], tl.float64)
            for begin in range(0, B, BD):
                d = begin + col
                inside = d < B
                h = tl.load(right + place[:, None] * B + d[None, :], mask=here[:, None] & inside[None, :], other=0.0)
                r = tl.load(
                    r_AB + line[None, :] * B + d[:, None], mask=inside[:, None] & (line < A)[None, :], other=0.0
                )
                products = tl.dot(h.to(tl.float64), r, products, out_dtype=tl.float64)
            now = tl.load(w + row, mask=here, other=0.0)
            value = scale * tl.sum(products * weight, axis=1) + pull * (now - 1.0)
            if INDEXED:
                value = tl.where(now != 0.0, value, 0.0)
            value = tl.where(here, value, 0.0)
            tl.store(u + row, value, mask=here)
            squares += value * value
            largest = tl.maximum(largest, tl.abs(value))
        tl.store(squares_P + pid, tl.sum(squares, axis=0))
        tl.store(largest_P + pid, tl.max(largest, axis=0))


@triton.jit
def adjoints(  # type: ignore[no-untyped-def]
    left, right, places, u, state, count, along_PAB,
    A: tl.constexpr, B: tl.constexpr, AP: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    INDEXED: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    """sum u g by program, in float64; the second axis of programs is over the columns of R."""
    pid = tl.program_id(0)
    if tl.load(state) != 0:
        rows = tl.load(count) + EXTRA
        lane, line, d = tl.arange(0, BN), tl.arange(0, AP), tl.program_id(1) * BD + tl.arange(0, BD)
        inside = d < B
        sums = tl.zeros([AP, BD], tl.float64)
        for start in range(pid * BN, rows, tl.num_programs(0) * BN):
            row = start + lane
            here = row < rows
            place = row.to(tl.int64)
            if INDEXED:
                place = tl.load(places + row, mask=here, other=0)
            both = here[None, :] & (line < A)[:, None]
            weight = tl.load(left + place[None, :] * A + line[:, None], mask=both, other=0.0).to(tl.float64)
            weight = weight * tl.load(u + row, mask=here, other=0.0)[None, :]
            h = tl.load(right + place[:, None] * B + d[None, :], mask=here[:, None] & inside[None, :], other=0.0)
            sums = tl.dot(weight, h.to(tl.float64), sums, out_dtype=tl.float64)
        out = along_PAB + pid * A * B + line[:, None] * B + d[None, :]
        tl.store(out, sums, mask=(line < A)[:, None] & inside[None, :])


@triton.jit
def sum_programs(  # type: ignore[no-untyped-def]
    along_PAB, along_AB, squares_E, state, programs, size, PT: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """sum u g of all programs, and the sum of its squares, part by part."""
    pid = tl.program_id(0)
    if tl.load(state) != 0:
        e, part = pid * BE + tl.arange(0, BE), tl.arange(0, PT)
        inside = e < size
        sums = tl.zeros([PT, BE], tl.float64)
        for start in range(0, programs, PT):
            p = start + part
            both = (p < programs)[:, None] & inside[None, :]
            sums += tl.load(along_PAB + p[:, None] * size + e[None, :], mask=both, other=0.0)
        total = tl.sum(sums, axis=0)
        tl.store(along_AB + e, total, mask=inside)
        tl.store(squares_E + pid, tl.sum(total * total, axis=0))


@triton.jit
def step_length(  # type: ignore[no-untyped-def]
    squares_P, largest_P, programs, squares_E, parts, par3, mu, DROP: tl.constexpr, PP: tl.constexpr, EP: tl.constexpr
):  # fmt: skip
    """The line search down the gradient: u.u / 2 over |Phi u|^2 + beta u.u, cut to 53 - DROP bits; 0 for rounding.

    `par3` holds 1 / k^2, beta, and what u.u and |u| have to be above.
    """
    lane, part = tl.arange(0, PP), tl.arange(0, EP)
    here = lane < programs
    square = tl.sum(tl.load(squares_P + lane, mask=here, other=0.0), axis=0)
    largest = tl.max(tl.load(largest_P + lane, mask=here, other=0.0), axis=0)
    along = tl.sum(tl.load(squares_E + part, mask=part < parts, other=0.0), axis=0)
    curve = along * tl.load(par3) + square * tl.load(par3 + 1)
    counts = (square > tl.load(par3 + 2)) & (largest > tl.load(par3 + 3)) & (curve > 0.0)
    step = tl.where(counts, square * 0.5 / tl.where(curve > 0.0, curve, 1.0), 0.0)
    if DROP > 0:
        bits = step.to(tl.int64, bitcast=True)
        bits = bits + ((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)
        step = ((bits >> DROP) << DROP).to(tl.float64, bitcast=True)
    tl.store(mu, step)


class GradientPasses:
    """Two reads of rows that give u, the gradient of f1, and sum u g; the rows are all, or those at `positions`."""

    def __init__(self, problem: Problem, g: Factored, rows: int, tile: Tile, tuning: TritonTuning):
        self.g, (self.rows, self.width, self.warps) = g, tile
        self.a, self.b = g.left.shape[1], g.right.shape[1]
        self.lines = max(16, ceil_power(self.a))
        self.slope_programs = min(tuning.slope_programs, -(-rows // self.rows))
        self.adjoint_programs = min(tuning.adjoint_programs, -(-rows // (4 * self.rows)))
        self.partial = problem.v_AB.new_empty(self.adjoint_programs, self.a, self.b)
        self.along_AB = torch.empty_like(problem.v_AB)
        self.parts = -(-self.a * self.b // 32)
        self.squares_E = problem.v_AB.new_empty(self.parts)
        self.squares_P, self.largest_P = problem.v_AB.new_zeros(2, self.slope_programs)
        beta, many, noise = problem.terms.beta, problem.pool.n, problem.noise
        self.par2 = problem.v_AB.new_tensor([2 / problem.k, 2 * beta])
        # All rows are rounding together, rows of the support one by one, as in `descent_step` and `debias`.
        self.par3_all = problem.v_AB.new_tensor([1 / problem.k**2, beta, many * noise**2, 0.0])
        self.par3_support = problem.v_AB.new_tensor([1 / problem.k**2, beta, 0.0, noise])

    def __call__(
        self, r_AB: Tensor, w: Tensor, u: Tensor, positions: Tensor | None, count: Tensor, state: Tensor, kind: str = ""
    ) -> Tensor:
        """sum u g (A, B). `kind` is "given" where u is known, "next" where one row more than `count` is meant."""
        extra, indexed = int(kind == "next"), positions is not None
        where = positions if indexed else count
        if kind != "given":
            gradients[(self.slope_programs,)](
                self.g.left, self.g.right, where, r_AB, w, u, self.squares_P, self.largest_P, self.par2, state, count,
                self.a, self.b, self.lines, self.rows, self.width, indexed, extra, num_warps=self.warps,
            )  # fmt: skip
        adjoints[(self.adjoint_programs, -(-self.b // self.width))](
            self.g.left, self.g.right, where, u, state, count, self.partial,
            self.a, self.b, self.lines, self.rows, self.width, indexed, extra, num_warps=self.warps,
        )  # fmt: skip
        sum_programs[(self.parts,)](
            self.partial, self.along_AB, self.squares_E, state, self.adjoint_programs, self.a * self.b, 32, 32
        )  # fmt: skip
        return self.along_AB

    def step(self, mu: Tensor, support: bool, bits: int = 53) -> None:
        """The line search along the u of the last call, into `mu`; of the support where `support`."""
        step_length[(1,)](
            self.squares_P, self.largest_P, self.slope_programs, self.squares_E, self.parts,
            self.par3_support if support else self.par3_all, mu, 53 - bits,
            ceil_power(self.slope_programs), ceil_power(self.parts),
        )  # fmt: skip


# ---- greedy ---------------------------------------------------------------------------------------------------------

# `par` holds, in this order: what a product of a row with the small R is multiplied by, 1 / k, 2 tau, beta, what |R| is
# multiplied by for the rounding of a product, slack, noise, what R is multiplied by to be small. `near` holds whether
# more than two rows are within rounding of the best, and the score from which on they are.


@triton.jit
def score_rows(  # type: ignore[no-untyped-def]
    left, right, small_AB, bonus, par, state, score_N, top_P3, place_P2, n,
    A: tl.constexpr, B: tl.constexpr, AP: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Scores, the three best of the rows of each program, and where the first two are. One read of the rows."""
    pid = tl.program_id(0)
    if tl.load(state) != 0:
        scale = tl.load(par)
        lane, col, line = tl.arange(0, BN), tl.arange(0, BD), tl.arange(0, AP)
        first = tl.full([BN], float("-inf"), tl.float64)
        second, third = first, first
        at_first = tl.zeros([BN], tl.int32)
        at_second = at_first
        for start in range(pid * BN, n, tl.num_programs(0) * BN):
            row = start + lane
            here = row < n
            long = row.to(tl.int64)
            both = here[:, None] & (line < A)[None, :]
            weight = tl.load(left + long[:, None] * A + line[None, :], mask=both, other=0.0)
            products = tl.zeros([BN, AP], right.dtype.element_ty)
            for begin in range(0, B, BD):
                d = begin + col
                inside = d < B
                h = tl.load(right + long[:, None] * B + d[None, :], mask=here[:, None] & inside[None, :], other=0.0)
                r = tl.load(
                    small_AB + line[None, :] * B + d[:, None], mask=inside[:, None] & (line < A)[None, :], other=0.0
                )
                products = tl.dot(h, r, products, input_precision=PRECISION, out_dtype=right.dtype.element_ty)
            dot = tl.sum(products * weight, axis=1)
            score = tl.load(bonus + row, mask=here, other=float("-inf")) - scale * dot.to(tl.float64)
            tl.store(score_N + row, score, mask=here)
            is_first, is_second = score > first, score > second
            third = tl.where(is_second, second, tl.maximum(third, score))
            second, at_second = (
                tl.where(is_first, first, tl.where(is_second, score, second)),
                tl.where(is_first, at_first, tl.where(is_second, row, at_second)),
            )
            first, at_first = tl.where(is_first, score, first), tl.where(is_first, row, at_first)
        for i in tl.static_range(3):
            best = tl.argmax(first, axis=0)
            hit = lane == best
            tl.store(top_P3 + pid * 3 + i, tl.max(first, axis=0))
            if i < 2:
                tl.store(place_P2 + pid * 2 + i, tl.sum(tl.where(hit, at_first, 0), axis=0))
            first, at_first = tl.where(hit, second, first), tl.where(hit, at_second, at_first)
            second = tl.where(hit, third, second)


@triton.jit
def take_row(  # type: ignore[no-untyped-def]
    place, slope, score, h, left, r_AB, bonus, square, par, state, w, places, scores,
    A: tl.constexpr, B: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Take a row, whose right factor is h, with its line search; R moves along it."""
    d = tl.arange(0, BP)
    inside, per_k, step = d < B, tl.load(par + 1), tl.load(state + 1)
    mu = (slope - tl.load(par + 3)) / tl.load(square + place)
    tl.store(w + step, -mu)
    tl.store(places + step, place)
    tl.store(scores + step, score)
    tl.debug_barrier()  # every warp has read what the choice was made by
    tl.store(bonus + place, float("-inf"))
    h = h * (mu * per_k)
    for a in tl.static_range(A):
        r = tl.load(r_AB + a * B + d, mask=inside, other=0.0)
        tl.store(r_AB + a * B + d, r - tl.load(left + place * A + a).to(tl.float64) * h, mask=inside)


@triton.jit
def pick_row(  # type: ignore[no-untyped-def]
    left, right, r_AB, bonus, square, lots, par, state, top_P3, place_P2, near, w, places, scores, programs,
    A: tl.constexpr, B: tl.constexpr, PP: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Take the better of the best two rows by float64; where three are too near, set `near`."""
    if tl.load(state) != 0:
        lane, d = tl.arange(0, PP), tl.arange(0, BP)
        here, inside = lane < programs, d < B
        first = tl.load(top_P3 + lane * 3, mask=here, other=float("-inf"))
        second = tl.load(top_P3 + lane * 3 + 1, mask=here, other=float("-inf"))
        third = tl.load(top_P3 + lane * 3 + 2, mask=here, other=float("-inf"))
        at_first = tl.load(place_P2 + lane * 2, mask=here, other=0)
        at_second = tl.load(place_P2 + lane * 2 + 1, mask=here, other=0)
        top = tl.max(first, axis=0)
        hit = lane == tl.argmax(first, axis=0)
        one = tl.sum(tl.where(hit, at_first, 0), axis=0).to(tl.int64)
        first, at_first = tl.where(hit, second, first), tl.where(hit, at_second, at_first)
        second = tl.where(hit, third, second)
        next_top = tl.max(first, axis=0)
        hit = lane == tl.argmax(first, axis=0)
        two = tl.sum(tl.where(hit, at_first, 0), axis=0).to(tl.int64)
        third_top = tl.max(tl.where(hit, second, first), axis=0)

        h_one = tl.load(right + one * B + d, mask=inside, other=0.0).to(tl.float64)
        h_two = tl.load(right + two * B + d, mask=inside, other=0.0).to(tl.float64)
        mixed_one, mixed_two = tl.zeros([BP], tl.float64), tl.zeros([BP], tl.float64)
        squares = tl.zeros([BP], tl.float64)
        for a in tl.static_range(A):
            r = tl.load(r_AB + a * B + d, mask=inside, other=0.0)
            mixed_one += tl.load(left + one * A + a).to(tl.float64) * r
            mixed_two += tl.load(left + two * A + a).to(tl.float64) * r
            squares += r * r
        per_k, two_tau, slack = tl.load(par + 1), tl.load(par + 2), tl.load(par + 5)
        slope_one, slope_two = tl.sum(mixed_one * h_one, axis=0) * per_k, tl.sum(mixed_two * h_two, axis=0) * per_k
        floor = top - tl.sqrt(tl.sum(squares, axis=0)) * tl.load(par + 4) - slack
        tl.store(near + 1, floor)
        if third_top >= floor:
            tl.store(near, 1.0)
        else:
            tl.store(near, 0.0)
            score_one = tl.load(bonus + one) - two_tau * slope_one
            score_two = tl.load(bonus + two) - two_tau * slope_two
            tied = tl.abs(score_two - score_one) <= slack
            other = (tied & (tl.load(lots + two) < tl.load(lots + one))) | (score_two > score_one + slack)
            other = other & (next_top >= floor)
            take_row(
                tl.where(other, two, one), tl.where(other, slope_two, slope_one), tl.where(other, score_two, score_one),
                tl.where(other, h_two, h_one), left, r_AB, bonus, square, par, state, w, places, scores, A, B, BP,
            )  # fmt: skip


@triton.jit
def rescore_rows(  # type: ignore[no-untyped-def]
    left, right, r_AB, bonus, par, state, near, score_N, top_P3, n,
    A: tl.constexpr, B: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Where rows are near the best: their scores in float64, in place, and the best of each program.

    What other rows have there is below all of these by more than the slack, so that it may stay.
    """
    if (tl.load(state) != 0) & (tl.load(near) != 0.0):
        pid, floor, scale = tl.program_id(0), tl.load(near + 1), tl.load(par + 1) * tl.load(par + 2)
        lane, col = tl.arange(0, BN), tl.arange(0, BD)
        best = tl.full([BN], float("-inf"), tl.float64)
        for start in range(pid * BN, n, tl.num_programs(0) * BN):
            row = start + lane
            near_best = tl.load(score_N + row, mask=row < n, other=float("-inf")) >= floor
            if tl.max(near_best.to(tl.int32), axis=0) > 0:
                long, dot = row.to(tl.int64), tl.zeros([BN], tl.float64)
                for begin in range(0, B, BD):
                    d = begin + col
                    both = near_best[:, None] & (d < B)[None, :]
                    h = tl.load(right + long[:, None] * B + d[None, :], mask=both, other=0.0).to(tl.float64)
                    mixed = tl.zeros([BN, BD], tl.float64)
                    for a in tl.static_range(A):
                        weight = tl.load(left + long * A + a, mask=near_best, other=0.0).to(tl.float64)
                        mixed += weight[:, None] * tl.load(r_AB + a * B + d, mask=d < B, other=0.0)[None, :]
                    dot += tl.sum(mixed * h, axis=1)
                score = tl.load(bonus + row, mask=near_best, other=float("-inf")) - scale * dot
                tl.store(score_N + row, score, mask=near_best)
                best = tl.maximum(best, score)
        tl.store(top_P3 + pid * 3, tl.max(best, axis=0))


@triton.jit
def pick_rescored(  # type: ignore[no-untyped-def]
    left, right, r_AB, bonus, square, lots, par, state, near, score_N, top_P3, w, places, scores, programs, n,
    A: tl.constexpr, B: tl.constexpr, PP: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Where rows are near the best: take the best of them by float64, ties by lot."""
    if (tl.load(state) != 0) & (tl.load(near) != 0.0):
        lane, d, wide = tl.arange(0, BN), tl.arange(0, BP), tl.arange(0, PP)
        top = tl.max(tl.load(top_P3 + wide * 3, mask=wide < programs, other=float("-inf")), axis=0)
        floor = top - tl.load(par + 5)
        least = tl.full([BN], 0x7FFFFFFFFFFFFFFF, tl.int64)
        place = tl.zeros([BN], tl.int64)
        for start in range(0, n, BN):
            row = start + lane
            tied = tl.load(score_N + row, mask=row < n, other=float("-inf")) >= floor
            lot = tl.load(lots + row, mask=tied, other=0x7FFFFFFFFFFFFFFF)
            lower = lot < least
            least, place = tl.where(lower, lot, least), tl.where(lower, row.to(tl.int64), place)
        at = tl.sum(tl.where(lane == tl.argmin(least, axis=0), place, 0), axis=0)
        h = tl.load(right + at * B + d, mask=d < B, other=0.0).to(tl.float64)
        mixed = tl.zeros([BP], tl.float64)
        for a in tl.static_range(A):
            r = tl.load(r_AB + a * B + d, mask=d < B, other=0.0)
            mixed += tl.load(left + at * A + a).to(tl.float64) * r
        slope = tl.sum(mixed * h, axis=0) * tl.load(par + 1)
        score = tl.load(bonus + at) - tl.load(par + 2) * slope
        take_row(
            at, slope, score, h, left, r_AB, bonus, square, par, state, w, places, scores, A, B, BP,
        )  # fmt: skip


@triton.jit
def cut_weights(  # type: ignore[no-untyped-def]
    w, u, mu, par, state, moved, BS: tl.constexpr,
):  # fmt: skip
    """Step down the gradient, cut at zero; u is then what was cut off. `moved`: the step over k, the largest cut."""
    if tl.load(state) != 0:
        rows, step, lane = tl.load(state + 1) + 1, tl.load(mu), tl.arange(0, BS)
        lowest = tl.zeros([BS], tl.float64)
        for start in range(0, rows, BS):
            here = start + lane < rows
            value = tl.load(w + start + lane, mask=here, other=0.0)
            value -= step * tl.load(u + start + lane, mask=here, other=0.0)
            below = tl.minimum(value, 0.0)
            lowest = tl.minimum(lowest, below)
            tl.store(w + start + lane, value - below, mask=here)
            tl.store(u + start + lane, below, mask=here)
        tl.store(moved, step * tl.load(par + 1))
        tl.store(moved + 1, tl.min(lowest, axis=0))
        tl.debug_barrier()
        tl.store(state + 1, rows)


@triton.jit
def move_residual(  # type: ignore[no-untyped-def]
    left, right, places, r_AB, small_AB, along_AB, u, par, state, moved,
    A: tl.constexpr, B: tl.constexpr, AP: tl.constexpr, BD: tl.constexpr, BS: tl.constexpr,
):  # fmt: skip
    """R after the de-bias step and the cut, and the small R in the precision of the rows."""
    if tl.load(state) != 0:
        line, d, lane = tl.arange(0, AP), tl.program_id(0) * BD + tl.arange(0, BD), tl.arange(0, BS)
        inside = (line < A)[:, None] & (d < B)[None, :]
        at = line[:, None] * B + d[None, :]
        r = tl.load(r_AB + at, mask=inside, other=0.0)
        r -= tl.load(moved) * tl.load(along_AB + at, mask=inside, other=0.0)
        if tl.load(moved + 1) < 0.0:
            rows, per_k = tl.load(state + 1), tl.load(par + 1)
            for start in range(0, rows, BS):
                below = tl.load(u + start + lane, mask=start + lane < rows, other=0.0)
                if tl.min(below, axis=0) < 0.0:
                    for row in range(start, tl.minimum(start + BS, rows)):
                        cut = tl.load(u + row)
                        if cut < 0.0:
                            place = tl.load(places + row)
                            weight = tl.load(left + place * A + line, mask=line < A, other=0.0).to(tl.float64)
                            h = tl.load(right + place * B + d, mask=d < B, other=0.0).to(tl.float64)
                            r -= (weight * (cut * per_k))[:, None] * h[None, :]
        tl.store(r_AB + at, r, mask=inside)
        tl.store(small_AB + at, (r * tl.load(par + 7)).to(small_AB.dtype.element_ty), mask=inside)


class TritonSteps(Steps):
    """Steps of ten kernels and no product that is written to memory.

    Scores with the best three of each program in one read of the rows; the pick and its line search; gradient and
    direction of the de-bias step in two reads of the picked rows; the sum of that direction; the length of the step;
    the step and the cut; R. Two rows that are equal in the precision of the rows are compared in float64 by the
    kernel that picks. Where there are more, as in embeddings of a network that has hardly been trained, two further
    kernels score all of them in float64, and do nothing otherwise. Nothing waits for the host.
    """

    def __init__(self, problem: Problem, shard: Shard, tuning: TritonTuning):
        super().__init__(problem, shard, problem.k + 1)
        self.g = contiguous(self.g)
        self.tuning, g, terms, k, n = tuning, self.g, problem.terms, problem.k, len(shard)
        self.passes = GradientPasses(problem, g, k, tuning.support_tile, tuning)
        factor = 2 * terms.tau / k / self.near_one
        par = [factor, 1 / k, 2 * terms.tau, terms.beta, self.blur, problem.slack, self.noise, self.near_one]
        self.par = problem.v_AB.new_tensor(par)
        self.small_AB = (self.r_AB * self.near_one).to(g.right.dtype)
        self.u = self.r_AB.new_zeros(k + 1)
        self.square_N = (shard.state["length"] ** 2 + terms.beta).clamp_(min=TINY)
        self.state = torch.tensor([1, 0], dtype=torch.int32, device=shard.device)
        self.moved, self.mu = self.r_AB.new_zeros(2), self.r_AB.new_zeros(1)
        self.precision = "tf32x3" if g.right.dtype == torch.float32 else "ieee"
        self.programs = min(tuning.score_programs, -(-n // tuning.score_tile[0]))
        self.top_P3 = self.r_AB.new_empty(self.programs, 3)
        self.place_P2 = torch.zeros(self.programs, 2, dtype=torch.int32, device=shard.device)
        self.score_N, self.near = self.r_AB.new_empty(n), self.r_AB.new_zeros(2)
        self._captured = captured(self.step, [self.w, self.u, self.r_AB, self.small_AB, self.bonus_N, self.state])

    def advance(self) -> None:
        steps = min(self.tuning.chunk, self.problem.k - self.size)
        for _ in range(steps):
            self._captured()
        self.size += steps
        self.sweeps += 1
        # From the weights, so that rounding does not add up from pick to pick.
        self.r_AB.copy_(residual(self.problem, self.g[self.positions[: self.size]], self.w[: self.size]))
        self.small_AB.copy_(self.r_AB * self.par[7])

    def final_residual(self) -> Tensor:
        return self.r_AB

    def step(self) -> None:
        """One pick, and the weights after it."""
        self.score()
        g, (a, b), power, tile = self.g, self.r_AB.shape, ceil_power, self.tuning.support_tile
        pick_row[(1,)](
            g.left, g.right, self.r_AB, self.bonus_N, self.square_N, self.lots_N, self.par, self.state,
            self.top_P3, self.place_P2, self.near, self.w, self.positions, self.scores, self.programs,
            a, b, power(self.programs), power(b), num_warps=8,
        )  # fmt: skip
        rescore_rows[(self.programs,)](
            g.left, g.right, self.r_AB, self.bonus_N, self.par, self.state, self.near, self.score_N, self.top_P3,
            len(g), a, b, *tile[:2], num_warps=tile[2],
        )  # fmt: skip
        pick_rescored[(1,)](
            g.left, g.right, self.r_AB, self.bonus_N, self.square_N, self.lots_N, self.par, self.state, self.near,
            self.score_N, self.top_P3, self.w, self.positions, self.scores, self.programs, len(g),
            a, b, power(self.programs), power(b), 1024, num_warps=8,
        )  # fmt: skip
        self._debias()

    def score(self) -> None:
        """Scores of all rows, and the best three of each program."""
        g, (a, b), (rows, width, warps) = self.g, self.r_AB.shape, self.tuning.score_tile
        score_rows[(self.programs,)](
            g.left, g.right, self.small_AB, self.bonus_N, self.par, self.state, self.score_N, self.top_P3,
            self.place_P2, len(g), a, b, self.passes.lines, rows, width, self.precision, num_warps=warps,
        )  # fmt: skip

    def _debias(self) -> None:
        """The de-bias step and the cut at zero, with the row that was picked last."""
        g, (a, b) = self.g, self.r_AB.shape
        along_AB = self.passes(self.r_AB, self.w, self.u, self.positions, self.state[1:], self.state, "next")
        self.passes.step(self.mu, True)
        cut_weights[(1,)](self.w, self.u, self.mu, self.par, self.state, self.moved, 1024, num_warps=8)
        move_residual[(-(-b // 32),)](
            g.left, g.right, self.positions, self.r_AB, self.small_AB, along_AB, self.u, self.par, self.state,
            self.moved, a, b, self.passes.lines, 32, 64,
        )  # fmt: skip


# ---- IHT ------------------------------------------------------------------------------------------------------------


@triton.jit
def take_rows(z, u, mu, order, ranked, places, w, many, DROP: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """The rows of the best keys, and the positive part of z - mu u on them, cut to 53 - DROP bits."""
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    here = i < many
    place = tl.load(order + tl.load(ranked + i, mask=here, other=0), mask=here, other=0)
    s = tl.load(z + place, mask=here, other=0.0) - tl.load(mu) * tl.load(u + place, mask=here, other=0.0)
    bits = tl.maximum(s, 0.0).to(tl.int64, bitcast=True)
    bits = bits + ((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)
    tl.store(places + i, place, mask=here)
    tl.store(w + i, ((bits >> DROP) << DROP).to(tl.float64, bitcast=True), mask=here)


@triton.jit
def key_rows(z, u, mu, bonus, order, key, n, DROP: tl.constexpr, EXACT: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """What IHT's threshold keeps the largest of, cut to 53 - DROP bits, row order[i] at place i."""
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    here = i < n
    row = tl.load(order + i, mask=here, other=0)
    s = tl.load(z + row, mask=here, other=0.0) - tl.load(mu) * tl.load(u + row, mask=here, other=0.0)
    if EXACT:
        s = tl.maximum(s, 0.0)
        square = s * s * 0.5
    else:
        s = tl.minimum(s, 0.0)
        square = s * s * -0.5
    bits = (square + tl.load(bonus + row, mask=here, other=0.0)).to(tl.int64, bitcast=True)
    bits = bits + ((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)
    tl.store(key + i, ((bits >> DROP) << DROP).to(tl.float64, bitcast=True), mask=here)


class TritonIteration(TorchIteration):
    """The same passes, fused."""

    def __init__(self, problem: Problem, shard: Shard, prox: Prox, tuning: TritonTuning):
        super().__init__(problem, shard, prox, 1)
        g, n, k = contiguous(self.g), len(shard), problem.k
        self.passes = GradientPasses(problem, g, n, tuning.pass_tile, tuning)
        self.support_passes = GradientPasses(problem, g, k, tuning.support_tile, tuning)
        self.key_N, self.u_k = problem.v_AB.new_zeros(n), problem.v_AB.new_zeros(k)
        self.n, self.k = (torch.full((1,), size, dtype=torch.int32, device=shard.device) for size in (n, k))

    def descend(self, rz_AB: Tensor, z_N: Tensor, u_N: Tensor, going: Tensor) -> Tensor:
        self.passes(rz_AB, z_N, u_N, None, self.n, going)
        mu = rz_AB.new_empty(1)
        self.passes.step(mu, False, STEP_BITS)
        return mu

    def keys(self, z_N: Tensor, u_N: Tensor, mu: Tensor) -> Tensor:
        n, exact = len(self.key_N), self.prox == "exact"
        key_rows[(-(-n // 512),)](
            z_N, u_N, mu, self.bonus_N, self.order, self.key_N, n, 53 - KEY_BITS, exact, 512
        )  # fmt: skip
        return self.key_N

    def take(self, z_N: Tensor, u_N: Tensor, mu: Tensor, ranked: Tensor) -> tuple[Tensor, Tensor]:
        k = self.problem.k
        positions, w = torch.empty_like(self.order[:k]), torch.empty_like(self.u_k)
        take_rows[(-(-k // 128),)](z_N, u_N, mu, self.order, ranked, positions, w, k, 53 - STEP_BITS, 128)
        return positions, w

    def debias(self, positions: Tensor, w: Tensor, going: Tensor) -> tuple[Tensor, Tensor]:
        k, passes, u, v_AB = self.problem.k, self.support_passes, self.u_k, self.problem.v_AB
        r_AB = passes(v_AB, w, w, positions, self.k, going, "given") / k - v_AB
        along_AB = passes(r_AB, w, u, positions, self.k, going)
        mu = torch.empty_like(self.key_N[:1])
        passes.step(mu, True)
        w, r_AB = w - mu * u, r_AB - mu / k * along_AB
        cut = w.clamp(max=0)
        return w - cut, r_AB - passes(r_AB, w, cut, positions, self.k, going, "given") / k


def contiguous(g: Factored) -> Factored:
    """The same vectors, each factor row by row in memory."""
    return Factored(g.left.contiguous(), g.right.contiguous())


def ceil_power(number: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << max(0, number - 1).bit_length()
