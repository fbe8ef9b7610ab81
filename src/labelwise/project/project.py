"""Project: a folder with everything known about labelling some data. Many processes may open it at once."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labelwise.errors import ArgumentError, SourceError, StoreError
from labelwise.io.files import write_text
from labelwise.pool import Pool
from labelwise.project.data import features
from labelwise.project.data.drift import find_changes, recorded_sizes
from labelwise.project.data.encoders import encoder_of
from labelwise.project.data.features import FeatureInfo, OnProgress
from labelwise.project.data.pictures import Pictures
from labelwise.project.data.source import Data, Images, Rows, Texts, fingerprint, open_data
from labelwise.project.loop.heartbeat import Heartbeat, read_heartbeat
from labelwise.project.loop.holdout import reserve
from labelwise.project.loop.snapshot import check_limit, check_recipe, last_seq, session_of, take_snapshot
from labelwise.project.loop.suspects import Suspect, read_suspects
from labelwise.project.meter.meter import Meter, read_meter
from labelwise.project.settings import Kind, Settings, is_project, read_settings
from labelwise.project.store import Item, Store
from labelwise.session import Session

OWNER = "labelwise"  # the person in whose name the first classes are added
EXCLUDED_FILE = "left-out.txt"


@dataclass(frozen=True)
class RowView:
    """A row as the page shows it."""

    kind: Kind
    text: str | None
    fields: list[tuple[str, str]] | None
    image: bool
    title: str


@dataclass(frozen=True)
class Neighbour:
    """A labelled row close to another one; `similarity` is the cosine of their features."""

    row: int
    label: str
    similarity: float


def _ignore(text: str, done: int, total: int) -> None:
    pass


class Project:
    """A labelling project: its data, features, answers and models. Open one with `Project.open(folder)`."""

    def __init__(self, folder: Path, settings: Settings, store: Store, data: Data, info: FeatureInfo):
        self.folder = folder
        self.settings = settings
        self.store = store
        self.feature_info = info
        self.warnings: tuple[str, ...] = ()
        self._data = data
        self._positions = {row: position for position, row in enumerate(data.ids.tolist())}
        self._broken = dict(info.broken)
        self.pool: Pool = features.pool_of(folder / "features", dict(zip(data.ids.tolist(), data.refs)))
        self.reserve = reserve(self.pool.ids.numpy(), settings.seed, settings.test_share)
        self._pictures = Pictures(data, self._positions) if isinstance(data, Images) else None
        self._similarity = _Similarity(self.pool)

    @staticmethod
    def create(folder: str | Path, settings: Settings, on_progress: OnProgress = _ignore) -> Project:
        """Make a project. If this was interrupted, the same call continues.

        Args:
            folder: the new project folder.
            settings: what the project is about.
            on_progress: called with a text, the rows done and the rows in total.

        Raises:
            StoreError: the folder already is a project, or cannot be written.
            ArgumentError: the recipe or the store address cannot be used.
            SourceError: the data cannot be read.
        """
        folder = Path(folder)
        if is_project(folder):
            raise StoreError(f"{folder} already is a project. Open it, or choose another folder")
        with _new_folder(folder):
            return _create(folder, settings, on_progress)

    @staticmethod
    def open(folder: str | Path) -> Project:
        """Open a project.

        Raises:
            StoreError: the folder is not a project, or a file of it is damaged.
            SourceError: the data has changed so that rows cannot be matched. Smaller changes are put into `warnings`.
        """
        folder = Path(folder)
        settings = read_settings(folder)
        info = features.read_feature_info(folder / "features")
        store = Store.open(store_address(folder, settings))
        try:
            items = store.items()
            known = np.array([item.row for item in items], np.int64), [item.ref for item in items]
            data = open_data(settings, folder, known)
            warnings = find_changes(folder, settings, data, info)
            project = Project(folder, settings, store, data, info)
        except BaseException:
            store.close()
            raise
        project.warnings = warnings
        return project

    @property
    def excluded(self) -> list[str]:
        """The rows that could not be read when the project was made, each with the reason."""
        path = self.folder / EXCLUDED_FILE
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

    def view(self, row: int) -> RowView:
        """A row as the page shows it. SourceError for a row that is not in the project."""
        position = self._position(row)
        title, data = self._data.refs[position], self._data
        if isinstance(data, Texts):
            return RowView("text", data.texts[position], None, False, title)
        if isinstance(data, Rows):
            return RowView("table", None, data.fields(position), False, title)
        return RowView("image", None, None, True, title)

    def image(self, row: int, size: int) -> bytes:
        """The image of a row, re-encoded, at most `size` pixels a side. SourceError if it cannot be read."""
        if self._pictures is None:
            raise SourceError(f"row {row} is not an image; this is a project of {self.settings.kind}s")
        self._position(row)
        return self._pictures.get(int(row), int(size))

    def neighbours(self, row: int, n: int = 3) -> list[Neighbour]:
        """The `n` labelled rows with the most similar features, most similar first."""
        self._position(row)
        labels = {other: one.value for other, one in self.store.answers().items() if one.value is not None}
        labels.pop(int(row), None)
        return [Neighbour(other, labels[other], cosine) for other, cosine in self._similarity.top(int(row), labels, n)]

    def meter(self) -> Meter | None:
        """The quality of the model on the test slice, as the worker measured it last."""
        return read_meter(self.folder)

    def heartbeat(self) -> Heartbeat:
        """What the worker is doing."""
        return read_heartbeat(self.folder)

    def suspects(self) -> list[Suspect]:
        """Labels that may be wrong, by the model of the last round; least likely first."""
        return read_suspects(self.folder)

    def session(self) -> Session:
        """A session with every answer so far and the project's recipe, on the rows that may be chosen."""
        snapshot = take_snapshot(self.store, self.settings, self.reserve, last_seq(self.store))
        return session_of(self.pool, self.settings, self.reserve, snapshot)

    def limit_memory(self, max_memory: str) -> None:
        """Choose rounds within this much memory from now on. MemoryLimitError, and no change, if it is too small."""
        settings = replace(self.settings, max_memory=max_memory)
        check_limit(self.pool, settings)
        settings.write(self.folder)
        self.settings = settings

    def close(self) -> None:
        """Close the store."""
        self.store.close()

    def _position(self, row: int) -> int:
        position = self._positions.get(int(row))
        if position is None or int(row) in self._broken:
            raise SourceError(f"row {row} is not in the project, which has {len(self.pool)} rows")
        return position


