"""How good a model is on the pool, from new labels of rows drawn by a known law, before it is trained on them.

With weights w_i that undo the law (`Strategy.known_law`: bss, leverage, random), the pool's mean of a number f, such as
the loss of the model that chose the rows, is estimated by

    R = sum_i w_i f_i / sum_i w_i,      V = c k/(k - 1) sum_i w_i^2 (f_i - R)^2 / (sum_i w_i)^2

c counts what merging and the finite pool change: a row drawn three times was three draws (c = effective sample size
over effective draws), and rows drawn without replacement leave less to be unsure of (c = 1 - k/n). The interval of a
share, such as accuracy, is Wilson's with the effective number R (1 - R)/V of labels, at most the effective sample
size; that of a mean is Student's, bent for the skewness of the terms by Hall's transformation ("On the removal of
skewness by transformation", JRSS B 1992): losses have a long tail on one side. docs/methods/weights.md has the
measured coverage, and the bias that the exact budget adds. Strategies without such a law give no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from labelwise.choose import Selection, Strategy
from labelwise.pool import Ledger, Pool
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs

FEWEST = 10  # labels below which no interval is given
LEVEL = 0.95


@dataclass(frozen=True)
class Interval:
    """An estimate of a mean over the pool, and where it lies with 95 % confidence."""

    value: float
    low: float
    high: float

    def to_json(self) -> dict[str, float]:
        return {"value": self.value, "low": self.low, "high": self.high}


def pool_mean(values: Any, weights: Any, *, share: bool = False, factor: float = 1.0) -> Interval:
    """The pool's mean of `values`, from rows drawn by a law that `weights` undo; `share` for values of 0 and 1.

    `factor` is c above.

    >>> interval = pool_mean([1.0, 0.0] * 50, [1.0] * 100, share=True)
    >>> round(interval.value, 3), round(interval.low, 3), round(interval.high, 3)
    (0.5, 0.402, 0.598)
    """
    f, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    mean = float(w @ f / w.sum())
    term = w * (f - mean) / w.sum()
    k = len(f)
    variance = factor * k / (k - 1) * float(term @ term) if k > 1 else math.inf
    if share:
        return _wilson(mean, variance, float(w.sum() ** 2 / (w @ w)) / max(factor, 1e-12))
    return _hall(mean, variance, term, float(w.sum() ** 2 / (w @ w)))


def _wilson(mean: float, variance: float, effective: float) -> Interval:
    spread = mean * (1 - mean)
    # A variance below what the weights allow for may be chance, and is not believed.
    count = min(spread / variance, effective) if variance > 0 and spread > 0 else effective
    z = _student(max(count - 1, 2.0))
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(spread / count + z * z / (4 * count * count))
    return Interval(mean, max(0.0, centre - half), min(1.0, centre + half))


def _hall(mean: float, variance: float, term: np.ndarray, effective: float) -> Interval:
    """Student's interval after a monotone cubic of the mean that has no skewness to first order."""
    spread = math.sqrt(variance)
    if not spread > 0 or not math.isfinite(spread):
        return Interval(mean, mean, mean)
    skew = float((term**3).sum()) / float(term @ term) ** 1.5  # of the sum of the terms
    # How well V is known depends on how few terms make it up; Hall's bend has taken part of that up already.
    peaked = float(term @ term) ** 2 / float((term**4).sum())
    t = _student(max(math.sqrt(effective * peaked) - 1, 2.0))
    ends = (_bent(-t, skew), _bent(t, skew))
    return Interval(mean, mean - ends[1] * spread, mean - ends[0] * spread)


def _bent(x: float, a: float) -> float:
    """The inverse of t + a t^2/3 + a^2 t^3/27 + a/6, whose law is normal to second order."""
    if abs(a) < 1e-9:
        return x
    return 3 / a * (math.copysign(abs(1 + a * (x - a / 6)) ** (1 / 3), 1 + a * (x - a / 6)) - 1)


def _student(freedom: float) -> float:
    """The two-sided 95 % point of Student's law, by its expansion about the normal one (error 3e-3 from 5 up)."""
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


@dataclass(frozen=True)
class Asked:
    """A batch that was drawn by a known law, and the model that was there when it was."""

    picks: Selection
    pool: int  # rows it was drawn from
    replaced: bool  # whether rows were drawn with replacement
    reader: Reader

    def estimate(self, pool: Pool, ledger: Ledger) -> dict[str, Any] | None:
        """Pool loss and accuracy of that model, once every row of the batch has its answer; None before."""
        answer = dict(zip(ledger.labelled.tolist(), ledger.labels.tolist()))
        if any(row not in answer for row in self.picks.ids.tolist()):
            return None
        labels = torch.tensor([answer[row] for row in self.picks.ids.tolist()])
        factor = _factor(self.picks.notes) if self.replaced else 1 - len(self.picks) / self.pool
        found: dict[str, Any] = {"labels": len(self.picks), "pool": self.pool}
        for name, values in _values(self.reader, pool, torch.from_numpy(self.picks.ids), labels).items():
            share = name == "accuracy"
            found[name] = pool_mean(values, self.picks.weights, share=share, factor=factor).to_json()
        return found


def asked(strategy: Strategy, picks: Selection, free: int, reader: Reader | None) -> Asked | None:
    """What `picks` can say about the model behind `reader`; None without a known law, a model, or enough labels."""
    if not strategy.known_law or reader is None or len(picks) < FEWEST or picks.notes.get("filled"):
        return None
    if picks.notes.get("warm_rows"):
        return None
    return Asked(picks, free, strategy.weighted, reader)


def _factor(notes: Mapping[str, Any]) -> float:
    """Variance of draws with replacement over that of as many rows drawn once each."""
    draws = float(notes.get("effective_draws", 0.0))
    return float(notes.get("effective_sample_size", 0.0)) / draws if draws > 0 else 1.0


def _values(reader: Reader, pool: Pool, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, np.ndarray]:
    """Right or wrong and the loss of each row, or its squared error in regression."""
    if reader.gives(Prediction()):
        found = [rows.tensor(Prediction()).double() for rows in read(reader, pool, ids, (Prediction(),))]
        return {"mse": (torch.cat(found).flatten() - labels).square().numpy()}
    p_kC = torch.cat([rows.tensor(Probs()) for rows in read(reader, pool, ids, (Probs(),))])
    right_k = p_kC.argmax(1) == labels
    p_k = p_kC.gather(1, labels.clamp(max=p_kC.shape[1] - 1)[:, None])[:, 0]
    p_k = p_k.masked_fill(labels >= p_kC.shape[1], 0.0).clamp_min(torch.finfo(p_kC.dtype).eps)
    return {"accuracy": right_k.double().numpy(), "nll": -p_k.double().log().numpy()}
