"""What half precision does to the picks: `python benchmarks/half.py --out docs/results/half.md`.

Arrays that are given in float16 or bfloat16 stay so, in memory and in mapped files, and are computed with in float32
(sums that decide in float64). What is lost is lost when the numbers are rounded. Here every strategy that takes arrays
chooses from float32 signals of a small network on handwritten digits, and again from the same numbers rounded.

Overlap is the share of picks that both have. The change is that of what the strategy optimises, both batches
measured on the float32 signals, as a share of it; above 0 is better with rounded numbers. Strategies that draw use
the same key in both, so that their picks differ only where rounding moved a draw.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import labelwise as lw

LABELLED, K, MEMBERS, STEPS = 100, 100, 10, 150
WARM = 1.5  # temperature of label_probs
HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}
Arrays = dict[str, Any]


@functools.cache
def signals(seed: int) -> tuple[Arrays, Arrays]:
    """The arrays of the pool and of the labelled rows, in float32, from networks trained on LABELLED digits."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x_ND, y_N = torch.tensor(x[order] / 16, dtype=torch.float32), torch.tensor(y[order])
    nets = [_trained(x_ND[:LABELLED], y_N[:LABELLED], 1000 * seed + member) for member in range(MEMBERS)]
    with torch.no_grad():
        h_ND = nets[0][:2](x_ND)
        logits_NC = nets[0][2](h_ND)
        log_NKC = torch.stack([net(x_ND).log_softmax(1) for net in nets], 1)
    p_NC, q_NC = logits_NC.softmax(1), (logits_NC / WARM).softmax(1)
    a_NC = p_NC - nn.functional.one_hot(p_NC.argmax(1), 10)
    known_CD = (p_NC - nn.functional.one_hot(y_N, 10))[:LABELLED].T @ h_ND[:LABELLED]
    whole: Arrays = {"probs": p_NC, "label_probs": q_NC, "embedding": h_ND, "log_probs": log_NKC}
    whole["grad_sqnorm"] = (a_NC**2).sum(1) * (h_ND**2).sum(1)
    whole["grad_dot"] = ((a_NC @ known_CD) * h_ND).sum(1)
    whole["duals"] = -log_NKC.mean(1).gather(1, y_N[:, None])[:, 0]
    pool = {name: array[LABELLED:] for name, array in whole.items()}
    behind = {name: whole[name][:LABELLED] for name in ("probs", "embedding")} | {"y": y_N[:LABELLED]}
    return pool, behind


def _trained(x_ND: Tensor, y_N: Tensor, seed: int) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimiser = torch.optim.Adam(net.parameters(), 5e-3)
    for _ in range(STEPS):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x_ND), y_N).backward()
        optimiser.step()
    return net


def chosen(name: str, pool: Arrays, behind: Arrays, seed: int) -> lw.Selection:
    """The picks of a strategy."""
    strategy = lw.strategies.get(name)
    asked = _arrays(strategy.needs.pool) or {"probs"}
    if name == "ally":
        return lw.select(name, K, embedding=pool["embedding"], duals=pool["duals"], seed=seed)
    past = {one: array for one, array in behind.items() if one in _arrays(strategy.needs.labelled)}
    return lw.select(name, K, **{one: pool[one] for one in asked}, labelled=past or None, seed=seed)


def _arrays(signals: Any) -> set[str]:
    return {part.array for signal in signals for part in signal.stored()}


# What each strategy optimises, higher is better, of picks made from any numbers, measured on the float32 ones.


