"""Routes of the gallery: what was labelled, the labels most likely to be wrong first, and changing one of them."""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from labelwise.errors import LabelwiseError
from labelwise.server.answer_history import Said, said
from labelwise.server.card import keyed, look
from labelwise.server.context import Desk, session_of
from labelwise.server.routes_label import LONGEST_NOTE, checked, named

if TYPE_CHECKING:
    from labelwise.project import Suspect
    from labelwise.project.store import Answer

ON_A_PAGE = 48


@dataclass(frozen=True)
class Wanted:
    """What is looked for: a class ('' any), an answer of a kind, a person, a slice, and a text in the item."""

    label: str = ""
    kind: str = ""
    person: str = ""
    slice: str = ""
    text: str = ""
    page: int = 1

    def query(self, page: int) -> str:
        """The same search at another page, as the end of an address."""
        pairs = {"label": self.label, "kind": self.kind, "person": self.person, "slice": self.slice, "text": self.text}
        return urlencode({**{name: value for name, value in pairs.items() if value}, "page": page})


def gallery_routes(desk: Desk) -> APIRouter:
    """All routes of the gallery on `desk`."""
    routes = APIRouter()

    @routes.get("/gallery")
    def gallery(
        request: Request,
        label: Annotated[str, Query(max_length=200)] = "",
        kind: Annotated[str, Query(max_length=20)] = "",
        person: Annotated[str, Query(max_length=200)] = "",
        slice: Annotated[str, Query(max_length=20)] = "",
        text: Annotated[str, Query(max_length=200)] = "",
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    ) -> Response:
        if not session_of(request).who:
            return RedirectResponse("/", 303)
        wanted = Wanted(label, kind, person, slice, text.strip(), page)
        values = {**found(desk, wanted), "wanted": wanted, "here": "gallery", **_choices(desk)}
        whole = request.headers.get("hx-target") != "found"
        return desk.page(request, "gallery.html" if whole else "found.html", values)

    @routes.post("/change")
    def change(
        request: Request,
        row: Annotated[int, Form()],
        choice: Annotated[str, Form(max_length=200)],
        token: Annotated[str, Form(min_length=8, max_length=100)],
        note: Annotated[str, Form(max_length=LONGEST_NOTE)] = "",
    ) -> Response:
        who = named(request)
        kind, value = _read(choice)
        try:
            wanted = checked(desk, kind, value)
            desk.project.store.change(who, row, kind, wanted, token, note.strip())  # type: ignore[arg-type]
        except LabelwiseError as error:
            return PlainTextResponse(str(error), 422)
        answer = desk.project.store.answers().get(row)
        if answer is None:
            raise HTTPException(404, f"Row {row} has no answer.")
        told = said(desk.project.store.events())
        values = {"one": _one(desk, answer, _suspects(desk), told), "changed": True, **_choices(desk)}
        return desk.page(request, "one.html", values)

    return routes


def _read(choice: str) -> tuple[str, str]:
    """What a menu or a number field of the gallery sends: skip, unsure, label:NAME, or a number."""
    if choice in ("skip", "unsure"):
        return choice, ""
    return "label", choice.removeprefix("label:")


def found(desk: Desk, wanted: Wanted) -> dict[str, Any]:
    """The answers that fit, suspects first and then the latest first; one page of them."""
    suspects = _suspects(desk)
    own = _touched(desk, wanted.person) if wanted.person else None
    answers = [one for one in desk.project.store.answers().values() if own is None or one.row in own]
    fit = [answer for answer in answers if _fits(desk, answer, wanted)]
    fit.sort(key=lambda answer: -answer.seq)
    fit.sort(key=lambda answer: -_doubt(suspects.get(answer.row), answer))  # stable: the latest first among equals
    pages = max(1, -(-len(fit) // ON_A_PAGE))
    page = min(wanted.page, pages)
    shown = fit[(page - 1) * ON_A_PAGE : page * ON_A_PAGE]
    told = said(desk.project.store.events())
    return {
        "all": len(fit),
        "page": page,
        "pages": pages,
        "ones": [_one(desk, answer, suspects, told) for answer in shown],
        "suspected": sum(_doubt(suspects.get(answer.row), answer) >= 0 for answer in fit),
        "changed": False,
    }


def _suspects(desk: Desk) -> Mapping[int, Suspect]:
    try:
        return {suspect.row: suspect for suspect in desk.project.suspects()}
    except LabelwiseError as error:
        desk.log(f"suspects: {error}", once=True)
        return {}


def _doubt(suspect: Suspect | None, answer: Answer) -> float:
    """How sure the model is that this label is wrong; -1 when it is not suspected, or was changed since."""
    if suspect is None or answer.value is None or not _same(suspect.label, answer.value):
        return -1.0
    return float(suspect.confidence)


def _same(one: str, other: str) -> bool:
    """Whether two labels are one; numbers may be written in two ways."""
    try:
        return one == other or math.isclose(float(one), float(other), rel_tol=1e-4)
    except ValueError:
        return False


def _fits(desk: Desk, answer: Answer, wanted: Wanted) -> bool:
    if wanted.label and wanted.label != answer.value and wanted.label not in answer.votes.values():
        return False
    if wanted.kind and wanted.kind != answer.kind:
        return False
    if wanted.slice and wanted.slice != (answer.slice or "import"):
        return False
    return not wanted.text or wanted.text.casefold() in _searched(desk, answer.row)


def _touched(desk: Desk, person: str) -> set[int]:
    """Rows this person has answered, skipped or found unclear."""
    return {one.row for one in desk.project.store.events() if one.who == person and one.row is not None}


def _searched(desk: Desk, row: int) -> str:
    """All words of an item, for the search."""
    shown, _ = look(desk, row)
    if shown is None:
        return ""
    fields = [f"{name} {value}" for name, value in shown.fields or ()]
    return "\n".join([shown.title, shown.text or "", *fields]).casefold()


def _one(desk: Desk, answer: Answer, suspects: Mapping[int, Suspect], told: Mapping[int, Said]) -> dict[str, Any]:
    shown, broken = look(desk, answer.row)
    suspect = suspects.get(answer.row)
    doubt = _doubt(suspect, answer)
    return {
        "answer": answer,
        "shown": shown,
        "broken": broken,
        "suspect": suspect if doubt >= 0 else None,
        "said": told.get(answer.row, Said()),
        "token": secrets.token_urlsafe(12),
    }


def _choices(desk: Desk) -> dict[str, Any]:
    """What the filters and the menus of the gallery offer."""
    store = desk.project.store
    people = sorted({event.who for event in store.events() if event.kind in ("label", "skip", "unsure")})
    return {"classes": keyed(store.classes()), "persons": people, "regress": desk.project.settings.task == "regress"}
