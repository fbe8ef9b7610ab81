"""The ledger: views against a slow model, and what a killed writer or a damaged file leaves."""

import contextlib
import json
import multiprocessing
import os
import threading
import time

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings

from labelwise.errors import LabelError, RowError, StoreError
from labelwise.io.chain import Link, head_file, write_head
from labelwise.io.files import open_locked, write_bytes
from labelwise.pool import Entry, Ledger

numbers = st.one_of(st.integers(-5, 5), st.floats(allow_nan=False, allow_infinity=False))


@st.composite
def entries(draw):
    ids = draw(st.lists(st.integers(0, 12), min_size=1, max_size=5, unique=True))
    labels = draw(st.lists(numbers, min_size=len(ids), max_size=len(ids)))
    weights = draw(st.none() | st.lists(st.floats(0, 10), min_size=len(ids), max_size=len(ids)))
    notes = draw(st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2))
    return Entry(draw(st.integers(0, 9)), ids, labels, weights, draw(st.text(max_size=5)), notes)


def slow(some):
    """For each id: first round, last label, last weight."""
    model = {}
    for entry in some:
        for place, id in enumerate(entry.ids):
            row = model.setdefault(id, {"round": entry.round, "weight": 1.0})
            row["label"] = entry.labels[place]
            if entry.weights is not None:
                row["weight"] = entry.weights[place]
    return model


@settings(max_examples=100, deadline=None)
@given(st.lists(entries(), max_size=6))
def test_views_equal_a_slow_model(some):
    ledger = Ledger()
    for entry in some:
        ledger.append(entry)
    model = slow(some)
    assert ledger.entries == tuple(some)
    assert ledger.labelled.tolist() == list(model)
    assert ledger.labels.tolist() == [row["label"] for row in model.values()]
    assert ledger.weights.tolist() == [row["weight"] for row in model.values()]
    assert ledger.round_of == {id: row["round"] for id, row in model.items()}
    assert ledger.free(torch.arange(15, -1, -1)).tolist() == [id for id in range(15, -1, -1) if id not in model]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(entries(), min_size=1, max_size=4), st.data())
def test_a_file_cut_at_any_byte_loses_only_what_was_cut(tmp_path, some, data):
    path = tmp_path / "ledger.jsonl"
    for old in (path, head_file(path)):
        old.unlink(missing_ok=True)
    ledger = Ledger(path)
    ends = [0]
    for entry in some:
        ledger.append(entry)
        ends.append(path.stat().st_size)
    assert Ledger(path).entries == tuple(some)
    cut = data.draw(st.integers(0, ends[-1]))
    os.truncate(path, cut)
    left = sum(end - 1 <= cut for end in ends[1:])  # the line end alone is no loss
    torn = cut - ends[left] if cut > ends[left] else 0
    if left < len(some):
        with pytest.raises(StoreError, match=rf"was cut off: it has {left} entries, {len(some)} were written"):
            Ledger(path)
    write_head(path, ledger._links[left])  # as after a kill: what was not whole was not noted
    with pytest.warns(UserWarning, match=f"last {torn} bytes") if torn else contextlib.nullcontext():
        opened = Ledger(path)
    assert opened.entries == tuple(some[:left])
    assert path.stat().st_size == cut  # opening changes nothing
    opened.append(some[0])
    assert Ledger(path).entries == (*some[:left], some[0])


def test_dtype_of_labels():
    ledger = Ledger()
    assert ledger.labels.tolist() == []
    assert ledger.labelled.dtype == torch.int64
    ledger.add(0, [1], [3])
    assert ledger.labels.dtype == torch.int64
    ledger.add(0, [2], [0.1])
    assert ledger.labels.dtype == torch.float64
    assert ledger.labels.tolist() == [3, 0.1]


