"""Guard: who may talk to the page. Names of the server, the token, signed sessions and the CSRF code made from them.

There are no passwords and no accounts: whoever holds the link may label, under the name he gives. All is derived from
one secret of the project (`page.key`, readable by its owner alone), so a server that was killed and started again still
knows every browser that was open.
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
SHORTEST_TOKEN = 16
LONGEST_NAME = 60


@dataclass(frozen=True)
class Session:
    """One browser: a random id, and the name its person gave ('' before that)."""

    id: str
    who: str


@dataclass(frozen=True)
class Guard:
    """What is asked of a request. `token` None: nothing but a name of this server (for loopback)."""

    secret: bytes = field(repr=False)
    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] = frozenset(LOOPBACK)
    addresses: bool = False  # listening everywhere: any IP address is a name of this server, a foreign domain is not
    limit: int = 64 * 1024  # bytes in the body of a request

    @staticmethod
    def make(
        folder: str | os.PathLike[str], host: str = "127.0.0.1", token: str | None = None, names: Sequence[str] = ()
    ) -> Guard:
        """The guard of a project served on `host`; `names` are further names it answers to (behind a proxy, say).

        Anywhere but on loopback a token is asked for: `token`, or one made from the project's secret.
        """
        if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isalnum()):
            raise ArgumentError(
                f"A token is at least {SHORTEST_TOKEN} letters and digits; found {len(token)} characters or others "
                "among them. Leave it out, and one is made."
            )
        secret = _secret(Path(folder) / "page.key")
        away = host not in LOOPBACK or bool(names)
        everywhere = host in ("0.0.0.0", "::", "")
        own = {socket.gethostname().lower(), socket.getfqdn().lower()} if everywhere else {host.lower()}
        return Guard(
            secret,
            token or (_mac(secret, "token").hex()[:32] if away else None),
            frozenset({*LOOPBACK, *own, *(name.lower() for name in names)}),
            everywhere,
        )

    def knows(self, host: str) -> bool:
        """Whether a request's Host names this server: a page of another name that resolves to us (DNS rebinding) does
        not.
        """
        name = _bare(host)
        return name in self.hosts or (self.addresses and _is_address(name))

    def admits(self, token: str) -> bool:
        """Whether `token` is the one asked for."""
        return self.token is not None and hmac.compare_digest(token.encode(), self.token.encode())

    @property
    def cookie(self) -> str:
        """The cookie's name: browsers do not tell ports apart, so two projects on one machine need two names."""
        return f"labelwise_{_mac(self.secret, 'cookie').hex()[:8]}"

    def new(self, who: str = "") -> Session:
        """A session for a browser that has none."""
        return Session(secrets.token_urlsafe(16), who)

    def sign(self, session: Session) -> str:
        """The session as the value of a cookie, which nobody else can write."""
        text = base64.urlsafe_b64encode(json.dumps([session.id, session.who]).encode()).decode().rstrip("=")
        return f"{text}.{self._mark('session', text)}"

    def read(self, value: str) -> Session | None:
        """The session of a cookie; None when we did not write it, or when the token has changed since."""
        text, _, mark = value.partition(".")
        if not hmac.compare_digest(mark.encode(), self._mark("session", text).encode()):
            return None
        try:
            sid, who = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        except (ValueError, TypeError):  # signed by us and yet not ours: an older form of the cookie
            return None
        return Session(str(sid), str(who))

    def csrf(self, session: Session) -> str:
        """What the pages of this session send with each POST; other sites cannot read it."""
        return self._mark("csrf", session.id)

    def _mark(self, purpose: str, text: str) -> str:
        return _mac(self.secret, purpose, self.token or "", text).hex()[:40]


def clean_name(text: str) -> str:
    """A person's name as it is kept: one line, without control characters, not empty and not long."""
    name = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not name or len(name) > LONGEST_NAME:
        raise ArgumentError(f"A name has 1 to {LONGEST_NAME} characters; found {len(name)}.")
    return name


def _mac(secret: bytes, *parts: str) -> bytes:
    return hmac.new(secret, "\0".join(parts).encode("utf-8", "replace"), hashlib.sha256).digest()


def _bare(host: str) -> str:
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
    """The secret in `path`; made at the first start, for its owner alone."""
    if not path.exists():
        create_file(path, secrets.token_bytes(32), 0o600)
    secret = path.read_bytes()
    if len(secret) < 32:
        raise StoreError(
            f"{path.name} of this project should hold 32 bytes and holds {len(secret)}. Remove it: a new one is made, "
            "and everyone opens the link again."
        )
    return secret
