"""Settings of a project, the content of `project.yaml`. Written once, when the project is made."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from labelwise.errors import ArgumentError, StoreError
from labelwise.io.files import write_text
from labelwise.io.sizes import parse_size

VERSION = 1
FILE = "project.yaml"
MAX_CLASS_NAME = 100

Kind = Literal["image", "text", "table"]
Task = Literal["classify", "regress"]


@dataclass(frozen=True)
class Settings:
    """Everything that must stay the same while a project exists.

    Attributes:
        name: the title on the page.
        kind: what a row is: an image, a text or a row of a table.
        task: whether labels are classes or numbers.
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
        recipe: how rows are chosen.
        seed: source of chance.
        store: address of the store, without a password; "" is a file in the project folder.
        max_memory: memory limit for choosing a round, besides data and model, such as "4GB"; "" is no limit. It does
            not change the picks, and is the only setting that can be changed later.
        fingerprint: of the data when the project was made; "" in projects of older versions.
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

    def __post_init__(self) -> None:
        for what, value, least in (("k", self.k, 2), ("people", self.people, 1), ("seed", self.seed, 0)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ArgumentError(f"{what} must be a whole number of at least {least}, found {value!r}")
        for what, share in (("test_share", self.test_share), ("lead", self.lead)):
            if not 0 <= share < 1:
                raise ArgumentError(f"{what} must be a share from 0 to below 1, found {share!r}")
        if self.kind not in ("image", "text", "table") or self.task not in ("classify", "regress"):
            raise ArgumentError(
                f"a project has images, texts or a table and is classify or regress; found {self.kind!r}, {self.task!r}"
            )
        parse_size(self.max_memory or None)
        object.__setattr__(self, "classes", checked_classes(self.classes))
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.task == "regress" and self.classes:
            raise ArgumentError("labels are either classes or numbers; leave out --classes or --regress")

    def path(self, folder: Path) -> Path:
        """The path of the data."""
        return Path(os.path.normpath(folder / self.source))

    def write(self, folder: Path) -> None:
        """Write `project.yaml`, which makes the folder a project."""
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        text = yaml.safe_dump({"version": VERSION, **values}, sort_keys=False, allow_unicode=True)
        write_text(folder / FILE, text)


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


def read_settings(folder: Path) -> Settings:
    """Read `project.yaml`. StoreError if the folder is not a project, or the file cannot be used."""
    path = folder / FILE
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{folder} is not a project: it has no {FILE}. Make a project with `labelwise label DATA --classes ...`"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StoreError(f"{path} cannot be read: {error}. Correct it, or restore it from a backup") from error
    return _checked(path, found)


def _checked(path: Path, found: Any) -> Settings:
    version = found.get("version") if isinstance(found, dict) else None
    if version != VERSION:
        raise StoreError(
            f"{path} has version {version!r}; this Labelwise reads version {VERSION}. Use the Labelwise it was "
            "made with, or a newer one"
        )
    values = {name: value for name, value in found.items() if name != "version"}
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
