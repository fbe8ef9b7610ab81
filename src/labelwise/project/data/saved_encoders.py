"""Encoders as data: what an encoder learnt from a project, to encode other rows with it. No code and no pickle."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from labelwise.errors import ArgumentError, SourceError, StoreError
from labelwise.io.encode_table import CategoryColumn, Column, NumberColumn, TableEncoder, TextColumn
from labelwise.io.encode_texts import TextEncoder
from labelwise.project.data.encoders import Encoder, encoder_of
from labelwise.project.data.plain_encoders import Columns, Words
from labelwise.project.data.source import Data, Rows
from labelwise.project.settings import Kind

Arrays = dict[str, np.ndarray]
LEARNT = ("words", "columns")  # encoders that learn from the rows of a project
_KINDS: dict[str, type[NumberColumn] | type[CategoryColumn]] = {"number": NumberColumn, "category": CategoryColumn}


def on(encoder: Encoder, data: Data) -> Encoder:
    """The encoder for the rows of `data`, which need not be those it has learnt from."""
    if not isinstance(encoder, Columns):
        return encoder
    if not isinstance(data, Rows):
        raise SourceError("the model was trained on rows of a table; expected a table with the same columns")
    return replace(encoder, x_NW=encoder.learnt.encode(data.table))


def state_of(encoder: Encoder) -> tuple[dict[str, Any], Arrays]:
    """What the encoder has learnt, as JSON and as arrays."""
    if isinstance(encoder, Words):
        learnt = encoder.learnt
        return {}, {"known": learnt.known_U, "idf": learnt.idf_U, "to": learnt.to_UW}
    if isinstance(encoder, Columns):
        columns = {name: _column(one) for name, one in encoder.learnt.columns.items()}
        return {"columns": columns, "widths": list(encoder.learnt.widths)}, {}
    return {}, {}


def restored(name: str, kind: Kind, state: dict[str, Any], arrays: Arrays) -> Encoder:
    """The encoder `name` with what `state_of` gave. ArgumentError for one that is a user's own code."""
    if name == "words":
        known, idf, to = (arrays.get(part, np.empty(0, object)) for part in ("known", "idf", "to"))
        numbers = all(one.dtype.kind == "f" and np.isfinite(one).all() for one in (idf, to))
        if (
            not numbers
            or known.dtype.kind not in "iuU"
            or known.shape != idf.shape
            or to.shape[:1] != idf.shape
            or to.ndim != 2
        ):
            raise StoreError(
                f"the words of the encoder are damaged: known {known.shape}, idf {idf.shape}, to {to.shape}"
            )
        return Words(TextEncoder(known, idf, to))
    if name == "columns":
        found, widths = state.get("columns"), state.get("widths")
        if not isinstance(found, dict) or not isinstance(widths, list) or len(widths) != len(found):
            raise StoreError(
                f"the columns of the encoder are damaged: expected columns and widths, found {state!r:.200}"
            )
        columns: dict[str, Column] = {key: _restored_column(key, one) for key, one in found.items()}
        if [_width(one) for one in columns.values()] != widths:
            raise StoreError(f"the columns of the encoder are damaged: they do not make {widths} features")
        learnt = TableEncoder(columns, tuple(widths))
        return Columns(np.empty((0, learnt.width), np.float32), learnt.width, learnt.blocks, learnt)
    return encoder_of(name, kind, None, trusted=False)


def _column(column: Column) -> dict[str, Any]:
    if isinstance(column, TextColumn):
        raise ArgumentError("a column of free texts cannot be saved with a model; use --text for a project of texts")
    kind = next(name for name, made in _KINDS.items() if isinstance(column, made))
    return {"kind": kind, **asdict(column)}


def _restored_column(name: str, found: Any) -> Column:
    """The column that `_column` described; StoreError where it is another thing."""
    fields = {"number": {"low", "high", "median", "steps", "has_gaps"}, "category": {"common", "has_others"}}
    kind = found.get("kind") if isinstance(found, dict) else None
    values = {key: value for key, value in found.items() if key != "kind"} if isinstance(found, dict) else {}
    if isinstance(kind, str) and values.keys() == fields.get(kind):
        if kind == "category" and _is_list(values["common"], str) and isinstance(values["has_others"], bool):
            return CategoryColumn(tuple(values["common"]), values["has_others"])
        steps = values.get("steps")
        if kind == "number" and isinstance(steps, list) and isinstance(values["has_gaps"], bool):
            pairs = [step for step in steps if _is_list(step, float) and len(step) == 2 and step[0] < step[1]]
            rest = [values["low"], values["high"], values["median"]]
            if len(pairs) == len(steps) and _is_list(rest, float):
                return NumberColumn(rest[0], rest[1], rest[2], tuple((a, b) for a, b in pairs), values["has_gaps"])
    raise StoreError(f"the column {name!r} of the encoder is damaged: {found!r:.200}. Write the model again")


def _is_list(values: Any, kind: type) -> bool:
    """Whether this is a list of texts, or of finite numbers."""
    if kind is str:
        return isinstance(values, list) and all(isinstance(one, str) for one in values)
    return isinstance(values, list) and all(type(one) in (int, float) and abs(one) < 1e300 for one in values)


def _width(column: Column) -> int:
    """The number of features that a column gives."""
    if isinstance(column, NumberColumn):
        return len(column.encode(np.zeros(1)))
    return len(column.encode([""]))
