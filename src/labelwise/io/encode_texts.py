"""Features of texts without a pretrained model: hashed words and pairs of words.

They count by how rare they are (TF-IDF), in the directions in which the texts differ most.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from labelwise.errors import SourceError, extra
from labelwise.rng import Key

_HASHED, _USED, _LATENT = 1 << 18, 30_000, 200  # hashed words, the commonest of them, columns of the result
READ = 20_000  # texts the result is learnt from


@dataclass(frozen=True)
class TextEncoder:
    """What `fit_texts` learnt.

    Attributes:
        known_U: the hashed words that are used.
        idf_U: how rare each is.
        to_UW: the directions in which texts differ most.
    """

    known_U: np.ndarray
    idf_U: np.ndarray
    to_UW: np.ndarray

    @property
    def width(self) -> int:
        """The number of features."""
        return int(self.to_UW.shape[1])

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Features (n, width) float32 of texts."""
        return np.asarray(_tfidf(_counts(list(texts))[:, self.known_U], self.idf_U) @ self.to_UW, np.float32)


def fit_texts(texts: Sequence[str]) -> TextEncoder:
    """Learn an encoder from the texts themselves, of many from a sample spread over them; it needs no label.

    Raises:
        SourceError: there is no word in any of them.
        ExtraError: scikit-learn is not installed.

    >>> encoder = fit_texts(["a red bird", "a red cat", "two blue cats"])
    >>> encoder.encode(["red"]).shape
    (1, 3)
    """
    counts = _counts(list(texts)[:: max(1, -(-len(texts) // READ))])
    documents_H = np.bincount(counts.indices, minlength=_HASHED)
    known_U = np.flatnonzero(documents_H > 1)  # what is in one text only says nothing about another
    if not len(known_U):
        known_U = np.flatnonzero(documents_H)
    if len(known_U) > _USED:
        known_U = np.sort(known_U[np.argsort(-documents_H[known_U], kind="stable")[:_USED]])
    if not len(known_U):
        raise SourceError("the texts have no words; expected letters or digits.")
    idf_U = np.log((1 + counts.shape[0]) / (1 + documents_H[known_U])) + 1
    to_UW = directions(_tfidf(counts[:, known_U], idf_U))
    return TextEncoder(known_U, idf_U, to_UW)


def directions(rows: Any) -> np.ndarray:
    """The leading right singular vectors (U, W) of sparse rows (n, U), by a power iteration from a drawn start."""
    width = min(_LATENT, *rows.shape)
    rng = Key(0).fold("words").numpy()
    start = rng.standard_normal((rows.shape[1], min(width + 16, *rows.shape))).astype(np.float32)
    q, _ = np.linalg.qr(rows @ start)
    q, _ = np.linalg.qr(rows @ (rows.T @ q))
    _, _, v = np.linalg.svd((rows.T @ q).T, full_matrices=False)
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
