"""What a session says about itself: in one line, as a table for notebooks, and its rounds as columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from labelwise.io.frames import make_frame
from labelwise.pool import Entry, Ledger, Pool

if TYPE_CHECKING:
    from labelwise.session.session import Session

_COLUMNS = ("round", "labels", "ids", "answers", "recipe", "notes", "estimate")


def one_line(session: Session) -> str:
    """The session in one line."""
    folder = "no folder" if session.folder is None else f"folder {str(session.folder)!r}"
    return (
        f"Session({len(session.pool)} rows, {len(session.ledger.labelled)} labelled, round {session.round}, "
        f"recipe {session.recipe.name!r}, seed {session.seed}, {folder})"
    )


def html_table(session: Session) -> str:
    """The session as a small HTML table; every value is escaped."""
    classes = session.classes
    named = ", ".join(classes[:10]) + (" ..." if len(classes) > 10 else "") if isinstance(classes, tuple) else classes
    learner = session.learner
    values = {
        "pool": f"{len(session.pool)} rows",
        "labelled": len(session.ledger.labelled),
        "round": session.round,
        "recipe": session.recipe.name,
        "learner": "none" if learner is None else repr(learner),
        "task": session.task,
        "classes": "not known" if named is None else named,
        "seed": session.seed,
        "folder": "none" if session.folder is None else session.folder,
    }
    if session.task == "regress":
        del values["classes"]
    rows = "".join(f"<tr><th>{name}</th><td>{escape(str(value))}</td></tr>" for name, value in values.items())
    return f"<table><caption>Session</caption><tbody>{rows}</tbody></table>"


def history_table(ledger: Ledger, estimates: Mapping[int, Any], pool: Pool) -> dict[str, list[Any]]:
    """The rounds of a ledger about rows of a pool as columns; `estimates` are by round."""
    table: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    labelled: set[int] = set()
    rounds: dict[int, list[Entry]] = {}
    for entry in ledger:
        rounds.setdefault(entry.round, []).append(entry)
    for number, entries in sorted(rounds.items()):
        ids = [row for entry in entries for row in entry.ids]
        for entry in entries:
            (labelled.difference_update if entry.is_retraction else labelled.update)(entry.ids)
        notes = {name: value for entry in entries for name, value in entry.notes.items() if name != "unasked"}
        answers = [label for entry in entries for label in entry.labels]
        row = (
            number,
            len(labelled),
            pool.keys_of(ids).tolist(),
            answers,
            next((entry.strategy for entry in reversed(entries) if not entry.is_retraction), ""),
            notes,
            estimates.get(number),
        )
        for name, value in zip(_COLUMNS, row, strict=True):
            table[name].append(value)
    return table


def history_frame(table: dict[str, list[Any]], library: str) -> Any:
    """The columns that `history_table` made as a frame of a library."""
    rounds, columns = table["round"], {name: table[name] for name in _COLUMNS[1:]}
    if library != "pandas":  # columns there have one type
        for name in ("notes", "estimate"):
            columns[name] = [None if value is None else json.dumps(value, default=str) for value in columns[name]]
        whole = all(isinstance(row, int) and abs(row) < 2**63 for some in columns["ids"] for row in some)
        columns["ids"] = [some if whole else [str(row) for row in some] for some in columns["ids"]]
    return make_frame(library, "round", np.array(rounds, np.int64), columns)
