"""bald, batchbald and acs-fw beside plain forms of the same methods, in one process, on one core.

    python benchmarks/bayes.py            10,000 rows, 100 draws, 10 classes; some minutes
    python benchmarks/bayes.py --quick    500 rows; seconds

Plain batchbald looks at every row for every pick; its time for the whole batch is that of its first picks and, times
the picks that are left, of one with 10,000 sampled configurations. CPU seconds, since machines are shared.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor

import labelwise as lw

CONFIGURATIONS = 10_000


def draws(n: int, count: int, classes: int) -> Tensor:
    """Log probabilities (N, K, C) of a last layer whose weights are drawn, on clustered features."""
    chance = torch.Generator().manual_seed(0)
    centre_CD = torch.randn(classes, 32, generator=chance)
    member_N = torch.randint(classes, (n,), generator=chance)
    h_ND = (centre_CD[member_N] + torch.randn(n, 32, generator=chance)).relu()
    weight_KCD = 0.5 * centre_CD + 0.15 * torch.randn(count, classes, 32, generator=chance)
    return torch.einsum("nd,kcd->nkc", h_ND, weight_KCD).log_softmax(2)


def plain_batchbald_step(p_NKC: Tensor, table_MK: Tensor) -> Tensor:
    """Joint entropies (N,) of every row with configurations of these probabilities under each draw."""
    entropy_N = torch.zeros(len(p_NKC), dtype=torch.float64)
    for start in range(0, len(p_NKC), 16):
        part = p_NKC[start : start + 16]
        joint = torch.einsum("mk,nkc->nmc", table_MK, part) / table_MK.shape[1]
        weight = table_MK.mean(1)[None, :, None]
        entropy_N[start : start + 16] = -(joint * joint.clamp_min(1e-300).log() / weight).sum((1, 2)) / len(table_MK)
    return entropy_N


def plain_acs(log_NKC: Tensor, k: int) -> list[int]:
    """Frank-Wolfe with two products a step, as it is written on paper."""
    q_NC = log_NKC.exp().mean(1)
    bonus_N = 0.7 * torch.special.entr(q_NC).sum(1)
    rows_NK = (torch.einsum("nkc,nc->nk", log_NKC, q_NC) + bonus_N[:, None]) / math.sqrt(log_NKC.shape[1])
    sigma_N = (rows_NK.square().sum(1) + 1e-6).sqrt()
    sigma, target_K, w_N = sigma_N.sum(), rows_NK.sum(0), torch.zeros(len(rows_NK))
    picks: list[int] = []
    while int((w_N > 0).sum()) < k and len(picks) < 20 * k:
        at_K = w_N @ rows_NK
        f = int((rows_NK @ (target_K - at_K) / sigma_N).argmax())
        way_K = sigma / sigma_N[f] * rows_NK[f] - at_K
        gamma = float(((way_K @ (target_K - at_K)) / (way_K @ way_K)).clamp(0, 1))
        w_N *= 1 - gamma
        w_N[f] += gamma * sigma / sigma_N[f]
        picks.append(f)
    return picks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    n, k = (500, 10) if quick else (10_000, 50)
    log_NKC = draws(n, 100, 10)
    for name in ("bald", "batchbald", "acs-fw"):
        began = time.process_time()
        picks = lw.select(name, k, log_probs=log_NKC)
        print(f"{name}: {time.process_time() - began:.2f} s", dict(picks.notes))
    p_NKC = log_NKC.double().exp()
    table_MK = torch.rand(CONFIGURATIONS, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    some = p_NKC[: min(n, 200)]
    began = time.process_time()
    plain_batchbald_step(some, table_MK)
    step = (time.process_time() - began) * n / len(some)
    exact = math.floor(math.log(CONFIGURATIONS, 10))
    print(
        f"plain batchbald: {step:.1f} s a pick with {CONFIGURATIONS} configurations, {step * (k - exact):.0f} s in all"
    )
    began = time.process_time()
    plain_acs(log_NKC, k)
    print(f"plain acs-fw: {time.process_time() - began:.2f} s")


if __name__ == "__main__":
    main()
