"""Data sets by name, each as a pool to choose from and a test set: `load("digits")`, `availability()`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.bench.data import synthetic
from labelwise.bench.data.catalogue import Availability, DatasetEntry, availability, dataset_entry, names, require_files
from labelwise.bench.data.files import (
    PixelSource,
    caltech101,
    decoded,
    read_cifar100,
    read_idx,
    read_sheets,
    read_stl10,
    tiny_test,
    tiny_train,
)
from labelwise.errors import ArgumentError, SourceError, extra
from labelwise.io.encode_table import standard_features
from labelwise.io.tables import Values, numbers, read_table
from labelwise.pool.pool import Pool
from labelwise.pool.sources.images import ImageSource
from labelwise.pool.sources.table import Columns, read_files
from labelwise.rng import Key

__all__ = ["Availability", "Data", "availability", "load", "names"]

_FRIEDMAN = {  # the function of scikit-learn, and the deviation of the noise
    "friedman": ("make_friedman1", 1.0),
    "friedman2": ("make_friedman2", 125.0),
    "friedman3": ("make_friedman3", 0.1),
}
_TEST_SHARE = 0.2  # of the rows, where there is no official split
_CIFAR_CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_STL_CLASSES = ("airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck")
_DIGITS = tuple("0123456789")
_CLOTHES = ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot")


@dataclass(frozen=True)
class Data:
    """A data set for a benchmark: rows to choose from, rows to test on, and the answers to both."""

    name: str
    kind: Literal["image", "text", "table"]
    task: Literal["classify", "regress"]
    metric: str  # what a learning curve shows: "accuracy" or "rmse"
    pool: Pool
    test: Pool  # with ids of its own, unrelated to those of the pool
    classes: tuple[str, ...] | None
    noisy: Tensor | None  # a crowd's label of each pool row, if known
    licence: str
    valid: Pool | None = None  # labelled validation rows outside the pool, which do not count as labels

    @property
    def labels(self) -> Tensor:
        """The true label of each row of the pool, in the order of `pool.ids`."""
        return _present(self.pool.labels)

    @property
    def test_inputs(self) -> Any:
        """The model inputs of all test rows."""
        return self.test.inputs(self.test.ids)

    @property
    def test_labels(self) -> Tensor:
        """The true label of each test row."""
        return _present(self.test.labels)


@dataclass(frozen=True)
class _Cut:
    """Which rows to take: at most `limit` of each part, the same ones for the same seed."""

    key: Key
    limit: int | None

    def some(self, rows: np.ndarray, part: str) -> np.ndarray:
        """At most `limit` of these row numbers, drawn at random and in order."""
        if self.limit is None or len(rows) <= self.limit:
            return rows
        draw = self.key.fold("limit", part).uniform(torch.from_numpy(rows)).numpy()
        return np.sort(rows[np.argsort(draw, kind="stable")[: self.limit]])

    def split(self, groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Train and test rows; rows of one group stay together."""
        different = np.unique(groups)
        draw = self.key.fold("split").uniform(torch.from_numpy(different)).numpy()
        test = different[np.argsort(draw, kind="stable")[: max(1, round(_TEST_SHARE * len(different)))]]
        inside = np.isin(groups, test)
        return np.flatnonzero(~inside), np.flatnonzero(inside)


_Parts = tuple[Pool, Pool, Tensor | None]


def load(name: str, seed: int = 0, limit: int | None = None) -> Data:
    """The data set `name`, with its official split or one drawn from `seed`.

    `limit` is the most rows of the pool, and of the test set, drawn from `seed`; the ids of the pool stay
    those of the whole set. Images are float32 in [0, 1], texts are str, tables are standardised and one-hot numbers.
    """
    entry = dataset_entry(name)
    if limit is not None and limit < 1:
        raise ArgumentError(f"limit is a number of rows from 1 on, or None for all, not {limit}.")
    files = require_files(entry) if entry.files else []
    pool, test, noisy = _READERS[entry.name](entry, files, _Cut(Key(seed).fold("data", entry.name), limit))
    metric = "accuracy" if entry.task == "classify" else "rmse"
    return Data(entry.name, entry.kind, entry.task, metric, pool, test, pool.classes, noisy, entry.licence)


