"""Fused kernels of a sparse approximation that both solvers use, and those of IHT, in Triton.

See greedy_triton.py and iht_cuda.py for what uses them. Importing this file needs Triton.
`state` holds whether the loop goes on; where it does not, passes over rows leave everything as it is.
"""

from __future__ import annotations

import triton
import triton.language as tl


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
