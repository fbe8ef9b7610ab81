"""Pool: rows by global id, whatever they are read from. Read only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, NeedError, RowError
from labelwise.pool.ids import Finder, as_ids, as_runs, from_runs, unique_ids
from labelwise.pool.labels import labels_of
from labelwise.pool.source import OnError, Read, Source, content
from labelwise.pool.sources.arrays import LARGE, ArraySource, TensorSource, TextSource, as_array, features_of, file_of
from labelwise.pool.sources.dataset import DatasetSource
from labelwise.pool.sources.huggingface import HuggingSource, is_hugging
from labelwise.pool.sources.images import Size, read_folder
from labelwise.pool.sources.table import Columns, LabelType, TableFiles, read_files

_SAMPLED = 4096  # rows whose content goes into the fingerprint where reading all would take long
_BLOCK = 256  # rows whose content is in memory at once for it


class Pool:
    """Rows of a source, each with a global id that never changes.

    Attributes:
        ids: (n,) int64.
        labels: (n,) int64 or float, or None.
        classes: class names, or None.
        features: (m, D) numbers of rows, or None.
        skipped: what was left out on reading, and why.

    >>> pool = Pool.of(np.eye(3, dtype=np.float32), ids=[7, 5, 9])
    >>> pool.inputs(torch.tensor([9, 7]))
    tensor([[0., 0., 1.],
            [1., 0., 0.]])
    """

    def __init__(
        self,
        source: Source,
        *,
        ids: Any = None,
        positions: np.ndarray | None = None,
        labels: Any = None,
        classes: Sequence[str] | None = None,
        features: Any = None,
        skipped: tuple[str, ...] = (),
        files: TableFiles | None = None,
    ):
        """A pool of rows of a source.

        Args:
            source: what rows are read from.
            ids: (n,) a different id for each row; 0, 1, 2 ... if None.
            positions: (n,) which rows of the source; all if None.
            labels: (n,) a label for each row, or None.
            classes: class names; the labels are then their numbers.
            features: (n, D) numbers of each row, for strategies that need them.
            skipped: what was left out on reading, and why.
            files: files from which another process can read the rows again.
        """
        n = len(source) if positions is None else len(positions)
        if n == 0:
            raise RowError("the pool is empty; it needs at least one row.")
        self._source = source
        self._positions = positions
        self.ids = torch.arange(n) if ids is None else unique_ids(as_ids(ids), n)
        self._find = Finder(self.ids)
        self.labels, self.classes = labels_of(labels, classes, self.ids)
        self.features = features_of(features, n)
        self._feature_positions: np.ndarray | None = None  # which of the features are of these rows; None: all
        self._features_file = None if self.features is None else file_of(features, self.features)
        self._files = files
        self.skipped = skipped

    @staticmethod
    def of(
        source: Any,
        *,
        ids: Any = None,
        labels: Any = None,
        classes: Sequence[str] | None = None,
        features: Any = None,
    ) -> Pool:
        """A pool of data in memory or of a dataset.

        Args:
            source: a numpy array, a torch tensor, a list of texts, a map-style Dataset or a Hugging Face Dataset.
            ids: (n,) a different id for each row; 0, 1, 2 ... if None.
            labels: (n,) a label for each row, or "dataset" for those of the Dataset (it may read every item).
            classes: class names, where the labels are their numbers.
            features: (n, D) numbers of each row, such as embeddings.
        """
        if is_hugging(source):
            hugging = HuggingSource(source, Columns(), 32, torch.float32)
            # A label column is cheap to read, unlike the items of a Dataset.
            labels = "dataset" if labels is None and hugging.wanted.label is not None else labels
            made: Source = hugging
        else:
            made = _source_of(source)
        if isinstance(labels, str):
            if labels != "dataset" or not isinstance(made, DatasetSource | HuggingSource):
                raise ArgumentError(f'labels is one label for each row, or "dataset" for a Dataset, not {labels!r}.')
            classes = made.classes() if classes is None else classes
            labels = made.labels()
        return Pool(made, ids=ids, labels=labels, classes=classes, features=features)

    @staticmethod
    def images(
        folder: str | Path,
        *,
        size: Size = 32,
        labels: Literal["auto", "folders", "none"] = "auto",
        on_error: OnError = "stop",
        features: Any = None,
    ) -> Pool:
        """A pool of the image files under a folder, in sorted order; each is read as float32 (3, H, W) in [0, 1].

        Args:
            folder: with the images; hidden files and other kinds of file are left out.
            size: pixels of a side, or (height, width).
            labels: "folders": the first sub-folder of an image is its class; "auto": so if every image is in one.
            on_error: "stop" checks the header of each file now and raises; "skip" decodes each file now, and leaves a
                gap in the ids where one cannot be read.
            features: (n, D) numbers of each row, such as embeddings.
        """
        return _pool(read_folder(folder, size, labels, on_error), features)

    @staticmethod
    def table(
        path: str | Path | Sequence[str | Path],
        *,
        text: str | None = None,
        columns: Sequence[str] | None = None,
        image: str | None = None,
        label: str | None = None,
        id: str | None = None,
        label_type: LabelType = "auto",
        size: Size = 32,
        dtype: torch.dtype = torch.float32,
        on_error: OnError = "stop",
        features: Any = None,
    ) -> Pool:
        """A pool of the rows of a .csv, .tsv (either may be .gz) or .parquet file, or of several with the same columns.

        Args:
            path: the files; the rows of the second are numbered on from the first.
            text: column with the text of a row.
            columns: columns with its numbers; all but `label` and `id` if no other is named.
            image: column with its encoded image (Parquet).
            label: column with numbers or class names, which are numbered in sorted order.
            id: column with whole numbers as ids; the place of a row in the file if None.
            label_type: "class" or "number" where a column could be either.
            size: of images: pixels of a side, or (height, width).
            dtype: of numbers.
            on_error: "stop" raises at the first row that cannot be read; "skip" leaves a gap in the ids.
            features: (n, D) numbers of each row, such as embeddings.
        """
        paths = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
        if not paths:
            raise ArgumentError("path is a file or several; an empty list was given.")
        if isinstance(columns, str):
            raise ArgumentError(f"columns is a list of column names; for one column write columns=[{columns!r}].")
        wanted = Columns(text, image, None if columns is None else tuple(columns), label, id)
        return _pool(read_files(paths, wanted, size, dtype, label_type, on_error), features)

    @staticmethod
    def hugging(
        dataset: Any,
        *,
        text: str | None = None,
        columns: Sequence[str] | None = None,
        image: str | None = None,
        label: str | None = None,
        size: Size = 32,
        dtype: torch.dtype = torch.float32,
        features: Any = None,
    ) -> Pool:
        """A pool of a Hugging Face `datasets.Dataset`; the arguments are those of `Pool.table`."""
        if not is_hugging(dataset):
            raise ArgumentError(f"a datasets.Dataset was expected, {type(dataset).__name__} was found.")
        wanted = Columns(text, image, None if columns is None else tuple(columns), label)
        source = HuggingSource(dataset, wanted, size, dtype)
        return Pool(source, labels=source.labels(), classes=source.classes(), features=features)

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Pool({len(self)} rows, {self._source.kind})"

    def inputs(self, ids: Any) -> Any:
        """Model inputs of these rows, in this order: a tensor, a list of texts, or a Dataset's items, collated."""
        return self._source.inputs(self._positions_of(ids))

    def batches(self, ids: Any = None, size: int = 256) -> Iterator[tuple[Tensor, Any]]:
        """Pairs (ids, inputs) of all rows, or of those with `ids`, `size` rows at a time."""
        if size < 1:
            raise ArgumentError(f"size, the rows of a batch, is at least 1, not {size}.")
        for some in (self.ids if ids is None else as_ids(ids)).split(size):
            if len(some):
                yield some, self.inputs(some)

    def raw(self, ids: Any) -> Tensor:
        """Numbers (n, D) of these rows: their `features` if there are any, else their inputs, flattened."""
        if self.features is not None:
            rows: Any = self.features[self._feature_rows(ids)]
        else:
            rows = self.inputs(ids)
        if not isinstance(rows, Tensor):
            raise NeedError(
                f"rows of kind {self._source.kind!r} are not numbers. Give the pool features=, an (N, D) array such "
                "as the embeddings of a pretrained encoder."
            )
        exact = rows.dtype in (torch.float32, torch.float64)
        rows = rows if exact else rows.float()
        return rows.flatten(1) if rows.ndim > 1 else rows[:, None]

    def name(self, id: int) -> str:
        """The name of a row for people: its file, its text, or "row 17"."""
        return self._source.name(int(self._positions_of([id])[0])) or f"row {id}"

    def fingerprint(self) -> str:
        """16 hex digits of ids, kind and content, independent of the order of the rows.

        All content counts if it is cheap to read (`whole` of the source), else that of 4096 evenly spread rows.
        """
        ids = self.ids.sort().values
        digest = hashlib.blake2b(digest_size=8)
        for part in (self._source.kind.encode(), content(ids.numpy()), *self._contents(ids)):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def _contents(self, ids: Tensor) -> Iterator[bytes]:
        """Bytes of the rows and of their features, in blocks."""
        for some in (ids if getattr(self._source, "whole", False) else _spread(ids)).split(_BLOCK):
            yield self._source.sample(self._positions_of(some))
        if self.features is not None:
            small = len(self) * self.features[:1].numel() * self.features.element_size() <= LARGE
            for some in (ids if small else _spread(ids)).split(_BLOCK):
                yield content(as_array(self.features[self._feature_rows(some)]))

    def subset(self, ids: Any) -> Pool:
        """A pool of these rows, in this order, with the same ids. Only labels are copied, nothing is read."""
        rows = torch.from_numpy(self._find(ids))
        labels = None if self.labels is None else self.labels[rows]
        made = Pool(
            self._source,
            ids=self.ids[rows],
            positions=self._positions_of(ids),
            labels=labels,
            classes=self.classes,
            files=self._files,
        )
        return made._share_features(self)

    def to_read(self, ids: Any, features: bool) -> Pool:
        """A pool of these rows, in this order, to send to another process: without labels, and small when pickled.

        Rows in files that the process can open are sent by the name of the file.

        Args:
            ids: (n,) of the rows.
            features: whether the process needs their features.
        """
        at = self._positions_of(ids)
        part = getattr(self._files or self._source, "part", None)
        source, positions = (self._source, at) if part is None else part(at)
        made = Pool(source, ids=self.ids[torch.from_numpy(self._find(ids))], positions=positions)
        return made._share_features(self) if features else made

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "ids": as_runs(self.ids.numpy())}
        del state["_find"]  # two numbers for each row, quick to make again
        for name in ("_positions", "_feature_positions"):
            state[name] = None if state[name] is None else as_runs(state[name])
        if self.features is not None and self._features_file is not None:
            state["features"] = None
        elif self.features is not None and self._feature_positions is not None:
            state["features"], state["_feature_positions"] = (
                self.features[torch.from_numpy(self._feature_positions)],
                None,
            )
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, ids=torch.from_numpy(from_runs(state["ids"])))
        for name in ("_positions", "_feature_positions"):
            setattr(self, name, None if state[name] is None else from_runs(state[name]))
        if self._features_file is not None:
            self.features = self._features_file.open()
        self._find = Finder(self.ids)

    def _share_features(self, other: Pool) -> Pool:
        if other.features is not None:
            self.features, self._features_file = other.features, other._features_file
            self._feature_positions = other._feature_rows(self.ids).numpy()
        return self

    def _feature_rows(self, ids: Any) -> Tensor:
        """Positions of these ids in `features`."""
        found = self._find(ids)
        return torch.from_numpy(found if self._feature_positions is None else self._feature_positions[found])

    def _positions_of(self, ids: Any) -> np.ndarray:
        """Positions of these ids in the source."""
        found = self._find(ids)
        return found if self._positions is None else self._positions[found]


