"""Routes of review: items on which people disagree, and deciding them."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from labelwise.errors import LabelwiseError, StoreError
from labelwise.project import label_sets
from labelwise.server.context import Context, person, session_of
from labelwise.server.routes_gallery import RowHistory, row_histories
from labelwise.server.routes_label import MAX_NOTE, check_answer, with_keys

if TYPE_CHECKING:
    from labelwise.project.store import Answer

PAGE_SIZE = 24
Show = Literal["open", "unsure", "decided"]


def review_routes(context: Context) -> APIRouter:
    """All routes of review."""
    routes, store = APIRouter(), context.project.store

    @routes.get("/review")
    def review(
        request: Request,
        show: Annotated[Show, Query()] = "open",
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    ) -> Response:
        if not session_of(request).who:
            return RedirectResponse("/", 303)
        person(request, "review")
        histories = row_histories(store.events())
        sorted_answers = sorted(store.answers().values(), key=lambda one: (one.kind != "split", -one.seq))
        answers: dict[Show, list[Answer]] = {"open": [], "unsure": [], "decided": []}
        for one in sorted_answers:
            shown = _display(one, histories, context.project.settings.people)
            if shown is not None:
                answers[shown].append(one)
        found = answers[show]
        pages = max(1, -(-len(found) // PAGE_SIZE))
        page = min(page, pages)
        on_page = found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
        values = {
            "show": show,
            "counts": {name: len(some) for name, some in answers.items()},
            "page": page,
            "pages": pages,
            "items": [_item(context, one, histories) for one in on_page],
            "agreement": store.agreement(),
            "here": "review",
        }
        return context.page(request, "review.html", {**values, **_choices(context)})

    @routes.post("/decide")
    def decide(
        request: Request,
        row: Annotated[int, Form()],
        choice: Annotated[str, Form(max_length=MAX_NOTE)],
        seen: Annotated[int, Form()],
        token: Annotated[str, Form(min_length=8, max_length=100)],
        note: Annotated[str, Form(max_length=MAX_NOTE)] = "",
        names: Annotated[list[str] | None, Form()] = None,
    ) -> Response:
        who, message = person(request, "review"), ""
        if choice == "set":  # several classes, each with a box of its own
            choice = f"label:{label_sets.value_of(names or [], store.classes())}"
        try:
            if choice == "reopen":
                store.reopen(who, row, token, seen)
            else:
                kind, value = ("unsure", "") if choice == "unsure" else ("label", choice.removeprefix("label:"))
                store.decide(who, row, kind, check_answer(context, kind, value), token, note.strip(), seen)  # type: ignore[arg-type]
        except StoreError as error:
            if error.__cause__ is not None:
                raise
            message = str(error)
        except LabelwiseError as error:
            return PlainTextResponse(str(error), 422)
        answer = store.answers().get(row)
        if answer is None:
            return PlainTextResponse(message or f"Row {row} has no answer any more.", 422)
        item = _item(context, answer, row_histories(store.events()))
        values = {"item": item, "message": message, "changed": not message}
        return context.page(request, "dispute.html", {**values, **_choices(context)})

    return routes


def _display(answer: Answer, histories: dict[int, RowHistory], people: int) -> Show | None:
    """Where the page lists an answer; None where nobody needs to look."""
    if answer.decided_by:
        return "decided"
    words = [] if people == 1 else [*histories.get(answer.row, RowHistory()).answers.values()]
    if answer.kind == "split" or len({word for word in words if word != "skipped"}) > 1:
        return "open"
    return "unsure" if answer.kind in ("unsure", "skip") else None


def _choices(context: Context) -> dict[str, Any]:
    return {
        "classes": with_keys(context.project.store.classes()),
        "regress": context.project.settings.task == "regress",
        "multi": context.project.settings.task == "multi",
    }


def _item(context: Context, answer: Answer, histories: dict[int, RowHistory]) -> dict[str, Any]:
    """The values of `dispute.html` for one answer."""
    view, error = context.view(answer.row)
    counts: dict[str, list[str]] = {}
    for who, value in answer.votes.items():
        counts.setdefault(value, []).append(who)
    history = histories.get(answer.row, RowHistory())
    return {
        "answer": answer,
        "view": view,
        "error": error,
        "votes": sorted(counts.items(), key=lambda one: (-len(one[1]), one[0])),
        "unclear": [(who, word) for who, word in sorted(history.answers.items()) if who in history.unclear],
        "notes": history.notes,
        "token": secrets.token_urlsafe(12),
    }
