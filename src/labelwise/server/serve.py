"""Serve: runs the page and the worker until Ctrl-C."""

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
from labelwise.server.auth import Auth
from labelwise.server.supervisor import Supervisor

if TYPE_CHECKING:
    from labelwise.project import Project

Notify = Callable[[str], None]
PORTS_TRIED = 20


def serve(
    project: Project,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    open_browser: bool = True,
    names: Sequence[str] = (),
    say: Notify | None = None,
    worker: bool = True,
) -> None:
    """Serve the labelling page of `project` and run its worker, until Ctrl-C or SIGTERM.

    Args:
        project: an open project.
        host: the address to listen on. Anywhere but on loopback the page requires a token.
        port: the port to listen on; if it is taken, the next free one is used.
        token: the token; by default one is derived where it is required, and printed with the link.
        open_browser: whether to open the page in a browser.
        names: further host names the server answers to, such as those of a proxy.
        say: gets every message; by default they go to stderr.
        worker: whether to run the worker too.

    Raises:
        ArgumentError: the host, the port or the token cannot be used.
    """
    say = say or _to_stderr
    auth = Auth.make(project.folder, host, token, names)
    listening = listen(host, port, say)
    link = link_to(host, listening.getsockname()[1], auth.token)
    server = uvicorn.Server(
        uvicorn.Config(
            make_app(project, auth),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=bool(names),
            ws="none",
            timeout_graceful_shutdown=3,
        )
    )
    supervisor = Supervisor(project.folder, say)
    with contextlib.closing(listening), _sigterm_as_interrupt():
        try:
            if worker:
                supervisor.start()
            say(f"Labelling page: {link}")
            if auth.token is not None:
                say("Anyone with this link can label. To revoke it, remove page.key from the project folder.")
            say("Press Ctrl-C to stop the page and the worker. Every answer is already saved.")
            if open_browser:
                threading.Timer(0.5, webbrowser.open, (link,)).start()
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            pass  # uvicorn raises the signal again that stopped it
        finally:
            supervisor.stop()
            say(f"Stopped. Continue with: labelwise resume {project.folder}")


def listen(host: str, port: int, say: Notify) -> socket.socket:
    """A socket that listens on `host`, at `port` or, if that is taken, at the next free port."""
    if not 0 <= port <= 65535:
        raise ArgumentError(f"A port is a number from 0 to 65535; found {port}.")
    try:
        family, *_, address = socket.getaddrinfo(host or "0.0.0.0", port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ArgumentError(f"{host!r} is not an address of this machine ({error}). Try 127.0.0.1.") from None
    last: OSError | None = None
    for candidate in [port] if port == 0 else range(port, min(port + PORTS_TRIED, 65536)):
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address[0], candidate, *address[2:]))
            listening.listen(256)
        except OSError as error:
            listening.close()
            last = error
            continue
        if candidate != port and port != 0:
            say(f"Port {port} is taken; using {candidate}.")
        return listening
    raise ArgumentError(
        f"No port from {port} to {port + PORTS_TRIED - 1} on {host} is free ({last}). Choose another --port."
    )


def link_to(host: str, port: int, token: str | None) -> str:
    """The address to open, with the token if there is one."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    bracketed = f"[{name}]" if ":" in name else name
    return f"http://{bracketed}:{port}/" + (f"?token={token}" if token else "")


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end `serve` as Ctrl-C does, so that the worker is stopped too."""
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