def test_add_takes_tensors_arrays_and_lists(tmp_path):
    ledger = Ledger(tmp_path / "deep" / "ledger.jsonl")
    ledger.add(0, torch.tensor([3, 1]), np.array([1, 0]), torch.tensor([0.5, 2.0]), "badge", {"seed": 3})
    ledger.add(1, [np.int64(2)], [torch.tensor(1)], weights=[1])
    ledger.add(1, range(5, 7), np.array([True, False]))
    assert Ledger(ledger.path).entries == ledger.entries
    assert ledger.entries[0] == Entry(0, [3, 1], [1, 0], [0.5, 2.0], "badge", {"seed": 3})
    assert ledger.entries[2].labels == [1, 0]
    assert len(ledger) == 3
    assert [entry.round for entry in ledger] == [0, 1, 1]


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((0, [], []), RowError, "at least one id"),
        ((0, [1, 1], [0, 0]), RowError, "id 1 occurs more than once"),
        ((0, [1, 2], [0]), RowError, "labels: one for each of the 2 ids"),
        ((0, [1.5], [0]), RowError, "whole numbers, not 1.5"),
        ((-1, [1], [0]), RowError, "round"),
        ((0, [4], [float("nan")]), LabelError, "row 4: nan in labels"),
        ((0, [4], ["cat"]), LabelError, "row 4: 'cat'"),
        ((0, [4], [None]), LabelError, "row 4: None"),
        ((0, [4], [10**400]), LabelError, "row 4"),
        ((0, [4], [1], [-0.5]), RowError, "row 4: its weight is -0.5"),
        ((0, [4], [1], [1.0, 2.0]), RowError, "weights: one for each"),
        ((0, [4], [1], None, "s", {"f": {1, 2}}), StoreError, "JSON"),
    ],
)
def test_a_bad_entry_is_refused_and_leaves_no_trace(tmp_path, arguments, error, text):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(0, [9], [1])
    before = ledger.path.read_bytes()
    with pytest.raises(error, match=text):
        ledger.add(*arguments)
    assert ledger.path.read_bytes() == before
    assert len(ledger) == 1


GOOD = Entry(0, [1], [1]).to_json().encode()


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"[1, 2]",
        b"\xff\xfe",
        GOOD[:-5],
        b'{"round": 0, "ids": [1]}',
        b'{"round": 0, "ids": [1], "labels": [1], "colour": 3}',
        b'{"round": 0, "ids": [1], "labels": [1, 2]}',
        b'{"round": 0, "ids": [1], "labels": [NaN]}',
        b'{"round": 0, "ids": 7, "labels": [1]}',
        GOOD + GOOD,
    ],
)
def test_anything_else_broken_names_file_and_line(tmp_path, line):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(GOOD + b"\n" + line + b"\n" + GOOD + b"\n")
    with pytest.raises(StoreError, match=r"ledger\.jsonl line 2: not an entry"):
        Ledger(path)


def test_two_writers_are_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    first, second = Ledger(path), Ledger(path)
    first.add(0, [1], [1])
    with pytest.raises(StoreError, match="another process"):
        second.add(0, [2], [1])
    assert len(second) == 0
    assert Ledger(path).labelled.tolist() == [1]


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.add(0, [1], [1])
    write = os.pwrite

    def half(handle, data, at):
        if len(data) < 10:
            raise OSError(28, "No space left on device")
        return write(handle, data[: len(data) - 5], at)

    monkeypatch.setattr(os, "pwrite", half)
    with pytest.raises(StoreError, match="No space left"):
        ledger.add(1, [2], [0])
    monkeypatch.undo()
    assert len(ledger) == 1
    assert Ledger(path).labelled.tolist() == [1]
    ledger.add(1, [3], [0])
    assert Ledger(path).labelled.tolist() == [1, 3]


def test_the_entry_is_on_disk_before_it_counts(tmp_path, monkeypatch):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    seen = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (seen.append((len(ledger), path.read_bytes())), sync(handle)))
    ledger.add(0, [1], [1])
    assert seen[0][0] == 0
    assert json.loads(seen[0][1])["ids"] == [1]


