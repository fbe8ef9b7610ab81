"""Run a model on a batch of inputs: its mode, device and precision, and the rows of a batch."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import ModelError
from labelwise.signals.model.isolate import call_with

# Rows of one backward pass on the CPU: as fast as more rows, with less memory for activations.
GRADIENT_ROWS = 64
_SHAPES = re.compile(
    r"shapes cannot be multiplied|size mismatch|image size|expected input.* to have|Expected \d?D|normalized_shape"
)
_DTYPES = re.compile(r"should be the same|same dtype|not implemented for|result type|expected scalar type")


@contextlib.contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Context manager: eval mode without gradients; the mode of each module is restored, also after an error.

    no_grad and not inference_mode: tensors that a model caches in a forward pass must stay usable in training.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        with torch.no_grad():
            model.eval()
            yield
    finally:
        for module, training in modes:
            module.training = training


def forward(
    model: nn.Module,
    inputs: Any,
    autocast: torch.dtype | None = None,
    parameters: dict[str, Tensor] | None = None,
) -> Any:
    """The model's output for a batch of inputs, which is moved to the model's device and precision.

    A mapping, such as tokenised text, is passed by name if the names are parameters of the model's forward, and as it
    is if none of them is.
    `parameters` replace the model's own of the same names.
    """
    device, dtype = device_and_dtype(model)
    batch = move_inputs(inputs, device, dtype)
    # Without the argument an autocast around the call stays active.
    precision = contextlib.nullcontext() if autocast is None else torch.autocast(device.type, dtype=autocast)
    with precision:
        by_name = isinstance(batch, Mapping) and _by_name(model, batch)

        def run() -> Any:
            try:
                return model(**batch) if by_name else model(batch)
            except (AttributeError, TypeError, ValueError, RuntimeError) as error:
                refusal = None if parameters is not None or by_name else _refusal(model, batch, error)
                if refusal is None:
                    raise
                raise ModelError(refusal) from error

        return run() if parameters is None else call_with(model, parameters, run)


def device_and_dtype(model: nn.Module) -> tuple[torch.device, torch.dtype | None]:
    """The device of a model and the dtype of its parameters, None if it has no real ones."""
    first: Tensor | None = None
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        first = tensor if first is None else first
        if tensor.is_floating_point():
            return first.device, tensor.dtype
    return (torch.device("cpu") if first is None else first.device), None


def move_inputs(inputs: Any, device: torch.device, dtype: torch.dtype | None) -> Any:
    """Inputs on `device`, real numbers in `dtype`; integers, such as token ids, and texts are unchanged."""
    if isinstance(inputs, Tensor):
        return inputs.to(device, dtype if inputs.is_floating_point() else None)
    if isinstance(inputs, Mapping):
        return {name: move_inputs(value, device, dtype) for name, value in inputs.items()}
    if isinstance(inputs, tuple | list) and any(isinstance(value, Tensor | Mapping) for value in inputs):
        return [move_inputs(value, device, dtype) for value in inputs]
    return inputs


def count_rows(inputs: Any) -> int:
    """The number of rows in a batch of inputs."""
    if isinstance(inputs, Mapping) and inputs:
        return count_rows(next(iter(inputs.values())))
    if isinstance(inputs, tuple | list) and inputs and isinstance(inputs[0], Tensor | Mapping):
        return count_rows(inputs[0])
    if isinstance(inputs, Tensor | tuple | list) and not (isinstance(inputs, Tensor) and inputs.ndim == 0):
        return len(inputs)
    raise ModelError(f"a batch of inputs must be a tensor, texts or a mapping of them, found {type(inputs).__name__}")


def gradient_parts(rows: int, device: torch.device) -> Iterator[slice]:
    """Slices of a batch, one for each backward pass; the whole batch on an accelerator."""
    step = GRADIENT_ROWS if device.type == "cpu" else rows
    for start in range(0, rows, max(1, step)):
        yield slice(start, min(start + step, rows))


def take_rows(inputs: Any, part: slice) -> Any:
    """The rows of a slice of a batch of inputs."""
    if isinstance(inputs, Mapping):
        return {name: take_rows(value, part) for name, value in inputs.items()}
    if isinstance(inputs, list | tuple) and inputs and isinstance(inputs[0], Tensor | Mapping):
        return [take_rows(value, part) for value in inputs]
    return inputs[part]


def _refusal(model: nn.Module, batch: Any, error: Exception) -> str | None:
    """What to say where a model cannot be called with such rows; None where the error is its own."""
    name, is_runtime = type(model).__name__, isinstance(error, RuntimeError | ValueError)
    why = str(error).strip().rstrip(".")
    if isinstance(batch, Mapping) and not is_runtime:
        return (
            f"the rows are dicts of {', '.join(batch)}, which {name} cannot be called with ({type(error).__name__}: "
            f"{why}). Take a model whose forward has parameters of these names, as those of transformers; or give the "
            "pool other inputs by Pool.hugging(..., text=...) or columns=."
        )
    if isinstance(batch, list) and isinstance(batch[0], str) and not is_runtime:
        return (
            f"the rows are texts, which {name} cannot be called with ({type(error).__name__}: {why}). Pass tokenizer= "
            "to Pool.of for a model of transformers, or collate=, a function of a list of texts that returns a batch."
        )
    if not isinstance(batch, Tensor) or not is_runtime:
        return None
    if not batch.is_floating_point() and _DTYPES.search(why):
        return (
            f"the rows are {str(batch.dtype).removeprefix('torch.')}, which {name} cannot be called with: {why}. Make "
            "the pool of real numbers, such as X.astype('float32'); those of images are commonly divided by 255."
        )
    if not _SHAPES.search(why):
        return None
    images = "; Pool.images(size=, transform=) sets those of images" if batch.ndim == 4 else ""
    return (
        f"{name} cannot be called with rows of shape {tuple(batch.shape[1:])}: {why}. Take a model for such rows, or "
        f"give the pool others{images}."
    )


def _by_name(model: nn.Module, batch: Mapping[str, Any]) -> bool:
    """Whether a mapping is passed by name; ModelError if the model takes some of the names only."""
    parameters = inspect.signature(model.forward).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return True
    unknown = [name for name in batch if name not in parameters]
    if not unknown or len(unknown) < len(batch):
        if unknown:
            raise ModelError(
                f"the rows have {', '.join(batch)}, but forward of {type(model).__name__} does not take "
                f"{', '.join(unknown)}; it takes {', '.join(parameters)}. Name the columns that it takes with "
                "Pool.hugging(..., columns=[...]), or leave the others out in collate=."
            )
        return True
    return False
