"""Norms, inner products and sketches of the gradient of each row's loss by all trained parameters.

A batch takes one forward and one backward pass. The backward pass computes the gradients of layer outputs alone; the
rule of each layer turns them and the layer's input into the requested numbers. Parameters without a rule are computed
by torch.func. Each model is checked once, on two rows, against autograd, to detect rules that do not fit a layer (a
subclass with its own forward, weights that are used elsewhere); such a layer takes the fallback.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelwise.errors import ModelError
from labelwise.rng import Key
from labelwise.signals.gradients import Capture, Tables, Vector
from labelwise.signals.gradients.collect import (
    HALF,
    Collector,
    GradientCollector,
    GradientRequest,
    RuleChecker,
    TotalsCollector,
    at_least_single,
)
from labelwise.signals.gradients.fallback import inner_products, row_gradients
from labelwise.signals.gradients.losses import Loss, cotangents
from labelwise.signals.gradients.rules import MisfitError
from labelwise.signals.model import head
from labelwise.signals.model.forward import (
    count_rows,
    device_and_dtype,
    eval_mode,
    forward,
    gradient_parts,
    move_inputs,
    take_rows,
)
from labelwise.signals.model.head import Output
from labelwise.signals.model.isolate import isolated, plain_inputs, remember

Gradient = dict[str, Tensor]  # parameter's name -> gradient of its shape
Cotangents = Callable[[Tensor], list[Tensor]]  # outputs (B, C) -> gradients of a loss by them


@dataclass(frozen=True)
class GradientResult:
    """The model's output, and a number or a vector for each row; None for what was not requested."""

    output: Any
    calls: head.Calls
    sq_norm: Tensor | None = None  # (B,) float64
    dot: Tensor | None = None  # (B,) float64
    sketch: Tensor | None = None  # (B, W)


class _PassResult(NamedTuple):
    """One pass: the model's output, the calls of recorded modules, and the gradients that the backward started from."""

    output: Any
    calls: head.Calls
    cotangents: list[Tensor]


