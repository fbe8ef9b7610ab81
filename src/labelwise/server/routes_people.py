"""Routes of the owner: annotators with their links, and the history of the project."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import PlainTextResponse, RedirectResponse, Response

from labelwise.errors import LabelwiseError
from labelwise.project.exchange.history import event_line
from labelwise.project.store import ROLES
from labelwise.server.auth import clean_name
from labelwise.server.context import Context, person, session_of

PAGE_SIZE = 200
ROLE_WORDS = {
    "label": "labels items; sees their own answers alone",
    "review": "also sees and changes the answers of others, decides disagreements, adds classes, reads the report",
    "own": "also downloads, reads the history, gives links and revokes them",
}


def people_routes(context: Context) -> APIRouter:
    """All routes of the owner."""
    routes, store = APIRouter(), context.project.store

    @routes.get("/people")
    def people(request: Request) -> Response:
        if not session_of(request).who:
            return RedirectResponse("/", 303)
        person(request, "own")
        return context.page(request, "people.html", {"here": "people", **_values(context, request)})

    @routes.post("/people")
    def change(
        request: Request,
        name: Annotated[str, Form(max_length=200)],
        role: Annotated[str, Form(max_length=20)],
        new_link: Annotated[bool, Form()] = False,
    ) -> Response:
        who = person(request, "own")
        if context.access.is_open:
            return PlainTextResponse("The first annotator is added in a terminal: labelwise annotators add", 403)
        message = ""
        try:
            store.set_annotator(clean_name(name), None if role == "revoked" else role, who, new_link)  # type: ignore[arg-type]
        except LabelwiseError as error:
            if error.__cause__ is not None:
                raise
            message = str(error)
        else:
            context.access.refresh()
        return context.page(request, "annotators.html", {"message": message, **_values(context, request)})

    @routes.get("/history")
    def history(
        request: Request,
        by: Annotated[str, Query(alias="person", max_length=200)] = "",
        row: Annotated[str, Query(max_length=20)] = "",
        page: Annotated[int, Query(ge=1, le=10**6)] = 1,
    ) -> Response:
        if not session_of(request).who:
            return RedirectResponse("/", 303)
        person(request, "own")
        events = store.events()
        found = [one for one in reversed(events) if by in ("", one.who) and row in ("", str(one.row))]
        pages = max(1, -(-len(found) // PAGE_SIZE))
        page = min(page, pages)
        values = {
            "here": "history",
            "lines": [event_line(one) for one in found[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]],
            "total": len(found),
            "by": by,
            "row": row,
            "page": page,
            "pages": pages,
            "persons": sorted({one.who for one in events}),
        }
        return context.page(request, "history.html", values)

    return routes


def _values(context: Context, request: Request) -> dict[str, Any]:
    base = f"{request.url.scheme}://{request.headers['host']}/?token="
    annotators = [
        (one, f"{base}{context.access.token_of(one)}" if one.role else "")
        for one in sorted(context.access.annotators.values(), key=lambda one: (one.role is None, one.name.casefold()))
    ]
    return {"annotators": annotators, "roles": ROLES, "role_words": ROLE_WORDS, "folder": context.project.folder}
