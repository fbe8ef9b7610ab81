"""The picks of nearest.py on one accelerator: the host is asked once for each list, never for a pick.

What there is to do, for 50,000 rows of 512 numbers and 3,000 picks on an H200 (4.3 TB/s, about 40 TFLOP/s in float32):

    one read of the rows for each pick      3,000 x 24 us                             72 ms, launches not counted
    products over blocks of picks           2 x 50,000 x 512 x 3,000 operations       4 ms
    the tables of 8 lists of 2,048 rows     8 x 2 x 2,048^2 x 512                     1 ms
    a step of a walk inside a list          a line of 8 KB, two sums over the list    2 us, so 6 ms for all

so lists are right here too, as long as nothing is brought to the host to be walked through: a table is 16 MB, which
takes longer to copy than to make, and a step of a walk on the host, or one that waits for it, 20 us and more. Here a
list is chosen, sorted and gathered by operations of fixed size, its walk is one kernel (nearest_kernels.py), and
the host waits for one number, how many rows were picked, by which it sets up the product that takes them in.

The lists are as long as those on the CPU, so that chance falls the same way: the same key gives the same picks.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from labelwise.rng import Key, uniforms
from labelwise.selection.progress import tick
from labelwise.selection.strategy import tie_tolerance
from labelwise.selection.triton_available import available
from labelwise.shards import Best, Shard, Shards
from labelwise.signals.rows import sq_dist, sq_near
from labelwise.signals.spec import Signal
from labelwise.strategies.distance import nearest

TURNS = 4  # rings of one row in a list for which chance is drawn at once; where there are more, the list is walked anew
SIZES = (256, 2048)  # of the lists that the kernels are compiled for, and powers of two above
LAST_ID = torch.iinfo(torch.int64).max


class Walked(NamedTuple):
    """Picks inside a list, on its device: places in the list, their values, and how many they are."""

    places: Tensor
    values: Tensor
    made: Tensor


def suits(pool: Shards) -> bool:
    """Whether all rows are in one shard on one accelerator, and Triton is there, where the shard is."""
    return pool.map(_where) == ["cuda"]


def farthest_first(pool: Shards, signal: Signal, k: int) -> Best:
    """See `nearest.farthest_first`, for a pool of one shard."""
    slack = tie_tolerance(pool)
    parts: list[Best] = []
    length, left = nearest.FIRST_LIST, k
    while left:
        (part,) = pool.map(functools.partial(_far_list, signal, length, left, slack))
        if part is None:
            parts.append(pool.best(nearest._near, left))
            break
        parts.append(part)
        left -= len(part.ids)
        tick(k - left, k)
        length = nearest._next_length(length, len(part.ids), left)
    return Best(*(torch.cat(column) for column in zip(*parts)))


def by_chance(pool: Shards, signal: Signal, k: int, key: Key) -> Best:
    """See `nearest.by_chance`, for a pool of one shard."""
    parts: list[Best] = []
    length, left, number = nearest.FIRST_LIST, k, 0
    while left:
        rings = key.fold("list", number)
        (part,) = pool.map(functools.partial(_ring_list, signal, length, left, rings))
        if not len(part.ids):
            lottery = pool.best(functools.partial(nearest._lottery, rings), left)
            parts.append(Best(lottery.ids, torch.zeros_like(lottery.values)))
            break
        parts.append(part)
        left -= len(part.ids)
        tick(k - left, k)
        length = nearest._next_length(length, len(part.ids), left)
        number += 1
    return Best(*(torch.cat(column) for column in zip(*parts)))


def _far_list(signal: Signal, length: int, left: int, slack: float, shard: Shard) -> Best | None:
    """The picks of one list, which the shard then takes in; None where only copies of taken rows are left."""
    near_N = shard.state["near"]
    top = near_N.max()
    tied_N = near_N >= top - slack * top.abs()
    first = torch.where(tied_N, shard.ids, LAST_ID).argmin()
    values_M, at_M = near_N.topk(min(length, len(near_N)))
    guard = values_M[-1].clone() if len(at_M) < len(near_N) else torch.full_like(top, -torch.inf)
    # Where more rows are tied than the list holds, the first of them may be outside: it takes the last place.
    at_M[-1] = torch.where((at_M == first).any(), at_M[-1], first)
    at_M = at_M[shard.ids[at_M].argsort()]
    begin = (at_M == first).to(torch.uint8).argmax()
    listed = shard.rows(at_M)[signal]
    dist_MM = sq_dist(listed, listed)
    walk = _farthest_by_kernel if _by_kernel(shard) else farthest_in_torch
    walked = walk(dist_MM, near_N[at_M], begin, guard, torch.full_like(top, slack), left)
    first_value, count = torch.stack([walked.values[0], walked.made.double()]).tolist()  # here the host waits
    return None if first_value == 0 else _settled(signal, at_M, walked, int(count), left, shard)


def _ring_list(signal: Signal, length: int, left: int, rings: Key, shard: Shard) -> Best:
    """The picks of one list of rings, which the shard then takes in; none where no row rings."""
    near_N = shard.state["near"].double()
    soon_N = (-rings.exponential(shard.ids) / near_N).masked_fill_(near_N <= 0, -torch.inf)
    soon_M, at_M = soon_N.topk(min(length, len(soon_N)))
    time_M, ids_M = -soon_M, shard.ids[at_M]
    last = soon_M.masked_fill(soon_M == -torch.inf, torch.inf).amin().neg()  # of those that ring at all
    listed = shard.rows(at_M)[signal]
    dist_MM = sq_dist(listed, listed)
    walk, turns, count = _rings_by_kernel if _by_kernel(shard) else rings_in_torch, TURNS, -1
    while count < 0:
        names = [rings.fold(what, turn) for what in ("keep", "wait") for turn in range(turns)]
        luck_2TM = uniforms(names, ids_M).view(2, turns, -1)
        walked = walk(dist_MM, time_M, near_N[at_M], luck_2TM[0], -luck_2TM[1].log(), last, left)
        count, turns = int(walked.made), 4 * turns  # here the host waits
    return _settled(signal, at_M, walked, count, left, shard)


def _settled(signal: Signal, at_M: Tensor, walked: Walked, count: int, left: int, shard: Shard) -> Best:
    """The picks as an answer; the shard takes them in where others are to follow."""
    at_J = at_M[walked.places[:count]]
    best = Best(shard.ids[at_J].cpu(), walked.values[:count].cpu())
    if 0 < count < left:
        _take_in(signal, at_J, shard)
    return best


def _take_in(signal: Signal, at_J: Tensor, shard: Shard) -> None:
    """Lower every row's distance to that of the nearest of these rows, which are taken."""
    near_N, norm_N = shard.state["near"], shard.state["norm"]
    for part in at_J.split(nearest.CENTRES):
        to = shard.rows(part)[signal]
        for where, rows in shard.blocks(scratch=2 * len(part)):
            torch.minimum(near_N[where], sq_near(rows[signal], norm_N[where], to), out=near_N[where])
    near_N.index_fill_(0, at_J, -torch.inf)


