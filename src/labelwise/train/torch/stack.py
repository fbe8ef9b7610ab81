"""Stack: several networks of one architecture as one network, whose parameters have a first axis over the networks.

A small network keeps a GPU waiting for its next kernel. A stack runs the kernels of all networks at once: batched
products in place of products, and convolutions as batched products over patches, or as grouped convolutions. Networks
do not mix: the output and the gradient of each are those it has alone, up to rounding.

Two layouts of images: "rows" (S, B, H, W, C) for narrow networks, whose patches are small, and "channels"
(B, S C, H, W) for wide ones, which suits grouped convolutions. Vectors are (S, B, F) in both.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelwise.errors import ArgumentError

Layout = Literal["rows", "channels"]
NARROW = 32  # channels: up to this number a convolution runs as a product over patches


class Stack(nn.Module):
    """The networks as one, from (S, B, ...) inputs to (S, B, C) outputs.

    Args:
        models: networks of one architecture; they are not changed.
        layout: of images; None chooses by the width of the convolutions.
        noise: a generator for each network, which dropout draws from; None where there is no dropout.

    Raises:
        ArgumentError: a layer cannot be stacked, or the networks differ.
    """

    def __init__(
        self, models: Sequence[nn.Module], layout: Layout | None = None, noise: Sequence[torch.Generator] | None = None
    ):
        nn.Module.__init__(self)
        if len({signature(model) for model in models}) != 1:
            raise ArgumentError("networks of one architecture were expected, found different ones.")
        self.layout = layout or _layout(models[0])
        self.noise = noise
        self.has_dropout = any(isinstance(module, nn.Dropout) and module.p > 0 for module in models[0].modules())
        self.body = self._swapped(list(models))

    def forward(self, x_SB: Tensor) -> Tensor:
        if x_SB.ndim == 5:
            if self.layout == "rows":
                x_SB = x_SB.permute(0, 1, 3, 4, 2)
            else:
                x_SB = x_SB.transpose(0, 1).flatten(1, 2)
                if x_SB.device.type == "cuda":
                    x_SB = x_SB.contiguous(memory_format=torch.channels_last)
        output: Tensor = self.body(x_SB)
        return output

    def _swapped(self, models: list[nn.Module]) -> nn.Module:
        """The stacked form of these modules, one of each network."""
        first = models[0]
        if type(first) in _LEAVES:
            return _LEAVES[type(first)](models, self)
        if type(first) is not nn.Sequential and not getattr(first, "stackable", False):
            raise ArgumentError(f"{type(first).__name__} cannot be stacked.")
        whole = copy.copy(first)
        whole._modules = {
            name: None if child is None else self._swapped([model._modules[name] for model in models])  # type: ignore[misc]
            for name, child in first._modules.items()
        }
        return whole


def signature(model: nn.Module) -> tuple[Any, ...]:
    """What two networks must have equal to be stacked."""
    layers = tuple((name, type(one), one.extra_repr()) for name, one in model.named_modules())
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return layers, tuple((name, one.shape, one.dtype, str(one.device), one.requires_grad) for name, one in tensors)


def pairs(stack: nn.Module, models: Sequence[nn.Module]) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Each stacked tensor (S, ...) with the tensors of the networks that it stands for."""
    for module in stack.modules():
        if isinstance(module, _Leaf):
            for name, whole in module.stacked():
                yield whole.detach(), [getattr(one, name).detach() for one in module.of]


def _layout(model: nn.Module) -> Layout:
    widths = [one.in_channels for one in model.modules() if isinstance(one, nn.Conv2d)]
    return "rows" if max(widths, default=0) <= NARROW else "channels"


class _Leaf(nn.Module):
    """A layer of all networks. `of` has the layers themselves."""

    def __init__(self, models: list[Any], stack: Stack):
        nn.Module.__init__(self)
        self.of = tuple(models)  # a tuple, so that they are no children
        self.rows = stack.layout == "rows"
        self.first = models[0]
        for name, parameter in models[0]._parameters.items():
            parts = [getattr(one, name) for one in models]
            value = None if parameter is None else nn.Parameter(torch.stack([one.detach() for one in parts]))
            self.register_parameter(name, value)
        for name, buffer in models[0]._buffers.items():
            self.register_buffer(name, None if buffer is None else torch.stack([getattr(one, name) for one in models]))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("first", "of"):  # not a child: its parameters are not those of the stack
            object.__setattr__(self, name, value)
        else:
            nn.Module.__setattr__(self, name, value)

    def stacked(self) -> Iterator[tuple[str, Tensor]]:
        for name, value in (*self._parameters.items(), *self._buffers.items()):
            if value is not None:
                yield name, value


