"""Pool: rows by global id, whatever they are read from. Read only."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, NeedError, RowError
from labelwise.io.arguments import check_whole
from labelwise.io.encode_texts import READ, TextEncoder, fit_texts
from labelwise.io.frames import frame_numbers, index_of, is_frame, is_series, library_of, native_frame
from labelwise.io.text import many
from labelwise.pool.ahead import ahead
from labelwise.pool.ids import Finder, as_ids, as_runs, from_runs, unique_ids
from labelwise.pool.labels import labels_of
from labelwise.pool.row_keys import RowKeys, are_keys
from labelwise.pool.source import OnError, Read, Source, SplitFiles, content
from labelwise.pool.sources.arrays import LARGE, ArraySource, TensorSource, TextSource, as_array, features_of, file_of
from labelwise.pool.sources.chain import ChainSource
from labelwise.pool.sources.collated import Collate, CollatedSource
from labelwise.pool.sources.dataset import DatasetSource
from labelwise.pool.sources.frame import FrameSource, column_values, read_columns
from labelwise.pool.sources.huggingface import is_hugging, read_hugging
from labelwise.pool.sources.images import Decoder, ImageSource, Size, Transform, read_images
from labelwise.pool.sources.source_of import collated, source_of
from labelwise.pool.sources.sparse import SparseEncoder, SparseSource, fit_sparse
from labelwise.pool.sources.table import Columns, LabelType, read_files

_SAMPLED = 4096  # rows whose content goes into the fingerprint where reading all would take long
_BLOCK = 256  # rows whose content is in memory at once for it


class Pool:
    """Rows of a source, each with a global id that never changes.

    Attributes:
        ids: (n,) int64.
        row_keys: the names of the rows where they were given as texts, tuples or the like; None where they are numbers.
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
        files: SplitFiles | None = None,
    ):
        """A pool of rows of a source.

        Args:
            source: what rows are read from.
            ids: (n,) a different id for each row, a whole number or any hashable value; 0, 1, 2 ... if None.
            positions: (n,) which rows of the source; all if None.
            labels: (n,) a label for each row, or None.
            classes: class names; the labels are then their numbers.
            features: (n, D) numbers of each row, for strategies that need them.
            skipped: what was left out on reading, and why.
            files: files from which another process can read the rows again.

        Raises:
            RowError: there is no row, or not one id, label or row of `features` for each.
        """
        n = len(source) if positions is None else len(positions)
        if n == 0:
            raise RowError("the pool is empty; it needs at least one row.")
        self._source = source
        self._positions = positions
        self.row_keys = ids if isinstance(ids, RowKeys) else RowKeys(ids) if are_keys(ids) else None
        if ids is not None:
            ids = unique_ids(as_ids(ids) if self.row_keys is None else self.row_keys.ids, n)
        self.ids = torch.arange(n) if ids is None else ids
        self._find = Finder(self.ids)
        with self.keys_in_errors():
            self.labels, self.classes = labels_of(labels, classes, self.ids)
        self.features = features_of(features, n)
        self._feature_positions: np.ndarray | None = None  # which of the features are of these rows; None: all
        self._features_file = None if self.features is None else file_of(features, self.features)
        self._files = files
        self._encoder: TextEncoder | SparseEncoder | None = None  # for `raw`; fitted when it is first needed
        self.skipped = skipped

    @staticmethod
    def of(
        source: Any,
        *,
        ids: Any = None,
        labels: Any = None,
        classes: Sequence[str] | None = None,
        features: Any = None,
        collate: Collate | None = None,
        tokenizer: Any = None,
    ) -> Pool:
        """A pool of data in memory or of a dataset.

        Args:
            source: a numpy array, a torch tensor, a sparse matrix of scipy, a list of texts or of rows, a frame or
                Series of pandas, polars or Arrow (see `Pool.frame`), a map-style Dataset or a Hugging Face Dataset.
            ids: (n,) a different id for each row, a whole number or any hashable value; 0, 1, 2 ... if None.
            labels: (n,) a label for each row, or "dataset" for those of the Dataset (it may read every item).
            classes: class names, where the labels are their numbers.
            features: (n, D) numbers of each row, such as embeddings.
            collate: a function of a list of rows, without their labels, that returns a batch; such as a
                `DataCollatorWithPadding` of transformers, which pads tokenised rows.
            tokenizer: a tokenizer of transformers, in place of `collate`: texts are tokenised on reading, and
                tokenised rows are padded to the longest one of their batch.

        Returns:
            A pool. Arrays are not copied.

        Raises:
            ArgumentError: the source is of no known kind, or labels and classes do not fit.
            RowError: ids are repeated, or arrays have other numbers of rows.
        """
        if is_hugging(source):
            hugging = read_hugging(source, Columns(), Decoder(), torch.float32, collate, tokenizer)
            made, found, names = hugging
            if labels is None or (isinstance(labels, str) and labels == "dataset"):
                labels, classes = found, names if classes is None else classes
        elif is_frame(source):
            if collate is not None or tokenizer is not None:
                raise ArgumentError(
                    "collate= and tokenizer= are for texts and for datasets; of a frame pass the column with the text, "
                    "such as Pool.of(frame['text'], tokenizer=tokenizer)."
                )
            return Pool.frame(source, ids=ids, labels=labels, classes=classes, features=features)
        elif is_series(source):
            ids = index_of(source) if ids is None else ids
            values = column_values(source)
            made = TextSource(values, library=library_of(source)) if isinstance(values, list) else ArraySource(values)
        else:
            made = source_of(source)
        if isinstance(labels, str):
            if labels != "dataset" or not isinstance(made, DatasetSource):
                raise ArgumentError(f'labels is one label for each row, or "dataset" for a Dataset, not {labels!r}.')
            classes = made.classes() if classes is None else classes
            labels = made.labels()
        if not is_hugging(source) and (collate is not None or tokenizer is not None):
            made = collated(made, collate, tokenizer)
        return Pool(made, ids=ids, labels=labels, classes=classes, features=features)

    @staticmethod
    def images(
        source: str | Path | Sequence[str | Path],
        *,
        size: Size | None = None,
        transform: Transform | None = None,
        labels: Literal["auto", "folders", "none"] | Sequence[Any] | np.ndarray | None = "auto",
        classes: Sequence[str] | None = None,
        on_error: OnError = "stop",
        features: Any = None,
    ) -> Pool:
        """A pool of image files, which are decoded when they are read, as float32 (3, H, W) in [0, 1].

        Args:
            source: a folder, whose images are taken in sorted order without hidden files and other kinds of file; or a
                list of paths.
            size: pixels of a side, or (height, width); 32 if None and there is no transform.
            transform: a function of an image (PIL, RGB, upright, resized if `size` is given) that returns a tensor or
                an array, such as the transforms of torchvision and the image processors of transformers. It must
                return the same each time.
            labels: "folders": the first sub-folder of an image is its class, in a list the folder it is in; "auto": so
                if every image of a folder is in one; "none"; or one label for each image.
            classes: class names, where `labels` are their numbers.
            on_error: "stop" checks the header of each file now and raises; "skip" decodes each file now, and leaves a
                gap in the ids where one cannot be read.
            features: (n, D) numbers of each row, such as embeddings.

        Returns:
            A pool whose row i is file i.

        Raises:
            SourceError: a file cannot be read, or there is no image.
            ArgumentError: `labels` or `transform` cannot be used.
        """
        return _pool(read_images(source, Decoder(size, transform), labels, classes, on_error), features)

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

        Returns:
            A pool; Parquet is read by row groups when rows are asked for.

        Raises:
            SourceError: a file or row cannot be read, or a column is missing.
            ArgumentError: `path` is an empty list.
        """
        paths = [Path(path)] if isinstance(path, str | Path) else [Path(one) for one in path]
        if not paths:
            raise ArgumentError("path is a file or several; an empty list was given.")
        wanted = Columns(text, image, None if columns is None else tuple(_names_only(columns)), label, id)
        return _pool(read_files(paths, wanted, size, dtype, label_type, on_error), features)

    @staticmethod
    def hugging(
        dataset: Any,
        *,
        text: str | None = None,
        columns: Sequence[str] | None = None,
        image: str | None = None,
        label: str | None = None,
        size: Size | None = None,
        transform: Transform | None = None,
        dtype: torch.dtype = torch.float32,
        features: Any = None,
        collate: Collate | None = None,
        tokenizer: Any = None,
    ) -> Pool:
        """A pool of a Hugging Face `datasets.Dataset`; see `Pool.table`, `Pool.images` and `Pool.of`.

        Args:
            dataset: one split.
            text: column with the text of a row.
            columns: columns with its numbers. Tokenised rows (`input_ids`) are passed to the model by name, as a dict;
                other numbers are concatenated. If nothing is named, the columns that models of transformers take are
                found, else the image, the text or the numbers. Labels are never inputs.
            image: column with its image.
            label: column with numbers or class names; `label` or `labels` if None.
            size: of images: pixels of a side, or (height, width).
            transform: of images, as in `Pool.images`.
            dtype: of real numbers.
            features: (n, D) numbers of each row, such as embeddings.
            collate: makes a batch of a list of rows, as in `Pool.of`.
            tokenizer: pads tokenised rows, or tokenises texts, as in `Pool.of`.

        Returns:
            A pool that reads the dataset when rows are asked for.

        Raises:
            ArgumentError: the dataset is not one split, or `columns` holds the label.
            SourceError: a column is missing, or no inputs are found.
            RowError: `features` have another number of rows.
        """
        if not is_hugging(dataset):
            raise ArgumentError(f"a datasets.Dataset was expected, {type(dataset).__name__} was found.")
        if isinstance(columns, str):
            raise ArgumentError(f"columns is a list of column names; for one column write columns=[{columns!r}].")
        wanted = Columns(text, image, None if columns is None else tuple(columns), label)
        decoder = Decoder(size, transform)
        source, labels, classes = read_hugging(dataset, wanted, decoder, dtype, collate, tokenizer)
        return Pool(source, labels=labels, classes=classes, features=features)

    @staticmethod
    def frame(
        frame: Any,
        *,
        text: str | None = None,
        columns: Sequence[str] | None = None,
        label: str | None = None,
        id: str | None = None,
        ids: Any = None,
        labels: Any = None,
        classes: Sequence[str] | None = None,
        features: Any = None,
    ) -> Pool:
        """A pool of the rows of a frame: of pandas, polars, pyarrow, or anything with an Arrow C stream.

        Torch models and strategies without a model get features, made as `labelwise label` and `labelwise simulate`
        make them: of numbers, dates, booleans, categories and texts, with missing values; `encoding` says what became
        of each column. A scikit-learn pipeline gets the frame's own rows, in the library they are in. docs/frames.md
        has more.

        Args:
            frame: a data frame, an Arrow table or record batch.
            text: column with the text of a row; models then get texts.
            columns: columns that make a row; all but `label` and `id` if no other is named.
            label: column with numbers or class names, which are numbered in sorted order, those of a categorical column
                in its own.
            id: column with the ids: whole numbers or any hashable values; None takes the index of a pandas frame, else
                the place of a row.
            ids, labels, classes, features: as for `Pool.of`, in place of columns of the frame.

        Returns:
            A pool.

        Raises:
            ArgumentError: the frame lacks a column, or is lazy.
            RowError: an id is missing or occurs twice.

        >>> import pyarrow as pa
        >>> table = pa.table({"name": ["ann", "bob", "cy"], "age": [31, 47, None], "job": ["cook", "cook", "pilot"]})
        >>> pool = Pool.frame(table, id="name")
        >>> pool.encoding
        {'age': 'numbers 31.016 to 46.984, some missing: 10 features', 'job': '2 categories: 2 features'}
        """
        named = None if columns is None else tuple(str(name) for name in _names_only(columns))
        text, label, id = (None if name is None else str(name) for name in (text, label, id))
        wanted = Columns(text, None, named, label, id)
        read = read_columns(frame, wanted, ids, labels, classes)
        return Pool(read.source, ids=read.ids, labels=read.labels, classes=read.classes, features=features)

    def like(self, rows: Any) -> Pool:
        """A pool of new rows of the same kind, numbered from 0, encoded, tokenised and padded as the rows of this one.

        Args:
            rows: a Pool, or anything `Pool.of` takes; of a pool of images, a folder or a list of paths.

        Returns:
            A new pool.

        Raises:
            ArgumentError: rows of the same kind were expected, such as a frame for a pool of a frame.
        """
        if isinstance(rows, Pool):
            if not isinstance(rows._source, FrameSource) or not isinstance(self._source, FrameSource):
                return rows
            made = copy.copy(rows)
            made._source = self._source.like(rows._source.frame)
            return made
        if is_frame(rows) and isinstance(self._source, FrameSource):
            return Pool(self._source.like(native_frame(rows)))
        if isinstance(self._source, FrameSource):
            one = "; one row of a frame as a frame is frame.iloc[[0]] (pandas) or frame[:1]" if is_series(rows) else ""
            raise ArgumentError(
                f"rows as in the pool were expected, a frame with columns {', '.join(self._source.names)}; found "
                f"{type(rows).__name__}{one}."
            )
        if is_frame(rows) and isinstance(self._source, ArraySource | TensorSource):
            numbers = frame_numbers(native_frame(rows))
            if numbers is None:
                raise ArgumentError("the rows of the pool are numbers; the frame has columns of another kind.")
            return Pool.of(numbers)
        source: Any = self._source
        while isinstance(source, ChainSource):
            source = source.parts[0][0]
        if isinstance(source, ImageSource) and isinstance(rows, str | Path | list | tuple):
            by_folder = "auto" if isinstance(rows, str | Path) else "none"
            return _pool(read_images(rows, copy.copy(source.decoder), by_folder, None, "stop"), None)
        if getattr(source, "reading", None) is not None and is_hugging(rows):
            made_of, labels, names = source.reading(rows)
            return Pool(made_of, labels=labels, classes=names)
        column = getattr(self._source, "column", None)
        if column is not None and is_frame(rows):
            return Pool.frame(rows, text=column, ids=range(len(rows)))
        tools = {} if isinstance(rows, Tensor | np.ndarray) else getattr(self._source, "tools", {})
        return Pool.of(rows, ids=range(len(rows)) if is_series(rows) else None, **tools)

    def encoded_by(self, ids: Any) -> Pool:
        """The same rows; the encoder of a frame is learnt from those with `ids` alone.

        Args:
            ids: (n,) of the rows to learn from, such as those of a training split.

        Returns:
            A new pool; this one stays as it is.
        """
        if not isinstance(self._source, FrameSource):
            return self
        made = copy.copy(self)
        made._source = self._source.learning_from(self._positions_of(ids))
        return made

    @property
    def is_sparse(self) -> bool:
        """Whether rows are those of a sparse matrix."""
        return isinstance(self._source, SparseSource)

    @property
    def library(self) -> str:
        """The library of the frame that the rows came in, such as "pandas"; "" for other pools."""
        return getattr(self._source, "library", "")

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns of a frame that make a row; None for other pools."""
        return self._source.names if isinstance(self._source, FrameSource) else None

    @property
    def encoding(self) -> dict[str, str] | None:
        """What was made of each column of a frame, in words; None for other pools."""
        return self._source.encoder.describe() if isinstance(self._source, FrameSource) else None

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        columns = "" if self.columns is None else f" with {many(len(self.columns), 'column')}"
        return f"Pool({len(self)} rows, {self._source.kind}{columns})"

    def ids_of(self, keys: Any) -> Tensor:
        """The ids (k,) of rows, by what the user calls them: their keys, or where there are none the ids themselves.

        Args:
            keys: (k,) names of rows, or ids where rows have no names.

        Returns:
            A tensor (k,) in int64.

        Raises:
            RowError: a name is that of no row.

        >>> pool = Pool.of(np.eye(2), ids=["ant", "bee"])
        >>> pool.keys_of(pool.ids_of(["bee"])).tolist()
        ['bee']
        """
        return as_ids(keys) if self.row_keys is None else self.row_keys.ids_of(keys)

    def keys_of(self, ids: Any) -> np.ndarray:
        """What the user calls the rows `ids` (k,): an array of their keys, or the ids themselves.

        Args:
            ids: (k,) of the rows.

        Returns:
            An array (k,).
        """
        return as_ids(ids).numpy() if self.row_keys is None else self.row_keys.of_ids(ids)

    def keys_in_errors(self) -> AbstractContextManager[None]:
        """Context manager: errors that name a row call it what the user does."""
        return nullcontext() if self.row_keys is None else self.row_keys.in_errors()

    def inputs(self, ids: Any, frame: bool = False) -> Any:
        """Model inputs of these rows, in this order: a tensor, a list of texts, or a Dataset's items, collated.

        Args:
            ids: (n,) of the rows.
            frame: of a pool of a frame, give the user's own rows, in the library they came in; of a sparse matrix,
                sparse rows.

        Returns:
            What the model gets: (n, ...) as a tensor, a list of n texts, or a dictionary of tensors.

        Raises:
            RowError: an id is no row of the pool.
        """
        if frame and isinstance(self._source, FrameSource | SparseSource):
            return self._source.rows(self._positions_of(ids))
        return self._source.inputs(self._positions_of(ids))

    def items(self, ids: Any) -> list[Any] | None:
        """These rows one by one, for `collate`; None if the pool has no function that makes them a batch.

        Args:
            ids: (n,) of the rows.

        Returns:
            A list of n rows, or None.
        """
        return self._source.items(self._positions_of(ids)) if isinstance(self._source, CollatedSource) else None

    def collate(self, items: list[Any]) -> Any:
        """A batch of rows that `items` gave: `collate(items(ids))` is `inputs(ids)`.

        Args:
            items: what `items` gave.

        Returns:
            A batch, as `inputs` returns it.
        """
        assert isinstance(self._source, CollatedSource), "only such a pool has items"
        return self._source.collate(items)

    def batches(self, ids: Any = None, size: int = 256, frame: bool = False) -> Iterator[tuple[Tensor, Any]]:
        """Pairs (ids, inputs) of all rows, or of those with `ids`, `size` rows at a time; `frame` as for `inputs`.

        While one batch is used, a thread reads the next one from a source that allows it, such as image files.

        Args:
            ids: (n,) of the rows; None for all of them.
            size: rows of a batch.
            frame: as for `inputs`.

        Returns:
            An iterator of pairs: (b,) int64 ids, and their inputs.

        Raises:
            ArgumentError: `size` is not a whole number of at least 1.
        """
        size = check_whole("size, the rows of a batch,", size, 1)
        parts = [some for some in (self.ids if ids is None else as_ids(ids)).split(size) if len(some)]
        if len(parts) > 1 and getattr(self._source, "reads_ahead", False):
            yield from zip(parts, ahead(lambda some: self.inputs(some, frame), parts))
            return
        for some in parts:
            yield some, self.inputs(some, frame)

    def raw(self, ids: Any) -> Tensor:
        """Numbers (n, D) of these rows: their `features` if there are any, else their inputs, flattened.

        Of texts, their words and pairs of words by TF-IDF in up to 200 directions, which are found from the texts of
        the pool; of sparse rows of more than 1,000 columns, the 200 directions in which they differ most.

        Args:
            ids: (n,) of the rows.

        Returns:
            A tensor (n, D) in float32 or float64.

        Raises:
            NeedError: the rows are not numbers, and the pool has no `features`.
        """
        encoded = self._to_encode(ids) if self.features is None else None
        if self.features is not None:
            rows: Any = self.features[self._feature_rows(ids)]
        elif encoded is not None:
            rows = torch.from_numpy(self._fitted_encoder().encode(encoded))
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
        """The name of a row for people: its file, its text, or "row 17".

        Args:
            id: of the row.

        Returns:
            A short text.
        """
        return self._source.name(int(self._positions_of([id])[0])) or f"row {self.keys_of([id])[0]}"

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
        """A pool of these rows, in this order, with the same ids. Only labels are copied, nothing is read.

        Args:
            ids: (n,) of the rows.

        Returns:
            A new pool.
        """
        rows = torch.from_numpy(self._find(ids))
        labels = None if self.labels is None else self.labels[rows]
        made = Pool(
            self._source,
            ids=self.ids[rows] if self.row_keys is None else self.row_keys.subset(rows.numpy()),
            positions=self._positions_of(ids),
            labels=labels,
            classes=self.classes,
            files=self._files,
        )
        return made._share_features(self)

    def extended(self, rows: Any, *, ids: Any = None, labels: Any = None, features: Any = None) -> Pool:
        """A pool of these rows and of new ones; this pool stays as it is.

        Args:
            rows: (m, ...) of the same kind: an array, a tensor, a list of texts, a frame, or a Pool.
            ids: (m,) new ids; None takes the index of a pandas frame, else numbers them on from the largest one. Where
                rows have names, names.
            labels: (m,) where this pool has labels.
            features: (m, D) where this pool has features.

        Returns:
            A new pool.

        Raises:
            ArgumentError, RowError: the rows are of another kind, or an id is taken.
        """
        from labelwise.pool.extend import extended

        return extended(self, rows, ids=ids, labels=labels, features=features)

    def to_read(self, ids: Any, features: bool) -> Pool:
        """A pool of these rows, in this order, to send to another process: without labels, and small when pickled.

        Rows in files that the process can open are sent by the name of the file.

        Args:
            ids: (n,) of the rows.
            features: whether the process needs their features.

        Returns:
            A pool that can be pickled.
        """
        at = self._positions_of(ids)
        part = getattr(self._files or self._source, "part", None)
        source, positions = (self._source, at) if part is None else part(at)
        made = Pool(source, ids=self.ids[torch.from_numpy(self._find(ids))], positions=positions)
        if features and self.features is None and self._to_encode(self.ids[:1]) is not None:
            made._encoder = self._fitted_encoder()  # fitted to all rows
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

    def _to_encode(self, ids: Any) -> Any:
        """These rows as texts or sparse, where an encoder makes numbers of them; None if they are something else."""
        if isinstance(self._source, SparseSource):
            return self._source.rows(self._positions_of(ids)) if self._source.is_wide else None
        as_texts = getattr(self._source, "as_texts", None)
        if callable(as_texts):
            return as_texts(self._positions_of(ids))
        return self.inputs(ids) if self._source.kind == "texts" else None

    def _fitted_encoder(self) -> TextEncoder | SparseEncoder:
        """The encoder of the pool's texts or sparse rows, fitted to them in the order of their ids."""
        if self._encoder is None:
            ids = self.ids.sort().values
            rows = self._to_encode(ids[:: max(1, -(-len(ids) // READ))])
            self._encoder = fit_sparse(rows) if isinstance(self._source, SparseSource) else fit_texts(rows or [])
        return self._encoder

    def _feature_rows(self, ids: Any) -> Tensor:
        """Positions of these ids in `features`."""
        found = self._find(ids)
        return torch.from_numpy(found if self._feature_positions is None else self._feature_positions[found])

    def _positions_of(self, ids: Any) -> np.ndarray:
        """Positions of these ids in the source."""
        found = self._find(ids)
        return found if self._positions is None else self._positions[found]


def _names_only(columns: Sequence[str]) -> Sequence[str]:
    if isinstance(columns, str):
        raise ArgumentError(f"columns is a list of column names; for one column write columns=[{columns!r}].")
    return columns


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
