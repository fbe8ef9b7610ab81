"""The head of a model: the last linear layer, detected as the one whose output the logits are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelwise.errors import ModelError

# Where the logits are in a model's output: a function of it, a key or attribute, an index into a tuple.
Output = Callable[[Any], Tensor] | str | int

_OVERRIDES = (
    'Name the layer whose input is the embedding with head="module.name" (a name in model.named_modules()), and say '
    'where the logits are with output="key" or output=function of the model\'s output.'
)


class Call(NamedTuple):
    """One call of a module."""

    module: str
    input: Tensor
    output: Any
    version: int  # of the output, which rises when it is changed in place


class Calls(list[Call]):
    """Calls of modules during one forward pass, recorded by hooks."""

    def inputs(self, name: str) -> list[Tensor]:
        """The inputs of the module of this name."""
        return [call.input for call in self if call.module == name]


@contextmanager
def record_calls(modules: Mapping[str, nn.Module]) -> Iterator[Calls]:
    """Context manager: record each call of `modules`; the hooks are removed after the block, also after an error."""
    calls = Calls()

    def record(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            given = next((x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)), None)
            if given is not None:
                calls.append(Call(name, given, output, output._version if isinstance(output, Tensor) else 0))

        return hook

    handles = []
    try:
        for name, module in modules.items():
            handles.append(module.register_forward_hook(record(name), with_kwargs=True))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


def linear_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Every nn.Linear of the model by name ("" is the model itself)."""
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def head_of(calls: Calls, logits: Tensor) -> str:
    """The name of the linear layer whose output is `logits`, among `calls` of one forward pass.

    Decoders for sequences, such as GPT2ForSequenceClassification, run it on every token; their logits are its output
    at one token of each row.
    """
    for name, _, output, version in reversed(calls):
        if not isinstance(output, Tensor) or output._version != version:
            continue  # changed in place after the layer, such as by nn.ReLU(inplace=True)
        if output is logits or _same(output, logits) or _token_of(output, logits) is not None:
            return name
    found = ", ".join(dict.fromkeys(repr(call.module) for call in calls)) or "none"
    raise ModelError(
        "the logits are not the output of any nn.Linear of this model (linear layers that ran: "
        f"{found}), as with a 1x1 convolution at the end or an operation after the last layer. {_OVERRIDES}"
    )


def named_module(model: nn.Module, name: str) -> nn.Module:
    """The module that the argument head= names."""
    modules: dict[str, nn.Module] = dict(model.named_modules())
    if name not in modules:
        linear = ", ".join(repr(known) for known in linear_layers(model)) or "none"
        raise ModelError(f"head={name!r} is not a module of this model; its linear layers are: {linear}.")
    return modules[name]


def embedding_of(calls: Calls, name: str, module: nn.Module, rows: int, logits: Tensor | None = None) -> Tensor:
    """The flattened input (B, D) of the head in one forward pass of `rows` rows.

    Where the head ran on every token (B, T, D), its input at the token that the `logits` come from.
    """
    inputs = calls.inputs(name)
    if len(inputs) != 1:
        raise ModelError(
            f"the head {name!r} must run once in a forward pass, but it ran {len(inputs)} times, so a row has no "
            f"single embedding. {_OVERRIDES}"
        )
    given = inputs[0]
    output = next(call.output for call in calls if call.module == name)
    token_B = _token_of(output, logits) if isinstance(module, nn.Linear) and isinstance(output, Tensor) else None
    if token_B is not None and given.ndim == 3:
        return given[torch.arange(rows, device=given.device), token_B]
    if len(given) != rows or given.ndim < 2 or (isinstance(module, nn.Linear) and given.ndim != 2):
        raise ModelError(
            f"the input of the head {name!r} must be one vector for each of the {rows} rows, but its input has shape "
            f"{tuple(given.shape)}. Pool a sequence to one vector before the last layer. {_OVERRIDES}"
        )
    return given.flatten(1)