class RowGradients:
    """Gradients of single rows of a model in eval mode; the model is restored after each call."""

    def __init__(self, model: nn.Module, output: Output | None = None, autocast: torch.dtype | None = None):
        """`output` says where the logits are in the model's output, as for ModelReader."""
        self.model = model
        self.output = output
        self.autocast = autocast
        self.capture = Capture(model)
        self._trained = frozenset(self.capture.trained)
        self._is_verified = False
        self._reset: Callable[[], None] = _nothing  # before each forward pass; made by `_isolated`
        self._copy_buffers = True  # until a pass shows that the model does not change them
        self._sketch_tables: dict[tuple[tuple[int, int], str], Tables] = {}

    def compute(
        self,
        inputs: Any,
        request: GradientRequest,
        loss: Loss = "cross-entropy",
        labels: Tensor | str = "argmax",
        watch: Mapping[str, nn.Module] | None = None,
    ) -> GradientResult:
        """Compute what is requested of each row's gradient of `loss` at these labels.

        Args:
            inputs: a batch of B rows.
            request: what to compute.
            loss: "cross-entropy" or "squared".
            labels: class numbers (B,), targets (B,) or (B, K) of a squared error, "argmax" for the most probable class,
                or "spread" for the mean over labels at distance one from the prediction (of a squared error: the
                squared norm is the sum over outputs of |grad f^k|^2, and the inner product has mean 0).
            watch: modules whose calls in the forward pass are recorded in `calls` of the result.
        """
        collector = TotalsCollector(request, count_rows(inputs), self._tables)
        ran = self._run(inputs, loss, functools.partial(cotangents, loss, labels), collector, watch or {})
        norm_B, dot_B, sketch_BW = collector.totals(device_and_dtype(self.model)[0])
        if isinstance(labels, str) and labels == "spread" and dot_B is not None:
            dot_B = torch.zeros_like(dot_B)
        return GradientResult(ran.output, ran.calls, norm_B, dot_B, sketch_BW)

    def rows(self, inputs: Any, cotangent: Callable[[Tensor], Tensor], loss: Loss = "cross-entropy") -> Tensor:
        """The whole gradients (B, P) of <outputs, cotangent>, for kernels of few rows."""
        collector = GradientCollector(count_rows(inputs))
        self._run(inputs, loss, lambda outputs: [cotangent(outputs)], collector, {})
        parameters = self._parameters()
        return torch.cat([collector.of(name, parameters[name]) for name in self.capture.trained], 1)

    def sum_over(self, batches: Iterable[tuple[Any, Tensor]], loss: Loss = "cross-entropy") -> Gradient:
        """The sum over the rows of batches (inputs, labels) of the gradients of their losses, by parameter."""
        total = {
            name: torch.zeros_like(p, dtype=torch.float64, requires_grad=False)
            for name, p in self._parameters().items()
        }
        for inputs, labels in batches:
            for part in gradient_parts(count_rows(inputs), device_and_dtype(self.model)[0]):
                rows, labels_B = take_rows(inputs, part), labels[part]
                with self._isolated(), torch.enable_grad():
                    outputs_BC = self._outputs(
                        forward(self.model, plain_inputs(rows), self.autocast), len(labels_B), loss
                    )
                    (d_BC,) = cotangents(loss, labels_B, outputs_BC.detach())
                    scale = d_BC.abs().max().clamp_min(torch.finfo(d_BC.dtype).tiny) if self._scales() else 1.0
                    for name, gradient in self._differentiate(outputs_BC, d_BC / scale).items():
                        total[name] += gradient.double() * scale
        return {
            name: g.to(at_least_single(p.dtype)) for (name, p), g in zip(self._parameters().items(), total.values())
        }

    def notes(self) -> dict[str, str]:
        """Names of the parameters that the fallback computes, by reason."""
        return self.capture.fallback_reasons()

    def _run(
        self, inputs: Any, loss: Loss, losses: Cotangents, collector: Collector, watch: Mapping[str, nn.Module]
    ) -> _PassResult:
        """One forward pass and the backward passes; every parameter's piece goes to `collector`."""
        with self._isolated():
            inputs = plain_inputs(inputs)
            self._verify(inputs, loss)
            ran = self._forward_backward(inputs, loss, losses, collector, watch)
            if self.capture.without_rule:
                for d_BC in ran.cotangents:
                    self._fall_back(inputs, loss, d_BC, collector)
        return ran

    def _forward_backward(
        self, inputs: Any, loss: Loss, losses: Cotangents, collector: Collector, watch: Mapping[str, nn.Module]
    ) -> _PassResult:
        rows = count_rows(inputs)
        while True:
            collector.clear()
            self._reset()
            try:
                with self.capture.hooks(rows, collector.add), torch.enable_grad():
                    with head.record_calls(watch) as calls:
                        output = forward(self.model, inputs, self.autocast)
                    outputs_BC = self._outputs(output, rows, loss)
                    given = losses(outputs_BC.detach())
                    if self._scales() and len(given) == 1:
                        scale_B = given[0].abs().amax(1).clamp_min(torch.finfo(given[0].dtype).tiny)
                        given, collector.scale_B = [given[0] / scale_B[:, None]], scale_B
                    if outputs_BC.requires_grad:  # false where no layer has a rule
                        # Not backward(), which would write to .grad of tensors that the model does not register.
                        leaves = _leaves(outputs_BC)
                        for number, d_BC in enumerate(given, 1):
                            d_BC = d_BC.to(outputs_BC.dtype)
                            torch.autograd.grad(outputs_BC, leaves, d_BC, number < len(given), allow_unused=True)
                return _PassResult(output, calls, given)
            except MisfitError as misfit:
                self.capture.use_fallback(misfit.module, misfit.reason)

    def _fall_back(self, inputs: Any, loss: Loss, d_BC: Tensor, collector: Collector) -> None:
        device, dtype = device_and_dtype(self.model)
        batch = move_inputs(inputs, device, dtype)
        named = self._parameters()
        parameters = {name: named[name].detach() for name in self.capture.without_rule}
        run = functools.partial(self._functional, loss)
        half = any(parameter.dtype in HALF for parameter in parameters.values())  # too coarse for a change along it
        if isinstance(collector, TotalsCollector) and collector.only_dot and collector.along is not None and not half:
            collector.add_dot(inner_products(run, parameters, collector.along, batch, d_BC))
            return
        for part, gradients in row_gradients(run, parameters, batch, d_BC):
            for name, g_BP in gradients.items():
                collector.add(name, Vector(g_BP.to(at_least_single(g_BP.dtype))), part)

    @contextlib.contextmanager
    def _isolated(self) -> Iterator[None]:
        """Context manager: the model in eval mode, with aliases of its parameters."""
        with isolated(self.model, self._copy_buffers) as copies, eval_mode(self.model):
            self._reset = remember(self.model)
            yield
            if self._is_verified:
                self._copy_buffers = any(buffer._version != version for buffer, version in copies)

    def _parameters(self) -> Gradient:
        """The trained parameters by name."""
        return {name: p for name, p in self.model.named_parameters() if name in self._trained}

    def _scales(self) -> bool:
        """Whether cotangents are scaled to 1 for the backward pass: small ones vanish in float16."""
        return torch.float16 in (device_and_dtype(self.model)[1], self.autocast)

    def _differentiate(self, outputs_BC: Tensor, d_BC: Tensor) -> Gradient:
        """The gradient of <outputs, d> by each trained parameter that takes part in it, by autograd."""
        if not outputs_BC.requires_grad:
            raise ModelError(
                "the model's outputs do not depend on any trained parameter, as when its forward runs under "
                "torch.no_grad() or detaches its output. Let its forward keep gradients, or train the parameters that "
                "the output uses (requires_grad=True)."
            )
        parameters = self._parameters()
        gradients = torch.autograd.grad(outputs_BC, list(parameters.values()), d_BC, allow_unused=True)
        return {name: g for name, g in zip(parameters, gradients) if g is not None}

    def _functional(self, loss: Loss, parameters: Gradient, batch: Any) -> Tensor:
        self._reset()
        output = forward(self.model, batch, self.autocast, parameters)
        return self._outputs(output, count_rows(batch), loss)

    def _outputs(self, output: Any, rows: int, loss: Loss) -> Tensor:
        """Logits (B, C), or predictions (B, K) of a squared error."""
        if loss == "cross-entropy":
            return head.logits_of(output, self.output, rows)
        found = head.raw_logits(output, self.output).reshape(rows, -1)
        return found if found.element_size() >= 4 else found.float()

    def _tables(self, sketch: tuple[int, int], name: str, device: torch.device) -> Tables:
        """The hash tables of a parameter, cached: they are the same for all rows."""
        if (sketch, name) not in self._sketch_tables:
            shape = self._parameters()[name].shape
            sizes = (shape[0], shape[1:].numel()) if shape else (1, 1)
            width, seed = sketch
            self._sketch_tables[sketch, name] = Tables.of(Key(seed).fold("sketch", name), *sizes, width, device)
        return self._sketch_tables[sketch, name]

    def _verify(self, inputs: Any, loss: Loss) -> None:
        """Check the rules on two rows, once: norm and inner product must agree with autograd's gradient."""
        if self._is_verified:
            return
        device, dtype = device_and_dtype(self.model)
        batch = move_inputs(inputs, device, dtype)
        pair = two_rows(batch)
        with torch.enable_grad():
            outputs_2C = self._outputs(forward(self.model, pair), 2, loss)
            d_2C = torch.cos(torch.arange(outputs_2C.numel(), device=device)).to(outputs_2C).view_as(outputs_2C)
            d_2C[1] = 0
            true = self._differentiate(outputs_2C, d_2C)
        self._reset()
        # With a copy of itself and not alone: some layers refuse a batch of one row.
        again = self._outputs(forward(self.model, two_rows(take_rows(pair, slice(0, 1)))), 2, loss)
        _check_independent(again[0], outputs_2C[0].detach(), 5e-2 if dtype in HALF else 1e-3)
        along = {name: true.get(name, torch.zeros_like(p.detach())) for name, p in self._parameters().items()}
        checker = RuleChecker(along)
        autocast, self.autocast = self.autocast, None
        try:
            self._forward_backward(pair, loss, lambda _: [d_2C], checker, {})
        finally:
            self.autocast = autocast
        for name in checker.wrong(set(self.capture.trained) - set(self.capture.without_rule)):
            self.capture.use_fallback_for(name, "its rule does not give autograd's gradient")
        self._is_verified = True


