"""What fuzzing found, as small cases: each raised an exception that was no sentence."""

import io
import json
import re
import zipfile

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

import labelwise as lw
from labelwise.bench.suite.suite import read_suite
from labelwise.bench.suites import find_suite
from labelwise.cli.files import read_array
from labelwise.errors import ArgumentError, LabelError, LabelwiseError, RowError, SourceError, StoreError
from labelwise.io.arguments import check_real, check_whole
from labelwise.io.checked import write_checked
from labelwise.pool import Pool
from labelwise.project.data.saved_encoders import restored
from labelwise.project.exchange.read_labels import read_labels
from labelwise.stats.record import Record, from_json

X = np.random.default_rng(0).normal(size=(12, 3))
P = np.full((12, 2), 0.5)


def npy(header):
    """A .npy file of version 1 with this header."""
    line = header.encode().ljust(118 - 1) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + P.tobytes()


@pytest.mark.parametrize(
    "content",
    [
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (12, 2"),  # tokenize.TokenError
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (18446744073709551616, 2), }"),  # OverflowError
        npy("{'descr': '<f8', 'fortran_order': False, 'shape': (9223372036854775807,), }"),
        npy("{'descr': 'O', 'fortran_order': False, 'shape': (2,), }"),
        b"",
        b"\x93NUMPY",
    ],
)
def test_a_damaged_npy_file(tmp_path, content):
    (tmp_path / "p.npy").write_bytes(content)
    with pytest.raises(SourceError, match="cannot be read"):
        read_array("probs", str(tmp_path / "p.npy"))


def test_a_damaged_npz_file(tmp_path):
    good = io.BytesIO()
    np.savez_compressed(good, probs=P)
    whole = good.getvalue()
    torn = bytearray(whole)
    torn[40:60] = b"\xff" * 20  # zlib.error, or a wrong checksum
    member = io.BytesIO()
    with zipfile.ZipFile(member, "w") as archive:
        archive.writestr("probs.npy", b"not an array")
    cases = [
        b"",
        b"PK\x03\x04",
        whole[:-30],
        whole.replace(b"PK\x01\x02", b"PX\x01\x02"),
        bytes(torn),
        member.getvalue(),
    ]
    for content in cases:
        (tmp_path / "p.npz").write_bytes(content)
        with pytest.raises(SourceError):
            read_array("probs", str(tmp_path / "p.npz"))


def test_brackets_without_end_in_an_export(tmp_path):
    (tmp_path / "studio.json").write_text("[" * 100_000)
    with pytest.raises(SourceError, match="not valid JSON"):
        read_labels(tmp_path / "studio.json")


def test_seeds_beyond_all_measure(tmp_path):
    text = find_suite("core").read_text()
    for seeds in ("1" + "0" * 400, "9223372036854775808", "10001"):
        changed = "\n".join(f"seeds: {seeds}" if line.startswith("seeds:") else line for line in text.splitlines())
        assert changed != text.rstrip("\n")
        (tmp_path / "suite.yaml").write_text(changed)
        with pytest.raises(ArgumentError, match="seeds: expected how many"):
            read_suite(tmp_path / "suite.yaml")


@pytest.mark.parametrize("ids", [["9223372036854775808", "1"], ["-9223372036854775809", "1"]])
def test_ids_of_a_table_beyond_64_bits(tmp_path, ids):
    (tmp_path / "t.csv").write_text("id,x\n" + "".join(f"{one},1.5\n" for one in ids))
    with pytest.raises(SourceError, match="2\\*\\*63"):
        Pool.table(tmp_path / "t.csv", columns=["x"], id="id")


def test_ids_of_a_parquet_table_beyond_64_bits(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"id": pa.array([2**63, 1], pa.uint64()), "x": [1.0, 2.0]}), tmp_path / "t.parquet")
    with pytest.raises(SourceError, match="2\\*\\*63"):
        Pool.table(tmp_path / "t.parquet", columns=["x"], id="id")


@pytest.mark.parametrize(
    "state", [{}, {"columns": {}}, {"columns": [], "widths": []}, {"columns": {"a": 1}, "widths": [1]}]
)
def test_columns_of_a_model_that_are_none(state):
    with pytest.raises(StoreError, match="damaged"):
        restored("columns", "table", state, {})


@pytest.mark.parametrize(
    "column",
    [
        {"kind": "number", "low": 0.0, "high": 1.0, "median": 0.5, "steps": [[0.0]], "has_gaps": False},
        {"kind": "number", "low": "x", "high": 1.0, "median": 0.5, "steps": [], "has_gaps": False},
        {"kind": "number", "low": 0.0, "high": 1.0, "median": 0.5, "steps": [], "has_gaps": False, "stepsx": 1},
        {"kind": "category", "common": 5, "has_others": True},
        {"kind": [], "common": [], "has_others": True},
        {"common": [], "has_others": True},
    ],
)
def test_a_damaged_column_of_a_model(column):
    with pytest.raises(StoreError, match="'a' of the encoder is damaged"):
        restored("columns", "table", {"columns": {"a": column}, "widths": [1]}, {})


