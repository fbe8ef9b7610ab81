"""Finder: which row of a project a label in a file is for. What is not certain is not found."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from labelwise.errors import SourceError
from labelwise.project.exchange.read_labels import FoundLabel
from labelwise.project.project import Project


class Finder:
    """Rows by id, path and text.

    The text decides where there is one, then the path, then the id: numbers alone would point at other rows in a
    project that was made of a changed file. An id with a path or text that is not that row's is not taken.
    """

    def __init__(self, project: Project):
        self._kind = project.settings.kind
        self._root = project.settings.path(project.folder)
        self._refs = {item.row: item.ref for item in project.store.items()}
        self._by_ref = {ref: row for row, ref in self._refs.items()}
        self._by_text: dict[str, list[int]] = {}
        if self._kind == "text":
            for row in self._refs:
                try:
                    text = project.shown(row).text
                except SourceError:
                    continue
                self._by_text.setdefault((text or "").strip(), []).append(row)

    def find(self, label: FoundLabel) -> int | str:
        """The row, or why there is none."""
        row = self._id(label.id)
        if label.text is not None and self._kind == "text":
            rows = self._by_text.get(label.text.strip(), [])
            if row in rows and row is not None:
                return row
            if len(rows) == 1:
                return rows[0]
            return f"{len(rows)} rows have this text" if rows else "no row has this text"
        if label.path is not None:
            found = self._path(label.path)
            if found is not None:
                return found
            return f"there is no {label.path!r:.80} in the project"
        if label.id is None:
            return "nothing says which row it is for"
        return row if row is not None else f"there is no row {label.id!r:.40}"

    def _id(self, text: str | None) -> int | None:
        try:
            row = int(text) if text is not None else None
        except ValueError:
            return None
        return row if row in self._refs else None

    def _path(self, text: str) -> int | None:
        """A path as it stands, below the folder of the data, or at the end of an address."""
        for one in (text, text.replace("\\", "/"), os.path.normpath(text).replace("\\", "/")):
            if one in self._by_ref:
                return self._by_ref[one]
        if self._kind != "image":
            return None
        if Path(text).is_absolute():
            inside = os.path.relpath(os.path.realpath(text), os.path.realpath(self._root)).replace("\\", "/")
            if inside in self._by_ref:
                return self._by_ref[inside]
        parts = urlsplit(text)
        told = parse_qs(parts.query).get("d", [unquote(parts.path)])[0].split("/")
        ends = ("/".join(told[start:]) for start in range(1, len(told)))
        return next((self._by_ref[end] for end in ends if end in self._by_ref), None)
