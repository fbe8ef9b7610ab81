"""Serve: runs the page and the worker until Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import socket
import ssl
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import uvicorn
from starlette.types import ASGIApp

from labelwise.errors import ArgumentError, LabelwiseError
from labelwise.project.page_lock import page_lock
from labelwise.server.app import make_app
from labelwise.server.auth import LOOPBACK, Auth, check_token
from labelwise.server.connections import LimitedConnection, Limits
from labelwise.server.context import write_log
from labelwise.server.supervisor import Supervisor

if TYPE_CHECKING:
    from labelwise.project import Project

Notify = Callable[[str], None]
PORTS_TRIED = 20
HANDSHAKE_SECONDS = 5.0
ACCEPTED, WAITING = 16, 1024  # connections that are accepted at a time, and that may wait for it
DEFAULTS = Limits()


def serve(
    project: Project,
    host: str = "127.0.0.1",
    port: int = 8765,
    token: str | None = None,
    open_browser: bool = True,
    names: Sequence[str] = (),
    say: Notify | None = None,
    worker: bool = True,
    join: bool = False,
    limits: Limits = DEFAULTS,
    certificate: str | os.PathLike[str] | None = None,
    certificate_key: str | os.PathLike[str] | None = None,
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
        join: serve a second page where one of this project runs already.
        limits: on connections and slow peers; with `names` and no proxies, a proxy on this machine is trusted.
        certificate: serve HTTPS with this certificate chain, a PEM file.
        certificate_key: the private key, if it is not in the same file.

    Raises:
        ArgumentError: the host, the port, the token, a proxy or the certificate cannot be used.
        StoreError: a page of this project runs already, and `join` is false.
    """
    say = say or _to_stderr
    if names and not limits.proxies:
        limits = replace(limits, proxies=frozenset(LOOPBACK))
    context = tls_context(certificate, certificate_key)
    check_token(token)
    with contextlib.ExitStack() as stack:
        listening = stack.enter_context(contextlib.closing(listen(host, port, say)))
        auth = Auth.make(project.folder, host, token, names)
        owner = next((one for one in project.store.annotators().values() if one.role == "own"), None)
        own_token = auth.token if owner is None else auth.token_of(owner.name, owner.link)
        server = Server(configured(make_app(project, auth), limits, context))
        supervisor = Supervisor(project.folder, say)
        taken = listening.getsockname()[1]
        link = link_to(host, taken, own_token, context is not None)
        stack.enter_context(page_lock(project.folder, link_to(host, taken, None, context is not None), join, say))
        stack.enter_context(sigterm_as_interrupt())
        try:
            if project.pending:
                threading.Thread(target=_take_features, args=(project, say), name="features", daemon=True).start()
            if worker:
                supervisor.start()
            say(f"Labelling page{'' if owner is None else f' of {owner.name}'}: {link}")
            if owner is not None:
                say(f"Each annotator has a link of their own: labelwise annotators list {project.folder}")
                if token is not None:
                    say("--token opens a page that everyone shares; this project has annotators, so it is not used.")
            elif auth.token is not None:
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


def configured(app: ASGIApp, limits: Limits, context: ssl.SSLContext | None = None) -> uvicorn.Config:
    """How uvicorn serves `app`: quietly, within `limits`, believing the headers of its proxies alone."""
    config = uvicorn.Config(
        app,
        loop="asyncio",
        backlog=ACCEPTED,
        http=cast(Any, functools.partial(LimitedConnection, limits=limits)),
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=bool(limits.proxies),
        forwarded_allow_ips=sorted(limits.proxies),
        timeout_graceful_shutdown=3,
    )
    config.load()
    config.ssl = context
    return config


class Server(uvicorn.Server):
    """uvicorn that accepts a few connections at a time and limits the time of TLS handshakes.

    asyncio accepts as many connections as wait before it calls the first protocol, so that a crowd takes every file of
    the process; and it gives a TLS handshake a minute.
    """

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen. The queue of the system stays long, whatever asyncio accepts at a time."""
        loop = asyncio.get_running_loop()
        if self.config.ssl is not None:
            loop.create_server = functools.partial(  # type: ignore[method-assign]
                loop.create_server, ssl_handshake_timeout=HANDSHAKE_SECONDS
            )
        await super().startup(sockets)
        for one in sockets or ():
            one.listen(WAITING)


def tls_context(
    certificate: str | os.PathLike[str] | None, key: str | os.PathLike[str] | None = None
) -> ssl.SSLContext | None:
    """What TLS needs, from PEM files; None if there is no certificate."""
    if certificate is None:
        if key is not None:
            raise ArgumentError("A key without a certificate cannot be used. Name the certificate too: --certificate.")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        files = f"{certificate} and {key}" if key is not None else f"{certificate}"
        raise ArgumentError(
            f"{files} cannot be used for HTTPS ({error}). --certificate needs a chain in PEM form, with its private "
            "key in the same file or in --certificate-key, without a password."
        ) from None
    return context


def _no_password() -> str:
    raise ValueError("the key has a password")


def check_page_arguments(
    host: str,
    port: int,
    token: str | None,
    certificate: str | os.PathLike[str] | None = None,
    certificate_key: str | os.PathLike[str] | None = None,
) -> None:
    """Raise ArgumentError for what `serve` would refuse, before a project is made."""
    tls_context(certificate, certificate_key)
    check_token(token)
    listen(host, port, lambda _: None).close()


def _take_features(project: Project, say: Notify) -> None:
    """Wait until the worker has computed the features of a pending project, and take them."""
    while True:
        try:
            if project.refresh():
                say("The features are complete. From now on the items most worth labelling come first.")
                return
        except (LabelwiseError, OSError) as error:
            write_log(project.folder, f"the features cannot be taken yet: {error}")
        time.sleep(1.0)


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
            listening.listen(WAITING)
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


def link_to(host: str, port: int, token: str | None, tls: bool = False) -> str:
    """The address to open, with the token if there is one."""
    name = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    bracketed = f"[{name}]" if ":" in name else name
    return f"http{'s' if tls else ''}://{bracketed}:{port}/" + (f"?token={token}" if token else "")


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
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
