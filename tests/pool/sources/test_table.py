"""Pools of CSV and Parquet files."""

import gzip
import io
import json

import numpy as np
import pytest
import torch

from labelwise.errors import ArgumentError, RowError, SourceError
from labelwise.pool import Pool

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def csv(tmp_path, text, name="t.csv"):
    path = tmp_path / name
    data = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return path


def parquet(tmp_path, columns, name="t.parquet", metadata=None):
    table = pa.table(columns)
    pq.write_table(table.replace_schema_metadata(metadata), tmp_path / name)
    return tmp_path / name


@pytest.mark.parametrize("name", ["t.csv", "T.CSV", "t.csv.gz", "t.tsv", "t.tsv.gz"])
def test_csv_numbers(tmp_path, name):
    text = "\ufeffa,b,y\r\n1,2.5,x\r\n\r\n-3e2, 4,z\r\n5,6,x"
    pool = Pool.table(csv(tmp_path, text.replace(",", "\t") if ".tsv" in name else text, name), label="y")
    assert pool.inputs([1, 0]).tolist() == [[-300, 4], [1, 2.5]]
    assert pool.inputs([0]).dtype == torch.float32
    assert (pool.labels.tolist(), pool.classes) == ([0, 1, 0], ("x", "z"))
    assert pool.name(1) == f"{name} line 4"
    one = Pool.table(tmp_path / name, columns=["b"], dtype=torch.float64)
    assert one.inputs([2]).tolist() == [[6]]
    assert one.inputs([2]).dtype == torch.float64


def test_csv_texts_with_quotes_and_lines(tmp_path):
    path = csv(tmp_path, 'text,y\n"a, ""b""\nc",1\nplain ü,2\n')
    pool = Pool.table(path, text="text", label="y")
    assert pool.inputs(pool.ids) == ['a, "b"\nc', "plain ü"]
    assert pool.labels.tolist() == [1, 2]
    assert pool.classes is None
    assert pool.name(1) == "plain ü"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("1,2", "line 3: expected 3 fields, found 2"),
        ("1,2,3,4", "line 3: expected 3 fields, found 4"),
        ("1,cat,0", "line 3: column 'b' holds 'cat'; a number was expected"),
        ("1,,0", "line 3: column 'b' is empty"),
        ("1,nan,0", "line 3: column 'b' holds 'nan'"),
        ("1,1_0,0", "line 3: column 'b' holds '1_0'"),
        ("1,2,", "line 3: no label in column 'y'"),
        ('1,"2"x,0', "line 3: .*expected after"),
        ("1,\udcff2,0", "line 3: byte 0xff is not UTF-8"),
    ],
)
def test_bad_csv_line_is_named_or_skipped(tmp_path, line, text):
    data = f"a,b,y\n1,2,0\n{line}\n5,6,1\n".encode(errors="surrogateescape")
    path = csv(tmp_path, data)
    with pytest.raises(SourceError, match=text) as caught:
        Pool.table(path, label="y")
    assert str(path) in str(caught.value)
    pool = Pool.table(path, label="y", on_error="skip")
    assert pool.ids.tolist() == [0, 2]
    assert pool.inputs([2]).tolist() == [[5, 6]]
    assert pool.labels.tolist() == [0, 1]
    assert len(pool.skipped) == 1


def test_line_numbers_count_the_lines_of_quoted_fields(tmp_path):
    path = csv(tmp_path, 'text,n\n"a\nb\nc",1\n"",2\n')
    with pytest.raises(SourceError, match="line 5: no text in column 'text'"):
        Pool.table(path, text="text")
    path = csv(tmp_path, 'text,n\na,1\n"never closed,2\nb,3\n')
    with pytest.raises(SourceError, match="line 3: unexpected end of data"):
        Pool.table(path, text="text")


