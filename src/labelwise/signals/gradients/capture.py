"""Capture: which layers have a rule, and the hooks that hand each layer's factors over while the backward runs."""

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

Collect = Callable[[str, Piece], None]  # takes a parameter's name and its piece


@dataclass(frozen=True)
class _Ruled:
    """A layer with a rule, and its trained parameters: name inside the layer -> name in the model."""

    module: nn.Module
    rule: Rule
    names: Mapping[str, str]


@dataclass
class _Pass:
    """One forward and backward: what is collected, and which layers were called."""

    rows: int
    collect: Collect
    called: set[str] = field(default_factory=set)


class Capture:
    """Finds the layers with a rule; hooks them for one pass at a time.

    Attributes:
        trained: names of the parameters that training moves (requires_grad).
        rest: those of them without a rule, each with the reason; the fallback computes them.
    """

    def __init__(self, model: nn.Module):
        self.model = model
        self.trained = tuple(name for name, p in model.named_parameters() if p.requires_grad)
        if not self.trained:
            raise ModelError(
                "the gradient of a row is taken by the parameters that training moves, and this model has none: every "
                "parameter is frozen or there is no parameter. Set requires_grad=True on those that are trained."
            )
        self.without_rule: dict[str, str] = {}
        self._ruled: dict[str, _Ruled] = {}
        self._plan()

    def drop(self, module: str, reason: str) -> None:
        """Leave the parameters of a layer to the fallback from now on."""
        for name in self._ruled.pop(module).names.values():
            self.without_rule[name] = reason

    def drop_parameter(self, name: str, reason: str) -> None:
        """Leave the layer that holds this parameter to the fallback."""
        for module, ruled in list(self._ruled.items()):
            if name in ruled.names.values():
                self.drop(module, reason)
                return
        self.without_rule[name] = reason

    def fallback_reasons(self) -> dict[str, str]:
        """Parameters without a rule, as notes: reason -> their names."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.without_rule.items():
            by_reason.setdefault(reason, []).append(name)
        return {reason: ", ".join(names) for reason, names in by_reason.items()}

    @contextlib.contextmanager
    def hooked(self, rows: int, collect: Collect) -> Iterator[None]:
        """Run a forward and a backward in this block; `collect` gets a piece for each ruled parameter.

        No parameter asks for a gradient meanwhile, so the backward computes those of layer outputs alone. The model
        is as it was after the block, also after an error.
        """
        run = _Pass(rows, collect)
        was = [(parameter, parameter.requires_grad) for parameter in self.model.parameters()]
        handles = []
        fast = torch.backends.mha.get_fastpath_enabled()
        try:
            torch.backends.mha.set_fastpath_enabled(False)  # it would run layers without calling them
            for parameter, _ in was:
                parameter.requires_grad_(False)
            for name, ruled in self._ruled.items():
                hook = functools.partial(_after_forward, run, name, ruled)
                handles.append(ruled.module.register_forward_hook(hook, with_kwargs=True))
            with torch.enable_grad():
                yield
        finally:
            for handle in handles:
                handle.remove()
            for parameter, asked in was:
                parameter.requires_grad_(asked)
            torch.backends.mha.set_fastpath_enabled(fast)

    def _plan(self) -> None:
        names = {id(parameter): name for name, parameter in self.model.named_parameters() if parameter.requires_grad}
        uses: dict[int, int] = {}
        for module in self.model.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    uses[id(parameter)] = uses.get(id(parameter), 0) + 1
        covered: set[str] = set()
        for where, module in self.model.named_modules():
            rule = RULES.get(type(module))
            if rule is None or not rule.fits(module):
                continue
            held = {own: p for own, p in _parameters(module, rule) if id(p) in names}
            if any(uses[id(p)] > 1 for p in held.values()):
                continue  # one of them is in two places
            found = {own: names[id(p)] for own, p in held.items() if names[id(p)] not in covered}
            if found:
                self._ruled[where] = _Ruled(module, rule, found)
                covered |= set(found.values())
        for module in self.model.modules():
            for parameter in module._parameters.values():
                name = "" if parameter is None else names.get(id(parameter), "")
                if name and name not in covered:
                    shared = uses[id(parameter)] > 1
                    self.without_rule[name] = "used twice" if shared else f"no rule for {type(module).__name__}"


def _parameters(module: nn.Module, rule: Rule) -> Iterator[tuple[str, nn.Parameter]]:
    """The parameters a rule knows of, that the module holds as plain parameters."""
    for own in rule.parameters:
        part, _, last = own.rpartition(".")
        parameter = module.get_submodule(part)._parameters.get(last)
        if parameter is not None:
            yield own, parameter


def _after_forward(run: _Pass, name: str, ruled: _Ruled, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
    """Keep the layer's inputs and wait for the gradient of its output."""
    if not torch.is_grad_enabled():
        return None  # inside the model's own no_grad: training does not move this layer
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
        # The graph begins here. A copy, because what follows may change the output in place.
        first = first.detach().requires_grad_().clone()
    kept = tuple(_bare(x) for x in args), {key: _bare(x) for key, x in kwargs.items()}
    versions = _versions(*kept)
    first.register_hook(functools.partial(_after_backward, run, name, ruled, kept, versions))
    return (first, *output[1:]) if isinstance(output, tuple) else first


def _after_backward(run: _Pass, name: str, ruled: _Ruled, kept: Any, versions: list[int], d: Tensor) -> None:
    try:
        if _versions(*kept) != versions:
            raise MisfitError("its input is changed in place after it was used")
        call = Call(kept[0], kept[1], d, run.rows)
        with torch.no_grad():
            for own, piece in ruled.rule.pieces(ruled.module, call, frozenset(ruled.names)).items():
                run.collect(ruled.names[own], piece)
    except MisfitError as misfit:
        misfit.module = name
        raise


def _bare(x: Any) -> Any:
    return x.detach() if isinstance(x, Tensor) else x


def _versions(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[int]:
    return [x._version for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
