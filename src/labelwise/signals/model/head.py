"""The head of a model: the last linear layer, found by running a batch and seeing whose output the logits are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import ModelError

# How to get the logits out of what a model returns: a function of it, a key or attribute, a place in a tuple.
Output = Callable[[Any], Tensor] | str | int

_OVERRIDES = (
    'Name the layer whose input is the embedding with head="module.name" (a name in model.named_modules()), and say '
    'where the logits are with output="key" or output=function of what the model returns.'
)


@dataclass
class Calls:
    """What hooks saw of some modules during one forward pass."""

    seen: list[tuple[str, Tensor, Any, int]] = field(default_factory=list)  # module, its input, output, version of it

    def of(self, name: str) -> list[Tensor]:
        """The inputs that the module of this name was called with."""
        return [given for module, given, _, _ in self.seen if module == name]


@contextmanager
def watched(modules: Mapping[str, nn.Module]) -> Iterator[Calls]:
    """Note each call of `modules` until the end of the block; the hooks are gone after it, also after an error."""
    calls = Calls()

    def note(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            if given is not None:
                calls.seen.append((name, given, output, output._version if isinstance(output, Tensor) else 0))

        return hook

    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(note(name), with_kwargs=True))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every nn.Linear of the model by name ("" is the model itself)."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def head_of(calls: Calls, logits: Tensor) -> str:
    """The name of the linear layer whose output is `logits`, among `calls` of one forward pass."""
    for name, _, output, version in reversed(calls.seen):
        if not isinstance(output, Tensor) or output._version != version:
            continue  # changed in place after the layer, as nn.ReLU(inplace=True) does: no longer the layer's output
        if output is logits or _same(output, logits):
            return name
    found = ", ".join(dict.fromkeys(repr(name) for name, _, _, _ in calls.seen)) or "none"
    raise ModelError(
        "the logits are not the output of any nn.Linear of this model (linear layers that ran: "
        f"{found}), as with a 1x1 convolution at the end or an operation after the last layer. {_OVERRIDES}"
    )


def named_module(model: nn.Module, name: str) -> nn.Module:
    """The module that the argument head= names."""
    modules = dict(model.named_modules())
    if name not in modules:
        linear = ", ".join(repr(known) for known in linear_layers(model)) or "none"
        raise ModelError(f"head={name!r} is not a module of this model; its linear layers are: {linear}.")
    return modules[name]


def embedding_of(calls: Calls, name: str, module: nn.Module, rows: int) -> Tensor:
    """The flattened input (B, D) of the head in one forward pass of `rows` rows."""
    inputs = calls.of(name)
    if len(inputs) != 1:
        raise ModelError(
            f"the head {name!r} was expected to run once in a forward pass, it ran {len(inputs)} times: there is no "
            f"one embedding of a row. {_OVERRIDES}"
        )
    given = inputs[0]
    if len(given) != rows or given.ndim < 2 or (isinstance(module, nn.Linear) and given.ndim != 2):
        raise ModelError(
            f"the head {name!r} was expected to get one vector for each of the {rows} rows, its input has shape "
            f"{tuple(given.shape)}. Pool a sequence to one vector before the last layer. {_OVERRIDES}"
        )
    return given.flatten(1)


def logits_of(output: Any, where: Output | None, rows: int) -> Tensor:
    """The logits (B, C) in what a model returned; a model with one logit z for a row is read as two, (0, z).

    Softmax of (0, z) is (1 - p, p) with p = sigmoid(z), so a binary model is a model of two classes from here on.
    """
    found = raw_logits(output, where)
    if found.ndim < 2 and found.numel() == rows:
        found = found.reshape(rows, 1)
    elif rows == 1 and found.ndim == 1:
        found = found[None]  # a forward that ends in squeeze() lost the axis of the rows
    if found.ndim != 2 or len(found) != rows or found.shape[1] == 0:
        raise ModelError(
            f"logits of shape ({rows}, classes) were expected from the model, {tuple(found.shape)} was found. "
            "Say where the logits are with output= (a key, or a function of what the model returns)."
        )
    if not found.is_floating_point():
        raise ModelError(f"logits are real numbers; the model returned {found.dtype}. Say where they are with output=.")
    if found.dtype not in (torch.float32, torch.float64):
        found = found.float()
    return torch.cat([torch.zeros_like(found), found], 1) if found.shape[1] == 1 else found


def values_of(output: Any, where: Output | None, rows: int) -> Tensor:
    """The one number (B,) for each row in what a regression model returned."""
    found = raw_logits(output, where)
    if found.numel() != rows or not found.is_floating_point():
        raise ModelError(
            f"one number for each of {rows} rows was expected from a regression model, {tuple(found.shape)} of "
            f"{found.dtype} was found. Give its last layer one output, or say where the numbers are with output=."
        )
    found = found.reshape(rows)
    return found if found.dtype in (torch.float32, torch.float64) else found.float()


def check_not_probabilities(logits_BC: Tensor) -> None:
    """Raise if the model already took the softmax: another one on top would flatten every probability."""
    one = torch.ones((), dtype=logits_BC.dtype, device=logits_BC.device)
    if bool((logits_BC >= 0).all()) and bool(torch.isclose(logits_BC.sum(1), one, atol=1e-5).all()):
        if bool((logits_BC[:, 0] == 0).all()):
            return  # (0, z) of a binary model whose z happen to be 1
        raise ModelError(
            "logits were expected from the model, but its outputs are at least 0 and sum to 1 in every row: they look "
            "like probabilities. Leave out its softmax, or pass output=lambda p: p.log()."
        )


def raw_logits(output: Any, where: Output | None) -> Tensor:
    """The tensor of logits as the model made it."""
    found = _chosen(output) if where is None else _asked(output, where)
    if not isinstance(found, Tensor):
        raise ModelError(
            f"a tensor of logits was expected from the model, {_described(output)} was found. Say where the logits "
            "are with output= (a key, or a function of what the model returns)."
        )
    return found


def _asked(output: Any, where: Output) -> Any:
    if callable(where):
        return where(output)
    try:
        keyed = isinstance(where, int) or isinstance(output, Mapping)
        return output[where] if keyed else getattr(output, str(where))
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ModelError(f"output={where!r} was not found in what the model returned: {_described(output)}.") from None


def _chosen(output: Any) -> Any:
    """The logits in an output of a known form, or None."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        tensors = [value for value in output.values() if isinstance(value, Tensor)]
        return output["logits"] if "logits" in output else tensors[0] if len(tensors) == 1 else None
    if hasattr(output, "logits"):
        return output.logits
    if isinstance(output, tuple | list):
        return next((value for value in output if isinstance(value, Tensor)), None)
    return None


def _described(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"a mapping with keys {', '.join(map(repr, output))}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {', '.join(type(value).__name__ for value in output) or 'nothing'}"
    return f"an object of type {type(output).__name__}"


def _same(output: Tensor, logits: Tensor) -> bool:
    """Whether `logits` holds the numbers of a layer's output, perhaps in another shape or precision."""
    if output.numel() != logits.numel() or output.device != logits.device:
        return False
    return torch.equal(output.detach().reshape(-1).to(logits.dtype), logits.detach().reshape(-1))
