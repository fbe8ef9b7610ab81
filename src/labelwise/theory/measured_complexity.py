"""What "Sample complexity of deep active learning" leaves to be measured: on a pool, next to the theorem's bound.

v is a basis whitened on the pool, (1/n) sum_j v v^T = I (`sample_complexity.functions`), D the pool itself.

    typical labels   the least m at which E |f^ - f*|^2 = epsilon E |y - f*|^2, where the bound asks for 14.1 d/epsilon
    epsilon0         claim 5.3, E_D |h - f_nn|^2 of the h in the span that is nearest to a network f_nn
    K_{alpha,D'}     definition 5.4, max_x D(x) |v(x)|^2 / D'(x): sup_h |h(x)|^2/|alpha(h)|^2 is |v(x)|^2
    beta K           definition 5.5, sum_j beta_j <= 5/4 and beta_j K_{alpha,D_j} <= epsilon/2 at every draw j

The excess of a weighted least-squares fit is exact over the noise, so only draws are simulated. With M = sum_i w_i v_i
v_i^T over the labelled rows and noise of variance s(x), mean 1 over the pool,

    E |f^ - f*|^2 / E |y - f*|^2 = tr(M^-1 (sum_i w_i^2 s_i v_i v_i^T) M^-1)

f* does not matter: the fit is linear in the labels and finds f* where there is no noise. The noise is "even", s = 1, or
"growing", s = |v|^2/d. The slow forms are in `strategies/leverage/reference.py`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from labelwise.arrays import select
from labelwise.errors import ArgumentError
from labelwise.rng import key_of
from labelwise.selection import Strategy
from labelwise.signals.basis import FUNCTIONS
from labelwise.signals.rows import sq_norm
from labelwise.strategies import Bss
from labelwise.strategies.leverage.barrier import Barrier, is_good_output
from labelwise.strategies.leverage.weighted_batch import MIN_LABELS_PER_FUNCTION
from labelwise.theory.sample_complexity import C0, labels_needed

NOISES = ("even", "growing")
STEP = math.sqrt(2)  # from one number of labels to the next
BELOW = 1.3  # the last number of labels is where a first run has an excess of epsilon/BELOW
SINGULAR = 1e-7  # of the pivots of the Gram matrix, from the smallest to the largest

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Typical:
    """Simulated excess errors by number of labels.

    Attributes:
        epsilon: the accuracy.
        labels_T: numbers of labels.
        excess: for each kind of noise, the excess of each run and number of labels (R, T).
        is_cut: whether the time was over before all runs were made.
    """

    epsilon: float
    labels_T: tuple[int, ...]
    excess: dict[str, Tensor]
    is_cut: bool

    @property
    def runs(self) -> int:
        return len(self.excess[NOISES[0]])

    def labels(self, noise: str = "even", run: int | None = None) -> float:
        """The labels at which the mean excess, or that of one run, falls to epsilon.

        Straight lines between the logarithms. At most the first number where that is enough, infinite where the last
        one is not.
        """
        excess_T = (self.excess[noise].mean(0) if run is None else self.excess[noise][run]).tolist()
        if excess_T[0] <= self.epsilon:
            return float(self.labels_T[0])
        for (low, more), (high, less) in pairwise(zip(self.labels_T, excess_T)):
            if less <= self.epsilon:
                share = math.log(more / self.epsilon) / math.log(more / less)
                return low * math.exp(share * math.log(high / low))
        return math.inf


def expected_excess(v_ND: Tensor, ids: Tensor, weights: Tensor, noise_N: Tensor) -> float:
    """The expected excess of a weighted least-squares fit on these rows, for noise of these variances.

    Infinite where the rows do not determine a fit.
    """
    v_MD = v_ND[ids]
    gram_DD = v_MD.T @ (v_MD * weights[:, None])
    root_DD, info = torch.linalg.cholesky_ex(gram_DD)
    pivot_D = root_DD.diagonal()
    if int(info) or float(pivot_D.min()) <= SINGULAR * float(pivot_D.max()):
        return math.inf
    fit_DM = torch.cholesky_solve((v_MD * weights[:, None]).T, root_DD)
    return float(fit_DM.square().sum(0) @ noise_N[ids] / noise_N.mean())


def typical_labels(
    v_ND: Tensor,
    epsilon: float,
    *,
    strategy: Callable[[int], Strategy] = lambda d: Bss(rank=d),
    runs: int = 20,
    seconds: float = math.inf,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Typical:
    """Simulate how many labels give the accuracy epsilon on this pool.

    Args:
        v_ND: the functions of every row, whitened on them.
        epsilon: the accuracy, above 0 and at most 1.
        strategy: what draws, made for d functions.
        runs: how often.
        seconds: after this time no selection is begun. The first run is made up to its end or to here.
        seed: of the draws.
        progress: called with selections made and, once it is known, their number.

    Raises:
        ArgumentError: an argument is out of range, or the pool has fewer than five rows for each function.
    """
    n, d = v_ND.shape
    most = min(n, labels_needed(d, epsilon))
    least = max(MIN_LABELS_PER_FUNCTION * d, math.floor(d / (2 * epsilon)))
    if n < MIN_LABELS_PER_FUNCTION * d:
        raise ArgumentError(
            f"{n:,} rows are too few to simulate on: {d:,} functions need {MIN_LABELS_PER_FUNCTION * d:,}. Take a "
            "lower rank, or more rows"
        )
    if runs < 1:
        raise ArgumentError(f"runs must be at least 1, found {runs}")
    noise = {"even": v_ND.new_ones(n), "growing": sq_norm(v_ND) / d}
    ends, made, ks = time.monotonic() + seconds, 0, [min(least, most)]
    found: list[list[tuple[float, ...]]] = []

    def excess(k: int, run: int) -> tuple[float, ...]:
        picks = select(strategy(d), k, basis=v_ND, seed=key_of(seed).fold("typical", run, k).small())
        ids, weights = torch.from_numpy(picks.ids), torch.from_numpy(picks.weights)
        return tuple(expected_excess(v_ND, ids, weights, noise[kind]) for kind in NOISES)

    first: list[tuple[float, ...]] = []
    while True:  # the first run continues until its excess is below epsilon, and so gives the numbers of labels
        first.append(excess(ks[-1], 0))
        made += 1
        progress(made, 0)
        if max(first[-1]) <= epsilon / BELOW or ks[-1] >= most or time.monotonic() > ends:
            break
        ks.append(min(most, math.ceil(STEP * ks[-1])))
    found.append(first)
    for run in range(1, runs):
        values = []
        for k in ks:
            if time.monotonic() > ends:
                break
            values.append(excess(k, run))
            made += 1
            progress(made, runs * len(ks))
        if len(values) < len(ks):
            break
        found.append(values)
    table_RTK = torch.tensor(found, dtype=torch.float64)
    by_kind = {kind: table_RTK[:, :, place] for place, kind in enumerate(NOISES)}
    return Typical(epsilon, tuple(ks), by_kind, len(found) < runs)


def alpha_condition_number(v_ND: Tensor, law_N: Tensor) -> float:
    """K_{alpha,D'} of drawing rows by `law_N`, which sums to 1: the largest of D |v|^2/D', D uniform on the rows."""
    norm_N = sq_norm(v_ND)
    return float(torch.where(norm_N > 0, norm_N / (len(v_ND) * law_N), 0.0).max())


@dataclass(frozen=True)
class Procedure:
    """Definition 5.5 on one run of the procedure.

    Attributes:
        rows: what was drawn, in order.
        condition_numbers: the smallest and the largest K_{alpha,D_j}.
        sum_beta: at most 5/4 by the definition, and 1 by the procedure.
        worst: the largest beta_j K_{alpha,D_j}.
        limit: epsilon/2, which it may not exceed.
        eigenvalues: of sum_j u_j v_j v_j^T; None before the end.
    """

    rows: tuple[int, ...]
    condition_numbers: tuple[float, float]
    sum_beta: float
    worst: float
    limit: float
    eigenvalues: tuple[float, float] | None

    @property
    def holds(self) -> bool:
        """Whether property 2 held at every draw that was made."""
        return self.sum_beta <= 1.25 and self.worst <= self.limit

    @property
    def good(self) -> bool | None:
        """Whether the output is good; None before the end."""
        return None if self.eigenvalues is None else is_good_output(*self.eigenvalues)


def run_procedure(
    v_ND: Tensor,
    epsilon: float,
    *,
    seconds: float = math.inf,
    seed: int = 0,
    progress: Progress = lambda done, total: None,
) -> Procedure:
    """Run the procedure of lemma 5.8 to its natural end, or as long as there is time, and measure every draw.

    Every E takes a sweep of the pool, since K_{alpha,D_j} is a maximum over all rows.
    """
    d, total = v_ND.shape[1], labels_needed(v_ND.shape[1], epsilon)
    barrier, norm_N = Barrier(d, math.sqrt(epsilon) / C0), sq_norm(v_ND)
    generator, ends = key_of(seed).fold("procedure").generator(), time.monotonic() + seconds
    rows: list[int] = []
    low, high, worst, ended = math.inf, 0.0, 0.0, False
    while not ended and (not rows or time.monotonic() <= ends):
        energy = barrier.energy()
        form_N = energy.forms(v_ND)
        if ended := barrier.is_ended(energy):
            break
        ratio = float((norm_N / form_N).max())  # K_{alpha,D_j}/Phi_j
        low, high = min(low, ratio * energy.phi), max(high, ratio * energy.phi)
        worst = max(worst, ratio * barrier.gamma / barrier.mid)
        picks = torch.multinomial(form_N, barrier.draws_per_energy, replacement=True, generator=generator)
        for pick in picks.tolist():
            if ended := barrier.is_ended(energy):
                break
            barrier.add(energy, v_ND[pick : pick + 1], form_N[pick : pick + 1])
            rows.append(pick)
        progress(len(rows), max(total, len(rows)))
    lam_D = barrier.eigenvalues() / barrier.mid
    return Procedure(
        tuple(rows),
        (low, high),
        barrier.total / barrier.mid,
        worst,
        epsilon / 2,
        (float(lam_D[0]), float(lam_D[-1])) if ended else None,
    )


def two_layer_outputs(
    x_ND: Tensor,
    activation: str = "relu",
    width: int = 256,
    count: int = 20,
    seed: int = 0,
    scale: float | None = None,
) -> Tensor:
    """Outputs (N, count) of networks by definition 3.1 at their first weights: w_r ~ N(0, I), a_r = +-1, |x| <= 1.

    f(x) = (1/sqrt(width)) sum_r a_r phi(w_r . x). Rows are divided by `scale`; None is the length of the longest one.
    """
    if activation not in FUNCTIONS:
        raise ArgumentError(f"activation is one of {', '.join(FUNCTIONS)}; found {activation!r}")
    x_ND = x_ND.double()
    if scale is None:
        x_ND = x_ND / (float(x_ND.abs().max()) or 1.0)  # first, so that no square overflows
        scale = math.sqrt(float(sq_norm(x_ND).max())) or 1.0
    x_ND = x_ND / scale
    outputs = []
    for number in range(count):
        generator = key_of(seed).fold("two-layer", number).generator()
        w_DM = torch.randn(x_ND.shape[1], width, dtype=torch.float64, generator=generator)
        a_M = torch.randint(0, 2, (width,), generator=generator).double() * 2 - 1
        outputs.append(FUNCTIONS[activation][0](x_ND @ w_DM) @ a_M / math.sqrt(width))
    return torch.stack(outputs, 1)


def basis_distance(v_ND: Tensor, outputs_NR: Tensor) -> Tensor:
    """The epsilon0 of claim 5.3 for each column f of outputs: E |h - f|^2 of the nearest h in the span (R,).

    The claim is about all weights of a network; this is about those whose outputs are given.
    """
    if len(v_ND) != len(outputs_NR):
        raise ArgumentError(f"outputs are expected for {len(v_ND):,} rows, found {len(outputs_NR):,}")
    bad_N = ~outputs_NR.isfinite().all(1)
    if bool(bad_N.any()):
        raise ArgumentError(f"outputs of row {int(bad_N.nonzero()[0, 0])} are not finite numbers")
    nearest_NR = v_ND @ (v_ND.T @ outputs_NR / len(v_ND))
    return (outputs_NR - nearest_NR).square().mean(0)
