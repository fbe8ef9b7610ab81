"""Context: what every route works with, namely the project, the auth rules, the templates and the log."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from labelwise.errors import LabelwiseError
from labelwise.io.files import append_log
from labelwise.project.store import ROLES, Role
from labelwise.report.html import text
from labelwise.server.access import Access, may
from labelwise.server.auth import Auth, Session

if TYPE_CHECKING:
    from labelwise.project import Project, RowView

PACKAGE = Path(__file__).parent


def templates() -> jinja2.Environment:
    """The page templates. Every value is escaped; a missing name is an error."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PACKAGE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["number"] = _number
    environment.filters["spaced"] = lambda words: Markup(text(words))
    environment.filters["breakable"] = breakable
    return environment


def breakable(name: str) -> Markup:
    """A name that may be broken where its words end, also those that no space parts.

    >>> print(breakable("card_payment/fee"))
    card_<wbr>payment/<wbr>fee
    """
    return Markup("<wbr>").join(escape(part) for part in words_of(name))


def words_of(name: str) -> list[str]:
    """The parts of a name after which it may be broken."""
    return re.findall(r"[^\s_/.-]*(?:[\s_/.-]+|$)", name)[:-1] or [name]


def _number(value: float | None, digits: int = 3) -> str:
    return "none" if value is None or value != value else f"{value:.{digits}g}"


@dataclass(frozen=True)
class Context:
    """One project on the page."""

    project: Project
    auth: Auth
    access: Access
    templates: jinja2.Environment = field(default_factory=templates)
    logged: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def page(
        self, request: Request, name: str, values: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] = {}
    ) -> HTMLResponse:
        """Render a template for the person of this request."""
        session = session_of(request)
        known = {
            "who": session.who,
            "csrf": self.auth.csrf(session),
            "settings": self.project.settings,
            "can": frozenset(one for one in ROLES if may(request.state.role, one)),
            "named": not self.access.is_open,
        }
        return HTMLResponse(self.templates.get_template(name).render({**known, **values}), status, dict(headers))

    def view(self, row: int) -> tuple[RowView | None, str]:
        """A row to show; or None and what is wrong with it, which is also logged."""
        try:
            return self.project.view(row), ""
        except (LabelwiseError, OSError) as error:
            self.log(f"row {row} cannot be shown: {error}", once=True)
            return None, str(error)

    def log(self, text: str, once: bool = False) -> None:
        """Add a line to the project's log.txt; with `once`, not again while this server runs."""
        with self.lock:
            if once and text in self.logged:
                return
            self.logged.add(text)
            with contextlib.suppress(OSError):  # a full disk must not hide the error from the person, who sees it too
                write_log(self.project.folder, text)


def write_log(folder: Path, text: str) -> None:
    """Add a line with the time to the log of the project in `folder`."""
    append_log(folder / "log.txt", f"page: {' '.join(text.split())}")


def session_of(request: Request) -> Session:
    """The browser session that the middleware found or started."""
    session: Session = request.state.session
    return session


def person(request: Request, least: Role = "label") -> str:
    """The name of the person; without one, or without a role that may do this, nothing can be done."""
    who = session_of(request).who
    if not who:
        raise HTTPException(401, "Your name is missing. Open the page again and enter it.")
    if not may(request.state.role, least):
        raise HTTPException(403, f"This needs the role {least!r}. Ask who gave you your link.")
    return who