def logits_of(output: Any, where: Output | None, rows: int) -> Tensor:
    """The logits (B, C) in a model's output; a single logit z of a binary model becomes two, (0, z).

    Softmax of (0, z) is (1 - p, p) with p = sigmoid(z), so a binary model is a model of two classes.
    """
    found = raw_logits(output, where)
    if found.ndim < 2 and found.numel() == rows:
        found = found.reshape(rows, 1)
    elif rows == 1 and found.ndim == 1:
        found = found[None]  # a squeeze() in forward removed the axis of rows
    if found.ndim != 2 or len(found) != rows or found.shape[1] == 0:
        raise ModelError(
            f"logits of shape ({rows}, classes) were expected from the model, found {tuple(found.shape)}. Say where "
            "the logits are with output= (a key, or a function of the model's output)."
        )
    if not found.is_floating_point():
        raise ModelError(f"logits must be real numbers, found {found.dtype}. Say where they are with output=.")
    if found.dtype not in (torch.float32, torch.float64):
        found = found.float()
    return torch.cat([torch.zeros_like(found), found], 1) if found.shape[1] == 1 else found


def values_of(output: Any, where: Output | None, rows: int) -> Tensor:
    """The predictions (B,) in the output of a regression model."""
    found = raw_logits(output, where)
    if found.numel() != rows or not found.is_floating_point():
        raise ModelError(
            f"expected one number for each of {rows} rows from a regression model, found {tuple(found.shape)} of "
            f"{found.dtype}. Give its last layer one output, or say where the numbers are with output=."
        )
    found = found.reshape(rows)
    return found if found.dtype in (torch.float32, torch.float64) else found.float()


def check_not_probabilities(logits_BC: Tensor) -> None:
    """Raise ModelError if the outputs are already probabilities: a second softmax would flatten them."""
    one = torch.ones((), dtype=logits_BC.dtype, device=logits_BC.device)
    if bool((logits_BC >= 0).all()) and bool(torch.isclose(logits_BC.sum(1), one, atol=1e-5).all()):
        if bool((logits_BC[:, 0] == 0).all()):
            return  # (0, z) of a binary model with z = 1
        raise ModelError(
            "expected logits from the model, but its outputs are at least 0 and sum to 1 in every row, so they look "
            "like probabilities. Remove its softmax, or pass output=lambda p: p.log()."
        )


def raw_logits(output: Any, where: Output | None) -> Tensor:
    """The tensor of logits in a model's output, unchanged."""
    found = _find_logits(output) if where is None else _output_at(output, where)
    if not isinstance(found, Tensor):
        raise ModelError(
            f"expected a tensor of logits from the model, found {_describe(output)}. Say where the logits are with "
            "output= (a key, or a function of the model's output)."
        )
    return found


def _output_at(output: Any, where: Output) -> Any:
    if callable(where):
        return where(output)
    try:
        keyed = isinstance(where, int) or isinstance(output, Mapping)
        return output[where] if keyed else getattr(output, str(where))
    except (AttributeError, IndexError, KeyError, TypeError):
        raise ModelError(f"output={where!r} was not found in the model's output, {_describe(output)}") from None


def _find_logits(output: Any) -> Any:
    """The logits in an output of a common form, or None."""
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


def _describe(output: Any) -> str:
    if isinstance(output, Mapping):
        return f"a mapping with keys {', '.join(map(repr, output))}"
    if isinstance(output, tuple | list):
        return f"a {type(output).__name__} of {', '.join(type(value).__name__ for value in output) or 'nothing'}"
    return f"an object of type {type(output).__name__}"


def _token_of(output: Tensor, logits: Tensor | None) -> Tensor | None:
    """The place (B,) in its sequence that each row's logits (B, C) come from, in an output (B, T, C); else None."""
    if logits is None or logits.ndim != 2 or output.ndim != 3 or output.device != logits.device:
        return None
    if (len(output), output.shape[2]) != tuple(logits.shape):
        return None
    is_same_BT = (output.detach().to(logits.dtype) == logits.detach()[:, None]).all(2)
    if not bool(is_same_BT.any(1).all()):
        return None
    return (is_same_BT.long() * torch.arange(output.shape[1], 0, -1, device=output.device)).argmax(1)  # the first


def _same(output: Tensor, logits: Tensor) -> bool:
    """Whether `logits` has the numbers of a layer's output, possibly in another shape or dtype."""
    if output.numel() != logits.numel() or output.device != logits.device:
        return False
    return torch.equal(output.detach().reshape(-1).to(logits.dtype), logits.detach().reshape(-1))
