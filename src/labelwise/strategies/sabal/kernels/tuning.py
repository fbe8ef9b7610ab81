"""Sizes of the kernels of SABAL. Picks do not depend on them; times do."""

from __future__ import annotations

from dataclasses import dataclass

Tile = tuple[int, int, int]  # rows, numbers of each, warps


@dataclass(frozen=True)
class StepTuning:
    """Sizes of the greedy steps in PyTorch.

    Attributes:
        chunk: steps between two waits of the host.
        bucket: the support is padded to this size, twice that, and so on.
        near: candidates that a step scores in float64.
        widest: lines of R beyond which a product of all rows for each pick costs more than lists and their checks.
    """

    chunk: int = 64
    bucket: int = 512
    near: int = 64
    widest: int = 128


@dataclass(frozen=True)
class IterationTuning:
    """Sizes of the iterations of IHT on one device.

    Attributes:
        chunk: iterations between two waits of the host.
        part: numbers of rows that are converted to float64 at once.
        widest: lines of R beyond which rows are read in blocks, by the host.
    """

    chunk: int = 25
    part: int = 1 << 25
    widest: int = 128


@dataclass(frozen=True)
class TritonTuning:
    """Sizes of the Triton kernels.

    Attributes:
        chunk: greedy steps after which R is computed from the weights.
        most_left, most_right: numbers of a row's factors, beyond which it does not fit into the registers of a program.
        score_programs, slope_programs, adjoint_programs: most programs of the three kinds of reads.
        score_tile, pass_tile, support_tile: of reads of all rows for scores, for both passes, and of the support.
    """

    chunk: int = 128
    most_left: int = 32
    most_right: int = 4096
    score_programs: int = 528
    slope_programs: int = 1056
    adjoint_programs: int = 132
    score_tile: Tile = (64, 64, 4)
    pass_tile: Tile = (64, 64, 4)
    support_tile: Tile = (16, 64, 4)