def test_words_of_a_model_that_do_not_fit():
    with pytest.raises(StoreError, match="words"):
        restored("words", "text", {}, {"known": np.arange(3), "idf": np.ones(2), "to": np.ones((3, 2))})


def session(folder, **settings):
    made = lw.Session(X, LogisticRegression(), "random+margin", **{"classes": 2, "folder": folder, **settings})
    made.tell([0, 1, 2, 3], [0, 1, 0, 1])
    return made


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("ids", ["a\nb"]),
        ("ids", [2**70, 1]),
        ("ids", [1, 1]),
        ("weights", [{"x": 1}, 1]),
        ("scores", "x"),
        ("answers", []),
        ("round", True),
        ("law", "x"),
        ("notes", None),
    ],
)
def test_a_batch_with_other_values_and_a_checksum_that_fits(tmp_path, field, value):
    session(tmp_path / "s").ask(2)
    path = tmp_path / "s" / "asked.json"
    write_checked(path, {**json.loads(path.read_text()), field: value})
    with pytest.raises(StoreError, match=r"asked\.json.*(copy|remove)"):
        lw.Session.load(tmp_path / "s", X, LogisticRegression())


@pytest.mark.parametrize("recipe", [None, [], {"name": "x"}, {"name": "x", "strategy": {"class": "Margin", "k": 1}}])
def test_a_recipe_with_other_values_and_a_checksum_that_fits(tmp_path, recipe):
    session(tmp_path / "s")
    path = tmp_path / "s" / "session.json"
    stored = json.loads(path.read_text())
    if isinstance(recipe, dict):
        recipe = {**stored["recipe"], **recipe} if "strategy" in recipe else recipe
    write_checked(path, {**stored, "recipe": recipe})
    with pytest.raises(StoreError):
        lw.Session.load(tmp_path / "s", X, LogisticRegression())


@pytest.mark.parametrize("value", [0, -1, None, "3", 2.5, True, [3], float("nan"), 2**63])
def test_rows_of_a_batch_that_are_no_number(value):
    if value is not None:  # leaves it to the learner
        with pytest.raises(ArgumentError, match="batch"):
            lw.Session(X, LogisticRegression(), "random+margin", classes=2, batch=value)
    with pytest.raises(ArgumentError, match="batch"):
        list(Pool.of(X).batches(size=value))
    for name in ("epochs", "batch", "holdout", "lr", "weight_decay"):
        allowed = {"lr": (2**63, 2.5), "weight_decay": (0, None, 2**63, 2.5), "holdout": (0, None), "epochs": (None,)}
        if isinstance(value, bool) or value not in allowed.get(name, ()):
            with pytest.raises(ArgumentError, match=name):
                lw.TorchLearner(lambda: None, **{name: value})


@pytest.mark.parametrize("seeds", ["[{x: 1}]", "[[1, 2]]", "[0, {}]", "[null]", "{a: 1}"])
def test_seeds_of_a_suite_that_are_no_numbers(tmp_path, seeds):
    text = re.sub(r"^seeds:.*$", f"seeds: {seeds}", find_suite("core").read_text(), count=1, flags=re.MULTILINE)
    assert seeds in text
    (tmp_path / "suite.yaml").write_text(text)
    with pytest.raises(ArgumentError, match="seeds"):
        read_suite(tmp_path / "suite.yaml")


def test_numbers_of_any_library_are_numbers():
    assert check_whole("k", np.int8(3), 1) == 3
    assert check_real("x", np.float32(0.5)) == 0.5
    with pytest.raises(ArgumentError, match="above 0"):
        check_real("x", 10**400, above=0)


def test_odd_ids_labels_and_classes():
    made = session(None)
    for ids in ([0, [1, 2]], [2**63], [-(2**63) - 1]):
        with pytest.raises(RowError):
            made.tell(ids, [0] * len(ids))
        with pytest.raises(LabelwiseError):
            made.retract(ids)
    with pytest.raises(LabelError, match="below"):
        lw.Session(X, LogisticRegression(), "random+margin", classes=2**64)


@pytest.mark.parametrize("k", [[3], None, "3", float("nan"), 0])
def test_odd_k_of_a_recommended_strategy(k):
    with pytest.raises(LabelwiseError, match="k must be"):
        lw.select("recommended", k, probs=P, embedding=X)


def test_a_basis_with_a_row_whose_squares_overflow():
    odd = np.c_[np.ones(12), X]
    odd[3] = 1e200
    picks = lw.select("volume", 2, basis=odd)
    assert picks.notes["rank_available"] == 1  # next to that row all others are 0
    assert picks.ids.tolist().count(3) == 1


def test_a_number_of_a_record_beyond_every_float():
    line = Record("d/m/random/0", "random", 0, 0, 20, {"accuracy": 0.5}).to_json()
    for name in ('"peak_mb":0.0', '"accuracy":0.5'):
        assert name in line
        with pytest.raises(StoreError, match="number of a record"):
            from_json(line.replace(name, name.split(":")[0] + ":1" + "0" * 400))
