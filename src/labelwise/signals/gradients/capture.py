"""Capture: find the layers that have a rule, and hook them to collect their factors during the backward pass."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import ModelError
from labelwise.signals.gradients.pieces import Piece
from labelwise.signals.gradients.rules import RULES, Call, MisfitError, Rule
from labelwise.signals.model.isolate import check_differentiable

Collect = Callable[[str, Piece], None]  # takes a parameter's name and its piece


@dataclass(frozen=True)
class _RuledLayer:
    """A layer with a rule, and its trained parameters: name in the layer -> name in the model."""

    module: nn.Module
    rule: Rule
    names: Mapping[str, str]


@dataclass
class _Pass:
    """One forward and backward pass: the collector, and which layers were called."""

    rows: int
    collect: Collect
    called: set[str] = field(default_factory=set)


class Capture:
    """Finds the layers with a rule, and hooks them for one pass at a time.

    Attributes:
        trained: names of the parameters with requires_grad.
        rest: those of them without a rule, each with the reason; the fallback computes them.
    """

    def __init__(self, model: nn.Module):
        check_differentiable(model)
        self.model = model
        self.trained = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        if not self.trained:
            raise ModelError(
                "this model has no trained parameters to take gradients by: every parameter is frozen, or there are "
                "none. Set requires_grad=True on those that are trained."
            )
        self.without_rule: dict[str, str] = {}
        self._layers: dict[str, _RuledLayer] = {}
        self._match_rules()

    def use_fallback(self, module: str, reason: str) -> None:
        """Compute the parameters of this layer by the fallback from now on."""
        for name in self._layers.pop(module).names.values():
            self.without_rule[name] = reason

    def use_fallback_for(self, name: str, reason: str) -> None:
        """Compute the layer of this parameter by the fallback from now on."""
        for module, ruled in list(self._layers.items()):
            if name in ruled.names.values():
                self.use_fallback(module, reason)
                return
        self.without_rule[name] = reason

    def fallback_reasons(self) -> dict[str, str]:
        """Names of the parameters that the fallback computes, by reason."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.without_rule.items():
            by_reason.setdefault(reason, []).append(name)
        return {reason: ", ".join(names) for reason, names in by_reason.items()}

    @contextlib.contextmanager
    def hooks(self, rows: int, collect: Collect) -> Iterator[None]:
        """Context manager for a forward and backward pass: `collect` receives a piece for each parameter with a rule.

        Parameters do not require gradients inside, so the backward pass computes those of layer outputs alone. The
        model is restored after the block, also after an error.
        """
        run = _Pass(rows, collect)
        before = [(parameter, parameter.requires_grad) for parameter in self.model.parameters()]
        handles = []
        fast = torch.backends.mha.get_fastpath_enabled()
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # it bypasses the calls of layers
            for parameter, _ in before:
                parameter.requires_grad_(False)
            for name, ruled in self._layers.items():
                hook = functools.partial(_after_forward, run, name, ruled)
                handles.append(ruled.module.register_forward_hook(hook, with_kwargs=True))
            yield
        finally:
            for handle in handles:
                handle.remove()
            for parameter, requires_grad in before:
                parameter.requires_grad_(requires_grad)
            torch.backends.mha.set_fastpath_enabled(fast)

    def _match_rules(self) -> None:
        names = {id(parameter): name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        uses: dict[int, int] = {}
        for module in self.model.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        covered: set[str] = set()
        for layer, module in self.model.named_modules():
            rule = RULES.get(type(module))
            if rule is None or not rule.fits(module):
                continue
            trained = {local: p for local, p in _parameters(module, rule) if id(p) in names}
            if any(uses[id(p)] > 1 for p in trained.values()):
                continue  # shared with another layer
            found = {local: names[id(p)] for local, p in trained.items() if names[id(p)] not in covered}
            if found:
                self._layers[layer] = _RuledLayer(module, rule, found)
                covered |= set(found.values())
        for module in self.model.modules():
            for parameter in module._parameters.values():
                name = "" if parameter is None else names.get(id(parameter), "")
                if name and name not in covered:
                    shared = uses[id(parameter)] > 1
                    self.without_rule[name] = "used twice" if shared else f"no rule for {type(module).__name__}"


def _parameters(module: nn.Module, rule: Rule) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters of a rule that the module has, by their names in the module."""
    for local in rule.parameters:
        part, _, last = local.rpartition(".")
        parameter = module.get_submodule(part)._parameters.get(last)
        if parameter is not None:
            yield local, parameter


def _after_forward(
    run: _Pass, name: str, ruled: _RuledLayer, module: nn.Module, args: Any, kwargs: Any, output: Any
) -> Any:
    """Store the layer's inputs and hook the gradient of its output."""
    if not torch.is_grad_enabled():
        return None  # inside the model's own no_grad: this layer is not trained
    try:
        if name in run.called:
            raise MisfitError("called more than once in a forward pass")
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(first, Tensor):
            raise MisfitError("its output is not a tensor")
    except MisfitError as misfit:
        misfit.module = name
        raise
    run.called.add(name)
    if not first.requires_grad:
        # The graph starts here. A copy, because a later layer may change the output in place.
        first = first.detach().requires_grad_().clone()
    inputs = tuple(_detached(x) for x in args), {key: _detached(x) for key, x in kwargs.items()}
    versions = _versions(*inputs)
    first.register_hook(functools.partial(_after_backward, run, name, ruled, inputs, versions))
    return (first, *output[1:]) if isinstance(output, tuple) else first


def _after_backward(run: _Pass, name: str, ruled: _RuledLayer, inputs: Any, versions: list[int], d: Tensor) -> None:
    try:
        if _versions(*inputs) != versions:
            raise MisfitError("its input is changed in place after its use")
        call = Call(inputs[0], inputs[1], d, run.rows)
        with torch.no_grad():
            for local, piece in ruled.rule.pieces(ruled.module, call, frozenset(ruled.names)).items():
                run.collect(ruled.names[local], piece)
    except MisfitError as misfit:
        misfit.module = name
        raise


def _detached(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _versions(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int]:
    return [x._version for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
