"""Joint entropy of the labels of a batch under K draws of a model, and the information that one more row adds.

A configuration is one way to label the rows selected so far. Each of M configurations has its probability `q_M` and
the posterior probability of every draw, `draw_MK`. Given a configuration, a further row has the predictive
probabilities r = draw_MK p_KC, and

    gain = sum_m q_m H[r_m] - mean_k H[p_k]

is the information that its label adds, the difference of the joint entropies with and without the row. It is exact with
all C^t configurations; with M sampled ones it is -sum_mc (j_mc log j_mc) / q_m / M, where j_mc = q_m r_mc, since the
part with log q_m is the same with and without the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.shards.devices import to_device

TABLE_NUMBERS = 1 << 20  # of a table of predictive probabilities, so that it stays in the cache until it is read


def mutual_information(log_NKC: Tensor) -> Tensor:
    """H[mean_k p_k] - mean_k H[p_k] (N,): mutual information of each row's label and the draw, in nats."""
    p_NKC = log_NKC.exp()
    entropy_of_mean_N = _entropy(p_NKC.mean(1))
    # 0 times a large number instead of 0 times infinity
    negative_mean_N = p_NKC.mul_(log_NKC.clamp_min(-1e30)).sum((1, 2)).div_(log_NKC.shape[1])
    return entropy_of_mean_N.add_(negative_mean_N).clamp_min_(0.0)  # below 0 by rounding alone


def probabilities(log_NKC: Tensor) -> Tensor:
    """Probabilities (N, K, C) in float64 that sum to 1, whatever the precision of their logarithms."""
    return log_NKC.double().softmax(2)


@dataclass(frozen=True)
class Joint:
    """Configurations of the labels of the rows selected so far.

    Attributes:
        q_M: the probability of each configuration; they sum to 1.
        draw_MK: the probability of each draw given the configuration.
        owner_M: the draw each configuration was sampled from; None where these are all configurations.
    """

    q_M: Tensor
    draw_MK: Tensor
    owner_M: Tensor | None = None

    @property
    def is_exact(self) -> bool:
        """Whether these are all configurations of positive probability."""
        return self.owner_M is None

    @staticmethod
    def empty(draws: int, device: torch.device) -> Joint:
        """The joint of no rows: one configuration, all draws equally likely."""
        one = torch.ones(1, dtype=torch.float64, device=device)
        return Joint(one, torch.full((1, draws), 1 / draws, dtype=torch.float64, device=device))

    def gain(self, p_NKC: Tensor) -> Tensor:
        """The information that the label of each row adds, in nats.

        Args:
            p_NKC: probabilities (N, K, C) in float64.

        Returns:
            The gains (N,).
        """
        _, draws, classes = p_NKC.shape
        gain_N = -_entropy(p_NKC).mean(1)
        step = max(1, TABLE_NUMBERS // (len(self.q_M) * classes))
        for start in range(0, len(p_NKC), step):
            part_nKC = p_NKC[start : start + step]
            table_Kn = part_nKC.permute(1, 0, 2).reshape(draws, -1)
            entropy_Mn = _entropy((self.draw_MK @ table_Kn).view(len(self.q_M), len(part_nKC), classes))
            gain_N[start : start + step] += self.q_M @ entropy_Mn
        return gain_N

    def coarse(self, groups: int = 256) -> Joint:
        """About `groups` configurations, each a mixture of configurations with similar posteriors.

        Entropy is concave, so the gain of a row by these is an upper bound of its gain.
        """
        count, draws = self.draw_MK.shape
        if count <= 2 * groups:
            return self
        root_MK = self.draw_MK.sqrt().float()
        seeds_GK = root_MK[:: count // groups]  # any will do; groups are by Hellinger distance
        group_M = torch.cat([(part @ seeds_GK.T).argmax(1) for part in root_MK.split(4096)])
        q_G = self.q_M.new_zeros(len(seeds_GK)).index_add_(0, group_M, self.q_M)
        mix_GK = self.draw_MK.new_zeros(len(seeds_GK), draws)
        mix_GK.index_add_(0, group_M, self.q_M[:, None] * self.draw_MK)
        return Joint(q_G, mix_GK / q_G.clamp_min(torch.finfo(q_G.dtype).tiny)[:, None])  # 0 for an empty group

    def with_row(self, p_KC: Tensor, most: int, key: Key) -> Joint:
        """The configurations with one more row of probabilities (K, C), sampled if they were more than `most`."""
        if not self.is_exact:
            return self._extended(p_KC, key)
        if len(self.q_M) * p_KC.shape[1] > most:
            return self._sampled(max(1, most // len(p_KC)), key)._extended(p_KC, key)
        r_MC = self.draw_MK @ p_KC
        possible_MC = r_MC > 0
        q_M = (self.q_M[:, None] * r_MC)[possible_MC]
        draw_MCK = self.draw_MK[:, None, :] * p_KC.T / r_MC.clamp_min(torch.finfo(r_MC.dtype).tiny)[:, :, None]
        return Joint(q_M / q_M.sum(), draw_MCK[possible_MC])

    def _sampled(self, each: int, key: Key) -> Joint:
        """`each` configurations sampled for every draw, by their probability under that draw."""
        draws = self.draw_MK.shape[1]
        under_MK = self.q_M[:, None] * self.draw_MK
        found_M = _sampled_positions(under_MK.T, _stratified(draws, each, key.fold("table"))).reshape(-1)
        owner_M = torch.arange(draws, device=found_M.device).repeat_interleave(each)
        q_M = torch.full_like(found_M, 1, dtype=torch.float64) / len(found_M)
        return Joint(q_M, self.draw_MK[found_M], owner_M)

    def _extended(self, p_KC: Tensor, key: Key) -> Joint:
        """Every configuration with one more label, sampled from its owner."""
        assert self.owner_M is not None, "only sampled configurations have an owner"
        draws = len(p_KC)
        label_M = _sampled_positions(p_KC, _stratified(draws, len(self.q_M) // draws, key.fold("label"))).reshape(-1)
        draw_MK = self.draw_MK * p_KC.T[label_M]
        return Joint(self.q_M, draw_MK / draw_MK.sum(1, keepdim=True), self.owner_M)


def _stratified(draws: int, each: int, key: Key) -> Tensor:
    """Stratified uniform numbers (draws, each), each row in a random order: less noise than independent ones."""
    index = torch.arange(draws * each)
    order = key.fold("order").uniform(index).view(draws, each).argsort(1)
    return (order + key.fold("place").uniform(index).view(draws, each)) / each


def _sampled_positions(weight_KM: Tensor, uniform_KS: Tensor) -> Tensor:
    """Positions (K, S) sampled by the weights of each row; never one of weight 0."""
    cumulative_KM = weight_KM.cumsum(1)
    # Divided by its own last entry the sum ends at exactly 1, at the last position of positive weight.
    return torch.searchsorted(cumulative_KM / cumulative_KM[:, -1:], to_device(uniform_KS, weight_KM.device))


def _entropy(p: Tensor) -> Tensor:
    """Entropy over the last axis, in nats; 0 log 0 is 0."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log_().mul_(p).sum(-1).neg_()