def _digits(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    bunch = _sklearn_datasets().load_digits()
    images = (bunch.images[:, None] / 16).astype(np.float32)
    train, test = cut.split(np.arange(len(images)))
    return (*_two(images, bunch.target, _DIGITS, train, test, cut), None)


def _diabetes(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    bunch = _sklearn_datasets().load_diabetes()
    return _numbers(bunch.data, bunch.target, cut)


def _friedman(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    make, noise = _FRIEDMAN[entry.name]
    rows, target = getattr(_sklearn_datasets(), make)(sum(entry.rows), noise=noise, random_state=0)
    return _numbers(rows, target, cut)


def _synthetic(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    return _numbers(*synthetic.MAKERS[entry.name](sum(entry.rows), Key(0).fold("data", entry.name).numpy()), cut)


def _numbers(rows: np.ndarray, target: np.ndarray, cut: _Cut) -> _Parts:
    """Rows of numbers and a number to predict."""
    train, test = cut.split(np.arange(len(rows)))
    columns: dict[str, Values] = {str(place): column for place, column in enumerate(rows.T)}
    return (*_two(standard_features(columns, (), train), target, None, train, test, cut), None)


def _sklearn_datasets() -> Any:
    try:
        from sklearn import datasets
    except ImportError:
        raise extra("sklearn", "bench") from None
    return datasets


def _idx(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    classes = _DIGITS if entry.name == "mnist" else _CLOTHES
    arrays = [read_idx(file) for file in files]
    for images, labels, file in ((arrays[0], arrays[1], files[1]), (arrays[2], arrays[3], files[3])):
        if images.ndim != 3 or labels.shape != images.shape[:1]:
            raise SourceError(f"{file}: {len(images)} labels were expected, shape {labels.shape} was found.")
    train = _pixels(arrays[0][:, None], arrays[1], classes, cut, "train")
    return train, _pixels(arrays[2][:, None], arrays[3], classes, cut, "test"), None


def _cifar_full(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    images, labels = read_sheets(files[:5], files[6])
    train = _pixels(images, labels, _CIFAR_CLASSES, cut, "train")
    images, labels = read_sheets(files[5:6], files[7])
    return train, _pixels(images, labels, _CIFAR_CLASSES, cut, "test"), None


def _cifar100(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    classes = tuple(files[2].read_text(encoding="utf-8").split())
    if len(classes) != 100:
        raise SourceError(f"{files[2]}: the names of 100 classes were expected, {len(classes)} were found.")
    train = _pixels(*read_cifar100(files[0]), classes, cut, "train")
    return train, _pixels(*read_cifar100(files[1]), classes, cut, "test"), None


def _stl10(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    train = _pixels(*read_stl10(files[0], files[1]), _STL_CLASSES, cut, "train")
    return train, _pixels(*read_stl10(files[2], files[3]), _STL_CLASSES, cut, "test"), None


def _parquet_images(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    return _encoded(files[:-1], cut, "train"), _encoded(files[-1:], cut, "test"), None


def _caltech(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    source, labels, classes = caltech101(files[0])
    train, test = cut.split(np.arange(len(source)))
    whole = Pool(source, labels=labels, classes=classes)
    return whole.subset(cut.some(train, "train")), whole.subset(cut.some(test, "test")), None


def _tiny_imagenet(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    source, labels, classes = tiny_train(files[0])
    pool = Pool(source, labels=labels, classes=classes).subset(cut.some(np.arange(len(source)), "train"))
    source, labels, _ = tiny_test(files[1], classes)
    return pool, Pool(source, labels=labels, classes=classes).subset(cut.some(np.arange(len(source)), "test")), None


def _texts(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    columns = read_table(files[0]).columns
    labels, split = _whole(columns["label"]), np.array(columns["split"])
    classes = _CLASS_NAMES[entry.name](columns)
    parts = []
    for part in ("train", "test"):
        rows = cut.some(np.flatnonzero((split == part) & (labels >= 0)), part)
        texts = [str(columns["text"][row]) for row in rows]
        parts.append(Pool.of(texts, ids=rows, labels=labels[rows], classes=classes))
    noisy = columns.get("noisy_label")
    return parts[0], parts[1], None if noisy is None else torch.from_numpy(_whole(noisy))[parts[0].ids]


def _table(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    columns = read_table(files[0]).columns
    labels = np.asarray(columns.pop("RMSD")) if entry.name == "protein" else _whole(columns.pop("label"))
    split = np.array(columns.pop("split", []))
    if len(split):
        train, test = np.flatnonzero(split == "train"), np.flatnonzero(split == "test")
    else:
        train, test = cut.split(np.arange(len(labels)))
    rows = standard_features(columns, ("Wilderness_Area", "Soil_Type"), train)
    return (*_two(rows, labels, _TABLE_CLASSES.get(entry.name), train, test, cut), None)


def _parkinsons(entry: DatasetEntry, files: list[Path], cut: _Cut) -> _Parts:
    # The rows of one person are near copies: they are all in the pool or all in the test set, but in parkinsons-rows.
    columns = csv_numbers(files[0])
    subject = columns.pop("subject#").astype(np.int64)
    train, test = cut.split(subject if entry.name == "parkinsons" else np.arange(len(subject)))
    labels = columns.pop("total_UPDRS")
    columns.pop("motor_UPDRS")  # the other answer, all but equal to this one
    return (*_two(standard_features(columns, (), train), labels, None, train, test, cut), None)


def _two(
    rows: np.ndarray,
    labels: np.ndarray,
    classes: tuple[str, ...] | None,
    train: np.ndarray,
    test: np.ndarray,
    cut: _Cut,
) -> tuple[Pool, Pool]:
    """Pool and test set of one array of all rows; the number of a row in it is its id."""
    whole = Pool.of(rows, labels=labels, classes=classes)
    return whole.subset(cut.some(train, "train")), whole.subset(cut.some(test, "test"))


def _pixels(pixels: np.ndarray, labels: np.ndarray, classes: tuple[str, ...], cut: _Cut, part: str) -> Pool:
    whole = Pool(PixelSource(pixels), labels=labels, classes=classes)
    return whole.subset(cut.some(np.arange(len(pixels)), part))


def _encoded(files: list[Path], cut: _Cut, part: str) -> Pool:
    """Images of Parquet files; only selected rows are decoded."""
    read = read_files(files, Columns(image="image", label="label"), 32, torch.float32, "auto", "stop")
    assert isinstance(read.source, ImageSource), "the image column was asked for"
    rows = cut.some(read.numbers, part)
    labels = np.array(read.labels)[rows]
    return Pool(PixelSource(decoded(read.source, rows)), ids=rows, labels=labels, classes=read.classes)


def csv_numbers(path: Path) -> dict[str, np.ndarray]:
    """All columns of a CSV file of numbers."""
    table = read_table(path)
    columns = {name: numbers(values) for name, values in table.columns.items()}
    wrong = [name for name, values in columns.items() if values is None or not np.isfinite(values).all()]
    if wrong or table.faults:
        found = f"column {wrong[0]!r} holds something else" if wrong else table.faults[0]
        raise SourceError(f"{path}: numbers alone were expected; {found}.")
    return {name: values for name, values in columns.items() if values is not None}


def _whole(values: Values) -> np.ndarray:
    """A column of whole numbers; texts stay texts."""
    return values.astype(np.int64) if isinstance(values, np.ndarray) else np.array(values)


def _named_by(column: str) -> Callable[[dict[str, Values]], tuple[str, ...]]:
    """Class names from a column that says in words what `label` says in numbers."""

    def names_of(columns: dict[str, Values]) -> tuple[str, ...]:
        # A finer label ("DESC:manner") begins with the name of its class.
        labels = _whole(columns["label"]).tolist()
        pairs = {(label, str(name).split(":")[0]) for label, name in zip(labels, columns[column]) if label >= 0}
        return tuple(name for _, name in sorted(pairs))

    return names_of


def _present(labels: Tensor | None) -> Tensor:
    assert labels is not None, "every data set has labels"
    return labels


_CLASS_NAMES: dict[str, Callable[[dict[str, Values]], tuple[str, ...]]] = {
    "ag-news": lambda columns: ("World", "Sports", "Business", "Sci/Tech"),
    "banking77": _named_by("category"),
    "clinc150": _named_by("intent"),
    "trec6": _named_by("fine_label"),
}
_TABLE_CLASSES: dict[str, tuple[str, ...]] = {
    "adult": ("<=50K", ">50K"),
    "bank-marketing": ("no", "yes"),
    "covertype": (
        "Spruce/Fir",
        "Lodgepole Pine",
        "Ponderosa Pine",
        "Cottonwood/Willow",
        "Aspen",
        "Douglas-fir",
        "Krummholz",
    ),
}
_READERS: dict[str, Callable[[DatasetEntry, list[Path], _Cut], _Parts]] = {
    "digits": _digits,
    "diabetes": _diabetes,
    "friedman": _friedman,
    "friedman2": _friedman,
    "friedman3": _friedman,
    "heavy-tailed": _synthetic,
    "heavy-rows": _synthetic,
    "clustered": _synthetic,
    "mnist": _idx,
    "fashion-mnist": _idx,
    "cifar10": _parquet_images,
    "cifar10-full": _cifar_full,
    "cifar100": _cifar100,
    "stl10": _stl10,
    "svhn": _parquet_images,
    "caltech101": _caltech,
    "tiny-imagenet": _tiny_imagenet,
    "ag-news": _texts,
    "banking77": _texts,
    "clinc150": _texts,
    "trec6": _texts,
    "adult": _table,
    "bank-marketing": _table,
    "covertype": _table,
    "protein": _table,
    "parkinsons": _parkinsons,
    "parkinsons-rows": _parkinsons,
}
