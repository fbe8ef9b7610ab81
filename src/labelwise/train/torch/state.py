"""The state of a fit of a torch model, as one flat dict of tensors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from labelwise.rng import Key
from labelwise.train.objectives.loss import Target
from labelwise.train.objectives.objective import State


def saved_state(
    model: nn.Module, temperature: float, state: State, target: Target | None, draws: Key
) -> dict[str, Tensor]:
    """All that `TorchLearner.restore` needs, by name."""
    saved = {"temperature": torch.tensor(temperature, dtype=torch.float64), "draws": torch.tensor(draws.seed)}
    if target is not None:
        saved["target"] = torch.tensor([target.mean, target.spread], dtype=torch.float64)
    saved |= {f"model.{name}": value.detach().cpu().clone() for name, value in model.state_dict().items()}
    return saved | {f"objective.{name}": value.detach().cpu().clone() for name, value in state.items()}


def part_of(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """Those whose name begins with `prefix`, without it."""
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
