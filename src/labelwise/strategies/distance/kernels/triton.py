"""The picks inside one list of candidates as one Triton kernel each: a single program, no wait for the host.

Importing this file needs Triton. The kernels hold no formula that is not in kernels/torch.py, and give its picks to
the bit. A program holds what changes in its registers, a few numbers for each of up to `MP` rows of the list; a step
reads one row of the table of distances, which the second-level cache holds. Float arguments come in tensors: a
kernel's own float arguments are float32, and reading them from the device would wait for it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from labelwise.strategies.distance.kernels.torch import ArrivalChance

TURNS = 4  # arrivals of a row for which chance is drawn at once; where a row has more, the list is drawn again
SIZES = (256, 2048)  # list lengths that the kernels are compiled for, and powers of two above: compiling takes a second


def pick_farthest(
    dist_MM: Tensor, near_M: Tensor, start: Tensor, bound: Tensor, tolerance: float, k: int
) -> tuple[Tensor, Tensor]:
    """See kernels/torch.py. Nothing but the number of picks is read by the host."""
    places, values, count = _empty_picks(dist_MM, k)
    m, size = len(dist_MM), _compiled_size(len(dist_MM))
    _pick_farthest[(1,)](
        dist_MM, near_M, start.to(torch.int32), bound, torch.full_like(bound, tolerance), places, values, count,
        m, len(places), size, num_warps=_warps(size),
    )  # fmt: skip
    made = int(count)
    return places[:made], values[:made]


def draw_by_arrival(
    dist_MM: Tensor, time_M: Tensor, near_M: Tensor, chance: ArrivalChance, end: Tensor, k: int, turns: int = TURNS
) -> tuple[Tensor, Tensor]:
    """See kernels/torch.py. Nothing but the number of picks is read by the host."""
    m, size = len(dist_MM), _compiled_size(len(dist_MM))
    while True:
        places, values, count = _empty_picks(dist_MM, k)
        _draw_by_arrival[(1,)](
            dist_MM, time_M, near_M, *chance.of_turns(turns), end, places, values, count,
            m, len(places), turns, size, num_warps=_warps(size),
        )  # fmt: skip
        made = int(count)
        if made >= 0:
            return places[:made], values[:made]
        turns *= 4  # a row arrived more often than chance was drawn for


def _empty_picks(dist_MM: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    most, device = min(k, len(dist_MM)), dist_MM.device
    values = torch.zeros(most, dtype=torch.float64, device=device)
    return (
        torch.zeros(most, dtype=torch.int32, device=device),
        values,
        torch.zeros((), dtype=torch.int32, device=device),
    )


def _compiled_size(length: int) -> int:
    return next((size for size in SIZES if size >= length), 1 << (length - 1).bit_length())


def _warps(size: int) -> int:
    return max(4, min(16, size // 256))


@triton.jit(do_not_specialize=["m", "k"])
def _pick_farthest(  # type: ignore[no-untyped-def]
    dist_MM, near_M, start, bound, tolerance, picks, values, count, m, k, MP: tl.constexpr,
):  # fmt: skip
    lane = tl.arange(0, MP)
    in_list = lane < m
    near = tl.load(near_M + lane, mask=in_list, other=float("-inf"))
    pick, limit, share = tl.load(start), tl.load(bound), tl.load(tolerance)
    done = 0
    more = k > 0
    while more:
        is_pick = lane == pick
        tl.store(picks + done, pick)
        tl.store(values + done + lane * 0, near.to(tl.float64), mask=is_pick)
        dist = tl.load(dist_MM + pick * m + lane, mask=in_list, other=0.0)
        near = tl.where(is_pick, float("-inf"), tl.minimum(near, dist))
        done += 1
        top = tl.max(near, axis=0)
        floor = top - share * tl.abs(top)
        pick = tl.min(tl.where(near >= floor, lane, MP), axis=0)
        more = (done < k) & (floor > limit)
    tl.store(count, done)


@triton.jit(do_not_specialize=["m", "k", "turns"])
def _draw_by_arrival(  # type: ignore[no-untyped-def]
    dist_MM, time_M, near_M, keep_TM, wait_TM, end, picks, values, count, m, k, turns, MP: tl.constexpr,
):  # fmt: skip
    """The count is -1 where a row arrives more than `turns` times."""
    lane = tl.arange(0, MP)
    in_list = lane < m
    time = tl.load(time_M + lane, mask=in_list, other=float("inf"))
    near = tl.load(near_M + lane, mask=in_list, other=0.0)
    rate, turn = near, tl.zeros([MP], tl.int32)
    last = tl.load(end)
    done = 0
    soonest, row = tl.min(time, axis=0, return_indices=True)
    more = (soonest <= last) & (k > 0)
    while more:
        is_row = lane == row
        too_often = is_row & (turn >= turns)
        luck = tl.load(keep_TM + turn * m + lane, mask=is_row & (turn < turns), other=1.0)
        is_pick = is_row & (luck * rate < near)
        what = tl.max(tl.where(too_often, 2, tl.where(is_pick, 1, 0)), axis=0)
        if what == 1:
            tl.store(picks + done, row)
            tl.store(values + done + lane * 0, near, mask=is_row)
            dist = tl.load(dist_MM + row * m + lane, mask=in_list, other=0.0)
            near = tl.minimum(near, dist.to(tl.float64))
            time = tl.where(is_row, float("inf"), time)
            done += 1
        else:
            pause = tl.load(wait_TM + turn * m + lane, mask=is_row & (turn < turns), other=0.0)
            again = time + pause / tl.where(near > 0.0, near, 1.0)
            time = tl.where(is_row, tl.where(near > 0.0, again, float("inf")), time)
            rate = tl.where(is_row, near, rate)
            turn += is_row.to(tl.int32)
        soonest, row = tl.min(time, axis=0, return_indices=True)
        more = (soonest <= last) & (done < k) & (what < 2)
        done = tl.where(what == 2, -1, done)
    tl.store(count, done)
