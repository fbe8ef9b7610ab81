"""Frames and Series: tables and columns in memory, of pandas, polars, Arrow and what narwhals reads.

None of these libraries is imported here, and narwhals only once a frame is met: they are known by their interface.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from labelwise.errors import ArgumentError, ExtraError, LabelError, extra
from labelwise.io.tables import Table, Values

_LIBRARIES = ("pandas", "polars", "pyarrow")
_DAY = 86400.0
_EPOCH = datetime.date(1970, 1, 1).toordinal()


def is_frame(value: Any) -> bool:
    """Whether a value is a table with named columns: a data frame, an Arrow table or record batch, or a stream."""
    if isinstance(value, np.ndarray | list | tuple | str | Mapping):
        return False
    if _is_lazy(value):  # whose columns cost a look at all it would read
        return True
    has_columns = hasattr(value, "columns") or hasattr(value, "column_names") or not hasattr(value, "__len__")
    return has_columns and (
        any(hasattr(value, name) for name in ("__dataframe__", "__arrow_c_stream__"))
        or type(value).__module__.partition(".")[0] in _LIBRARIES
    )


def native_frame(value: Any) -> Any:
    """The frame itself if it is of a library that narwhals reads, else an Arrow table of its content.

    Names of columns that are no texts, such as the numbers pandas gives, become texts.

    Raises:
        ArgumentError: It is lazy, or two of its columns have one name.
        ExtraError: It needs pyarrow, which is not installed.
    """
    nw = _narwhals()
    value = _whole_batch(value)
    if not nw.dependencies.is_into_dataframe(value):
        value = _arrow_table(value)
    names = [str(name) for name in (value.column_names if hasattr(value, "column_names") else value.columns)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"two columns of the frame are called {twice!r}; give each its own name.")
    if library_of(value) == "pandas" and list(value.columns) != names:
        value = value.set_axis(names, axis=1)  # without a copy of the rows
    return value


def column_names(frame: Any) -> list[str]:
    """The names of the columns of a native frame."""
    return list(_wrapped(frame).columns)


def count_rows(frame: Any) -> int:
    """The number of rows of a native frame."""
    return len(_wrapped(frame))


def select_columns(frame: Any, names: Sequence[str]) -> Any:
    """The frame with these columns alone, of the same library."""
    return _wrapped(frame).select(*names).to_native()


def take_rows(frame: Any, positions: np.ndarray) -> Any:
    """The rows at these positions as a frame of the same library; a pandas frame keeps its index."""
    return _wrapped(frame)[positions.tolist()].to_native()


def join_frames(frames: Sequence[Any]) -> Any:
    """The rows of the first frame, then those of the second, and so on; all have the same columns.

    Raises:
        ArgumentError: The frames are of different libraries, or a column has another type in one of them.
    """
    libraries = [library_of(frame) for frame in frames]
    if len(set(libraries)) > 1:
        raise ArgumentError(f"frames of one library were expected, found {' and '.join(dict.fromkeys(libraries))}.")
    try:
        return _narwhals().concat([_wrapped(frame) for frame in frames], how="vertical").to_native()
    except Exception as error:  # of many kinds, by every library its own
        raise ArgumentError(f"the frames cannot be joined: {error}. Give columns the same types.") from error


def frame_column(frame: Any, name: str) -> Any:
    """One column as a Series of the same library."""
    return _wrapped(frame)[name].to_native()


def library_of(frame: Any) -> str:
    """The name of the library a frame or Series comes from: "pandas", "polars" or "pyarrow"."""
    name = type(frame).__module__.partition(".")[0]
    return name if name in _LIBRARIES else "pyarrow"


def categorical_columns(frame: Any) -> dict[str, list[str]]:
    """The columns that the frame itself calls categorical, with their categories as texts, in their order."""
    nw = _narwhals()
    opened = _wrapped(frame)
    kinds = (nw.Categorical, nw.Enum)
    return {
        name: [_text(value) for value in opened[name].cat.get_categories().to_list()]
        for name, kind in opened.schema.items()
        if kind in kinds
    }


def read_frame(frame: Any, names: Sequence[str]) -> Table:
    """These columns of a frame as a table of texts and numbers.

    Dates, times of day and durations become days; booleans and categories become texts; a missing value is "" or NaN.
    Columns of lists, bytes and the like are named in `unreadable`.
    """
    opened = _wrapped(frame)
    columns: dict[str, Values] = {}
    unreadable: dict[str, str] = {}
    for name in names:
        values = _values(opened[name])
        if values is None:
            unreadable[name] = str(opened[name].dtype)
        else:
            columns[name] = values
    rows = len(opened)
    return Table(np.arange(rows), columns, [f"row {row}" for row in range(rows)], (), unreadable)


def make_frame(library: str, id_name: str, ids: np.ndarray, columns: Mapping[str, Any]) -> Any:
    """A frame of some columns, and of ids: the index in pandas, else the first column.

    Ids that are tuples become the levels of an index in pandas. Polars and Arrow get texts for ids they do not know.

    Raises:
        ArgumentError: The library is none of pandas, polars and pyarrow.
        ExtraError: The library is not installed.
    """
    if library not in _LIBRARIES:
        raise ArgumentError(f'a frame of "pandas", "polars" or "pyarrow" can be made, not {library!r}.')
    values = ids.tolist()
    try:
        if library == "pandas":
            import pandas

            levels = len(values) > 0 and all(isinstance(value, tuple) for value in values)
            index = pandas.MultiIndex.from_tuples(values) if levels else pandas.Index(values, name=id_name)
            return pandas.DataFrame(dict(columns), index=index)
        if (
            ids.dtype == object
            and len({type(value) for value in values} & {str, datetime.date, datetime.datetime}) != 1
        ):
            values = [str(value) for value in values]
        if library == "polars":
            import polars

            return polars.DataFrame({id_name: values, **columns})
        import pyarrow

        return pyarrow.table({id_name: values, **columns})
    except ImportError:
        raise ExtraError(f"this needs the package {library!r}, which is not installed: pip install {library}") from None


def frame_numbers(frame: Any) -> np.ndarray | None:
    """A frame as an array (n, columns) of numbers with NaN where one is missing; None where it holds anything else."""
    array = _wrapped(frame).to_numpy()
    if array.dtype.kind in "fiub":
        return array
    table = read_frame(frame, column_names(frame))
    columns = [values for values in table.columns.values() if isinstance(values, np.ndarray)]
    return np.stack(columns, axis=1) if len(columns) == len(column_names(frame)) else None


def plain_values(values: Any) -> Any:
    """A Series or an Arrow array as a numpy array of numbers, or else as a list; anything else as it is.

    >>> plain_values([1, "a"])
    [1, 'a']
    """
    if isinstance(values, np.ndarray | list | tuple | str | bytes):
        return values
    if callable(getattr(values, "to_pylist", None)):  # pyarrow
        return values.to_pylist()
    if callable(getattr(values, "to_numpy", None)):  # Series and indexes of pandas and polars
        array = values.to_numpy()
        if array.dtype.kind in "iufb":
            return array
    for name in ("tolist", "to_list"):
        method = getattr(values, name, None)
        if callable(method) and type(values).__module__.partition(".")[0] in ("pandas", "polars"):
            return method()
    return values


def is_missing_value(value: Any) -> bool:
    """Whether a value of a column stands for none: None, NaN, or what pandas has for them."""
    return (
        value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)
    )


def index_of(values: Any) -> Any:
    """The index of a pandas Series or frame; None for anything else, and where it counts the rows from 0."""
    if type(values).__module__.partition(".")[0] != "pandas" or not hasattr(values, "iloc"):
        return None
    index = values.index
    return None if type(index).__name__ == "RangeIndex" and index.start == 0 and index.step == 1 else index


def is_series(values: Any) -> bool:
    """Whether a value is one column of a frame: a Series of pandas or polars, or an Arrow array."""
    library, name = type(values).__module__.partition(".")[0], type(values).__name__
    return (library in ("pandas", "polars") and name == "Series") or (
        library == "pyarrow" and callable(getattr(values, "to_pylist", None)) and not hasattr(values, "column_names")
    )


def check_order(labels: Any, ids: Any) -> None:
    """Raise LabelError where the index of a Series of labels holds the ids of its rows, but in another order.

    Args:
        labels: labels of rows; only a pandas Series has an index.
        ids: the ids of the rows, or the frame or Series that they come in.
    """
    index = index_of(labels)
    if index is None:
        return
    wanted: Any = index_of(ids)  # two columns of one frame have one index
    if wanted is None:
        wanted = range(len(ids)) if hasattr(ids, "iloc") or hasattr(ids, "column_names") else plain_values(ids)
    if not hasattr(wanted, "__len__") or len(wanted) != len(index):
        return
    wanted = wanted.tolist() if hasattr(wanted, "tolist") else list(wanted)
    index = index.tolist()
    if wanted != index and set(wanted) == set(index):
        raise LabelError(
            "the index of the labels has the ids in another order than the rows. Pass labels.loc[ids], or "
            "labels.to_numpy() if the labels are in the order of the rows"
        )


def _narwhals() -> Any:
    from narwhals.stable import v2

    return v2


def _wrapped(frame: Any) -> Any:
    return _narwhals().from_native(frame, eager_only=True)


def _is_lazy(value: Any) -> bool:
    return hasattr(value, "collect") and hasattr(value, "explain")


def _whole_batch(value: Any) -> Any:
    """A record batch as a table; LazyFrames are refused."""
    if _is_lazy(value):
        raise ArgumentError("a lazy frame has no rows yet; pass frame.collect().")
    if type(value).__name__ == "RecordBatch" and library_of(value) == "pyarrow":
        import pyarrow

        return pyarrow.Table.from_batches([value])
    return value


def _arrow_table(value: Any) -> Any:
    try:
        import pyarrow
        import pyarrow.interchange
    except ImportError:
        raise extra("pyarrow", "bench") from None
    try:
        if hasattr(value, "__arrow_c_stream__"):
            return pyarrow.table(value)
        return pyarrow.interchange.from_dataframe(value)
    except (pyarrow.ArrowException, TypeError, ValueError, NotImplementedError) as error:
        raise ArgumentError(f"the {type(value).__name__} cannot be read as an Arrow table: {error}") from error


def _values(series: Any) -> Values | None:
    """A column as float64 numbers or as texts; None where it holds neither."""
    nw = _narwhals()
    kind = series.dtype
    if kind.is_numeric() or kind == nw.Decimal:
        return np.array(series.cast(nw.Float64).to_numpy(), np.float64)
    if kind in (nw.Date, nw.Datetime):
        return np.array(series.dt.timestamp("us").cast(nw.Float64).to_numpy(), np.float64) / (_DAY * 1e6)
    values = [None if is_missing_value(value) else value for value in series.to_list()]
    present = [value for value in values if value is not None]
    if kind in (nw.Categorical, nw.Enum):
        return ["" if value is None else _text(value) for value in values]
    if present and all(isinstance(value, datetime.date | datetime.time | datetime.timedelta) for value in present):
        return np.array([np.nan if value is None else _days(value) for value in values])
    numeric = int | float | decimal.Decimal | np.number
    if present and all(isinstance(value, numeric) and not isinstance(value, bool) for value in present):
        return np.array([np.nan if value is None else float(value) for value in values])
    if any(not _is_text_like(value) for value in present):
        return None
    return ["" if value is None else _text(value) for value in values]


def _is_text_like(value: Any) -> bool:
    """Whether the text of a value tells it from others: that of a list or of bytes is no category."""
    return not isinstance(value, bytes | tuple | frozenset) and type(value).__hash__ is not None


def _text(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    return str(value)


def _days(value: Any) -> float:
    """A date as days since 1970, a time of day or a duration as a part of days or as days."""
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return float(aware.timestamp() / _DAY)
    if isinstance(value, datetime.date):
        return float(value.toordinal() - _EPOCH)
    if isinstance(value, datetime.time):
        return (value.hour * 3600 + value.minute * 60 + value.second + value.microsecond / 1e6) / _DAY
    return float(value / datetime.timedelta(days=1))