def append_many(path, worker, count, told):
    ledger, number = Ledger(path), 0
    while number < count:
        try:
            ledger.add(number, [1000 * worker + number], [worker])
        except StoreError:
            ledger = Ledger(path)
        else:
            told.put(1000 * worker + number)
            number += 1


@pytest.mark.slow
def test_processes_on_one_file_lose_nothing(tmp_path):
    path, context = tmp_path / "ledger.jsonl", multiprocessing.get_context("spawn")
    told = context.Queue()
    workers = [context.Process(target=append_many, args=(path, worker, 40, told), daemon=True) for worker in range(4)]
    for worker in workers:
        worker.start()
    acknowledged = [told.get(timeout=60) for _ in range(160)]
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0, 0]
    assert len(path.read_bytes().splitlines()) == 160
    assert sorted(Ledger(path).labelled.tolist()) == sorted(acknowledged)


def test_the_file_is_locked_while_an_entry_is_written(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "ledger.jsonl"
    ledger, seen = Ledger(path), []
    write = os.pwrite

    def try_lock(handle, data, at):
        with path.open("rb") as other, pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        seen.append(at)
        return write(handle, data, at)

    monkeypatch.setattr(os, "pwrite", try_lock)
    ledger.add(0, [1], [1])
    assert seen == [0]


def test_a_lock_that_is_never_given_back_is_an_error(tmp_path):
    fcntl = pytest.importorskip("fcntl")
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path, lock_timeout=0.02)
    ledger.add(0, [1], [1])
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(StoreError, match="locked by another process"):
            ledger.add(0, [2], [1])
    ledger.add(0, [3], [1])
    assert Ledger(path).labelled.tolist() == [1, 3]


def test_without_locks_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("labelwise.io.files.fcntl", None)
    Ledger(tmp_path / "ledger.jsonl").add(0, [1], [1])
    assert Ledger(tmp_path / "ledger.jsonl").labelled.tolist() == [1]


def test_a_torn_line_replaced_by_an_entry_of_its_length_is_noticed(tmp_path):
    path = tmp_path / "ledger.jsonl"
    line = Entry(0, [1], [1]).to_json().encode() + b"\n"
    added = len(Link().after(b"{}").write(Entry(0, [2], [1]).to_json().encode())) + 1
    path.write_bytes(line + b"x" * added)
    with pytest.warns(UserWarning, match=rf"ledger\.jsonl: its last {added} bytes"):
        first, second = Ledger(path), Ledger(path)
    first.add(0, [2], [1])
    assert path.stat().st_size == len(line) + added
    with pytest.raises(StoreError, match="another process"):
        second.add(0, [3], [1])
    assert Ledger(path).labelled.tolist() == [1, 2]


