"""Fresh models: weights drawn anew from a key, and torch's own generators left as they were."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator

import torch
from torch import nn

from labelwise.errors import ArgumentError, ModelError
from labelwise.rng import Key

Factory = Callable[[], nn.Module]


@contextlib.contextmanager
def chance(key: Key, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's own generators from `key` for the block (layers draw from nothing else), then put them back."""
    cuda = [device] if device is not None and device.type == "cuda" else []
    if device is None and torch.cuda.is_initialized():
        cuda = [torch.device("cuda", torch.cuda.current_device())]
    seed = key.generator().initial_seed()
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)
        for one in cuda:
            with torch.cuda.device(one):
                torch.cuda.manual_seed(seed)
        yield


def made(factory: Factory, key: Key) -> nn.Module:
    """A model from a factory, its weights drawn from `key`."""
    with chance(key):
        model = factory()
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"a factory returns an nn.Module; {factory!r} returned {type(model).__name__}.")
    return model


def redrawn(model: nn.Module, key: Key) -> nn.Module:
    """A copy of `model` whose every parameter is drawn anew from `key` by its layer's `reset_parameters`.

    Inner modules go first, so that a module which initialises its parts in its own `reset_parameters` has the last
    word. Nothing is left half old: a parameter that no such method covers is an error.
    """
    _check_free(model)
    fresh = copy.deepcopy(model)
    device = next((parameter.device for parameter in fresh.parameters()), None)
    with chance(key, device):
        for name, module in reversed(list(fresh.named_modules())):
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
            elif any(parameter is not None for parameter in module._parameters.values()):
                _raise_uncovered(name, module)
    return fresh


def _check_free(model: nn.Module) -> None:
    frozen = next((name for name, parameter in model.named_parameters() if not parameter.requires_grad), None)
    if frozen is not None:
        raise ArgumentError(
            f"restart=True draws every weight anew, but the parameter {frozen!r} is frozen (requires_grad=False), as "
            'pretrained weights are. Pass restart="given" to start each round from the weights of the model as given.'
        )


def _raise_uncovered(name: str, module: nn.Module) -> None:
    held = ", ".join(repr(own) for own, parameter in module._parameters.items() if parameter is not None)
    where = f"module {name!r}" if name else "the model itself"
    raise ModelError(
        f"restart=True draws every weight anew, but {where} ({type(module).__name__}) holds the parameters {held} and "
        "has no reset_parameters(). Pass a factory, a function without arguments that makes the model, or "
        'restart="given" to start each round from the weights of the model as given.'
    )
