"""The checks of what TorchLearner is given."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError
from labelwise.pool import Pool


def validation(valid: Any) -> tuple[Pool, Tensor]:
    """The rows to watch, and their labels."""
    if not isinstance(valid, tuple) or len(valid) != 2:
        raise ArgumentError("valid is a pair (inputs or Pool, labels).")
    inputs, labels = valid
    pool = inputs if isinstance(inputs, Pool) else Pool.of(inputs)
    labels = torch.as_tensor(labels)
    if labels.shape != (len(pool),):
        raise LabelError(f"valid: {len(pool)} labels were expected, shape {tuple(labels.shape)} was found.")
    return pool, labels


def check_keep(keep: str, loss: str) -> None:
    """Raise ArgumentError for a rule that is unknown, or that the loss cannot use."""
    if keep not in ("loss", "accuracy", "last"):
        raise ArgumentError(f'keep is "loss", "accuracy" or "last", not {keep!r}.')
    if keep == "accuracy" and loss != "cross_entropy":
        raise ArgumentError('keep="accuracy" needs class labels; for numbers use keep="loss" or keep="last".')


def check_numbers(
    restart: bool | str,
    epochs: int,
    batch: int,
    lr: float,
    patience: int | None,
    holdout: float,
    clamp: float | None = None,
) -> None:
    """Raise ArgumentError for a number that cannot be trained with."""
    if restart not in (True, False, "given"):
        raise ArgumentError(f'restart is True, False or "given", not {restart!r}.')
    for name, value in (("epochs", epochs), ("batch", batch), ("patience", patience)):
        if value is not None and value < 1:
            raise ArgumentError(f"{name} is at least 1, not {value}.")
    if clamp is not None and not clamp > 0:
        raise ArgumentError(f"clamp is above 0, or None, not {clamp}.")
    if not lr > 0:
        raise ArgumentError(f"lr is above 0, not {lr}.")
    if not 0 <= holdout < 1:
        raise ArgumentError(f"holdout is a share from 0 up to below 1, not {holdout}.")
