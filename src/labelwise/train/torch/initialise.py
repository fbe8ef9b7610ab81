"""Initial weights drawn from a key, with torch's own generators left as they were."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Iterator

import torch
from torch import nn

from labelwise.errors import ArgumentError, ModelError
from labelwise.rng import Key

Factory = Callable[[], nn.Module]


@contextlib.contextmanager
def seeded(key: Key, device: torch.device | None = None) -> Iterator[None]:
    """Seed torch's own generators from `key` for the block, as layers draw from nothing else; then restore them."""
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


def make_model(factory: Factory, key: Key) -> nn.Module:
    """A model from a factory, its weights drawn from `key`."""
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        name = getattr(factory, "__name__", repr(factory))
        raise ArgumentError(
            f"{name} is called without arguments, and cannot be: {error}. Pass a function, such as lambda: {name}(...)."
        ) from None
    except ValueError:  # a builtin without a signature
        pass
    with seeded(key):
        model = factory()
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"a factory returns an nn.Module; {factory!r} returned {type(model).__name__}.")
    return model


def reinitialise(model: nn.Module, key: Key) -> nn.Module:
    """A copy of `model` whose every parameter is drawn from `key` by its layer's `reset_parameters`.

    Inner modules go first, so that a module which initialises its parts in its own `reset_parameters` has the last
    word. A parameter that no such method covers is an error, so that no weight stays as it was.
    """
    _check_trainable(model)
    fresh = copy.deepcopy(model)
    device = next((parameter.device for parameter in fresh.parameters()), None)
    with seeded(key, device):
        for name, module in reversed(list(fresh.named_modules())):
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
            elif any(parameter is not None for parameter in module._parameters.values()):
                _raise_not_covered(name, module)
    return fresh


def _check_trainable(model: nn.Module) -> None:
    frozen = next((name for name, parameter in model.named_parameters() if not parameter.requires_grad), None)
    if frozen is not None:
        raise ArgumentError(
            f"restart=True initialises every weight again, but the parameter {frozen!r} is frozen "
            '(requires_grad=False), as pretrained weights are. Pass restart="given" to start each round from the '
            "weights of the model as given."
        )


def _raise_not_covered(name: str, module: nn.Module) -> None:
    names = ", ".join(repr(name) for name, parameter in module._parameters.items() if parameter is not None)
    where = f"module {name!r}" if name else "the model itself"
    raise ModelError(
        f"restart=True initialises every weight again, but {where} ({type(module).__name__}) holds the parameters "
        f"{names} and has no reset_parameters(). Pass a factory, a function without arguments that makes the model, or "
        'restart="given" to start each round from the weights of the model as given.'
    )
