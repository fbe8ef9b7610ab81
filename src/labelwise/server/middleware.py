"""Middleware: checks every request before a route sees it, and adds security headers to every reply.

The checks, in order: the Host is a name of this server, the body is small, there is a session (or the token that starts
one) whose link is still valid, and a POST was sent by a page of this server (Origin and CSRF code). It reads no body
and no file, and the annotators once a second. What a role may do, the routes check.
"""

from __future__ import annotations

import hmac
import math
import time
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from labelwise.errors import LabelwiseError
from labelwise.server.access import Access
from labelwise.server.attempts import Attempts
from labelwise.server.auth import RENEWED, Auth, Session, host_name

PAGES = (
    "/",
    "/grid",
    "/gallery",
    "/report",
    "/review",
    "/history",
    "/people",
)  # addresses a person may open directly; these request all others
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
# Browsers do not send a SameSite=Strict cookie on a visit that another site started, nor on HTTP redirects of it. A
# page of this server that opens the next one starts a visit of its own.
_HEAD = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Labelwise</title>'
    '<link rel="icon" href="/static/icon.png">'
)
_REDIRECT = _HEAD + '<meta http-equiv="refresh" content="0;url={to}"><p><a href="{to}">Continue</a></p></html>'
_LINK_NEEDED = (
    _HEAD + '<meta name="viewport" content="width=device-width"><link rel="stylesheet" href="/static/page.css">'
    '<main class="narrow"><h1>Open the full link</h1><p>The address of this page needs a token. Use the full link that '
    "was printed when the server started, or ask the person who started it.</p></main></html>"
)


@dataclass(frozen=True)
class AuthMiddleware:
    """Runs the checks in front of `app`."""

    app: ASGIApp
    auth: Auth
    access: Access
    log: Callable[[str], None]
    attempts: Attempts = field(default_factory=Attempts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer in place of the application."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # no websockets here
            return
        headers = Headers(scope=scope)
        try:
            await self.access.up_to_date(writes=scope["method"] not in ("GET", "HEAD"))
        except LabelwiseError as error:
            self.log(f"{scope['method']} {scope['path']}: {error}")
            await _text(503, str(error))(scope, receive, _with_headers(send, None))
            return
        session = self._session(headers)
        role = None if session is None else self.access.role(session)
        refused, fresh = self._check(scope, headers, session if role is not None else None)
        is_use = scope["path"] in (*PAGES, "/answer", "/tile")  # a page that is only open asks for other addresses
        if fresh is None and refused is None and role is not None and session is not None and is_use:
            fresh = session if time.time() - session.used > RENEWED else None
        session = fresh or session
        state = scope.setdefault("state", {})
        state["session"] = session
        state["role"] = None if session is None else self.access.role(session)
        out = _with_headers(send, self._cookie(scope, fresh) if fresh else None)
        if refused is not None:
            await refused(scope, receive, out)
            return
        try:
            await self.app(scope, _limited(receive, self.auth.max_body), out)
        except Exception:  # an unexpected error fails one request; the server continues
            self.log(f"{scope['method']} {scope['path']} failed: {traceback.format_exc()}")
            text = "The server failed on this request; log.txt in the project folder says why. Saved answers are safe."
            await _text(500, text)(scope, receive, out)

    def _check(self, scope: Scope, headers: Headers, session: Session | None) -> tuple[Response | None, Session | None]:
        """The reply that refuses the request, if any, and the session that starts, if any."""
        method, path = scope["method"], scope["path"]
        if len(headers.getlist("host")) != 1 or not host_name(headers["host"]):
            return _text(400, "A request names one host, with or without a port. Open the link of this server."), None
        if "\0" in path:
            return _text(400, "The address holds a NUL character, which no address of this server does."), None
        if not self.auth.is_own_host(headers["host"]):
            return _text(421, "This server does not have that name. Open the link that it printed at the start."), None
        if _length(headers) > self.auth.max_body:
            return _text(413, _too_large(self.auth.max_body)), None
        if method in ("GET", "HEAD") and (path.startswith("/static/") or path == "/favicon.ico"):
            return None, None
        if method in ("GET", "HEAD") and path in PAGES:
            return self._visit(scope, headers, session)
        if session is None:
            return _text(
                401, "Your session has expired, or its link was revoked. Open the page again with its link."
            ), None
        return (self._check_post(scope, headers, session) if method not in ("GET", "HEAD") else None), None

    def _visit(self, scope: Scope, headers: Headers, session: Session | None) -> tuple[Response | None, Session | None]:
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        found = self.access.session_for(given) if given else None
        if given and session is None and self.access.needs_token:
            client = (scope.get("client") or ("",))[0]
            if wait := self.attempts.wait(client):
                return _too_often(math.ceil(wait)), None
            (self.attempts.fail if found is None else self.attempts.succeed)(client)
        if found is not None:  # with a session too: the token must not stay in the address
            is_same = session is not None and (session.link == 0 or session == replace(found, id=session.id))
            return _page(200, _REDIRECT.format(to=scope["path"])), session if is_same else found
        if session is not None:
            return None, None
        if headers.get("sec-fetch-site") == "cross-site":  # the browser may have a cookie that it did not send
            return _page(200, _REDIRECT.format(to=scope["path"])), None
        return (_page(401, _LINK_NEEDED), None) if self.access.needs_token else (None, self.auth.new())

    def _check_post(self, scope: Scope, headers: Headers, session: Session) -> Response | None:
        if headers.get("origin", "").lower() != f"{scope.get('scheme', 'http')}://{headers['host'].lower()}":
            return _text(403, "This request did not come from a page of this server.")
        given, expected = headers.get("x-csrf-token", ""), self.auth.csrf(session)
        if not hmac.compare_digest(given.encode(), expected.encode()):
            return _text(403, "This page is out of date. Reload it.")
        return None

    def _session(self, headers: Headers) -> Session | None:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self.auth.cookie)
        except CookieError:
            return None
        return self.auth.read(morsel.value) if morsel is not None else None

    def _cookie(self, scope: Scope, session: Session) -> str:
        return cookie(self.auth, session, scope.get("scheme") == "https")


def cookie(auth: Auth, session: Session, https: bool) -> str:
    """The Set-Cookie header of a session: hidden from scripts, and not sent on requests from other sites."""
    secure = "; Secure" if https else ""
    return f"{auth.cookie}={auth.sign(session)}; Path=/; Max-Age=2592000; HttpOnly; SameSite=Strict{secure}"


def _with_headers(send: Send, set_cookie: str | None) -> Send:
    """`send` that adds the headers of every reply."""

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


def _limited(receive: Receive, limit: int) -> Callable[[], Awaitable[Message]]:
    """`receive` that refuses a body longer than `limit`, whatever its Content-Length says."""
    seen = 0

    async def limited() -> Message:
        nonlocal seen
        message = await receive()
        seen += len(message.get("body", b""))
        if seen > limit:
            raise HTTPException(413, _too_large(limit))
        return message

    return limited


def _length(headers: Headers) -> int:
    text = headers.get("content-length", "0")
    return int(text) if text.isdecimal() else 0  # the server itself refuses one that is not a number


def _too_large(limit: int) -> str:
    return f"This request is larger than {limit} bytes. Shorten the note."


def _text(status: int, text: str) -> Response:
    return PlainTextResponse(text, status)


def _too_often(seconds: int) -> Response:
    text = f"Too many wrong tokens came from this address. Open the full link again in {seconds} seconds."
    return PlainTextResponse(text, 429, {"Retry-After": str(seconds)})


def _page(status: int, text: str) -> Response:
    return HTMLResponse(text, status)
