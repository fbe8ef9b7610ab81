"""One Parquet file: a text column, numeric columns, or an image column of {bytes, path} structs (Hugging Face's)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import SourceError, extra
from labelwise.pool.source import Faults
from labelwise.pool.sources.table import Part, Wanted


def read_parquet(path: Path, wanted: Wanted, faults: Faults) -> Part:
    """The rows of a Parquet file; only the wanted columns are read."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise extra("pyarrow", "bench") from None
    try:
        file = pq.ParquetFile(path)
        schema = file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: not a Parquet file that can be read ({error}).") from error
    wanted = _completed(path, schema, wanted)
    try:
        table = file.read(columns=wanted.names())
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{path}: the file is damaged ({error}).") from error
    return _part(path, table, wanted, _class_names(schema, wanted.label), faults)


def image_columns(path: Path) -> list[str]:
    """The names of the columns of a Parquet file that hold encoded images."""
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise extra("pyarrow", "bench") from None
    return [field.name for field in pq.read_schema(path) if _is_image(field.type)]


def _completed(path: Path, schema: Any, wanted: Wanted) -> Wanted:
    """Check the columns named; where none makes the row, take the image column, else all numeric ones."""
    for name in wanted.names():
        if name not in schema.names:
            raise SourceError(f"{path}: there is no column {name!r}; its columns are {', '.join(schema.names)}.")
    if wanted.text is None and wanted.image is None and wanted.columns is None:
        images = [field.name for field in schema if _is_image(field.type)]
        rest = tuple(name for name in schema.names if name not in (wanted.label, wanted.id))
        if len(images) == 1:
            wanted = Wanted(image=images[0], label=wanted.label, id=wanted.id)
        else:
            wanted = Wanted(columns=rest, label=wanted.label, id=wanted.id)
    if wanted.image is not None and not _is_image(schema.field(wanted.image).type):
        kind = schema.field(wanted.image).type
        raise SourceError(f"{path}: column {wanted.image!r} holds {kind}; a struct {{bytes, path}} was expected.")
    if wanted.columns is not None and not wanted.columns:
        raise SourceError(f"{path}: no column is left to make a row of; its columns are {', '.join(schema.names)}.")
    return wanted


def _part(path: Path, table: Any, wanted: Wanted, classes: tuple[str, ...] | None, faults: Faults) -> Part:
    values, bad = values_of(path, table, wanted)
    labels = None if wanted.label is None else _labels(path, table[wanted.label], wanted.label)
    ids = None if wanted.id is None else _ids(path, table[wanted.id], wanted.id)
    for row, label in enumerate(labels or ()):
        if label is None or (isinstance(label, str) and not label.strip()):
            bad.setdefault(row, f"no label in column {wanted.label!r}")
    for row in sorted(bad):
        faults.add(f"{path} row {row}: {bad[row]}")
    kept = np.array([row for row in range(table.num_rows) if row not in bad], np.int64)
    where = [f"{path.name} row {row}" for row in kept.tolist()]
    names = None
    if wanted.image is not None:
        names = names_of(path, table, wanted.image, kept, kept)
    kept_values = values[kept] if isinstance(values, np.ndarray) else [values[row] for row in kept.tolist()]
    return Part(
        rows=table.num_rows,
        numbers=kept,
        values=kept_values,
        names=names,
        where=where,
        labels=None if labels is None else [labels[row] for row in kept.tolist()],
        classes=classes,
        ids=None if ids is None else [ids[row] for row in kept.tolist()],
        wanted=wanted,
    )


def names_of(path: Path, table: Any, column: str, at: np.ndarray, rows: np.ndarray) -> list[str]:
    """The names of the images at these places of a table, which are those `rows` of the file."""
    paths = _member(table[column], "path")
    return [paths[place] or f"{path.name} row {row}" for place, row in zip(at.tolist(), rows.tolist())]


def values_of(path: Path, table: Any, wanted: Wanted) -> tuple[Any, dict[int, str]]:
    """What makes each row, and what is wrong with those that cannot be used."""
    if wanted.text is not None:
        texts = _strings(path, table[wanted.text], wanted.text)
        return texts, {
            row: f"no text in column {wanted.text!r}" for row, text in enumerate(texts) if not (text or "").strip()
        }
    if wanted.image is not None:
        images = _member(table[wanted.image], "bytes")
        return images, {
            row: f"no image bytes in column {wanted.image!r}" for row, image in enumerate(images) if not image
        }
    columns = [_numbers(path, table[name], name) for name in wanted.columns or ()]
    bad: dict[int, str] = {}
    for name, column in zip(wanted.columns or (), columns):
        for row in np.flatnonzero(~np.isfinite(column)).tolist():
            found = "is empty" if np.isnan(column[row]) else f"holds {column[row]}"
            bad.setdefault(row, f"column {name!r} {found}; a number was expected")
    return np.stack(columns, axis=1), bad


def _numbers(path: Path, column: Any, name: str) -> np.ndarray:
    """A numeric column in float64, NaN where it is empty."""
    import pyarrow as pa

    kind = column.type
    if not (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_decimal(kind)
    ):
        raise SourceError(
            f"{path}: column {name!r} holds {kind}; numbers were expected. Name the numeric columns with columns=, "
            "or a text column with text=."
        )
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    return np.asarray(column.cast(pa.float64(), safe=False).to_numpy(), np.float64)


def _strings(path: Path, column: Any, name: str) -> list[str | None]:
    import pyarrow as pa

    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        raise SourceError(f"{path}: column {name!r} holds {column.type}; texts were expected.")
    return column.to_pylist()


def _labels(path: Path, column: Any, name: str) -> list[Any]:
    """Labels as strings, or as numbers with None where there is none."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _strings(path, column, name)
    if pa.types.is_integer(kind):
        return column.to_pylist()
    values = _numbers(path, column, name).tolist()
    return [value if np.isfinite(value) else None for value in values]


def _ids(path: Path, column: Any, name: str) -> list[int]:
    import pyarrow as pa

    if not pa.types.is_integer(column.type) or column.null_count:
        raise SourceError(
            f"{path}: column {name!r} holds {column.type} with {column.null_count} empty; whole numbers were expected "
            "as ids, one for each row."
        )
    return column.to_pylist()


def _is_image(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_struct(kind) and "bytes" in {kind.field(i).name for i in range(kind.num_fields)}


def _member(column: Any, name: str) -> list[Any]:
    """One field of a column of structs; None where the struct or the field is empty."""
    import pyarrow.compute as pc

    if column.type.get_field_index(name) < 0:
        return [None] * len(column)
    return pc.struct_field(column, name).to_pylist()


def _class_names(schema: Any, label: str | None) -> tuple[str, ...] | None:
    """The names that Hugging Face's metadata gives to the numbers of a label column."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return tuple(features[label]["names"])
    except (KeyError, TypeError, ValueError):
        return None
