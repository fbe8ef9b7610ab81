"""PerceptronStep: the training step of a small perceptron on a CPU, written out by hand.

Autograd and the optimiser's wrappers spend most of such a step on bookkeeping. Here forward, backward and the update of
Adam call the same kernels in the same order, on the same values: weights, losses and gradients are equal to the bit,
and a step takes a third of the time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from labelwise.train.objectives.loss import CrossEntropy, Loss, SquaredError
from labelwise.train.objectives.objective import Mean, State
from labelwise.train.torch.data import TrainSet
from labelwise.train.torch.options import TrainOptions

_aten = torch.ops.aten
_NO_CLASS = -100  # the label that torch leaves out; no row has it
_UPDATES = {"adam": "_fused_adam_", "adamw": "_fused_adamw_"}
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class PerceptronStep:
    """A gradient step of linear layers with ReLU between them; `of` says whether it can be taken."""

    def __init__(
        self, layers: list[nn.Linear], inputs_ND: Tensor, loss: Loss, options: TrainOptions, optimiser: Optimizer
    ):
        self._weights, self._biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        self._parameters: list[Tensor] = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
        self._inputs_ND = inputs_ND
        self._loss, self._objective = loss, options.objective
        self._update = _Adam(self._parameters, str(options.optimiser), optimiser)
        self._no_weight = inputs_ND.new_zeros(())
        self._shares: dict[int, Tensor] = {}

    @staticmethod
    def of(model: nn.Module, data: TrainSet, options: TrainOptions, optimiser: Optimizer) -> PerceptronStep | None:
        """The step of this training; None if it has to be taken by autograd."""
        layers, inputs = _linear_layers(model), data.inputs.cache
        if (
            not layers
            or not isinstance(inputs, Tensor)
            or inputs.device.type != "cpu"
            or layers[0].weight.device.type != "cpu"
            or inputs.ndim < 2
            or inputs.dtype != layers[0].weight.dtype
            or options.autocast is not None
            or options.output is not None
            or options.augment is not None
            or options.clamp is not None
            or options.optimiser not in _UPDATES
            or not hasattr(torch, _UPDATES[str(options.optimiser)])
            or not optimiser.defaults.get("fused")
            or type(data.loss) not in (CrossEntropy, SquaredError)
            or (layers[-1].out_features == 1) != isinstance(data.loss, SquaredError)  # one logit becomes two
            or torch.is_autocast_enabled("cpu")
            or torch.is_anomaly_enabled()
        ):
            return None
        return PerceptronStep(layers, inputs.flatten(1), data.loss, options, optimiser)

    def __call__(self, index_B: Tensor, label_B: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Take a step; return the loss of each row, what the objective was given, and which rows are right."""
        with torch.no_grad():
            return self._run(index_B, label_B, state)

    def _run(self, index_B: Tensor, label_B: Tensor, state: State) -> tuple[Tensor, Tensor, Tensor]:
        activations, output_BC = self._forward(self._inputs_ND.index_select(0, index_B))
        if type(self._objective) is Mean:
            loss_B, slope_BC = self._mean_slope(output_BC, label_B)
            losses = loss_B
        else:
            loss_B, losses, slope_BC = self._slope(output_BC, label_B, index_B, state)
        gradients = self._backward(activations, slope_BC)
        for parameter, gradient in zip(self._parameters, gradients):
            parameter.grad = gradient
        self._update(gradients)
        return loss_B, losses, self._loss.right(output_BC, label_B)

    def _forward(self, input_BD: Tensor) -> tuple[list[Tensor], Tensor]:
        """The input (B, D') of each layer, and the output of the last one."""
        activations = [input_BD]
        for weight, bias in zip(self._weights[:-1], self._biases):
            activations.append(torch.addmm(bias, activations[-1], weight.t()).relu_())
        return activations, torch.addmm(self._biases[-1], activations[-1], self._weights[-1].t())

    def _mean_slope(self, output_BC: Tensor, label_B: Tensor) -> tuple[Tensor, Tensor]:
        """The loss (B,) of each row, and the gradient (B, C) of their mean with respect to the outputs."""
        rows = len(output_BC)
        if rows not in self._shares:
            self._shares[rows] = torch.ones_like(output_BC[:, 0]) / rows
        if isinstance(self._loss, SquaredError):
            error_B = output_BC[:, 0] - label_B.to(output_BC.dtype)
            return error_B.square(), (self._shares[rows] * (2 * error_B))[:, None]
        log_probs_BC = torch.log_softmax(output_BC, 1)
        loss_B = torch.nn.functional.nll_loss(log_probs_BC, label_B, reduction="none")
        slope_BC = _aten.nll_loss_backward(
            self._shares[rows], log_probs_BC, label_B, None, 0, _NO_CLASS, self._no_weight
        )
        return loss_B, torch._log_softmax_backward_data(slope_BC, log_probs_BC, 1, output_BC.dtype)

    @torch.enable_grad()
    def _slope(
        self, output_BC: Tensor, label_B: Tensor, index_B: Tensor, state: State
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The loss of each row, what the objective is given, and its gradient (B, C) with respect to the outputs."""
        leaf_BC = output_BC.detach().requires_grad_()
        loss_B = self._loss.rows(leaf_BC, label_B)
        losses = self._objective.losses(loss_B, leaf_BC, label_B)
        (slope_BC,) = torch.autograd.grad(self._objective.reduce(losses, index_B, state), leaf_BC)
        return loss_B.detach(), losses.detach(), slope_BC

    def _backward(self, activations: list[Tensor], slope_BC: Tensor) -> list[Tensor]:
        """The gradient of each parameter: weight and bias of the first layer, then those of the next one."""
        gradients: list[Tensor] = []
        for number in reversed(range(len(self._weights))):
            gradients[:0] = [slope_BC.t().mm(activations[number]), slope_BC.sum(0)]
            if number:
                slope_BC = slope_BC.mm(self._weights[number])
                slope_BC = _aten.threshold_backward(slope_BC, activations[number], 0)
        return gradients


class _Adam:
    """The update of `torch.optim.Adam(fused=True)` on the optimiser's own state, which its first step has made."""

    def __init__(self, parameters: list[Tensor], name: str, optimiser: Optimizer):
        self._parameters, self._optimiser = parameters, optimiser
        self._kernel: Any = getattr(torch, _UPDATES[name])
        self._moments: tuple[list[Tensor], list[Tensor]] | None = None
        self._steps: list[Tensor] = []

    def __call__(self, gradients: list[Tensor]) -> None:
        group = self._optimiser.param_groups[0]
        if self._moments is None:
            states = [self._optimiser.state[parameter] for parameter in self._parameters]
            self._moments = [state["exp_avg"] for state in states], [state["exp_avg_sq"] for state in states]
            self._steps = [states[0]["step"]] * len(states)  # all the same number
            for state in states:
                state["step"] = self._steps[0]
        self._steps[0].add_(1)
        self._kernel(
            *(self._parameters, gradients, *self._moments, [], self._steps),
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def _linear_layers(model: nn.Module) -> list[nn.Linear] | None:
    """The linear layers of a plain perceptron, None if the model is anything else."""
    if type(model) is nn.Linear:
        parts: list[nn.Module] = [model]
    elif type(model) is nn.Sequential and not _has_hooks(model):
        parts = list(model)
    else:
        return None
    if parts and type(parts[0]) is nn.Flatten and (parts[0].start_dim, parts[0].end_dim) == (1, -1):
        parts = [] if _has_hooks(parts[0]) else parts[1:]
    layers = [part for part in parts[::2] if type(part) is nn.Linear]
    is_plain = (
        len(parts) % 2 == 1
        and len(layers) == len(parts[::2])
        and all(type(part) is nn.ReLU for part in parts[1::2])
        and not any(_has_hooks(part) for part in parts)
        and all(_is_plain(layer.weight) and _is_plain(layer.bias) for layer in layers)
        and len({id(layer) for layer in layers}) == len(layers)
        and len({parameter for layer in layers for parameter in layer.parameters()}) == 2 * len(layers)
    )
    return layers if is_plain else None


def _has_hooks(module: nn.Module) -> bool:
    return any(getattr(module, name, None) for name in _HOOKS)


def _is_plain(parameter: Any) -> bool:
    """Whether it is trained, and nothing watches its gradient."""
    return type(parameter) is nn.Parameter and parameter.requires_grad and not parameter._backward_hooks
