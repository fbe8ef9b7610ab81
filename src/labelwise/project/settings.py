"""Settings: what a project is, as `project.yaml` holds it. Written once, when the project is made."""

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
    """All that has to be the same for a project to go on.

    Attributes:
        name: what the page calls it.
        kind: what a row is.
        task: whether labels are classes or numbers.
        source: the folder or file of the data, relative to the project folder.
        text: the column that holds the texts.
        image: the column of a Parquet file that holds the images.
        columns: the columns that make a row of a table.
        encoder: what turns a row into features; "auto" is the best that is installed.
        classes: the names of the classes at the start; more can be added while labelling.
        people: how many people answer each row.
        k: rows of a round, test rows included.
        test_share: share of each round that is drawn uniformly at random and kept out of training.
        lead: share of a round that may be unanswered when the next one is chosen.
        recipe: how batches are chosen.
        seed: the only source of chance.
        store: address of the store; "" is a file in the project folder. Never holds a password.
        max_memory: what choosing a round may hold beside data and model, such as "4GB"; "" is no limit. It decides no
            pick, and is the one setting that can be changed later.
        fingerprint: of the data when the project was made, written by it; "" in projects of before it was kept here.
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
            raise ArgumentError(f"a project is of images, texts or a table, found {self.kind!r}, {self.task!r}")
        parse_size(self.max_memory or None)
        object.__setattr__(self, "classes", checked_classes(self.classes))
        object.__setattr__(self, "columns", tuple(self.columns))
        if self.task == "regress" and self.classes:
            raise ArgumentError("a project has classes or numbers as labels; leave --classes or --regress out")

    def path(self, folder: Path) -> Path:
        """Where the data is."""
        return Path(os.path.normpath(folder / self.source))

    def write(self, folder: Path) -> None:
        """Write `project.yaml`; from then on the project is there."""
        values = {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}
        text = yaml.safe_dump({"version": VERSION, **values}, sort_keys=False, allow_unicode=True)
        write_text(folder / FILE, text)


def checked_classes(names: tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Names of classes, each once and not empty."""
    tidy = tuple(str(name).strip() for name in names)
    if any(not name for name in tidy) or len(set(tidy)) != len(tidy):
        raise ArgumentError(
            f"the names of the classes must differ and not be empty, found {', '.join(map(repr, tidy))}"
        )
    return tidy


def class_name(text: str) -> str:
    """A class as it is kept: one line, not empty, not long."""
    name = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    if not name or len(name) > MAX_CLASS_NAME:
        raise ArgumentError(f"A class has a name of 1 to {MAX_CLASS_NAME} characters; found {len(name)}.")
    return name


def new_classes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of classes for a new project; two that people would take for one are refused."""
    kept: dict[str, str] = {}
    for name in checked_classes([class_name(name) for name in names]):
        other = kept.setdefault("".join(name.casefold().split()), name)
        if other != name:
            raise ArgumentError(
                f"the classes {other!r} and {name!r} differ only by case or space, and would be mixed up; leave one "
                "out, or give it another name"
            )
    return tuple(kept.values())


def is_project(folder: Path) -> bool:
    """Whether there is a finished project in `folder`."""
    return (folder / FILE).is_file()


def read_settings(folder: Path) -> Settings:
    """What `Settings.write` wrote."""
    path = folder / FILE
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{folder} holds no project: there is no {FILE}. Make one with `labelwise label DATA --classes ...`"
        ) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise StoreError(f"{path} cannot be read: {error}; mend it, or put it back from a copy") from error
    return _checked(path, found)


def _checked(path: Path, found: Any) -> Settings:
    version = found.get("version") if isinstance(found, dict) else None
    if version != VERSION:
        raise StoreError(
            f"{path} has version {version!r}; this Labelwise reads version {VERSION}. Open it with the Labelwise it "
            "was made with, or a newer one"
        )
    values = {name: value for name, value in found.items() if name != "version"}
    unknown = set(values) - {field.name for field in fields(Settings)}
    if unknown or not {"name", "kind", "source"} <= set(values):
        missing = {"name", "kind", "source"} - set(values)
        raise StoreError(f"{path}: unknown fields {sorted(unknown)}, missing {sorted(missing)}; restore it from a copy")
    try:
        for name in ("classes", "columns"):
            values[name] = tuple(values.get(name) or ())
        return Settings(**values)
    except (TypeError, ValueError) as error:
        raise StoreError(f"{path} holds a setting that cannot be used: {error}") from error
