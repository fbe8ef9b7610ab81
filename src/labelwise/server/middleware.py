"""Fence: the one gate that every request passes before any route sees it, and that every reply passes on its way out.

In this order: is the Host a name of ours, is the body small, is there a session (or the token that begins one), and,
for a POST, did one of our own pages send it (Origin and CSRF code). It reads no body and no file.
"""

from __future__ import annotations

import hmac
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.server.auth import Guard, Session

PAGES = ("/", "/gallery", "/report")  # what a person may open first; all else is asked for by these
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",  # not "no-referrer": browsers then send Origin: null with our own forms
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
# A SameSite=Strict cookie does not travel on a visit that another site began, nor on redirects of it; a page of our
# own that opens the next one starts a visit of its own.
_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Labelwise</title>'
    '<link rel="icon" href="/static/icon.png">'
)
_BOUNCE = _HEAD + '<meta http-equiv="refresh" content="0;url={to}"><p><a href="{to}">Go on to the page</a></p></html>'
_ASK = (
    _HEAD + '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/page.css">'
    '<main class="narrow"><h1>This page needs its link</h1><p>Open the whole link, with the token, that was printed '
    "where the server was started. Ask whoever started it.</p></main></html>"
)


@dataclass(frozen=True)
class Fence:
    """The gate in front of `app`."""

    app: ASGIApp
    guard: Guard
    log: Callable[[str], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass, or answer in the place of the application."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets here
            return
        headers = Headers(scope=scope)
        session = self._session(headers)
        refused, fresh = self._judge(scope, headers, session)
        session = fresh or session
        scope.setdefault("state", {})["session"] = session
        out = _dressed(send, self._cookie(scope, fresh) if fresh else None)
        if refused is not None:
            await refused(scope, receive, out)
            return
        try:
            await self.app(scope, _counted(receive, self.guard.limit), out)
        except Exception:  # what nobody thought of: one request fails, in words, and the rest goes on
            self.log(f"{scope['method']} {scope['path']} failed: {traceback.format_exc()}")
            text = "The page failed at this; the log of the project says how. Your earlier answers are safe."
            await _text(500, text)(scope, receive, out)

    def _judge(self, scope: Scope, headers: Headers, session: Session | None) -> tuple[Response | None, Session | None]:
        """What to answer instead of the application, if anything, and the session that begins, if one does."""
        method, path = scope["method"], scope["path"]
        if len(headers.getlist("host")) != 1 or not self.guard.knows(headers["host"]):
            return _text(421, "This server does not answer to that name. Open the link that it printed."), None
        if _length(headers) > self.guard.limit:
            return _text(413, _too_large(self.guard.limit)), None
        if method in ("GET", "HEAD") and (path.startswith("/static/") or path == "/favicon.ico"):
            return None, None
        if method in ("GET", "HEAD") and path in PAGES:
            return self._visit(scope, headers, session)
        if session is None:
            return _text(401, "This browser has no session here any more. Open the page again by its link."), None
        return (self._posted(scope, headers, session) if method not in ("GET", "HEAD") else None), None

    def _visit(self, scope: Scope, headers: Headers, session: Session | None) -> tuple[Response | None, Session | None]:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if self.guard.admits(given):  # also with a session: the token must not stay in the address
            return _page(200, _BOUNCE.format(to=scope["path"])), session or self.guard.new()
        if session is not None:
            return None, None
        if headers.get("sec-fetch-site") == "cross-site":  # there may be a cookie that did not travel
            return _page(200, _BOUNCE.format(to=scope["path"])), None
        return (None, self.guard.new()) if self.guard.token is None else (_page(401, _ASK), None)

    def _posted(self, scope: Scope, headers: Headers, session: Session) -> Response | None:
        origin = urlsplit(headers.get("origin", ""))
        if (origin.scheme, origin.netloc.lower()) != (scope.get("scheme", "http"), headers["host"].lower()):
            return _text(403, "This did not come from a page of this server.")
        given, meant = headers.get("x-csrf-token", ""), self.guard.csrf(session)
        if not hmac.compare_digest(given.encode(), meant.encode()):
            return _text(403, "This page is older than its session. Load it again.")
        return None

    def _session(self, headers: Headers) -> Session | None:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.guard.cookie)
        except CookieError:
            return None
        return self.guard.read(morsel.value) if morsel is not None else None

    def _cookie(self, scope: Scope, session: Session) -> str:
        return cookie(self.guard, session, scope.get("scheme") == "https")


def cookie(guard: Guard, session: Session, https: bool) -> str:
    """The Set-Cookie header of a session: unreadable for scripts, never sent along from other sites."""
    secure = "; Secure" if https else ""
    return f"{guard.cookie}={guard.sign(session)}; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict{secure}"


def _dressed(send: Send, set_cookie: str | None) -> Send:
    """`send` with the headers every reply carries."""

    async def out(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-store")
            if set_cookie is not None:
                headers.append("Set-Cookie", set_cookie)
        await send(message)

    return out


def _counted(receive: Receive, limit: int) -> Callable[[], Awaitable[Message]]:
    """`receive` that stops a body longer than `limit`, whatever its header says."""
    seen = 0

    async def counted() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, _too_large(limit))
        return message

    return counted


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() else 0  # not a number: the server refuses it itself


def _too_large(limit: int) -> str:
    return f"A request may have {limit} bytes. Shorten the note."


def _text(status: int, text: str) -> Response:
    return PlainTextResponse(text, status)


def _page(status: int, text: str) -> Response:
    return HTMLResponse(text, status)
