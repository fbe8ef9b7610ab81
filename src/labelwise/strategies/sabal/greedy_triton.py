"""Sparse approximation on one accelerator with fused kernels, where Triton is there: greedy steps and passes of IHT.

A step of greedy is ten kernels and no product that is written to memory: scores with the best three of each program
in one read of the rows; the pick and its line search; gradient and direction of the de-bias step in two reads of the
picked rows; the sum of that direction; the length of the step; the step and the cut; R. Two rows that the precision of
the rows cannot tell apart are told apart in float64 by the kernel that picks. Where there are more, as in embeddings of
a network that has hardly been trained, two further kernels look at all of them, and do nothing otherwise. The host is
asked nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from labelwise.selection.triton_available import available
from labelwise.shards import Shard
from labelwise.shards.graphs import captured
from labelwise.signals.rows import Factored
from labelwise.strategies.sabal.greedy import Picked
from labelwise.strategies.sabal.problem import TINY, Problem, forward, length, residual, share

CHUNK = 128  # steps after which R is computed afresh
MOST_LEFT, MOST_RIGHT = 32, 4096  # beyond, a row does not fit into the registers of a program
SCORERS, SLOPING, ADDING = 528, 1056, 132  # most programs of the three kinds of reads
TILE, WALK, FEW = (64, 64, 4), (64, 64, 4), (16, 64, 4)  # rows, numbers of each, warps; FEW for the support


def small_enough(shape: tuple[int, ...], shard: Shard) -> bool:
    """Whether the kernels are made for rows that are matrices of this shape, and can be compiled where they are."""
    a, b = shape
    return a <= MOST_LEFT and b <= MOST_RIGHT and shard.device.type == "cuda" and available()


def joined(problem: Problem, shard: Shard) -> Factored:
    """The vectors of all rows of a shard at once."""
    parts = [g for _, g in problem.form.blocks(shard)]
    # One block is a view of the stored columns; several are put together once.
    if len(parts) > 1:
        parts = [Factored(torch.cat([one.left for one in parts]), torch.cat([one.right for one in parts]))]
    return Factored(parts[0].left.contiguous(), parts[0].right.contiguous())


class Walk:
    """Two reads of rows that give u, the gradient of f1, and sum u g; the rows are all, or those at `places`."""

    def __init__(self, problem: Problem, g: Factored, rows: int, tile: tuple[int, int, int]):
        from labelwise.strategies.sabal import shared_kernels  # needs Triton

        self.kernels, self.g, (self.rows, self.width, self.warps) = shared_kernels, g, tile
        self.a, self.b = g.left.shape[1], g.right.shape[1]
        self.lines = max(16, shared_kernels.ceil_power(self.a))
        self.sloping = min(SLOPING, -(-rows // self.rows))
        self.adding = min(ADDING, -(-rows // (4 * self.rows)))
        self.partial = problem.v_AB.new_empty(self.adding, self.a, self.b)
        self.along_AB = torch.empty_like(problem.v_AB)
        self.parts = -(-self.a * self.b // 32)
        self.squares_E = problem.v_AB.new_empty(self.parts)
        self.squares_P, self.largest_P = problem.v_AB.new_zeros(2, self.sloping)
        beta, many, noise = problem.terms.beta, problem.pool.n, problem.noise
        self.par2 = problem.v_AB.new_tensor([2 / problem.k, 2 * beta])
        # All rows are noise together, rows of the support one by one, as in `sparse_iht` and `sparse.debias`.
        self.par3_all = problem.v_AB.new_tensor([1 / problem.k**2, beta, many * noise**2, 0.0])
        self.par3_some = problem.v_AB.new_tensor([1 / problem.k**2, beta, 0.0, noise])

    def __call__(
        self, r_AB: Tensor, w: Tensor, u: Tensor, places: Tensor | None, count: Tensor, state: Tensor, kind: str = ""
    ) -> Tensor:
        """sum u g (A, B). `kind` is "given" where u is known, "next" where one row more than `count` is meant."""
        k, extra, indexed = self.kernels, int(kind == "next"), places is not None
        where = places if indexed else count
        if kind != "given":
            k.slopes[(self.sloping,)](
                self.g.left, self.g.right, where, r_AB, w, u, self.squares_P, self.largest_P, self.par2, state, count,
                self.a, self.b, self.lines, self.rows, self.width, indexed, extra, num_warps=self.warps,
            )  # fmt: skip
        k.adjoints[(self.adding, -(-self.b // self.width))](
            self.g.left, self.g.right, where, u, state, count, self.partial,
            self.a, self.b, self.lines, self.rows, self.width, indexed, extra, num_warps=self.warps,
        )  # fmt: skip
        k.gather_along[(self.parts,)](
            self.partial, self.along_AB, self.squares_E, state, self.adding, self.a * self.b, 32, 32
        )  # fmt: skip
        return self.along_AB

    def step(self, mu: Tensor, some: bool, bits: int = 53) -> None:
        """The line search along the u of the last walk, into `mu`; of the support where `some`."""
        power = self.kernels.ceil_power
        self.kernels.step_length[(1,)](
            self.squares_P, self.largest_P, self.sloping, self.squares_E, self.parts,
            self.par3_some if some else self.par3_all, mu, 53 - bits, power(self.sloping), power(self.parts),
        )  # fmt: skip


def greedy_fused(problem: Problem) -> Picked:
    """The picks of `sparse_greedy.greedy`, for a pool of one shard."""
    (found,) = problem.pool.map(lambda shard: _Fused(problem.at(shard), shard).run())
    return found


class _Fused:
    """The state of the greedy loop, all of it on the device."""

    def __init__(self, problem: Problem, shard: Shard, tile: tuple[int, int, int] = TILE):
        from labelwise.strategies.sabal import greedy_kernels

        self.problem, self.shard, self.tile, self.kernels = problem, shard, tile, greedy_kernels
        self.g = joined(problem, shard)
        self.walk = Walk(problem, self.g, problem.k, FEW)
        terms, k, n, device = problem.terms, problem.k, len(shard), shard.device
        a, b = problem.v_AB.shape
        small = 1 / max(length(problem.v_AB) + problem.longest, TINY)  # brings R near to length one
        blur = 4 * terms.tau * torch.finfo(self.g.right.dtype).eps * (16 + 2 * max(a, b) ** 0.5) * problem.longest
        par = [2 * terms.tau / k / small, 1 / k, 2 * terms.tau, terms.beta, blur, problem.slack, problem.noise, small]
        self.par = problem.v_AB.new_tensor(par)
        self.r_AB = -problem.v_AB
        self.small_AB = (self.r_AB * small).to(self.g.right.dtype)
        self.w, self.u, self.scores = (self.r_AB.new_zeros(k + 1) for _ in range(3))
        self.places = torch.zeros(k + 1, dtype=torch.int64, device=device)
        self.bonus_N = shard.state["bonus"].clone()  # -inf once taken
        self.square_N = (shard.state["length"] ** 2 + terms.beta).clamp_(min=TINY)
        self.state = torch.tensor([1, 0], dtype=torch.int32, device=device)
        self.moved, self.mu = self.r_AB.new_zeros(2), self.r_AB.new_zeros(1)
        self.precision = "tf32x3" if self.g.right.dtype == torch.float32 else "ieee"
        self.scorers = min(SCORERS, -(-n // tile[0]))
        self.top_P3 = self.r_AB.new_empty(self.scorers, 3)
        self.place_P2 = torch.zeros(self.scorers, 2, dtype=torch.int32, device=device)
        self.score_N, self.near = self.r_AB.new_empty(n), self.r_AB.new_zeros(2)

    def run(self) -> Picked:
        problem, k = self.problem, self.problem.k
        self.shard.state["c"] = forward(self.g, self.r_AB) / k
        first, done, looks = share(problem), 0, 1
        step = captured(self._step, [self.w, self.u, self.r_AB, self.small_AB, self.bonus_N, self.state])
        while done < k:
            for _ in range(min(CHUNK, k - done)):
                step()
            done, looks = min(done + CHUNK, k), looks + 1
            # From the weights, so that rounding does not add up from pick to pick.
            self._set_r(residual(problem, self.g[self.places[:done]], self.w[:done]))
        terms = problem.terms
        scores = self.scores[:k] + 2 * terms.tau * terms.beta - terms.second_order * terms.tau**2 * terms.beta
        return Picked(self.shard.ids[self.places[:k]].cpu(), self.w[:k], scores.cpu(), self.r_AB, looks, first)

    def _set_r(self, r_AB: Tensor) -> None:
        self.r_AB.copy_(r_AB)
        self.small_AB.copy_(r_AB * self.par[7])

    def _step(self) -> None:
        """One pick."""
        shared_kernels, power, g, (a, b) = self.kernels, self.walk.kernels.ceil_power, self.g, self.r_AB.shape
        rows, width, warps = self.tile
        shared_kernels.score_rows[(self.scorers,)](
            g.left, g.right, self.small_AB, self.bonus_N, self.par, self.state, self.score_N, self.top_P3,
            self.place_P2, len(g), a, b, self.walk.lines, rows, width, self.precision, num_warps=warps,
        )  # fmt: skip
        shared_kernels.pick_row[(1,)](
            g.left, g.right, self.r_AB, self.bonus_N, self.square_N, self.shard.ids, self.par, self.state,
            self.top_P3, self.place_P2, self.near, self.w, self.places, self.scores, self.scorers,
            a, b, power(self.scorers), power(b), num_warps=8,
        )  # fmt: skip
        shared_kernels.tell_rows[(self.scorers,)](
            g.left, g.right, self.r_AB, self.bonus_N, self.par, self.state, self.near, self.score_N, self.top_P3,
            len(g), a, b, *FEW[:2], num_warps=FEW[2],
        )  # fmt: skip
        shared_kernels.pick_near[(1,)](
            g.left, g.right, self.r_AB, self.bonus_N, self.square_N, self.shard.ids, self.par, self.state, self.near,
            self.score_N, self.top_P3, self.w, self.places, self.scores, self.scorers, len(g),
            a, b, power(self.scorers), power(b), 1024, num_warps=8,
        )  # fmt: skip
        self._debias()

    def _debias(self) -> None:
        """The de-bias step and the cut at zero, with the row that was picked last."""
        shared_kernels, g, (a, b), walk = self.kernels, self.g, self.r_AB.shape, self.walk
        along_AB = walk(self.r_AB, self.w, self.u, self.places, self.state[1:], self.state, "next")
        walk.step(self.mu, True)
        shared_kernels.settle[(1,)](self.w, self.u, self.mu, self.par, self.state, self.moved, 1024, num_warps=8)
        shared_kernels.move_r[(-(-b // 32),)](
            g.left, g.right, self.places, self.r_AB, self.small_AB, along_AB, self.u, self.par, self.state, self.moved,
            a, b, walk.lines, 32, 64,
        )  # fmt: skip
