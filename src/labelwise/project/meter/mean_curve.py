"""Learning curves of mean losses: what random labels give, measured on the test slice, and what lies beyond it.

The test slice is a random sample, so training on n of its rows and testing on the others is random labelling with n
labels. Repeated over permutations, this gives the mean loss of random labels for every n below the size m of the
slice. Rows of a slice with weights are trained on with a chance in proportion to their weight, drawn again for each
permutation: what is left of such draws is a uniform sample. All others are tested on, and count with their weights.

Beyond n = m, the curve continues as  E(n) = a + b n^-c,  a, b >= 0. The uncertainty comes from bootstrap draws. Each
draw resamples the test rows (the same rows for all models, whose losses are compared), adds the spread between
training sets (by Hoeffding's bound for an average over subsets), and draws the exponent c in proportion to how well
each value fits, so that a curve that is poorly known has a wide interval.

How many random labels a model is worth is asked again after every round, so its interval holds at all of these times
(`labels_between`): its ends lie ALWAYS standard errors away instead of 1.96. A Brownian motion leaves this boundary
between times 30 and 3,000 (test rows) with probability 0.046 (Siegmund, Sequential Analysis, 1985, (4.40)).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelwise.project.loop.model import logistics, ridge
from labelwise.project.loop.set_model import logistic_each, set_losses
from labelwise.rng import Key

DRAWS = 600
_SIZES = 6
_FOLDS = 6  # one row in six is held out at the largest size
_EXPONENTS = np.geomspace(0.15, 2.0, 16)
ALWAYS = 3.1  # standard errors, see above
_GRID = 200  # numbers of labels that are tried
MOST_WEIGHT = 2.0  # of a draw of a slice with weights
_MODEL_ERROR = 0.05  # relative difference that even the best law may have from a true curve


@dataclass(frozen=True)
class RandomCurve:
    """Mean losses of random labels by number of labels (S,) and test row (S, M).

    `spread` is s, where s^2/n is the variance of the mean loss between training sets of n rows.
    """

    sizes_S: np.ndarray
    loss_SM: np.ndarray
    spread: float


def random_curve(
    x_MD: Tensor, label_M: np.ndarray, classes: int, key: Key, weight_M: np.ndarray | None = None
) -> RandomCurve:
    """Train on n of the rows and test on the others, for several n and many permutations.

    Args:
        x_MD: features of the test rows.
        label_M: their labels; class numbers, or numbers; (M, C) zeros and ones for sets of classes.
        classes: number of classes; 0 for numbers.
        key: source of chance.
        weight_M: weights of the test rows; None if they are a uniform sample.
    """
    m = len(label_M)
    out = -(-m // _FOLDS)
    w_M = np.ones(m) if weight_M is None else weight_M
    chance_M = np.minimum(w_M / (1.0 if weight_M is None else MOST_WEIGHT), 1.0)
    most = int((m - out) * chance_M.mean())
    least = max(5, min(2 * classes, most // 2))  # the curve has another shape until every class was seen
    sizes_S = np.unique(np.geomspace(least, most, _SIZES).round().astype(int))
    repeats = _FOLDS * (2 if m < 250 else 1)
    total_SM, count_SM = np.zeros((len(sizes_S), m)), np.zeros((len(sizes_S), m))
    mean_RS = np.zeros((repeats, len(sizes_S)))
    x_MD = x_MD.double()
    orders, insides = [], []
    for repeat in range(repeats):
        order = key.fold("order", repeat // _FOLDS).numpy().permutation(m)
        uniform_M = key.fold("thin", repeat // _FOLDS).numpy().random(m) < chance_M
        order = np.roll(order, (repeat % _FOLDS) * out)  # each row is held out at the largest size in one of the folds
        orders.append(order)
        insides.append(order[: m - out][uniform_M[order[: m - out]]])
    for s, n in enumerate(sizes_S.tolist()):
        loss_RM = _losses(x_MD, label_M, [inside[:n] for inside in insides], classes)
        for repeat, (order, inside) in enumerate(zip(orders, insides)):
            outside = order[~np.isin(order, inside[:n])]
            loss = loss_RM[repeat, outside]
            total_SM[s, outside] += loss
            count_SM[s, outside] += 1
            mean_RS[repeat, s] = np.average(loss, weights=w_M[outside])
    loss_SM = total_SM / count_SM
    return RandomCurve(sizes_S, loss_SM, _spread(mean_RS, loss_SM, sizes_S))


def _losses(x_MD: Tensor, label_M: np.ndarray, insides: list[np.ndarray], classes: int) -> np.ndarray:
    """The losses (R, M) on all rows of R models, each trained on the rows inside."""
    if classes and label_M.ndim == 1:
        inside_RN = torch.from_numpy(np.stack(insides))
        label_RN = torch.from_numpy(label_M.astype(np.int64))[inside_RN]
        weight_RCD, bias_RC = logistics(x_MD[inside_RN], label_RN, classes)
        best_RM = (x_MD @ weight_RCD.mT + bias_RC[:, None]).argmax(2).numpy()
        return np.asarray((best_RM != label_M).astype(np.float64))
    return np.stack([_losses_of_one(x_MD, label_M, inside) for inside in insides])


def _losses_of_one(x_MD: Tensor, label_M: np.ndarray, inside: np.ndarray) -> np.ndarray:
    if label_M.ndim == 2:  # sets of classes, as zeros and ones
        weight, bias = logistic_each(x_MD[inside], torch.from_numpy(label_M[inside]))
        return set_losses((x_MD @ weight.T + bias).numpy() > 0, label_M)
    weight, bias = ridge(x_MD[inside], torch.from_numpy(label_M[inside]).double())
    return ((x_MD @ weight[0] + bias[0]).numpy() - label_M) ** 2


def _spread(mean_RS: np.ndarray, loss_SM: np.ndarray, sizes_S: np.ndarray) -> float:
    """s, where s^2/n is the variance of the mean loss between training sets of n rows."""
    m = loss_SM.shape[1]
    found = []
    for s, n in enumerate(sizes_S.tolist()):
        tested = loss_SM[s].var() / (m - n) * n / m  # variance due to testing on some of the rows
        found.append(max(mean_RS[:, s].var(ddof=1) - tested, 0.0) * n / (1 - n / m))
    return float(np.sqrt(np.median(found)))


@dataclass(frozen=True)
class Curves:
    """B bootstrap draws of a learning curve: measured points, and the law a + b n^-c beyond them."""

    sizes_S: np.ndarray
    loss_BS: np.ndarray  # never rises
    a_B: np.ndarray
    b_B: np.ndarray
    c_B: np.ndarray

    def loss_at(self, n: float) -> np.ndarray:
        """The mean loss (B,) at n labels."""
        if n > self.sizes_S[-1]:
            return self.law_at(n)
        place = np.interp(n, self.sizes_S, np.arange(len(self.sizes_S)))
        left, part = int(place), place - int(place)
        return self.loss_BS[:, left] * (1 - part) + self.loss_BS[:, min(left + 1, len(self.sizes_S) - 1)] * part

    def law_at(self, n: float) -> np.ndarray:
        """The mean loss (B,) at n labels by the fitted law alone."""
        return self.a_B + self.b_B * float(n) ** -self.c_B

    def labels_at(self, loss_B: np.ndarray, most: float) -> np.ndarray:
        """Labels (B,) at which each curve falls to its loss; at most `most`."""
        found = np.empty(len(loss_B))
        for b, (row, loss) in enumerate(zip(self.loss_BS, loss_B)):
            if loss >= row[-1]:
                found[b] = np.interp(-loss, -row, self.sizes_S)
                continue
            gap = loss - self.a_B[b]
            ratio = np.log(self.b_B[b] / gap) / self.c_B[b] if gap > 0 and self.b_B[b] > 0 else np.inf
            found[b] = most if ratio >= np.log(most) else np.exp(ratio)
        return np.clip(found, self.sizes_S[0], most)

    def labels_between(self, loss_B: np.ndarray, most: float, rows: int, luck: float) -> tuple[float, float]:
        """The least and the most random labels that may do as well as a model, at all times with 95 % confidence.

        A number of labels may do as well if the loss of the curve there differs by at most ALWAYS standard errors.

        Args:
            loss_B: the mean loss of the model in each draw.
            most: the largest number of labels.
            rows: test rows, if losses lie between 0 and 1; 0 otherwise. A model without an error on few rows would
                have no standard error. So ALWAYS^2 / 2 rows are added on which the model or the curve alone is wrong,
                as Wilson's interval adds ALWAYS^2 rows.
            luck: variance of the mean loss between models of this many labels.
        """
        added = ALWAYS**2 / 2 if rows else 0.0
        shrink = rows / (rows + added) if rows else 1.0
        extra = added / (rows + added) ** 2 + luck if rows else luck
        labels_L = np.geomspace(self.sizes_S[0], most, _GRID)
        above_BL = np.stack([self.loss_at(n) for n in labels_L], axis=1) - loss_B[:, None]
        above_L, far_L = shrink * above_BL.mean(0), ALWAYS * np.sqrt(shrink**2 * above_BL.var(0) + extra)
        worse, better = np.flatnonzero(above_L <= far_L), np.flatnonzero(above_L >= -far_L)
        return float(labels_L[worse[0]] if len(worse) else most), float(labels_L[better[-1] if len(better) else 0])


def weights(weight_M: np.ndarray, key: Key, draws: int = DRAWS) -> np.ndarray:
    """Bootstrap weights (B, M) of the test rows, which sum to 1; the first draw is the slice itself."""
    m = len(weight_M)
    count_BM = np.concatenate([np.ones((1, m)), key.numpy().multinomial(m, np.full(m, 1 / m), size=draws - 1)])
    w_BM = count_BM * weight_M
    return np.asarray(w_BM / w_BM.sum(1, keepdims=True))


def curves(sizes_S: np.ndarray, loss_SM: np.ndarray, w_BM: np.ndarray, spread: float, key: Key) -> Curves:
    """A curve and its law for each bootstrap draw.

    Args:
        sizes_S: numbers of labels.
        loss_SM: losses of the test rows at each of them.
        w_BM: weights of the test rows in each draw, from `weights`.
        spread: `RandomCurve.spread`; 0 to leave out the spread between training sets.
        key: source of chance.
    """
    rng = key.fold("curves").numpy()
    shift_B = rng.standard_normal(len(w_BM)) * spread / np.sqrt(loss_SM.shape[1])
    shift_B[0] = 0.0
    loss_BS = np.maximum(w_BM @ loss_SM.T + shift_B[:, None], 0.0)
    loss_BS = np.array([_falling(row) for row in loss_BS])
    a_B, b_B, c_B = _laws(sizes_S.astype(np.float64), loss_BS, rng)
    return Curves(sizes_S.astype(np.float64), loss_BS, a_B, b_B, c_B)


def _falling(loss_S: np.ndarray) -> np.ndarray:
    """The nearest curve that never rises, by pooling adjacent violators."""
    pools: list[list[float]] = []
    for value in loss_S.tolist():
        pools.append([value, 1.0])
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (low, few), (high, more) = pools[-2], pools[-1]
            pools[-2:] = [[(low * few + high * more) / (few + more), few + more]]
    return np.concatenate([np.full(int(count), value) for value, count in pools])


def _laws(sizes_S: np.ndarray, loss_BS: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """(a, b, c) for each draw: a and b by weighted least squares, c drawn by how well it fits (the best for draw 0)."""
    trust_BS = 1 / np.maximum(loss_BS, 0.02 * loss_BS.max() + 1e-12)  # the variance of a count grows with its size
    fits = [_fit(sizes_S**-c, loss_BS, trust_BS) for c in _EXPONENTS]
    error_BE = np.stack([fit[2] for fit in fits], axis=1)
    noise_B = error_BE.min(1) / max(len(sizes_S) - 3, 1) + _MODEL_ERROR**2 * loss_BS.mean(1) + 1e-300
    chance_BE = np.exp(-0.5 * (error_BE - error_BE.min(1, keepdims=True)) / noise_B[:, None])
    chance_BE /= chance_BE.sum(1, keepdims=True)
    pick_B = (chance_BE.cumsum(1) < rng.random(len(loss_BS))[:, None]).sum(1).clip(max=len(_EXPONENTS) - 1)
    pick_B[0] = error_BE[0].argmin()
    rows = np.arange(len(loss_BS))
    a_BE, b_BE = (np.stack([fit[part] for fit in fits], axis=1) for part in (0, 1))
    return a_BE[rows, pick_B], b_BE[rows, pick_B], _EXPONENTS[pick_B]


def _fit(u_S: np.ndarray, loss_BS: np.ndarray, trust_BS: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """a, b >= 0 of loss = a + b u by weighted least squares, and the weighted error, for each draw."""
    total_B = trust_BS.sum(1)
    mean_u, mean_l = (trust_BS * u_S).sum(1) / total_B, (trust_BS * loss_BS).sum(1) / total_B
    cov = (trust_BS * (u_S - mean_u[:, None]) * (loss_BS - mean_l[:, None])).sum(1)
    var = (trust_BS * (u_S - mean_u[:, None]) ** 2).sum(1)
    b_B = np.maximum(cov / np.maximum(var, 1e-300), 0.0)
    a_B = mean_l - b_B * mean_u
    alone_B = (trust_BS * u_S * loss_BS).sum(1) / (trust_BS * u_S**2).sum(1)  # b where a would be below 0
    b_B = np.where(a_B < 0, alone_B, b_B)
    a_B = np.maximum(a_B, 0.0)
    error_B = (trust_BS * (loss_BS - a_B[:, None] - b_B[:, None] * u_S) ** 2).sum(1)
    return a_B, b_B, error_B
