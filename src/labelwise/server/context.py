"""Desk: what every route works with: the project, its guard, the templates and the log."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from starlette.requests import Request
from starlette.responses import HTMLResponse

from labelwise.io.files import append_log
from labelwise.server import phrases
from labelwise.server.auth import Guard, Session

if TYPE_CHECKING:
    from labelwise.project import Project

HERE = Path(__file__).parent


def templates() -> jinja2.Environment:
    """The templates of the package. Everything put into them is escaped; a name that is missing is an error."""
    pages = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    pages.filters.update({"number": phrases.number, "ago": phrases.ago})
    return pages


@dataclass(frozen=True)
class Desk:
    """One project on the page."""

    project: Project
    guard: Guard
    pages: jinja2.Environment = field(default_factory=templates)
    told: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def page(
        self, request: Request, name: str, values: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] = {}
    ) -> HTMLResponse:
        """A template filled in, for this request's person."""
        session = session_of(request)
        known = {"who": session.who, "csrf": self.guard.csrf(session), "settings": self.project.settings}
        return HTMLResponse(self.pages.get_template(name).render({**known, **values}), status, dict(headers))

    def log(self, text: str, once: bool = False) -> None:
        """A line into the project's log.txt; `once`: not again while this server runs."""
        with self.lock:
            if once and text in self.told:
                return
            self.told.add(text)
            with contextlib.suppress(OSError):  # a full disk: the person must still be told, and is by the caller
                write_log(self.project.folder, text)


def write_log(folder: Path, text: str) -> None:
    """A line with the time at the end of the log of the project in `folder`."""
    append_log(folder / "log.txt", f"page: {' '.join(text.split())}")


def session_of(request: Request) -> Session:
    """The session that the fence found or began."""
    session: Session = request.state.session
    return session
