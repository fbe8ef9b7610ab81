"""Joint labels of a batch under K draws of a model: what one more row would add to what the batch tells of the draws.

A configuration is one way to label the rows taken so far. Kept for each of M of them: its probability `q_M` and the
probability of every draw given that the configuration came true, `draw_MK`. Given a configuration, a further row has
the predictive probabilities r = draw_MK p_KC, and

    gain = sum_m q_m H[r_m] - mean_k H[p_k]

is the information that its label adds. It is the difference of the joint entropies with and without the row: with all
C^t configurations exactly, with M sampled ones as -sum_mc (j_mc log j_mc) / q_m / M does, where j_mc = q_m r_mc, since
the part with log q_m is the same with and without the row.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.rng import Key
from labelwise.shards.devices import sent

GROUPS = 256  # of configurations, for a first bound
PART = 1 << 20  # numbers of a table of predictive probabilities: it is read again at once


def information(log_NKC: Tensor) -> Tensor:
    """Mutual information (N,) of each row's label and the draw, in nats: H[mean_k p_k] - mean_k H[p_k]."""
    p_NKC = log_NKC.exp()
    of_mean_N = _entropy(p_NKC.mean(1))
    # 0 times a large number instead of 0 times infinity
    mean_of_N = p_NKC.mul_(log_NKC.clamp_min(-1e30)).sum((1, 2)).div_(log_NKC.shape[1])
    return of_mean_N.add_(mean_of_N).clamp_min_(0.0)  # below 0 by rounding alone


def probabilities(log_NKC: Tensor) -> Tensor:
    """Probabilities in float64 that sum to one, whatever precision their logs were kept in."""
    return log_NKC.double().softmax(2)


@dataclass(frozen=True)
class Joint:
    """Configurations of the labels of the rows taken so far."""

    q_M: Tensor  # probability of each configuration; they sum to 1
    draw_MK: Tensor  # probability of each draw given the configuration
    owner_M: Tensor | None = None  # the draw each configuration was sampled from; None while all are kept

    @property
    def exact(self) -> bool:
        """Whether these are all configurations that can come true."""
        return self.owner_M is None

    @staticmethod
    def empty(draws: int, device: torch.device) -> Joint:
        """No row taken: one configuration, all draws as likely."""
        one = torch.ones(1, dtype=torch.float64, device=device)
        return Joint(one, torch.full((1, draws), 1 / draws, dtype=torch.float64, device=device))

    def gain(self, p_NKC: Tensor) -> Tensor:
        """What the label of each row (N,) adds, in nats; `p_NKC` as `probabilities` gives them."""
        _, draws, classes = p_NKC.shape
        gain_N = -_entropy(p_NKC).mean(1)
        step = max(1, PART // (len(self.q_M) * classes))
        for start in range(0, len(p_NKC), step):
            part_nKC = p_NKC[start : start + step]
            table_Kn = part_nKC.permute(1, 0, 2).reshape(draws, -1)
            entropy_Mn = _entropy((self.draw_MK @ table_Kn).view(len(self.q_M), len(part_nKC), classes))
            gain_N[start : start + step] += self.q_M @ entropy_Mn
        return gain_N

    def rough(self) -> Joint:
        """Few configurations, each a mix of those that say nearly the same about the draws.

        Entropy is concave: the gain of a row by these is never below its gain by the ones they were mixed from.
        """
        count, draws = self.draw_MK.shape
        if count <= 2 * GROUPS:
            return self
        root_MK = self.draw_MK.sqrt().float()  # only who is near whom
        seeds_GK = root_MK[:: count // GROUPS]  # as good as any: the nearest one by Hellinger distance is taken
        group_M = torch.cat([(part @ seeds_GK.T).argmax(1) for part in root_MK.split(4096)])
        q_G = self.q_M.new_zeros(len(seeds_GK)).index_add_(0, group_M, self.q_M)
        mix_GK = self.draw_MK.new_zeros(len(seeds_GK), draws)
        mix_GK.index_add_(0, group_M, self.q_M[:, None] * self.draw_MK)
        return Joint(q_G, mix_GK / q_G.clamp_min(torch.finfo(q_G.dtype).tiny)[:, None])  # nothing of an empty group

    def take(self, p_KC: Tensor, most: int, key: Key) -> Joint:
        """The configurations after a row with probabilities `p_KC` was taken, sampled if they were more than `most`."""
        if not self.exact:
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
        found_M = _found(under_MK.T, _spread(draws, each, key.fold("table"))).reshape(-1)
        owner_M = torch.arange(draws, device=found_M.device).repeat_interleave(each)
        q_M = torch.full_like(found_M, 1, dtype=torch.float64) / len(found_M)
        return Joint(q_M, self.draw_MK[found_M], owner_M)

    def _extended(self, p_KC: Tensor, key: Key) -> Joint:
        """Every configuration with one label more, drawn from the draw it belongs to."""
        assert self.owner_M is not None, "only sampled configurations are extended by a draw"
        draws = len(p_KC)
        label_M = _found(p_KC, _spread(draws, len(self.q_M) // draws, key.fold("label"))).reshape(-1)
        draw_MK = self.draw_MK * p_KC.T[label_M]
        return Joint(self.q_M, draw_MK / draw_MK.sum(1, keepdim=True), self.owner_M)


def _spread(draws: int, each: int, key: Key) -> Tensor:
    """Uniform numbers (draws, each), each row spread evenly over (0, 1) in an order of its own: less noise."""
    cell = torch.arange(draws * each).view(draws, each)
    order = key.fold("order").uniform(cell.reshape(-1)).view(draws, each).argsort(1)
    return (order + key.fold("place").uniform(cell.reshape(-1)).view(draws, each)) / each


def _found(weight_KM: Tensor, uniform_KS: Tensor) -> Tensor:
    """Places (K, S) drawn by the weights of each row; never one of weight 0."""
    upto_KM = weight_KM.cumsum(1)
    # Divided by its own last entry the sum ends at exactly 1, at the last place of positive weight.
    return torch.searchsorted(upto_KM / upto_KM[:, -1:], sent(uniform_KS, weight_KM.device))


def _entropy(p: Tensor) -> Tensor:
    """Entropy over the last axis, in nats; 0 log 0 is 0."""
    return p.clamp_min(torch.finfo(p.dtype).tiny).log_().mul_(p).sum(-1).neg_()
