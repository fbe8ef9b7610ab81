"""A basis whitened on the pool: V = (Psi - shift) W, computed block by block, with (1/n) sum_j v_j v_j^T = I.

    G = Psi^T Psi / n in float64, eigen-decomposed; of the eigenvalues above tol times the largest the `cap` largest
    are used; W = U diag(lam^-1/2)

Where the functions of the basis include the constant 1, it is always the first column of V: weights then sum to the
pool, and the other functions are measured from their means, which leaves their span as it is and reduces rounding.
Only G (P x P) leaves the shards; each row has one number, |v|^2, n times its leverage score.

Nearly orthonormal (definition 5.1 of "Sample complexity of deep active learning"): rho = max_{i != j} |mean v_i v_j|.
Whitening makes it 0 on the pool; its value on new rows is measured on a hold-out, whitened on the other rows.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import NumericsError, RowError
from labelwise.rng import Key
from labelwise.selection.progress import tick
from labelwise.selection.strategy import Size
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows, sq_norm
from labelwise.signals.spec import Basis, Embedding, Features

HOLD_OUT = 0.2  # share of the rows
TOLERANCE = 1e-10  # of float64 rows
TOLERANCE_SINGLE = 1e-6
SMALLEST = 1e-250  # sums of squares below it have lost digits: functions are then measured in a unit of their own
LARGEST = 1e300  # numbers beyond it, or below its inverse, have no square root of a variance in float64
MIN_VARIANCE = 1e-22  # a smaller variance, relative to the squared mean, is rounding
TIED = 1e-6  # eigenvalues this close, relative to their size, are equal: the order of their vectors is rounding
LEVERAGE = "leverage"
SWEEPS = 4  # at most: lengths, means, inner products, leverage scores


@dataclass(frozen=True)
class Whitened:
    """The map from a row to v.

    Attributes:
        signal: the functions.
        shift_P: their shift, in float64 on the CPU.
        map_PD: W.
        available: directions above the tolerance, before the cap.
        rho: max_{i != j} |mean v_i v_j| on the pool.
        rho_holdout: the same on a hold-out; None where it has no rows.
        condition_number: max |v|^2 over the pool, at least the rank.
    """

    signal: Basis
    shift_P: Tensor
    map_PD: Tensor
    available: int
    rho: float
    rho_holdout: float | None
    condition_number: float = math.nan

    @property
    def rank(self) -> int:
        return self.map_PD.shape[1]

    def transform(self, rows: Rows) -> Tensor:
        """v of these rows (N, rank), in float64 on their device.

        Raises:
            RowError: the rows have another number of functions than the pool.
        """
        psi_NP = rows.tensor(self.signal).double()
        if psi_NP.shape[1] != len(self.shift_P):
            raise RowError(
                f"{self.signal.array}: {len(self.shift_P)} functions were expected, as in the pool, "
                f"{psi_NP.shape[1]} were found; give labelled rows the array that the pool has"
            )
        return (psi_NP - self.shift_P.to(psi_NP.device)) @ self.map_PD.to(psi_NP.device)

    def notes(self) -> dict[str, Any]:
        """Notes of a selection on the basis."""
        return {
            "rank": self.rank,
            "rank_available": self.available,
            "condition_number": self.condition_number,
            "rho": self.rho,
            "rho_holdout": self.rho_holdout,
        }


@contextmanager
def whitened(pool: Shards, signal: Basis, cap: int, tol: float | None, key: Key) -> Iterator[Whitened]:
    """The basis of at most `cap` functions on this pool; within, every row has |v|^2 as state "leverage"."""
    found = whiten(pool, signal, cap, tol, key)
    try:
        pool.map(functools.partial(_compute_leverage, found))
        tick(SWEEPS, SWEEPS)
        yield replace(found, condition_number=max(pool.map(lambda shard: float(shard.state[LEVERAGE].max()))))
    finally:
        pool.map(lambda shard: shard.state.pop(LEVERAGE, None) is None)


def whiten(pool: Shards, signal: Basis, cap: int, tol: float | None, key: Key) -> Whitened:
    """Whiten the basis on this pool, in two or three sweeps.

    Args:
        pool: the rows.
        signal: the functions.
        cap: the maximum of functions.
        tol: eigenvalues below this share of the largest are no direction; None depends on the precision.
        key: for the hold-out.

    Raises:
        NumericsError: the functions are zero on every row, or too large or small for float64.
    """
    is_given = all(pool.map(lambda shard: signal in shard.columns))
    if not is_given and signal.map != "last_layer" and signal.scale is None:
        signal = replace(signal, scale=_scale(pool, signal))
    has_constant = signal.constant and not is_given
    single = any(pool.map(lambda shard: shard.dtype != torch.float64))
    tol = (TOLERANCE_SINGLE if single else TOLERANCE) if tol is None else tol
    tick(1, SWEEPS)
    shift_P = pool.sum(functools.partial(_sums, signal)) / pool.n
    tick(2, SWEEPS)
    if has_constant:
        shift_P[-1] = 0.0
    else:
        shift_P = torch.zeros_like(shift_P)
    unit_P = torch.ones_like(shift_P)
    grams = pool.sum(functools.partial(_grams, signal, shift_P, unit_P, key.fold("hold out")))
    functions = len(shift_P) - has_constant
    if functions and not SMALLEST < _largest_square(grams, functions) < math.inf:
        unit_P[:functions] = _unit(pool, signal, shift_P, functions)
        grams = pool.sum(functools.partial(_grams, signal, shift_P, unit_P, key.fold("hold out")))
    tick(3, SWEEPS)
    train_PP, holdout_PP = grams[:, :-1].view(2, len(shift_P), len(shift_P))
    train, holdout = grams[:, -1].tolist()
    floor = MIN_VARIANCE * float((shift_P / unit_P).square().sum())
    gram_PP = (train_PP + holdout_PP) / pool.n
    map_PD, available = _map(gram_PP, cap, tol, floor, has_constant)
    if not available:
        raise NumericsError(
            f"{signal.array} ({signal!r}) is zero on every row of the pool, so there is no direction to learn. Pass "
            "features that differ, or add a column of ones."
        )
    return Whitened(
        signal,
        shift_P,
        map_PD / unit_P[:, None],
        available,
        _off_diagonal(map_PD.T @ gram_PP @ map_PD),
        _holdout_rho(train_PP / train, holdout_PP / holdout, cap, tol, floor, has_constant)
        if train and holdout
        else None,
    )


def basis_width(signal: Basis, size: Size) -> int:
    """The number of functions of a basis on rows of these columns."""
    if signal in size.shapes:
        return size.shape(Basis)[0]
    if signal.map == "last_layer":
        return size.shape(Embedding)[0] + 1
    if signal.map == "polynomial":
        return math.comb(size.shape(Features)[0] + signal.degree, signal.degree)
    return signal.width


def _scale(pool: Shards, signal: Basis) -> float:
    """The length of the longest row, rounded up to 8 bits: the same whatever the blocks it was measured in."""
    (column,) = signal.stored()
    longest = max(pool.map(lambda shard: float(shard.each(lambda rows: _lengths(rows.tensor(column).double())).max())))
    if longest == 0:
        return 1.0
    fraction, power = math.frexp(longest * (1 - 1e-7))
    return math.ldexp(math.ceil(fraction * 256) / 256, power)


def _lengths(x_ND: Tensor) -> Tensor:
    """The length of each row, also where a square of its numbers overflows or vanishes."""
    length_N = sq_norm(x_ND).sqrt()
    if bool(((length_N > math.sqrt(SMALLEST)) & length_N.isfinite()).all()):
        return length_N
    top_N = x_ND.abs().amax(1)
    return sq_norm(x_ND / top_N.clamp(min=1e-300)[:, None]).sqrt() * top_N.clamp(min=1e-300) * (top_N > 0)


def _sums(signal: Basis, shard: Shard) -> Tensor:
    # Into one tensor: small ones between the large ones of the blocks would fragment the heap.
    width = shard.rows(slice(0, 1)).tensor(signal).shape[1]
    total = torch.zeros(width, dtype=torch.float64, device=shard.device)
    for _, rows in shard.blocks(scratch=scratch(shard, signal)):
        total += rows.tensor(signal).double().sum(0)
    return total.cpu()


def _largest_square(grams: Tensor, functions: int) -> float:
    """The largest sum of squares of a function, without the constant; NaN or infinite where a square overflowed."""
    width = math.isqrt(grams.shape[1])
    return float(grams[:, :-1].view(2, width, width).sum(0).diagonal()[:functions].max())


def _unit(pool: Shards, signal: Basis, shift_P: Tensor, functions: int) -> float:
    """A power of two near the largest distance from the shift, in which squares neither overflow nor vanish."""

    def largest(shard: Shard) -> float:
        shift = shift_P.to(shard.device)
        away_N = shard.each(
            lambda rows: (rows.tensor(signal).double() - shift)[:, :functions].abs().amax(1), scratch(shard, signal)
        )
        return float(away_N.max())

    far = max(pool.map(largest))
    if far == 0:
        return 1.0
    if not 1 / LARGEST < far < LARGEST:
        raise NumericsError(
            f"basis={signal.map!r}: numbers that differ from their mean by {1 / LARGEST:g} to {LARGEST:g} were "
            f"expected, {far:.3g} was found. Scale the columns of the features"
        )
    return math.ldexp(1.0, math.frexp(far)[1])


def _grams(signal: Basis, shift_P: Tensor, unit_P: Tensor, key: Key, shard: Shard) -> Tensor:
    """Gram matrices of the other rows and of the hold-out with, last, their numbers of rows: (2, P P + 1).

    Functions are divided by `unit_P`.
    """
    shift_P, unit_P = shift_P.to(shard.device), unit_P.to(shard.device)
    total = shift_P.new_zeros(2, len(shift_P), len(shift_P))
    count = shift_P.new_zeros(2, 1)
    for _, rows in shard.blocks(scratch=scratch(shard, signal)):
        z_NP = (rows.tensor(signal).double() - shift_P).div_(unit_P)
        holdout_N = key.uniform(rows.ids) < HOLD_OUT
        for part, which_N in enumerate((~holdout_N, holdout_N)):
            z_MP = z_NP[which_N]
            total[part].addmm_(z_MP.T, z_MP)
            count[part] += len(z_MP)
    return torch.cat([total.flatten(1), count], 1).cpu()


def scratch(shard: Shard, signal: Basis) -> int:
    """Numbers that a sweep allocates for each row, in the precision of the row: copies in float64."""
    width = shard.rows(slice(0, 1)).tensor(signal).shape[1]
    units = signal.hidden if signal.map == "tangent" and signal not in shard.columns else 0
    return (3 * width + 2 * units) * (8 // shard.dtype.itemsize)


def _map(gram_PP: Tensor, cap: int, tol: float, floor: float, has_constant: bool) -> tuple[Tensor, int]:
    """W (P, rank), and the number of directions above the tolerance."""
    if not has_constant:
        return _inverse_root(gram_PP, cap, tol, floor)
    mean_Q = gram_PP[-1, :-1]
    part_QD, available = _inverse_root(gram_PP[:-1, :-1] - torch.outer(mean_Q, mean_Q), cap - 1, tol, floor)
    map_PD = gram_PP.new_zeros(len(gram_PP), part_QD.shape[1] + 1)
    map_PD[-1, 0] = 1.0
    map_PD[:-1, 1:] = part_QD
    map_PD[-1, 1:] = -mean_Q @ part_QD
    return map_PD, available + 1


def _inverse_root(gram_PP: Tensor, cap: int, tol: float, floor: float) -> tuple[Tensor, int]:
    """W (P, rank) with W^T G W = I on the leading directions of G, and the number above the tolerance."""
    if not len(gram_PP):
        return gram_PP.new_zeros(0, 0), 0
    try:
        lam_P, u_PP = torch.linalg.eigh(gram_PP)
    except RuntimeError as error:
        raise NumericsError(
            "the functions of the basis cannot be decorrelated, because their sizes differ too much or are too large: "
            f"inner products up to {float(gram_PP.abs().max()):.3g}. Scale the columns of the basis ({error})"
        ) from error
    available = int((lam_P > max(tol * float(lam_P[-1]), floor, 0.0)).sum())
    rank = min(cap, available)
    if 0 < rank < available and float(lam_P[-rank - 1]) > (1 - TIED) * float(lam_P[-rank]):
        # The cut is among equal eigenvalues: a small slope along the columns orders them instead of rounding.
        slope_P = torch.linspace(1, 0, len(lam_P), dtype=gram_PP.dtype) * (TIED * float(lam_P[-rank]))
        u_PP = torch.linalg.eigh(gram_PP + torch.diag(slope_P)).eigenvectors
    u_PD = u_PP[:, len(lam_P) - rank :].flip(1)
    inner_D, q_DD = torch.linalg.eigh(u_PD.T @ gram_PP @ u_PD)
    return (u_PD @ q_DD / inner_D.sqrt()).flip(1), available


def _holdout_rho(
    train_PP: Tensor, holdout_PP: Tensor, cap: int, tol: float, floor: float, has_constant: bool
) -> float | None:
    """rho, on the hold-out, of the basis whitened on the other rows."""
    map_PD, available = _map(train_PP, cap, tol, floor, has_constant)
    return _off_diagonal(map_PD.T @ holdout_PP @ map_PD) if available else None


def _off_diagonal(gram_DD: Tensor) -> float:
    off_DD = gram_DD - torch.diag(gram_DD.diagonal())
    return float(off_DD.abs().max())


def _compute_leverage(found: Whitened, shard: Shard) -> None:
    shard.state[LEVERAGE] = shard.each(lambda rows: sq_norm(found.transform(rows)), scratch(shard, found.signal))
