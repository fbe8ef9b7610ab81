"""Export: the labels of a project in a file or a folder that other programs read."""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import quote

from labelwise.errors import ArgumentError, LabelError, StoreError
from labelwise.io.files import write_bytes
from labelwise.project.exchange.coco import coco
from labelwise.project.exchange.entries import INCLUDE, Entries, Include, entries
from labelwise.project.exchange.folders import write_folders
from labelwise.project.exchange.studio_json import task
from labelwise.project.exchange.tables import csv_text, parquet_bytes
from labelwise.project.predict.predictions import Predictions, predict
from labelwise.project.project import Project

Format = Literal["csv", "parquet", "folders", "label-studio", "coco"]
FORMATS: tuple[Format, ...] = ("csv", "parquet", "folders", "label-studio", "coco")


@dataclass(frozen=True)
class Exported:
    """The result of an export: rows written, answered rows omitted, and rows that could not be written."""

    to: Path
    format: Format
    rows: int
    omitted_test: int
    omitted_unsure: int
    faults: tuple[str, ...]


def export(
    project: Project,
    to: str | Path,
    format: str | None = None,
    include: Collection[str] = (),
    *,
    force: bool = False,
    link: bool = False,
    image_url: str | None = None,
) -> Exported:
    """Write the labels to a file, or the images to a folder, completely or not at all.

    Args:
        project: the project.
        to: the file, or the folder for format "folders".
        format: one of FORMATS; by the ending of `to` if None.
        include: rows to add to the labelled rows outside the test slice: "test", "unsure" or "all". With "all", tables
            also have what the model predicts for each row.
        force: replace an existing file, or a folder that an export made.
        link: make links to the images instead of copies.
        image_url: the prefix under which Label Studio finds the images.

    Raises:
        ArgumentError: the options do not fit the project or each other.
        StoreError: `to` exists and `force` is False.
    """
    target = Path(to)
    chosen = _format(format, target)
    wanted = _include(include)
    if link and chosen != "folders":
        raise ArgumentError("--link works only with --format folders")
    if image_url is not None and (chosen != "label-studio" or project.settings.kind != "image"):
        raise ArgumentError("--image-url works only with --format label-studio and a project of images")
    if chosen != "folders":
        check_file(project, target, force)
    found = entries(project, wanted)
    faults: list[str] = []
    if chosen == "folders":
        faults = write_folders(project, found, target, force, link)
    else:
        write_bytes(target, _content(project, found, chosen, image_url, "all" in wanted))
    return Exported(
        target, chosen, len(found.rows) - len(faults), found.omitted_test, found.omitted_unsure, tuple(faults)
    )


def image_address(prefix: str, ref: str) -> str:
    """The address of an image below `prefix`.

    >>> image_address("/data/local-files/?d=photos/", "a b/1#.png")
    '/data/local-files/?d=photos/a%20b/1%23.png'
    """
    return prefix + quote(ref)


def _content(project: Project, found: Entries, format: Format, image_url: str | None, predicted: bool) -> bytes:
    if format == "csv":
        return csv_text(project, found, _predictions(project) if predicted else None).encode("utf-8")
    if format == "parquet":
        return parquet_bytes(project, found, _predictions(project) if predicted else None)
    if format == "coco":
        made: object = coco(project, found)
    else:
        store = project.store
        why = {pick.row: pick.why for one in store.rounds() for pick in store.picks(one.number)}
        address = {e.row: image_address(image_url, e.ref) for e in found.rows} if image_url is not None else {}
        made = [task(project, entry, why.get(entry.row, {}), address.get(entry.row)) for entry in found.rows]
    return (json.dumps(made, ensure_ascii=False, indent=1) + "\n").encode("utf-8")


def _predictions(project: Project) -> Predictions | None:
    """What the model predicts for every row; None while there are too few labels for a model."""
    try:
        return predict(project)
    except LabelError:
        return None


def _format(name: str | None, to: Path) -> Format:
    if name is None:
        ending = to.suffix.lower()
        guess: dict[str, Format] = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
        if ending in guess:
            return guess[ending]
        raise ArgumentError(
            f"--to {to}: the format is not clear from the name. Use --format {', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        )
    for one in FORMATS:
        if one == name:
            return one
    raise ArgumentError(f"--format must be one of {', '.join(FORMATS)}; found {name!r}")


def _include(names: Collection[str]) -> tuple[Include, ...]:
    for name in names:
        if name not in INCLUDE:
            raise ArgumentError(f"--include must be one of {', '.join(INCLUDE)}; found {name!r}")
    return tuple(name for name in INCLUDE if name in names)


def check_file(project: Project, to: Path, force: bool) -> None:
    """Refuse to overwrite the data or the project, and any other file without `force`."""
    where = os.path.realpath(to)
    if where == os.path.realpath(project.settings.path(project.folder)):
        raise ArgumentError(f"--to {to}: this is the data of the project. Choose another file")
    if where.startswith(os.path.realpath(project.folder) + os.sep):
        raise ArgumentError(f"--to {to}: the files in {project.folder} belong to the project. Choose another folder")
    if to.is_dir():
        raise StoreError(f"{to} is a folder. Name a file with --to")
    if os.path.lexists(to) and not force:
        raise StoreError(f"{to} already exists. Choose another file with --to, or replace it with --force")