@pytest.mark.parametrize(
    ("text", "options", "found"),
    [
        ("", {}, "is empty"),
        ("\n\n", {}, "is empty"),
        ("a,y\n", {}, "no rows"),
        ("a,y\nx,0\nz,1\n", {}, "name the numeric columns with columns="),
        ("a,y\n1,0\n", {"text": "body"}, "no column 'body'; its columns are a, y"),
        ("a,y\n1,0\n", {"label": "z"}, "no column 'z'"),
        ("a,a\n1,0\n", {"columns": ["a"]}, "2 columns are called 'a'"),
        ("a,b,a\n1,0,2\n", {}, "2 columns are called 'a'"),
        ("a,b,a\n1,0,2\n", {"columns": ["b"]}, "2 columns are called 'a'"),
        ("1,2\n3,4\n", {}, "first line must hold the column names, numbers were found: '1,2'"),
        ("1,2\n3,4\n", {"label": "y"}, "first line must hold the column names"),
        ("y\n1\n", {"label": "y"}, "no column is left"),
        ("a,y\n1,0\n2,x\n", {"label": "y"}, "mixes numbers and names: '0' in t.csv line 2, 'x' in t.csv line 3"),
        ("a,y\n1,0\n2,x\n", {"label": "y", "label_type": "number"}, "line 3: column 'y' holds 'x'"),
        ("a,i\n1,x\n", {"id": "i"}, "a whole number was expected as the id"),
    ],
)
def test_csv_files_that_make_no_pool(tmp_path, text, options, found):
    with pytest.raises(SourceError, match=found):
        Pool.table(csv(tmp_path, text), **options)


def test_columns_with_numbers_for_names_are_read_when_named(tmp_path):
    path = csv(tmp_path, "0,1,2\n3,4,5\n")
    assert Pool.table(path, columns=["0", "2"]).inputs([0]).tolist() == [[3, 5]]
    assert Pool.table(path, label="2").inputs([0]).tolist() == [[3, 4]]


def test_label_types(tmp_path):
    path = csv(tmp_path, "a,y,z,w\n1,10,1.0,3\n2,9,2.0,x\n")
    assert Pool.table(path, columns=["a"], label="y").labels.tolist() == [10, 9]
    assert Pool.table(path, columns=["a"], label="z").labels.dtype == torch.float64
    named = Pool.table(path, columns=["a"], label="y", label_type="class")
    assert (named.labels.tolist(), named.classes) == ([1, 0], ("9", "10"))
    assert Pool.table(path, columns=["a"], label="w", label_type="class").classes == ("3", "x")
    left = Pool.table(path, columns=["a"], label="w", label_type="number", on_error="skip")
    assert (left.ids.tolist(), left.labels.tolist(), left.inputs([0]).tolist()) == ([0], [3], [[1]])


def test_ids_of_a_column(tmp_path):
    path = csv(tmp_path, "a,i\n1,70\n2,50\n")
    pool = Pool.table(path, id="i")
    assert pool.inputs([50]).tolist() == [[2]]
    with pytest.raises(RowError, match="id 7 occurs 2 times"):
        Pool.table(csv(tmp_path, "a,i\n1,7\n2,7\n"), id="i")
    ids = Pool.table(parquet(tmp_path, {"a": [1.0, 2.0], "i": [2**60 + 1, 4]}), id="i").ids
    assert ids.tolist() == [2**60 + 1, 4]


def test_damaged_gzip_and_wrong_names(tmp_path):
    path = csv(tmp_path, "a\n" + "1\n" * 1000, "t.csv.gz")
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(SourceError, match="the file is damaged"):
        Pool.table(path)
    with pytest.raises(SourceError, match="no such file"):
        Pool.table(tmp_path / "gone.csv")
    with pytest.raises(SourceError, match=r"ends in .csv, .tsv \(either may be .gz\) or .parquet.*'\.xlsx'"):
        Pool.table(csv(tmp_path, "a", "t.xlsx"))
    with pytest.raises(SourceError, match="not a Parquet file"):
        Pool.table(csv(tmp_path, "a", "u.parquet"))


def test_arguments(tmp_path):
    path = csv(tmp_path, "a,b\n1,2\n")
    for options, text in (
        ({"text": "a", "columns": ["b"]}, "one of text, image and columns"),
        ({"columns": "a"}, r"columns=\['a'\]"),
        ({"image": "a"}, "not from CSV"),
        ({"label_type": "x"}, "label_type"),
        ({"on_error": "x"}, "on_error"),
    ):
        with pytest.raises(ArgumentError, match=text):
            Pool.table(path, **options)
    with pytest.raises(ArgumentError, match="empty list"):
        Pool.table([])


