"""The user's own texts, images and embeddings: which rows and answers are read, and what is wrong with a file."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from labelwise.bench.data.own_rows import kind_of, read_rows, read_vectors
from labelwise.errors import ArgumentError, SourceError, StoreError

X = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32)
NAMES = [("a", "b")[at % 2] for at in range(12)]


def nothing(text: str, done: int, total: int) -> None:
    pass


def texts_of(folder: Path, **options):
    return read_rows(
        folder / "t.csv", "kind", "text", text="body", encoder="words", cache=folder / "features",
        on_progress=nothing, **options,
    )  # fmt: skip


def test_texts_keep_their_rows_and_answers(tmp_path: Path) -> None:
    lines = [f"word{at % 2} common {at},{name},{at // 3}" for at, name in enumerate(NAMES)]
    lines[2] = ",b,0"  # no text
    lines[5] = "word1 common,,1"  # no answer
    (tmp_path / "t.csv").write_text("body,kind,who\n" + "\n".join(lines) + "\n")
    own = texts_of(tmp_path, group="who")
    assert own.rows.tolist() == [0, 1, 3, 4, 6, 7, 8, 9, 10, 11]
    assert [own.classes[at] for at in own.answers] == [NAMES[row] for row in own.rows]
    assert own.groups is not None
    assert [int(row) // 3 for row in own.rows] == own.groups.tolist()
    assert any("1 rows without a value in 'kind'" in note for note in own.notes)
    assert any("no text in column 'body'" in note for note in own.notes)
    data = own.data(0, 0.2)
    assert data.pool.inputs(data.pool.ids).square().sum(1).mean() == pytest.approx(1, abs=1e-4)
    known = dict(zip(own.rows.tolist(), own.answers.tolist()))
    assert data.pool.labels.tolist() == [known[row] for row in data.pool.ids.tolist()]
    assert not set(data.pool.ids.tolist()) & set(data.test.ids.tolist())


def test_the_folder_of_an_image_is_its_class(tmp_path: Path) -> None:
    for at in range(8):
        folder = tmp_path / "photos" / str(at % 2)
        folder.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (at * 20, 0, 0)).save(folder / f"{at}.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "loose.png")
    (tmp_path / "photos" / "0" / "torn.png").write_bytes(b"no image")
    own = read_rows(
        tmp_path / "photos", None, "image", encoder="pixels", cache=tmp_path / "features", on_progress=nothing
    )
    assert own.task == "classify"
    assert own.classes == ("0", "1")
    assert own.answers.tolist() == [0] * 4 + [1] * 4
    assert own.x_ND.shape == (8, 456)
    assert any("in no class folder" in note for note in own.notes)
    assert any("torn.png" in note for note in own.notes)
    with pytest.raises(ArgumentError, match="the folder of an image is its class"):
        read_rows(tmp_path / "photos", "kind", "image", cache=tmp_path / "features", on_progress=nothing)
    with pytest.raises(SourceError, match="a folder of images for each of two classes"):
        read_rows(tmp_path / "photos" / "1", None, "image", cache=tmp_path / "other", on_progress=nothing)


@pytest.mark.parametrize("ending", [".npy", ".npz", ".parquet"])
def test_embeddings_with_their_answers(tmp_path: Path, ending: str) -> None:
    path, target = tmp_path / f"h{ending}", "kind"
    if ending == ".npy":
        np.save(path, X)
        target = str(tmp_path / "y.npy")
        np.save(target, np.array(NAMES))
    elif ending == ".npz":
        np.savez(path, vectors=X, kind=np.array(NAMES), other=np.arange(12))
    else:
        pq.write_table(pa.table({"vectors": X.tolist(), "kind": NAMES}), path)
    assert kind_of(path, None, None) == "vector"
    own = read_vectors(path, target)
    assert own.rows.tolist() == list(range(12))
    assert [own.classes[at] for at in own.answers] == NAMES
    np.testing.assert_allclose(own.x_ND, X, rtol=1e-6)


def test_numbers_to_predict_from_embeddings(tmp_path: Path) -> None:
    np.savez(tmp_path / "h.npz", embedding=np.repeat(X, 4, 0), y=np.linspace(0, 1, 48), width=np.ones((48, 2)))
    own = read_vectors(tmp_path / "h.npz", "y")
    assert own.task == "regress"
    assert own.metric == "rmse"
    assert own.answers.tolist() == np.linspace(0, 1, 48).tolist()


def test_what_is_wrong_with_embeddings_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "h.npy", X)
    np.save(tmp_path / "short.npy", np.arange(5))
    np.save(tmp_path / "torn.npy", np.where(np.arange(48).reshape(12, 4) == 9, np.nan, 1.0))
    np.save(tmp_path / "y.npy", np.array(NAMES))
    np.savez(tmp_path / "h.npz", one=X, two=X, y=np.array(NAMES))
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    for path, target, error, text in (
        ("h.npy", None, ArgumentError, "--target is missing; name the .npy file of the answers"),
        ("h.npy", str(tmp_path / "none.npy"), SourceError, "none.npy does not exist"),
        ("h.npy", str(tmp_path / "short.npy"), SourceError, "12 embeddings, but 5 answers"),
        ("torn.npy", str(tmp_path / "y.npy"), SourceError, "row 2 holds a value that is no finite number"),
        ("y.npy", str(tmp_path / "y.npy"), SourceError, r"expected embeddings of shape \(rows, width\)"),
        ("h.npz", "y", SourceError, "expected one array of embeddings"),
        ("h.npz", "label", ArgumentError, "there is no array 'label'; its arrays are one, two, y"),
        ("bad.npz", "y", SourceError, "cannot be read as a .npz file"),
    ):
        with pytest.raises(error, match=text):
            read_vectors(tmp_path / path, target)


def test_what_a_row_is_follows_from_the_data_and_the_options(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,b\n1,2\n")
    assert kind_of(tmp_path, None, None) == "image"
    assert kind_of(tmp_path / "t.csv", None, None) == "table"
    assert kind_of(tmp_path / "t.csv", "a", None) == "text"
    with pytest.raises(ArgumentError, match="give --text or --features, not both"):
        kind_of(tmp_path / "t.csv", "a", ["b"])
    with pytest.raises(ArgumentError, match="--text and --features are for tables"):
        kind_of(tmp_path, "a", None)
    with pytest.raises(SourceError, match="does not exist"):
        kind_of(tmp_path / "none", None, None)


def test_features_that_were_changed_since_are_refused(tmp_path: Path) -> None:
    lines = [f"word{at % 2} common {at},{name}" for at, name in enumerate(NAMES)]
    (tmp_path / "t.csv").write_text("body,kind\n" + "\n".join(lines) + "\n")
    own = texts_of(tmp_path)
    assert (texts_of(tmp_path).x_ND == own.x_ND).all()
    file = tmp_path / "features" / "features.npy"
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)
    with pytest.raises(StoreError, match="changed after they were written"):
        texts_of(tmp_path)
