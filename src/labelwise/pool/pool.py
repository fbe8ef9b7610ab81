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
    """Rows of a source, each under a global id that stays with it wherever the row goes.

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
        """Rows of `source` at `positions` (default: all) under `ids` (default: 0, 1, 2 ...)."""
        n = len(source) if positions is None else len(positions)
        if n == 0:
            raise RowError("the pool is empty; it needs at least one row.")
        self._source = source
        self._positions = positions
        self.ids = torch.arange(n) if ids is None else unique_ids(as_ids(ids), n)
        self._find = Finder(self.ids)
        self.labels, self.classes = labels_of(labels, classes, self.ids)
        self.features = features_of(features, n)
        self._features_at: np.ndarray | None = None  # which of them are of these rows; None: all, in their order
        self._features_file = None if self.features is None else file_of(features, self.features)
        self._files = files
        self.skipped = skipped  # what was left out on reading, and why

    @staticmethod
    def of(
        source: Any,
        *,
        ids: Any = None,
        labels: Any = None,
        classes: Sequence[str] | None = None,
        features: Any = None,
    ) -> Pool:
        """A pool of a numpy array, a torch tensor, a list of texts, a map-style Dataset or a Hugging Face Dataset.

        `labels` is one label for each row, or "dataset" to take those of the Dataset (it may read every item).
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
        """A pool of the image files under `folder`, in sorted order; each is read as float32 (3, H, W) in [0, 1].

        If every image lies in a sub-folder, the first sub-folder is its class. on_error="stop" looks at the header
        of each file now; "skip" decodes each file now, and leaves a gap in the ids where one cannot be read.
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

        A row is the text in column `text`, the numbers in `columns` (default: all but `label` and `id`), or the
        encoded image in column `image` (Parquet). Labels are numbers, or class names, numbered in sorted order. Ids
        are the places of the rows in the file, or the whole numbers in column `id`.
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
        """A pool of a Hugging Face `datasets.Dataset`, with a say in which columns make a row and which its label."""
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
        return self._source.inputs(self._at(ids))

    def batches(self, ids: Any = None, size: int = 256) -> Iterator[tuple[Tensor, Any]]:
        """(ids, inputs) of all rows, or of these, `size` at a time."""
        if size < 1:
            raise ArgumentError(f"size, the rows of a batch, is at least 1, not {size}.")
        for some in (self.ids if ids is None else as_ids(ids)).split(size):
            if len(some):
                yield some, self.inputs(some)

    def raw(self, ids: Any) -> Tensor:
        """Numbers of the rows themselves (n, D): `features` if they were given, else the inputs, flattened."""
        if self.features is not None:
            rows: Any = self.features[self._featured(ids)]
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
        """A name a person knows the row by: its file, its text, or "row 17"."""
        return self._source.name(int(self._at([id])[0])) or f"row {id}"

    def fingerprint(self) -> str:
        """16 hex digits of ids, kind and content, whatever the order of the rows.

        All content counts where it is cheap to read (`whole` of the source), else that of 4096 rows spread over it.
        """
        ids = self.ids.sort().values
        digest = hashlib.blake2b(digest_size=8)
        for part in (self._source.kind.encode(), content(ids.numpy()), *self._contents(ids)):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.hexdigest()

    def _contents(self, ids: Tensor) -> Iterator[bytes]:
        """Bytes of the rows and of their features, some rows at a time."""
        for some in (ids if getattr(self._source, "whole", False) else _spread(ids)).split(_BLOCK):
            yield self._source.sample(self._at(some))
        if self.features is not None:
            small = len(self) * self.features[:1].numel() * self.features.element_size() <= LARGE
            for some in (ids if small else _spread(ids)).split(_BLOCK):
                yield content(as_array(self.features[self._featured(some)]))

    def subset(self, ids: Any) -> Pool:
        """These rows under the same ids, in this order. Nothing is read or copied but their labels."""
        rows = torch.from_numpy(self._find(ids))
        labels = None if self.labels is None else self.labels[rows]
        made = Pool(
            self._source,
            ids=self.ids[rows],
            positions=self._at(ids),
            labels=labels,
            classes=self.classes,
            files=self._files,
        )
        return made._with_features_of(self)

    def to_read(self, ids: Any, features: bool) -> Pool:
        """These rows, in this order, for another process to read, which is sent no more than that takes.

        Rows in files that it can open are sent by name. Labels stay here, as do features that it does not ask for.
        """
        at = self._at(ids)
        part = getattr(self._files or self._source, "part", None)
        source, positions = (self._source, at) if part is None else part(at)
        made = Pool(source, ids=self.ids[torch.from_numpy(self._find(ids))], positions=positions)
        return made._with_features_of(self) if features else made

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "ids": as_runs(self.ids.numpy())}
        del state["_find"]  # two more numbers for each row, and soon made
        for name in ("_positions", "_features_at"):
            state[name] = None if state[name] is None else as_runs(state[name])
        if self.features is not None and self._features_file is not None:
            state["features"] = None
        elif self.features is not None and self._features_at is not None:
            state["features"], state["_features_at"] = self.features[torch.from_numpy(self._features_at)], None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, ids=torch.from_numpy(from_runs(state["ids"])))
        for name in ("_positions", "_features_at"):
            setattr(self, name, None if state[name] is None else from_runs(state[name]))
        if self._features_file is not None:
            self.features = self._features_file.open()
        self._find = Finder(self.ids)

    def _with_features_of(self, other: Pool) -> Pool:
        if other.features is not None:
            self.features, self._features_file = other.features, other._features_file
            self._features_at = other._featured(self.ids).numpy()
        return self

    def _featured(self, ids: Any) -> Tensor:
        """Which of the features are of these ids."""
        found = self._find(ids)
        return torch.from_numpy(found if self._features_at is None else self._features_at[found])

    def _at(self, ids: Any) -> np.ndarray:
        """Positions in the source of these ids."""
        found = self._find(ids)
        return found if self._positions is None else self._positions[found]


def _source_of(source: Any) -> Source:
    """The source for a value that is not a Hugging Face dataset."""
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
    """Evenly spread ones of sorted ids, the first and the last among them."""
    return ids[torch.linspace(0, len(ids) - 1, min(_SAMPLED, len(ids)), dtype=torch.float64).long()]
