"""Check the folder of a project, and repair what can be repaired. Nothing is thrown away: it is set aside."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from labelwise.errors import LabelwiseError, StoreError
from labelwise.io.checked import read_checked, read_sealed
from labelwise.pool.repair import damaged_name
from labelwise.project.data import features
from labelwise.project.data.source import open_data
from labelwise.project.exchange.studio_sync import FILE as LINK_FILE
from labelwise.project.exchange.studio_sync import read_link
from labelwise.project.loop.stored_model import read_model
from labelwise.project.loop.suspects import read_file as read_suspects
from labelwise.project.loop.worker import worker_lock
from labelwise.project.meter.meter import FILE as METER_FILE
from labelwise.project.meter.meter import read_meter
from labelwise.project.page_lock import check_page
from labelwise.project.project import EXCLUDED_FILE, store_address
from labelwise.project.settings import FILE as SETTINGS_FILE
from labelwise.project.settings import Settings, read_settings
from labelwise.project.store import Item
from labelwise.project.store.repair import finish_repair, repair_store, store_faults

STORE_FILE = "store.db"


def is_project_folder(folder: Path) -> bool:
    """Whether a folder holds a project, whole or damaged."""
    return (folder / SETTINGS_FILE).exists() or (folder / STORE_FILE).exists()


def check_project(folder: Path, repair: bool = False) -> list[str]:
    """What is wrong with a project's folder, a sentence for each fault; empty if it is whole.

    Args:
        folder: the folder of a project.
        repair: set aside what is damaged and keep the rest. What cannot be repaired says so.

    Raises:
        StoreError: `repair`, and a page or a worker of the project runs.
    """
    if not repair:
        return _check(folder, repair=False)
    check_page(folder, join=False)
    with worker_lock(folder):
        return _check(folder, repair=True)


def _check(folder: Path, repair: bool) -> list[str]:
    try:
        settings = read_settings(folder)
    except StoreError as error:
        return [f"{error}. It cannot be repaired; the answers are in the store, which is checked once it is back"]
    faults = _check_store(folder, settings, repair)
    checks: list[tuple[Path, Callable[[Path], object]]] = [
        (folder / METER_FILE, lambda path: read_meter(path.parent)),
        (folder / EXCLUDED_FILE, lambda path: read_sealed(path, "it is a list for people", early=True)),
        (folder / LINK_FILE, lambda path: read_link(path.parent)),
        (folder / "features", features.check),
        (folder / "features" / "sizes.json", lambda path: read_checked(path, "it is written again", early=None)),
    ]
    for path in sorted((folder / "rounds").glob("*")):
        checks += [
            (path / "model.npz", lambda path: read_model(path.parent)),
            (path / "suspects.json", read_suspects),
            (path / "notes.json", lambda path: read_checked(path, "the round is measured again", early=None)),
        ]
    again = False  # whether the last round is to be measured again
    for path, check in checks:
        if not path.exists():
            continue
        try:
            check(path)
        except StoreError as error:
            moved = path.rename(damaged_name(path)) if repair else None
            again = again or path.name in (METER_FILE, "suspects.json")
            faults.append(f"{error}{'' if moved is None else f'. Set aside as {json.dumps(moved.name)}'}")
    last = max((folder / "rounds").glob("*/notes.json"), default=None)
    if repair and again and last is not None:
        last.rename(damaged_name(last))
    return faults


def _check_store(folder: Path, settings: Settings, repair: bool) -> list[str]:
    url = store_address(folder, settings)
    faults = store_faults(url)
    if not faults or not repair:
        return faults
    if not settings.store and finish_repair(folder / STORE_FILE):
        return faults
    if not settings.store and not (folder / STORE_FILE).is_file():
        return faults  # nothing is left of it
    dump = damaged_name(folder / "store.jsonl")
    dump = dump.with_name(f"{dump.name.replace('store.jsonl.', 'store.')}.jsonl")
    try:
        repair_store(url, settings.people, _items(folder, settings), dump)
    except StoreError as error:
        return [*faults, f"it cannot be repaired: {error}"]
    return [f"{fault}. Set aside as {json.dumps(dump.name)}" for fault in faults]


def _items(folder: Path, settings: Settings) -> list[Item]:
    """The list of rows as the data has it; empty if that cannot be read."""
    try:
        broken = dict(features.read_feature_info(folder / "features").broken)
        data = open_data(settings, folder)
        return [Item(row, ref) for row, ref in zip(data.ids.tolist(), data.refs) if row not in broken]
    except (LabelwiseError, OSError):
        return []
