"""Labels as a table: CSV for people and spreadsheets, Parquet for programs. The same columns in both."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from labelwise.errors import SourceError
from labelwise.project.exchange.columns import csv_of, parquet_of
from labelwise.project.exchange.entries import Entries, Entry
from labelwise.project.predict.predictions import Predictions
from labelwise.project.project import Project

COLUMNS = (
    "id", "path", "label", "standing", "slice", "people", "votes", "seconds", "at", "round", "strategy", "score",
    "model", "note", "decided_by",
)  # fmt: skip


def csv_text(project: Project, found: Entries, more: Predictions | None = None) -> str:
    """The entries as CSV."""
    return csv_of(_columns(project, found, more))


def parquet_bytes(project: Project, found: Entries, more: Predictions | None = None) -> bytes:
    """The entries as a Parquet file. Labels are numbers in a project of numbers."""
    columns: dict[str, list[Any]] = dict(_columns(project, found, more))
    if project.settings.task != "regress":
        return parquet_of(columns)
    columns["label"] = [_number(value) for value in columns["label"]]
    return parquet_of(columns, ("label", "prediction"))


def predictions_columns(project: Project, found: Predictions) -> dict[str, list[Any]]:
    """Predictions of the project's rows as columns, with the text or the fields of each row."""
    return found.columns() | _content(project, found.ids, found.columns())


def _columns(project: Project, found: Entries, more: Predictions | None) -> dict[str, list[Any]]:
    """Every column by name: COLUMNS, what the model predicts, then the text or fields of the row."""
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    for entry in found.rows:
        for name, value in _values(entry).items():
            columns[name].append(value)
    if more is not None:
        at = {row: place for place, row in enumerate(more.ids)}
        order = [at[entry.row] for entry in found.rows]
        predicted = {name: values for name, values in more.columns().items() if name not in ("id", "path", "label")}
        columns |= {name: [values[place] for place in order] for name, values in predicted.items()}
    return columns | _content(project, [entry.row for entry in found.rows], columns)


def _content(project: Project, rows: Sequence[int], columns: Collection[str]) -> dict[str, list[Any]]:
    """The text or the fields of each row as columns; a field with the name of another column gets `data_`."""
    if project.settings.kind == "text":
        return {"text": [_text(project, row) for row in rows]}
    if project.settings.kind == "image":
        return {}
    fields = [dict(project.view(row).fields or []) for row in rows]
    return {
        f"data_{name}" if name in columns else name: [one.get(name, "") for one in fields]
        for name in project.settings.columns
    }


def _values(entry: Entry) -> dict[str, Any]:
    score = entry.score if entry.score is not None and math.isfinite(entry.score) else None
    votes = {who: one.value if one.value is not None else one.kind for who, one in sorted(entry.ballots.items())}
    return {
        "id": entry.row,
        "path": entry.ref,
        "label": entry.value,
        "standing": entry.kind,
        "slice": entry.slice,
        "people": len(votes),
        "votes": json.dumps(votes, ensure_ascii=False) if votes else None,
        "seconds": entry.seconds,
        "at": None if entry.at is None else datetime.fromtimestamp(entry.at, UTC),
        "round": entry.round,
        "strategy": entry.strategy or None,
        "score": score,
        "model": entry.model or None,
        "note": entry.note or None,
        "decided_by": entry.decided_by or None,
    }


def _text(project: Project, row: int) -> str | None:
    try:
        return project.view(row).text
    except SourceError:
        return None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
