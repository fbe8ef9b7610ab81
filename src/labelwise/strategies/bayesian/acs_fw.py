"""ACS-FW: the batch whose weighted expected log-likelihood is nearest to that of the whole pool.

Pinsler, Gordon, Nalisnick and Hernandez-Lobato, "Bayesian batch active learning as sparse subset approximation",
NeurIPS 2019, section 3 and algorithm 1. With q_n = mean_k p_k the predictive probabilities of row n over K draws of the
weights, a row is the vector of its expected log-likelihood under each draw,

    L_n[k] = K^-1/2 ( sum_y q_ny log p_k(y | x_n) + entropy H[q_n] ),   sigma_n = sqrt(|L_n|^2 + 1e-6)

and Frank-Wolfe finds weights w >= 0 with sum_n sigma_n w_n = sigma = sum_n sigma_n that bring L_w = sum_n w_n L_n
close to L = sum_n L_n:

    f = argmax_n <L_n, L - L_w> / sigma_n      a = (sigma / sigma_f) L_f      gamma = <a - L_w, L - L_w> / |a - L_w|^2
    w <- (1 - gamma) w + gamma (sigma / sigma_f) e_f                          L_w <- (1 - gamma) L_w + gamma a

until k rows have a positive weight. Cost: N K C, and at most N K for each step, a product of the rows with L - L_w;
most steps read sketches of the rows instead, of K / 16 numbers, and few rows in full (frank_wolfe.py). On an
accelerator a step is that product, and the host waits for none of them (kernels/torch.py).
Departs from the paper: gamma is between 0 and 1, so that no weight is negative; a probability below 1e-12 counts as
1e-12; after 20 k steps, or when no step helps any more, the batch is filled by the score of the last step, or by lot
where that score is rounding alone.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.io.arguments import check_fields, check_whole
from labelwise.registry import register
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.backends import is_accelerator
from labelwise.selection.strategy import Growth, Size
from labelwise.shards import Shard, Shards
from labelwise.signals.spec import LogProbs, Needs
from labelwise.strategies.bayesian.frank_wolfe import (
    BASIS_SAMPLE,
    SKETCH_SHARE,
    SKETCH_WIDTH,
    Path,
    frank_wolfe,
)
from labelwise.strategies.bayesian.kernels.torch import FLOAT64_NUMBERS, Tuning, block_size

DRAWS = LogProbs()
MIN_GAP = 1e-12  # a shorter gap, relative to the sum of all vectors, is rounding
MIN_LOG_PROB = math.log(1e-12)  # so that one draw in which a class is impossible does not dominate the row


@register
@dataclass(frozen=True)
class AcsFw(Strategy):
    """A Bayesian coreset of the pool by Frank-Wolfe.

    Weights are those of Frank-Wolfe, scaled to a mean of 1; rows that fill the batch have the smallest of them.

    Args:
        entropy: the weight of the predictive entropy in the vector of a row.
        projections: numbers of a vector after a random projection; None uses all K draws.

    Raises:
        ArgumentError: a parameter is out of range.
    """

    entropy: float = 0.7
    projections: int | None = None

    name = "acs-fw"
    picks = "Bayesian coreset by Frank-Wolfe, with weights"
    reason = "With the rest of this batch it represents the whole pool."
    tuning: ClassVar[Tuning] = Tuning()
    needs = Needs(pool=(DRAWS,))
    cost = "N K C + steps x N K"
    growth = Growth(C=1)
    paper = "Pinsler et al., NeurIPS 2019"
    weighted = True

    def __post_init__(self) -> None:
        if not isinstance(self.entropy, int | float) or not math.isfinite(self.entropy):
            raise ArgumentError(f"AcsFw(entropy=...) must be a finite number, found {self.entropy!r}")
        check_fields(self, check_whole, "projections", least=1)

    def memory(self, size: Size) -> int:
        draws = size.shape(LogProbs)[0]
        long = draws if self.projections is None else self.projections
        width = min(SKETCH_WIDTH, long // SKETCH_SHARE)
        ahead = self.tuning.lookahead
        # Vectors, sketches, and at worst the scores of every row at each step that is guessed.
        per_row = long * size.number + (width + 2 * ahead) * size.number + 96
        listed = 4 * ahead * (long + 2) * 8 + 4 * BASIS_SAMPLE * long * 8 + 6 * long * width * 8
        if size.accelerator:  # rows as they came, in float64, and multiplied
            listed += 3 * 8 * min(FLOAT64_NUMBERS, size.rows * long)
        steps = 256 * size.k * self.tuning.max_steps
        return per_row * size.rows + listed + steps + 8 * long * (draws + 256)

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        draws = max(pool.map(lambda shard: shard.columns[DRAWS].shape[1]))
        project_KJ = None if self.projections is None else _projection(draws, self.projections, key.fold("projection"))
        try:
            pool.map(functools.partial(_vectors, self.entropy, project_KJ))
            path = frank_wolfe(pool, k, self.tuning.max_steps * k, pool.tie_tolerance(), self.tuning)
            weight = path.weights()
            fill = k - len(weight)
            rest = pool.best(functools.partial(_fill_score, _fill_gap(path), [*weight]), fill) if fill else None
        finally:
            pool.map(_clear)
        ids = [*weight]
        weights = np.array([*weight.values()])
        scores = [path.score[row] for row in ids]
        if rest is not None:
            least = weights.min() if len(weights) else 1.0
            ids += rest.ids.tolist()
            scores += rest.values.tolist()
            weights = np.concatenate([weights, np.full(fill, least)])
        objective, target = (float(x_J @ x_J) for x_J in (path.gap_J, path.target_J))
        notes = {
            "steps": len(path.sequence),
            "distinct": k - fill,
            "filled_by_score": fill,
            "stopped": path.stopped or f"{self.tuning.max_steps} k steps",
            "objective": objective,
            "objective_share": objective / target if target else 0.0,
        }
        return Selection(np.asarray(ids), weights / weights.mean(), np.asarray(scores), notes)


def _fill_gap(path: Path) -> Tensor:
    """The gap that fills the batch; zero where it is rounding, which differs between machines."""
    gap_J = path.gap_J
    return gap_J if float(gap_J.norm()) > MIN_GAP * float(path.target_J.norm()) else torch.zeros_like(gap_J)


def _projection(draws: int, to: int, key: Key) -> Tensor:
    """A random matrix (K, J) that preserves inner products in the mean."""
    return torch.randn(draws, to, generator=key.generator(), dtype=torch.float64) / math.sqrt(to)


def _vectors(entropy: float, project_KJ: Tensor | None, shard: Shard) -> None:
    """Compute the vector of each row and, apart, its length."""
    width = shard.columns[DRAWS][:1].numel()
    project = None if project_KJ is None else project_KJ.to(shard.device, shard.dtype)
    rows_NJ = shard.each(lambda rows: _expected(rows.tensor(DRAWS), entropy, project), 2 * width)
    shard.state["vector"] = rows_NJ
    size = block_size(shard) if is_accelerator(shard.device) else 64  # few at a time stay in the cache of a CPU
    shard.state["sigma"] = torch.cat([_length(part) for part in rows_NJ.split(size)])


def _expected(log_NKC: Tensor, entropy: float, project_KJ: Tensor | None) -> Tensor:
    """The expected log-likelihood (N, K) of each row under each draw, projected."""
    q_NC = log_NKC.exp().mean(1)
    log_NKC = log_NKC.clamp_min(MIN_LOG_PROB)
    bonus_N1 = entropy * torch.special.entr(q_NC).sum(1, keepdim=True)
    rows_NK: Tensor = (torch.bmm(log_NKC, q_NC[:, :, None])[:, :, 0] + bonus_N1) / math.sqrt(log_NKC.shape[1])
    return rows_NK if project_KJ is None else rows_NK @ project_KJ


def _length(rows_NJ: Tensor) -> Tensor:
    return (rows_NJ.double().square().sum(1) + 1e-6).sqrt()


def _fill_score(gap_J: Tensor, selected: list[int], shard: Shard) -> Tensor:
    """The score of rows that are not selected, each summed by itself: copies of a row are tied to the last bit."""
    gap_J, ids = gap_J.to(shard.device), torch.tensor(selected, dtype=torch.int64, device=shard.device)
    product_N = torch.cat([(part.double() * gap_J).sum(1) for part in shard.state["vector"].split(4096)])
    return (product_N / shard.state["sigma"]).masked_fill_(torch.isin(shard.ids, ids), -torch.inf)


def _clear(shard: Shard) -> None:
    shard.state.pop("vector", None)
    shard.state.pop("sigma", None)
