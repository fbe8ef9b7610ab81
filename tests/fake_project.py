"""A project for tests of the page: the real store, and data given row by row, so that any of it can be odd."""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from sklearn.datasets import load_digits

from labelwise.errors import SourceError
from labelwise.project import Project
from labelwise.project.loop.heartbeat import Heartbeat, HeartbeatWriter, State
from labelwise.project.loop.suspects import Suspect
from labelwise.project.loop.worker import step
from labelwise.project.project import Neighbour, RowView
from labelwise.project.settings import Settings
from labelwise.project.store import Item, Pick, Round, Store
from labelwise.project.suggest.suggestions import Suggestions
from labelwise.server import Auth, make_app
from labelwise.server.access import EVERY
from labelwise.server.connections import Limits
from labelwise.server.serve import DEFAULTS, Server, configured


def heartbeat(state: State = "idle", message: str = "The worker waits for answers.") -> Heartbeat:
    """A heartbeat of the worker in this state."""
    return Heartbeat(state, message, 0.0, 0)


@dataclass
class FakeProject:
    """The part of a project that the page uses."""

    folder: Path
    settings: Settings
    store: Store
    data: list[Any]
    state: Heartbeat = field(default_factory=heartbeat)
    doubted: list[Suspect] = field(default_factory=list)
    measured: Any = None
    excluded: list[str] = field(default_factory=list)
    better: list[str] = field(default_factory=list)
    suggested: Suggestions = field(default_factory=Suggestions)
    warnings: tuple[str, ...] = ()
    asked: list[tuple[int, int]] = field(default_factory=list)

    def view(self, row: int) -> RowView:
        if not 0 <= row < len(self.data):
            raise SourceError(f"there is no row {row}")
        value = self.data[row]
        if isinstance(value, Exception):
            raise value
        if isinstance(value, str):
            return RowView("text", value, None, False, f"row {row}")
        if isinstance(value, dict):
            return RowView("table", None, list(value.items()), False, f"row {row}")
        return RowView("image", None, None, True, f"photo {row}.png")

    def image(self, row: int, size: int) -> bytes:
        self.asked.append((row, size))
        if not 0 <= row < len(self.data) or not isinstance(self.data[row], int):
            raise SourceError(f"row {row} is no picture that can be read")
        colour = (self.data[row] * 37 % 256, self.data[row] * 91 % 256, 120)
        out = io.BytesIO()
        Image.new("RGB", (size, size * 3 // 4), colour).save(out, "PNG")
        return out.getvalue()

    def neighbours(self, row: int, n: int = 3) -> list[Neighbour]:
        told = [one for one in self.store.answers().values() if one.value is not None and one.row != row]
        told.sort(key=lambda one: abs(one.row - row))
        return [Neighbour(one.row, one.value, 1 / (1 + abs(one.row - row))) for one in told[:n]]

    def meter(self) -> Any:
        return self.measured

    def quality(self) -> Any:
        return None

    def heartbeat(self) -> Heartbeat:
        return self.state

    def suspects(self) -> list[Suspect]:
        return self.doubted

    def better_features(self) -> list[str]:
        return self.better

    def suggestions(self) -> Suggestions:
        return self.suggested

    def close(self) -> None:
        self.store.close()


def fake_project(
    folder: Path,
    data: list[Any],
    kind: str = "text",
    classes: tuple[str, ...] = ("cat", "dog"),
    people: int = 1,
    task: str = "classify",
    name: str = "Pets",
    picks: int | None = None,
) -> FakeProject:
    """A project of `data` with one round that asks for the first `picks` rows, every fifth of them a test pick."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(name=name, kind=kind, source="data", task=task, classes=classes, people=people)  # type: ignore[arg-type]
    store = Store.create(f"sqlite:///{folder / 'store.db'}", people)
    store.add_items([Item(row, f"row {row}") for row in range(len(data))])
    for one in classes:
        store.add_class(one, "setup")
    asked = len(data) if picks is None else picks
    chosen = [
        Pick(row, "test" if row % 5 == 4 else "chosen", 1.0 - row / 1000, {"words": f"Reason {row}."})
        for row in range(asked)
    ]
    store.add_round(Round(1, "margin", "", 0, 0, {"made": time.time()}), chosen)
    return FakeProject(folder, settings, store, data)


def digits_table(folder: Path, rows: int, k: int) -> Settings:
    """The settings of a project of so many digits as rows of a table, which is written to the folder."""
    names = [f"p{j}" for j in range(64)]
    lines = [",".join(names)] + [",".join(f"{value:g}" for value in row) for row in load_digits().data[:rows]]
    (folder / "digits.csv").write_text("\n".join(lines) + "\n")
    classes = tuple("0123456789")
    return Settings(name="digits", kind="table", source="../digits.csv", columns=tuple(names), classes=classes, k=k)


@contextlib.contextmanager
def running(
    project: Any,
    auth: Auth,
    limits: Limits = DEFAULTS,
    context: ssl.SSLContext | None = None,
    every: float = EVERY,
) -> Iterator[str]:
    """A real server of the page in a thread; its address. It reads the annotators again after `every` seconds."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen(64)
    server = Server(configured(make_app(project, auth, every), limits, context))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


class Browser(httpx.Client):
    """A browser as far as cookies, Origin and the code of the session go."""

    def __init__(self, store_address: str, auth: Auth, name: str | None = "anna") -> None:
        httpx.Client.__init__(self, base_url=store_address, headers={"origin": store_address}, timeout=30)
        self.page_auth = auth
        self.first_name = name

    def __enter__(self) -> Browser:
        httpx.Client.__enter__(self)
        if self.first_name is not None:
            self.start(self.first_name)
        return self

    def start(self, name: str) -> None:
        assert self.get("/" if self.page_auth.token is None else f"/?token={self.page_auth.token}").status_code == 200
        session = self.page_auth.read(self.cookies[self.page_auth.cookie])
        assert session is not None
        self.headers["x-csrf-token"] = self.page_auth.csrf(session)
        assert self.post("/who", data={"name": name}).status_code == 204


def work(project: Project) -> None:
    """What the worker does until it has to wait."""
    heartbeat = HeartbeatWriter(project.folder)
    try:
        while step(project, heartbeat):
            pass
    finally:
        heartbeat.close("stopped")
