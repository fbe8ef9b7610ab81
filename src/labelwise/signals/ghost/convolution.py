"""Convolutions in one, two and three dimensions, with stride, padding of any mode, dilation and groups.

A convolution is a linear layer on its patches: with patches A (L, I) and output gradients D (L, O) of a row's L places
the gradient of the weight is D^T A. Patches are laid out for a few rows at a time. The inner product with a gradient G
needs no patches: it is the sum of d times the layer's output with G in the place of its weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelwise.signals.ghost.pieces import (
    Measured,
    Piece,
    Vector,
    in_parts,
    joined,
    of_products,
    of_tables,
    product_is_cheaper,
)
from labelwise.signals.ghost.rules import Call, MisfitError, Rule, register
from labelwise.signals.ghost.sketch import Tables

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
        product = product_is_cheaper(places, inputs, outputs, along is not None)
        # For all rows at once: each call of the layer lays its weights out anew.
        dot_B = self._dot(along) if along is not None and not (norm and product) else None
        if not norm:
            return None, dot_B
        scratch = groups * (inputs * places + (outputs * inputs if product else 2 * places * places))
        found: list[Measured] = []
        for part in in_parts(len(self.x), scratch, self.device):
            a_NIT, d_NOT = self._factors(part)
            rows = len(a_NIT) // groups
            if product:
                found.append(of_products((d_NOT @ a_NIT.mT).reshape(rows, -1, inputs), True, along))
            else:
                found.append((of_tables(a_NIT, d_NOT).reshape(rows, groups).sum(1), None))
        norm_B, from_products_B = joined(found)
        return norm_B, from_products_B if product else dot_B

    def rows(self) -> Tensor:
        a_NIT, d_NOT = self._factors(slice(None))
        return (d_NOT @ a_NIT.mT).reshape(len(self.x), -1)

    def sketch(self, tables: Tables) -> Tensor:
        groups, outputs, inputs, places = self._sizes()
        fourier = outputs * inputs > places * tables.width
        numbers = groups * (inputs * places + (4 * places * tables.width if fourier else 2 * outputs * inputs))
        return torch.cat(
            [self._sketched(part, tables, fourier) for part in in_parts(len(self.x), numbers, self.device)]
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
        """Groups; outputs, inputs (channels times kernel) of one group; places."""
        groups = self.module.groups
        inputs = self.x.shape[1] // groups * math.prod(self.module.kernel_size)
        return groups, self.d.shape[1] // groups, inputs, self.d[0, 0].numel()

    def _factors(self, part: slice) -> tuple[Tensor, Tensor]:
        """Patches (rows x groups, I, T) and output gradients (rows x groups, O, T)."""
        _, outputs, inputs, places = self._sizes()
        patches = _patches(_padded(self.x[part], self.module), self.d.shape[2:], self.module)
        return patches.reshape(-1, inputs, places), self.d[part].reshape(-1, outputs, places)

    def _dot(self, along: Tensor) -> Tensor:
        module = self.module
        plain = _PLAIN[self.x.ndim]
        own = module.padding_mode == "zeros"  # other margins are made before the convolution
        x, padding = (self.x, module.padding) if own else (_padded(self.x, module), 0)
        moved = plain(x, along, None, module.stride, padding, module.dilation, module.groups)
        return moved.mul_(self.d).flatten(1).sum(1)


def _patches(x: Tensor, out: torch.Size, module: Convolution) -> Tensor:
    """Patches (B, C, kernel, places) of a padded input, as a view of it."""
    x = x.contiguous()
    steps = x.stride()[2:]
    kernel = [dilation * step for dilation, step in zip(module.dilation, steps)]
    place = [stride * step for stride, step in zip(module.stride, steps)]
    return x.as_strided((*x.shape[:2], *module.kernel_size, *out), (*x.stride()[:2], *kernel, *place))


def _padded(x: Tensor, module: Convolution) -> Tensor:
    """The input as the convolution sees it."""
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