def _nothing() -> None:
    """Stands for no reset."""


def two_rows(batch: Any) -> Any:
    """The first two rows of a batch; the first one twice if it is the only one."""
    if isinstance(batch, Mapping):
        return {name: two_rows(value) for name, value in batch.items()}
    if isinstance(batch, Tensor):
        return batch[[0, min(1, len(batch) - 1)]]
    if isinstance(batch, list) and batch and isinstance(batch[0], Tensor | Mapping):
        return [two_rows(value) for value in batch]
    return [batch[0], batch[min(1, len(batch) - 1)]]


def _leaves(outputs: Tensor) -> list[Tensor]:
    """The leaves of the graph of a tensor."""
    found, nodes, seen = [], [outputs.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.append(node.variable)
        nodes += [parent for parent, _ in node.next_functions]
    return found


def _check_independent(one_C: Tensor, other_C: Tensor, tolerance: float) -> None:
    """Raise ModelError if a row's outputs depend on other rows, so that it has no gradient of its own."""
    gap, size = float((one_C - other_C).abs().max()), float(other_C.abs().max())
    if gap > tolerance * max(size, 1e-6):
        raise ModelError(
            "the model's outputs for a row depend on the other rows of the batch (with two different ones they differ "
            f"by {gap:.3g}), as with batch norm without running statistics, so a row has no gradient of its own. Use "
            "layers that treat rows independently in eval mode."
        )