class _Conv(_Leaf):
    weight: Tensor  # (S, O, C, k, k)
    bias: Tensor | None

    def __init__(self, models: list[nn.Conv2d], stack: Stack):
        _Leaf.__init__(self, models, stack)
        one = models[0]
        plain = one.groups == 1 and one.dilation == (1, 1) and one.padding_mode == "zeros"
        if not plain or isinstance(one.padding, str):
            raise ArgumentError("a convolution with groups, dilation or another padding cannot be stacked.")

    def forward(self, x: Tensor) -> Tensor:
        one: nn.Conv2d = self.first
        if not self.rows:
            bias = None if self.bias is None else self.bias.flatten()
            weight = self.weight.flatten(0, 1)
            return F.conv2d(x, weight, bias, one.stride, one.padding, groups=len(self.of))
        assert not isinstance(one.padding, str), "__init__ has looked"
        (down, right), (high, wide), (above, left) = one.stride, one.kernel_size, one.padding
        if above or left:
            x = F.pad(x, (0, 0, left, left, above, above))
        patches = x.unfold(2, high, down).unfold(3, wide, right)  # (S, B, H, W, C, k, k)
        S, B, H, W = patches.shape[:4]
        patch_SNK = patches.permute(0, 1, 2, 3, 5, 6, 4).reshape(S, B * H * W, -1)
        weight_SKO = self.weight.permute(0, 3, 4, 2, 1).reshape(S, patch_SNK.shape[2], -1)
        return _product(patch_SNK, weight_SKO, self.bias).view(S, B, H, W, -1)


class _Linear(_Leaf):
    weight: Tensor  # (S, O, F)
    bias: Tensor | None

    def forward(self, x_SBF: Tensor) -> Tensor:
        return _product(x_SBF, self.weight.transpose(1, 2), self.bias)


def _product(x_SNK: Tensor, weight_SKO: Tensor, bias_SO: Tensor | None) -> Tensor:
    return torch.bmm(x_SNK, weight_SKO) if bias_SO is None else torch.baddbmm(bias_SO[:, None], x_SNK, weight_SKO)


class _Norm(_Leaf):
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(self, models: list[nn.BatchNorm2d], stack: Stack):
        _Leaf.__init__(self, models, stack)
        if models[0].momentum is None or not models[0].track_running_stats:
            raise ArgumentError("batch norm without a momentum or running statistics cannot be stacked.")

    def forward(self, x: Tensor) -> Tensor:
        one: nn.BatchNorm2d = self.first
        S, mean, spread = len(self.of), self.running_mean, self.running_var
        if self.training:
            self.num_batches_tracked.add_(1)
        shape = x.shape
        if self.rows:  # (S, B, H, W, C) to (B, S C, H, W)
            x = x.permute(1, 0, 4, 2, 3).flatten(1, 2)
        scale, shift = (None if value is None else value.flatten() for value in (self.weight, self.bias))
        y = F.batch_norm(x, mean.view(-1), spread.view(-1), scale, shift, self.training, one.momentum or 0.0, one.eps)
        return y.unflatten(1, (S, -1)).permute(1, 0, 3, 4, 2).reshape(shape) if self.rows else y


class _MaxPool(_Leaf):
    def forward(self, x: Tensor) -> Tensor:
        one: nn.MaxPool2d = self.first
        if not self.rows:
            return F.max_pool2d(x, one.kernel_size, one.stride, one.padding, one.dilation, one.ceil_mode)
        S, B = x.shape[:2]
        y = x.flatten(0, 1).permute(0, 3, 1, 2)
        y = F.max_pool2d(y, one.kernel_size, one.stride, one.padding, one.dilation, one.ceil_mode)
        return y.permute(0, 2, 3, 1).unflatten(0, (S, B))


class _MeanPool(_Leaf):
    def __init__(self, models: list[nn.AdaptiveAvgPool2d], stack: Stack):
        _Leaf.__init__(self, models, stack)
        if models[0].output_size not in (1, (1, 1)):
            raise ArgumentError("adaptive pooling to more than one place cannot be stacked.")

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3), keepdim=True)


class _Flatten(_Leaf):
    def __init__(self, models: list[nn.Flatten], stack: Stack):
        _Leaf.__init__(self, models, stack)
        if (models[0].start_dim, models[0].end_dim) != (1, -1):
            raise ArgumentError("nn.Flatten of a part of the axes cannot be stacked.")

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            return x
        if self.rows:
            return x.permute(0, 1, 4, 2, 3).flatten(2)
        return x.unflatten(1, (len(self.of), -1)).transpose(0, 1).flatten(2)


class _Dropout(_Leaf):
    def __init__(self, models: list[nn.Dropout], stack: Stack):
        _Leaf.__init__(self, models, stack)
        self.noise = stack.noise

    def forward(self, x: Tensor) -> Tensor:
        p = self.first.p
        if not self.training or p == 0:
            return x
        if self.noise is None or x.ndim != 3:
            raise ArgumentError("dropout of vectors, with a generator for each network, was expected.")
        keep = torch.stack([torch.empty_like(one).bernoulli_(1 - p, generator=g) for one, g in zip(x, self.noise)])
        return x * keep.div_(1 - p)


class _Elementwise(_Leaf):
    function: Callable[[Tensor], Tensor]

    def forward(self, x: Tensor) -> Tensor:
        return type(self).function(x)


class _Relu(_Elementwise):
    function = staticmethod(F.relu)


class _Tanh(_Elementwise):
    function = staticmethod(torch.tanh)


class _Same(_Leaf):
    def forward(self, x: Tensor) -> Tensor:
        return x


_LEAVES: dict[type[nn.Module], Any] = {
    nn.Conv2d: _Conv,
    nn.Linear: _Linear,
    nn.BatchNorm2d: _Norm,
    nn.MaxPool2d: _MaxPool,
    nn.AdaptiveAvgPool2d: _MeanPool,
    nn.Flatten: _Flatten,
    nn.Dropout: _Dropout,
    nn.ReLU: _Relu,
    nn.Tanh: _Tanh,
    nn.Identity: _Same,
}
