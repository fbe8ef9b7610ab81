"""Serve: the page and the worker beside it, until Ctrl-C; both stop together."""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn

from labelwise.errors import ArgumentError
from labelwise.server.app import make_app
from labelwise.server.auth import Guard
from labelwise.server.supervisor import Keeper

if TYPE_CHECKING:
    from labelwise.project import Project

Say = Callable[[str], None]
TRIES = 20  # ports looked at, from the one asked for


def serve(
    project: Project,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    open_browser: bool = True,
    names: Sequence[str] = (),
    say: Say | None = None,
    worker: bool = True,
) -> None:
    """Serve the labelling page of `project` and run its worker, until Ctrl-C or SIGTERM.

    On loopback no token is asked for unless one is given; elsewhere there always is one, printed with the link.
    `names` are further names the server answers to, behind a proxy. A port that is taken gives the next free one.
    """
    say = say or _to_stderr
    guard = Guard.make(project.folder, host, token, names)
    listening = listen(host, port, say)
    link = link_to(host, listening.getsockname()[1], guard.token)
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(project, guard),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=bool(names),
            ws="none",
            timeout_graceful_shutdown=3,
        )
    )
    keeper = Keeper(project.folder, say)
    with contextlib.closing(listening), _stoppable():
        try:
            if worker:
                keeper.start()
            say(f"Labelling page: {link}")
            if guard.token is not None:
                say("Whoever has this link can label. Remove page.key from the project folder to make it void.")
            say("Ctrl-C stops the page and the worker; every answer is already on disk.")
            if open_browser:
                threading.Timer(0.5, webbrowser.open, (link,)).start()
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            pass  # uvicorn passes on the signal that stopped it
        finally:
            keeper.stop()
            say("Stopped. Go on with: labelwise resume " + str(project.folder))


def listen(host: str, port: int, say: Say) -> socket.socket:
    """A socket that listens on `host`, at `port` or, when that is taken, at the next free one."""
    if not 0 <= port <= 65535:
        raise ArgumentError(f"A port is a number from 0 to 65535; found {port}.")
    try:
        family, *_, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ArgumentError(f"{host!r} is no address of this machine ({error}). Try 127.0.0.1.") from None
    last: OSError | None = None
    for tried in [port] if port == 0 else range(port, min(port + TRIES, 65536)):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], tried, *address[2:]))
            listening.listen(256)
        except OSError as error:
            listening.close()
            last = error
            continue
        if tried != port and port != 0:
            say(f"Port {port} is taken; this page is at {tried}.")
        return listening
    raise ArgumentError(f"No port from {port} to {port + TRIES - 1} of {host} can be used ({last}). Give another one.")


def link_to(host: str, port: int, token: str | None) -> str:
    """The address to open, with the token when there is one."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    bracketed = f"[{name}]" if ":" in name else name
    return f"http://{bracketed}:{port}/" + (f"?token={token}" if token else "")


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM and a closed terminal end `serve` like Ctrl-C does, so that the worker is stopped as well."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    numbers = [signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _to_stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