class _Similarity:
    """Cosines between a row and the labelled rows, whose features are read once each."""

    def __init__(self, pool: Pool):
        self._pool = pool
        self._unit: dict[int, np.ndarray] = {}
        self._lock = threading.Lock()
        self._stack: tuple[tuple[int, ...], np.ndarray] = ((), np.empty((0, 0), np.float32))

    def top(self, row: int, labels: Mapping[int, str], n: int) -> list[tuple[int, float]]:
        """The `n` labelled rows with the largest cosine, as (row, cosine)."""
        rows = tuple(sorted(labels))
        if not rows or n < 1:
            return []
        with self._lock:
            if self._stack[0] != rows:
                new = [other for other in rows if other not in self._unit]
                if new:
                    self._unit.update(zip(new, _unit(self._pool.inputs(new).numpy())))
                self._stack = rows, np.stack([self._unit[other] for other in rows])
            unit_LD = self._stack[1]
        cosine_L = unit_LD @ _unit(self._pool.inputs([row]).numpy())[0]
        best = np.lexsort((rows, -cosine_L))[:n]
        return [(rows[i], float(cosine_L[i])) for i in best.tolist()]


def _unit(x_ND: np.ndarray) -> np.ndarray:
    length_N = np.linalg.norm(x_ND, axis=1, keepdims=True)
    return np.asarray(x_ND / np.where(length_N > 0, length_N, 1), np.float32)


# --- where the answers are -------------------------------------------------------------------------------------------


def store_address(folder: Path, settings: Settings) -> str:
    """The address of the store: a file in the folder, the address in the settings, or that in a variable they name."""
    if not settings.store:
        return f"sqlite:///{(folder / 'store.db').resolve().as_posix()}"
    if not settings.store.startswith("env:"):
        return settings.store
    name = settings.store.removeprefix("env:")
    if not os.environ.get(name):
        raise StoreError(f"the address of the store is in the environment variable {name}, which is not set. Set it")
    return os.environ[name]


def check_store_address(url: str) -> str:
    """The address, if it may be written to a file. ArgumentError if it has a password, or is of another kind."""
    if not url.startswith(("env:", "sqlite:", "postgres")):
        raise ArgumentError(f"--store is postgresql://user@host/database or env:NAME, found {url.partition(':')[0]!r}")
    _, at, host = url.partition("://")[2].rpartition("@")
    if not url.startswith("env:") and at and ":" in url.partition("://")[2][: -len(host) - 1]:
        raise ArgumentError(
            "--store: the address contains a password, which would be written to project.yaml. Put the whole address "
            "into an environment variable and pass --store env:NAME, or leave the password to PGPASSWORD or ~/.pgpass"
        )
    return url


# --- making a project ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make the project folder; if what follows fails, remove the folders that are still empty."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rounds").mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"the project cannot be kept in {folder} ({error}). Name another with --project") from error
    try:
        yield
    except BaseException:
        for empty in (folder / "features", folder / "rounds", *missing):
            with contextlib.suppress(OSError):  # not there, or not empty: features that took hours stay
                empty.rmdir()
        raise


def _create(folder: Path, settings: Settings, on_progress: OnProgress) -> Project:
    check_recipe(settings)
    store_address(folder, settings)  # report a missing variable now, not after hours of computing features
    on_progress("reading the data", 0, 0)
    data = open_data(settings, folder)
    if len(data) < 4:
        raise SourceError(f"{settings.path(folder)} has {len(data)} rows; a project needs at least 4")
    encoder = encoder_of(settings.encoder, settings.kind, data)
    info = features.compute(folder / "features", data, encoder, fingerprint(settings.path(folder), data), on_progress)
    check_limit(features.pool_of(folder / "features", dict(zip(data.ids.tolist(), data.refs))), settings)
    on_progress("writing the list of rows", 0, 0)
    broken = dict(info.broken)
    items = [Item(row, ref) for row, ref in zip(data.ids.tolist(), data.refs) if row not in broken]
    store = _new_store(folder, settings, items)
    excluded = [*data.faults, *broken.values()]
    if excluded:
        write_text(folder / EXCLUDED_FILE, "\n".join(excluded) + "\n")
    if isinstance(data, Images) and data.root is not None:
        recorded_sizes(folder, data)
    settings = replace(settings, fingerprint=info.fingerprint)
    settings.write(folder)
    return Project(folder, settings, store, data, info)


def _new_store(folder: Path, settings: Settings, items: list[Item]) -> Store:
    """A store with these items; one that an interrupted call made and that was never used is completed."""
    url = store_address(folder, settings)
    try:
        store = Store.create(url, settings.people)
    except StoreError as error:
        if error.__cause__ is not None:  # the disk or the server failed; otherwise a store exists
            raise
        store = Store.open(url)
        existing = store.items()
        if store.rounds() or store.people != settings.people or (existing and existing != items):
            store.close()
            raise
    if not store.items():
        store.add_items(items)
    for name in settings.classes:
        store.add_class(name, OWNER)
    return store
