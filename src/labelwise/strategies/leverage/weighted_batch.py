"""Rows drawn with replacement until exactly k of them are held: repeats merged, weights added up."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.selection.selection import Selection
from labelwise.shards import Shard, Shards
from labelwise.strategies.leverage.whiten import LEVERAGE, Whitened

MOST_DRAWS = 32  # for each row held


class Drawn:
    """Draws so far: the weight of each row, in the order of first draws, and the sum of squared weights of draws."""

    def __init__(self, k: int):
        self.k = k
        self.weight: dict[int, float] = {}
        self.score: dict[int, float] = {}
        self.squares = 0.0
        self.draws = 0
        self.full = False

    @staticmethod
    def most(k: int) -> float:
        """After so many draws rows that were never drawn fill the batch."""
        return float(MOST_DRAWS * k + 256)

    def offer(self, row: int, weight: float, score: float) -> bool:
        """Count a draw, unless it would bring row k + 1: that ends the drawing, and the draw is not counted."""
        if row not in self.weight:
            if len(self.weight) == self.k:
                self.full = True
                return False
            self.score[row] = score
        self.weight[row] = self.weight.get(row, 0.0) + weight
        self.squares += weight * weight
        self.draws += 1
        return True


def batch_of(pool: Shards, drawn: Drawn, unit: float, key: Key, notes: Mapping[str, Any]) -> Selection:
    """The rows drawn, each of `unit` times its weight; rows at random fill a batch that is short of k.

    A row that fills counts for itself alone, 1 of the pool's n, and those drawn for all others.
    """
    ids = torch.tensor(list(drawn.weight), dtype=torch.int64)
    weight_M = unit * np.array(list(drawn.weight.values()), dtype=np.float64)
    score_M = np.array(list(drawn.score.values()), dtype=np.float64)
    squares = drawn.squares * unit * unit
    short = drawn.k - len(ids)
    if short:
        lottery = pool.best(functools.partial(_lottery, key, ids), short)
        ids = torch.cat([ids, lottery.ids])
        weight_M = np.concatenate([weight_M * (1 - short / pool.n), np.full(short, drawn.k / pool.n)])
        score_M = np.concatenate([score_M, np.zeros(short)])
    said = {
        "draws": drawn.draws,
        "distinct": drawn.k - short,
        "filled": short,
        "effective_sample_size": _effective(float(weight_M.sum()), float(weight_M @ weight_M)),
        "effective_draws": _effective(unit * sum(drawn.weight.values()), squares),
        "weight_scale": drawn.k,
    }
    return Selection(ids.numpy(), weight_M, score_M, {**notes, **said})


def census(pool: Shards, basis: Whitened, key: Key, notes: Mapping[str, Any]) -> Selection:
    """Every row of the pool, once, with weight 1: what is known of the pool is then exact."""
    best = pool.best(lambda shard: key.uniform(shard.ids), pool.n)
    score = {i: s for part in pool.map(_scores) for i, s in zip(*part)}
    said = {
        "draws": pool.n,
        "distinct": pool.n,
        "filled": 0,
        "effective_sample_size": float(pool.n),
        "effective_draws": float(pool.n),
        "weight_scale": pool.n,
    }
    scores = [score[i] / basis.rank for i in best.ids.tolist()]
    return Selection(best.ids.numpy(), np.ones(pool.n), np.array(scores), {**notes, **said})


def _effective(total: float, squares: float) -> float:
    return total * total / squares if squares > 0 else 0.0


def _scores(shard: Shard) -> tuple[list[int], list[float]]:
    return shard.ids.tolist(), shard.state[LEVERAGE].tolist()


def _lottery(key: Key, taken: Tensor, shard: Shard) -> Tensor:
    """An equal chance for every row that is not taken."""
    return key.uniform(shard.ids).masked_fill_(torch.isin(shard.ids, taken.to(shard.device)), -torch.inf)
