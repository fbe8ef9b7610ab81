"""MC dropout with masks shared by all rows: a mask is one draw of the network, and every row sees the same ones.

Gal and Ghahramani, ICML 2016, with the masks held fixed as Kirsch et al., NeurIPS 2019, need it. Only the layers
nn.Dropout, nn.Dropout1d, nn.Dropout2d and nn.Dropout3d drop anything; batch norm and all else stay as in prediction.
A mask depends on the draw, on the layer, on how often that layer ran before in the pass, and on the shape of a row.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.rng import Key

# How many axes of a row a mask of this layer has; the axes after them share it. None: all.
_AXES: dict[type[nn.Module], int | None] = {nn.Dropout: None, nn.Dropout1d: 1, nn.Dropout2d: 1, nn.Dropout3d: 1}


def dropout_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of a model that drop something, by name."""
    return {name: module for name, module in model.named_modules() if type(module) in _AXES and _rate(module) > 0}


@dataclass(frozen=True)
class MaskDraws:
    """Draws of a network with dropout: draw k is the network with the masks that follow from `key` and k."""

    key: Key

    def of_model(self, model: nn.Module, logits: Callable[[], Tensor], count: int) -> Tensor:
        layers, drawn = dropout_layers(model), []
        for number in range(count):
            with masked(layers, self.key.fold(number)):
                drawn.append(logits().log_softmax(1))
        return torch.stack(drawn, 1)


@contextmanager
def masked(layers: dict[str, nn.Module], key: Key) -> Iterator[None]:
    """Within, these layers of a model in eval mode apply the masks of `key`, the same ones to every row."""
    ran: Counter[str] = Counter()

    def apply(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
            ran[name] += 1
            return output * _mask(module, output, key.fold(name, ran[name]))

        return hook

    handles = []
    try:
        for name, module in layers.items():
            handles.append(module.register_forward_hook(apply(name)))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _mask(module: nn.Module, x: Tensor, key: Key) -> Tensor:
    """0 for what is dropped and 1 / (1 - rate) for what stays, one mask for all rows of `x`.

    Numbers come row by row of the mask: of two batches of sequences, the longer one begins as the shorter one.
    """
    axes, rate = _AXES[type(module)], _rate(module)
    shape = x.shape[1:] if axes is None else (*x.shape[1 : 1 + axes], *(1 for _ in x.shape[1 + axes :]))
    kept = torch.rand(shape, generator=key.generator()) >= rate
    return kept.to(x.device, x.dtype) / (1 - rate) if rate < 1 else torch.zeros_like(x[:1])


def _rate(module: nn.Module) -> float:
    return float(getattr(module, "p", 0.0))
