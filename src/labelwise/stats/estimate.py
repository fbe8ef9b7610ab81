"""How good a model is on the pool, from new labels of rows drawn by a known law, before it is trained on them.

With weights w_i that undo the law (`Strategy.known_law`: bss, leverage, random), the pool's mean of a number f, such as
the loss of the model that chose the rows, is estimated by

    R = sum_i w_i f_i / sum_i w_i,      V = c k/(k - 1) sum_i w_i^2 (f_i - R)^2 / (sum_i w_i)^2

c counts what merging and the finite pool change: a row drawn three times was three draws (c = effective sample size
over effective draws), and rows drawn without replacement leave less to be unsure of (c = 1 - k/n). The interval of a
share, such as accuracy, is Wilson's with the effective number R (1 - R)/V of labels, at most the effective sample
size m = (sum w)^2/sum w^2. That of a mean is by empirical likelihood (Owen, Biometrika 1988; "Empirical likelihood",
2001): all mu for which some probabilities p_i of the rows give sum p_i w_i (f_i - mu) = 0 without being unlikely,

    -2 log max_p prod (k p_i) = 2 sum log(1 + lam w_i (f_i - mu)) <= c q^2,   lam the root of sum g_i/(1 + lam g_i) = 0

which leans to the side of the long tail by itself. q is Student's point t (m - 1 degrees of freedom) on the side of
the short tail, times 1 - 0.5/sqrt(m), and t (1 + 3.5/sqrt(m)) on the side of the long one: a sample that holds too few
of the large losses looks tame, so nothing in it could lengthen that arm. The two constants are measured, not derived.
docs/methods/weights.md has the coverage, and the bias that the exact budget adds. Strategies without such a law give
no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from labelwise.pool import Pool
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs

FEWEST = 10  # labels below which no interval is given
LEVEL = 0.95
LONG, SHORT = 3.5, 0.5  # what the arms of an interval gain and lose, in units of 1/sqrt(effective sample size)


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
    (0.5, 0.403, 0.597)
    """
    f, w = np.asarray(values, np.float64), np.asarray(weights, np.float64)
    mean = float(w @ f / w.sum())
    effective = float(w.sum() ** 2 / (w @ w))
    if not share:
        return _likelihood(mean, f, w, effective, factor)
    term, k = w * (f - mean) / w.sum(), len(f)
    variance = factor * k / (k - 1) * float(term @ term) if k > 1 else math.inf
    return _wilson(mean, variance, effective / max(factor, 1e-12))


def _wilson(mean: float, variance: float, effective: float) -> Interval:
    spread = mean * (1 - mean)
    # A variance below what the weights allow for may be chance, and is not believed.
    count = min(spread / variance, effective) if variance > 0 and spread > 0 else effective
    z = _normal()
    centre = (mean + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(spread / count + z * z / (4 * count * count))
    return Interval(mean, max(0.0, centre - half), min(1.0, centre + half))


def _likelihood(mean: float, f: np.ndarray, w: np.ndarray, effective: float, factor: float) -> Interval:
    """The means that empirical likelihood does not rule out, with a longer arm on the side of the long tail."""
    size = float(np.abs(f - mean).max())
    if not size > 0:
        return Interval(mean, mean, mean)
    x = (f - mean) / size  # so that nothing depends on the unit of the loss
    t = _student(max(effective - 1, 2.0))
    long, short = t * (1 + LONG / math.sqrt(effective)), t * (1 - SHORT / math.sqrt(effective))
    below, above = (short, long) if float(((w * x) ** 3).sum()) >= 0 else (long, short)
    low, high = (_end(x, w, far, factor * q * q) for far, q in ((float(x.min()), below), (float(x.max()), above)))
    return Interval(mean, mean + size * low, mean + size * high)


def _end(x: np.ndarray, w: np.ndarray, far: float, most: float) -> float:
    """The mean between 0, the estimate, and `far` at which the statistic comes to `most`; it rises in between."""
    near = 0.0
    for _ in range(40):
        middle = (near + far) / 2
        near, far = (middle, far) if unlikely(w * (x - middle)) < most else (near, middle)
    return near


def unlikely(g: np.ndarray) -> float:
    """-2 log of the empirical likelihood ratio that g has mean 0; inf where 0 is not inside of its range.

    lam is found by Newton's method within the bracket in which every p_i = 1/(k (1 + lam g_i)) is at most 1.
    """
    least, most, k = float(g.min()), float(g.max()), len(g)
    if least >= 0 or most <= 0:
        return math.inf
    low, high, lam = (1 / k - 1) / most, (1 / k - 1) / least, 0.0
    close = 1e-10 * min(-low, high)
    for _ in range(100):
        part = g / (1 + lam * g)
        slope, excess = float(part @ part), float(part.sum())
        low, high = (lam, high) if excess > 0 else (low, lam)
        new = lam + excess / slope
        new = new if low < new < high else (low + high) / 2
        done, lam = abs(new - lam) <= close, new
        if done:
            break
    return 2 * float(np.log1p(lam * g).sum())


def _normal() -> float:
    """The two-sided 95 % point of the normal law."""
    return NormalDist().inv_cdf(0.5 + LEVEL / 2)


def _student(freedom: float) -> float:
    """The two-sided 95 % point of Student's law, by its expansion about the normal one (error 3e-3 from 5 up)."""
    z = _normal()
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def factor_of(notes: Mapping[str, Any]) -> float:
    """Variance of draws with replacement over that of as many rows drawn once each."""
    draws = float(notes.get("effective_draws", 0.0))
    return float(notes.get("effective_sample_size", 0.0)) / draws if draws > 0 else 1.0


def losses_of(reader: Reader, pool: Pool, ids: torch.Tensor, labels: torch.Tensor) -> dict[str, np.ndarray]:
    """Right or wrong and the loss of each row, or its squared error in regression."""
    if reader.gives(Prediction()):
        found = [rows.tensor(Prediction()).double() for rows in read(reader, pool, ids, (Prediction(),))]
        return {"mse": (torch.cat(found).flatten() - labels).square().numpy()}
    p_kC = torch.cat([rows.tensor(Probs()) for rows in read(reader, pool, ids, (Probs(),))])
    right_k = p_kC.argmax(1) == labels
    p_k = p_kC.gather(1, labels.clamp(max=p_kC.shape[1] - 1)[:, None])[:, 0]
    p_k = p_k.masked_fill(labels >= p_kC.shape[1], 0.0).clamp_min(torch.finfo(p_kC.dtype).eps)
    return {"accuracy": right_k.double().numpy(), "nll": -p_k.double().log().numpy()}
