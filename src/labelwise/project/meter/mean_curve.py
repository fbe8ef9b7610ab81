"""Learning curves of mean losses: what random labels give, measured on the test slice, and what lies beyond it.

The test slice is a random sample, so training on n of its rows and testing on the others is random labelling with n
labels. Repeated over permutations this gives the mean loss of random labels for every n below the size m of the slice.

Beyond, the curve goes on as  E(n) = a + b n^-c,  a, b >= 0. An estimate comes with draws: each draws the test rows
anew (the same rows for all models, whose losses are compared), adds what another random slice would have taught (the
spread between training sets, by Hoeffding's bound for an average over subsets), and draws the exponent c from how well
each fits, so that a curve which is not known has no narrow future.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelwise.project.loop.model import logistic, ridge
from labelwise.rng import Key

DRAWS = 600
_SIZES = 6
_TURNS = 6  # one row in so many is held out at the largest size
_EXPONENTS = np.geomspace(0.15, 2.0, 16)
_UNLIKE = 0.05  # relative difference that even the best law may have from a true curve


@dataclass(frozen=True)
class Measured:
    """Mean losses of random labels, by number of labels (S,) and test row (S, M); spread is s in s^2/n."""

    sizes_S: np.ndarray
    loss_SM: np.ndarray
    spread: float


def random_curve(x_MD: Tensor, label_M: np.ndarray, classes: int, key: Key) -> Measured:
    """Train on n of the rows and test on the others, for several n and many permutations; classes 0 for numbers."""
    m = len(label_M)
    out = -(-m // _TURNS)
    most = m - out
    least = max(5, min(2 * classes, most // 2))  # before every class was seen the curve has another shape
    sizes_S = np.unique(np.geomspace(least, most, _SIZES).round().astype(int))
    repeats = _TURNS * (2 if m < 250 else 1)
    total_SM, count_SM = np.zeros((len(sizes_S), m)), np.zeros((len(sizes_S), m))
    mean_RS = np.zeros((repeats, len(sizes_S)))
    x_MD = x_MD.double()
    for repeat in range(repeats):
        order = key.fold("order", repeat // _TURNS).numpy().permutation(m)
        order = np.roll(order, (repeat % _TURNS) * out)  # each row is held out at the largest size in one of the turns
        for s, n in enumerate(sizes_S.tolist()):
            inside, outside = order[:n], order[n:]
            loss = _losses(x_MD, label_M, inside, outside, classes)
            total_SM[s, outside] += loss
            count_SM[s, outside] += 1
            mean_RS[repeat, s] = loss.mean()
    loss_SM = total_SM / count_SM
    return Measured(sizes_S, loss_SM, _spread(mean_RS, loss_SM, sizes_S))


def _losses(x_MD: Tensor, label_M: np.ndarray, inside: np.ndarray, outside: np.ndarray, classes: int) -> np.ndarray:
    if classes:
        label = torch.from_numpy(label_M[inside].astype(np.int64))
        weight, bias = logistic(x_MD[inside], label, classes)
        return ((x_MD[outside] @ weight.T + bias).argmax(1).numpy() != label_M[outside]).astype(np.float64)
    weight, bias = ridge(x_MD[inside], torch.from_numpy(label_M[inside]).double())
    return ((x_MD[outside] @ weight[0] + bias[0]).numpy() - label_M[outside]) ** 2


def _spread(mean_RS: np.ndarray, loss_SM: np.ndarray, sizes_S: np.ndarray) -> float:
    """s, where s^2/n is the variance of the mean loss between training sets of n rows."""
    m = loss_SM.shape[1]
    found = []
    for s, n in enumerate(sizes_S.tolist()):
        tested = loss_SM[s].var() / (m - n) * n / m  # what comes from testing on some of the rows
        found.append(max(mean_RS[:, s].var(ddof=1) - tested, 0.0) * n / (1 - n / m))
    return float(np.sqrt(np.median(found)))


@dataclass(frozen=True)
class Drawn:
    """Curves (B,) drawn: measured points, and the law beyond them."""

    sizes_S: np.ndarray
    loss_BS: np.ndarray  # falling
    a_B: np.ndarray
    b_B: np.ndarray
    c_B: np.ndarray

    def at(self, n: float) -> np.ndarray:
        """The mean loss (B,) at n labels."""
        if n <= self.sizes_S[-1]:
            return np.array([np.interp(n, self.sizes_S, row) for row in self.loss_BS])
        return self.a_B + self.b_B * float(n) ** -self.c_B

    def reaches(self, level_B: np.ndarray, most: float) -> np.ndarray:
        """Labels (B,) at which each curve falls to its level; `most` where it does not before."""
        found = np.empty(len(level_B))
        for place, (row, level) in enumerate(zip(self.loss_BS, level_B)):
            if level >= row[-1]:
                found[place] = np.interp(-level, -row, self.sizes_S)
                continue
            gap = level - self.a_B[place]
            ratio = np.log(self.b_B[place] / gap) / self.c_B[place] if gap > 0 and self.b_B[place] > 0 else np.inf
            found[place] = np.exp(min(ratio, np.log(most)))
        return np.clip(found, self.sizes_S[0], most)


def weights(m: int, key: Key, draws: int = DRAWS) -> np.ndarray:
    """Weights (B, M) of test rows drawn anew with replacement; the first draw is the rows themselves."""
    rng = key.numpy()
    drawn = rng.multinomial(m, np.full(m, 1 / m), size=draws - 1) / m
    return np.concatenate([np.full((1, m), 1 / m), drawn])


def curves(sizes_S: np.ndarray, loss_SM: np.ndarray, w_BM: np.ndarray, spread: float, key: Key) -> Drawn:
    """A curve and its law for each draw of the test rows."""
    rng = key.fold("curves").numpy()
    shift_B = rng.standard_normal(len(w_BM)) * spread / np.sqrt(loss_SM.shape[1])
    shift_B[0] = 0.0
    loss_BS = np.maximum(w_BM @ loss_SM.T + shift_B[:, None], 0.0)
    loss_BS = np.array([_falling(row) for row in loss_BS])
    a_B, b_B, c_B = _laws(sizes_S.astype(np.float64), loss_BS, rng)
    return Drawn(sizes_S.astype(np.float64), loss_BS, a_B, b_B, c_B)


def _falling(loss_S: np.ndarray) -> np.ndarray:
    """The nearest curve that never rises (pools of neighbours that do)."""
    pools: list[list[float]] = []
    for value in loss_S.tolist():
        pools.append([value, 1.0])
        while len(pools) > 1 and pools[-2][0] < pools[-1][0]:
            (low, few), (high, more) = pools[-2], pools[-1]
            pools[-2:] = [[(low * few + high * more) / (few + more), few + more]]
    return np.concatenate([np.full(int(count), value) for value, count in pools])


def _laws(sizes_S: np.ndarray, loss_BS: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """(a, b, c) for each draw: a and b by weighted least squares, c drawn by how well it fits; best for the first."""
    trust_BS = 1 / np.maximum(loss_BS, 0.02 * loss_BS.max() + 1e-12)  # counts vary as they are large
    fits = [_fit(sizes_S**-c, loss_BS, trust_BS) for c in _EXPONENTS]
    error_BE = np.stack([fit[2] for fit in fits], axis=1)
    noise_B = error_BE.min(1) / max(len(sizes_S) - 3, 1) + _UNLIKE**2 * loss_BS.mean(1) + 1e-300
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
