"""The one reader of tables."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from labelwise.errors import SourceError
from labelwise.io.tables import Table, column_names, is_table, numbers, read_table, texts


def test_a_column_of_csv_numbers_with_gaps_is_numeric(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b\n1,x\n?,y\n2.5,z\n")
    table = read_table(tmp_path / "t.csv")
    found = numbers(table.columns["a"])
    assert found is not None
    assert np.isnan(found[1])
    assert numbers(table.columns["b"]) is None


@pytest.mark.parametrize("name", ["t.csv", "t.TSV", "t.csv.gz", "t.tsv.gz"])
def test_rows_keep_their_numbers_and_bad_lines_are_named(tmp_path: Path, name: str):
    content = '\ufeffa,b\n1,x\n2\n\n3,"two\nlines"\n4,z\n5,\udcff\n'.replace(
        ",", "\t" if "tsv" in name.lower() else ","
    )
    data = content.encode(errors="surrogateescape")
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert is_table(tmp_path / name)
    assert column_names(tmp_path / name) == ["a", "b"]
    table = read_table(tmp_path / name, ["b"])
    assert table.columns == {"b": ["x", "two\nlines", "z"]}
    assert table.ids.tolist() == [0, 2, 3]
    assert table.places == [f"{name} line {line}" for line in (2, 5, 7)]
    assert table.faults == (
        f"{name} line 3: expected 2 fields, found 1",
        f"{name} line 8: byte 0xff is not UTF-8; save the table as UTF-8",
    )


def test_parquet_columns_are_texts_or_numbers_and_others_are_listed(tmp_path: Path):
    columns = {
        "i": pa.array([1, None]),
        "b": pa.array([True, None]),
        "c": pa.array(["x", None]).dictionary_encode(),
        "d": pa.array([0, 1], pa.date32()),
        "l": pa.array([[1], [2]]),
        "raw": pa.array([b"1", b"2"]),
    }
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    table = read_table(tmp_path / "t.parquet")
    assert np.array_equal(table.columns.pop("i"), [1, np.nan], equal_nan=True)
    assert table.columns == {"b": ["true", ""], "c": ["x", ""], "d": ["1970-01-01", "1970-01-02"]}
    assert set(table.unreadable) == {"l", "raw"}
    with pytest.raises(SourceError, match="column 'raw' holds binary; texts or numbers were expected"):
        read_table(tmp_path / "t.parquet", ["raw"])


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.csv", "", "the file is empty"),
        ("a.csv", "x,y\n", "no row that can be used"),
        ("a.csv", "x,x\n1,2\n", "2 columns are called 'x'"),
        ("a.csv", "x;y\n1;2,5\n", "no row that can be used. The first: .*separated by ';'; commas were expected"),
        ("a.tsv", "x,y\n1\t2\n", "separated by ','; tabs were expected"),
        ("a.csv", 'x,y\n"1,2\n', "The first: a.csv line 2: unexpected end of data"),
        ("a.csv.gz", "x,y\n1,2\n", "the file is damaged"),
        ("a.parquet", "x", "not a Parquet file"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, content: str, text: str):
    (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=text):
        read_table(tmp_path / name)


def test_a_missing_column_is_named_with_those_that_are_there(tmp_path: Path):
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    with pytest.raises(SourceError, match="there is no column 'c'; its columns are a, b"):
        read_table(tmp_path / "t.csv", ["a", "c"])


def test_a_table_of_columns_in_memory():
    table = Table.of({"a": ["x", "y", "?"], "b": np.array([1, 2, 3])}).subset(np.array([2, 0]), ["b", "a"])
    assert list(table.columns) == ["b", "a"]
    assert texts(table.columns["b"]) == ["3", "1"]
    assert texts(table.columns["a"]) == ["", "x"]
    assert (table.ids.tolist(), table.places) == ([2, 0], ["row 2", "row 0"])


def test_numbers_of_parquet_are_read_without_pandas(tmp_path: Path):
    numbers = pa.chunked_array([pa.array([1, None, 3]), pa.array([], pa.int64()), pa.array([4, 5, None]).slice(1)])
    pq.write_table(pa.table({"a": numbers, "b": numbers.cast(pa.float32())}), tmp_path / "t.parquet", row_group_size=2)
    code = (
        "import sys; from pathlib import Path; from labelwise.io.tables import read_table; "
        f"print(read_table(Path({str(tmp_path / 't.parquet')!r})).columns['a'].tolist(), 'pandas' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[1.0, nan, 3.0, 5.0, nan] False"
    found = read_table(tmp_path / "t.parquet").columns["b"]
    assert np.asarray(found).tolist() == pytest.approx([1, float("nan"), 3, 5, float("nan")], nan_ok=True)
