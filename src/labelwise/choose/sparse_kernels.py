"""Fused kernels of a sparse approximation for an accelerator, in Triton; see choose/sparse_fused.py for what uses them.

Importing this file needs Triton. Numbers that count in float64 come in tensors: a kernel's own float arguments are
single. `par` of the greedy kernels holds, in this order: what a product of a row with the small R is multiplied by,
1 / k, 2 tau, beta, what |R| is multiplied by for the rounding of a product, slack, noise, what R is multiplied by to
be small. `state` holds whether the loop goes on and how many rows are picked.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def score_rows(  # type: ignore[no-untyped-def]
    left, right, small_AB, bonus, par, state, top_P3, place_P2, n,
    A: tl.constexpr, B: tl.constexpr, AP: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """The three best scores of the rows of each program, and where the first two are. One read of the rows."""
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
def pick_row(  # type: ignore[no-untyped-def]
    left, right, r_AB, bonus, square, ids, par, state, top_P3, place_P2, w, places, scores, programs,
    A: tl.constexpr, B: tl.constexpr, PP: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Take the best row, told from the next by float64, with its line search; stop where three are too near."""
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
        per_k, two_tau, beta, slack = tl.load(par + 1), tl.load(par + 2), tl.load(par + 3), tl.load(par + 5)
        slope_one, slope_two = tl.sum(mixed_one * h_one, axis=0) * per_k, tl.sum(mixed_two * h_two, axis=0) * per_k
        floor = top - tl.sqrt(tl.sum(squares, axis=0)) * tl.load(par + 4) - slack
        if third_top >= floor:
            tl.store(state, 0)
        else:
            score_one = tl.load(bonus + one) - two_tau * slope_one
            score_two = tl.load(bonus + two) - two_tau * slope_two
            tied = tl.abs(score_two - score_one) <= slack
            other = (tied & (tl.load(ids + two) < tl.load(ids + one))) | (score_two > score_one + slack)
            other = other & (next_top >= floor)
            place = tl.where(other, two, one)
            mu = (tl.where(other, slope_two, slope_one) - beta) / tl.load(square + place)
            step = tl.load(state + 1)
            tl.store(w + step, -mu)
            tl.store(places + step, place)
            tl.store(scores + step, tl.where(other, score_two, score_one))
            tl.store(bonus + place, float("-inf"))
            h = tl.where(other, h_two, h_one) * (mu * per_k)
            for a in tl.static_range(A):
                r = tl.load(r_AB + a * B + d, mask=inside, other=0.0)
                tl.store(r_AB + a * B + d, r - tl.load(left + place * A + a).to(tl.float64) * h, mask=inside)


@triton.jit
def slopes(  # type: ignore[no-untyped-def]
    left, right, places, r_AB, w, u, squares_P, largest_P, par2, state, count,
    A: tl.constexpr, B: tl.constexpr, AP: tl.constexpr, BN: tl.constexpr, BD: tl.constexpr,
    INDEXED: tl.constexpr, EXTRA: tl.constexpr,
):  # fmt: skip
    """u = 2 <phi, R> + 2 beta (w - 1), in float64, and by program the sum of its squares and its largest size.

    `par2` holds 2 / k and 2 beta. Where INDEXED, row i is row places[i], and u is zero where w is. EXTRA counts for
    the row that `count` does not hold yet.
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
def gather_along(  # type: ignore[no-untyped-def]
    along_PAB, along_AB, squares_E, state, programs, size, PT: tl.constexpr, BE: tl.constexpr,
):  # fmt: skip
    """The sum over programs, and the sum of its squares, part by part."""
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
    """The line search down the gradient: u.u / 2 over |Phi u|^2 + beta u.u, cut to 53 - DROP bits; 0 in the noise.

    `par3` holds 1 / k^2, beta, and what u.u and |u| have to be above.
    """
    lane, part = tl.arange(0, PP), tl.arange(0, EP)
    here = lane < programs
    square = tl.sum(tl.load(squares_P + lane, mask=here, other=0.0), axis=0)
    largest = tl.max(tl.load(largest_P + lane, mask=here, other=0.0), axis=0)
    along = tl.sum(tl.load(squares_E + part, mask=part < parts, other=0.0), axis=0)
    curve = along * tl.load(par3) + square * tl.load(par3 + 1)
    walk = (square > tl.load(par3 + 2)) & (largest > tl.load(par3 + 3)) & (curve > 0.0)
    step = tl.where(walk, square * 0.5 / tl.where(curve > 0.0, curve, 1.0), 0.0)
    if DROP > 0:
        bits = step.to(tl.int64, bitcast=True)
        bits = bits + ((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)
        step = ((bits >> DROP) << DROP).to(tl.float64, bitcast=True)
    tl.store(mu, step)


@triton.jit
def cut_rows(z, u, mu, order, ranked, places, w, many, DROP: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
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


@triton.jit
def keys_of(z, u, mu, bonus, order, key, n, DROP: tl.constexpr, EXACT: tl.constexpr, BN: tl.constexpr):  # type: ignore[no-untyped-def]
    """What IHT's threshold keeps the largest of, cut to 53 - DROP bits, row order[i] at place i."""
    i = tl.program_id(0) * BN + tl.arange(0, BN)
    here = i < n
    row = tl.load(order + i, mask=here, other=0)
    s = tl.load(z + row, mask=here, other=0.0) - tl.load(mu) * tl.load(u + row, mask=here, other=0.0)
    if EXACT:
        s = tl.maximum(s, 0.0)
        kept = s * s * 0.5
    else:
        s = tl.minimum(s, 0.0)
        kept = s * s * -0.5
    bits = (kept + tl.load(bonus + row, mask=here, other=0.0)).to(tl.int64, bitcast=True)
    bits = bits + ((1 << (DROP - 1)) - 1) + ((bits >> DROP) & 1)
    tl.store(key + i, ((bits >> DROP) << DROP).to(tl.float64, bitcast=True), mask=here)


def ceil_power(number: int) -> int:
    """The smallest power of two that is not below."""
    return 1 << max(0, number - 1).bit_length()
