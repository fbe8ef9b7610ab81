"""Check the folder of a session, and repair what can be repaired. Nothing is thrown away: it is set aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labelwise.errors import StoreError
from labelwise.io.chain import head_file
from labelwise.io.checked import read_checked
from labelwise.io.values import load_value
from labelwise.pool import Ledger
from labelwise.pool.repair import damaged_name, repair_ledger, salvage
from labelwise.session import folder as store
from labelwise.session.pending import PendingBatch

JOURNAL = "selection"  # the checkpoint of an `ask`


def is_session(folder: Path) -> bool:
    """Whether a folder holds a session, whole or damaged."""
    return (folder / store.SETTINGS).exists() or (folder / store.ANSWERS).exists()


def check_session(folder: Path, repair: bool = False) -> list[str]:
    """What is wrong with a session's folder, a sentence for each fault; empty if it is whole.

    Args:
        folder: the folder of a session.
        repair: set aside what is damaged and keep the rest. What cannot be repaired says so.
    """
    faults = []
    try:
        store.settings(folder)
    except StoreError as error:
        faults.append(
            f"{error}. It cannot be repaired: the answers are in {store.ANSWERS}; continue with them in a new session"
        )
    answers = folder / store.ANSWERS
    found = salvage(answers).faults
    if not answers.exists() and not found:
        found = (f"{answers} is missing; restore it from a copy",)
    moved = repair_ledger(answers) if repair and found and (answers.exists() or head_file(answers).exists()) else None
    faults += [f"{fault}{_where(moved)}" for fault in found]
    whole = Ledger(answers) if moved is not None or (answers.exists() and not found) else None
    checks: list[tuple[str, Callable[[Path], object]]] = [
        (store.PENDING, lambda path: _check_after(path, _check_pending(path), whole)),
        (store.MODEL, lambda path: _check_after(path, _check_model(path), whole)),
        (JOURNAL, _check_journal),
    ]
    for name, check in checks:
        path = folder / name
        try:
            if path.exists():
                check(path)
        except StoreError as error:
            faults.append(f"{error}{_where(_move_away(path) if repair else None)}")
    return faults


def _check_after(path: Path, stored: Any, ledger: Ledger | None) -> None:
    """Raise StoreError for a batch or a fit of other answers than those of a whole ledger."""
    if ledger is not None and not store.is_after(stored, ledger):
        raise StoreError(f"{path} belongs to other answers than those of {store.ANSWERS}; it is left out")


def _check_pending(path: Path) -> dict[str, Any]:
    stored = read_checked(path, "without it, that batch is asked for again", early=1)
    PendingBatch.from_json(stored, str(path))
    return stored


def _check_model(path: Path) -> Any:
    return load_value(path, "without it, training starts again from the answers")


def _check_journal(path: Path) -> None:
    for name in ("about.json", "progress.json"):
        if (path / name).exists():
            read_checked(path / name, "without it, the selection starts again", early=5)


def _move_away(path: Path) -> Path:
    return path.rename(damaged_name(path))


def _where(moved: Path | None) -> str:
    return "" if moved is None else f". Set aside as {json.dumps(moved.name)}"