def _source_of(source: Any) -> Source:
    """The source that reads a value, which is not a Hugging Face dataset."""
    if isinstance(source, Tensor):
        return TensorSource(source)
    if isinstance(source, np.ndarray):
        return TextSource(source.tolist()) if source.dtype.kind in "UO" and source.ndim == 1 else ArraySource(source)
    if isinstance(source, list | tuple):
        return TextSource(source)
    if isinstance(source, str | Path):
        raise ArgumentError(
            f"for files use Pool.images(folder) or Pool.table(path); {str(source)!r} is a path or text."
        )
    if type(source).__module__.startswith("scipy.sparse"):
        raise ArgumentError(
            f"a pool of numbers holds dense ones, not a sparse {type(source).__name__}. Make it dense with "
            "Pool.of(matrix.toarray()), or give what it was computed from, such as the texts, and features=, an (N, D) "
            "array of fewer columns (scikit-learn's TruncatedSVD)."
        )
    frame = isinstance(source, Mapping) or hasattr(source, "iloc")
    if frame or not hasattr(source, "__getitem__"):
        raise ArgumentError(
            "a pool is made of a numpy array, a torch tensor, a list of texts, a map-style torch Dataset or a Hugging "
            f"Face Dataset (one split), not of {type(source).__name__}. Numbers of a data frame: frame.to_numpy()."
        )
    return DatasetSource(source)


def _pool(read: Read, features: Any) -> Pool:
    return Pool(
        read.source,
        ids=read.numbers,
        positions=read.positions,
        labels=read.labels,
        classes=read.classes,
        features=features,
        skipped=read.skipped,
        files=read.files,
    )


def _spread(ids: Tensor) -> Tensor:
    """At most _SAMPLED evenly spread ones of sorted ids, the first and the last among them."""
    return ids[torch.linspace(0, len(ids) - 1, min(_SAMPLED, len(ids)), dtype=torch.float64).long()]
