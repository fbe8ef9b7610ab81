"""The user's own texts, images and embeddings with known labels, as data for a comparison.

Texts and images get the features of a labelling project, from the same encoders, computed once into a folder.
Embeddings are taken as they are. The scale is learnt from the rows to choose from alone.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from labelwise.bench.data.own_table import OwnData, Task, answers_of, groups_of, name_of
from labelwise.errors import ArgumentError, LabelwiseError, SourceError
from labelwise.io.encode_table import block_scale, finite
from labelwise.io.files import DAMAGED
from labelwise.io.tables import Values, check_columns, column_names, is_parquet, is_table, read_table, texts
from labelwise.pool.sources.table import image_columns
from labelwise.project.data import features
from labelwise.project.data.embeddings import encoder_for
from labelwise.project.data.features import OnProgress
from labelwise.project.data.source import Data, fingerprint, open_data
from labelwise.project.settings import Kind, Settings

ARRAYS = (".npy", ".npz")


@dataclass(frozen=True)
class OwnRows(OwnData):
    """Rows with features: texts, images or embeddings.

    Attributes:
        what: "text", "image" or "vector".
        encoder: the name of what made the features; "" for embeddings.
        x_ND: the features, one block after the other.
        blocks: the widths of blocks that are scaled to the same size.
    """

    what: Literal["text", "image", "vector"]
    encoder: str
    x_ND: np.ndarray
    blocks: tuple[int, ...]

    @property
    def inputs(self) -> str:
        made = f" by {self.encoder}" if self.encoder else " of the file"
        return f"{self.what}s, {self.x_ND.shape[1]} features each{made}"

    @property
    def encoding(self) -> dict[str, Any]:
        return {"features": self.what, "encoder": self.encoder}

    def features(self, rows: np.ndarray) -> np.ndarray:
        mean_D, scale_D = block_scale(self.x_ND, rows, self.blocks)
        return np.asarray((self.x_ND - mean_D) / scale_D, np.float32)


def kind_of(path: Path, text: str | None, columns: Sequence[str] | None) -> Literal["text", "image", "vector", "table"]:
    """What a row of the data at `path` is, from the data and the options."""
    if text is not None and columns:
        raise ArgumentError("a row is either a text or columns of a table: give --text or --features, not both")
    if not path.exists():
        raise SourceError(
            f"{path} does not exist. A table, a folder with a folder of images for each class, or a .npy or .npz file "
            "of embeddings was expected"
        )
    if path.is_dir() or path.suffix.lower() in ARRAYS:
        if text is not None or columns:
            raise ArgumentError(f"{path}: --text and --features are for tables")
        return "image" if path.is_dir() else "vector"
    if text is not None:
        return "text"
    if columns is None and is_table(path) and is_parquet(path):
        if len(image_columns(path)) == 1:
            return "image"
        if _list_columns(path):
            return "vector"
    return "table"


def read_rows(
    path: Path,
    target: str | None,
    what: Literal["text", "image"],
    *,
    text: str | None = None,
    task: Task | None = None,
    group: str | None = None,
    encoder: str = "auto",
    cache: Path,
    on_progress: OnProgress,
) -> OwnRows:
    """Read texts or images with answers, and compute their features.

    Args:
        path: a table, or a folder with a folder of images for each class.
        target: the column that holds the answers; None for a folder.
        what: what a row is.
        text: the column that holds the texts.
        task: by what the target looks like if None.
        group: a column whose values keep rows together.
        encoder: as for `labelwise label`.
        cache: the folder for the features; an interrupted computation continues.
        on_progress: called with a text, the rows done and the rows in total.
    """
    kind: Kind = what
    folder = path.is_dir()
    if folder and (target is not None or group is not None):
        raise ArgumentError(f"{path} is a folder: the folder of an image is its class; leave out --target and --group")
    if folder and task == "regress":
        raise ArgumentError(f"{path} is a folder: the folder of an image is its class, and no number to predict")
    image = None if folder or what == "text" else image_columns(path)[0]
    if not folder:
        wanted = [_needed(path, target), *([text] if text else []), *([group] if group else [])]
        check_columns(path, wanted, column_names(path))
    settings = Settings(path.name, kind, os.path.abspath(path), text=text, image=image)
    data = open_data(settings, Path("/"))
    notes = _faults(data.faults)
    values, groups = _of_folders(path, data, notes) if folder else _of_columns(path, data, _needed(path, target), group)
    made, rows = encoder_for(encoder, kind, Path.cwd(), data)
    info = features.compute(cache, rows, made, fingerprint(path, data), on_progress)
    notes += _faults(tuple(why for _, why in info.broken))
    features.check(cache)  # what an earlier run computed may have been changed since
    x_ND = np.load(cache / "features.npy", mmap_mode="r", allow_pickle=False)
    keep = _answered(data.ids, values, {row for row, _ in info.broken}, target or "", notes)
    task = "classify" if folder else task
    task, answers, classes = answers_of(path, _taken(values, keep), target or "its folder", task, notes)
    return OwnRows(
        name=name_of(path),
        task=task,
        target=target or "its folder",
        rows=data.ids[keep],
        answers=answers,
        classes=classes,
        groups=None if groups is None else groups_of(path, _taken(groups, keep), str(group)),
        notes=tuple(notes),
        what=what,
        encoder=info.encoder,
        x_ND=x_ND[keep],
        blocks=tuple(info.blocks),
    )


def read_vectors(path: Path, target: str | None, *, task: Task | None = None, group: str | None = None) -> OwnRows:
    """Read embeddings with answers.

    Args:
        path: a .npy file (N, D); a .npz file with an array of embeddings and one of answers; or a Parquet file with a
            column of lists of numbers and one of answers.
        target: the file of the answers (.npy), the name of their array (.npz), or their column.
        task: by what the target looks like if None.
        group: a column whose values keep rows together (Parquet).
    """
    name = _needed(path, target)
    groups: Values | None = None
    if path.suffix.lower() in ARRAYS and group is not None:
        raise ArgumentError("--group names a column; put the embeddings into a Parquet file with that column")
    if path.suffix.lower() == ".npy":
        x_ND, values = _load(path), _as_values(path, _load(Path(name)))
    elif path.suffix.lower() == ".npz":
        x_ND, values = _of_archive(path, name)
    else:
        lists = _list_columns(path)
        if len(lists) != 1:
            raise SourceError(f"{path}: expected one column of lists of numbers, found {', '.join(lists)}")
        check_columns(path, [name, *([group] if group else [])], column_names(path))
        from labelwise.project.data.embeddings import parquet_vectors

        _, x_ND = parquet_vectors(path)
        table = read_table(path, [name, *([group] if group else [])])
        values, groups = table.columns[name], table.columns[group] if group else None
    if x_ND.ndim != 2 or not x_ND.shape[1] or x_ND.dtype.kind not in "fiu":
        raise SourceError(f"{path}: expected embeddings of shape (rows, width), found {x_ND.dtype} {x_ND.shape}")
    if len(values) != len(x_ND):
        raise SourceError(
            f"{path}: {len(x_ND)} embeddings, but {len(values)} answers in {name}; one for each is needed"
        )
    bad = np.flatnonzero(~np.isfinite(np.asarray(x_ND, np.float64)).all(1))
    if len(bad):
        raise SourceError(f"{path}: row {bad[0]} holds a value that is no finite number ({len(bad)} such rows)")
    notes: list[str] = []
    keep = _answered(np.arange(len(x_ND)), values, set(), name, notes)
    task, answers, classes = answers_of(path, _taken(values, keep), name, task, notes)
    return OwnRows(
        name=name_of(path),
        task=task,
        target=Path(name).name,
        rows=np.arange(len(x_ND))[keep],
        answers=answers,
        classes=classes,
        groups=None if groups is None else groups_of(path, _taken(groups, keep), str(group)),
        notes=tuple(notes),
        what="vector",
        encoder="",
        x_ND=np.asarray(x_ND, np.float32)[keep],
        blocks=(int(x_ND.shape[1]),),
    )


def _needed(path: Path, target: str | None) -> str:
    if target is None:
        where = "the .npy file of the answers" if path.suffix.lower() == ".npy" else "the answers"
        raise ArgumentError(f"{path}: --target is missing; name {where}")
    return target


def _of_folders(path: Path, data: Data, notes: list[str]) -> tuple[Values, None]:
    """The class of each image: the first folder of its path."""
    classes = [ref.partition("/")[0] if "/" in ref else "" for ref in data.refs]
    if len({name for name in classes if name}) < 2:
        raise SourceError(f"{path}: expected a folder of images for each of two classes or more, such as cat/ and dog/")
    loose = classes.count("")
    if loose:
        notes.append(f"{loose} images in no class folder are left out")
    return classes, None


def _of_columns(path: Path, data: Data, target: str, group: str | None) -> tuple[Values, Values | None]:
    """The answers and the groups of the rows of `data`, of whose file some rows may be missing."""
    table = read_table(path, [target, *([group] if group else [])])
    place = {row: at for at, row in enumerate(table.ids.tolist())}
    at = np.array([place[row] for row in data.ids.tolist()])
    return _taken(table.columns[target], at), _taken(table.columns[group], at) if group else None


def _answered(ids: np.ndarray, values: Values, broken: set[int], target: str, notes: list[str]) -> np.ndarray:
    """The positions of rows with an answer and features."""
    present = [text != "" for text in texts(finite(values))]
    missing = present.count(False)
    if missing and target:
        notes.append(f"{missing} rows without a value in {target!r} are left out")
    keep = [at for at, (row, known) in enumerate(zip(ids.tolist(), present)) if known and row not in broken]
    if not keep:
        raise SourceError(f"no row has an answer in {target!r}; name the column that holds the answers")
    return np.array(keep)


def _faults(faults: Sequence[str]) -> list[str]:
    return [f"{len(faults)} rows cannot be read and are left out; the first: {faults[0]}"] if faults else []


def _taken(values: Values, rows: np.ndarray) -> Values:
    return values[rows] if isinstance(values, np.ndarray) else [values[at] for at in rows.tolist()]


def _load(path: Path) -> np.ndarray:
    if not path.is_file():
        raise SourceError(f"{path} does not exist. A .npy file was expected")
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except DAMAGED as error:
        raise SourceError(f"{path} cannot be read as a .npy file ({error})") from error


def _of_archive(path: Path, target: str) -> tuple[np.ndarray, Values]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            names = archive.files
            others = [name for name in names if name != target]
            if target not in names:
                raise ArgumentError(f"{path}: there is no array {target!r}; its arrays are {', '.join(names)}")
            wide = ["embedding"] if "embedding" in others else [name for name in others if archive[name].ndim == 2]
            if len(wide) != 1:
                raise SourceError(
                    f"{path}: expected one array of embeddings (rows, width) next to {target!r}, or one that is named "
                    f"embedding; its arrays are {', '.join(names)}"
                )
            return np.asarray(archive[wide[0]]), _as_values(path, archive[target])
    except LabelwiseError:
        raise
    except DAMAGED as error:
        raise SourceError(f"{path} cannot be read as a .npz file ({error})") from error


def _as_values(path: Path, answers: np.ndarray) -> Values:
    """An array of answers as the values of a column."""
    if answers.ndim == 2 and answers.shape[1] == 1:
        answers = answers[:, 0]
    if answers.ndim != 1 or answers.dtype.kind not in "fiubU":
        raise SourceError(f"{path}: expected one number or text for each row, found {answers.dtype} {answers.shape}")
    return np.asarray(answers, np.float64) if answers.dtype.kind in "fiub" else answers.tolist()


def _list_columns(path: Path) -> list[str]:
    """Columns of a Parquet file that hold lists of numbers."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def holds_numbers(kind: Any) -> bool:
        lists = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        return bool(lists and (pa.types.is_floating(kind.value_type) or pa.types.is_integer(kind.value_type)))

    return [field.name for field in pq.read_schema(path) if holds_numbers(field.type)]
