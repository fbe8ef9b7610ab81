"""Certificate: how much of a pool its labels see, for any batch and any weights.

The functions of a row are its embedding h and the constant 1 (or a basis of your own). With V these functions whitened
on the whole pool, so that (1/n) sum_j v_j v_j^T = I, and M labelled rows of weights w, scaled to a mean of 1,

    D = (1/M) sum_i w_i v_i v_i^T

has the eigenvalues 1 where the labels stand for the pool: a weighted mean of f^2 over them is between the least and
the largest eigenvalue times its mean over the pool, for every f in the span ("Sample complexity of deep active
learning", definition 5.6: a good output has them in [3/4, 5/4]). M labels determine few functions, so the range is
that of the leading M // 12 ones, as `bss` uses them, or of `rank`.

What the labels see at all is measured in all functions. A row is seen as far as it lies in the span of the labelled
rows; `seen` is the share of the pool's variance there, `unseen` the share of its directions that no label touches.

R(Q|S) is dynamicAL's approximation ratio (theory/dynamics.py): what single rows promise for training, summed over a
batch, over what the batch does. Near 1 the rows of a batch do not repeat each other and do not cancel.

What `bss` writes into its own notes, with barriers, is computed in strategies/leverage/joint.py.

Cost: one read of the pool, block by block, for its second moments (P x P), and one of the labelled rows; P^3 for the
whitening. No table has both axes of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, NeedError, NumericsError, RowError
from labelwise.io.arguments import check_whole
from labelwise.pool import Pool
from labelwise.pool.row_keys import RowKeys, are_keys
from labelwise.selection import Selection
from labelwise.selection.validate import as_tensor
from labelwise.signals.read import Labelled, Reader, read
from labelwise.signals.rows import Factored, Rows, sq_norm
from labelwise.signals.spec import Embedding, Features, GradNorm, HeadGrad, LossJvp, Probs, Signal
from labelwise.strategies.leverage.barrier import is_good_output
from labelwise.strategies.leverage.weighted_batch import LABELS_PER_FUNCTION, MAX_FUNCTIONS
from labelwise.strategies.leverage.whiten import LARGEST, TOLERANCE, TOLERANCE_SINGLE
from labelwise.theory.dynamics import Ratio

BLOCK = 1 << 20  # numbers of a block of an array


@dataclass(frozen=True)
class Certificate:
    """What a set of labelled rows, with weights, is worth as a sample of the pool.

    Attributes:
        labels: M.
        rank: the functions that `eigenvalues` are of.
        rank_available: all functions that differ on the pool.
        eigenvalues: the least and the largest of the weighted design.
        good: whether they are in [3/4, 5/4].
        effective_sample_size: (sum of weights)^2 / sum of squared weights.
        seen: share of what varies in the pool that lies in the span of the labelled rows.
        unseen: share of the directions of the pool that no labelled row touches.
        ratio: the approximation ratio R(Q|S) of the last batch; None where it is not known.

    >>> Certificate(100, 8, 64, (0.5, 1.4), False, 90.0, 0.94, 0.1).sentence()
    'Your labels see 94 % of what varies in the pool.'
    """

    labels: int
    rank: int
    rank_available: int
    eigenvalues: tuple[float, float]
    good: bool
    effective_sample_size: float
    seen: float
    unseen: float
    ratio: float | None = None

    def sentence(self) -> str:
        """What it comes to, for people who label."""
        return sentence(self.seen)

    def notes(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        return {
            "labels": self.labels,
            "rank": self.rank,
            "rank_available": self.rank_available,
            "eigenvalues": list(self.eigenvalues),
            "good": self.good,
            "effective_sample_size": self.effective_sample_size,
            "seen": self.seen,
            "unseen": self.unseen,
            **({} if self.ratio is None else {"approximation_ratio": self.ratio}),
        }


def sentence(seen: float) -> str:
    """The share of the pool that labels see, in words; rounded down, so that 100 % means all of it.

    >>> sentence(0.998)
    'Your labels see 99 % of what varies in the pool.'
    """
    return f"Your labels see {int(100 * seen + 1e-3)} % of what varies in the pool."


@dataclass
class Moments:
    """Sums over the pool of its functions and of their products, measured from `shift`, in float64.

    Functions are divided by `unit`, a power of two that grows with them, so that squares neither overflow nor vanish.
    """

    shift_P: Tensor
    rows: int = 0
    single: bool = False
    unit: float = 0.0
    sum_P: Tensor = field(init=False)
    gram_PP: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.sum_P = torch.zeros_like(self.shift_P)
        self.gram_PP = self.shift_P.new_zeros(len(self.shift_P), len(self.shift_P))

    def add(self, psi_NP: Tensor) -> None:
        """Add a block of rows.

        Raises:
            NumericsError: a number is too far from `shift` for float64.
        """
        x_NP = psi_NP.double() - self.shift_P
        self.rows += len(x_NP)
        self.single |= psi_NP.dtype != torch.float64
        self._grow(float(x_NP.abs().max()) if x_NP.numel() else 0.0)
        x_NP /= self.unit or 1.0
        self.sum_P += x_NP.sum(0)
        self.gram_PP.addmm_(x_NP.T, x_NP)

    def _grow(self, far: float) -> None:
        """Change to a unit in which `far` is at most 1."""
        if far <= self.unit:
            return
        if not far < LARGEST:
            raise NumericsError(
                f"certificate: numbers that differ from their mean by less than {LARGEST:g} were expected, {far:.3g} "
                "was found. Scale the columns of the features"
            )
        unit = math.ldexp(1.0, math.frexp(far)[1])
        self.sum_P *= self.unit / unit
        self.gram_PP *= (self.unit / unit) ** 2
        self.unit = unit


def certify(
    pool: Iterable[Tensor], labelled_MP: Tensor, weights: Any = None, *, constant: bool = True, rank: int | None = None
) -> Certificate:
    """The certificate of labelled rows, from blocks of the functions of all rows of the pool.

    Args:
        pool: blocks (n, P), each row of the pool once.
        labelled_MP: the functions of the labelled rows, on the device of the blocks.
        weights: (M,) at least 0; None for equal ones.
        constant: whether the constant 1 is one of the functions; rows are then measured from the mean of the pool.
        rank: how many functions the eigenvalues are of; None is a twelfth of the labels, at most 256.
    """
    count = len(labelled_MP)
    weight_M = _weights(weights, count)
    shift_P = labelled_MP.double().mean(0) if constant else torch.zeros_like(labelled_MP[0], dtype=torch.float64)
    moments = Moments(shift_P)
    for psi_NP in pool:
        moments.add(psi_NP)
    mean_P = moments.sum_P.cpu() / moments.rows
    gram_PP = moments.gram_PP.cpu() / moments.rows
    x_MP = (labelled_MP.double().cpu() - shift_P.cpu()) / (moments.unit or 1.0)
    if constant:
        gram_PP = gram_PP - torch.outer(mean_P, mean_P)
        x_MP = x_MP - mean_P
    tol = TOLERANCE_SINGLE if moments.single else TOLERANCE
    lam_P, u_PP = torch.linalg.eigh(gram_PP)
    lam_D, u_PD = lam_P.flip(0), u_PP.flip(1)
    width = int((lam_D > max(tol * float(lam_D[0]), 0.0)).sum())
    lam_D, x_MD = lam_D[:width], x_MP @ u_PD[:, :width]
    available = width + constant
    wanted = max(1, min(count // LABELS_PER_FUNCTION, MAX_FUNCTIONS)) if rank is None else rank
    used = min(wanted, available)
    v_MD = x_MD[:, : used - constant] / lam_D[: used - constant].sqrt()
    if constant:
        v_MD = torch.cat([torch.ones(count, 1, dtype=torch.float64), v_MD], 1)
    eigen_D = torch.linalg.eigvalsh(v_MD.T @ (v_MD * weight_M[:, None]) / count) if used else torch.zeros(1).double()
    low, high = max(float(eigen_D[0]), 0.0), float(eigen_D[-1])
    seen, directions = _seen(x_MD[weight_M > 0], lam_D, tol)
    return Certificate(
        labels=count,
        rank=used,
        rank_available=available,
        eigenvalues=(low, high),
        good=is_good_output(low, high),
        effective_sample_size=float(weight_M.sum() ** 2 / weight_M.square().sum()),
        seen=seen,
        unseen=(width - directions) / width if width else 0.0,
    )


def certificate(
    labelled: Any,
    weights: Any = None,
    *,
    embedding: Any = None,
    basis: Any = None,
    probs: Any = None,
    y: Any = None,
    batch: Any = None,
    ids: Any = None,
    rank: int | None = None,
) -> Certificate:
    """How much of a pool a set of labelled rows sees, whoever chose them and however they are weighed.

    Args:
        labelled: the ids of the labelled rows, or a `Selection`.
        weights: (M,) weights of at least 0, in the order of `labelled`; None takes those of the Selection, else equal.
        embedding: (N, D) input of the model's last layer, or features, of all rows; the constant 1 is added.
        basis: (N, P) functions of all rows, in place of `embedding`.
        probs: (N, C) class probabilities, with `embedding`, for the approximation ratio by the last layer.
        y: (M,) class numbers in the order of `labelled`, for the approximation ratio; those of `batch` are not read.
        batch: those of `labelled` whose approximation ratio is asked for; all if None.
        ids: (N,) names of the rows; 0..N-1 if not given.
        rank: how many functions the eigenvalues are of; None is a twelfth of the labels, at most 256.

    Returns:
        The certificate. Its `sentence()` says it in words.

    Raises:
        NeedError: neither `embedding` nor `basis` is given, or `probs` or `y` lacks what belongs to it.
        RowError: a labelled row is not in the pool, or twice, or shapes differ.
        ArgumentError: a weight is below 0, or `rank` no whole number of at least 1.

    >>> X = np.random.default_rng(0).normal(size=(500, 4))
    >>> found = certificate(range(200), embedding=X)
    >>> found.good, found.rank, found.seen
    (True, 5, 1.0)
    """
    if isinstance(labelled, Selection):
        weights = labelled.weights if weights is None else weights
        labelled = labelled.ids
    if (embedding is None) == (basis is None):
        raise NeedError("certificate: pass embedding=, an (N, D) array, or basis=, an (N, P) array, one of the two")
    rank = None if rank is None else check_whole("rank", rank, 1)
    name, given = ("embedding", embedding) if basis is None else ("basis", basis)
    psi_NP = as_tensor(name, given, 2)
    places_M = _places("labelled", labelled, ids, len(psi_NP))
    ratio = None
    if probs is not None:
        if basis is not None:
            raise NeedError("certificate: probs= needs embedding=, the input of the layer that gives them")
        probs_NC = as_tensor("probs", probs, 2)
        if len(probs_NC) != len(psi_NP):
            raise RowError(f"probs: {len(psi_NP)} rows were expected, as in embedding, {len(probs_NC)} were found")
        places_Q = places_M if batch is None else _places("batch", batch, ids, len(psi_NP))
        ratio = _head_ratio(psi_NP, probs_NC, places_M, places_Q, y)
    blocks = psi_NP.split(max(64, BLOCK // max(1, psi_NP.shape[1])))
    found = certify(blocks, psi_NP[places_M], weights, constant=basis is None, rank=rank)
    return found if ratio is None else _with_ratio(found, ratio)


def certificate_of(
    reader: Reader | None, pool: Pool, ids: Tensor, weights: Tensor | None = None, batch: int = 256
) -> Certificate:
    """The certificate of the labelled rows `ids` of a pool, in the embedding of a model; without one, in features."""
    signal: Signal = Features() if reader is None or not reader.gives(Embedding()) else Embedding()

    def blocks(rows: Tensor) -> Iterator[Tensor]:
        yield from (part.tensor(signal) for part in read(reader, pool, rows, (signal,), batch, device=None))

    return certify(blocks(pool.ids), torch.cat(list(blocks(ids))), weights)


def approximation_ratio(reader: Reader, pool: Pool, labelled: Labelled, batch: Tensor, rows: int = 256) -> Ratio | None:
    """R(Q|S) of a batch of rows at the labels that a model expects; None for a model of numbers.

    By the gradients of all parameters of a torch model, else by those of a last layer on the embedding.
    """
    if not all(reader.gives(signal) for signal in (Probs(), Embedding())):
        return None
    if not all(reader.gives(signal) for signal in (GradNorm(), LossJvp())):
        find = _finder(reader, pool, rows)
        return _ratio_of_factors(find(batch), find(labelled.ids), labelled.labels)
    summed, cross, pseudo = 0.0, 0.0, []
    signals = (Probs(), GradNorm(), LossJvp())
    for part in read(reader, pool, batch, signals, rows, labelled):
        summed += float(part.tensor(GradNorm()).double().sum())
        cross += float(part.tensor(LossJvp()).double().sum())
        pseudo.append(part.tensor(Probs()).argmax(1))
    query = Labelled(batch, torch.cat(pseudo))
    parts = read(reader, pool, batch, (LossJvp(),), rows, query)
    square = sum(float(part.tensor(LossJvp()).double().sum()) for part in parts)  # sum_u g_u . g_Q
    return Ratio(summed + 2 * cross, square + 2 * cross)


def _with_ratio(found: Certificate, ratio: Ratio) -> Certificate:
    value = ratio.value
    return Certificate(**{**vars(found), "ratio": value if np.isfinite(value) else None})


def _seen(x_MD: Tensor, lam_D: Tensor, tol: float) -> tuple[float, int]:
    """The share of the variances `lam_D` of the axes in the span of these rows, and the dimension of that span."""
    if not len(x_MD) or not len(lam_D):
        return (1.0, 0) if not len(lam_D) else (0.0, 0)
    _, s, q_RD = torch.linalg.svd(x_MD, full_matrices=False)
    rank = int((s.square() > tol * float(s[0]) ** 2).sum())
    inside = float((q_RD[:rank].square() * lam_D).sum() / lam_D.sum())
    return min(inside, 1.0), rank


def _weights(weights: Any, count: int) -> Tensor:
    """Weights (M,) of mean 1, in float64 on the CPU."""
    if not count:
        raise RowError("certificate: at least one labelled row was expected, none was found")
    given = torch.ones(count) if weights is None else weights
    given = given if isinstance(given, Tensor) else torch.from_numpy(np.asarray(given, np.float64))
    weight_M = given.detach().cpu().double()
    if weight_M.shape != (count,):
        raise RowError(f"weights: one for each of {count} labelled rows was expected, found {tuple(weight_M.shape)}")
    if not bool((weight_M.isfinite() & (weight_M >= 0)).all()) or not bool(weight_M.any()):
        raise ArgumentError("weights are finite, at least 0 and not all 0; found others")
    return weight_M / weight_M.mean()


def _places(what: str, rows: Any, ids: Any, count: int) -> Tensor:
    """The positions of rows by their ids."""
    wanted: Sequence[Any] = rows.tolist() if hasattr(rows, "tolist") else list(rows)
    if ids is None:
        place: dict[Any, int] = dict(zip(range(count), range(count)))
    else:
        known = RowKeys(ids).ids if are_keys(ids) else as_tensor("ids", ids, 1)
        wanted = RowKeys(wanted).ids.tolist() if are_keys(ids) else wanted
        if len(known) != count:
            raise RowError(f"ids: one for each of {count} rows was expected, found {len(known)}")
        place = {row: at for at, row in enumerate(known.tolist())}
    missing = [row for row in wanted if row not in place]
    if missing or len(set(wanted)) != len(wanted):
        found = f"{missing[0]!r} is not" if missing else "one occurs twice"
        raise RowError(f"{what}: distinct ids of rows of the pool were expected; {found}")
    return torch.tensor([place[row] for row in wanted], dtype=torch.int64)


def _head_ratio(psi_NP: Tensor, probs_NC: Tensor, places_M: Tensor, places_Q: Tensor, y: Any) -> Ratio:
    """R(Q|S) by the last layer, from arrays: Q the batch, S the other labelled rows."""

    def find(places: Tensor) -> Factored:
        return Factored(probs_NC[places].double(), psi_NP[places].double())

    is_old = ~torch.isin(places_M, places_Q)
    if not bool(torch.isin(places_Q, places_M).all()):
        raise RowError("batch: rows of `labelled` were expected, found others")
    if y is None and bool(is_old.any()):
        raise NeedError("certificate: pass y=, the classes of the labelled rows, or batch=None for all of them")
    labels = torch.zeros(len(places_M), dtype=torch.int64) if y is None else as_tensor("y", y, 1).long()
    if len(labels) != len(places_M):
        raise RowError(f"y: one for each of {len(places_M)} labelled rows was expected, found {len(labels)}")
    return _ratio_of_factors(find(places_Q), find(places_M[is_old]), labels[is_old])


def _finder(reader: Reader, pool: Pool, batch: int) -> Callable[[Tensor], Factored]:
    """Probabilities and embedding of rows by id."""

    def find(ids: Tensor) -> Factored:
        parts: list[Rows] = list(read(reader, pool, ids, (HeadGrad(),), batch))
        probs, embedding = (torch.cat([part.tensor(one).double() for part in parts]) for one in (Probs(), Embedding()))
        return Factored(probs, embedding)

    return find


def _ratio_of_factors(batch: Factored, labelled: Factored, labels: Tensor) -> Ratio:
    """R(Q|S) of the gradients (p - e_y) h^T, y the most probable class in the batch."""
    g = Factored(_less_one(batch.left, batch.left.argmax(1)), batch.right)
    old_CD = _less_one(labelled.left, labels).T @ labelled.right
    new_CD = g.left.T @ g.right
    cross, square = float((new_CD * old_CD).sum()), float(new_CD.square().sum())
    return Ratio(float(sq_norm(g).sum()) + 2 * cross, square + 2 * cross)


def _less_one(probs_NC: Tensor, labels: Tensor) -> Tensor:
    """p - e_y of each row."""
    left_NC = probs_NC.clone()
    left_NC[torch.arange(len(labels)), labels.to(probs_NC.device)] -= 1
    return left_NC
