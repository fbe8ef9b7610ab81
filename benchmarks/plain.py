"""The yardsticks: each strategy as a good engineer writes it first, in torch, one pass over the embeddings a pick.

No blocks, no lists, no bounds. Gradients are kept as two factors, since building them would not fit in memory.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

TIE = 1e-6
PURITY = 0.95
CLASSES = 10
ITERATIONS = 20
NEIGHBOURS = 20


def badge(k: int, first: int, probs: Tensor, embedding: Tensor) -> Tensor:
    """k-means++ on last-layer gradients, the longest first."""
    chance = torch.Generator().manual_seed(0)
    left_NC = probs.clone()
    left_NC[torch.arange(len(probs)), probs.argmax(1)] -= 1
    norm_N = (left_NC * left_NC).sum(1) * (embedding * embedding).sum(1)
    picks = [int(norm_N.argmax())]
    near_N = torch.full_like(norm_N, torch.inf)
    while len(picks) < k:
        last = picks[-1]
        dist_N = norm_N + norm_N[last] - 2 * (left_NC @ left_NC[last]) * (embedding @ embedding[last])
        near_N = torch.minimum(near_N, dist_N.clamp_(min=0))
        near_N[last] = 0
        picks.append(_draw(near_N, chance))
    return torch.tensor(picks)


def kcenter(k: int, first: int, embedding: Tensor) -> Tensor:
    """Farthest-first traversal from row `first`; distances closer than float32 tells apart go to the first row."""
    norm_N = (embedding * embedding).sum(1)
    picks = [first]
    near_N = torch.full_like(norm_N, torch.inf)
    while len(picks) < k:
        last = picks[-1]
        near_N = torch.minimum(near_N, norm_N + norm_N[last] - 2 * (embedding @ embedding[last]))
        near_N[last] = -torch.inf
        picks.append(int((near_N >= near_N.max() * (1 - TIE)).nonzero()[0]))
    return torch.tensor(picks)


def random(k: int, first: int, probs: Tensor) -> Tensor:
    return torch.randperm(len(probs), generator=torch.Generator().manual_seed(0))[:k]


def confidence(k: int, first: int, probs: Tensor) -> Tensor:
    return probs.amax(1).topk(k, largest=False).indices


def margin(k: int, first: int, probs: Tensor) -> Tensor:
    top_N2 = probs.topk(2, dim=1).values
    return (top_N2[:, 0] - top_N2[:, 1]).topk(k, largest=False).indices


def entropy(k: int, first: int, probs: Tensor) -> Tensor:
    return torch.special.entr(probs).sum(1).topk(k).indices


def typiclust(k: int, first: int, embedding: Tensor) -> Tensor:
    """k clusters, and of each the row with the smallest mean distance to its neighbours in the cluster."""
    cluster_N = _kmeans(embedding, k)
    picks = []
    for number in torch.bincount(cluster_N, minlength=k).argsort(descending=True).tolist():
        members = (cluster_N == number).nonzero()[:, 0]
        if len(members):
            dist_MM = torch.cdist(embedding[members], embedding[members])
            near_MK = dist_MM.topk(min(NEIGHBOURS + 1, len(members)), largest=False).values
            picks.append(int(members[near_MK.mean(1).argmin()]))
    return torch.tensor(picks)


def probcover(k: int, first: int, embedding: Tensor) -> Tensor:
    """The graph of all pairs within delta as an N x N table, then the row that covers most, k times."""
    cluster_N = _kmeans(embedding, CLASSES)
    dist_NN = torch.cdist(embedding, embedding)
    gap_N = dist_NN.masked_fill(cluster_N[:, None] == cluster_N[None, :], torch.inf).amin(1)
    delta = gap_N.quantile(1 - PURITY)
    near_NN = (dist_NN <= delta).float()
    del dist_NN
    free_N = torch.ones(len(embedding))
    picks = []
    for _ in range(k):
        picks.append(int((near_NN @ free_N).argmax()))
        free_N[near_NN[picks[-1]] > 0] = 0
    return torch.tensor(picks)


def _draw(weight_N: Tensor, chance: torch.Generator) -> int:
    """A row drawn by weight; ten times faster than torch.multinomial here, so that plain is not slow for that."""
    total_N = weight_N.double().cumsum(0)
    point = torch.rand(1, generator=chance, dtype=torch.float64) * total_N[-1]
    return min(int(torch.searchsorted(total_N, point, right=True)), len(weight_N) - 1)


def _kmeans(x_ND: Tensor, clusters: int) -> Tensor:
    """Cluster numbers (N,): k-means++ one seed at a time, then Lloyd's iterations."""
    chance = torch.Generator().manual_seed(0)
    norm_N = (x_ND * x_ND).sum(1)
    near_N = torch.ones(len(x_ND))
    seeds: list[int] = []
    for turn in range(clusters):
        seeds.append(_draw(near_N, chance))
        dist_N = (norm_N + norm_N[seeds[-1]] - 2 * (x_ND @ x_ND[seeds[-1]])).clamp_(min=0)
        near_N = torch.minimum(near_N, dist_N) if turn else dist_N
    centre_KD = x_ND[seeds]
    for _ in range(ITERATIONS):
        cluster_N = torch.cdist(x_ND, centre_KD).argmin(1)
        count_K1 = torch.bincount(cluster_N, minlength=clusters)[:, None]
        sum_KD = torch.zeros_like(centre_KD).index_add_(0, cluster_N, x_ND)
        centre_KD = torch.where(count_K1 > 0, sum_KD / count_K1.clamp(min=1), centre_KD)
    return torch.cdist(x_ND, centre_KD).argmin(1)


# `first` is the first pick of ours, so that a greedy method starts at the same row; others do not use it.
ALL: dict[str, Callable[..., Tensor]] = {
    "random": random,
    "confidence": confidence,
    "margin": margin,
    "entropy": entropy,
    "kcenter": kcenter,
    "badge": badge,
    "typiclust": typiclust,
    "probcover": probcover,
}
