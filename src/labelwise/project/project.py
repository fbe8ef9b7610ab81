"""Project: a folder with everything known about labelling some data. Many processes may open it at once."""

from __future__ import annotations

import contextlib
import os
import shlex
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from labelwise.errors import ArgumentError, SourceError, StoreError
from labelwise.io.checked import read_sealed
from labelwise.pool import Pool
from labelwise.project.data import features
from labelwise.project.data.drift import check_fingerprint, find_changes
from labelwise.project.data.encoders import Encoder, better_than, encoder_of
from labelwise.project.data.features import FeatureInfo, OnProgress
from labelwise.project.data.pictures import Pictures
from labelwise.project.data.source import Data, Images, Rows, Texts, open_data
from labelwise.project.loop.heartbeat import Heartbeat, read_heartbeat
from labelwise.project.loop.holdout import Draws, reserve
from labelwise.project.loop.snapshot import Snapshot, check_limit, session_of, take_snapshot
from labelwise.project.loop.stored_model import read_model, round_folder
from labelwise.project.loop.suspects import Suspect, read_suspects
from labelwise.project.meter.meter import Meter, read_meter
from labelwise.project.meter.quality import Quality, quality_of
from labelwise.project.settings import Kind, Settings, read_settings, seal_settings
from labelwise.project.store import Store
from labelwise.project.suggest.suggestions import Suggestions, read_suggestions
from labelwise.session import Session

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

    def __init__(self, folder: Path, settings: Settings, store: Store, data: Data, info: FeatureInfo | None):
        self.folder = folder
        self.store = store
        if settings.task == "multi":
            store.use_sets()
        self.data = data
        self.warnings: tuple[str, ...] = ()
        self._positions = {row: position for position, row in enumerate(data.ids.tolist())}
        self._pictures = Pictures(data, self._positions) if isinstance(data, Images) else None
        self._set_features(settings, info)

    def _set_features(self, settings: Settings, info: FeatureInfo | None) -> None:
        self.settings = settings
        self._info = info
        self._pool: Pool | None = None
        self._broken: dict[int, str] = {}
        ids = self.data.ids
        if info is not None:
            refs = dict(zip(self.data.ids.tolist(), self.data.refs))
            self._pool, self._broken = features.pool_of(self.folder / "features", refs), dict(info.broken)
            ids = self._pool.ids.numpy()
        self._draws = Draws.read(self.folder) if settings.test_draws == "bss" else None
        if self._draws is None:
            self.reserve = reserve(ids, settings.seed, settings.test_share)
        else:
            self.reserve = self._draws.reserve
        self._similarity = None if self._pool is None else _Similarity(self._pool)

    @property
    def pending(self) -> bool:
        """Whether the features are still being computed, by the worker of the page."""
        return self._pool is None

    @property
    def pool(self) -> Pool:
        """The features of all readable rows. StoreError while they are being computed."""
        self.require_features()
        assert self._pool is not None
        return self._pool

    @property
    def feature_info(self) -> FeatureInfo:
        """Where the features come from. StoreError while they are being computed."""
        self.require_features()
        assert self._info is not None
        return self._info

    def require_features(self) -> None:
        """Raise StoreError while the features are being computed, and not every row is in the store."""
        if self.pending:
            raise StoreError(
                f"the features of {self.folder} are still being computed. Open its page and wait until they are done: "
                f"labelwise resume {shlex.quote(str(self.folder))}"
            )

    def refresh(self) -> bool:
        """Take the features if another process has completed them since; whether the project has them."""
        if self.pending:
            settings = read_settings(self.folder)
            if not settings.pending:
                self._set_features(settings, features.read_feature_info(self.folder / "features"))
        return not self.pending

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
        from labelwise.project.create import create  # late: it imports this module

        return create(Path(folder), settings, on_progress)

    @staticmethod
    def open(folder: str | Path) -> Project:
        """Open a project.

        Raises:
            StoreError: the folder is not a project, or a file of it is damaged.
            SourceError: the data has changed so that rows cannot be matched. Smaller changes are put into `warnings`.
        """
        folder = Path(folder)
        settings = read_settings(folder)
        if settings.pending:
            return _open_pending(folder, settings)
        info = features.read_feature_info(folder / "features")
        try:
            store = Store.open(store_address(folder, settings))
        except UnicodeDecodeError as error:  # SQLite names a damaged part of its schema, in bytes that are no text
            raise StoreError(
                f"the store of {folder} is damaged ({error}). Restore it from a backup with `labelwise restore`"
            ) from error
        with store.closed_on_error():
            items = store.items()
            known = np.array([item.row for item in items], np.int64), [item.ref for item in items]
            data = open_data(settings, folder, known)
            warnings = find_changes(folder, settings, data, info)
            with contextlib.suppress(OSError):  # a folder that cannot be written to
                seal_settings(folder, settings)
                info = features.seal(folder / "features")
            project = Project(folder, settings, store, data, info)
        project.warnings = warnings
        return project

    @property
    def excluded(self) -> list[str]:
        """The rows that could not be read when the project was made, each with the reason."""
        path = self.folder / EXCLUDED_FILE
        remedy = "remove it; it is a list for people"
        return read_sealed(path, remedy, early=True).decode("utf-8", "replace").splitlines() if path.is_file() else []

    def view(self, row: int) -> RowView:
        """A row as the page shows it. SourceError for a row that is not in the project."""
        position = self._position(row)
        title, data = self.data.refs[position], self.data
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
        if self._similarity is None:
            return []
        labels = {other: one.value for other, one in self.store.answers().items() if one.value is not None}
        labels.pop(int(row), None)
        return [Neighbour(other, labels[other], cosine) for other, cosine in self._similarity.top(int(row), labels, n)]

    def meter(self) -> Meter | None:
        """The quality of the model on the test slice, as the worker measured it last."""
        return read_meter(self.folder)

    def quality(self) -> Quality | None:
        """What the models of all rounds say of the test rows; None without a model or a test row with a label."""
        snapshot = take_snapshot(self.store, self.settings, self.reserve, self.store.last_seq())
        found = (read_model(round_folder(self.folder, one.number)) for one in self.store.rounds())
        models = {model.labels: model for model in found if model is not None}
        if not models or not snapshot.test:
            return None
        x_MD, sets = self.pool.inputs(list(snapshot.test)).numpy(), self.settings.task == "multi"
        return quality_of(models, snapshot, x_MD, *self.test_weights(snapshot), sets=sets)

    def heartbeat(self) -> Heartbeat:
        """What the worker is doing."""
        return read_heartbeat(self.folder)

    def suspects(self) -> list[Suspect]:
        """Labels that may be wrong, by the model of the last round; least likely first."""
        return read_suspects(self.folder)

    def suggestions(self) -> Suggestions:
        """Classes that are suggested for the items that wait, and how often each source of them was right."""
        return read_suggestions(self.folder)

    def require_one_label(self, what: str) -> None:
        """Raise ArgumentError in a project with several classes for an item, which `what` cannot be used with."""
        if self.settings.task == "multi":
            raise ArgumentError(f"{what} takes one class for an item, and this project has several (--multi)")

    def session(self) -> Session:
        """A session with every answer so far and the project's recipe, on the rows that may be chosen."""
        self.require_one_label("a session")
        snapshot = take_snapshot(self.store, self.settings, self.reserve, self.store.last_seq())
        return session_of(self.pool, self.settings, self.reserve, snapshot)

    def test_weights(self, snapshot: Snapshot) -> tuple[np.ndarray | None, float]:
        """The weights (M,) of the test rows of a snapshot, None for uniform ones, and the factor of estimates."""
        if self._draws is None:
            return None, 1.0
        return self._draws.weights_of(list(snapshot.test), snapshot.tested)

    def encoder(self, named: str | None = None) -> Encoder:
        """The encoder that made the features, as it learnt from the rows of the project.

        One that is the user's own code is imported only if the user has `named` it again.
        """
        name = self.feature_info.encoder
        return encoder_of(name, self.settings.kind, self.data, trusted=name == named)

    def better_features(self) -> list[str]:
        """What a pretrained encoder would bring, and the commands for it; empty if there is nothing to gain."""
        if self.pending:
            return []
        return better_than(self.feature_info.encoder, self.settings.kind, shlex.quote(str(self.folder.resolve())))

    def scale(self) -> tuple[np.ndarray, np.ndarray]:
        """What is subtracted from the output of the encoder (D,), and what it is divided by (D,)."""
        return features.read_scale(self.folder / "features")

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
            rows = len(self.data) - len(self._broken)
            raise SourceError(f"row {row} is not in the project, which has {rows} rows")
        return position


def _open_pending(folder: Path, settings: Settings) -> Project:
    """Open a project without its features: every row can be shown."""
    data = open_data(settings, folder)
    if not settings.path(folder).is_dir():
        check_fingerprint(settings.path(folder), data, settings.fingerprint)
    store = Store.open(store_address(folder, settings))
    with store.closed_on_error():
        return Project(folder, settings, store, data, None)


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
