"""Gradients of losses by the outputs of the model, where the backward pass of a row starts."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError

Loss = Literal["cross-entropy", "squared"]


def cotangents(loss: Loss, labels: Tensor | str, outputs_BC: Tensor) -> list[Tensor]:
    """The gradients (B, C) of the loss by the outputs: one, or C of them for labels "spread".

    Cross-entropy: p - e_y. Squared error, half the squared distance: f - y, with y one-hot where labels are classes.
    """
    if loss not in ("cross-entropy", "squared"):
        raise ArgumentError(f'the loss must be "cross-entropy" or "squared", found {loss!r}')
    if isinstance(labels, str):
        if labels == "spread" and loss == "squared":
            return list(torch.eye(outputs_BC.shape[1]).to(outputs_BC)[:, None].expand(-1, len(outputs_BC), -1))
        if labels != "argmax":
            raise ArgumentError(
                f'labels must be a tensor, "argmax", or "spread" with a squared error; found {labels!r}'
            )
        if outputs_BC.shape[1] == 1:
            raise LabelError(
                'a prediction of one number has no most probable class; pass labels="spread" for a regression'
            )
        labels = outputs_BC.argmax(1)
    labels = labels.to(outputs_BC.device)
    if loss == "cross-entropy":
        return [cross_entropy(outputs_BC, labels)]
    return [outputs_BC - targets(labels, outputs_BC)]


def cross_entropy(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """p - e_y. p_y - 1 is computed as minus the sum of the others, which is precise where p_y is near 1."""
    label_B1 = classes(labels_B, logits_BC)[:, None]
    p_BC = logits_BC.softmax(1).scatter(1, label_B1, 0.0)
    return p_BC.scatter(1, label_B1, -p_BC.sum(1, keepdim=True))


def targets(labels: Tensor, outputs_BC: Tensor) -> Tensor:
    """The targets of the outputs: the labels if they are real numbers, else one-hot."""
    if labels.is_floating_point():
        if labels.numel() != outputs_BC.numel():
            raise LabelError(f"expected targets of shape {tuple(outputs_BC.shape)}, found {tuple(labels.shape)}")
        return labels.reshape(outputs_BC.shape).to(outputs_BC)
    if outputs_BC.shape[1] == 1:
        return labels.reshape(outputs_BC.shape).to(outputs_BC)
    return F.one_hot(classes(labels, outputs_BC), outputs_BC.shape[1]).to(outputs_BC)


def classes(labels_B: Tensor, outputs_BC: Tensor) -> Tensor:
    """Labels as class numbers of these outputs; LabelError if they are not."""
    if labels_B.shape != outputs_BC.shape[:1] or labels_B.is_floating_point():
        raise LabelError(
            f"expected one class number for each of {len(outputs_BC)} rows, found {labels_B.dtype} of shape "
            f"{tuple(labels_B.shape)}"
        )
    if len(labels_B) and not 0 <= int(labels_B.min()) <= int(labels_B.max()) < outputs_BC.shape[1]:
        raise LabelError(f"expected labels from 0 to {outputs_BC.shape[1] - 1}, found {labels_B.unique().tolist()}")
    return labels_B.long()
