"""Rules of convolutions in one, two and three dimensions, with stride, padding of any mode, dilation and groups.

A convolution is a linear layer on its patches: with patches A (L, I) and output gradients D (L, O) of a row's L
positions the gradient of the weight is D^T A. Where the product is cheaper, patches are built for a few rows at a time.
Where tables of positions by positions are cheaper, they need no patches: the table of patches A A^T is the sum over the
positions of the kernel of shifted parts of the table of the padded input, whose entries are products over channels
alone. The inner product with a gradient G is then the sum of d times the layer's output with G as its weights.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelwise.signals.gradients import winograd
from labelwise.signals.gradients.pieces import (
    Measured,
    Piece,
    Vector,
    concatenate,
    measure_products,
    product_is_cheaper,
    row_slices,
    sq_norm_by_tables,
)
from labelwise.signals.gradients.rules import Call, MisfitError, Rule, register
from labelwise.signals.gradients.sketch import Tables

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d
_PLAIN: dict[int, Callable[..., Tensor]] = {3: F.conv1d, 4: F.conv2d, 5: F.conv3d}


@dataclass(frozen=True)
class Patches(Piece):
    """The gradient of a convolution's weight, from its input x (B, C, ...) and output gradient d (B, O, ...)."""

    x: Tensor
    d: Tensor
    module: Convolution

    @property
    def device(self) -> torch.device:
        return self.d.device

    def measure(self, norm: bool, along: Tensor | None) -> Measured:
        groups, outputs, inputs, places = self._sizes()
        of_input, of_patches = self._table_costs()
        product = product_is_cheaper(places, inputs, outputs, along is not None, min(of_input, of_patches))
        if norm and product:
            numbers = 2 * groups * inputs * (places + outputs)  # twice: patches are written and read
            parts = row_slices(len(self.x), numbers, self.device)
            if places >= self.tuning.tiled_places and winograd.fits(self.module) and groups == 1:
                along_P = None if along is None else along.permute(2, 0, 1, 3).reshape(-1)
                return concatenate([measure_products(self._by_winograd(part), True, along_P) for part in parts])
            return concatenate([measure_products(self._product(part), True, along) for part in parts])
        # For all rows at once: each call of the layer arranges its weights again.
        dot_B = None if along is None else self._dot(along)
        if not norm:
            return None, dot_B
        by_patches = of_patches <= of_input
        numbers = 2 * groups * (inputs * places if by_patches else of_input * groups // self.x.shape[1])
        parts = row_slices(len(self.x), numbers + 2 * groups * places * places, self.device)
        return torch.cat([self._by_tables(part, by_patches) for part in parts]), dot_B

    def rows(self) -> Tensor:
        return self._product(slice(None)).flatten(1)

    def sketch(self, tables: Tables) -> Tensor:
        groups, outputs, inputs, places = self._sizes()
        fourier = outputs * inputs > places * tables.width
        numbers = groups * (inputs * places + (4 * places * tables.width if fourier else 2 * outputs * inputs))
        return torch.cat(
            [self._sketched(part, tables, fourier) for part in row_slices(len(self.x), numbers, self.device)]
        )

    def _sketched(self, part: slice, tables: Tables, fourier: bool) -> Tensor:
        groups, outputs, inputs, places = self._sizes()
        a_NIT, d_NOT = self._factors(part)
        if not fourier:
            return tables.whole((d_NOT @ a_NIT.mT).reshape(len(a_NIT) // groups, -1))
        a_BGIT, d_BGOT = a_NIT.reshape(-1, groups, inputs, places), d_NOT.reshape(-1, groups, outputs, places)
        of_groups = [
            tables.part(slice(g * outputs, (g + 1) * outputs)).outer(a_BGIT[:, g].mT, d_BGOT[:, g].mT)
            for g in range(groups)
        ]
        return torch.stack(of_groups).sum(0)

    def _sizes(self) -> tuple[int, int, int, int]:
        """Groups; outputs and inputs (channels times kernel) of one group; positions."""
        groups = self.module.groups
        inputs = self.x.shape[1] // groups * math.prod(self.module.kernel_size)
        return groups, self.d.shape[1] // groups, inputs, self.d[0, 0].numel()

    def _factors(self, part: slice) -> tuple[Tensor, Tensor]:
        """Patches (rows x groups, I, T) and output gradients (rows x groups, O, T)."""
        _, outputs, inputs, places = self._sizes()
        patches = _patches(_padded(self.x[part], self.module), self.d.shape[2:], self.module)
        return patches.reshape(-1, inputs, places), self.d[part].reshape(-1, outputs, places)

    def _product(self, part: slice) -> Tensor:
        """The gradients (rows, groups x O, I) of some rows."""
        groups, outputs, inputs, _ = self._sizes()
        a_NIT, d_NOT = self._factors(part)
        return (d_NOT @ a_NIT.mT).reshape(-1, groups * outputs, inputs)

    def _by_winograd(self, part: slice) -> Tensor:
        """The gradients of some rows, with the height of the kernel as the first axis."""
        assert isinstance(self.module, nn.Conv2d)
        return winograd.kernel_gradients(_padded(self.x[part], self.module), self.d[part], self.module)

    def _table_costs(self) -> tuple[int, int]:
        """Multiplications for the table of patches of one group: by that of the padded input, and by patches."""
        sides = [sum(pair) for pair in zip(*[iter(self.module._reversed_padding_repeated_twice)] * 2)][::-1]
        spots = math.prod(size + margin for size, margin in zip(self.x.shape[2:], sides))
        _, _, inputs, places = self._sizes()
        return spots * spots * (self.x.shape[1] // self.module.groups), places * places * inputs

    def _by_tables(self, part: slice, by_patches: bool) -> Tensor:
        groups, outputs, _, places = self._sizes()
        if by_patches:
            norm_N = sq_norm_by_tables(*self._factors(part))
        else:
            d_NOT = self.d[part].reshape(-1, outputs, places)
            norm_N = _table_of_patches(_padded(self.x[part], self.module), self.d.shape[2:], self.module)
            norm_N = norm_N.mul_(d_NOT.mT @ d_NOT).sum((1, 2)).clamp_min_(0)
        return norm_N.reshape(-1, groups).sum(1)

    def _dot(self, along: Tensor) -> Tensor:
        module = self.module
        plain = _PLAIN[self.x.ndim]
        zeros = module.padding_mode == "zeros"  # other paddings are applied before the convolution
        x, padding = (self.x, module.padding) if zeros else (_padded(self.x, module), 0)
        outputs = plain(x, along, None, module.stride, padding, module.dilation, module.groups)
        return outputs.mul_(self.d).flatten(1).sum(1)


def _patches(x: Tensor, out: torch.Size, module: Convolution) -> Tensor:
    """Patches (B, C, kernel, positions) of a padded input."""
    if max(module.kernel_size) == max(module.stride) == 1:
        return x
    patches = x.new_empty(*x.shape[:2], *module.kernel_size, *out)
    everything = slice(None), slice(None)
    for offset in itertools.product(*(range(size) for size in module.kernel_size)):
        steps = zip(offset, module.dilation, module.stride, out)
        window = [slice(k * dilation, k * dilation + (n - 1) * stride + 1, stride) for k, dilation, stride, n in steps]
        entry: tuple[slice | int, ...] = (*everything, *offset)
        patches[entry] = x[(*everything, *window)]
    return patches


def _table_of_patches(x: Tensor, out: torch.Size, module: Convolution) -> Tensor:
    """Inner products (B x groups, positions, positions) of the patches of a padded input, from those of its entries.

    Patches at t and t' have the product sum_k <x at t + k, x at t' + k> over the positions k of the kernel.
    """
    sizes = x.shape[2:]
    x_NCS = x.reshape(len(x) * module.groups, x.shape[1] // module.groups, -1)
    table_NSS = (x_NCS.mT @ x_NCS).contiguous()
    spots = table_NSS.shape[1]
    steps = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    kernel = [dilation * step * (spots + 1) for dilation, step in zip(module.dilation, steps)]
    strides = [stride * step for stride, step in zip(module.stride, steps)]
    shifted = table_NSS.as_strided(
        (len(x_NCS), *module.kernel_size, *out, *out),
        (spots * spots, *kernel, *(spots * step for step in strides), *strides),
    )
    places = [range(size) for size in module.kernel_size]
    found = [shifted.movedim(0, -1)[offset].movedim(-1, 0) for offset in itertools.product(*places)]
    total = found[0].clone(memory_format=torch.contiguous_format)
    for one in found[1:]:
        total += one
    return total.reshape(len(x_NCS), math.prod(out), -1)


def _padded(x: Tensor, module: Convolution) -> Tensor:
    """The input with the padding of the convolution."""
    sides: Any = module._reversed_padding_repeated_twice
    if not any(sides):
        return x
    return F.pad(x, sides) if module.padding_mode == "zeros" else F.pad(x, sides, mode=module.padding_mode)


def _pieces(axes: int) -> Callable[[nn.Module, Call, frozenset[str]], dict[str, Piece]]:
    def pieces(module: nn.Module, call: Call, wanted: frozenset[str]) -> dict[str, Piece]:
        assert isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        x, d = call.input(), call.gradient()
        if x.ndim != axes + 2:
            raise MisfitError("its input has no axis of rows")
        return dict(_wanted(module, x, d, wanted))

    return pieces


def _wanted(module: Convolution, x: Tensor, d: Tensor, wanted: frozenset[str]) -> Iterator[tuple[str, Piece]]:
    if "weight" in wanted:
        yield "weight", Patches(x, d, module)
    if "bias" in wanted:
        yield "bias", Vector(d.flatten(2).sum(2))


for _axes, _kind in enumerate((nn.Conv1d, nn.Conv2d, nn.Conv3d), 1):
    register(_kind, rule=Rule(("weight", "bias"), _pieces(_axes)))
