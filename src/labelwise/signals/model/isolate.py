"""Isolation: let gradients be taken of a model whose modules, parameters and buffers are left as found."""

from __future__ import annotations

import contextlib
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from labelwise.errors import ModelError

_CONTAINERS = (dict, OrderedDict, list, set)
_CONTAINER_SIZE = 1000  # larger containers of a module, such as vocabularies, are not copied


@contextlib.contextmanager
def isolated(model: nn.Module, copy_buffers: bool = True) -> Iterator[list[tuple[Tensor, int]]]:
    """Context manager: inside, parameters are aliases of the model's; after it the model is as found, also on errors.

    The aliases share memory with the parameters, so requires_grad and .grad can change without a trace. Attributes,
    hooks, buffers and modes of every module are restored, because a forward pass may set them. Compiled modules run
    eagerly, for hooks do not run in compiled code.

    Args:
        model: the model.
        copy_buffers: whether buffers are copies inside, for models that change them in place.

    Yields:
        The copies of buffers, each with its version, which rises when it is changed in place.
    """
    attributes, contents = _attributes_of(model)
    global_state = torch.is_grad_enabled(), torch.backends.mha.get_fastpath_enabled(), _transform_depth()
    try:
        with torch.inference_mode(False), _eager(model):
            yield _replace_tensors(model, copy_buffers)
    finally:
        interrupt: KeyboardInterrupt | None = None
        while True:  # again after an interrupt, which may come at any line
            try:
                _restore(attributes, contents, *global_state)
                break
            except KeyboardInterrupt as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


def remember(model: nn.Module) -> Callable[[], None]:
    """A function that restores the modules as they are now: it removes what a forward pass stores in them.

    A stored tensor, such as a cached bias, belongs to the graph of its own pass, and a second pass would use it.
    """
    attributes, contents = _attributes_of(model)
    return lambda: _restore_modules(attributes, contents)


def call_with(model: nn.Module, parameters: Mapping[str, Tensor], run: Callable[[], Any]) -> Any:
    """`run()` with these tensors in place of the model's parameters of these names, wherever they are used.

    Unlike torch.func.functional_call it restores parameters of modules that are registered under two names. Not a
    context manager: after an interrupt its generator could restore parameters later than `isolated`.
    """
    named = dict(model.named_parameters())
    by_id = {id(named[name]): tensor for name, tensor in parameters.items()}
    before = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if id(parameter) in by_id
    ]
    try:
        for module, name, parameter in before:
            module._parameters[name] = by_id[id(parameter)]  # type: ignore[assignment]
        return run()
    finally:
        for module, name, parameter in before:
            module._parameters[name] = parameter


def check_differentiable(model: nn.Module) -> None:
    """Raise ModelError if gradients by the parameters of this model cannot be taken."""
    for name, module in model.named_modules():
        if isinstance(module, torch.jit.ScriptModule):
            raise ModelError(
                f"gradients of rows need an nn.Module in Python, but {name or 'the model'!r} is a TorchScript module. "
                "Pass the nn.Module that it was made from."
            )
        for local, parameter in module._parameters.items():
            if is_lazy(parameter):
                raise ModelError(
                    f"the parameter {local!r} of the lazy module {name!r} ({type(module).__name__}) has no shape yet. "
                    "Run the model once on a batch, and train it, before gradients are read."
                )
            if parameter is not None and parameter.requires_grad and parameter.is_complex():
                raise ModelError(
                    f"gradients of rows need real parameters, but {local!r} of {name!r} ({type(module).__name__}) is "
                    f"{parameter.dtype}. Freeze it with requires_grad_(False), or store its real and imaginary parts."
                )


def plain_inputs(inputs: Any) -> Any:
    """Inputs without gradients of their own, and without inference tensors, which backward passes refuse."""
    if isinstance(inputs, Tensor):
        return inputs.clone() if inputs.is_inference() else inputs.detach()
    if isinstance(inputs, Mapping):
        return {name: plain_inputs(value) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list) and any(isinstance(value, Tensor | Mapping) for value in inputs):
        return [plain_inputs(value) for value in inputs]
    return inputs


def _restore(
    attributes: list[tuple[nn.Module, dict[str, Any]]], contents: list[Any], grad: bool, fast_path: bool, depth: int
) -> None:
    """Restore the attributes of modules, the contents of containers, and the modes of torch."""
    _restore_modules(attributes, contents)
    torch.set_grad_enabled(grad)
    if torch.backends.mha.get_fastpath_enabled() != fast_path:
        torch.backends.mha.set_fastpath_enabled(fast_path)
    if _transform_depth() > depth:  # an interrupt left torch.func inside a transform
        torch._C._functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)


def _attributes_of(model: nn.Module) -> tuple[list[tuple[nn.Module, dict[str, Any]]], list[Any]]:
    """The attributes of every module, and the containers among them, each with a copy of its content."""
    attributes = [(module, dict(vars(module))) for module in model.modules()]
    contents = [
        (value, value.copy())
        for _, before in attributes
        for value in before.values()
        if type(value) in _CONTAINERS and len(value) <= _CONTAINER_SIZE
    ]
    return attributes, contents


def _restore_modules(attributes: list[tuple[nn.Module, dict[str, Any]]], contents: list[Any]) -> None:
    for module, before in attributes:
        now = vars(module)
        for name in now.keys() - before.keys():
            del now[name]
        now.update(before)
    for container, content in contents:
        if isinstance(container, list):
            container[:] = content
        elif container or content:
            container.clear()
            container.update(content)


def _transform_depth() -> int:
    """How many transforms of torch.func are active."""
    depth: int = torch._C._functorch.get_dynamic_layer_stack_depth()
    return depth


def _replace_tensors(model: nn.Module, copy_buffers: bool) -> list[tuple[Tensor, int]]:
    """Replace parameters by aliases, and buffers by copies."""
    aliases: dict[int, nn.Parameter] = {}
    copies: dict[int, Tensor] = {}
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                if id(parameter) not in aliases:
                    data = parameter.clone() if parameter.is_inference() else parameter
                    aliases[id(parameter)] = nn.Parameter(data.detach(), parameter.requires_grad)
                module._parameters[name] = aliases[id(parameter)]
        for name, buffer in module._buffers.items():
            if buffer is not None and (copy_buffers or buffer.is_inference()):
                if id(buffer) not in copies:
                    copies[id(buffer)] = buffer.detach().clone()
                module._buffers[name] = copies[id(buffer)]
    return [(buffer, buffer._version) for buffer in copies.values()]


def _eager(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Context manager: compiled modules and functions run eagerly."""
    if "torch._dynamo" not in sys.modules:
        return contextlib.nullcontext()  # nothing is compiled
    if hasattr(torch.compiler, "set_stance"):
        stance: contextlib.AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return stance
    if any(hasattr(module, "_orig_mod") or module._compiled_call_impl is not None for module in model.modules()):
        raise ModelError(
            "gradients of rows cannot be read from a compiled model with this version of torch. Pass the model as it "
            "was before torch.compile (model._orig_mod), or install torch 2.6 or newer."
        )
    return contextlib.nullcontext()
