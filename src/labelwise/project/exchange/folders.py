"""Images in a folder for each class: copies, or links to the originals, and a list of what was put where.

The new folder is made beside its place under another name and put there when it is whole.
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
from labelwise.project.exchange.entries import Entries, Entry
from labelwise.project.exchange.tables import guarded, restored
from labelwise.project.project import Project

LIST = "labels.csv"
_ENDINGS = {b"\x89PNG": ".png", b"\xff\xd8\xff": ".jpg", b"GIF8": ".gif", b"BM": ".bmp", b"RIFF": ".webp"}


def write_folders(project: Project, found: Entries, to: Path, force: bool, link: bool) -> list[str]:
    """Write the images; what could not be copied, and why."""
    data = images_of(project)
    if link and data.root is None:
        raise ArgumentError("--link: the images are inside one file, there is nothing to link to; leave --link out")
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
    """The images of a project as they are on disk."""
    if project.settings.kind != "image":
        raise ArgumentError(f"only images can be written so; this project is of {project.settings.kind}s. Use csv")
    items = project.store.items()
    known = np.array([item.row for item in items], np.int64), [item.ref for item in items]
    data = open_data(project.settings, project.folder, known)
    assert isinstance(data, Images)
    return data


def _fill(made: Path, data: Images, found: Entries, link: bool) -> list[str]:
    place = {row: at for at, row in enumerate(data.ids.tolist())}
    folders, inside, of = Names(), {}, {}
    table = io.StringIO(newline="")
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(["id", "path", "label", "slice", "file"])
    faults = []
    for entry in found.rows:
        title = entry.value if entry.value is not None else f"_{entry.kind}"
        key = (entry.value is None, title)
        if key not in of:
            of[key] = folders.give(title)
            inside[key] = Names()
            (made / of[key]).mkdir()
        try:
            name = inside[key].give(*_named(entry, data, place[entry.row]), tell=str(entry.row))
            _put(made / of[key] / name, data, place[entry.row], link)
        except (OSError, SourceError) as error:
            faults.append(f"{entry.ref}: {error}")
            continue
        cells = [str(entry.row), entry.ref, entry.value or "", entry.slice, f"{of[key]}/{name}"]
        writer.writerow([guarded(cell) for cell in cells])
    write_text(made / LIST, table.getvalue())
    return faults


def _named(entry: Entry, data: Images, position: int) -> tuple[str, str]:
    """Stem and ending for the file of an image."""
    if data.root is not None:
        path = PurePosixPath(entry.ref.replace("\\", "/"))
        return path.stem, path.suffix.lower() if path.suffix[1:].isalnum() else ""
    encoded = data.encoded[position]
    return f"row-{entry.row}", next((end for start, end in _ENDINGS.items() if encoded.startswith(start)), ".img")


def _put(path: Path, data: Images, position: int, link: bool) -> None:
    source = data.at(position)
    if isinstance(source, bytes):
        path.write_bytes(source)
    elif link:
        path.symlink_to(source.resolve(strict=True))
    else:
        shutil.copyfile(source, path)


def _check_place(project: Project, to: Path, force: bool) -> None:
    """Refuse a place where files of the user would be lost or mixed with ours."""
    where = os.path.realpath(to)
    for name, own in (("the data", project.settings.path(project.folder)), ("the project", project.folder)):
        there = os.path.realpath(own)
        if (where + os.sep).startswith(there + os.sep) or (there + os.sep).startswith(where + os.sep):
            raise ArgumentError(f"--to {to}: that is in or around {name}, {own}; name a folder apart from it")
    if not os.path.lexists(to):
        return
    if to.is_symlink() or not to.is_dir():
        raise StoreError(f"{to} is there and no folder; name another with --to")
    if not any(to.iterdir()):
        return
    if not force:
        raise StoreError(f"{to} is there and not empty; name another folder with --to, or pass --force to replace it")
    strange = _strange(to)
    if strange is not None:
        raise StoreError(f"{to} holds {strange}, which no export put there; --force replaces only what an export wrote")


def _strange(to: Path) -> str | None:
    """The first file of a folder that is not in its list of labels."""
    try:
        lines = list(csv.DictReader((to / LIST).read_text(encoding="utf-8").splitlines()))
        ours = {restored(line["file"]) for line in lines} | {LIST}
    except (OSError, KeyError, UnicodeDecodeError, csv.Error):
        return f"no {LIST}"
    for folder, _, files in os.walk(to):
        for name in files:
            path = (Path(folder) / name).relative_to(to).as_posix()
            if path not in ours:
                return path
    return None


def _swap(made: Path, to: Path) -> None:
    """Put the new folder in the place of the old one, which is removed last."""
    if not to.exists():
        made.rename(to)
        return
    old = to.with_name(f"{made.name}.old")
    to.rename(old)
    made.rename(to)
    shutil.rmtree(old)


_UNSAFE = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
_LONGEST = 120  # bytes of a stem; file systems take 255 for a name


def safe_name(text: str) -> str:
    """A name for one folder or file: no separators, no signs other systems refuse, never hidden, empty or too long.

    >>> [safe_name(text) for text in ("cat", "../../etc", "a/b", "", "con", "x. ")]
    ['cat', '_.._etc', 'a_b', '_', 'con_', 'x']
    """
    plain = "".join(c for c in _UNSAFE.sub("_", text) if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    name = plain.encode("utf-8")[:_LONGEST].decode("utf-8", "ignore").strip().rstrip(". ")
    name = name.lstrip(".") if name.strip(".") else ""
    if not name:
        return "_"
    return f"{name}_" if name.split(".")[0].lower() in _DEVICES else name


class Names:
    """Gives each text a name of its own; systems that do not tell case apart are allowed for."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, stem: str, ending: str = "", tell: str = "") -> str:
        """A safe name for `stem` that nobody has; `tell` is what tells it from another of that name."""
        safe = safe_name(stem)
        endless = (f"{safe}-{number}" for number in count(2))
        for name in chain([safe], [f"{safe}-{tell}"] if tell else [], endless):
            known = unicodedata.normalize("NFC", name + ending).casefold()
            if known not in self._taken:
                break
        self._taken.add(known)
        return name + ending
