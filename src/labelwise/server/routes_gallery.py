"""Routes of the gallery: labelled items, with the labels most likely to be wrong first, and changing one of them.

A person with the role "label" sees their own answers alone: those of others would sway the next ones.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from labelwise.errors import LabelwiseError
from labelwise.project import label_sets
from labelwise.server.access import may
from labelwise.server.context import Context, person, session_of
from labelwise.server.routes_label import MAX_NOTE, check_answer, with_keys

if TYPE_CHECKING:
    from labelwise.project import Suspect
    from labelwise.project.store import Answer, Event

PAGE_SIZE = 48
_NO_LABEL = {"skip": "skipped", "unsure": "unsure"}


@dataclass(frozen=True)
class Filter:
    """What to show: a class, a kind of answer, a person, a slice and a text; "" is any."""

    label: str = ""
    kind: str = ""
    person: str = ""
    slice: str = ""
    text: str = ""
    page: int = 1

    def query(self, page: int) -> str:
        """The query string of the same filter at another page."""
        pairs = {"label": self.label, "kind": self.kind, "person": self.person, "slice": self.slice, "text": self.text}
        return urlencode({**{name: value for name, value in pairs.items() if value}, "page": page})


@dataclass
class RowHistory:
    """The answers and notes of one row."""

    answers: dict[str, str] = field(default_factory=dict)  # by person: the label, "unsure" or "skipped"
    unclear: set[str] = field(default_factory=set)  # people whose last answer is no label
    notes: list[tuple[str, str]] = field(default_factory=list)  # (person, note), the oldest first

    def of(self, who: str) -> RowHistory:
        """The part of one person."""
        answers = {name: word for name, word in self.answers.items() if name == who}
        return RowHistory(answers, self.unclear & {who}, [note for note in self.notes if note[0] == who])


def gallery_routes(context: Context) -> APIRouter:
    """All routes of the gallery."""
    routes = APIRouter()

    @routes.get("/gallery")
    def gallery(
        request: Request,
        label: Annotated[str, Query(max_length=200)] = "",
        kind: Annotated[str, Query(max_length=20)] = "",
        by: Annotated[str, Query(alias="person", max_length=200)] = "",
        slice: Annotated[str, Query(max_length=20)] = "",
        text: Annotated[str, Query(max_length=200)] = "",
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    ) -> Response:
        if not session_of(request).who:
            return RedirectResponse("/", 303)
        only = _only(request)
        wanted = Filter(label, kind, only or by, slice, text.strip(), page)
        values = {**_results(context, wanted, only), "filter": wanted, "here": "gallery", **_menus(context, only)}
        template = "found.html" if request.headers.get("hx-target") == "found" else "gallery.html"
        return context.page(request, template, values)

    @routes.post("/change")
    def change(
        request: Request,
        row: Annotated[int, Form()],
        choice: Annotated[str, Form(max_length=200)],
        token: Annotated[str, Form(min_length=8, max_length=100)],
        note: Annotated[str, Form(max_length=MAX_NOTE)] = "",
        names: Annotated[list[str] | None, Form()] = None,
    ) -> Response:
        who, store, only = person(request), context.project.store, _only(request)
        if choice == "set":  # several classes, each with a box of its own
            choice = f"label:{label_sets.value_of(names or [], store.classes())}"
        # A menu sends skip, unsure or label:NAME; a number field sends the number.
        kind, value = (choice, "") if choice in _NO_LABEL else ("label", choice.removeprefix("label:"))
        try:
            label = check_answer(context, kind, value)
            before = store.answers().get(row)
            if only and only not in row_histories(store.events()).get(row, RowHistory()).answers:
                raise HTTPException(403, "You can change your own answers. This one is somebody else's.")
            if before is not None and before.decided_by and not only:
                store.decide(who, row, kind, label, token, note.strip())  # type: ignore[arg-type]
            else:
                store.change(who, row, kind, label, token, note.strip())  # type: ignore[arg-type]
        except LabelwiseError as error:
            return PlainTextResponse(str(error), 422)
        answer = store.answers().get(row)
        if answer is None:
            raise HTTPException(404, f"Row {row} has no answer.")
        item = _item(context, answer, _suspects(context), row_histories(store.events()), only)
        return context.page(request, "one.html", {"item": item, "changed": True, **_menus(context, only)})

    return routes


def _only(request: Request) -> str:
    """The person whose answers alone this session may see; "" if it may see those of all."""
    return "" if may(request.state.role, "review") else session_of(request).who


def own_answer(answer: Answer, history: RowHistory, who: str) -> Answer:
    """The answer as its giver sees it: what they said, whatever others say."""
    word = history.answers.get(who)
    kind: Any = {"skipped": "skip", "unsure": "unsure"}.get(word or "", "label") if who in history.unclear else "label"
    return replace(answer, kind=kind, value=word if kind == "label" else None, votes={}, decided_by="")


def row_histories(events: Iterable[Event]) -> dict[int, RowHistory]:
    """Answers and notes by row; what was undone is left out.

    The last answer of a person counts. Notes stay when the person answers again, because a change in the gallery comes
    without one.
    """
    history = list(events)
    undone = {event.undoes for event in history if event.undoes is not None}
    found: dict[int, RowHistory] = {}
    for event in history:
        if event.row is None or event.kind in ("undo", "reopen") or event.seq in undone:
            continue
        row = found.setdefault(event.row, RowHistory())
        if event.kind not in ("note", "decision"):
            row.answers[event.who] = _NO_LABEL.get(event.kind, event.value or "")
            (row.unclear.add if event.kind in _NO_LABEL else row.unclear.discard)(event.who)
        if event.note and (event.who, event.note) not in row.notes:
            row.notes.append((event.who, event.note))
    return found


def _results(context: Context, wanted: Filter, only: str) -> dict[str, Any]:
    """One page of the answers that match: suspects first, then the latest first."""
    store, suspects = context.project.store, {} if only else _suspects(context)
    histories = row_histories(store.events())
    answers: Iterable[Answer] = store.answers().values()
    if wanted.person:
        answers = [one for one in answers if one.row in histories and wanted.person in histories[one.row].answers]
    if only:
        answers = [own_answer(one, histories[one.row], only) for one in answers]
    found = [answer for answer in answers if _matches(context, answer, wanted)]
    doubt = {answer.row: _doubt(suspects.get(answer.row), answer) for answer in found}
    found.sort(key=lambda answer: (-doubt[answer.row], -answer.seq))
    pages = max(1, -(-len(found) // PAGE_SIZE))
    page = min(wanted.page, pages)
    on_page = found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return {
        "total": len(found),
        "page": page,
        "pages": pages,
        "items": [_item(context, answer, suspects, histories, only) for answer in on_page],
        "suspected": sum(value >= 0 for value in doubt.values()),
        "changed": False,
    }


def _suspects(context: Context) -> Mapping[int, Suspect]:
    try:
        return {suspect.row: suspect for suspect in context.project.suspects()}
    except LabelwiseError as error:
        context.log(f"suspects: {error}", once=True)
        return {}


def _doubt(suspect: Suspect | None, answer: Answer) -> float:
    """How sure the model is that this label is wrong; -1 when it is not suspect, or was changed since."""
    if suspect is None or answer.value is None or not _same_label(suspect.label, answer.value):
        return -1.0
    return float(suspect.confidence)


def _same_label(first: str, second: str) -> bool:
    try:
        return first == second or math.isclose(float(first), float(second), rel_tol=1e-4)
    except ValueError:
        return False


def _matches(context: Context, answer: Answer, wanted: Filter) -> bool:
    given = {answer.value, *answer.votes.values()}
    if context.project.settings.task == "multi":
        given = {name for value in given if value for name in label_sets.names_of(value)}
    if wanted.label and wanted.label not in given:
        return False
    if wanted.kind and wanted.kind != answer.kind:
        return False
    if wanted.slice and wanted.slice != (answer.slice or "import"):
        return False
    if not wanted.text:
        return True
    view, _ = context.view(answer.row)
    if view is None:
        return False
    fields = [f"{name} {value}" for name, value in view.fields or ()]
    return wanted.text.casefold() in "\n".join([view.title, view.text or "", *fields]).casefold()


def _item(
    context: Context,
    answer: Answer,
    suspects: Mapping[int, Suspect],
    histories: Mapping[int, RowHistory],
    only: str = "",
) -> dict[str, Any]:
    """The values of `one.html` for one answer; with `only`, those of this person alone."""
    view, error = context.view(answer.row)
    suspect = None if only else suspects.get(answer.row)
    history = histories.get(answer.row, RowHistory())
    if only:
        history = history.of(only)
        answer = own_answer(answer, history, only)
    return {
        "answer": answer,
        "view": view,
        "error": error,
        "suspect": suspect if _doubt(suspect, answer) >= 0 else None,
        "history": history,
        "token": secrets.token_urlsafe(12),
    }


def _menus(context: Context, only: str) -> dict[str, Any]:
    """The choices of the filters and menus."""
    store = context.project.store
    people = sorted({event.who for event in store.events() if event.kind in ("label", "skip", "unsure")})
    people = [only] if only else people
    regress = context.project.settings.task == "regress"
    multi = context.project.settings.task == "multi"
    return {"classes": with_keys(store.classes()), "persons": people, "regress": regress, "multi": multi}
