"""Doctor of a session's folder: every damage is found and named, the good part stays, nothing is thrown away."""

import json
import re
import warnings

import numpy as np
import pytest
from torch import nn
from typer.testing import CliRunner

import labelwise as lw
from labelwise.cli import app
from labelwise.errors import StoreError
from labelwise.pool.ledger import Entry
from labelwise.session.repair import check_session

X = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
Y = (X[:, 0] > 0).astype(int)


@pytest.fixture
def folder(tmp_path):
    """A session with five entries, a fit and a batch that waits for its answers."""
    session = lw.Session(X, _learner(), recipe="kcenter", classes=2, folder=tmp_path / "s")
    for start in range(0, 20, 4):
        session.tell(range(start, start + 4), Y[start : start + 4])
    session.ask(3)
    return tmp_path / "s"


def _learner():
    return lw.TorchLearner(nn.Linear(3, 2), epochs=1, restart=False)


def _labelled(folder):
    return sorted(lw.Session.load(folder, X, _learner()).labelled.tolist())


def _lines(folder):
    return (folder / "answers.jsonl").read_bytes().splitlines(keepends=True)


def _write(folder, lines):
    (folder / "answers.jsonl").write_bytes(b"".join(lines))


def test_a_whole_folder_is_whole(folder):
    assert {path.name for path in folder.iterdir()} >= {"session.json", "answers.jsonl", "asked.json", "model.bin"}
    assert check_session(folder) == check_session(folder, repair=True) == []


@pytest.mark.parametrize(
    ("harm", "fault", "rows"),
    [
        (lambda lines: lines[:-1], "the last 1 entries are missing", range(16)),
        (
            lambda lines: [*lines[:2], *lines[3:]],
            "line 3: 1 entries before it are missing",
            [*range(8), *range(12, 20)],
        ),
        (lambda lines: [*lines[:2], lines[2].replace(b'"labels":[', b'"labels":[1'), *lines[3:]], "line 3: ", None),
        (lambda lines: [*lines[:2], b"noise\n", *lines[3:]], "line 3: .*set aside", None),
        (lambda lines: [*lines[:4], lines[4][:20]], "line 5: .*set aside", range(16)),
    ],
)
def test_a_damaged_ledger_keeps_its_good_part(folder, harm, fault, rows):
    lines = harm(_lines(folder))
    _write(folder, lines)
    before = (folder / "answers.jsonl").read_bytes()
    assert any(re.search(fault, one) for one in check_session(folder))
    with pytest.raises(StoreError, match="doctor"):
        _labelled(folder)
    check_session(folder, repair=True)
    assert check_session(folder) == []
    rows = [*range(8), *range(12, 20)] if rows is None else [*rows]
    assert _labelled(folder) == rows
    (aside,) = folder.glob("answers.jsonl.damaged-*")
    assert aside.read_bytes() == before


@pytest.mark.parametrize("name", ["asked.json", "model.bin"])
def test_what_can_be_made_again_is_set_aside(folder, name):
    path = folder / name
    data = path.read_bytes()
    path.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(StoreError):
        lw.Session.load(folder, X, _learner()).ask(3)
    (fault,) = check_session(folder, repair=True)
    assert name in fault
    assert "Set aside" in fault
    lw.Session.load(folder, X, _learner()).ask(3)


@pytest.mark.parametrize("others", ["other labels", "before"])
def test_a_batch_and_a_fit_of_other_answers_are_named_and_left_out(folder, tmp_path, others):
    """As after a copy of one file alone: the files are whole, and do not belong together."""
    session = lw.Session(X, _learner(), recipe="kcenter", classes=2, folder=tmp_path / "other")
    for start in range(0, 20 if others == "other labels" else 8, 4):
        labels = Y[start : start + 4]
        session.tell(range(start, start + 4), 1 - labels if others == "other labels" else labels)
    for name in ("answers.jsonl", "answers.jsonl.head"):
        (folder / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.warns(UserWarning, match="is left out: it") as warned:
        again = lw.Session.load(folder, X, _learner())
    assert ["asked.json" in str(one.message) for one in warned] == [True, False]
    assert ["model.bin" in str(one.message) for one in warned] == [False, True]
    assert len(again.labelled) == (20 if others == "other labels" else 8)
    assert (again.state().pending, again.state().fit) == (None, None)
    faults = check_session(folder, repair=True)
    assert ["asked.json" in faults[0], "model.bin" in faults[1], len(faults)] == [True, True, 2]
    assert check_session(folder) == []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lw.Session.load(folder, X, _learner())


def test_settings_that_were_changed_are_not_repaired(folder):
    path = folder / "session.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(StoreError, match=r"session\.json was changed after it was written"):
        _labelled(folder)
    assert "cannot be repaired" in check_session(folder, repair=True)[0]
    assert path.read_text().count('"seed": 1') == 1


def test_a_folder_of_an_early_version_is_upgraded_when_it_is_opened(folder):
    stored = json.loads((folder / "session.json").read_text())
    del stored["checksum"]
    (folder / "session.json").write_text(json.dumps({**stored, "version": 1}))
    asked = json.loads((folder / "asked.json").read_text())
    del asked["checksum"], asked["after"]
    (folder / "asked.json").write_text(json.dumps({**asked, "version": 1, "answers": 4}))
    plain = [Entry(0, [row], [int(Y[row])]).to_json().encode() + b"\n" for row in range(4)]
    _write(folder, plain)
    for name in ("answers.jsonl.head", "model.bin"):
        (folder / name).unlink()
    assert _labelled(folder) == [0, 1, 2, 3]
    assert json.loads((folder / "session.json").read_text())["version"] == 2
    path = folder / "session.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(StoreError, match="was changed"):
        _labelled(folder)


def test_the_command(folder, tmp_path):
    run = lambda *given: CliRunner().invoke(app, ["doctor", *map(str, given)])  # noqa: E731
    found = run(folder)
    assert found.exit_code == 0
    assert "is whole" in found.output
    _write(folder, _lines(folder)[:-1])
    found = run(folder)
    assert found.exit_code == 1
    assert "the last 1 entries are missing" in found.output
    assert "--repair" in found.output
    found = run(folder, "--repair")
    assert found.exit_code == 0
    assert "Repaired" in found.output
    assert isinstance(run(tmp_path / "nothing").exception, StoreError)
