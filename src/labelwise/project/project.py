"""Project: a folder that holds all that is known about labelling some data. Many processes may have it open at once."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labelwise.errors import ArgumentError, SourceError, StoreError
from labelwise.io.files import write_text
from labelwise.pool import Pool
from labelwise.project.data import features
from labelwise.project.data.drift import changes, marks
from labelwise.project.data.encoders import encoder_of
from labelwise.project.data.features import About, Say
from labelwise.project.data.new_folder import new_place
from labelwise.project.data.pictures import Pictures
from labelwise.project.data.source import Data, Images, Rows, Texts, fingerprint, open_data
from labelwise.project.loop.check_recipe import check_recipe
from labelwise.project.loop.heartbeat import Working, read_working
from labelwise.project.loop.holdout import reserve
from labelwise.project.loop.snapshot import check_limit, last_seq, session_of, standing
from labelwise.project.loop.suspects import Suspect, read_suspects
from labelwise.project.meter.reading import Meter, read_meter
from labelwise.project.settings import Kind, Settings, is_project, read_settings
from labelwise.project.store import Item, Store
from labelwise.session import Session

OWNER = "labelwise"  # who the classes named at the start are from
LEFT_OUT = "left-out.txt"


@dataclass(frozen=True)
class Shown:
    """A row as a person sees it."""

    kind: Kind
    text: str | None
    fields: list[tuple[str, str]] | None
    image: bool
    title: str


@dataclass(frozen=True)
class Neighbour:
    """A labelled row near another one; similarity is the cosine of their features."""

    row: int
    label: str
    similarity: float


def _quiet(text: str, done: int, total: int) -> None:
    """Nobody listens."""


class Project:
    """Data, features, answers, and what the worker made of them."""

    def __init__(self, folder: Path, settings: Settings, store: Store, data: Data, about: About):
        self.folder = folder
        self.settings = settings
        self.store = store
        self.about = about
        self.warnings: tuple[str, ...] = ()
        self._data = data
        self._places = {row: place for place, row in enumerate(data.ids.tolist())}
        self._broken = dict(about.broken)
        self.pool: Pool = features.pool_of(folder / "features", dict(zip(data.ids.tolist(), data.refs)))
        self.reserve = reserve(self.pool.ids.numpy(), settings.seed, settings.test_share)
        self._pictures = Pictures(data, self._places) if isinstance(data, Images) else None
        self._near = _Near(self.pool)

    @staticmethod
    def create(folder: str | Path, settings: Settings, say: Say = _quiet) -> Project:
        """Make a project; broken off, the same call goes on. `say` is told what is going on, and how far it is."""
        where = Path(folder)
        if is_project(where):
            raise StoreError(f"{where} holds a project already; open it, or choose another folder")
        with new_place(where):
            return _created(where, settings, say)

    @staticmethod
    def open(folder: str | Path) -> Project:
        """Go on with a project. Data that is not what it was is refused, or named in `warnings` where it can be."""
        where = Path(folder)
        settings = read_settings(where)
        about = features.read_about(where / "features")
        store = Store.open(address(where, settings))
        try:
            items = store.items()
            known = np.array([item.row for item in items], np.int64), [item.ref for item in items]
            data = open_data(settings, where, known)
            warnings = changes(where, settings, data, about)
            project = Project(where, settings, store, data, about)
        except BaseException:
            store.close()
            raise
        project.warnings = warnings
        return project

    @property
    def left_out(self) -> list[str]:
        """What could not be read when the project was made, and why."""
        path = self.folder / LEFT_OUT
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

    def shown(self, row: int) -> Shown:
        """A row as a person sees it."""
        place = self._place(row)
        title, data = self._data.refs[place], self._data
        if isinstance(data, Texts):
            return Shown("text", data.texts[place], None, False, title)
        if isinstance(data, Rows):
            return Shown("table", None, data.fields(place), False, title)
        return Shown("image", None, None, True, title)

    def image(self, row: int, size: int) -> bytes:
        """The picture of a row, at most `size` pixels a side; encoded anew. SourceError for one that is broken."""
        if self._pictures is None:
            raise SourceError(f"row {row} is no image: this project is about {self.settings.kind}s")
        self._place(row)
        return self._pictures.get(int(row), int(size))

    def neighbours(self, row: int, n: int = 3) -> list[Neighbour]:
        """The labelled rows whose features are most like this row's."""
        self._place(row)
        labels = {other: one.value for other, one in self.store.answers().items() if one.value is not None}
        labels.pop(int(row), None)
        return [Neighbour(other, labels[other], alike) for other, alike in self._near(int(row), labels, n)]

    def meter(self) -> Meter | None:
        """What the test slice says, as the worker saw it last."""
        return read_meter(self.folder)

    def working(self) -> Working:
        """What the worker is doing."""
        return read_working(self.folder)

    def suspects(self) -> list[Suspect]:
        """Labels that the model finds unlikely, the least likely first; of the last round."""
        return read_suspects(self.folder)

    def session(self) -> Session:
        """The project as a session: every answer so far told, on the rows that may be chosen, with the same recipe."""
        known = standing(self.store, self.settings, self.reserve, last_seq(self.store))
        return session_of(self.pool, self.settings, self.reserve, known)

    def limit_memory(self, max_memory: str) -> None:
        """Choose rounds within this much memory from now on; too small a limit is refused, and the one before stays."""
        settings = replace(self.settings, max_memory=max_memory)
        check_limit(self.pool, settings)
        settings.write(self.folder)
        self.settings = settings

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _place(self, row: int) -> int:
        place = self._places.get(int(row))
        if place is None or int(row) in self._broken:
            raise SourceError(f"row {row} is not in the project, which has {len(self.pool)} rows")
        return place


