"""Whatever fails, the connections of a store and the socket of a page are closed."""

from __future__ import annotations

import contextlib
import importlib
import socket
import sqlite3
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.errors import LabelwiseError, StoreError
from labelwise.project import Project, Settings
from labelwise.project import create as creation
from labelwise.project.page_lock import page_lock
from labelwise.project.store import Item, Store

SETTINGS = Settings(name="t", kind="text", source="../texts.csv", text="body", encoder="words", classes=("a", "b"))


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        _ = connection.total_changes
    except sqlite3.ProgrammingError:
        return True
    return False


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[sqlite3.Connection]:
    """Every connection that a test opens."""
    found: list[sqlite3.Connection] = []
    connect = sqlite3.dbapi2.connect

    def remember(*args, **options) -> sqlite3.Connection:
        found.append(connect(*args, **options))
        return found[-1]

    monkeypatch.setattr(sqlite3.dbapi2, "connect", remember)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = "".join(f"{a} and {b}\n" for a in ("cat", "dog", "sun", "rain") for b in ("tree", "stone", "car"))
    (tmp_path / "texts.csv").write_text("body\n" + lines)
    return tmp_path / "p"


def test_a_connection_that_another_thread_uses_is_closed_when_it_is_returned(tmp_path, opened) -> None:
    store = Store.create(f"sqlite:///{tmp_path}/store.db")
    entered, go_on = threading.Event(), threading.Event()

    def read() -> None:
        with store._database.reading():
            entered.set()
            go_on.wait(30)

    thread = threading.Thread(target=read)
    thread.start()
    assert entered.wait(30)
    store.close()
    go_on.set()
    thread.join()
    assert all(map(is_closed, opened))
    store.add_items([Item(0, "a")])  # a thread that has not heard yet
    assert all(map(is_closed, opened))


def test_a_file_that_is_no_store(tmp_path, opened) -> None:
    (tmp_path / "store.db").write_bytes(b"no store at all, for sure" * 100)
    with pytest.raises(StoreError, match="damaged"):
        Store.open(f"sqlite:///{tmp_path}/store.db")
    assert opened
    assert all(map(is_closed, opened))


def fails(*_: object, **__: object) -> None:
    raise OSError("no space left on device")


@pytest.mark.parametrize("rows", [12, creation.PAGE_FIRST_FROM["words"]])  # the page opens first with many texts
@pytest.mark.parametrize("step", ["Settings.write", "Store.add_class"])
def test_a_project_that_cannot_be_made(folder, opened, monkeypatch, step: str, rows: int) -> None:
    texts = folder.parent / "texts.csv"
    texts.write_text("body\n" + "".join(f"text {row} and {row % 7}\n" for row in range(rows)))
    with monkeypatch.context() as full:
        full.setattr(f"labelwise.project.create.{step}", fails)
        with pytest.raises(OSError, match="no space"):
            creation.begin(folder, SETTINGS, lambda *_: None)
    assert opened
    assert all(map(is_closed, opened))
    creation.begin(folder, SETTINGS, lambda *_: None).close()
    monkeypatch.setattr(Project, "__init__", fails)
    with pytest.raises(OSError, match="no space"):
        Project.open(folder)
    assert all(map(is_closed, opened))


def test_options_that_are_refused_once_the_project_is_open(folder, opened) -> None:
    Project.create(folder, SETTINGS).close()
    about = folder.parent / "about.yaml"
    about.write_text("z: not a class\n")
    words = ["resume", str(folder), "--no-open", "--port", "0", "--suggest", "auto", "--describe", str(about)]
    refused = CliRunner().invoke(app, words)
    assert isinstance(refused.exception, LabelwiseError), refused.output
    assert all(map(is_closed, opened))


def test_the_socket_of_a_page_that_is_refused(folder, monkeypatch) -> None:
    serving = importlib.import_module("labelwise.server.serve")  # the package has a function of that name
    sockets: list[socket.socket] = []
    listen = serving.listen

    def remember(*args) -> socket.socket:
        sockets.append(listen(*args))
        return sockets[-1]

    monkeypatch.setattr(serving, "listen", remember)
    Project.create(folder, SETTINGS).close()
    with (
        contextlib.closing(Project.open(folder)) as project,
        page_lock(folder, "http://127.0.0.1:1/"),
        pytest.raises(StoreError, match="page"),
    ):
        serving.serve(project, port=0, open_browser=False, worker=False)
    assert [one.fileno() for one in sockets] == [-1]
