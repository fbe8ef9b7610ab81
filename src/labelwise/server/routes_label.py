"""Routes of labelling: the page, the next card, answers, undo, new classes, images, neighbours, status and report."""

from __future__ import annotations

import getpass
import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Form, HTTPException, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from labelwise.errors import ArgumentError, LabelwiseError, StoreError
from labelwise.project.meter.sentences import advice, figures, headline, saving
from labelwise.project.settings import MAX_CLASS_NAME, class_name
from labelwise.server.auth import Session, clean_name
from labelwise.server.context import Context, session_of
from labelwise.server.middleware import cookie

if TYPE_CHECKING:
    from labelwise.project.store import Task

IMAGE_SIZES = {"small": 192, "large": 1280}
MAX_NOTE = 4000
MAX_SECONDS = 3600.0  # on one item; a longer time includes a break
PRELOADED = 3  # images the browser fetches before they are needed
CLASS_KEYS = "1234567890" + "abcdefghijklmopqrtvwxy"  # s, u, z and n are skip, unsure, undo and note
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
_TEST_REASON = "Drawn at random, to measure how good the model is. Its answer is never used for training."


def label_routes(context: Context) -> APIRouter:
    """All routes of labelling."""
    routes = APIRouter()
    store = context.project.store

    @routes.get("/")
    def label_page(request: Request) -> Response:
        who = session_of(request).who
        if not who:
            return context.page(request, "who.html", {"guess": _user_name() if context.auth.token is None else ""})
        return context.page(request, "label.html", {"here": "label", **card(context, who), **status(context)})

    @routes.post("/who")
    def who(request: Request, name: Annotated[str, Form()]) -> Response:
        session = session_of(request)
        try:
            renamed = Session(session.id, clean_name(name))
        except ArgumentError as error:
            return PlainTextResponse(str(error), 422)
        if session.who and session.who != renamed.who:
            store.release(session.who)  # others need not wait for the item that is open under the old name
        reply = Response(status_code=204, headers={"HX-Redirect": "/"})
        reply.headers.append("Set-Cookie", cookie(context.auth, renamed, request.url.scheme == "https"))
        return reply

    @routes.get("/card")
    def next_card(request: Request) -> Response:
        return context.page(request, "card.html", card(context, person(request)))

    @routes.post("/answer")
    def answer(
        request: Request,
        token: Annotated[str, Form(max_length=200)],
        kind: Annotated[str, Form()],
        value: Annotated[str, Form()] = "",
        seconds: Annotated[float, Form()] = math.nan,
        note: Annotated[str, Form(max_length=MAX_NOTE)] = "",
    ) -> Response:
        who = person(request)
        label = check_answer(context, kind, value)
        taken = min(seconds, MAX_SECONDS) if math.isfinite(seconds) and seconds >= 0 else None
        try:
            event = store.answer(token, who, kind, label, taken, note.strip())  # type: ignore[arg-type]
        except StoreError as error:
            if error.__cause__ is not None:  # the database failed: the page keeps the answer and sends it again
                raise
            # The token is no longer valid: somebody else has the item. Show the next one, and why.
            return context.page(request, "card.html", card(context, who, message=str(error)), status=409)
        except LabelwiseError as error:
            return PlainTextResponse(str(error), 422)
        message, saved = "", event.value or event.kind
        if (event.kind, event.value) != (kind, label):  # answered in another window of the same person
            message = f"You have already answered this item: {saved}. To change the answer, open the gallery."
        return context.page(request, "card.html", card(context, who, message, announce=f"Saved: {saved}."))

    @routes.post("/undo")
    def undo(request: Request, token: Annotated[str, Form(min_length=8, max_length=100)]) -> Response:
        who = person(request)
        event = store.undo(who, token)
        message = "" if event is not None else "You have no answer to undo."
        announce = "Answer undone." if event is not None else ""
        return context.page(request, "card.html", card(context, who, message, announce))

    @routes.post("/class")
    def new_class(request: Request, name: Annotated[str, Form()]) -> Response:
        who = person(request)
        try:
            added = class_name(name)
            if added not in store.classes():
                store.add_class(added, who)
        except LabelwiseError as error:
            return PlainTextResponse(str(error), 422)
        return context.page(request, "card.html", card(context, who, announce=f"Class {added} added."))

    @routes.get("/image/{row}")
    def image(row: int, size: str = "large") -> Response:
        if size not in IMAGE_SIZES:
            raise HTTPException(404, f"The size of an image is one of {', '.join(IMAGE_SIZES)}.")
        try:
            data = context.project.image(row, IMAGE_SIZES[size])
        except (LabelwiseError, OSError) as error:
            context.log(f"the image of row {row} cannot be shown: {error}", once=True)
            return PlainTextResponse(str(error), 422)
        kind = "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
        return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=86400"})

    @routes.get("/neighbours/{row}")
    def neighbours(request: Request, row: int) -> Response:
        person(request)
        try:
            found = context.project.neighbours(row, 3)
        except LabelwiseError as error:
            context.log(f"neighbours of row {row}: {error}", once=True)
            found = []
        views = [(near, *context.view(near.row)) for near in found]
        return context.page(request, "neighbours.html", {"neighbours": views})

    @routes.get("/status")
    def status_panel(request: Request) -> Response:
        return context.page(request, "state.html", status(context))

    @routes.get("/report")
    def report_page(request: Request) -> Response:
        if not session_of(request).who:
            return RedirectResponse("/", 303)
        return context.page(request, "report.html", {"here": "report", **report(context)})

    return routes


