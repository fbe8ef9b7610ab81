"""Fused kernels of the greedy sparse approximation, in Triton; see greedy_triton.py for what uses them.

Importing this file needs Triton. Numbers that count in float64 come in tensors: a kernel's own float arguments are
single. `par` holds, in this order: what a product of a row with the small R is multiplied by, 1 / k, 2 tau, beta, what
|R| is multiplied by for the rounding of a product, slack, noise, what R is multiplied by to be small. `state` holds
whether the loop goes on and how many rows are picked. `near` holds whether more than two rows are within rounding of
the best, and the score from which on they are.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
    left, right, r_AB, bonus, square, ids, par, state, top_P3, place_P2, near, w, places, scores, programs,
    A: tl.constexpr, B: tl.constexpr, PP: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Take the best row, told from the next by float64; where three are too near, say so in `near`."""
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
            other = (tied & (tl.load(ids + two) < tl.load(ids + one))) | (score_two > score_one + slack)
            other = other & (next_top >= floor)
            take_row(
                tl.where(other, two, one), tl.where(other, slope_two, slope_one), tl.where(other, score_two, score_one),
                tl.where(other, h_two, h_one), left, r_AB, bonus, square, par, state, w, places, scores, A, B, BP,
            )  # fmt: skip


@triton.jit
def tell_rows(  # type: ignore[no-untyped-def]
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
            meant = tl.load(score_N + row, mask=row < n, other=float("-inf")) >= floor
            if tl.max(meant.to(tl.int32), axis=0) > 0:
                long, dot = row.to(tl.int64), tl.zeros([BN], tl.float64)
                for begin in range(0, B, BD):
                    d = begin + col
                    both = meant[:, None] & (d < B)[None, :]
                    h = tl.load(right + long[:, None] * B + d[None, :], mask=both, other=0.0).to(tl.float64)
                    mixed = tl.zeros([BN, BD], tl.float64)
                    for a in tl.static_range(A):
                        weight = tl.load(left + long * A + a, mask=meant, other=0.0).to(tl.float64)
                        mixed += weight[:, None] * tl.load(r_AB + a * B + d, mask=d < B, other=0.0)[None, :]
                    dot += tl.sum(mixed * h, axis=1)
                score = tl.load(bonus + row, mask=meant, other=float("-inf")) - scale * dot
                tl.store(score_N + row, score, mask=meant)
                best = tl.maximum(best, score)
        tl.store(top_P3 + pid * 3, tl.max(best, axis=0))


@triton.jit
def pick_near(  # type: ignore[no-untyped-def]
    left, right, r_AB, bonus, square, ids, par, state, near, score_N, top_P3, w, places, scores, programs, n,
    A: tl.constexpr, B: tl.constexpr, PP: tl.constexpr, BP: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """Where rows are near the best: take the best of them by float64, ties to the smaller id."""
    if (tl.load(state) != 0) & (tl.load(near) != 0.0):
        lane, d, wide = tl.arange(0, BN), tl.arange(0, BP), tl.arange(0, PP)
        top = tl.max(tl.load(top_P3 + wide * 3, mask=wide < programs, other=float("-inf")), axis=0)
        floor = top - tl.load(par + 5)
        least = tl.full([BN], 0x7FFFFFFFFFFFFFFF, tl.int64)
        place = tl.zeros([BN], tl.int64)
        for start in range(0, n, BN):
            row = start + lane
            tied = tl.load(score_N + row, mask=row < n, other=float("-inf")) >= floor
            own = tl.load(ids + row, mask=tied, other=0x7FFFFFFFFFFFFFFF)
            lower = own < least
            least, place = tl.where(lower, own, least), tl.where(lower, row.to(tl.int64), place)
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
def settle(  # type: ignore[no-untyped-def]
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
def move_r(  # type: ignore[no-untyped-def]
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
