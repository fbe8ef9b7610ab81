"""Draws of a model's weights, shared by all rows, which give LogProbs.

A draw is one set of weights. Every row of the pool is read with the same K sets, so copies of a row have equal
numbers, and joint probabilities of rows are meaningful. Independent noise for each row, as in local reparametrisation
and plain dropout, would make copies of a row look unrelated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError
from labelwise.io.arguments import check_whole

MOST = 1 << 28  # numbers of all draws of a last layer together


@runtime_checkable
class LastLayerDraws(Protocol):
    """Draws that differ in the last layer only, so that one forward pass is enough for all."""

    def of_embedding(self, h_BD: Tensor) -> Tensor:
        """Log probabilities (B, K, C) of rows with these inputs of the last layer."""


@runtime_checkable
class NetworkDraws(Protocol):
    """Draws that differ inside the network, so that each takes a forward pass."""

    def of_model(self, model: nn.Module, logits: Callable[[], Tensor], count: int) -> Tensor:
        """Log probabilities (B, K, C), K = `count`, from forward passes of `model` by `logits`."""


Draws = LastLayerDraws | NetworkDraws


@dataclass(frozen=True)
class HeadDraws:
    """K last layers: row h has the logits W_k h + b_k under draw k."""

    weight_KOD: Tensor
    bias_KO: Tensor | None  # (K, O), or (1, O) if all draws share it
    part: int = 1 << 22  # numbers of one block of logits

    def on(self, device: torch.device) -> HeadDraws:
        """The same draws on a device, so that they are not copied there with every batch."""
        bias_KO = None if self.bias_KO is None else self.bias_KO.to(device)
        return replace(self, weight_KOD=self.weight_KOD.to(device), bias_KO=bias_KO)

    def of_embedding(self, h_BD: Tensor) -> Tensor:
        weight_KOD = self.weight_KOD.to(h_BD.device)
        draws, outputs, width = weight_KOD.shape
        table_DX = weight_KOD.reshape(draws * outputs, width).T.contiguous()
        parts = []
        for part_BD in h_BD.to(weight_KOD.dtype).split(max(1, self.part // (draws * outputs))):
            z_BKO = (part_BD @ table_DX).view(len(part_BD), draws, outputs)
            if self.bias_KO is not None:
                z_BKO += self.bias_KO.to(z_BKO.device)
            parts.append(log_probs_of(z_BKO))
        return torch.cat(parts)


def log_probs_of(z_BKO: Tensor) -> Tensor:
    """Log probabilities of logits; a single logit z stands for two classes with logits (0, z)."""
    if z_BKO.shape[2] == 1:
        z_BKO = torch.cat([torch.zeros_like(z_BKO), z_BKO], 2)
    return z_BKO.log_softmax(2)


def log_mean(log_BKC: Tensor) -> Tensor:
    """Log of the mean probabilities (B, C) over draws, the posterior predictive."""
    return log_BKC.logsumexp(1) - math.log(log_BKC.shape[1])


def check_draws(draws: int, numbers: int = 1) -> None:
    """Raise ArgumentError unless `draws` draws of a layer with `numbers` weights fit into memory."""
    check_whole("draws", draws, 1)
    if draws * numbers > MOST:
        raise ArgumentError(
            f"{draws} draws of a last layer of {numbers} weights are {draws * numbers} numbers, and at most {MOST} are "
            "stored. Take fewer draws or a narrower last layer."
        )