def _score(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    rows = len(pool["probs"])
    every = lw.select(name, rows, **{one: pool[one] for one in _arrays(lw.strategies.get(name).needs.pool)})
    score_N = np.empty(rows)
    score_N[every.ids] = every.scores
    return float(score_N[picks.ids].mean())


def _radius(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    h_ND = pool["embedding"].double()
    return -float(torch.cdist(h_ND, torch.cat([behind["embedding"].double(), h_ND[picks.ids]])).amin(1).max())


def _potential(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    p_NC, h_ND = pool["probs"].double(), pool["embedding"].double()
    a_NC = p_NC - nn.functional.one_hot(p_NC.argmax(1), 10)
    g_NM = (a_NC[:, :, None] * h_ND[:, None, :]).flatten(1)
    return -float((torch.cdist(g_NM, g_NM[picks.ids]).amin(1) ** 2).sum())


def _sparse(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    strategy = lw.strategies.get(name)
    assert isinstance(strategy, lw.strategies.Sabal)
    assert strategy.alpha is not None
    assert strategy.beta is not None
    p_NC, q_NC, h_ND = (pool[one].double() for one in ("probs", "label_probs", "embedding"))
    g_NM = ((p_NC - q_NC)[:, :, None] * h_ND[:, None, :]).flatten(1)
    w_N = torch.zeros(len(g_NM), dtype=torch.float64)
    w_N[picks.ids] = torch.from_numpy(picks.weights)
    gap_NC = (1 - 2 * q_NC + (q_NC**2).sum(1, keepdim=True)).clamp(min=0).sqrt()
    sigma_N = (q_NC * gap_NC).sum(1) * h_ND.norm(dim=1) / len(w_N)
    bias = ((w_N @ g_NM) / K - g_NM.mean(0)).square().sum()
    variance = (sigma_N[w_N > 0] ** 2).sum()
    pull = ((w_N[picks.ids] - 1) ** 2).sum()  # of the rows taken; those left out add a constant
    return -float(bias + strategy.beta * pull - strategy.alpha * variance)


def _coreset(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    log_NKC = pool["log_probs"].double()
    q_NC = log_NKC.exp().mean(1)
    entropy_N = torch.special.entr(q_NC).sum(1)
    part_NK = ((log_NKC.clamp(min=np.log(1e-12)) * q_NC[:, None]).sum(2) + entropy_N[:, None]) / MEMBERS**0.5
    w_N = torch.zeros(len(q_NC), dtype=torch.float64)
    w_N[picks.ids] = torch.from_numpy(picks.weights)
    whole_K, ours_K = part_NK.sum(0), w_N @ part_NK
    left_K = whole_K - (whole_K @ ours_K) / (ours_K @ ours_K) * ours_K  # at the best scale of the weights
    return 1 - float(left_K.norm() / whole_K.norm())


def _trace(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    def information(p_NC: Tensor, h_ND: Tensor) -> Tensor:
        curve_NCC = torch.diag_embed(p_NC) - p_NC[:, :, None] * p_NC[:, None, :]
        return torch.einsum("nab,ni,nj->aibj", curve_NCC, h_ND, h_ND).reshape(p_NC.shape[1] * h_ND.shape[1], -1)

    p_NC, h_ND = pool["probs"].double(), pool["embedding"].double()
    old = information(behind["probs"].double(), behind["embedding"].double())
    total = (information(p_NC, h_ND) + old) / (len(p_NC) + LABELLED)
    batch = information(p_NC[picks.ids], h_ND[picks.ids])
    known = LABELLED + K
    design = torch.eye(len(old), dtype=torch.float64) + old / known + batch * K / known
    return -float(torch.linalg.solve(design, total).trace())


def _covered(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    delta = chosen(name, pool, behind, 0).notes["delta"]
    h_ND = pool["embedding"].double()
    near_N = torch.cdist(h_ND, torch.cat([behind["embedding"].double(), h_ND[picks.ids]])).amin(1)
    return float((near_N <= delta).double().mean())


def _dual(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    return float(pool["duals"][picks.ids].mean())


def _told(name: str, pool: Arrays, behind: Arrays, picks: lw.Selection) -> float:
    return float(picks.notes["information"])


OBJECTIVES: dict[str, tuple[str, Callable[[str, Arrays, Arrays, lw.Selection], float]]] = {
    **dict.fromkeys(("confidence", "margin", "entropy", "bald", "dynamical"), ("mean score", _score)),
    "kcenter": ("cover radius", _radius),
    "badge": ("k-means potential", _potential),
    "probcover": ("rows covered", _covered),
    "batchbald": ("information, as the rounded draws have it", _told),
    "acs-fw": ("share of the pool's log-likelihood", _coreset),
    "sabal-greedy": ("f(w) without its constant", _sparse),
    "sabal-iht": ("f(w) without its constant", _sparse),
    "bait": ("Fisher trace", _trace),
    "ally": ("mean dual", _dual),
}


def measured(name: str, half: torch.dtype, seeds: int) -> tuple[float, float, float | None]:
    """Mean and least overlap over the seeds, and the mean change of the objective; None where there is none."""
    overlaps, changes = [], []
    for seed in range(seeds):
        pool, behind = signals(seed)
        rounded, past = (
            {one: _rounded(one, array, half) for one, array in arrays.items()} for arrays in (pool, behind)
        )
        full, other = chosen(name, pool, behind, seed), chosen(name, rounded, past, seed)
        overlaps.append(len(set(full.ids.tolist()) & set(other.ids.tolist())) / K)
        if name in OBJECTIVES:
            of = OBJECTIVES[name][1]
            before, after = of(name, pool, behind, full), of(name, pool, behind, other)
            changes.append((after - before) / abs(before))
    return float(np.mean(overlaps)), min(overlaps), float(np.mean(changes)) if changes else None


def _rounded(name: str, array: Tensor, half: torch.dtype) -> Tensor:
    return array if name == "y" else array.to(half)


def page(seeds: int) -> str:
    """The table of all strategies."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    lines = [
        "# Half precision",
        f"Written by `python benchmarks/half.py --seeds {seeds} --out docs/results/half.md`: {K} picks of 1,697 "
        f"handwritten digits, signals of a network of 64 hidden units trained on {LABELLED} labels, {MEMBERS} such "
        f"networks as draws; means over {seeds} seeds, the least overlap of a seed in brackets. Its docstring says "
        "what is measured.",
        "| strategy | optimises | float16: overlap | change | bfloat16: overlap | change |\n|---|---|---|---|---|---|",
    ]
    for name in lw.strategies.names():
        cells = [name, OBJECTIVES[name][0] if name in OBJECTIVES else ""]
        for half in HALVES.values():
            mean, least, change = measured(name, half, seeds)
            cells += [f"{100 * mean:.0f} % ({100 * least:.0f})", "" if change is None else f"{100 * change:+.2f} %"]
        lines[-1] += "\n| " + " | ".join(cells) + " |"
        print(lines[-1].splitlines()[-1], flush=True)
    return "\n\n".join(lines) + "\n"


def main() -> int:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    text = page(asked.seeds)
    if asked.out is not None:
        asked.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
