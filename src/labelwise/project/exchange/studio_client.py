"""A client for the calls of Label Studio's REST API that are needed, with the standard library only.

A personal access token is exchanged for an access token that is valid for a few minutes, and again when that expires. A
legacy token is sent directly. Neither is written to disk, printed, or sent to another address: redirects are not
followed.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

from labelwise.errors import ArgumentError, StoreError

TIMEOUT = 120.0  # seconds; an import of many tasks takes a while
_PAGE = 100


class RefusedError(StoreError):
    """Label Studio refused a request. `status` is the HTTP status, `detail` its own message."""

    def __init__(self, status: int, text: str, detail: str):
        StoreError.__init__(self, text)
        self.status, self.detail = status, detail


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


@dataclass
class Client:
    """Label Studio at `url`. `legacy`: whether the token is a legacy one; None to decide by its form."""

    url: str
    token: str = field(repr=False)
    legacy: bool | None = None
    _access: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.url = checked_url(self.url)
        if not self.token or not self.token.isascii() or any(sign.isspace() for sign in self.token):
            raise ArgumentError(
                "the token is empty or contains a space. Copy it again from Label Studio's account page"
            )
        if self.legacy is None:
            self.legacy = self.token.count(".") != 2  # a personal access token is a JWT, which has three parts

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """GET `path`; returns the JSON."""
        return self._call("GET", path + (f"?{urlencode(query)}" if query else ""), None)

    def post(self, path: str, body: Any) -> Any:
        """POST `body` as JSON; returns the JSON."""
        return self._call("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        """PATCH with `body` as JSON; returns the JSON."""
        return self._call("PATCH", path, body)

    def projects(self) -> Iterator[dict[str, Any]]:
        """Every project, page by page."""
        page = 1
        while True:
            found = self.get("/api/projects/", {"page": page, "page_size": _PAGE})
            yield from found["results"]
            if not found.get("next"):
                return
            page += 1

    def tasks(self, project: int) -> Iterator[dict[str, Any]]:
        """Every task of a project with its annotations, page by page."""
        page, seen = 1, 0
        while True:
            query = {"project": project, "page": page, "page_size": _PAGE, "fields": "all"}
            found = self.get("/api/tasks/", query)
            yield from found["tasks"]
            seen += len(found["tasks"])
            if not found["tasks"] or seen >= found["total"]:
                return
            page += 1

    def people(self) -> dict[int, str]:
        """E-mail addresses of the users by their ids."""
        return {int(one["id"]): str(one["email"]) for one in self.get("/api/users/") if one.get("email")}

    def _call(self, method: str, path: str, body: Any) -> Any:
        if self.legacy:
            return self._send(method, path, body, f"Token {self.token}")
        if not self._access:
            self._refresh()
        try:
            return self._send(method, path, body, f"Bearer {self._access}")
        except RefusedError as error:
            if error.status != 401:
                raise
        self._refresh()  # the access token has expired
        return self._send(method, path, body, f"Bearer {self._access}")

    def _refresh(self) -> None:
        found = self._send("POST", "/api/token/refresh/", {"refresh": self.token}, None)
        if not isinstance(found, dict) or not isinstance(found.get("access"), str):
            raise StoreError(
                f"{self.url} did not return an access token for the personal one. Is this the address of Label Studio?"
            )
        self._access = found["access"]

    def _send(self, method: str, path: str, body: Any, authorization: str | None) -> Any:
        headers = {"Accept": "application/json", "User-Agent": "labelwise"}
        if authorization is not None:
            headers["Authorization"] = authorization
        content = None
        if body is not None:
            content, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(self.url + path, content, headers, method=method)
        try:
            with opener(self.url).open(request, timeout=TIMEOUT) as response:
                return _parsed(self.url, response.read())
        except urllib.error.HTTPError as error:
            with error:
                detail = _detail(error.read(100_000))
                raise RefusedError(error.code, _refusal(self, path, error, detail), detail) from None
        except urllib.error.URLError as error:
            raise StoreError(
                f"{self.url} cannot be reached ({error.reason}). Check its address, and that it runs"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(
                f"{self.url}: the connection broke ({error}). Repeat the command; nothing is done twice"
            ) from None


def checked_url(url: str, option: str = "--url") -> str:
    """The address without the last slash. ArgumentError unless it is http or https, without a name or password."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ArgumentError(f"{option} {url!r}: expected an address such as http://localhost:8080")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ArgumentError(f"{option}: expected only an address, without a name, a password or a query")
    return url.rstrip("/")


def is_local(url: str) -> bool:
    """Whether an address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def opener(url: str) -> urllib.request.OpenerDirector:
    """Opens addresses without following redirects."""
    # A proxy must not be used for this machine.
    proxies = [urllib.request.ProxyHandler({})] if is_local(url) else []
    return urllib.request.build_opener(_NoRedirect, *proxies)


def _parsed(url: str, content: bytes) -> Any:
    if not content:
        return None
    try:
        return json.loads(content)
    except ValueError:
        raise StoreError(f"{url} did not answer with JSON. Is this the address of Label Studio?") from None


def _refusal(client: Client, path: str, error: urllib.error.HTTPError, detail: str) -> str:
    """The message for a refused request: what went wrong, and what to do."""
    where = f"Label Studio at {client.url}"
    if 300 <= error.code < 400:
        to = urlsplit(error.headers.get("Location") or "")
        other = f"{to.scheme}://{to.netloc}" if to.netloc else "another page"
        return f"{client.url} redirects to {other}, where the token is not sent. If that is right, pass it as --url"
    if error.code == 401 and client.legacy:
        return (
            f"{where} does not accept the legacy token (401: {detail}). Legacy tokens are off by default: make a "
            "personal access token on its account page, or enable them for the organisation"
        )
    if error.code == 401:
        return f"{where} does not accept the token (401: {detail}). It may have expired or been revoked; make a new one"
    if error.code == 403:
        return f"{where}: the owner of the token is not allowed to do this (403: {detail})"
    if error.code == 404 and path.startswith(("/api/projects/", "/api/tasks/")):
        return f"{where} has no such project, or does not show it to the owner of the token (404 for {path})"
    if any(word in detail.lower() for word in ("ssrf", "local ip", "loopback")):
        return (
            f"{where} refuses an address inside its own network ({error.code}: {detail}). This protects it; set "
            "SSRF_PROTECTION_ENABLED=false only on your own machine"
        )
    return f"{where} answered {error.code} to {path.split('?')[0]}: {detail}"


def _detail(content: bytes) -> str:
    """The message in a reply of Label Studio, or the beginning of any other reply."""
    try:
        found = json.loads(content)
    except ValueError:
        return " ".join(content.decode("utf-8", "replace").split())[:200]
    parts = found if isinstance(found, dict) else {"detail": found}
    messages = [parts.get("detail"), parts.get("validation_errors")]
    return "; ".join(str(part) for part in messages if part)[:500] or str(found)[:500]