def test_parquet_numbers_texts_and_labels(tmp_path):
    path = parquet(
        tmp_path,
        {
            "i": pa.array([1, 2, 3]),
            "f": pa.array([0.5, 1.5, 2.5], pa.float32()),
            "b": pa.array([True, False, True]),
            "t": pa.array(["x", "y", "z"]).dictionary_encode(),
            "c": pa.array(["no", "yes", "no"]),
            "r": pa.array([1.0, 2.0, 3.0]),
        },
    )
    pool = Pool.table(path, columns=["i", "f", "b"], label="c")
    assert pool.inputs([2, 1]).tolist() == [[3, 2.5, 1], [2, 1.5, 0]]
    assert (pool.labels.tolist(), pool.classes) == ([0, 1, 0], ("no", "yes"))
    assert pool.name(2) == "t.parquet row 2"
    assert Pool.table(path, text="t", label="r").labels.dtype == torch.float64
    assert Pool.table(path, text="t").inputs([1]) == ["y"]
    with pytest.raises(SourceError, match=r"column 't' holds dictionary.*columns="):
        Pool.table(path)
    with pytest.raises(SourceError, match="its columns are i, f, b, t, c, r"):
        Pool.table(path, text="body")
    with pytest.raises(SourceError, match="column 'i' holds int64; texts were expected"):
        Pool.table(path, text="i")


def test_parquet_empty_values(tmp_path):
    path = parquet(tmp_path, {"x": [1.0, None, float("inf"), 4.0, 5.0], "y": [0, 1, 1, None, 1]})
    with pytest.raises(SourceError, match=r"t\.parquet row 1: column 'x' is empty"):
        Pool.table(path, label="y")
    pool = Pool.table(path, label="y", on_error="skip")
    assert (pool.ids.tolist(), pool.labels.tolist()) == ([0, 4], [0, 1])
    assert [note.split(".parquet ")[1][:5] for note in pool.skipped] == ["row 1", "row 2", "row 3"]
    assert "holds inf" in pool.skipped[1]
    with pytest.raises(SourceError, match="no rows"):
        Pool.table(parquet(tmp_path, {"x": pa.array([], pa.float64())}))
    with pytest.raises(SourceError, match="row 0: no text"):
        Pool.table(parquet(tmp_path, {"t": [None, "a"]}), text="t")


def test_several_files_are_numbered_on(tmp_path):
    one = csv(tmp_path, "a\n1\nx\n3\n", "one.csv")
    two = csv(tmp_path, "a\n4\n5\n", "two.csv")
    pool = Pool.table([one, two], on_error="skip")
    assert pool.ids.tolist() == [0, 2, 3, 4]
    assert pool.inputs([4, 2]).tolist() == [[5], [3]]
    with pytest.raises(SourceError, match="do not have the same columns"):
        Pool.table([two, csv(tmp_path, "a,b\n1,2\n", "three.csv")])


def test_parquet_images_in_the_layout_of_hugging_face(tmp_path):
    images = pytest.importorskip("PIL.Image")
    cells = []
    for shade in (0, 128, 255):
        stream = io.BytesIO()
        images.fromarray(np.full((5, 5, 3), shade, np.uint8)).save(stream, "PNG")
        cells.append({"bytes": stream.getvalue(), "path": f"{shade}.png" if shade else None})
    broken = [*cells, {"bytes": b"junk", "path": "junk.png"}, None]
    features = {"info": {"features": {"label": {"_type": "ClassLabel", "names": ["dark", "light"]}}}}
    path = parquet(tmp_path, {"image": cells, "label": [0, 1, 1]}, metadata={"huggingface": json.dumps(features)})
    pool = Pool.table(path, label="label", size=5)
    assert (pool.inputs([2, 1]) * 255).round()[:, 0, 0, 0].tolist() == [255, 128]
    assert (pool.labels.tolist(), pool.classes) == ([0, 1, 1], ("dark", "light"))
    assert (pool.name(0), pool.name(2)) == ("t.parquet row 0", "255.png")
    path = parquet(tmp_path, {"image": broken, "label": [0, 1, 1, 0, 0]})
    with pytest.raises(SourceError, match="row 4: no image bytes"):
        Pool.table(path, image="image")
    left = Pool.table(path, image="image", label="label", on_error="skip")
    assert left.ids.tolist() == [0, 1, 2]
    assert len(left.skipped) == 2
    with pytest.raises(SourceError, match=r"struct \{bytes, path\} was expected"):
        Pool.table(path, image="label")
