"""Routes of labelling: the page, the next card, answers, undo, a new class, pictures, neighbours and the state."""

from __future__ import annotations

import getpass
import math
import re
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from labelwise.errors import ArgumentError, LabelwiseError, StoreError
from labelwise.project.settings import LONGEST_CLASS, class_name
from labelwise.server.auth import Session, clean_name
from labelwise.server.card import card, look
from labelwise.server.context import Desk, session_of
from labelwise.server.middleware import cookie
from labelwise.server.status import report, state

SIZES = {"small": 192, "large": 1280}
LONGEST_NOTE = 4000
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")
LONGEST_STAY = 3600.0  # seconds on one item; more is a lunch break


def named(request: Request) -> str:
    """The person's name; without one nothing may be answered."""
    who = session_of(request).who
    if not who:
        raise HTTPException(401, "Give your name first: open the page again.")
    return who


def label_routes(desk: Desk) -> APIRouter:
    """All routes of labelling on `desk`."""
    routes = APIRouter()

    @routes.get("/")
    def label_page(request: Request) -> Response:
        who = session_of(request).who
        if not who:
            return desk.page(request, "who.html", {"guess": _own_name() if desk.guard.token is None else ""})
        return desk.page(request, "label.html", {"here": "label", **card(desk, who), **state(desk)})

    @routes.post("/who")
    def who(request: Request, name: Annotated[str, Form()]) -> Response:
        session = session_of(request)
        try:
            new = Session(session.id, clean_name(name))
        except ArgumentError as error:
            return PlainTextResponse(str(error), 422)
        if session.who and session.who != new.who:
            desk.project.store.release(session.who)  # so that others need not wait for what is open there
        reply = Response(status_code=204, headers={"HX-Redirect": "/"})
        reply.headers.append("Set-Cookie", cookie(desk.guard, new, request.url.scheme == "https"))
        return reply

    @routes.get("/card")
    def next_card(request: Request) -> Response:
        return desk.page(request, "card.html", card(desk, named(request)))

    @routes.post("/answer")
    def answer(
        request: Request,
        token: Annotated[str, Form(max_length=200)],
        kind: Annotated[str, Form()],
        value: Annotated[str, Form()] = "",
        seconds: Annotated[float, Form()] = math.nan,
        note: Annotated[str, Form(max_length=LONGEST_NOTE)] = "",
    ) -> Response:
        who = named(request)
        wanted = checked(desk, kind, value)
        try:
            event = desk.project.store.answer(token, who, kind, wanted, _stay(seconds), note.strip())  # type: ignore[arg-type]
        except StoreError as error:
            if error.__cause__ is not None:  # the database itself failed: the page keeps the answer and sends it again
                raise
            # The token is not good any more: somebody else has the item. The next one, and a word about it.
            return desk.page(request, "card.html", card(desk, who, message=str(error)), status=409)
        except LabelwiseError as error:
            return PlainTextResponse(str(error), 422)
        message = ""
        kept = event.value or event.kind
        if (event.kind, event.value) != (kind, wanted):  # two windows of one person
            message = f"That item had been answered before, with {kept}; this stays. Change it in the gallery."
        return desk.page(request, "card.html", card(desk, who, message, saved=f"Saved: {kept}."))

    @routes.post("/undo")
    def undo(request: Request, token: Annotated[str, Form(min_length=8, max_length=100)]) -> Response:
        who = named(request)
        event = desk.project.store.undo(who, token)
        message = "" if event is not None else "There is no answer of yours to take back."
        return desk.page(request, "card.html", card(desk, who, message, saved="Taken back." if event else ""))

    @routes.post("/class")
    def new_class(request: Request, name: Annotated[str, Form()]) -> Response:
        who = named(request)
        try:
            wanted = class_name(name)
            if wanted not in desk.project.store.classes():
                desk.project.store.add_class(wanted, who)
        except LabelwiseError as error:
            return PlainTextResponse(str(error), 422)
        return desk.page(request, "card.html", card(desk, who, saved=f"Class {wanted} added."))

    @routes.get("/image/{row}")
    def image(row: int, size: str = "large") -> Response:
        if size not in SIZES:
            raise HTTPException(404, f"Sizes are {', '.join(SIZES)}.")
        try:
            data = desk.project.image(row, SIZES[size])
        except (LabelwiseError, OSError) as error:
            desk.log(f"the picture of row {row} cannot be shown: {error}", once=True)
            return PlainTextResponse(str(error), 422)
        kind = "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
        return Response(data, media_type=kind, headers={"Cache-Control": "private, max-age=86400"})

    @routes.get("/neighbours/{row}")
    def neighbours(request: Request, row: int) -> Response:
        named(request)
        try:
            found = desk.project.neighbours(row, 3)
        except LabelwiseError as error:
            desk.log(f"neighbours of row {row}: {error}", once=True)
            found = []
        seen = [(near, *look(desk, near.row)) for near in found]
        return desk.page(request, "neighbours.html", {"seen": seen})

    @routes.get("/status")
    def status(request: Request) -> Response:
        return desk.page(request, "state.html", state(desk))

    @routes.get("/report")
    def report_page(request: Request) -> Response:
        if not session_of(request).who:
            return RedirectResponse("/", 303)
        return desk.page(request, "report.html", {"here": "report", **report(desk)})

    return routes


def checked(desk: Desk, kind: str, value: str) -> str | None:
    """The value of an answer as it is stored, or a refusal that says what is wrong with it."""
    if kind in ("skip", "unsure"):
        return None
    if kind != "label":
        raise HTTPException(422, "An answer is label, skip or unsure.")
    if desk.project.settings.task == "regress":
        return _number(value)
    if value not in desk.project.store.classes():
        raise HTTPException(422, f"There is no class {value[:LONGEST_CLASS]!r}. Add it first, with +.")
    return value


def _number(text: str) -> str:
    if THOUSANDS.fullmatch(text.strip()):  # one comma and three digits: a thousand to some, a decimal to others
        whole = text.strip().replace(",", "")
        raise HTTPException(422, f"{text.strip()} can be read in two ways; write {whole}, or a point before decimals.")
    try:
        value = float(text.strip().replace(",", "."))
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise HTTPException(422, f"A number is wanted, like 12.5; found {text[:40]!r}.")
    return repr(value)


def _stay(seconds: float) -> float | None:
    return min(seconds, LONGEST_STAY) if math.isfinite(seconds) and seconds >= 0 else None


def _own_name() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
