"""Rows of a data frame: features for models that take numbers, the frame's own rows for estimators that take frames."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, SourceError
from labelwise.io.encode_table import TableEncoder, block_scale, fit_table, why_useless
from labelwise.io.frames import (
    categorical_columns,
    check_order,
    column_names,
    count_rows,
    frame_column,
    index_of,
    library_of,
    native_frame,
    plain_values,
    read_frame,
    select_columns,
    take_rows,
)
from labelwise.io.tables import Table, numbers, texts
from labelwise.pool.source import Source, content
from labelwise.pool.sources.arrays import TextSource
from labelwise.pool.sources.table import Columns

_BLOCK = 4096  # rows encoded at once
_WORDS = 2.5  # mean number of words from which texts are free texts and no names


@dataclass(frozen=True)
class FrameRows:
    """What `read_columns` found: what rows are read from, and the ids, labels and classes for the pool."""

    source: Source
    ids: Any
    labels: Any
    classes: Sequence[str] | None


def read_columns(frame: Any, wanted: Columns, ids: Any, labels: Any, classes: Sequence[str] | None) -> FrameRows:
    """The columns of a frame that make a row, its label and its id; the other arguments are those of `Pool.frame`."""
    native = native_frame(frame)
    present = column_names(native)
    for name in wanted.names():
        if name not in present:
            raise ArgumentError(f"there is no column {name!r} in the frame; its columns are {_listed(present)}.")
    if wanted.text is not None and wanted.columns is not None:
        raise ArgumentError("a row of the pool is a text or several columns: give one of text and columns.")
    if (wanted.id is not None and ids is not None) or (wanted.label is not None and labels is not None):
        raise ArgumentError(
            "ids and labels come from a column (id=, label=) or from outside (ids=, labels=), not both."
        )
    check_order(labels, native)
    if wanted.label is not None:
        labels = plain_values(frame_column(native, wanted.label))
        order = categorical_columns(native).get(wanted.label)
        if order is not None:  # a category is a name, also where it is a number
            labels, classes = [value if value is None else str(value) for value in labels], classes or order
    if wanted.id is not None:
        ids = frame_column(native, wanted.id)
    elif ids is None:
        ids = index_of(native)
    if wanted.text is not None:
        texts_N = column_values(frame_column(native, wanted.text))
        source: Source = TextSource(texts_N, wanted.text, library_of(native))
    else:
        rest = [name for name in present if name not in (wanted.label, wanted.id)]
        source = FrameSource(native, rest if wanted.columns is None else wanted.columns)
    return FrameRows(source, ids, labels, classes)


def column_values(series: Any) -> Any:
    """A column as an array of numbers, or as a list of texts in which none is missing."""
    values = plain_values(series)
    if isinstance(values, np.ndarray):
        return values
    if all(isinstance(value, int | float) for value in values):
        return np.array(values)
    wrong = next((row for row, value in enumerate(values) if not isinstance(value, str)), None)
    if wrong is not None:
        raise ArgumentError(f"a column of texts was expected; row {wrong} holds {values[wrong]!r:.60}.")
    return [str(value) for value in values]


class FrameEncoder:
    """How the columns of a frame become features: learnt once from some of its rows, then used for any others.

    Attributes:
        names: The columns.
        left_out: Columns without features, and why.
    """

    def __init__(self, table: Table, rows: np.ndarray | None, categories: Collection[str]):
        """Learn from the rows of a table at these positions, or from all; `categories` are columns of categories.

        `first` holds the features of the table itself, until they are taken.
        """
        self.names = (*table.columns, *table.unreadable)
        self.left_out = {name: f"it holds {kind}" for name, kind in table.unreadable.items()}
        free_texts = []
        for name, values in table.columns.items():
            reason = "" if name in categories else why_useless(values)
            if reason and not isinstance(values, np.ndarray) and numbers(values) is None and _is_free(texts(values)):
                free_texts.append(name)
            elif reason:
                self.left_out[name] = reason
        used = [name for name in table.columns if name not in self.left_out]
        if not used:
            reasons = "; ".join(f"{name!r}: {reason}" for name, reason in self.left_out.items())
            raise SourceError(f"no column of the frame can be made a feature ({reasons}). Name columns with columns=.")
        self._used = tuple(used)
        part = table.subset(np.arange(len(table)), used)
        self.columns_encoder: TableEncoder = fit_table(part, rows, categories, free_texts)
        x_ND = _encoded(self.columns_encoder, part)
        self._scale = block_scale(x_ND, np.arange(len(x_ND)) if rows is None else rows, self.columns_encoder.blocks)
        self.first: np.ndarray | None = self._scaled(x_ND)

    def encode(self, table: Table) -> np.ndarray:
        """Features (n, D) float32 of a table with these columns."""
        changed = next((name for name in self._used if name in table.unreadable), None)
        if changed is not None:
            raise ArgumentError(
                f"column {changed!r} holds {table.unreadable[changed]}; texts or numbers were expected."
            )
        try:
            x_ND = _encoded(self.columns_encoder, table.subset(np.arange(len(table)), self._used))
        except SourceError as error:
            raise ArgumentError(f"the columns are not of the kind the pool has: {error}") from error
        return self._scaled(x_ND)

    def _scaled(self, x_ND: np.ndarray) -> np.ndarray:
        mean_D, scale_D = self._scale
        np.subtract(x_ND, mean_D, out=x_ND)
        return np.divide(x_ND, scale_D, out=x_ND)

    def describe(self) -> dict[str, str]:
        """What was made of each column, in words."""
        made = self.columns_encoder.describe()
        return {
            name: f"left out: {self.left_out[name]}" if name in self.left_out else made[name] for name in self.names
        }


class FrameSource:
    """Rows of a frame. Inputs are features (n, D) float32; `rows` gives the user's own rows, in the library they use.

    Features are those of `labelwise label` and `labelwise simulate`. They are computed when they are first needed.
    """

    kind = "frame"
    whole = True

    def __init__(
        self,
        frame: Any,
        names: Sequence[str],
        *,
        learn_from: np.ndarray | None = None,
        encoder_of: FrameSource | None = None,
    ):
        """Rows of a native frame.

        Args:
            frame: see `io.frames.native_frame`.
            names: the columns that make a row.
            learn_from: positions of the rows that the encoder learns from; all if None.
            encoder_of: a source whose encoder is used; None to learn one.
        """
        self.frame = select_columns(frame, names)
        self.names = tuple(names)
        self._learn_from = learn_from
        self._encoder_of = encoder_of
        self._encoded: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        # The encoder is learnt here once, not by every worker.
        return {
            "frame": self.frame,
            "names": self.names,
            "_encoder_of": None,
            "_encoded": None,
            "encoder": self.encoder,
        }

    def __len__(self) -> int:
        return count_rows(self.frame)

    @property
    def library(self) -> str:
        """The library of the frame."""
        return library_of(self.frame)

    @cached_property
    def encoder(self) -> FrameEncoder:
        """What turns rows into features."""
        if self._encoder_of is not None:
            found, self._encoder_of = self._encoder_of.encoder, None  # the other rows are not needed any more
            return found
        found = FrameEncoder(self._table, self._learn_from, categorical_columns(self.frame))
        self._encoded, found.first = torch.from_numpy(found.first), None
        return found

    def rows(self, positions: np.ndarray) -> Any:
        """The rows at these positions, as a frame of the user's library."""
        return take_rows(self.frame, positions)

    def inputs(self, positions: np.ndarray) -> Tensor:
        return self._features[torch.from_numpy(positions)]

    def name(self, position: int) -> str | None:
        row = read_frame(self.rows(np.array([position])), self.names)
        words = ", ".join(f"{name} {' '.join(texts(values)[0].split())}" for name, values in row.columns.items())
        return words if len(words) <= 80 else words[:79] + "…"

    def sample(self, positions: np.ndarray) -> bytes:
        part = self._table.subset(positions)
        return b"".join(name.encode() + b"\0" + content(values) for name, values in part.columns.items())

    def part(self, positions: np.ndarray) -> tuple[FrameSource, None]:
        return FrameSource(self.rows(positions), self.names, encoder_of=self), None

    def learning_from(self, positions: np.ndarray) -> FrameSource:
        """The same rows with an encoder that is learnt from those at these positions."""
        return FrameSource(self.frame, self.names, learn_from=positions)

    def like(self, frame: Any) -> FrameSource:
        """New rows, with the encoder of these."""
        present = column_names(frame)
        missing = [name for name in self.names if name not in present]
        if missing:
            raise ArgumentError(
                f"rows as in the pool were expected, with columns {_listed(self.names)}; the frame lacks "
                f"{', '.join(map(repr, missing))}."
            )
        return FrameSource(frame, self.names, encoder_of=self)

    def grown(self, frame: Any) -> GrownFrameSource:
        """All rows of `frame`, with the encoder of these."""
        return GrownFrameSource(frame, self.names, encoder_of=self)

    @cached_property
    def _table(self) -> Table:
        return read_frame(self.frame, self.names)

    @property
    def _features(self) -> Tensor:
        """Features (n, D) of all rows."""
        encoder = self.encoder  # where it is learnt from these rows, it brings their features along
        if self._encoded is None:
            self._encoded = torch.from_numpy(encoder.encode(self._table))
        return self._encoded


class GrownFrameSource(FrameSource):
    """Rows of a frame to which rows were added. Its encoder was learnt without them, so it is another pool."""

    kind = "grown frame"


def _encoded(encoder: TableEncoder, table: Table) -> np.ndarray:
    """Features (n, D) float32, made in blocks: the columns of a block are there twice while it is made."""
    x_ND = np.empty((len(table), encoder.width), np.float32)
    for start in range(0, len(table), _BLOCK):
        rows = np.arange(start, min(start + _BLOCK, len(table)))
        x_ND[rows[0] : rows[-1] + 1] = encoder.encode(table.subset(rows))
    return x_ND


def _is_free(values: list[str]) -> bool:
    """Whether texts are of several words each, and not names."""
    present = [text for text in values if text]
    some = present[:: max(1, len(present) // 1000)]
    return sum(len(text.split()) for text in some) >= _WORDS * len(some)


def _listed(names: Sequence[Any]) -> str:
    return ", ".join(str(name) for name in names)
