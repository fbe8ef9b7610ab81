"""Card: what is shown of the next item, with its classes, keys and reason; or why there is none just now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from labelwise.errors import LabelwiseError
from labelwise.server.context import Desk
from labelwise.server.phrases import reason

if TYPE_CHECKING:
    from labelwise.project import Shown
    from labelwise.project.store import Task

# Not s, u, z, n (skip, unsure, undo, note): those are taken.
KEYS = "1234567890" + "abcdefghijklmopqrtvwxy"
AHEAD = 3  # items whose pictures are fetched before they are needed


@dataclass(frozen=True)
class Class:
    """A class and the key that gives it ('' when the keys have run out)."""

    name: str
    key: str


def keyed(classes: Sequence[str]) -> list[Class]:
    """Classes with their keys: its own for a name of one sign, else the next free of digits and letters.

    A class that is added later changes no key that people have learnt.

    >>> [one.key for one in keyed(["cat", "dog", "7", "bird"])]
    ['1', '2', '7', '3']
    """
    free, found = list(KEYS), []
    for name in classes:
        key = name.lower() if name.lower() in free else free[0] if free else ""
        if key:
            free.remove(key)
        found.append(Class(name, key))
    return found


def card(desk: Desk, who: str, message: str = "", saved: str = "") -> dict[str, Any]:
    """What the template `card.html` needs for the next item of `who`. `saved` is read out, `message` is shown."""
    store, settings = desk.project.store, desk.project.settings
    task = store.next_task(who)
    values: dict[str, Any] = {"message": message, "saved": saved, "task": task, "regress": settings.task == "regress"}
    if task is None:
        return {**values, **waiting(desk)}
    shown, broken = look(desk, task.row)
    return {
        **values,
        "shown": shown,
        "broken": broken,
        "classes": keyed(store.classes()),
        "why": reason(task.strategy, task.slice, task.round, task.why),
        "ahead": ahead(desk, who, task),
    }


def look(desk: Desk, row: int) -> tuple[Shown | None, str]:
    """A row as it is shown, or None and what is wrong with it; the log is told, and the rest goes on."""
    try:
        return desk.project.shown(row), ""
    except (LabelwiseError, OSError) as error:
        desk.log(f"row {row} cannot be shown: {error}", once=True)
        return None, str(error)


def ahead(desk: Desk, who: str, task: Task) -> list[int]:
    """Rows that come next, for the browser to fetch their pictures now."""
    if desk.project.settings.kind != "image":
        return []
    return [other.row for other in desk.project.store.peek(who, AHEAD + 1) if other.row != task.row][:AHEAD]


def waiting(desk: Desk) -> dict[str, Any]:
    """Why there is no item: others have the rest, the worker prepares more or stands still, or nothing is left."""
    progress, working = desk.project.store.progress(), desk.project.working()
    left = progress.picks - progress.answered
    return {"working": working, "left": left, "finished": working.state == "idle" and left == 0 and progress.picks > 0}
