"""Connections: time limits for peers that send or read slowly, and limits on how many connections there are at a time.

uvicorn limits only idle connections (`timeout_keep_alive`), and its `limit_concurrency` refuses new connections while
slow ones stay. Here a request must be whole in time, a reply must be read at a least rate, and if there are too many
connections the one that has waited longest for its peer is closed to make room for the new one.
"""

from __future__ import annotations

import asyncio
import ipaddress
from dataclasses import dataclass
from typing import Any, Literal

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from labelwise.errors import ArgumentError

Phase = Literal["head", "body", "reply", ""]
RESERVED_FILES = 128  # of the process: the store, images, the worker, the log
IDLE_BONUS = 1.0  # seconds: a connection whose requests were whole and quick has waited so much less
GRACE, BURST = 0.1, 1.25  # if all have waited for fewer seconds, this many times the connections are let in
_TOO_SLOW = "The request did not arrive in time. Send it again."
_TOO_MANY = "The server has too many connections. Try again in a few seconds."


@dataclass(frozen=True)
class Limits:
    """What peers may take.

    Attributes:
        connections: connections at a time.
        of_one_peer: connections of one address at a time. A proxy is one address unless it is in `proxies`.
        proxies: addresses of proxies, which speak for many people and are limited by `connections` alone.
        head_seconds: time for the first line and the headers of a request.
        body_seconds: time for the body of a request.
        reply_seconds: time in which a peer must read `least_read` bytes of a reply.
        least_read: see `reply_seconds`.
    """

    connections: int = 512
    of_one_peer: int = 128
    proxies: frozenset[str] = frozenset()
    head_seconds: float = 10.0
    body_seconds: float = 20.0
    reply_seconds: float = 20.0
    least_read: int = 16 * 1024

    def __post_init__(self) -> None:
        for address in self.proxies:
            try:
                ipaddress.ip_address(address)
            except ValueError:
                if address != "localhost":
                    raise ArgumentError(
                        f"A proxy is named by its IP address, such as 10.0.0.5; found {address!r}."
                    ) from None

    @property
    def possible(self) -> int:
        """`connections`, or fewer where this process may open fewer files."""
        try:
            import resource
        except ImportError:  # Windows has no such limit
            return self.connections
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return self.connections if files == resource.RLIM_INFINITY else self.within(files)

    def within(self, files: int) -> int:
        """The number of connections of a process that may open `files` files; a reply may need one of its own."""
        return max(1, min(self.connections, int(max(files - RESERVED_FILES, files // 2) / 2 / BURST)))


class LimitedConnection(H11Protocol):
    """One connection of the page, closed if its peer takes longer than `limits` allow."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: Limits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits, self.possible = limits, limits.possible
        self.peer = ""
        self.waits_since: float | None = None  # for the peer; None while the server works
        self._phase: Phase = ""
        self._unread = 0  # bytes of the reply when the clock was set
        self._clock: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Make room for this connection, or refuse it."""
        super().connection_made(transport)
        self.peer = self.client[0] if self.client else ""
        self._set_clock()
        crowd, most = self._crowd()
        if len(crowd) <= most:
            return
        waiting = [one for one in crowd if one.waits_since is not None and one is not self]
        # One that has just come is not closed for one that has done nothing for a while, however well it behaved.
        late = [one for one in waiting if (one.waits_since or 0.0) < self.loop.time() - GRACE]
        if late or len(crowd) > BURST * most:
            slowest = min(
                late or waiting, key=lambda one: (one.waits_since or 0.0) + IDLE_BONUS * one.is_idle, default=None
            )
            slowest._end() if slowest is not None else self._end(503, _TOO_MANY)

    @property
    def is_idle(self) -> bool:
        """Whether a reply was sent and read, and nothing of a further request has arrived."""
        return self._phase == "head" and self.timeout_keep_alive_task is not None

    def _crowd(self) -> tuple[list[LimitedConnection], int]:
        """The connections among which this one needs room, and how many of them there may be."""
        everyone = [one for one in self.connections if isinstance(one, LimitedConnection)]
        own = [one for one in everyone if one.peer == self.peer]
        if self.peer not in self.limits.proxies and len(own) > self.limits.of_one_peer:
            return own, self.limits.of_one_peer
        return everyone, self.possible

    def data_received(self, data: bytes) -> None:
        """Bytes of a request. The time of a request begins with its first byte, not with the end of the one before."""
        if self.timeout_keep_alive_task is not None:
            self._phase = ""
        super().data_received(data)

    def handle_events(self) -> None:
        """Pass on what has arrived."""
        super().handle_events()
        self._set_clock()

    def on_response_complete(self) -> None:
        """The application is done with its reply; the peer may still have to read it."""
        super().on_response_complete()
        self._set_clock()

    def pause_writing(self) -> None:
        """More of a reply waits to be read than fits into memory."""
        super().pause_writing()
        self._set_clock()

    def resume_writing(self) -> None:
        """The peer has read."""
        super().resume_writing()
        self._set_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is closed."""
        if self._clock is not None:
            self._clock.cancel()
        super().connection_lost(exc)

    def _now(self) -> Phase:
        """What is awaited from the peer: the head or the body of a request, that it reads a reply, or nothing."""
        if self.transport.get_write_buffer_size():
            return "reply"
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        return "head" if self.cycle is None or self.cycle.response_complete else ""

    def _set_clock(self) -> None:
        phase = self._now()
        if phase == self._phase or self not in self.connections:
            return
        if self._clock is not None:
            self._clock.cancel()
        self._phase = phase
        self.waits_since = self.loop.time() if phase else None
        self._start_clock()

    def _start_clock(self) -> None:
        limits = self.limits
        seconds = {"head": limits.head_seconds, "body": limits.body_seconds, "reply": limits.reply_seconds, "": 0.0}
        self._unread = self.transport.get_write_buffer_size()
        self._clock = self.loop.call_later(seconds[self._phase], self._late) if self._phase else None

    def _late(self) -> None:
        """The time is over for what is awaited from the peer."""
        unread = self.transport.get_write_buffer_size()
        if self._phase != "reply":
            self._end(408, _TOO_SLOW)
        elif unread == 0:
            self._set_clock()
        elif unread > self._unread - self.limits.least_read:
            self._end()
        else:
            self._start_clock()

    def _end(self, status: int = 0, text: str = "") -> None:
        """Close the connection, with this reply if a request has begun and has none."""
        self.connections.discard(self)
        in_body = self.conn.their_state is h11.SEND_BODY
        begun = in_body or bool(self.conn.trailing_data[0]) or status == 503
        answered = in_body and self.cycle is not None and self.cycle.response_started
        if status and begun and not answered and not self.transport.get_write_buffer_size():
            reason = {408: "Request Timeout", 503: "Service Unavailable"}[status]
            head = f"HTTP/1.1 {status} {reason}\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
            self.transport.write(f"{head}Retry-After: 5\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
            self.transport.close()
        else:
            self.transport.abort()
