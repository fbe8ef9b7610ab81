"""What a project is made of: folders of images, texts, tables; what cannot be used is named and left out."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from labelwise.errors import ArgumentError, SourceError
from labelwise.io.tables import read_table
from labelwise.project.data.encoders import encoder_of
from labelwise.project.data.plain_encoders import columns, words
from labelwise.project.data.source import Images, Rows, Texts, fingerprint, open_data, recognise
from labelwise.project.settings import Settings, read_settings

ODD = ["with space", "ümläut", "漢字", 'quote\'s "x"', "new\nline", "<b>html", "100%", "a,b;c", "#hash", "-dash"]


def png(value: int, side: int = 8) -> bytes:
    out = io.BytesIO()
    Image.fromarray(np.full((side, side), value, np.uint8)).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "photos"
    (folder / "deep" / "er").mkdir(parents=True)
    for number, name in enumerate(ODD):
        (folder / ("deep/er" if number % 2 else ".") / f"{name}.png").write_bytes(png(number))
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff and no more")
    (folder / "page.png").write_text("<svg onload='alert(1)'/>")
    (folder / "notes.txt").write_text("not an image")
    (tmp_path / "outside.png").write_bytes(png(9))
    os.symlink(tmp_path / "outside.png", folder / "link.png")
    os.symlink(folder / "100%.png", folder / "inside.png")
    return folder


def settings(kind: str, source: Path, **more: object) -> Settings:
    return Settings(name="x", kind=kind, source=str(source), **more)  # type: ignore[arg-type]


def test_a_folder_with_odd_names_broken_files_and_links(photos: Path, tmp_path: Path) -> None:
    assert recognise(photos).kind == "image"
    data = open_data(settings("image", photos), tmp_path / "project")
    assert isinstance(data, Images)
    assert {Path(ref).stem for ref in data.refs} >= set(ODD)
    assert "inside.png" in data.refs
    assert "link.png" not in data.refs
    assert data.faults == ("link.png: a link to a file outside the folder",)
    taken = dict(zip(data.refs, data.take(range(len(data)), 4)))
    assert isinstance(taken["broken.jpg"], SourceError)
    assert "page.png: not an image" in str(taken["page.png"])
    assert taken["100%.png"].shape == (4, 4, 3)


def test_a_pipe_is_named_and_does_not_hold_the_command_up(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(1))
    os.mkfifo(tmp_path / "pipe.png")
    data = open_data(settings("image", tmp_path), tmp_path / "project")
    assert str(data.take([1], 4)[0]) == "pipe.png: the image cannot be read (OSError: not a plain file)"


def test_a_name_that_is_not_utf8_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    folder.mkdir()
    (folder / "a.png").write_bytes(png(1))
    with open(os.fsencode(folder) + b"/\xff\xfe.png", "wb") as file:
        file.write(png(2))
    data = open_data(settings("image", folder), tmp_path / "project")
    assert data.refs == ["a.png"]
    assert "not UTF-8" in data.faults[0]


def test_the_project_inside_the_folder_is_not_part_of_the_data(photos: Path) -> None:
    project = photos / "project"
    project.mkdir()
    (project / "cached.png").write_bytes(png(1))
    data = open_data(settings("image", photos), project)
    assert not [ref for ref in data.refs if "cached" in ref]


def test_a_link_that_appears_later_is_not_followed_out(photos: Path, tmp_path: Path) -> None:
    data = open_data(settings("image", photos), tmp_path / "project")
    assert isinstance(data, Images)
    place = data.refs.index("100%.png")
    (photos / "100%.png").unlink()
    os.symlink(tmp_path / "outside.png", photos / "100%.png")
    with pytest.raises(SourceError, match="a link to a file outside"):
        data.at(place)


def test_texts_of_a_csv_with_bad_lines(tmp_path: Path) -> None:
    path = tmp_path / "reviews.csv"
    path.write_bytes(b'id,body\n1,"good, really"\n2,\n3,one,too,many\n4,\xff\xfe\n5,bad\n\n6,fine\n')
    assert recognise(path, text="body").text == "body"
    data = open_data(settings("text", path, text="body"), tmp_path / "p")
    assert isinstance(data, Texts)
    assert data.texts == ["good, really", "bad", "fine"]
    assert data.ids.tolist() == [0, 4, 5]
    assert [fault.split(":")[0] for fault in data.faults] == [f"reviews.csv line {n}" for n in (4, 5, 3)]


def test_texts_of_tsv_and_gzip_and_a_single_column(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("n\tbody\n1\ta, b\n")
    with gzip.open(tmp_path / "b.csv.gz", "wt") as file:
        file.write("line\nx\ny\n")
    assert open_data(settings("text", tmp_path / "a.tsv", text="body"), tmp_path).take([0], 0) == ["a, b"]
    found = recognise(tmp_path / "b.csv.gz")
    assert (found.kind, found.text) == ("text", "line")
    assert len(open_data(settings("text", tmp_path / "b.csv.gz", text="line"), tmp_path)) == 2


def test_a_table_of_numbers_and_categories(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pq.write_table(
        pa.table({"size": [1.0, None, 3.0, 4.0], "city": ["A", "B", "?", None], "ok": [True, False, True, True]}), path
    )
    found = recognise(path, features=("size", "city", "ok"))
    assert found.kind == "table"
    data = open_data(settings("table", path, columns=found.columns), tmp_path)
    assert isinstance(data, Rows)
    assert data.fields(1) == [("size", ""), ("city", "B"), ("ok", "false")]
    encoder = columns(data.table)
    assert len(encoder.blocks) == 3
    assert encoder.encode([0, 1, 2, 3]).shape == (4, sum(encoder.blocks))
    assert np.isfinite(encoder.x_NW).all()
    missing = encoder.x_NW[:, encoder.blocks[0] - 1]
    assert missing.tolist() == [0, 1, 0, 0]


def test_images_inside_parquet(tmp_path: Path) -> None:
    path = tmp_path / "i.parquet"
    images = [{"bytes": png(i), "path": f"{i}.png"} for i in range(4)] + [{"bytes": b"nonsense", "path": "x.png"}, None]
    pq.write_table(pa.table({"image": images, "label": list(range(6))}), path)
    found = recognise(path)
    assert (found.kind, found.image) == ("image", "image")
    data = open_data(settings("image", path, image="image"), tmp_path)
    assert data.ids.tolist() == [0, 1, 2, 3, 4]
    assert isinstance(data.take([4], 8)[0], SourceError)
    assert "no image bytes" in data.faults[0]


@pytest.mark.parametrize(
    ("name", "content", "options", "said"),
    [
        ("none.csv", None, {}, "does not exist"),
        ("a.txt", "x", {}, "this name ends in '.txt'"),
        ("a.csv", "", {}, "the file is empty"),
        ("a.csv", "x,y\n1,2\n", {}, "--text COLUMN"),
        ("a.csv", "x,y\n1,2\n", {"text": "z"}, "its columns are x, y"),
        ("a.csv", "x,x\n1,2\n", {"text": "x"}, "2 columns are called 'x'"),
        ("a.parquet", "no parquet", {"text": "x"}, "not a Parquet file"),
    ],
)
def test_what_cannot_be_recognised_is_explained(
    tmp_path: Path, name: str, content: str | None, options: dict[str, str], said: str
) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=said):
        recognise(tmp_path / name, **options)


def test_wrong_options_are_explained(tmp_path: Path, photos: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="has no images"):
        recognise(tmp_path / "empty")
    with pytest.raises(ArgumentError, match="for tables"):
        recognise(photos, text="body")
    with pytest.raises(ArgumentError, match="not both"):
        recognise(photos, text="a", features=("b",))
    data = open_data(settings("image", photos), tmp_path / "p")
    with pytest.raises(ArgumentError, match="does not work for"):
        encoder_of("words", "image", data)
    with pytest.raises(ArgumentError, match="cannot be imported"):
        encoder_of("torch:no.such.thing", "image", data)


def test_the_fingerprint_notices_every_change(tmp_path: Path, photos: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a\nx\n")
    one = fingerprint(path, open_data(settings("text", path, text="a"), tmp_path))
    path.write_text("a\ny\n")
    assert fingerprint(path, open_data(settings("text", path, text="a"), tmp_path)) != one
    folder = settings("image", photos)
    before = fingerprint(photos, open_data(folder, tmp_path / "p"))
    assert fingerprint(photos, open_data(folder, tmp_path / "p")) == before
    (photos / "100%.png").write_bytes(png(3, side=31))
    assert fingerprint(photos, open_data(folder, tmp_path / "p")) != before


def test_words_put_texts_of_one_subject_together() -> None:
    texts = [f"the cat and the kitten {n} sleep" for n in range(20)] + [
        f"share prices fell {n} percent" for n in range(20)
    ]
    encoder = words(texts)
    x = encoder.encode(texts)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    near = x @ x.T
    assert near[:20, :20].mean() > near[:20, 20:].mean() + 0.3
    assert np.array_equal(words(texts).encode(texts), encoder.encode(texts))
    assert not words(["", "a b", "b c a"]).encode([""]).any()
    with pytest.raises(SourceError, match="no word"):
        words(["!", "?"])


def test_settings_come_back_as_they_were_written(tmp_path: Path) -> None:
    made = Settings(name="ü", kind="table", source="../t.csv", columns=("a b", "c"), classes=("x", "y, z"), k=7, seed=3)
    made.write(tmp_path)
    assert read_settings(tmp_path) == made


def test_settings_that_cannot_be_used(tmp_path: Path) -> None:
    from labelwise.errors import StoreError

    data, project = tmp_path / "photos", tmp_path / "photos-labelwise"
    with pytest.raises(StoreError, match="photos: a project was expected there, nothing was found"):
        read_settings(data)
    data.mkdir()
    project.mkdir()
    Settings(name="p", kind="image", source="../photos", classes=("a", "b")).write(project)
    with pytest.raises(StoreError, match="photos-labelwise: name that folder"):
        read_settings(data)
    with pytest.raises(StoreError, match="is not a project"):
        read_settings(tmp_path)
    (tmp_path / "project.yaml").write_text("version: 99\n")
    with pytest.raises(StoreError, match="version 99"):
        read_settings(tmp_path)
    with pytest.raises(ArgumentError, match="must be different"):
        Settings(name="x", kind="image", source=".", classes=("a", "a"))
    with pytest.raises(ArgumentError, match="k is a whole number of at least 2"):
        Settings(name="x", kind="image", source=".", k=1)
    with pytest.raises(ArgumentError, match="classes or numbers"):
        Settings(name="x", kind="image", source=".", task="regress", classes=("a",))


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.csv", b"body;x\nyes;1\n", "separated by ';'; commas were expected"),
        ("a.tsv", b"body,y;x\nyes;1\n", "separated by ';'; tabs were expected"),
        ("a.csv", "body,x\nyes,1\n".encode("utf-16"), "not UTF-8; save the table as UTF-8"),
    ],
)
def test_a_table_saved_in_another_way_is_told_how_to_save_it(
    tmp_path: Path, name: str, content: bytes, text: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(SourceError, match=text):
        recognise(tmp_path / name, text="body")


def test_a_column_that_is_nearly_numbers_is_pointed_out(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{row},{row % 3}\n" for row in range(9)) + "inf,\n?,x y\n")
    found = columns(read_table(tmp_path / "t.csv", ["a", "b"]))
    assert "column a holds 9 numbers, but also 'inf'" in found.better
    (tmp_path / "t.csv").write_text("a\nred\ngreen\n1\n")
    assert columns(read_table(tmp_path / "t.csv", ["a"])).better == ""
