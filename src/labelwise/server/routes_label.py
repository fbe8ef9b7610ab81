"""Routes of labelling: the page, the next card, answers, undo, new classes, images, neighbours, status and report."""

from __future__ import annotations

import getpass
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from labelwise.errors import ArgumentError, LabelError, LabelwiseError, StoreError
from labelwise.project import label_sets
from labelwise.project.meter.sentences import advice, figures, outlook, saving
from labelwise.project.settings import MAX_CLASS_NAME, class_name
from labelwise.project.suggest.suggestions import Suggestions
from labelwise.server.auth import clean_name
from labelwise.server.context import Context, person, session_of, words_of
from labelwise.server.middleware import cookie
from labelwise.server.report import certificate_text, report_values

if TYPE_CHECKING:
    from labelwise.project import RowView
    from labelwise.project.store import Event, Task

IMAGE_SIZES = {"small": 192, "large": 1280}
MAX_NOTE = 4000
MAX_SECONDS = 3600.0  # on one item; a longer time includes a break
LONG_WORD = 8  # letters in a word of a class, from which on its buttons are wider
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
        return context.page(
            request,
            "label.html",
            {"here": "label", "better": context.project.better_features(), **card(context, who), **status(context)},
        )

    @routes.post("/who")
    def who(request: Request, name: Annotated[str, Form()]) -> Response:
        session = session_of(request)
        if not context.access.is_open:
            return PlainTextResponse("Your link has your name. Who owns the project can give you another.", 403)
        try:
            renamed = replace(session, who=clean_name(name))
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
    def answer(request: Request, given: AnswerForm) -> Response:
        who = person(request)
        found = save_answer(context, who, given)
        if isinstance(found, Response):
            return found
        if isinstance(found, str):  # somebody else has the item: show the next one, and why
            return context.page(request, "card.html", card(context, who, message=found), status=409)
        return context.page(request, "card.html", card(context, who, found.message, announce=f"Saved: {found.answer}."))

    @routes.post("/undo")
    def undo(request: Request, token: Annotated[str, Form(min_length=8, max_length=100)]) -> Response:
        who = person(request)
        event = undo_answer(context, who, token)
        message = "" if event is not None else "You have no answer to undo."
        announce = "Answer undone." if event is not None else ""
        return context.page(request, "card.html", card(context, who, message, announce))

    @routes.post("/class")
    def new_class(request: Request, name: Annotated[str, Form()]) -> Response:
        who = person(request, "review")
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
        person(request, "review")
        values = report_values(context.project, lambda row: f"/image/{row}?size=small")
        for problem in values["problems"]:
            context.log(f"report: {problem}", once=True)
        return context.page(request, "report.html", {"here": "report", "online": True, **values})

    return routes


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
    values["multi"] = project.settings.task == "multi"
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
    return {
        **values,
        "view": view,
        "error": error,
        "classes": classes,
        "long_words": any(len(word) > LONG_WORD for one in classes for word in words_of(one.name)),
        "why": reason(task),
        "general": task.why.get("general", ""),
        "predicts": any(name in task.why for name in ("probs", "predicted", "each")),
        "suggestion": suggestions_of(context).rows.get(task.row) if task.slice == "chosen" else None,
        "copies": copies_of(context, task),
        "ahead": ahead,
    }


def copies_of(context: Context, task: Task) -> list[tuple[int, RowView]]:
    """The near-copies of an item that have no label."""
    rows = task.why.get("copies", [])
    answers = context.project.store.answers() if rows else {}
    views = [(row, context.view(row)[0]) for row in rows if row not in answers]
    return [(row, view) for row, view in views if view is not None]


def suggestions_of(context: Context) -> Suggestions:
    """What is suggested now; nothing where it cannot be read."""
    try:
        return context.project.suggestions()
    except LabelwiseError as error:
        context.log(f"suggestions: {error}", once=True)
        return Suggestions()


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
        "saving": saving(meter) if meter else outlook() if project.settings.task == "classify" else "",
        "advice": "" if meter is None else advice(meter),
        "training_warning": next((one.notes.get("warning", "") for one in reversed(project.store.rounds())), ""),
        "certificate": certificate_text(project.store.rounds()),
        "agreement": project.store.agreement() if project.settings.people > 1 else None,
        "excluded_rows": len(project.excluded),
        "suggestions": suggestions_of(context),
    }


