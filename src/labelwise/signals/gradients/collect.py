"""Collectors of the pieces of a pass: totals for each row, whole gradients, or a check of the rules."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from labelwise.signals.gradients.pieces import Piece
from labelwise.signals.gradients.sketch import Tables

HALF = (torch.float16, torch.bfloat16)
ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}  # |found - true|^2 / |true|^2 up to which a gradient is right
HALF_ROUNDING = 5e-2


@dataclass(frozen=True)
class GradientRequest:
    """What to compute from the gradient of each row: norm, inner product with `along`, sketch (width, seed)."""

    norm: bool = False
    along: Mapping[str, Tensor] | None = None
    sketch: tuple[int, int] | None = None


class Collector(ABC):
    """Takes the pieces of a pass; cleared when a pass is repeated."""

    along: Mapping[str, Tensor] | None = None
    scale_B: Tensor | None = None  # what the cotangent of each row was divided by

    @abstractmethod
    def clear(self) -> None:
        """Forget every piece."""

    @abstractmethod
    def add(self, name: str, piece: Piece, part: slice = slice(None)) -> None:
        """Add the piece of a parameter, for the rows `part` of the batch."""


class TotalsCollector(Collector):
    """Norms, inner products and sketches, summed over parameters in float64 on the model's device."""

    def __init__(
        self, request: GradientRequest, rows: int, tables: Callable[[tuple[int, int], str, torch.device], Tables]
    ):
        self.request = request
        self.along = request.along
        self.only_dot = not request.norm and request.sketch is None
        self._rows = rows
        self._tables = tables
        self._totals: dict[str, Tensor] = {}

    def clear(self) -> None:
        self._totals = {}

    def add(self, name: str, piece: Piece, part: slice = slice(None)) -> None:
        along = None if self.along is None else self.along[name]
        if along is not None:
            along = along.to(at_least_single(along.dtype))
        norm_B, dot_B = piece.measure(self.request.norm, along)
        if norm_B is not None:
            self._sum("norm", norm_B, part)
        if dot_B is not None:
            self._sum("dot", dot_B, part)
        if self.request.sketch is not None:
            self._sum("sketch", piece.sketch(self._tables(self.request.sketch, name, piece.device)), part)

    def add_dot(self, dot_B: Tensor) -> None:
        """Add the inner products of all parameters without a rule."""
        self._sum("dot", dot_B, slice(None))

    def totals(self, device: torch.device) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Norm (B,), inner product (B,) and sketch (B, W); None for what was not requested."""
        width = 0 if self.request.sketch is None else self.request.sketch[0]
        wanted = {"norm": self.request.norm, "dot": self.along is not None, "sketch": width > 0}
        blank = {"sketch": torch.zeros(self._rows, width, dtype=torch.float64, device=device)}
        zero_B = torch.zeros(self._rows, dtype=torch.float64, device=device)
        if self.scale_B is not None:
            scale_B = self.scale_B.double()
            scales = {"norm": scale_B.square(), "dot": scale_B, "sketch": scale_B[:, None]}
            self._totals = {what: values * scales[what] for what, values in self._totals.items()}
            self.scale_B = None
        found = [
            self._totals.get(what, blank.get(what, zero_B)) if request else None for what, request in wanted.items()
        ]
        return found[0], found[1], found[2]

    def _sum(self, what: str, values: Tensor, part: slice) -> None:
        if what not in self._totals:
            shape = (self._rows, *values.shape[1:])
            self._totals[what] = torch.zeros(shape, dtype=torch.float64, device=values.device)
        self._totals[what][part] += values


class GradientCollector(Collector):
    """Collects whole gradients (B, P) for each parameter."""

    def __init__(self, rows: int):
        self._rows = rows
        self._by_name: dict[str, Tensor] = {}

    def clear(self) -> None:
        self._by_name = {}

    def add(self, name: str, piece: Piece, part: slice = slice(None)) -> None:
        g_BP = piece.rows()
        if name not in self._by_name:
            self._by_name[name] = g_BP.new_zeros(self._rows, g_BP.shape[1])
        self._by_name[name][part] += g_BP

    def of(self, name: str, parameter: Tensor) -> Tensor:
        """The gradients (B, P) of one parameter; zeros if it was not used."""
        found = self._by_name.get(name)
        if found is None:
            return parameter.new_zeros(self._rows, parameter.numel(), dtype=at_least_single(parameter.dtype))
        return found if self.scale_B is None else found * self.scale_B[:, None].to(found.dtype)


def at_least_single(dtype: torch.dtype) -> torch.dtype:
    """float32 for half precision, else the dtype."""
    return torch.float32 if dtype in HALF else dtype


class RuleChecker(Collector):
    """Compares pieces of two rows with the gradient `along` of the first row; that of the second row is zero."""

    def __init__(self, along: Mapping[str, Tensor]):
        self.along = along
        self._found: dict[str, tuple[Tensor, Tensor]] = {}

    def clear(self) -> None:
        self._found = {}

    def add(self, name: str, piece: Piece, part: slice = slice(None)) -> None:
        assert self.along is not None
        along = self.along[name]
        norm_B, dot_B = piece.measure(True, along.to(at_least_single(along.dtype)))
        assert norm_B is not None
        assert dot_B is not None
        self._found[name] = (norm_B.double(), dot_B.double())

    def wrong(self, names: set[str]) -> Iterator[str]:
        """Names of the parameters whose gradient differs from autograd's.

        |found - true|^2 = |found|^2 + |true|^2 - 2 found . true, so norm and inner product suffice.
        """
        assert self.along is not None
        for name in sorted(names):
            true = self.along[name]
            size = float(true.double().square().sum())
            zero = torch.zeros(2, dtype=torch.float64)
            norm_2, dot_2 = self._found.get(name, (zero, zero))
            gap = float(norm_2[0]) + size - 2 * float(dot_2[0]) + float(norm_2[1])
            if not gap <= ROUNDING.get(true.dtype, HALF_ROUNDING) * size + 1e-30:
                yield name