def person(request: Request) -> str:
    """The name of the person; without one nothing can be answered."""
    who = session_of(request).who
    if not who:
        raise HTTPException(401, "Your name is missing. Open the page again and enter it.")
    return who


# --- what the templates show -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Class:
    """A class and its key ("" when there are more classes than keys)."""

    name: str
    key: str


def with_keys(classes: Sequence[str]) -> list[Class]:
    """Classes with their keys: a name of one character is its own key, others get the next free digit or letter.

    A class that is added later changes no key that people have learnt.

    >>> [one.key for one in with_keys(["cat", "dog", "7", "bird"])]
    ['1', '2', '7', '3']
    """
    free, found = list(CLASS_KEYS), []
    for name in classes:
        key = name.lower() if name.lower() in free else free[0] if free else ""
        if key:
            free.remove(key)
        found.append(Class(name, key))
    return found


def card(context: Context, who: str, message: str = "", announce: str = "") -> dict[str, Any]:
    """The values of `card.html` for the next item of this person.

    Args:
        context: the project on the page.
        who: the person.
        message: shown above the item.
        announce: read out by screen readers.
    """
    project = context.project
    task = project.store.next_task(who)
    values: dict[str, Any] = {"message": message, "saved": announce, "task": task}
    values["regress"] = project.settings.task == "regress"
    if task is None:
        progress, worker = project.store.progress(), project.heartbeat()
        left = progress.picks - progress.answered
        finished = worker.state == "idle" and left == 0 and progress.picks > 0
        return {**values, "worker": worker, "left": left, "finished": finished}
    view, error = context.view(task.row)
    ahead: list[int] = []
    if project.settings.kind == "image":
        ahead = [other.row for other in project.store.peek(who, PRELOADED + 1) if other.row != task.row][:PRELOADED]
    classes = with_keys(project.store.classes())
    return {**values, "view": view, "error": error, "classes": classes, "why": reason(task), "ahead": ahead}


def reason(task: Task) -> str:
    """Why this item was picked. For a test row the model's guess is hidden: it would bias the answer that tests it."""
    if task.slice == "test":
        return _TEST_REASON
    words = task.why.get("words")
    if isinstance(words, str) and words:
        return words
    from labelwise.strategies import reason_of  # late: a page whose picks all have words does not import torch

    return reason_of(task.strategy)


def status(context: Context) -> dict[str, Any]:
    """The values of `state.html`. A meter that cannot be read is left out; the page still works."""
    project = context.project
    try:
        meter = project.meter()
    except LabelwiseError as error:
        context.log(f"meter: {error}", once=True)
        meter = None
    return {
        "progress": project.store.progress(),
        "worker": project.heartbeat(),
        "meter": meter,
        "figures": figures(meter),
        "saving": "" if meter is None else saving(meter),
        "advice": "" if meter is None else advice(meter),
        "agreement": project.store.agreement() if project.settings.people > 1 else None,
        "excluded_rows": len(project.excluded),
    }


def report(context: Context) -> dict[str, Any]:
    """The values of `report.html`."""
    project, values = context.project, status(context)
    labels = Counter(answer.value for answer in project.store.answers().values() if answer.value is not None)
    return {
        **values,
        "headline": headline(values["meter"], values["progress"].labels),
        "counts": labels.most_common(50) if project.settings.task == "classify" else [],
        "rounds": project.store.rounds(),
        "warnings": project.warnings,
        "excluded": project.excluded,
        "folder": project.folder.name,
    }


# --- answers ---------------------------------------------------------------------------------------------------------


def check_answer(context: Context, kind: str, value: str) -> str | None:
    """The value of an answer as it is stored; HTTPException with the reason if it is not valid."""
    if kind in ("skip", "unsure"):
        return None
    if kind != "label":
        raise HTTPException(422, "An answer is label, skip or unsure.")
    if context.project.settings.task == "regress":
        return _number(value)
    if value not in context.project.store.classes():
        raise HTTPException(422, f"There is no class {value[:MAX_CLASS_NAME]!r}. Add it first, with +.")
    return value


def _number(text: str) -> str:
    text = text.strip()
    if _THOUSANDS.fullmatch(text):  # one comma and three digits: a thousand to some, a decimal to others
        raise HTTPException(422, f"{text} is ambiguous. Write {text.replace(',', '')}, or use a decimal point.")
    try:
        value = float(text.replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(422, f"Enter a number, such as 12.5; found {text[:40]!r}.")
    return repr(value)


def _user_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
