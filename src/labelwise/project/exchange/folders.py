"""Images in one folder per class: copies or links, and a list of them.

The folder is built under a temporary name and renamed when it is complete.
"""

from __future__ import annotations

import csv
import io
import os
import re
import secrets
import shutil
import unicodedata
from itertools import chain, count
from pathlib import Path, PurePosixPath

import numpy as np

from labelwise.errors import ArgumentError, SourceError, StoreError
from labelwise.io.files import write_text
from labelwise.project.data.source import Images, open_data
from labelwise.project.exchange.columns import escape_formula, unescape_formula
from labelwise.project.exchange.entries import Entries, Entry
from labelwise.project.project import Project

LIST = "labels.csv"
_ENDINGS = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}


def write_folders(project: Project, found: Entries, to: Path, force: bool, link: bool) -> list[str]:
    """Write the images to folders. Returns what could not be copied, with the reasons."""
    data = images_of(project)
    if link and data.root is None:
        raise ArgumentError("--link: the images are inside one file, so there is nothing to link to. Leave --link out")
    _check_place(project, to, force)
    made = to.with_name(f".{to.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    to.parent.mkdir(parents=True, exist_ok=True)
    try:
        made.mkdir()
        faults = _fill(made, data, found, link)
        _swap(made, to)
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise
    return faults


def images_of(project: Project) -> Images:
    """The images of a project. ArgumentError for a project of texts or a table."""
    if project.settings.kind != "image":
        raise ArgumentError(f"this format is for images, and this is a project of {project.settings.kind}s. Use csv")
    items = project.store.items()
    known = np.array([item.row for item in items], np.int64), [item.ref for item in items]
    data = open_data(project.settings, project.folder, known)
    assert isinstance(data, Images)
    return data


def _fill(made: Path, data: Images, found: Entries, link: bool) -> list[str]:
    position = {row: i for i, row in enumerate(data.ids.tolist())}
    folder_names, folder_of, file_names = UniqueNames(), {}, {}
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["id", "path", "label", "slice", "file"])
    faults = []
    for entry in found.rows:
        title = entry.value if entry.value is not None else f"_{entry.kind}"
        key = (entry.value is None, title)
        if key not in folder_of:
            folder_of[key] = folder_names.unique(title)
            file_names[key] = UniqueNames()
            (made / folder_of[key]).mkdir()
        try:
            stem, ending = _file_name(entry, data, position[entry.row])
            name = file_names[key].unique(stem, ending, suffix=str(entry.row))
            _copy(made / folder_of[key] / name, data, position[entry.row], link)
        except (OSError, SourceError) as error:
            faults.append(f"{entry.ref}: {error}")
            continue
        cells = [str(entry.row), entry.ref, entry.value or "", entry.slice, f"{folder_of[key]}/{name}"]
        writer.writerow([escape_formula(cell) for cell in cells])
    write_text(made / LIST, table.getvalue())
    return faults


def _file_name(entry: Entry, data: Images, position: int) -> tuple[str, str]:
    """Stem and ending of the file of an image."""
    if data.root is not None:
        path = PurePosixPath(entry.ref.replace("\\", "/"))
        return path.stem, path.suffix.lower() if path.suffix[1:].isalnum() else ""
    encoded = data.encoded[position]
    return f"row-{entry.row}", next((end for start, end in _ENDINGS.items() if encoded.startswith(start)), ".img")


def _copy(path: Path, data: Images, position: int, link: bool) -> None:
    source = data.at(position)
    if isinstance(source, bytes):
        path.write_bytes(source)
    elif link:
        path.symlink_to(source.resolve(strict=True))
    else:
        shutil.copyfile(source, path)


def _check_place(project: Project, to: Path, force: bool) -> None:
    """Refuse a folder where files of the user would be lost, or mixed with those of the export."""
    where = os.path.realpath(to)
    for name, path in (("the data", project.settings.path(project.folder)), ("the project", project.folder)):
        other = os.path.realpath(path)
        if (where + os.sep).startswith(other + os.sep) or (other + os.sep).startswith(where + os.sep):
            raise ArgumentError(f"--to {to} is inside or around {name}, {path}. Choose another folder")
    if not os.path.lexists(to):
        return
    if to.is_symlink() or not to.is_dir():
        raise StoreError(f"{to} exists and is not a folder. Choose another with --to")
    if not any(to.iterdir()):
        return
    if not force:
        raise StoreError(f"{to} is not empty. Choose another folder with --to, or replace it with --force")
    foreign = _foreign_file(to)
    if foreign is not None:
        raise StoreError(f"{to} has {foreign}, which no export wrote; --force replaces only folders of an export")


def _foreign_file(to: Path) -> str | None:
    """The first file of a folder that is not in its list of labels; None if there is none."""
    try:
        lines = list(csv.DictReader((to / LIST).read_text(encoding="utf-8").splitlines()))
        exported = {unescape_formula(line["file"]) for line in lines} | {LIST}
    except (OSError, KeyError, UnicodeDecodeError, csv.Error):
        return f"no {LIST}"
    for folder, _, files in os.walk(to):
        for name in files:
            path = (Path(folder) / name).relative_to(to).as_posix()
            if path not in exported:
                return path
    return None


def _swap(made: Path, to: Path) -> None:
    """Put the new folder in place of the old one, which is removed last."""
    if not to.exists():
        made.rename(to)
        return
    old = to.with_name(f"{made.name}.old")
    to.rename(old)
    made.rename(to)
    shutil.rmtree(old)


_UNSAFE = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
_MAX_STEM = 120  # bytes; file systems allow 255 for a name


def safe_name(text: str) -> str:
    """A name for a file on every system: no separators or forbidden characters, not hidden, empty or too long.

    >>> [safe_name(text) for text in ("cat", "../../etc", "a/b", "", "con", "x. ")]
    ['cat', '_.._etc', 'a_b', '_', 'con_', 'x']
    """
    plain = "".join(c for c in _UNSAFE.sub("_", text) if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    name = plain.encode("utf-8")[:_MAX_STEM].decode("utf-8", "ignore").strip().rstrip(". ")
    name = name.lstrip(".") if name.strip(".") else ""
    if not name:
        return "_"
    return f"{name}_" if name.split(".")[0].lower() in _DEVICES else name


class UniqueNames:
    """Gives each text its own file name, also on systems that ignore case."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, stem: str, ending: str = "", suffix: str = "") -> str:
        """A safe name for `stem` that is not taken; `suffix` is tried first to tell it from another."""
        safe = safe_name(stem)
        numbered = (f"{safe}-{number}" for number in count(2))
        for name in chain([safe], [f"{safe}-{suffix}"] if suffix else [], numbered):
            known = unicodedata.normalize("NFC", name + ending).casefold()
            if known not in self._taken:
                break
        self._taken.add(known)
        return name + ending
