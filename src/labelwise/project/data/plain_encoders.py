"""Features without a pretrained model: thumbnails with colours and edges, hashed words, the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.errors import SourceError, extra
from labelwise.io.encode_table import fit_table, mixed_column
from labelwise.io.tables import Table
from labelwise.project.data.encoders import PRETRAINED
from labelwise.rng import Key

_THUMB, _CELLS, _TURNS, _BINS = 16, 4, 8, 8
_HASHED, _USED, _LATENT = 1 << 18, 30_000, 200  # hashed words, the commonest of them, columns of the result
_READ = 20_000  # texts the result is learnt from


class Pixels:
    """A small grey picture, a smaller one in colour, colour statistics, and edges by place and direction."""

    name = "pixels"
    size = 32
    batch = 256
    blocks: tuple[int, ...] = (_THUMB * _THUMB, 3 * _CELLS * _CELLS, 3 * _BINS, _CELLS * _CELLS * _TURNS)
    width = sum(blocks)
    better = f"For photos, a pretrained encoder gives far better features than raw pixels: {PRETRAINED}"

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        x_NHWC = np.stack(rows).astype(np.float32) / 255
        grey_NHW = x_NHWC @ np.array([0.299, 0.587, 0.114], np.float32)
        n = len(x_NHWC)
        thumb = _pooled(grey_NHW[..., None], _THUMB).reshape(n, -1)
        colour = _pooled(x_NHWC, _CELLS).reshape(n, -1)
        bins = np.minimum((x_NHWC * _BINS).astype(np.int64), _BINS - 1).reshape(n, -1, 3)
        share = (bins[..., None] == np.arange(_BINS)).mean(1).reshape(n, -1)
        return np.concatenate([thumb, colour, share, _edges(grey_NHW)], axis=1).astype(np.float32)


def _pooled(x_NHWC: np.ndarray, cells: int) -> np.ndarray:
    """Means over cells x cells squares of each image."""
    n, side, _, channels = x_NHWC.shape
    step = side // cells
    return x_NHWC.reshape(n, cells, step, cells, step, channels).mean((2, 4))


def _edges(grey_NHW: np.ndarray) -> np.ndarray:
    """Length of the grey's slope by square of the image and direction, the square's root so that few do not rule."""
    dy, dx = np.gradient(grey_NHW, axis=(1, 2))
    turn = np.minimum((np.mod(np.arctan2(dy, dx), np.pi) / np.pi * _TURNS).astype(np.int64), _TURNS - 1)
    slope = np.hypot(dx, dy)[..., None] * (turn[..., None] == np.arange(_TURNS))
    return np.sqrt(_pooled(slope, _CELLS)).reshape(len(grey_NHW), -1)


@dataclass(frozen=True)
class Words:
    """Hashed words and pairs of words, by how rare they are (TF-IDF), in the directions in which texts differ most."""

    known_U: np.ndarray  # the hashed words that are used
    idf_U: np.ndarray
    to_UW: np.ndarray
    width: int
    blocks: tuple[int, ...]
    name: str = "words"
    size: int = 0
    batch: int = 512
    better: str = f"A pretrained sentence encoder gives better features than counted words: {PRETRAINED}"

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        return np.asarray(_tfidf(_counts(list(rows))[:, self.known_U], self.idf_U) @ self.to_UW, np.float32)


def words(texts: list[str]) -> Words:
    """An encoder learnt from the texts themselves (of many, from a sample spread over them); needs no label."""
    counts = _counts(texts[:: max(1, -(-len(texts) // _READ))])
    documents_H = np.bincount(counts.indices, minlength=_HASHED)
    known_U = np.flatnonzero(documents_H > 1)  # what is in one text only says nothing about another
    if not len(known_U):
        known_U = np.flatnonzero(documents_H)
    if len(known_U) > _USED:
        known_U = np.sort(known_U[np.argsort(-documents_H[known_U], kind="stable")[:_USED]])
    if not len(known_U):
        raise SourceError("the texts have no words; expected letters or digits.")
    idf_U = np.log((1 + counts.shape[0]) / (1 + documents_H[known_U])) + 1
    to_UW = _directions(_tfidf(counts[:, known_U], idf_U))
    return Words(known_U, idf_U, to_UW, to_UW.shape[1], (to_UW.shape[1],))


def _directions(tfidf: Any) -> np.ndarray:
    """The leading right singular vectors (U, W), by a power iteration from a drawn start."""
    width = min(_LATENT, *tfidf.shape)
    rng = Key(0).fold("words").numpy()
    start = rng.standard_normal((tfidf.shape[1], min(width + 16, *tfidf.shape))).astype(np.float32)
    q, _ = np.linalg.qr(tfidf @ start)
    q, _ = np.linalg.qr(tfidf @ (tfidf.T @ q))
    _, _, v = np.linalg.svd((tfidf.T @ q).T, full_matrices=False)
    return np.ascontiguousarray(v[:width].T, np.float32)


def _counts(texts: list[str]) -> Any:
    try:
        from sklearn.feature_extraction.text import HashingVectorizer
    except ImportError:
        raise extra("sklearn", "app") from None
    hasher = HashingVectorizer(
        n_features=_HASHED, ngram_range=(1, 2), alternate_sign=False, norm=None, token_pattern=r"(?u)\b\w+\b"
    )
    counts = hasher.transform(texts).tocsr().astype(np.float32)
    counts.data = 1 + np.log(counts.data)
    return counts


def _tfidf(counts: Any, idf_U: np.ndarray) -> Any:
    """Sparse rows of length one; a text without a known word stays zero."""
    rows = counts.copy()
    rows.data = rows.data * idf_U.astype(np.float32)[rows.indices]
    length = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1))).ravel()
    rows.data = rows.data / np.repeat(np.where(length > 0, length, 1.0), np.diff(rows.indptr)).astype(np.float32)
    return rows


@dataclass(frozen=True)
class Columns:
    """The columns of a table: numbers and the steps they are on, categories one by one, what is missing."""

    x_NW: np.ndarray
    width: int
    blocks: tuple[int, ...]
    name: str = "columns"
    size: int = 0
    batch: int = 4096
    better: str = ""

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        return self.x_NW[np.asarray(rows, np.int64)]


def columns(table: Table) -> Columns:
    """An encoder of the columns of a table, learnt from all its rows."""
    encoder = fit_table(table)
    mixed = next(filter(None, (mixed_column(name, values) for name, values in table.columns.items())), "")
    return Columns(encoder.encode(table), encoder.width, encoder.blocks, better=mixed)
