"""ACS-FW: the batch whose expected log-likelihood, reweighted, is nearest to that of the whole pool.

Pinsler, Gordon, Nalisnick and Hernandez-Lobato, "Bayesian batch active learning as sparse subset approximation",
NeurIPS 2019, section 3 and algorithm 1. With q_n = mean_k p_k the predictive probabilities of row n over K draws of the
weights, a row is the vector of its expected log-likelihood under each draw,

    L_n[k] = K^-1/2 ( sum_y q_ny log p_k(y | x_n) + entropy H[q_n] ),   sigma_n = sqrt(|L_n|^2 + 1e-6)

and Frank-Wolfe looks for weights w >= 0 with sum_n sigma_n w_n = sigma = sum_n sigma_n that bring L_w = sum_n w_n L_n
near to L = sum_n L_n:

    f = argmax_n <L_n, L - L_w> / sigma_n      a = (sigma / sigma_f) L_f      gamma = <a - L_w, L - L_w> / |a - L_w|^2
    w <- (1 - gamma) w + gamma (sigma / sigma_f) e_f                          L_w <- (1 - gamma) L_w + gamma a

until k rows have a positive weight. Cost: N K C, and N K for each step, one product of the rows with L - L_w.
Departs from the paper: gamma is kept within 0 and 1, so that no weight is negative; a probability below 1e-12 counts as
1e-12; after 20 k steps, or when no step helps any more, the batch is filled by the score of the last step.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from labelwise.choose import Selection, Strategy
from labelwise.choose.strategy import tie
from labelwise.errors import ArgumentError
from labelwise.keys import Key
from labelwise.shards import Shard, Shards
from labelwise.signals.spec import LogProbs, Needs

DRAWS = LogProbs()
STEPS = 20  # times k, at most
LEAST = math.log(1e-12)  # a draw that rules a class out does not rule the row
TINY = 1e-100  # a factor this small is multiplied out
HALT = 1e-12  # a step shorter than this share of the way leads nowhere


@dataclass(frozen=True)
class AcsFw(Strategy):
    """Rows that stand for the pool in what the draws expect of it.

    `entropy` is the share of the predictive entropy in a row's vector. `projections` shortens the vectors of K draws
    to so many numbers by a random projection; None keeps all K. Weights are those of Frank-Wolfe, scaled to a mean of
    1; a row that was filled in has the smallest of them.
    """

    entropy: float = 0.7
    projections: int | None = None

    needs = Needs(pool=(DRAWS,))
    cost = "N K C + steps x N K"
    paper = "Pinsler et al., NeurIPS 2019"
    weighted = True

    def __post_init__(self) -> None:
        if not isinstance(self.entropy, int | float) or not math.isfinite(self.entropy):
            raise ArgumentError(f"AcsFw(entropy=...) must be a finite number, found {self.entropy!r}")
        if self.projections is not None and (not isinstance(self.projections, int) or self.projections < 1):
            raise ArgumentError(
                f"AcsFw(projections=...) must be None or a whole number of at least 1, found {self.projections!r}"
            )

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        draws = max(pool.map(lambda shard: shard.columns[DRAWS].shape[1]))
        project_KJ = None if self.projections is None else _projection(draws, self.projections, key.fold("projection"))
        try:
            pool.map(functools.partial(_vectors, self.entropy, project_KJ))
            path = _frank_wolfe(pool, k)
            fill = k - len(path.weight)
            rest = pool.best(functools.partial(_free_score, path.gap_J, [*path.weight]), fill) if fill else None
        finally:
            pool.map(_end)
        ids = [*path.weight]
        weights = np.array([*path.weight.values()])
        scores = [path.score[row] for row in ids]
        if rest is not None:
            least = weights.min() if len(weights) else 1.0
            ids += rest.ids.tolist()
            scores += rest.values.tolist()
            weights = np.concatenate([weights, np.full(fill, least)])
        notes = {
            "steps": path.steps,
            "distinct": k - fill,
            "filled_by_score": fill,
            "stopped": path.stopped,
            "objective": path.objective,
            "objective_share": path.objective / path.target if path.target else 0.0,
        }
        return Selection(np.asarray(ids), weights / weights.mean(), np.asarray(scores), notes)


class _Path(NamedTuple):
    """Where Frank-Wolfe went."""

    weight: dict[int, float]  # positive ones, in the order in which the rows were first taken
    score: dict[int, float]  # of each row when it was first taken
    gap_J: Tensor  # L - L_w
    steps: int
    stopped: str
    objective: float  # |L - L_w|^2
    target: float  # |L|^2


def _frank_wolfe(pool: Shards, k: int) -> _Path:
    total = pool.sum(_sums)
    target_J, sigma = total[:-1], float(total[-1])
    at_J = torch.zeros_like(target_J)
    weight: dict[int, float] = {}
    score: dict[int, float] = {}
    slack, scale, steps, stopped = tie(pool), 1.0, 0, "k rows taken"  # weights are kept divided by `scale`
    while len(weight) < k:
        if steps == STEPS * k:
            stopped = f"{STEPS} k steps"
            break
        gap_J = target_J - at_J
        best = pool.best(functools.partial(_score, gap_J), 1, slack)
        row, value = int(best.ids[0]), float(best.values[0])
        row_J, row_sigma = _row(pool, best.ids)
        way_J = sigma / row_sigma * row_J - at_J
        length = float(way_J @ way_J)
        gamma = min(1.0, float(way_J @ gap_J) / length) if length > 0 else 0.0
        if gamma <= HALT:
            stopped = "no step helps any more"
            break
        scale *= 1 - gamma
        if scale < TINY:  # at a full step the rows before count nothing any more
            weight = {one: scale * w for one, w in weight.items()} if scale else {}
            scale = 1.0
        weight[row] = weight.get(row, 0.0) + gamma * sigma / row_sigma / scale
        score.setdefault(row, value)
        at_J = at_J + gamma * way_J
        steps += 1
    gap_J = target_J - at_J
    weight = {one: scale * w for one, w in weight.items()}
    return _Path(weight, score, gap_J, steps, stopped, float(gap_J @ gap_J), float(target_J @ target_J))


def _projection(draws: int, to: int, key: Key) -> Tensor:
    """A random matrix (K, J) that keeps inner products in the mean."""
    return torch.randn(draws, to, generator=key.generator(), dtype=torch.float64) / math.sqrt(to)


def _vectors(entropy: float, project_KJ: Tensor | None, shard: Shard) -> None:
    """Keep the vector of each row and, apart, its length."""
    width = shard.columns[DRAWS][:1].numel()
    project = None if project_KJ is None else project_KJ.to(shard.device, shard.dtype)
    rows_NJ = shard.each(lambda rows: _expected(rows.tensor(DRAWS), entropy, project), 2 * width)
    shard.state["vector"] = rows_NJ
    shard.state["sigma"] = torch.cat([_length(part) for part in rows_NJ.split(4096)])


def _expected(log_NKC: Tensor, entropy: float, project_KJ: Tensor | None) -> Tensor:
    q_NC = log_NKC.exp().mean(1)
    log_NKC = log_NKC.clamp_min(LEAST)
    bonus_N1 = entropy * torch.special.entr(q_NC).sum(1, keepdim=True)
    rows_NK = (torch.bmm(log_NKC, q_NC[:, :, None])[:, :, 0] + bonus_N1) / math.sqrt(log_NKC.shape[1])
    return rows_NK if project_KJ is None else rows_NK @ project_KJ


def _length(rows_NJ: Tensor) -> Tensor:
    return (rows_NJ.double().square().sum(1) + 1e-6).sqrt()


def _sums(shard: Shard) -> Tensor:
    """The sum of the vectors and, last, of their lengths, in float64."""
    parts = shard.state["vector"].split(4096)
    total_J = torch.stack([part.sum(0, dtype=torch.float64) for part in parts]).sum(0)
    return torch.cat([total_J, shard.state["sigma"].sum()[None]]).cpu()


def _score(gap_J: Tensor, shard: Shard) -> Tensor:
    """<L_n, L - L_w> / sigma_n. The gap is a difference in float64, so a product with it loses nothing to rounding."""
    vector_NJ = shard.state["vector"]
    return (vector_NJ @ gap_J.to(vector_NJ.device, vector_NJ.dtype)).double() / shard.state["sigma"]


def _free_score(gap_J: Tensor, taken: list[int], shard: Shard) -> Tensor:
    """The score of rows that are not taken, each summed by itself: copies of a row are tied to the last bit."""
    gap_J, ids = gap_J.to(shard.device), torch.tensor(taken, dtype=torch.int64, device=shard.device)
    product_N = torch.cat([(part.double() * gap_J).sum(1) for part in shard.state["vector"].split(4096)])
    return (product_N / shard.state["sigma"]).masked_fill_(torch.isin(shard.ids, ids), -torch.inf)


def _row(pool: Shards, pick: Tensor) -> tuple[Tensor, float]:
    """Vector and length of one row, in float64."""
    (found,) = [one for one in pool.map(functools.partial(_here, pick)) if one is not None]
    return found[:-1], float(found[-1])


def _here(pick: Tensor, shard: Shard) -> Tensor | None:
    place = (shard.ids == pick.to(shard.device)).nonzero()[:, 0]
    if not len(place):
        return None
    vector_J, sigma = shard.state["vector"][place[0]].double(), shard.state["sigma"][place[0]]
    return torch.cat([vector_J, sigma[None]]).cpu()


def _end(shard: Shard) -> None:
    shard.state.pop("vector", None)
    shard.state.pop("sigma", None)
