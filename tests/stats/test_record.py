"""Records: round trip, wrong fields, torn and broken files, atomic writing."""

import dataclasses
import json
import math
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labelwise.errors import StoreError
from labelwise.stats.record import Record, append, from_json, read_records, write


def make(seed: int = 0, round: int = 0, **changes: object) -> Record:
    record = Record(
        run=f"digits/mlp/badge/{seed}",
        strategy="badge",
        seed=seed,
        round=round,
        labels=20 + 20 * round,
        metrics={"accuracy": 0.5, "nll": 1.25},
        select_seconds=0.5,
        train_seconds=1.5,
        read_seconds=0.25,
        peak_mb=12.0,
        picked=[3, 1],
        notes={"trace": [1, 2.5, None, True], "é": {"x": "\u2028"}},
        environment={"torch": "2.13.0"},
    )
    return dataclasses.replace(record, **changes)  # type: ignore[arg-type]


def test_a_record_is_one_line_and_comes_back():
    line = make().to_json()
    assert "\n" not in line
    assert line.isascii()
    assert from_json(line) == make()


text = st.text(alphabet=st.characters(codec="utf-8"), min_size=1, max_size=8)
number = st.floats(min_value=0, allow_nan=False)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    strategy=text,
    seed=st.integers(),
    labels=st.integers(0, 10**12),
    metrics=st.dictionaries(text, st.floats(allow_nan=False), max_size=3),
    seconds=number,
    picked=st.lists(st.integers(0, 2**62), max_size=4),
    notes=st.dictionaries(text, st.recursive(st.none() | st.booleans() | st.integers() | text, st.lists), max_size=3),
)
def test_any_record_comes_back(strategy, seed, labels, metrics, seconds, picked, notes):
    record = Record("r", strategy, seed, 0, labels, metrics, seconds, picked=picked, notes=notes)
    assert from_json(record.to_json()) == record


def test_values_that_are_not_finite_are_strict_json_and_come_back():
    line = make(metrics={"nll": math.inf, "r2": -math.inf, "x": math.nan}, notes={"x": [math.nan]}).to_json()
    json.loads(line, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = from_json(line)
    assert back.metrics["nll"] == math.inf
    assert back.metrics["r2"] == -math.inf
    assert math.isnan(back.metrics["x"])


WRONG = [
    ("run", ""),
    ("strategy", 3),
    ("seed", "0"),
    ("seed", True),
    ("round", -1),
    ("labels", 2.5),
    ("metrics", [1]),
    ("metrics", {"accuracy": "good"}),
    ("select_seconds", None),
    ("train_seconds", -1.0),
    ("peak_mb", "much"),
    ("picked", {"0": 1}),
    ("picked", [1, 2.5]),
    ("notes", None),
    ("environment", {"torch": 2}),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_field_is_named_when_read_and_when_written(name, value):
    values = json.loads(make().to_json())
    with pytest.raises(StoreError, match=rf"The field {name}\b"):
        from_json(json.dumps({**values, name: value}))
    with pytest.raises(StoreError, match=rf"The field {name}\b"):
        make(**{name: value}).to_json()


def test_a_missing_and_an_unknown_field_are_named():
    values = json.loads(make().to_json())
    with pytest.raises(StoreError, match="has no field 'colour'"):
        from_json(json.dumps({**values, "colour": 1}))
    del values["labels"]
    with pytest.raises(StoreError, match="needs the field 'labels'"):
        from_json(json.dumps(values))
    with pytest.raises(StoreError, match="JSON object"):
        from_json("[1]")


def test_a_note_that_json_cannot_hold_is_named():
    with pytest.raises(StoreError, match=r"notes\['a'\]\[1\].*ndarray"):
        make(notes={"a": [1, np.zeros(2)]}).to_json()


def test_write_append_read(tmp_path):
    path = tmp_path / "deep" / "records.jsonl"
    append(path, make(round=0))
    append(path, make(round=1))
    assert read_records(path) == [make(round=0), make(round=1)]
    write(path, [make(seed=7)])
    append(path, make(seed=8))
    assert [r.seed for r in read_records(path)] == [7, 8]


@pytest.mark.parametrize("cut", [1, 2, 10, 200])
def test_a_torn_last_line_is_dropped_and_append_goes_on(tmp_path, cut):
    path = tmp_path / "records.jsonl"
    write(path, [make(round=0), make(round=1)])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) - cut])
    left = [make(round=0)] if cut > 1 else [make(round=0), make(round=1)]  # without its line end a record is whole
    assert read_records(path) == left
    append(path, make(round=2))
    assert read_records(path) == [*left, make(round=2)]


@settings(max_examples=40, deadline=None)
@given(cut=st.integers(0, 1500))
def test_a_file_cut_anywhere_gives_whole_records(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "records.jsonl"
    all_of_them = [make(round=i) for i in range(4)]
    write(path, all_of_them)
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    found = read_records(path)
    assert found == all_of_them[: len(found)]
    assert len(found) in (whole[:cut].count(b"\n"), whole[: cut + 1].count(b"\n"))


def test_a_long_torn_line_is_found_from_its_start(tmp_path):
    path = tmp_path / "records.jsonl"
    write(path, [make()])
    with open(path, "ab") as file:
        file.write(make(picked=list(range(60_000))).to_json().encode()[:-5])
    append(path, make(seed=2))
    assert read_records(path) == [make(), make(seed=2)]


@pytest.mark.parametrize("broken", [b"{broken}", b"", b"\xff\xfe", b'{"run":"x"}', b"NaN", b"[" * 100_000])
def test_a_broken_line_names_file_and_line(tmp_path, broken):
    path = tmp_path / "records.jsonl"
    line = make().to_json().encode()
    path.write_bytes(b"\n".join([line, broken, line]) + b"\n")
    with pytest.raises(StoreError, match=r"records\.jsonl, line 2"):
        read_records(path)


def test_a_missing_file_and_an_empty_file(tmp_path):
    with pytest.raises(StoreError, match="nowhere"):
        read_records(tmp_path / "nowhere")
    (tmp_path / "empty").touch()
    assert read_records(tmp_path / "empty") == []


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_an_exception_in_the_middle_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "records.jsonl"
    write(path, [make(seed=1)])

    def records():
        yield make(seed=2)
        raise error

    with pytest.raises(error):
        write(path, records())
    assert read_records(path) == [make(seed=1)]
    assert os.listdir(tmp_path) == ["records.jsonl"]


def test_a_record_that_cannot_be_written_leaves_the_file(tmp_path):
    path = tmp_path / "records.jsonl"
    append(path, make())
    with pytest.raises(StoreError, match="seed"):
        append(path, make(seed="x"))
    assert read_records(path) == [make()]


def test_no_flipped_bit_of_a_file_is_read_as_another_record(tmp_path):
    path = tmp_path / "records.jsonl"
    records = [make(round=number) for number in range(2)]
    for record in records:
        append(path, record)
    content = path.read_bytes()
    for bit in range(8 * (len(content) - 1)):  # without the last line end, whose loss costs a line and changes none
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            found = read_records(path)
        except StoreError:
            continue
        assert found == records, bit


def test_lines_of_early_versions_have_no_checksum(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(make(round=0).to_json() + "\n")
    append(path, make(round=1))
    assert [record.round for record in read_records(path)] == [0, 1]
