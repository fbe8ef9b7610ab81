"""MC dropout with masks shared by all rows: a mask is one draw of the network.

Gal and Ghahramani, ICML 2016, with fixed masks as Kirsch et al., NeurIPS 2019, require. Only the layers nn.Dropout,
nn.Dropout1d, nn.Dropout2d and nn.Dropout3d drop anything; batch norm and all other layers stay in eval mode. A mask
depends on the draw, the layer, the number of earlier calls of that layer in the pass, and the shape of a row.
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

# How many axes of a row the mask of a layer has; later axes share it. None is all.
_AXES: dict[type[nn.Module], int | None] = {nn.Dropout: None, nn.Dropout1d: 1, nn.Dropout2d: 1, nn.Dropout3d: 1}


def dropout_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The dropout layers of a model with a rate above 0, by name."""
    return {name: module for name, module in model.named_modules() if type(module) in _AXES and _rate(module) > 0}


@dataclass(frozen=True)
class MaskDraws:
    """Draws of a network with dropout; the masks of draw k follow from `key` and k."""

    key: Key

    def of_model(self, model: nn.Module, logits: Callable[[], Tensor], count: int) -> Tensor:
        layers, draws = dropout_layers(model), []
        for number in range(count):
            with masked(layers, self.key.fold(number)):
                draws.append(logits().log_softmax(1))
        return torch.stack(draws, 1)


@contextmanager
def masked(layers: dict[str, nn.Module], key: Key) -> Iterator[None]:
    """Context manager: these layers of a model in eval mode apply the masks of `key`, the same to every row."""
    calls: Counter[str] = Counter()

    def apply(name: str) -> Callable[..., Tensor]:
        def hook(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
            calls[name] += 1
            return output * _mask(module, output, key.fold(name, calls[name]))

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
    """One mask for all rows of `x`: 0 for dropped entries, 1 / (1 - rate) for the others.

    Numbers are drawn in row-major order, so the mask of a longer sequence starts with that of a shorter one.
    """
    axes, rate = _AXES[type(module)], _rate(module)
    shape = x.shape[1:] if axes is None else (*x.shape[1 : 1 + axes], *(1 for _ in x.shape[1 + axes :]))
    mask = torch.rand(shape, generator=key.generator()) >= rate
    return mask.to(x.device, x.dtype) / (1 - rate) if rate < 1 else torch.zeros_like(x[:1])


def _rate(module: nn.Module) -> float:
    return float(getattr(module, "p", 0.0))
