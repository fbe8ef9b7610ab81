"""Settings of a project, the content of `project.yaml`. Written once, when the project is made."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from labelwise.errors import ArgumentError, StoreError
from labelwise.io.arguments import check_whole
from labelwise.io.checked import CHECKSUM, digest_of
from labelwise.io.files import refuse_links, write_text
from labelwise.io.sizes import parse_size
from labelwise.io.yaml_text import load_yaml
from labelwise.project.label_sets import check_name

VERSION = 2  # 1 has no checksum
FILE = "project.yaml"
LINKS = ("features", "store.db")  # may be on another disk; nothing but data of these forms is written to them
MAX_CLASS_NAME = 100

Kind = Literal["image", "text", "table"]
Task = Literal["classify", "multi", "regress"]


@dataclass(frozen=True)
class Settings:
    """Everything that must stay the same while a project exists.

    Attributes:
        name: the title on the page.
        kind: what a row is: an image, a text or a row of a table.
        task: whether a label is a class, a set of classes, or a number.
        source: the folder or file of the data, relative to the project folder.
        text: the column that holds the texts.
        image: the column of a Parquet file that holds the images.
        columns: the columns that make a row of a table.
        encoder: what turns a row into features; "auto" is the best one installed.
        classes: the first classes; more can be added while labelling.
        people: how many people answer each row.
        k: rows of a round, including test rows.
        test_share: share of each round that is drawn uniformly at random and never trained on.
        lead: share of a round that may be unanswered when the next round is chosen.
        recipe: how rows are chosen; "recommended" becomes the name of a recipe when the project is made.
        seed: source of chance.
        store: address of the store, without a password; "" is a file in the project folder.
        max_memory: memory limit for choosing a round, besides data and model, such as "4GB"; "" is no limit. It does
            not change the picks, and is the only setting that can be changed later.
        fingerprint: of the data when the project was made; "" in projects of older versions.
        pending: whether the features are still to be computed, by the worker of the page.
        test_draws: the law by which test rows are drawn, decided when the project is made: uniform, or half by `bss`
            for numbers. Projects of older versions are uniform.
    """

    name: str
    kind: Kind
    source: str
    task: Task = "classify"
    text: str | None = None
    image: str | None = None
    columns: tuple[str, ...] = ()
    encoder: str = "auto"
    classes: tuple[str, ...] = ()
    people: int = 1
    k: int = 20
    test_share: float = 0.15
    lead: float = 0.25
    recipe: str = "typiclust+badge"
    seed: int = 0
    store: str = ""
    max_memory: str = ""
    fingerprint: str = ""
    pending: bool = False
    test_draws: Literal["uniform", "bss"] = "uniform"

    def __post_init__(self) -> None:
        for what, value, least in (("k", self.k, 2), ("people", self.people, 1), ("seed", self.seed, 0)):
            check_whole(what, value, least)
        for what, share in (("test_share", self.test_share), ("lead", self.lead)):
            if not 0 <= share < 1:
                raise ArgumentError(f"{what} must be a share from 0 to below 1, found {share!r}")
        if self.kind not in ("image", "text", "table") or self.task not in ("classify", "multi", "regress"):
            raise ArgumentError(
                f"a project has images, texts or a table and is classify, multi or regress; found {self.kind!r}, "
                f"{self.task!r}"
            )
        parse_size(self.max_memory or None)
        object.__setattr__(self, "classes", checked_classes(self.classes))
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.task == "multi":
            for name in self.classes:
                check_name(name)
        if self.task == "regress" and self.classes:
            raise ArgumentError("labels are either classes or numbers; leave out --classes or --regress")

    def path(self, folder: Path) -> Path:
        """The path of the data."""
        return Path(os.path.normpath(folder / self.source))

    def write(self, folder: Path) -> None:
        """Write `project.yaml`, which makes the folder a project."""
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
        head = f"version: {VERSION}\n{CHECKSUM}: {_digest(yaml.safe_load(text))}\n"  # a file that is cut off has it too
        write_text(folder / FILE, head + text)


def checked_classes(names: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """The names without surrounding space. ArgumentError if one is empty or occurs twice."""
    tidy = tuple(str(name).strip() for name in names)
    if any(not name for name in tidy) or len(set(tidy)) != len(tidy):
        raise ArgumentError(f"class names must be different and not empty; found {', '.join(map(repr, tidy))}")
    return tidy


def class_name(text: str) -> str:
    """A class name on one line. ArgumentError if it is empty or too long."""
    name = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not name or len(name) > MAX_CLASS_NAME:
        raise ArgumentError(f"A class name has 1 to {MAX_CLASS_NAME} characters; found {len(name)}.")
    return name


def new_classes(names: tuple[str, ...]) -> tuple[str, ...]:
    """The class names of a new project. ArgumentError if two differ only by case or space."""
    distinct: dict[str, str] = {}
    for name in checked_classes([class_name(name) for name in names]):
        other = distinct.setdefault("".join(name.casefold().split()), name)
        if other != name:
            raise ArgumentError(
                f"the classes {other!r} and {name!r} differ only by case or space and would be confused. Rename one"
            )
    return tuple(distinct.values())


def is_project(folder: Path) -> bool:
    """Whether `folder` is a project."""
    return (folder / FILE).is_file()


def seal_settings(folder: Path, settings: Settings) -> None:
    """Write a checksum to `project.yaml` where it has none: that of an early version, or one changed by hand."""
    if f"\n{CHECKSUM}: " not in (folder / FILE).read_text(encoding="utf-8"):
        settings.write(folder)


def _digest(values: dict[str, Any]) -> str:
    return digest_of({name: value for name, value in values.items() if name not in ("version", CHECKSUM)})


def default_folder(path: Path) -> Path:
    """The default project folder: the name of the data with "-labelwise", next to it."""
    plain = path.resolve()
    name = plain.name if plain.is_dir() else plain.name.split(".")[0]
    return plain.parent / f"{name or 'data'}-labelwise"


def _no_project(folder: Path) -> str:
    """What to say about a folder that is no project: the data of one may have been meant."""
    if not folder.exists():
        return f"{folder}: a project was expected there, nothing was found. Check the path; `labelwise label` makes one"
    near = default_folder(folder)
    if (near / FILE).exists():
        return f"{folder} is not a project: it has no {FILE}. Its project is {near}: name that folder"
    return f"{folder} is not a project: it has no {FILE}. Make a project with `labelwise label DATA --classes ...`"


def read_settings(folder: Path) -> Settings:
    """Read `project.yaml`. StoreError if the folder is not a project, or the file was changed or cannot be used."""
    path = folder / FILE
    refuse_links(folder, LINKS)
    try:
        found = load_yaml(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(_no_project(folder)) from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise StoreError(f"{path} cannot be read: {error}. Correct it, or restore it from a backup") from error
    return _checked(path, found)


def _checked(path: Path, found: Any) -> Settings:
    version = found.get("version") if isinstance(found, dict) else None
    if isinstance(version, bool) or version not in range(1, VERSION + 1):
        raise StoreError(
            f"{path} has version {version!r}; this Labelwise reads versions 1 to {VERSION}. Use the Labelwise it was "
            "made with, or a newer one"
        )
    try:
        changed = CHECKSUM in found and found[CHECKSUM] != _digest(found)
    except (TypeError, ValueError):  # a value that no setting has
        changed = True
    if changed:
        raise StoreError(
            f"{path} was changed after it was written: its checksum is not that of its content. If you changed it, "
            f"remove its line `{CHECKSUM}`; if not, restore it from a backup"
        )
    values = {name: value for name, value in found.items() if name not in ("version", CHECKSUM)}
    unknown = set(values) - {field.name for field in fields(Settings)}
    if unknown or not {"name", "kind", "source"} <= set(values):
        missing = {"name", "kind", "source"} - set(values)
        raise StoreError(
            f"{path}: unknown fields {sorted(unknown)}, missing {sorted(missing)}. Restore it from a backup"
        )
    try:
        for name in ("classes", "columns"):
            values[name] = tuple(values.get(name) or ())
        return Settings(**values)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} has a setting that cannot be used: {error}") from error
