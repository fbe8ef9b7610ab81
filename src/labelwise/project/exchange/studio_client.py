"""A client of Label Studio's REST API: the few calls that are needed, with the standard library alone.

A personal access token is exchanged for an access token of a few minutes, and again when that has run out. A legacy
token is sent as it is. Neither is ever written down, printed, or sent anywhere but to the address given: redirects are
not followed.
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


class Refused(StoreError):
    """Label Studio said no; `status` is its HTTP status, `detail` what it said itself."""

    def __init__(self, status: int, text: str, detail: str):
        StoreError.__init__(self, text)
        self.status, self.detail = status, detail


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


@dataclass
class Client:
    """Label Studio at `url`. `legacy`: whether the token is a legacy one; None: by what it looks like."""

    url: str
    token: str = field(repr=False)
    legacy: bool | None = None
    _access: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        self.url = checked_url(self.url)
        if not self.token or not self.token.isascii() or any(sign.isspace() for sign in self.token):
            raise ArgumentError("the token is empty or holds a blank; copy it again from Label Studio's account page")
        if self.legacy is None:
            self.legacy = self.token.count(".") != 2  # a personal access token is a JWT, which has three parts

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """What is at `path` below the address."""
        return self._call("GET", path + (f"?{urlencode(query)}" if query else ""), None)

    def post(self, path: str, body: Any) -> Any:
        """Send `body` as JSON."""
        return self._call("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        """Change something."""
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
        """Addresses of the people by their numbers."""
        return {int(one["id"]): str(one["email"]) for one in self.get("/api/users/") if one.get("email")}

    def _call(self, method: str, path: str, body: Any) -> Any:
        if self.legacy:
            return self._send(method, path, body, f"Token {self.token}")
        if not self._access:
            self._refresh()
        try:
            return self._send(method, path, body, f"Bearer {self._access}")
        except Refused as error:
            if error.status != 401:
                raise
        self._refresh()  # it has run out
        return self._send(method, path, body, f"Bearer {self._access}")

    def _refresh(self) -> None:
        found = self._send("POST", "/api/token/refresh/", {"refresh": self.token}, None)
        if not isinstance(found, dict) or not isinstance(found.get("access"), str):
            raise StoreError(f"{self.url} answered a personal access token with no access token; is it Label Studio?")
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
            with _opener(self.url).open(request, timeout=TIMEOUT) as response:
                return _parsed(self.url, response.read())
        except urllib.error.HTTPError as error:
            with error:
                said = _detail(error.read(100_000))
                raise Refused(error.code, _refusal(self, path, error, said), said) from None
        except urllib.error.URLError as error:
            raise StoreError(
                f"{self.url} cannot be reached ({error.reason}); is Label Studio running, and is the address right?"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise StoreError(f"{self.url}: the connection broke ({error}); the same command can be repeated") from None


def checked_url(url: str) -> str:
    """An address without the last slash; only http and https, and no name or password inside."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ArgumentError(f"--url {url!r}: an address such as http://localhost:8080 was expected")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ArgumentError("--url: only the address of Label Studio, without a name, a password or a query")
    return url.rstrip("/")


def is_local(url: str) -> bool:
    """Whether an address is this machine's own."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _opener(url: str) -> urllib.request.OpenerDirector:
    # A proxy for the outside is no way to this machine.
    proxies = [urllib.request.ProxyHandler({})] if is_local(url) else []
    return urllib.request.build_opener(_NoRedirect, *proxies)


def _parsed(url: str, content: bytes) -> Any:
    if not content:
        return None
    try:
        return json.loads(content)
    except ValueError:
        raise StoreError(f"{url} answered with something else than JSON; is it the address of Label Studio?") from None


def _refusal(client: Client, path: str, error: urllib.error.HTTPError, said: str) -> str:
    """What went wrong, and what to do."""
    where = f"Label Studio at {client.url}"
    if 300 <= error.code < 400:
        to = urlsplit(error.headers.get("Location") or "")
        other = f"{to.scheme}://{to.netloc}" if to.netloc else "another page"
        return f"{client.url} redirects to {other}, where the token is not sent; if that is right, pass it as --url"
    if error.code == 401 and client.legacy:
        return (
            f"{where} does not accept the legacy token (401: {said}). They are off by default: make a personal "
            "access token on its account page, or let the organisation allow legacy ones"
        )
    if error.code == 401:
        return f"{where} does not accept the token (401: {said}); it may have run out or been revoked. Make a new one"
    if error.code == 403:
        return f"{where}: the owner of the token may not do this (403: {said})"
    if error.code == 404 and path.startswith(("/api/projects/", "/api/tasks/")):
        return f"{where} has no such project, or does not show it to the owner of the token (404 for {path})"
    if "ssrf" in said.lower() or "local ip" in said.lower() or "loopback" in said.lower():
        return (
            f"{where} refuses an address inside its own network ({error.code}: {said}). That protects it; only on a "
            "machine of your own may SSRF_PROTECTION_ENABLED=false be set for it"
        )
    return f"{where} answered {error.code} to {path.split('?')[0]}: {said}"


def _detail(content: bytes) -> str:
    """The message in an answer of Label Studio; the start of anything else."""
    try:
        found = json.loads(content)
    except ValueError:
        return " ".join(content.decode("utf-8", "replace").split())[:200]
    parts = found if isinstance(found, dict) else {"detail": found}
    told = [parts.get("detail"), parts.get("validation_errors")]
    return "; ".join(str(part) for part in told if part)[:500] or str(found)[:500]
