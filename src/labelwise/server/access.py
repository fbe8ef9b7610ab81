"""Access: who may use the page, and for what.

A project without annotators is open to everyone with its link, who may do everything, under a name of their choice.
Once it has annotators, each of them opens the page with a link of their own, and has a role:

- label: answer items, and see and change one's own answers.
- review: also see and change those of others, decide where people disagree, add classes, read the report.
- own: also download, read the history, give links and revoke them.

What other processes change, such as a link that the command line revokes, is seen within EVERY seconds, and before
anything is saved.
"""

from __future__ import annotations

import hmac
import time
from typing import TYPE_CHECKING

from starlette.concurrency import run_in_threadpool

from labelwise.project.store import ROLES, Annotator, Role
from labelwise.server.auth import Auth, Session

if TYPE_CHECKING:
    from labelwise.project.store import Store

EVERY = 1.0  # seconds


class Access:
    """The annotators of a project, as its page knows them: read again after `every` seconds."""

    def __init__(self, auth: Auth, store: Store, every: float = EVERY) -> None:
        self._auth, self._store, self._every = auth, store, every
        self.refresh()

    def refresh(self) -> None:
        """Read the annotators again."""
        began = time.monotonic()
        self.annotators = self._store.annotators()
        self._read = began

    async def up_to_date(self, writes: bool) -> None:
        """Read the annotators again if that is `every` seconds ago, or before each request that `writes`.

        So nothing is saved with a link that was revoked before. StoreError if they cannot be read.
        """
        if time.monotonic() - self._read > self._every or (writes and not self.is_open):
            await run_in_threadpool(self.refresh)

    @property
    def is_open(self) -> bool:
        """Whether everyone with the link may use the page, because nobody has one of their own."""
        return not self.annotators

    @property
    def needs_token(self) -> bool:
        """Whether a visit without a session needs a token."""
        return not self.is_open or self._auth.token is not None

    def session_for(self, token: str) -> Session | None:
        """A new session for a visit with this token; None if it is not valid."""
        if self.is_open:
            return self._auth.new() if self._auth.accepts(token) else None
        found = None
        for one in self.annotators.values():  # all of them, so that the time says nothing
            if one.role is not None and hmac.compare_digest(token.encode(), self.token_of(one).encode()):
                found = self._auth.new(one.name, one.link)
        return found

    def role(self, session: Session) -> Role | None:
        """What a session may do; None if it is not valid any more."""
        if self.is_open:
            return "own" if session.link == 0 else None
        found = self.annotators.get(session.who)
        return found.role if found is not None and found.link == session.link else None

    def token_of(self, annotator: Annotator) -> str:
        """The token of an annotator's link."""
        return self._auth.token_of(annotator.name, annotator.link)


def may(role: Role, least: Role) -> bool:
    """Whether `role` may do what `least` may.

    >>> may("own", "review"), may("label", "review")
    (True, False)
    """
    return ROLES.index(role) >= ROLES.index(least)
