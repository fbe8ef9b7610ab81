"""Pieces: one parameter's gradient for each row of a batch, stored as factors that are never multiplied out.

A piece computes the squared length of each row's gradient and its inner product with a given gradient (`measure`), and
its sketch. `rows` builds the gradients, for kernels of few rows and for tests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from labelwise.signals.exact_sum import add_at
from labelwise.signals.gradients.sketch import Tables


@dataclass(frozen=True)
class Tuning:
    """How the same numbers are computed: only time and memory depend on it.

    Attributes:
        cpu_scratch: numbers of a temporary on a CPU; 16 MB in float32.
        device_scratch: the same on an accelerator.
        write: the cost of writing and reading one entry of a product, in multiplications.
        shared: the relative cost of a product with one matrix for all rows.
        tiled_places: positions from which a convolution is computed by tiles, whose products are written and read back.
    """

    cpu_scratch: int = 1 << 22
    device_scratch: int = 1 << 27
    write: float = 48
    shared: float = 0.65
    tiled_places: int = 512


Measured = tuple[Tensor | None, Tensor | None]  # squared norm (B,) and inner product (B,), None where not requested


class Piece(ABC):
    """The gradient of one parameter, for each of B rows."""

    tuning: ClassVar[Tuning] = Tuning()

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of its factors."""

    @abstractmethod
    def measure(self, norm: bool, along: Tensor | None) -> Measured:
        """Squared length of each row's gradient, and its inner product with `along` (shaped like the parameter)."""

    @abstractmethod
    def rows(self) -> Tensor:
        """The gradients (B, P)."""

    @abstractmethod
    def sketch(self, tables: Tables) -> Tensor:
        """The sketch (B, W) of each row's gradient."""


@dataclass(frozen=True)
class Vector(Piece):
    """Whole gradients (B, P): of biases and scales, and those computed by torch.func."""

    g_BP: Tensor

    @property
    def device(self) -> torch.device:
        return self.g_BP.device

    def measure(self, norm: bool, along: Tensor | None) -> Measured:
        return sq_lengths(self.g_BP) if norm else None, None if along is None else self.g_BP @ along.flatten()

    def rows(self) -> Tensor:
        return self.g_BP

    def sketch(self, tables: Tables) -> Tensor:
        return tables.whole(self.g_BP)


@dataclass(frozen=True)
class Outer(Piece):
    """sum_t d_t a_t^T over T positions: the gradient of a weight (O, I) with inputs a and output gradients d."""

    a_BTI: Tensor
    d_BTO: Tensor

    @property
    def device(self) -> torch.device:
        return self.d_BTO.device

    def measure(self, norm: bool, along: Tensor | None) -> Measured:
        a_BTI, d_BTO = self.a_BTI, self.d_BTO
        (_, places, inputs), outputs = a_BTI.shape, d_BTO.shape[2]
        if norm and places > 1 and product_is_cheaper(places, inputs, outputs, along is not None):
            found = [measure_products(self._product(part), True, along) for part in self._parts(inputs * outputs)]
            return concatenate(found)
        norm_B = None
        if norm and places == 1:
            norm_B = sq_lengths(a_BTI[:, 0]) * sq_lengths(d_BTO[:, 0])
        elif norm:
            parts = self._parts(2 * places * places)
            norm_B = torch.cat([sq_norm_by_tables(a_BTI[part].mT, d_BTO[part].mT) for part in parts])
        dot_B = None if along is None else ((a_BTI @ along.reshape(outputs, inputs).T) * d_BTO).sum((1, 2))
        return norm_B, dot_B

    def rows(self) -> Tensor:
        return self._product(slice(None)).flatten(1)

    def sketch(self, tables: Tables) -> Tensor:
        (_, places, inputs), outputs = self.a_BTI.shape, self.d_BTO.shape[2]
        if inputs * outputs <= places * tables.width:
            parts = self._parts(2 * inputs * outputs)
            return torch.cat([tables.whole(self._product(part).flatten(1)) for part in parts])
        parts = self._parts(4 * places * tables.width)
        return torch.cat([tables.outer(self.a_BTI[part], self.d_BTO[part]) for part in parts])

    def _product(self, part: slice) -> Tensor:
        return self.d_BTO[part].mT @ self.a_BTI[part]

    def _parts(self, numbers: int) -> Iterator[slice]:
        return row_slices(len(self.a_BTI), numbers, self.device)


