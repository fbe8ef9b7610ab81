"""The two walks through a list of nearest.py as one kernel each, in Triton: a single program, no host.

Importing this file needs Triton. One program holds what a walk changes in its registers, a few numbers for each of up
to `MP` rows of the list; a step reads one line of the table of distances, which the second level cache holds. Other
numbers come in tensors: a kernel's own float arguments are single, and reading them back would wait for the device.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["m", "k"])
def walk_farthest(  # type: ignore[no-untyped-def]
    dist_MM, near_M, begin, guard, slack, picks, values, count, m, k, MP: tl.constexpr,
):  # fmt: skip
    """Farthest first from row `begin` of the list on, while the farthest is above the guard; ties to the first row."""
    lane = tl.arange(0, MP)
    here = lane < m
    near = tl.load(near_M + lane, mask=here, other=float("-inf"))
    pick, edge, share = tl.load(begin), tl.load(guard), tl.load(slack)
    done = 0
    going = k > 0
    while going:
        hit = lane == pick
        tl.store(picks + done, pick)
        tl.store(values + done + lane * 0, near.to(tl.float64), mask=hit)
        line = tl.load(dist_MM + pick * m + lane, mask=here, other=0.0)
        near = tl.where(hit, float("-inf"), tl.minimum(near, line))
        done += 1
        top = tl.max(near, axis=0)
        floor = top - share * tl.abs(top)
        pick = tl.min(tl.where(near >= floor, lane, MP), axis=0)
        going = (done < k) & (floor > edge)
    tl.store(count, done)


@triton.jit(do_not_specialize=["m", "k", "turns"])
def walk_rings(  # type: ignore[no-untyped-def]
    dist_MM, time_M, near_M, keep_TM, wait_TM, last, picks, values, count, m, k, turns, MP: tl.constexpr,
):  # fmt: skip
    """The rings of a list in the order of time, up to the time `last`; the count is -1 where a row rings too often."""
    lane = tl.arange(0, MP)
    here = lane < m
    time = tl.load(time_M + lane, mask=here, other=float("inf"))
    near = tl.load(near_M + lane, mask=here, other=0.0)
    rate, turn = near, tl.zeros([MP], tl.int32)
    end = tl.load(last)
    done = 0
    soonest, row = tl.min(time, axis=0, return_indices=True)
    going = (soonest <= end) & (k > 0)
    while going:
        hit = lane == row
        deep = hit & (turn >= turns)
        luck = tl.load(keep_TM + turn * m + lane, mask=hit & (turn < turns), other=1.0)
        kept = hit & (luck * rate < near)
        what = tl.max(tl.where(deep, 2, tl.where(kept, 1, 0)), axis=0)
        if what == 1:
            tl.store(picks + done, row)
            tl.store(values + done + lane * 0, near, mask=hit)
            line = tl.load(dist_MM + row * m + lane, mask=here, other=0.0)
            near = tl.minimum(near, line.to(tl.float64))
            time = tl.where(hit, float("inf"), time)
            done += 1
        else:
            pause = tl.load(wait_TM + turn * m + lane, mask=hit & (turn < turns), other=0.0)
            again = time + pause / tl.where(near > 0.0, near, 1.0)
            time = tl.where(hit, tl.where(near > 0.0, again, float("inf")), time)
            rate = tl.where(hit, near, rate)
            turn += hit.to(tl.int32)
        soonest, row = tl.min(time, axis=0, return_indices=True)
        going = (soonest <= end) & (done < k) & (what < 2)
        done = tl.where(what == 2, -1, done)
    tl.store(count, done)
