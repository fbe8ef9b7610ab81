"""Create: make a project, at once or with its features computed behind while people label.

A project is made of many rows in two steps. `begin` writes the settings, with `pending` set, and the first round: rows
of the test slice, for which no features are needed. The worker of the page then calls `complete`, which computes the
features, adds the rest of the rows and clears `pending`. Both can be killed at any moment: answers are in the store
when they are given, features continue where they stopped, and either step can be done again.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from labelwise.errors import ArgumentError, MemoryLimitError, SourceError, StoreError
from labelwise.io.checked import write_sealed
from labelwise.project.data import features
from labelwise.project.data.drift import recorded_sizes
from labelwise.project.data.embeddings import encoder_for
from labelwise.project.data.encoders import best_name
from labelwise.project.data.features import FeatureInfo, OnProgress
from labelwise.project.data.source import Data, Images, fingerprint, open_data
from labelwise.project.loop.explain import TEST
from labelwise.project.loop.holdout import draw_by_bss
from labelwise.project.loop.snapshot import check_limit, check_recipe, with_recipe
from labelwise.project.project import EXCLUDED_FILE, Project, store_address
from labelwise.project.settings import Settings, is_project
from labelwise.project.store import Item, Pick, Round, Store
from labelwise.recipes import RECOMMENDED

OWNER = "labelwise"  # the person in whose name the first classes are added
PAGE_FIRST_FROM = {
    "pixels": 400,
    "words": 1500,
    "efficientnet-lite0": 60,
    "minilm": 60,
}  # rows; fewer take a second or two
FEW_LEFT, MORE = 4, 8  # unanswered random rows at which more are offered while features are computed, and how many
MOST_EARLY = 100  # random rows that are offered before there are features
_SIZES = (32, 224)  # of images, at which one must be readable to be offered


def create(folder: Path, settings: Settings, on_progress: OnProgress) -> Project:
    """Make a project with its features. If this was interrupted, the same call continues. See `Project.create`."""
    with _new_folder(folder):
        return _create(folder, settings, _checked_data(folder, settings, on_progress), on_progress)


def begin(folder: Path, settings: Settings, on_progress: OnProgress) -> Project:
    """Make a project whose page can open at once; the worker of the page calls `complete`.

    Few rows, and encoders that are named by the user, get their features here. Raises as `Project.create`.
    """
    with _new_folder(folder):
        data = _checked_data(folder, settings, on_progress)
        if not _page_first(settings, data):
            return _create(folder, settings, data, on_progress)
        settings = replace(settings, pending=True, fingerprint=fingerprint(settings.path(folder), data))
        store = _new_store(folder, settings, [])
        with store.closed_on_error():
            settings.write(folder)
            project = Project(folder, settings, store, data, None)
            offer_random(project)
        return project


def complete(project: Project, on_progress: OnProgress, trusted: bool = False) -> None:
    """Compute the features of a pending project, and offer more random rows while people label faster than that.

    Args:
        project: a pending project; it has its features afterwards.
        on_progress: called with a text, the rows done and the rows in total.
        trusted: whether the user has named the encoder, which may be code.
    """

    def progress(text: str, done: int, total: int) -> None:
        offer_random(project)
        on_progress(text, done, total)

    folder, data = project.folder, project.data
    progress(f"preparing the encoder ({project.settings.encoder})", 0, 0)
    info, settings = _features(folder, project.settings, data, progress, trusted)
    known = {item.row for item in project.store.items()}
    project.store.add_items([item for item in _items(data, info) if item.row not in known])
    _write(folder, replace(settings, pending=False), data, info)
    project.refresh()


def offer_random(project: Project) -> None:
    """Add a round of random rows to a pending project if few are left: the next ones of the test slice."""
    store, settings = project.store, project.settings
    rounds, progress = store.rounds(), store.progress()
    if progress.picks - progress.answered > FEW_LEFT:
        return
    taken = {pick.row for one in rounds for pick in store.picks(one.number)}
    place = {row: position for position, row in enumerate(project.data.ids.tolist())}
    free = (row for row in project.reserve.tolist() if row not in taken)
    found: list[int] = []
    wanted = min(MORE if rounds else settings.k, MOST_EARLY - len(taken))
    while len(found) < wanted and (row := next(free, None)) is not None:
        if not any(isinstance(project.data.take([place[row]], size)[0], SourceError) for size in _SIZES):
            found.append(row)
    if not found:
        return
    known = {item.row for item in store.items()}
    store.add_items([Item(row, project.data.refs[place[row]]) for row in found if row not in known])
    picks = [Pick(row, "test", 0.0, {"words": TEST, "strategy": "test"}) for row in found]
    number = len(rounds) + 1
    notes = {"labels": 0, "tests": len(store.answers()), "early": True}
    store.add_round(Round(number, "random", "none", settings.seed, store.last_seq(), notes), picks)


def _page_first(settings: Settings, data: Data) -> bool:
    """Whether the features take so long that the page should open first."""
    name = settings.encoder
    if settings.kind == "table" or settings.test_share == 0 or settings.max_memory:
        return False
    best = best_name(settings.kind)
    if name not in ("auto", best, "pixels" if settings.kind == "image" else "words"):
        return False  # an encoder of other rows, or one that is not installed, is refused now and not by the worker
    least = PAGE_FIRST_FROM.get(best if name == "auto" else name)
    return least is not None and len(data) >= least


def _checked_data(folder: Path, settings: Settings, on_progress: OnProgress) -> Data:
    if settings.recipe != RECOMMENDED:  # that one is chosen among those that work, and checking takes a second
        check_recipe(settings)
    Store.check_address(store_address(folder, settings))  # now, not after hours of computing features
    on_progress("reading the data", 0, 0)
    data = open_data(settings, folder)
    if len(data) < 4:
        raise SourceError(f"{settings.path(folder)} has {len(data)} rows; a project needs at least 4")
    return data


def _create(folder: Path, settings: Settings, data: Data, on_progress: OnProgress) -> Project:
    info, settings = _features(folder, settings, data, on_progress)
    on_progress("writing the list of rows", 0, 0)
    store = _new_store(folder, settings, _items(data, info))
    with store.closed_on_error():
        if settings.task == "regress" and settings.test_share:
            pool = features.pool_of(folder / "features", dict(zip(data.ids.tolist(), data.refs)))
            draw_by_bss(pool, settings.seed).write(folder)
            settings = replace(settings, test_draws="bss")
        return Project(folder, _write(folder, settings, data, info), store, data, info)


def _features(
    folder: Path, settings: Settings, data: Data, on_progress: OnProgress, trusted: bool = True
) -> tuple[FeatureInfo, Settings]:
    """Compute the features; also the settings with the recipe that is recommended for them."""
    encoder, rows = encoder_for(settings.encoder, settings.kind, folder, data, trusted)
    likely = features.pool_of_width(data.ids, encoder.width)
    check_limit(likely, with_recipe(settings, likely))
    info = features.compute(folder / "features", rows, encoder, fingerprint(settings.path(folder), data), on_progress)
    pool = features.pool_of(folder / "features", dict(zip(data.ids.tolist(), data.refs)))
    settings = with_recipe(settings, pool)
    check_limit(pool, settings)
    return info, settings


def _items(data: Data, info: FeatureInfo) -> list[Item]:
    broken = dict(info.broken)
    return [Item(row, ref) for row, ref in zip(data.ids.tolist(), data.refs) if row not in broken]


def _write(folder: Path, settings: Settings, data: Data, info: FeatureInfo) -> Settings:
    """Write what is excluded, the sizes of images and, last, the settings."""
    excluded = [*data.faults, *dict(info.broken).values()]
    if excluded:
        text = ("\n".join(excluded) + "\n").encode("utf-8", "replace")
        write_sealed(folder / EXCLUDED_FILE, lambda write: write(text))
    if isinstance(data, Images) and data.root is not None:
        recorded_sizes(folder, data)
    settings = replace(settings, fingerprint=info.fingerprint)
    settings.write(folder)
    return settings


@contextlib.contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """Make the project folder; if what follows fails, remove the folders that are still empty.

    Features stay after an interruption and after an error of the data or of an encoder, since they may have taken
    hours. After a refusal they go: what can be refused is looked at before they are computed.
    """
    if is_project(folder):
        raise StoreError(f"{folder} already is a project. Open it, or choose another folder")
    had_features = (folder / "features").exists()
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rounds").mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"the project cannot be kept in {folder} ({error}). Name another with --project") from error
    try:
        yield
    except BaseException as error:
        if isinstance(error, ArgumentError | MemoryLimitError) and not had_features:
            shutil.rmtree(folder / "features", ignore_errors=True)
        for empty in (folder / "features", folder / "rounds", *missing):
            with contextlib.suppress(OSError):  # not there, or not empty: features that took hours stay
                empty.rmdir()
        raise


def _new_store(folder: Path, settings: Settings, items: list[Item]) -> Store:
    """A store with these items; one that an interrupted call made and that was never used is completed."""
    url = store_address(folder, settings)
    try:
        store = Store.create(url, settings.people)
    except StoreError as error:
        if error.__cause__ is not None:  # the disk or the server failed; otherwise a store exists
            raise
        store = Store.open(url)
        with store.closed_on_error():
            existing = store.items()
            if store.rounds() or store.people != settings.people or (existing and existing != items):
                raise
    with store.closed_on_error():
        if not store.items():
            store.add_items(items)
        for name in settings.classes:
            store.add_class(name, OWNER)
    return store