@dataclass(frozen=True)
class Scattered(Piece):
    """The gradient of a table (V, O) to whose row index_t each token t adds d_t."""

    index_BT: Tensor
    d_BTO: Tensor
    rows_V: int

    @property
    def device(self) -> torch.device:
        return self.d_BTO.device

    def measure(self, norm: bool, along: Tensor | None) -> Measured:
        norm_B = None
        if norm:
            # A token that occurs twice in a row is summed before it is squared.
            batch = len(self.index_BT)
            distinct_U, word = self._flat(self.rows_V, self.index_BT).unique(return_inverse=True)
            sum_UO = self.d_BTO.new_zeros(len(distinct_U), self.d_BTO.shape[2])
            add_at(sum_UO, word, self.d_BTO.flatten(0, 1))
            norm_B = add_at(self.d_BTO.new_zeros(batch), distinct_U // self.rows_V, sq_lengths(sum_UO))
        dot_B = None if along is None else (along[self.index_BT] * self.d_BTO).sum((1, 2))
        return norm_B, dot_B

    @staticmethod
    def _flat(width: int, index: Tensor) -> Tensor:
        """Indices (B, ...) below `width` as indices into a flat array of B x `width` entries."""
        return (index.flatten(1) + width * torch.arange(len(index), device=index.device)[:, None]).flatten()

    def rows(self) -> Tensor:
        batch, _, outputs = self.d_BTO.shape
        g_BVO = self.d_BTO.new_zeros(batch, self.rows_V, outputs)
        add_at(g_BVO.view(-1, outputs), self._flat(self.rows_V, self.index_BT), self.d_BTO.flatten(0, 1))
        return g_BVO.flatten(1)

    def sketch(self, tables: Tables) -> Tensor:
        bucket_BTO = (tables.bucket_O[self.index_BT][:, :, None] + tables.bucket_I) % tables.width
        signed_BTO = self.d_BTO * (tables.sign_O[self.index_BT][:, :, None] * tables.sign_I)
        out_BW = self.d_BTO.new_zeros(len(self.d_BTO), tables.width)
        add_at(out_BW.view(-1), self._flat(tables.width, bucket_BTO), signed_BTO.flatten())
        return out_BW


@dataclass(frozen=True)
class Stacked(Piece):
    """Pieces of one parameter, stacked: the packed projections of attention."""

    pieces: Sequence[Piece]
    heights: Sequence[int]  # rows of the parameter in each piece

    @property
    def device(self) -> torch.device:
        return self.pieces[0].device

    def measure(self, norm: bool, along: Tensor | None) -> Measured:
        alongs = [None] * len(self.pieces) if along is None else along.split(list(self.heights))
        found = [piece.measure(norm, part) for piece, part in zip(self.pieces, alongs)]
        return total([norm_B for norm_B, _ in found]), total([dot_B for _, dot_B in found])

    def rows(self) -> Tensor:
        return torch.cat([piece.rows() for piece in self.pieces], 1)

    def sketch(self, tables: Tables) -> Tensor:
        sketches, start = [], 0
        for piece, height in zip(self.pieces, self.heights):
            sketches.append(piece.sketch(tables.part(slice(start, start + height))))
            start += height
        return torch.stack(sketches).sum(0)


def row_slices(rows: int, numbers: int, device: torch.device) -> Iterator[slice]:
    """Slices of a batch whose temporaries, with `numbers` numbers for each row, stay small."""
    scratch = Piece.tuning.cpu_scratch if device.type == "cpu" else Piece.tuning.device_scratch
    step = max(1, scratch // max(1, numbers))
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))


def product_is_cheaper(places: int, inputs: int, outputs: int, dot: bool, table: int | None = None) -> bool:
    """Whether to multiply the factors out, a few rows at a time, rather than compare all positions of a row.

    The product (outputs, inputs) of a row costs T I O and is written once; the inner product is then free. Tables of
    positions by positions cost T^2 (I + O), or `table` + T^2 O where that of the inputs has another cost, and the inner
    product another T I O, shared by all rows.
    """
    product = (places + Piece.tuning.write) * inputs * outputs
    shared = Piece.tuning.shared * places * inputs * outputs if dot else 0.0
    tables = (places * places * inputs if table is None else table) + places * places * outputs + shared
    return product < tables


def measure_products(g: Tensor, norm: bool, along: Tensor | None) -> Measured:
    """Norm and inner product of whole gradients (B, ...)."""
    g_BP = g.flatten(1)
    return sq_lengths(g_BP) if norm else None, None if along is None else g_BP @ along.flatten()


def sq_norm_by_tables(a_BIT: Tensor, d_BOT: Tensor) -> Tensor:
    """|sum_t d_t a_t^T|^2 = sum over t, t' of (a_t . a_t')(d_t . d_t')."""
    return ((a_BIT.mT @ a_BIT).mul_(d_BOT.mT @ d_BOT)).sum((1, 2)).clamp_min_(0)


def sq_lengths(x_BP: Tensor) -> Tensor:
    """Squared length of each row, in one pass."""
    length_B: Tensor = torch.linalg.vector_norm(x_BP, dim=1)
    return length_B.square_()


def concatenate(parts: Sequence[Measured]) -> Measured:
    """Measurements of slices, for the whole batch."""
    norms = [norm for norm, _ in parts if norm is not None]
    dots = [dot for _, dot in parts if dot is not None]
    return torch.cat(norms) if norms else None, torch.cat(dots) if dots else None


def total(parts: Sequence[Tensor | None]) -> Tensor | None:
    """The sum of the tensors among `parts`; None if there are none."""
    given = [part for part in parts if part is not None]
    return torch.stack(given).sum(0) if given else None
