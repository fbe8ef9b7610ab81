"""How good a model is on the pool, from labels of rows drawn by a known law.

`running` estimates the model trained on all labels so far, from all of them. Each row has the loss of a model that was
not trained on it: of `FOLDS` models, each trained on the other nine tenths of the labels. A round t whose k_t rows were
drawn by a law from N_t free ones gives the pool's total in full, in which rows labelled before stand for themselves,

    S_t = sum_{before t} f_i + (N_t/k_t) sum_{i in t} w_i f_i

and rounds are averaged with shares c_t = k_t/(N_t (N_t - k_t)), by which uniform draws weigh the same in every round
(levelled, Farquhar, Gal and Rainforth, "On statistical bias in active learning", ICLR 2021, for batches; where every
round has a law these are `Ledger.joint_weights`). Rows chosen without a law are covered by the rounds before them.
The ten models share most of their labels, so their losses vary together, which V below does not see (Bates, Hastie and
Tibshirani, "Cross-validation: what does it estimate and how well does it do it?", JASA 2024): the more the closer they
fit their labels. V is multiplied by the loss of a row left out over that of a row trained on, by 1 to `SHARED`.
A batch also says, before anything is trained on it, how good the model is that chose it (`Session.batch_estimate`).

With weights w_i that undo the law (`Strategy.known_law`: bss, leverage, volume, random), the pool's mean of a number f,
such as the loss of the model that chose the rows, is estimated by

    R = sum_i w_i f_i / sum_i w_i,      V = c k/(k - 1) sum_i w_i^2 (f_i - R)^2 / (sum_i w_i)^2

c counts what merging and the finite pool change: a row drawn three times was three draws (c = effective sample size
over effective draws), and rows drawn without replacement leave less to be unsure of (c = 1 - k/n). The interval of a
share, such as accuracy, is Wilson's with the effective number R (1 - R)/V of labels, at most the effective sample
size m = (sum w)^2/sum w^2. That of a mean is by empirical likelihood (Owen, Biometrika 1988; "Empirical likelihood",
2001): all mu for which some probabilities p_i of the rows give sum p_i w_i (f_i - mu) = 0 without being unlikely,

    -2 log max_p prod (k p_i) = 2 sum log(1 + lam w_i (f_i - mu)) <= c q^2,   lam the root of sum g_i/(1 + lam g_i) = 0

which leans to the side of the long tail by itself, but not enough: a sample that holds too few of the largest losses
looks tame. What it does show is how fast the tail falls before them. With g_i = w_i (f_i - R), h is the mean of
log((g_i - median)/(g_q - median)) over the fifth of the rows above the quantile g_q (below it where the sum of g_i^3
is below 0), as in Hill's estimate of a tail: 0.5 for the normal law, 0.65 for the exponential one, 1.1 for squares of
Student's with three degrees of freedom. With Student's point t of m - 1 degrees of freedom, the arms have

    q = t (1 - 0.5/sqrt(m) + min(12 m^-1/4 max(h - 0.55, 0), 2))  on the long side,  t (1 - 0.5/sqrt(m))  on the other

The constants are measured, not derived; docs/results/estimate.md has the coverage, docs/methods/weights.md the bias
that the exact budget adds. Strategies without such a law give no estimate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import torch

from labelwise.pool import Ledger, Pool
from labelwise.rng import Key
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs
from labelwise.train.learner import Learner
from labelwise.train.torch.data import assign_folds

FEWEST = 10  # labels below which no interval is given
FOLDS = 10
LAW = "law"  # the note of a batch drawn by a known law: its "rows", of how many "free" ones of the "pool", its "factor"
LEVEL = 0.95
TAIL = 0.2  # share of the rows that shows how heavy a tail is
SHORT, HEAVY, LIGHT, LONGEST = 0.5, 12.0, 0.55, 2.0  # the constants of q above, in its order
SHARED = 1.75


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
    """The means that empirical likelihood does not rule out; the arm on the long side is as long as that is heavy."""
    size = float(np.abs(f - mean).max())
    if not size > 0:
        return Interval(mean, mean, mean)
    x = (f - mean) / size  # so that nothing depends on the unit of the loss
    g, point = w * x, _student(max(effective - 1, 2.0))
    side = 1 if float((g**3).sum()) >= 0 else -1
    excess = HEAVY * effective**-0.25 * max(heaviness(side * g) - LIGHT, 0.0)
    short, long = (point * (1 - SHORT / math.sqrt(effective) + more) for more in (0.0, min(excess, LONGEST)))
    below, above = (short, long) if side > 0 else (long, short)
    low, high = (_end(x, w, far, factor * q * q) for far, q in ((float(x.min()), below), (float(x.max()), above)))
    return Interval(mean, mean + size * low, mean + size * high)


def heaviness(g: np.ndarray) -> float:
    """h of the upper tail of g; inf where the rest of it is all the same.

    >>> round(heaviness(np.linspace(0, 1, 1001)), 2)
    0.28
    """
    falling = np.sort(g)[::-1]
    count = min(max(3, int(TAIL * len(g))), len(g) - 1)
    above = falling[: count + 1] - float(np.median(g))
    if count < 1 or above[0] <= 0:
        return 0.0
    return float(np.log(above[:count] / above[count]).mean()) if above[count] > 0 else math.inf


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
    rows = notes.get("effective_rows", notes.get("effective_sample_size", 0.0))
    return float(rows) / draws if draws > 0 else 1.0


@dataclass(frozen=True)
class Design:
    """The rows that say something about the pool: ids (M,), weights (M,), about 1 on average, and c for `pool_mean`."""

    ids: torch.Tensor
    weights: np.ndarray
    factor: float


def design_of(ledger: Ledger, rows: int) -> Design | None:
    """The levelled design of all rounds that have a law, for a pool of `rows` rows; None if there is none.

    A batch counts once all of it has its answers: which of them come first is not drawn by a law.
    """
    weight = dict(zip(ledger.labelled.tolist(), ledger.weights.tolist()))
    round_of = ledger.round_of
    batch_of: dict[int, tuple[dict[str, Any], set[int]]] = {}
    for entry in ledger:
        law = entry.notes.get(LAW)
        if law is not None and law["pool"] == rows:
            asked = {row for row in set(entry.ids) - set(entry.notes.get("unasked", ())) if row in weight}
            batch_of.setdefault(entry.round, (law, set()))[1].update(asked)
    share: dict[int, float] = {}
    free = rows
    for number in sorted(set(round_of.values())):
        law, asked = batch_of.get(number, ({}, set()))
        left = free - sum(one == number for one in round_of.values())
        if law and len(asked) == law["rows"] and left > 0:
            share[number] = len(asked) / (free * left)
            weight |= {row: share[number] * free / len(asked) * weight[row] for row in asked}
        free = left
    if not share:
        return None
    total, squares, later = [], 0.0, {number: sum(c for one, c in share.items() if one > number) for number in share}
    ids = ledger.labelled
    for row in ids.tolist():
        number = round_of[row]
        own = weight[row] if number in share and row in batch_of[number][1] else 0.0
        total.append(own + later.setdefault(number, sum(c for one, c in share.items() if one > number)))
        squares += own * own * (batch_of[number][0]["factor"] if own else 0.0)
    found = np.array(total)
    used = found > 0
    scale = used.sum() / (rows * sum(share.values()))
    return Design(ids[torch.from_numpy(used)], scale * found[used], squares / float(found @ found))


def running(learner: Learner, pool: Pool, ledger: Ledger, classes: int, key: Key) -> dict[str, Any] | None:
    """Loss and accuracy over the pool of the model trained on all labels, each with its interval.

    None where no round was drawn by a known law, or with fewer than `FEWEST` labels that say something.
    """
    design = design_of(ledger, len(pool))
    if design is None or len(design.ids) < FEWEST:
        return None
    place = dict(zip(ledger.labelled.tolist(), range(len(ledger.labelled))))
    used = [place[row] for row in design.ids.tolist()]
    found: dict[str, Any] = {"labels": len(design.ids), "pool": len(pool)}
    outside, inside = out_of_fold_losses(learner, pool, ledger, classes, key)
    loss = "nll" if "nll" in outside else "mse"
    factor = design.factor * _shared(outside[loss][used], inside[loss][used], design.weights)
    for name, losses in outside.items():
        mean = pool_mean(losses[used], design.weights, share=name == "accuracy", factor=factor)
        found[name] = mean.to_json()
        if name == "mse":
            found["rmse"] = {end: math.sqrt(max(value, 0.0)) for end, value in found[name].items()}
    return found


def _shared(outside: np.ndarray, inside: np.ndarray, weights: np.ndarray) -> float:
    """By how much the variance grows since the losses are of models with common labels."""
    left_out, trained_on = float(weights @ outside), float(weights @ inside)
    return SHARED if left_out > SHARED * trained_on else max(1.0, left_out / max(trained_on, 1e-300))


def out_of_fold_losses(
    learner: Learner, pool: Pool, ledger: Ledger, classes: int, key: Key
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """`losses_of` each row of `ledger.labelled`: by the model that was not trained on it, and by the others (mean)."""
    ids, labels, weights = ledger.labelled, ledger.labels, ledger.joint_weights(len(pool))
    fold_n = assign_folds(ids, labels if classes else torch.zeros_like(ids), FOLDS, key.fold("folds"))
    outside: dict[str, np.ndarray] = {}
    inside: dict[str, np.ndarray] = {}
    for fold in range(FOLDS):
        train, test = (fold_n != fold).nonzero()[:, 0], (fold_n == fold).nonzero()[:, 0]
        train = train[ids[train].argsort()]
        fit = learner.fit(
            pool, ids[train], labels[train], weights=weights[train], classes=classes, key=key.fold("train", fold)
        )
        for name, values in losses_of(fit.reader, pool, ids, labels).items():
            outside.setdefault(name, np.empty(len(ids)))[test.numpy()] = values[test.numpy()]
            inside.setdefault(name, np.zeros(len(ids)))[train.numpy()] += values[train.numpy()] / (FOLDS - 1)
    return outside, inside


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