def test_an_entry_that_lacks_only_its_line_end_counts(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.add(0, [1], [1])
    ledger.add(1, [2], [0])
    path.write_bytes(path.read_bytes()[:-1])
    again = Ledger(path)
    assert again.labelled.tolist() == [1, 2]
    again.add(2, [3], [1])
    again.add(2, [4], [1])
    assert Ledger(path).labelled.tolist() == [1, 2, 3, 4]
    assert len(path.read_bytes().splitlines()) == 4


def test_a_file_that_is_gone_is_not_made_anew(tmp_path):
    path = tmp_path / "ledger.jsonl"
    ledger = Ledger(path)
    ledger.add(0, [1], [1])
    path.unlink()
    with pytest.raises(StoreError, match=r"ledger\.jsonl.*could not be written"):
        ledger.add(0, [2], [1])
    assert not path.exists()


def _written(path, count=5):
    ledger = Ledger(path)
    for row in range(count):
        ledger.add(row, [row, row + 100], [1, 0], [1.5, 2.5], "badge", {"seed": row})
    return ledger


def test_every_change_of_a_byte_is_found(tmp_path):
    path = tmp_path / "ledger.jsonl"
    _written(path)
    data = path.read_bytes()
    for at in range(len(data) - 1):  # the last line end alone may go
        path.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(StoreError, match=r"ledger\.jsonl.* restore it from a copy, or run `labelwise doctor"):
            Ledger(path)


def test_every_change_of_a_byte_of_the_head_is_found(tmp_path):
    path = tmp_path / "ledger.jsonl"
    _written(path)
    data = head_file(path).read_bytes()
    found = 0
    for at in range(len(data)):
        head_file(path).write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        try:
            assert len(Ledger(path)) == 5  # a change of the spaces changes nothing
        except StoreError:
            found += 1
    assert found >= len(data.rstrip())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda lines: lines[:-1], "was cut off: it has 4 entries, 5 were written"),
        (lambda lines: [], "was cut off: it has 0 entries, 5 were written"),
        (lambda lines: lines[:2] + lines[3:], "line 3: .*it is entry 4, so 1 before it are missing"),
        (lambda lines: lines[1:], "line 1: .*it is entry 2, so 1 before it are missing"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1: "),
        (lambda lines: [*lines, lines[-1]], "line 6: "),
        (lambda lines: [*lines[:3], Entry(3, [3], [0]).to_json().encode() + b"\n", lines[4]], "line 4: .*are missing"),
    ],
)
def test_what_is_missing_or_moved_is_named(tmp_path, change, text):
    path = tmp_path / "ledger.jsonl"
    _written(path)
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(StoreError, match=text):
        Ledger(path)


def test_a_ledger_that_is_gone_or_its_head_is_named(tmp_path):
    path = tmp_path / "ledger.jsonl"
    _written(path)
    head_file(path).rename(tmp_path / "away")
    with pytest.raises(StoreError, match=r"ledger\.jsonl\.head is missing"):
        Ledger(path)
    (tmp_path / "away").rename(head_file(path))
    path.unlink()
    with pytest.raises(StoreError, match=r"ledger\.jsonl is missing; 5 entries were written"):
        Ledger(path)


def test_a_ledger_of_an_early_version_is_vouched_for_once_it_is_opened(tmp_path):
    path = tmp_path / "ledger.jsonl"
    lines = [Entry(row, [row], [1]).to_json().encode() + b"\n" for row in range(3)]
    path.write_bytes(b"".join(lines))
    Ledger(path)
    path.write_bytes(b"".join(lines).replace(b'"ids":[1]', b'"ids":[7]'))
    with pytest.raises(StoreError, match="its first 3 entries are not those that were written"):
        Ledger(path)
    path.write_bytes(b"".join(lines))
    Ledger(path).add(4, [9], [1])
    path.write_bytes(path.read_bytes().replace(b'"ids":[1]', b'"ids":[7]'))
    with pytest.raises(StoreError, match=r"line 4: .*digest"):
        Ledger(path)


def test_a_head_that_is_behind_after_a_kill_is_no_error(tmp_path):
    path = tmp_path / "ledger.jsonl"
    before = _written(path)._links[4]
    write_head(path, before)
    assert len(Ledger(path)) == 5


def test_an_entry_is_not_added_to_a_file_that_was_replaced_meanwhile(tmp_path):
    """As by a repair: the entry would be acknowledged and then gone with the old file."""
    path = tmp_path / "answers.jsonl"
    ledger = Ledger(path)
    ledger.add(0, [0], [1])
    data, said = path.read_bytes(), []

    def add():
        try:
            ledger.add(1, [1], [0])
        except StoreError as error:
            said.append(str(error))

    with open_locked(path, os.O_RDONLY):
        waiting = threading.Thread(target=add)
        waiting.start()
        time.sleep(0.1)
        write_bytes(path, data)
    waiting.join()
    assert ["was replaced by another process" in one for one in said] == [True]
    assert len(ledger) == len(Ledger(path)) == 1
