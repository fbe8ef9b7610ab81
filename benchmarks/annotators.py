"""Simulated annotators of the labelling page, over HTTP as a browser would, and the server they talk to."""

from __future__ import annotations

import csv
import http.client
import importlib
import multiprocessing
import os
import re
import resource
import socket
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import uvicorn

from labelwise.project import Project, Settings
from labelwise.server import serve
from labelwise.server.connections import Limits
from labelwise.server.serve import DEFAULTS

_TOKEN = re.compile(r'id="card"[^>]* data-token="([^"]+)" data-row="(\d+)"')
_CSRF = re.compile(r'data-csrf="([0-9a-f]+)"')
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["labelwise.server", "labelwise.project.project"])
LOST = (OSError, http.client.HTTPException)  # no reply: the request may have been carried out or not


def make_project(folder: Path, rows: int, k: int, store: str = "") -> Path:
    """A project of `rows` points in the plane, of two classes, that asks for `k` a round; `store` as in `Settings`."""
    folder.mkdir(parents=True, exist_ok=True)
    x_ND = np.random.Generator(np.random.PCG64(0)).normal(size=(rows, 2)).round(4)
    with (folder / "points.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y"], *x_ND.tolist()])
    settings = Settings(
        name="Points",
        kind="table",
        source="../points.csv",
        columns=("x", "y"),
        classes=("left", "right"),
        k=k,
        recipe="random+margin",
        store=store,
    )
    Project.create(folder / "project", settings).close()
    return folder / "project"


def make_photos(folder: Path, rows: int, k: int, side: int = 1200) -> Path:
    """A project of `rows` photos, JPEG files of `side` pixels with smooth colours and grain."""
    from PIL import Image

    (folder / "photos").mkdir(parents=True, exist_ok=True)
    rng = np.random.Generator(np.random.PCG64(0))
    for number in range(rows):
        small = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8))
        photo = np.asarray(small.resize((side, side * 3 // 4), Image.Resampling.BICUBIC)).astype(np.int16)
        grain = rng.integers(-12, 12, photo.shape, dtype=np.int16)
        Image.fromarray((photo + grain).clip(0, 255).astype(np.uint8)).save(folder / "photos" / f"{number}.jpg")
    settings = Settings(
        name="Photos",
        kind="image",
        source="../photos",
        classes=("left", "right"),
        encoder="pixels",
        k=k,
        recipe="random+margin",
    )
    Project.create(folder / "project", settings).close()
    return folder / "project"


class Server:
    """The page and its worker; forked from a process that has imported all, so quick to start again."""

    def __init__(self, folder: Path, port: int, log: Path, limits: Limits | None = DEFAULTS, files: int = 0) -> None:
        self.port = port
        self.process = CONTEXT.Process(target=_serve, args=(folder, port, log, limits, files))
        self.process.start()

    def wait(self, limit: float = 120.0) -> None:
        """Until it answers."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            if self.process.exitcode is not None:
                raise RuntimeError(f"the server ended by itself with {self.process.exitcode}; its log says why")
            probe = Annotator(self.port, "probe")
            try:
                probe.request("GET", "/")
                return
            except LOST:
                time.sleep(0.05)
            finally:
                probe.hang_up()
        raise RuntimeError("the server did not answer")

    def worker(self) -> int | None:
        """The worker's process, while there is one."""
        for task in Path(f"/proc/{self.process.pid}/task").iterdir():  # of the thread that started it
            for child in (task / "children").read_text().split():
                if b"labelwise.project.loop.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
        return None

    def kill(self) -> None:
        """Kill -9."""
        self.process.kill()
        self.process.join()

    def stop(self) -> int | None:
        """Stop it as Ctrl-C would."""
        self.process.terminate()
        self.process.join(60)
        return self.process.exitcode


def _serve(folder: Path, port: int, log: Path, limits: Limits | None, files: int) -> None:
    if files:  # that the process may open
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with log.open("a") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    if limits is None:  # uvicorn as it comes
        page: Any = importlib.import_module("labelwise.server.serve")
        page.Server = uvicorn.Server
        page.configured = lambda app, *_: uvicorn.Config(
            app, log_level="warning", ws="none", timeout_graceful_shutdown=3
        )
    serve(Project.open(folder), port=port, open_browser=False, limits=limits or DEFAULTS)


class Annotator:
    """One person's browser, with one connection that is kept; `token` is that of a link of their own."""

    def __init__(self, port: int, name: str, timeout: float = 60.0, token: str = "") -> None:
        self.port, self.name, self.timeout, self.token = port, name, timeout, token
        self._line: http.client.HTTPConnection | None = None
        self._cookie = self._csrf = ""

    def request(self, method: str, path: str, fields: dict[str, str] | None = None) -> tuple[int, str]:
        """Status and text of the whole reply; raises one of LOST when there is none."""
        headers = {"Origin": f"http://127.0.0.1:{self.port}", "Cookie": self._cookie, "X-CSRF-Token": self._csrf}
        headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            if self._line is None:
                self._line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.timeout)
                self._line.connect()
                self._line.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._line.request(method, path, urlencode(fields) if fields is not None else None, headers)
            reply = self._line.getresponse()
            text = reply.read().decode()
        except LOST:
            self.hang_up()
            raise
        given = reply.getheader("Set-Cookie")
        if given:
            self._cookie = given.partition(";")[0]
        return reply.status, text

    def begin(self) -> None:
        """Open the page and, without a link of one's own, give the name."""
        if self.token:
            self.request("GET", f"/?token={self.token}")
        status, text = self.request("GET", "/")
        found = _CSRF.search(text)
        if found is None:  # every page holds the code of its session
            raise http.client.HTTPException(f"no page: {status} {text[:200]}")
        self._csrf = found[1]
        if self.token:
            return
        status, said = self.request("POST", "/who", {"name": self.name})
        assert status == 204, said

    def hang_up(self) -> None:
        """Close the connection."""
        if self._line is not None:
            self._line.close()
            self._line = None


def task_in(text: str) -> tuple[str, int] | None:
    """Token and row of the card in a reply; None when there is no item just now."""
    found = _TOKEN.search(text)
    return None if found is None else (found[1], int(found[2]))


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
