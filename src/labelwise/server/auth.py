"""Auth: host names of the server, tokens, signed sessions and their CSRF codes.

There are no passwords. Whoever has the link may label, under a name of their choice; or, once the project has
annotators, each of them has a link of their own (`access.py`). Everything is derived from one secret of the project
(`page.key`, readable by its owner only), so a restarted server still knows every open browser.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labelwise.errors import ArgumentError, StoreError
from labelwise.io.files import create_file

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIN_TOKEN = 16
MAX_NAME = 60
IDLE_SECONDS = 7 * 86400.0  # after the last request a session ends
SESSION_SECONDS = 30 * 86400.0  # after its link was opened
_SECRET = 32  # bytes
RENEWED = 3600.0  # seconds after which a session is written again
_HOST = re.compile(r"(?:\[(?P<address>[0-9a-f:.%]+)\]|(?P<name>[^\s:/?#@\[\]]+))(?::\d{0,5})?")


@dataclass(frozen=True)
class Session:
    """One browser: a random id, and the name the person gave ("" before that).

    Attributes:
        link: the number of the person's own link; 0 for the link that all share.
        began: when the link was opened, in seconds since 1970.
        used: when this was last written to the browser.
    """

    id: str
    who: str
    link: int = 0
    began: float = field(default_factory=time.time, compare=False)
    used: float = field(default_factory=time.time, compare=False)

    def is_over(self, now: float) -> bool:
        """Whether the session has expired. One from the future was signed with another clock."""
        return not (now - IDLE_SECONDS < self.used < now + RENEWED and self.began > now - SESSION_SECONDS)


@dataclass(frozen=True)
class Auth:
    """The rules a request must pass.

    Attributes:
        secret: the project's secret, from which cookies and codes are derived.
        token: the token of the link; None to ask for none (on loopback).
        hosts: host names this server answers to.
        any_address: whether any IP address is accepted as host name, because the server listens on all of them.
        max_body: bytes allowed in the body of a request.
    """

    secret: bytes = field(repr=False)
    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset(LOOPBACK)
    any_address: bool = False
    max_body: int = 64 * 1024

    @staticmethod
    def make(
        folder: str | os.PathLike[str], host: str = "127.0.0.1", token: str | None = None, names: Sequence[str] = ()
    ) -> Auth:
        """The rules for a project served on `host`.

        Args:
            folder: the project folder, which holds the secret.
            host: the address the server listens on. Anywhere but on loopback a token is required.
            token: the token; by default one is derived from the secret where it is required.
            names: further host names the server answers to, such as those of a proxy.

        Raises:
            ArgumentError: `token` is too short, or has characters other than letters and digits.
            StoreError: the secret of the project is damaged.
        """
        check_token(token)
        secret = _secret(Path(folder) / "page.key")
        is_public = host not in LOOPBACK or bool(names)
        on_all = host in ("0.0.0.0", "::", "")
        hosts = {socket.gethostname().lower(), socket.getfqdn().lower()} if on_all else {host.lower()}
        return Auth(
            secret,
            token or (_mac(secret, "token").hex()[:32] if is_public else None),
            frozenset({*LOOPBACK, *hosts, *(name.lower() for name in names)}),
            on_all,
        )

    def is_own_host(self, host: str) -> bool:
        """Whether a Host header names this server. A foreign name that resolves to it (DNS rebinding) does not."""
        name = host_name(host)
        return name in self.hosts or (self.any_address and _is_address(name))

    def accepts(self, token: str) -> bool:
        """Whether `token` is the required one."""
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    @property
    def cookie(self) -> str:
        """The cookie's name; one for each project, because browsers share cookies between ports of a host."""
        return f"labelwise_{_mac(self.secret, 'cookie').hex()[:8]}"

    def new(self, who: str = "", link: int = 0) -> Session:
        """A session for a browser that has none."""
        return Session(secrets.token_urlsafe(16), who, link)

    def token_of(self, name: str, link: int) -> str:
        """The token of a person's own link."""
        return _mac(self.secret, "annotator", str(link), name).hex()[:32]

    def sign(self, session: Session) -> str:
        """The session as a signed cookie value, used now."""
        values = [session.id, session.who, session.link, session.began, time.time()]
        text = base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")
        return f"{text}.{self._code('session', text)}"

    def read(self, value: str) -> Session | None:
        """The session of a cookie value; None when its signature is wrong, it is over or the token has changed."""
        text, _, code = value.partition(".")
        if not hmac.compare_digest(code.encode(), self._code("session", text).encode()):
            return None
        try:
            sid, who, link, began, used = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, TypeError):  # signed, yet unreadable: an older form of the cookie
            return None
        session = Session(str(sid), str(who), int(link), float(began), float(used))
        return None if session.is_over(time.time()) else session

    def csrf(self, session: Session) -> str:
        """The code that the pages of this session send with each POST; other sites cannot read it."""
        return self._code("csrf", session.id)

    def _code(self, purpose: str, text: str) -> str:
        return _mac(self.secret, purpose, self.token or "", text).hex()[:40]


def clean_name(text: str) -> str:
    """A person's name on one line, without control characters. ArgumentError if it is empty or too long."""
    name = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not name or len(name) > MAX_NAME:
        raise ArgumentError(f"A name has 1 to {MAX_NAME} characters; found {len(name)}.")
    return name


def _mac(secret: bytes, *parts: str) -> bytes:
    return hmac.new(secret, "\0".join(parts).encode("utf-8", "replace"), hashlib.sha256).digest()


def host_name(header: str) -> str:
    """The name in a Host header, without the port and the brackets of IPv6; "" if it is no name with a port.

    >>> host_name("[::1]:8765"), host_name("Labels.example.org."), host_name("[::1")
    ('::1', 'labels.example.org', '')
    """
    found = _HOST.fullmatch(header.strip().lower())
    if found is None or (found["address"] and not (_is_address(found["address"]) and ":" in found["address"])):
        return ""
    return found["address"] or found["name"].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def check_token(token: str | None) -> None:
    """Raise ArgumentError if a token is too short, or has characters other than letters and digits."""
    if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isalnum()):
        raise ArgumentError(
            f"A token needs at least {MIN_TOKEN} characters, all of them letters or digits; found {len(token)} "
            "characters. Leave --token out to have one made."
        )


def _secret(path: Path) -> bytes:
    """The secret in `path`, with a checksum; created at the first start, readable by its owner only."""
    if not path.exists():
        secret = secrets.token_bytes(_SECRET)
        create_file(path, secret + _checksum(secret), 0o600)
    found = path.read_bytes()
    secret = found[:_SECRET]
    if len(secret) < _SECRET or found[_SECRET:] not in (_checksum(secret), b""):  # early files have no checksum
        raise StoreError(
            f"{path.name} of this project was changed or cut off after it was written. Restore it from a copy to keep "
            "the links, or remove it: a new one is created at the next start, and everyone opens a new link."
        )
    return secret


def _checksum(secret: bytes) -> bytes:
    return hashlib.sha256(b"page.key " + secret).digest()[:8]
