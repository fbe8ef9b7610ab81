"""The ML backend of Label Studio over HTTP: who may ask, how much, and which request is which."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import math
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from labelwise.errors import LabelError, LabelwiseError
from labelwise.project.exchange.studio_backend import StudioBackend
from labelwise.server.attempts import Attempts
from labelwise.server.auth import LOOPBACK, Auth
from labelwise.server.connections import Limits
from labelwise.server.context import write_log
from labelwise.server.serve import Notify, Server, configured, link_to, listen, sigterm_as_interrupt, tls_context
from labelwise.server.supervisor import Supervisor

if TYPE_CHECKING:
    from labelwise.project import Project

MAX_BODY = 64 * 1024 * 1024  # a hundred tasks with their images inside
BODY_SECONDS = 60.0
USER = "labelwise"
Answer = Callable[[Mapping[str, Any]], dict[str, Any]]


def make_backend_app(backend: StudioBackend, auth: Auth, say: Notify) -> Starlette:
    """The protocol's addresses, for whoever has the token of `auth`. `say` hears what was refused, each line once."""
    attempts, told = Attempts(), set[str]()

    def tell(line: str) -> None:
        if line not in told:
            told.add(line)
            say(line)

    def route(path: str, answer: Answer, method: str) -> Route:
        async def respond(request: Request) -> Response:
            refused = _check(request, auth, attempts)
            if refused is not None:
                tell(f"Refused {method} {path}: {bytes(refused.body).decode()}")
                return refused
            try:
                body = {} if method == "GET" else _parsed(await _read(request, auth.max_body))
                reply = await run_in_threadpool(answer, body)
            except LabelError as error:
                tell(f"Refused {method} {path}: {error}")
                return PlainTextResponse(f"{error}", 422)
            except LabelwiseError as error:
                tell(f"Failed {method} {path}: {error}")
                return PlainTextResponse(f"{error}", 503)
            except HTTPException:
                raise
            except Exception:  # an unexpected error fails one request; the server continues
                tell(f"Failed {method} {path}: {traceback.format_exc()}")
                return PlainTextResponse("The backend failed on this request; its terminal says why.", 500)
            for line in reply.get("refused", ()):
                tell(f"Not taken in: {line}")
            return JSONResponse(reply, 422 if reply.get("refused") else 200)

        return Route(path, respond, methods=[method])

    def health(body: Mapping[str, Any]) -> dict[str, Any]:
        return backend.health()

    def versions(body: Mapping[str, Any]) -> dict[str, Any]:
        return backend.versions()

    def plain(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        texts = {404: "Label Studio asks for /health, /setup, /predict, /webhook, /train and /versions alone."}
        return PlainTextResponse(texts.get(status, str(getattr(error, "detail", "The request failed."))), status)

    posts = {"/setup": backend.setup, "/predict": backend.predict, "/webhook": backend.webhook, "/train": backend.train}
    routes = [route(path, health, "GET") for path in ("/", "/health")] + [route("/versions", versions, "GET")]
    routes += [route(path, answer, "POST") for path, answer in posts.items()]
    return Starlette(routes=routes, exception_handlers={HTTPException: plain})


def backend_auth(
    folder: str | os.PathLike[str], host: str = "127.0.0.1", token: str | None = None, names: Sequence[str] = ()
) -> Auth:
    """The rules for Label Studio's requests. Its token is not that of the labelling page."""
    auth = replace(Auth.make(folder, host, token, names), max_body=MAX_BODY)
    if token is not None or auth.token is None:
        return auth
    return replace(auth, token=hmac.new(auth.secret, b"label-studio", hashlib.sha256).hexdigest()[:32])


def serve_backend(
    project: Project,
    host: str = "127.0.0.1",
    port: int = 9090,
    token: str | None = None,
    names: Sequence[str] = (),
    add_classes: bool = False,
    say: Notify = print,
    worker: bool = True,
    limits: Limits | None = None,
    certificate: str | os.PathLike[str] | None = None,
    certificate_key: str | os.PathLike[str] | None = None,
) -> None:
    """Serve `project` as an ML backend and run its worker, until Ctrl-C or SIGTERM.

    Args:
        project: an open project.
        host: the address to listen on. Anywhere but on loopback a token is required.
        port: the port to listen on; if it is taken, the next free one is used.
        token: the token; by default one is derived where it is required, and printed with the address.
        names: further host names by which Label Studio calls this server.
        add_classes: add classes that the project does not have.
        say: gets every message.
        worker: whether to run the worker too.
        limits: on connections and slow peers.
        certificate: serve HTTPS with this certificate chain, a PEM file.
        certificate_key: the private key, if it is not in the same file.

    Raises:
        StoreError: the features of the project are not complete.
        ArgumentError: the host, the port, the token, a proxy or the certificate cannot be used.
    """
    project.require_features()
    limits = replace(limits or Limits(), body_seconds=BODY_SECONDS)
    if names and not limits.proxies:
        limits = replace(limits, proxies=frozenset(LOOPBACK))
    context = tls_context(certificate, certificate_key)
    auth = backend_auth(project.folder, host, token, names)

    def tell(text: str) -> None:
        say(text)
        with contextlib.suppress(OSError):
            write_log(project.folder, f"label-studio: {text}")

    listening = listen(host, port, say)
    app = make_backend_app(StudioBackend(project, add_classes), auth, tell)
    server, supervisor = Server(configured(app, limits, context)), Supervisor(project.folder, say)
    address = link_to(host, listening.getsockname()[1], None, context is not None).rstrip("/")
    with contextlib.closing(listening), sigterm_as_interrupt():
        try:
            if worker:
                supervisor.start()
            shown = address if auth.token is None else address.replace("://", f"://{USER}:{auth.token}@")
            say(f"In Label Studio, add this under Settings > Model: {shown}")
            if auth.token is not None:
                say("Anyone with this address can answer. To revoke it, remove page.key from the project folder.")
            say("Press Ctrl-C to stop. Every answer is already saved.")
            server.run(sockets=[listening])
        except KeyboardInterrupt:
            pass  # uvicorn raises the signal again that stopped it
        finally:
            supervisor.stop()
            say(f"Stopped. Continue with: labelwise label-studio serve {project.folder}")


def _check(request: Request, auth: Auth, attempts: Attempts) -> Response | None:
    """The reply that refuses the request, before its body is read; None if it may pass."""
    headers = request.headers
    if not auth.is_own_host(headers.get("host", "")):
        return PlainTextResponse("This server does not have that name. Start it with --name NAME.", 421)
    if "origin" in headers:  # a browser sends it with every POST; Label Studio's server never does
        return PlainTextResponse("Label Studio's server may ask here, a page in a browser may not.", 403)
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > auth.max_body:
        return PlainTextResponse(_too_large(auth.max_body), 413)
    if auth.token is None:
        return None
    client = request.client.host if request.client else ""
    if wait := attempts.wait(client):
        text = f"Too many wrong tokens came from this address. Try again in {math.ceil(wait)} seconds."
        return PlainTextResponse(text, 429, {"Retry-After": str(math.ceil(wait))})
    given = _token(headers.get("authorization", ""))
    if auth.accepts(given):
        attempts.succeed(client)
        return None
    if given:
        attempts.fail(client)
    text = f"Give the token: as the password of the user {USER}, in the address, or as Authorization: Token ..."
    return PlainTextResponse(text, 401, {"WWW-Authenticate": 'Basic realm="Labelwise"'})


def _token(authorization: str) -> str:
    """The token of an Authorization header: the password of Basic, or what follows Token or Bearer; else empty."""
    scheme, _, value = authorization.strip().partition(" ")
    if scheme.lower() in ("token", "bearer"):
        return value.strip()
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value.strip(), validate=True).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


async def _read(request: Request, limit: int) -> bytes:
    content = bytearray()
    async for chunk in request.stream():
        content += chunk
        if len(content) > limit:
            raise HTTPException(413, _too_large(limit))
    return bytes(content)


def _parsed(content: bytes) -> Mapping[str, Any]:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise LabelError(f"the request is not JSON ({error})") from error
    if not isinstance(body, dict):
        raise LabelError(f"the request should be a JSON object; found {type(body).__name__}")
    return body


def _too_large(limit: int) -> str:
    return f"A request has at most {limit >> 20} MiB here. Let Label Studio send fewer tasks at a time."
