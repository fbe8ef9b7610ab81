"""The backends of SABAL's solvers. Their picks are the same; notes["backend"] names the one that ran.

triton       fused kernels on one CUDA device, for rows of few classes
cuda-graph   PyTorch operations on one accelerator, captured in a graph on CUDA; the host waits once for many picks
gram         greedy only, for rows of many classes on one accelerator: lists of rows and their inner products
torch        PyTorch operations on any device, in any number of shards
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from labelwise.selection.backends import Backend, accelerator_refusal, is_accelerator
from labelwise.shards import Shard
from labelwise.strategies.sabal.greedy import GRAM_TUNING, GramPicks, Lists, ListTuning, Picked, ResidualPicks, greedy
from labelwise.strategies.sabal.iht import DeviceRows, ShardRows, Solved, Stop, iht
from labelwise.strategies.sabal.kernels.torch import Prox, TorchIteration, TorchSteps
from labelwise.strategies.sabal.kernels.tuning import IterationTuning, StepTuning, TritonTuning
from labelwise.strategies.sabal.problem import MOST_PRODUCTS, Problem

T = TypeVar("T")


class GreedyBackend(Backend, Protocol):
    """One implementation of the greedy solver."""

    def solve(self, problem: Problem) -> Picked:
        """The picks of algorithm 1."""


class IhtBackend(Backend, Protocol):
    """One implementation of IHT."""

    def solve(self, problem: Problem, stop: Stop, prox: Prox) -> Solved:
        """The answer of algorithm 2."""


@dataclass(frozen=True)
class TritonGreedy:
    """A product of all rows with R for each pick, by fused kernels."""

    tuning: TritonTuning
    name = "triton"

    def supports(self, problem: Problem) -> str | None:
        if problem.terms.unit_weights:
            return "unit_weights has no kernel"
        return _too_large(problem, self.tuning) or accelerator_refusal(problem.pool, triton=True)

    def solve(self, problem: Problem) -> Picked:
        return _in_shard(problem, self._solve)

    def _solve(self, problem: Problem, shard: Shard) -> Picked:
        from labelwise.strategies.sabal.kernels.triton import TritonSteps  # needs Triton

        return greedy(problem, TritonSteps(problem, shard, self.tuning))


@dataclass(frozen=True)
class GraphGreedy:
    """A product of all rows with R for each pick, by captured PyTorch operations."""

    tuning: StepTuning
    name = "cuda-graph"

    def supports(self, problem: Problem) -> str | None:
        return _too_wide(problem, self.tuning.widest) or accelerator_refusal(problem.pool)

    def solve(self, problem: Problem) -> Picked:
        return _in_shard(problem, self._solve)

    def _solve(self, problem: Problem, shard: Shard) -> Picked:
        return greedy(problem, TorchSteps(problem, shard, self.tuning))


@dataclass(frozen=True)
class GramGreedy:
    """Lists of rows, with their inner products.

    The rows must be in this process: workers send their answers to the CPU, and each list of factors would have to come
    from them.
    """

    tuning: ListTuning
    narrowest: int = StepTuning.widest
    name = "gram"

    def supports(self, problem: Problem) -> str | None:
        if not is_accelerator(problem.v_AB.device):
            return f"rows are on {problem.v_AB.device}"
        if len(problem.v_AB) <= self.narrowest:
            return f"vectors have {len(problem.v_AB)} lines, it is for more than {self.narrowest}"
        if problem.k > MOST_PRODUCTS:
            return f"{problem.k} picks have too many products, it is for at most {MOST_PRODUCTS}"
        return None

    def solve(self, problem: Problem) -> Picked:
        return greedy(problem, Lists(problem, GramPicks(problem, self.tuning), self.tuning))


@dataclass(frozen=True)
class TorchGreedy:
    """Lists of rows, with R."""

    tuning: ListTuning
    name = "torch"

    def supports(self, problem: Problem) -> str | None:
        return None

    def solve(self, problem: Problem) -> Picked:
        return greedy(problem, Lists(problem, ResidualPicks(problem, self.tuning), self.tuning))


@dataclass(frozen=True)
class TritonIht:
    """Iterations on one device, by fused kernels."""

    tuning: TritonTuning
    chunk: int = IterationTuning.chunk
    name = "triton"

    def supports(self, problem: Problem) -> str | None:
        return _too_large(problem, self.tuning) or accelerator_refusal(problem.pool, triton=True)

    def solve(self, problem: Problem, stop: Stop, prox: Prox) -> Solved:
        return _in_shard(problem, functools.partial(self._solve, stop, prox))

    def _solve(self, stop: Stop, prox: Prox, problem: Problem, shard: Shard) -> Solved:
        from labelwise.strategies.sabal.kernels.triton import TritonIteration  # needs Triton

        make = functools.partial(TritonIteration, prox=prox, tuning=self.tuning)
        return iht(problem, stop, functools.partial(DeviceRows, shard=shard, make=make, chunk=self.chunk))


@dataclass(frozen=True)
class GraphIht:
    """Iterations on one device, by captured PyTorch operations."""

    tuning: IterationTuning
    name = "cuda-graph"

    def supports(self, problem: Problem) -> str | None:
        return _too_wide(problem, self.tuning.widest) or accelerator_refusal(problem.pool)

    def solve(self, problem: Problem, stop: Stop, prox: Prox) -> Solved:
        return _in_shard(problem, functools.partial(self._solve, stop, prox))

    def _solve(self, stop: Stop, prox: Prox, problem: Problem, shard: Shard) -> Solved:
        make = functools.partial(TorchIteration, prox=prox, part=self.tuning.part)
        return iht(problem, stop, functools.partial(DeviceRows, shard=shard, make=make, chunk=self.tuning.chunk))


@dataclass(frozen=True)
class TorchIht:
    """Iterations that the host follows."""

    name = "torch"

    def supports(self, problem: Problem) -> str | None:
        return None

    def solve(self, problem: Problem, stop: Stop, prox: Prox) -> Solved:
        return iht(problem, stop, functools.partial(ShardRows, prox=prox))


# The fastest first.
GREEDY: tuple[GreedyBackend, ...] = (
    TritonGreedy(TritonTuning()),
    GraphGreedy(StepTuning()),
    GramGreedy(GRAM_TUNING),
    TorchGreedy(ListTuning()),
)
IHT: tuple[IhtBackend, ...] = (TritonIht(TritonTuning()), GraphIht(IterationTuning()), TorchIht())
BACKENDS: Mapping[str, tuple[GreedyBackend, ...] | tuple[IhtBackend, ...]] = {"greedy": GREEDY, "iht": IHT}


def _in_shard(problem: Problem, solve: Callable[[Problem, Shard], T]) -> T:
    """The answer of a solver that runs where the only shard is."""
    (answer,) = problem.pool.map(functools.partial(_solve_in_shard, problem, solve))
    return answer


def _solve_in_shard(problem: Problem, solve: Callable[[Problem, Shard], T], shard: Shard) -> T:
    return solve(problem.in_shard(shard), shard)


def _too_large(problem: Problem, tuning: TritonTuning) -> str | None:
    a, b = problem.v_AB.shape
    if a <= tuning.most_left and b <= tuning.most_right:
        return None
    return f"vectors are {a} x {b}, the kernels are for at most {tuning.most_left} x {tuning.most_right}"


def _too_wide(problem: Problem, widest: int) -> str | None:
    lines = len(problem.v_AB)
    return None if lines <= widest else f"vectors have {lines} lines, it is for at most {widest}"