def _by_kernel(shard: Shard) -> bool:
    return shard.device.type == "cuda"


def _empty(dist_MM: Tensor, k: int) -> Walked:
    most = min(k, len(dist_MM))
    return Walked(
        torch.zeros(most, dtype=torch.int32, device=dist_MM.device),
        torch.zeros(most, dtype=torch.float64, device=dist_MM.device),
        torch.zeros((), dtype=torch.int32, device=dist_MM.device),
    )


def _size(length: int) -> int:
    """The number of rows a kernel is compiled for: few different ones, since each takes a second."""
    fitting = [size for size in SIZES if size >= length]
    return fitting[0] if fitting else 1 << (length - 1).bit_length()


def _farthest_by_kernel(dist_MM: Tensor, near_M: Tensor, begin: Tensor, guard: Tensor, slack: Tensor, k: int) -> Walked:
    from labelwise.strategies.distance.nearest_kernels import walk_farthest  # needs Triton

    out, m = _empty(dist_MM, k), len(dist_MM)
    size = _size(m)
    walk_farthest[(1,)](
        dist_MM, near_M, begin.to(torch.int32), guard, slack, *out, m, min(k, m), size, num_warps=_warps(size)
    )
    return out


def _rings_by_kernel(
    dist_MM: Tensor, time_M: Tensor, near_M: Tensor, keep_TM: Tensor, wait_TM: Tensor, last: Tensor, k: int
) -> Walked:
    from labelwise.strategies.distance.nearest_kernels import walk_rings  # needs Triton

    out, m = _empty(dist_MM, k), len(dist_MM)
    size = _size(m)
    walk_rings[(1,)](
        dist_MM, time_M, near_M, keep_TM, wait_TM, last, *out, m, min(k, m), len(keep_TM), size, num_warps=_warps(size)
    )
    return out


def _warps(size: int) -> int:
    return max(4, min(16, size // 256))


def farthest_in_torch(dist_MM: Tensor, near_M: Tensor, begin: Tensor, guard: Tensor, slack: Tensor, k: int) -> Walked:
    """What the kernel does, step by step in torch: to compare it with."""
    out, near_M, pick, done = _empty(dist_MM, k), near_M.clone(), int(begin), 0
    going = k > 0
    while going:
        out.places[done], out.values[done] = pick, near_M[pick].double()
        near_M = torch.minimum(near_M, dist_MM[pick])
        near_M[pick] = -torch.inf
        done += 1
        top = near_M.max()
        floor = top - slack * top.abs()
        pick = int((near_M >= floor).to(torch.uint8).argmax())
        going = done < min(k, len(near_M)) and bool(floor > guard)
    out.made.fill_(done)
    return out


def rings_in_torch(
    dist_MM: Tensor, time_M: Tensor, near_M: Tensor, keep_TM: Tensor, wait_TM: Tensor, last: Tensor, k: int
) -> Walked:
    """What the kernel does, step by step in torch: to compare it with."""
    out, time_M, rate_M = _empty(dist_MM, k), time_M.clone(), near_M.clone()
    turn_M, done = torch.zeros(len(time_M), dtype=torch.int64), 0
    row = int(time_M.argmin())
    while done < min(k, len(time_M)) and bool(time_M[row] <= last):
        turn, now = int(turn_M[row]), near_M[row].clone()
        if turn >= len(keep_TM):
            out.made.fill_(-1)
            return out
        if bool(keep_TM[turn, row] * rate_M[row] < now):
            out.places[done], out.values[done] = row, now
            near_M, done = torch.minimum(near_M, dist_MM[row].double()), done + 1
            time_M[row] = torch.inf
        else:
            time_M[row] = time_M[row] + wait_TM[turn, row] / now if bool(now > 0) else torch.inf
            rate_M[row], turn_M[row] = now, turn + 1
        row = int(time_M.argmin())
    out.made.fill_(done)
    return out


def _where(shard: Shard) -> str:
    return shard.device.type if shard.device.type != "cuda" or available() else "cuda without Triton"