class _Near:
    """Features of the labelled rows, read once each."""

    def __init__(self, pool: Pool):
        self._pool = pool
        self._unit: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()
        self._stack: tuple[tuple[int, ...], np.ndarray] = ((), np.empty((0, 0), np.float32))

    def __call__(self, row: int, labels: Mapping[int, str], n: int) -> list[tuple[int, float]]:
        rows = tuple(sorted(labels))
        if not rows or n < 1:
            return []
        with self._lock:
            if self._stack[0] != rows:
                new = [other for other in rows if other not in self._unit]
                if new:
                    self._unit.update(zip(new, _unit(self._pool.inputs(new).numpy())))
                self._stack = rows, np.stack([self._unit[other] for other in rows])
            stack_LD = self._stack[1]
        alike_L = stack_LD @ _unit(self._pool.inputs([row]).numpy())[0]
        best = np.lexsort((rows, -alike_L))[:n]
        return [(rows[place], float(alike_L[place])) for place in best.tolist()]


def _unit(x_ND: np.ndarray) -> np.ndarray:
    length_N = np.linalg.norm(x_ND, axis=1, keepdims=True)
    return np.asarray(x_ND / np.where(length_N > 0, length_N, 1), np.float32)


def address(folder: Path, settings: Settings) -> str:
    """Where the store is: a file in the folder, the address in the settings, or in the variable they name."""
    if not settings.store:
        return f"sqlite:///{(folder / 'store.db').resolve().as_posix()}"
    if not settings.store.startswith("env:"):
        return settings.store
    name = settings.store.removeprefix("env:")
    if not os.environ.get(name):
        raise StoreError(f"the address of the store is in the environment variable {name}, which is not set; set it")
    return os.environ[name]


def checked_address(url: str) -> str:
    """An address that may be written down: without a password."""
    if not url.startswith(("env:", "sqlite:", "postgres")):
        raise ArgumentError(f"--store is postgresql://user@host/database or env:NAME, found {url.partition(':')[0]!r}")
    _, at, host = url.partition("://")[2].rpartition("@")
    if not url.startswith("env:") and at and ":" in url.partition("://")[2][: -len(host) - 1]:
        raise ArgumentError(
            "--store: the address holds a password, which would be written into project.yaml. Put the whole address "
            "into an environment variable and pass --store env:NAME, or leave the password to PGPASSWORD or ~/.pgpass"
        )
    return url


def _created(where: Path, settings: Settings, say: Say) -> Project:
    check_recipe(settings)
    address(where, settings)  # a variable that is not set is said now, and not after hours of features
    say("reading the data", 0, 0)
    data = open_data(settings, where)
    if len(data) < 4:
        raise SourceError(f"{settings.path(where)}: {len(data)} rows; a project needs at least 4 to choose from")
    encoder = encoder_of(settings.encoder, settings.kind, data)
    about = features.compute(where / "features", data, encoder, fingerprint(settings.path(where), data), say)
    check_limit(features.pool_of(where / "features", dict(zip(data.ids.tolist(), data.refs))), settings)
    say("writing the list of rows", 0, 0)
    broken = dict(about.broken)
    items = [Item(row, ref) for row, ref in zip(data.ids.tolist(), data.refs) if row not in broken]
    store = _new_store(where, settings, items)
    left_out = [*data.faults, *broken.values()]
    if left_out:
        write_text(where / LEFT_OUT, "\n".join(left_out) + "\n")
    if isinstance(data, Images) and data.root is not None:
        marks(where, data)
    settings = replace(settings, fingerprint=about.fingerprint)
    settings.write(where)
    return Project(where, settings, store, data, about)


def _new_store(folder: Path, settings: Settings, items: list[Item]) -> Store:
    """A store with these items; one that was begun and never used is finished."""
    url = address(folder, settings)
    try:
        store = Store.create(url, settings.people)
    except StoreError as error:
        if error.__cause__ is not None:  # the disk or the server, not a store that is there
            raise
        store = Store.open(url)
        there = store.items()
        if store.rounds() or store.people != settings.people or (there and there != items):
            store.close()
            raise
    if not store.items():
        store.add_items(items)
    for name in settings.classes:
        store.add_class(name, OWNER)
    return store