# --- answers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given:
    """The fields of an answer, as a page sends them."""

    token: str
    kind: str
    value: str
    seconds: float
    note: str
    copies: str


def given(
    token: Annotated[str, Form(max_length=200)],
    kind: Annotated[str, Form()],
    value: Annotated[str, Form()] = "",
    seconds: Annotated[float, Form()] = math.nan,
    note: Annotated[str, Form(max_length=MAX_NOTE)] = "",
    copies: Annotated[str, Form(max_length=10)] = "",
) -> Given:
    """The answer in a request."""
    return Given(token, kind, value, seconds, note, copies)


AnswerForm = Annotated[Given, Depends(given)]


@dataclass(frozen=True)
class Saved:
    """An answer that is on disk: its row, the answer in words, and a message for the person."""

    row: int
    answer: str
    message: str = ""


def save_answer(context: Context, who: str, given: Given) -> Saved | str | Response:
    """Save an answer, and the same label for the near-copies of its item if `copies` is set.

    Returns:
        What was saved; or, as text, why the item is no longer this person's; or the reply to an answer that is refused.
    """
    store = context.project.store
    label = check_answer(context, given.kind, given.value)
    taken = min(given.seconds, MAX_SECONDS) if math.isfinite(given.seconds) and given.seconds >= 0 else None
    try:
        event = store.answer(given.token, who, given.kind, label, taken, given.note.strip())  # type: ignore[arg-type]
        assert event.row is not None
        copies = 0
        if given.copies and (event.kind, event.value) == ("label", label):
            copies = _label_copies(context, who, event)
    except StoreError as error:
        if error.__cause__ is not None:  # the database failed: the page keeps the answer and sends it again
            raise
        return str(error)
    except LabelwiseError as error:
        return PlainTextResponse(str(error), 422)
    answer = event.value or event.kind
    if (event.kind, event.value) != (given.kind, label):  # answered in another window of the same person
        message = f"You have already answered this item: {answer}. To change the answer, open the gallery."
        return Saved(event.row, answer, message)
    return Saved(event.row, f"{answer}, for {1 + copies} items" if copies else answer)


def _label_copies(context: Context, who: str, event: Event) -> int:
    """Give the label of an answer to the near-copies of its item that have none; how many those are.

    Each is an answer of its own. Their tokens follow from that of the answer, so a request may be repeated.
    """
    store = context.project.store
    pick = next((one for one in store.picks(event.round) if one.row == event.row), None) if event.round else None
    answers = store.answers()
    rows = [row for row in (pick.why.get("copies", []) if pick else []) if row not in answers]
    for row in rows:
        store.change(who, row, "label", event.value, f"{event.token}:{row}", "")
    return len(rows)


def undo_answer(context: Context, who: str, token: str) -> Event | None:
    """Take back the last answer of this person, and with a label that near-copies were given all of these."""
    store = context.project.store
    event, copies = store.undo(who, token), 0
    while event is not None and event.undoes is not None:
        undone = store.events(event.undoes - 1, 1)[0]
        if not undone.token.endswith(f":{undone.row}"):
            break
        copies += 1
        event = store.undo(who, f"{token}:{copies}")
    return event


def check_answer(context: Context, kind: str, value: str) -> str | None:
    """The value of an answer as it is stored; HTTPException with the reason if it is not valid."""
    if kind in ("skip", "unsure"):
        return None
    if kind != "label":
        raise HTTPException(422, "An answer is label, skip or unsure.")
    if context.project.settings.task == "regress":
        return _number(value)
    if context.project.settings.task == "multi":
        try:
            return label_sets.checked(value, context.project.store.classes())
        except LabelError as error:
            raise HTTPException(422, str(error)) from error
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
