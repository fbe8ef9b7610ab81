"""Auth: who may use the page. Host names of the server, the token, signed sessions and their CSRF codes.

There are no passwords and no accounts: whoever has the link may label, under a name of their choice. Everything is
derived from one secret of the project (`page.key`, readable by its owner only), so a restarted server still knows every
open browser.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import json
import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labelwise.errors import ArgumentError, StoreError
from labelwise.io.files import create_file

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MIN_TOKEN = 16
MAX_NAME = 60


@dataclass(frozen=True)
class Session:
    """One browser: a random id, and the name the person gave ("" before that)."""

    id: str
    who: str


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
        if token is not None and (len(token) < MIN_TOKEN or not token.isascii() or not token.isalnum()):
            raise ArgumentError(
                f"A token needs at least {MIN_TOKEN} characters, all of them letters or digits; found {len(token)} "
                "characters. Leave --token out to have one made."
            )
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
        name = _without_port(host)
        return name in self.hosts or (self.any_address and _is_address(name))

    def accepts(self, token: str) -> bool:
        """Whether `token` is the required one."""
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    @property
    def cookie(self) -> str:
        """The cookie's name; one for each project, because browsers share cookies between ports of a host."""
        return f"labelwise_{_mac(self.secret, 'cookie').hex()[:8]}"

    def new(self, who: str = "") -> Session:
        """A session for a browser that has none."""
        return Session(secrets.token_urlsafe(16), who)

    def sign(self, session: Session) -> str:
        """The session as a signed cookie value."""
        text = base64.urlsafe_b64encode(json.dumps([session.id, session.who]).encode()).decode().rstrip("=")
        return f"{text}.{self._code('session', text)}"

    def read(self, value: str) -> Session | None:
        """The session of a cookie value; None when the signature is wrong or the token has changed since."""
        text, _, code = value.partition(".")
        if not hmac.compare_digest(code.encode(), self._code("session", text).encode()):
            return None
        try:
            sid, who = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, TypeError):  # signed, yet unreadable: an older form of the cookie
            return None
        return Session(str(sid), str(who))

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


def _without_port(host: str) -> str:
    """The name in a Host header, without the port and the brackets of IPv6."""
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _secret(path: Path) -> bytes:
    """The secret in `path`; created at the first start, readable by its owner only."""
    if not path.exists():
        create_file(path, secrets.token_bytes(32), 0o600)
    secret = path.read_bytes()
    if len(secret) < 32:
        raise StoreError(
            f"{path.name} of this project should have 32 bytes and has {len(secret)}. Remove it: a new one is created "
            "at the next start, and everyone opens the new link."
        )
    return secret
