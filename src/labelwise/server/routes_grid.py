"""Routes of the grid: many items at once, each answered and saved on its own; suggestions are accepted row by row."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Request
from fastapi.responses import RedirectResponse, Response

from labelwise.project.store import Task
from labelwise.server.context import Context, person, session_of
from labelwise.server.routes_label import (
    AnswerForm,
    copies_of,
    save_answer,
    status,
    suggestions_of,
    undo_answer,
    with_keys,
)

TILES = {"image": 12, "text": 6, "table": 6}  # items on a page
MOST_BUTTONS, MOST_LETTERS = 6, 20  # classes that have a button on each item, or their letters; more are in a menu


def grid_routes(context: Context) -> APIRouter:
    """All routes of the grid."""
    routes = APIRouter()
    store = context.project.store

    @routes.get("/grid")
    def grid_page(request: Request) -> Response:
        who = session_of(request).who
        if not who:
            return RedirectResponse("/", 303)
        return context.page(request, "grid.html", {"here": "grid", **tiles(context, who), **status(context)})

    @routes.get("/tiles")
    def next_tiles(request: Request) -> Response:
        return context.page(request, "tiles.html", tiles(context, person(request)))

    @routes.post("/tile")
    def answer(request: Request, given: AnswerForm) -> Response:
        who = person(request)
        found = save_answer(context, who, given)
        if isinstance(found, Response):
            return found
        if isinstance(found, str):
            return context.page(request, "told.html", {"said": "", "message": found}, status=409)
        return context.page(request, "told.html", {"said": found.answer, "message": found.message})

    @routes.post("/tile/undo")
    def undo(request: Request, token: Annotated[str, Form(min_length=8, max_length=100)]) -> Response:
        who = person(request)
        event = undo_answer(context, who, token)
        task = None if event is None else store.next_task(who)  # the one that was taken back comes first
        if task is None:
            return context.page(request, "told.html", {"said": "", "message": "You have no answer to undo."}, 409)
        return context.page(request, "tile.html", {"tile": _tile(context, task), **_shared(context)})

    return routes


def tiles(context: Context, who: str) -> dict[str, Any]:
    """The values of `tiles.html`: the next items of this person, each reserved for them."""
    store, found = context.project.store, list[Task]()
    while len(found) < TILES[context.project.settings.kind]:
        task = store.next_task(who, skip=[one.row for one in found])
        if task is None:
            break
        found.append(task)
    worker = context.project.heartbeat()
    return {"tiles": [_tile(context, task) for task in found], "worker": worker, **_shared(context)}


def _tile(context: Context, task: Task) -> dict[str, Any]:
    view, error = context.view(task.row)
    suggestion = suggestions_of(context).rows.get(task.row) if task.slice == "chosen" else None
    copies = len(copies_of(context, task))
    return {"task": task, "view": view, "error": error, "suggestion": suggestion, "copies": copies}


def _shared(context: Context) -> dict[str, Any]:
    classes = with_keys(context.project.store.classes())
    few = len(classes) <= MOST_BUTTONS or sum(len(one.name) for one in classes) <= MOST_LETTERS
    regress = context.project.settings.task == "regress"
    multi = context.project.settings.task == "multi"
    return {"classes": classes, "regress": regress, "multi": multi, "buttons": few or multi}
