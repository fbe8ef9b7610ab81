"""`labelwise doctor` on projects: every damaged file is named, and with --repair set aside; no answer is lost."""

import contextlib
import os
import shutil
import sqlite3

import numpy as np
import pytest
from typer.testing import CliRunner

from fake_project import work
from labelwise.cli import app
from labelwise.errors import StoreError
from labelwise.project import Project, Settings
from labelwise.project.data.restore_features import restore_features
from labelwise.project.loop.rounds import read_notes
from labelwise.project.page_lock import page_lock
from labelwise.project.repair import check_project


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A table and a project of it, with two rounds and an unreadable row."""
    home = tmp_path_factory.mktemp("made")
    rows = np.random.default_rng(0).normal(size=(60, 3)).round(4)
    lines = [",".join(map(str, row)) for row in rows]
    (home / "table.csv").write_text("\n".join(["a,b,c", *lines, "1,2,3,4"]) + "\n")
    settings = Settings(
        name="P", kind="table", source="../table.csv", columns=("a", "b", "c"), classes=("no", "yes"), k=8
    )
    with contextlib.closing(Project.create(home / "p", settings)) as project:
        for _ in range(2):
            work(project)
            while (task := project.store.next_task("ann")) is not None:
                project.store.answer(task.token, "ann", "label", ("no", "yes")[int(rows[task.row][0] > 0)], 1.0)
    return home


@pytest.fixture
def folder(made, tmp_path):
    shutil.copytree(made, tmp_path / "home")
    return tmp_path / "home" / "p"


def flip(path, at=-9):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def answers(folder):
    with contextlib.closing(Project.open(folder)) as project:
        return {row: one.value for row, one in project.store.answers().items()}


def test_a_whole_project_is_whole(folder):
    assert check_project(folder) == []
    result = CliRunner().invoke(app, ["doctor", str(folder)])
    assert (result.exit_code, "is whole" in result.output) == (0, True)


FILES = [
    "meter.json",
    "left-out.txt",
    "features/features.npy",
    "features/ids.npy",
    "features/scale.npy",
    "features/about.json",
    "rounds/002/model.npz",
    "rounds/002/suspects.json",
    "rounds/002/notes.json",
]


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_file_is_named_and_set_aside(folder, name):
    before = answers(folder)
    path = folder / name
    flip(path)
    (fault,) = check_project(folder)
    assert path.name in fault or path.parent.name in fault
    damaged = path.read_bytes()
    result = CliRunner().invoke(app, ["doctor", str(folder), "--repair"])
    assert (result.exit_code, "Repaired" in result.output) == (0, True), result.output
    assert any(one.is_file() and one.read_bytes() == damaged for one in folder.rglob("*") if "damaged" in str(one))
    assert check_project(folder) == []
    restore_features(folder, lambda *_: None)
    assert answers(folder) == before
    with contextlib.closing(Project.open(folder)) as project:
        work(project)  # what was set aside is made again
        assert project.meter().round == 3
        assert len(project.store.rounds()) == 3


def test_a_damaged_store_is_repaired(folder):
    before = answers(folder)
    with contextlib.closing(Project.open(folder)) as project:
        token = project.store.events()[5].token.encode()
    data = (folder / "store.db").read_bytes()
    at = data.index(token)
    (folder / "store.db").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(StoreError, match="doctor PROJECT --repair"):
        Project.open(folder)
    result = CliRunner().invoke(app, ["doctor", str(folder), "--repair"])
    assert (result.exit_code, "Repaired" in result.output) == (0, True), result.output
    now = answers(folder)
    assert len(now) >= len(before) - 1
    assert now.items() <= before.items()
    (aside,) = folder.glob("store.damaged-*.jsonl")
    assert aside.with_suffix(".db").is_file()


def test_a_repair_that_is_killed_is_finished_by_the_next_one(folder, monkeypatch):
    """At each change of a name, with part of the store in the write-ahead log; no answer that was good is lost."""
    damaged, killed = folder.with_name("damaged"), 0
    with contextlib.closing(Project.open(folder)) as project, contextlib.closing(sqlite3.connect(folder / "store.db")):
        project.store.note("ann", 0, "in the log", "t")
        shutil.copytree(folder, damaged)
    with contextlib.closing(sqlite3.connect(damaged / "store.db")) as store:
        store.execute("DROP TRIGGER labelwise_event_no_update")
        store.execute("UPDATE labelwise_event SET value = 'other' WHERE seq = 6")
        store.commit()
        shutil.copytree(damaged, folder.with_name("copied"))
    shutil.copytree(folder.with_name("copied"), folder.with_name("repaired"))
    check_project(folder.with_name("repaired"), repair=True)
    expected, notes = answers(folder.with_name("repaired")), []
    assert expected

    class Killed(BaseException):
        """Stands for kill -9."""

    for at in range(1, 50):
        work_on, calls = folder.with_name(f"work{at}"), [0]
        shutil.copytree(folder.with_name("copied"), work_on)

        def dying(call, calls=calls, at=at):
            def called(*arguments, **more):
                calls[0] += 1
                if calls[0] == at:
                    raise Killed
                return call(*arguments, **more)

            return called

        with monkeypatch.context() as patched:
            for name in ("rename", "unlink", "link", "replace"):
                patched.setattr(os, name, dying(getattr(os, name)))
            try:
                check_project(work_on, repair=True)
                break
            except Killed:
                killed += 1
        try:
            Project.open(work_on).close()
        except StoreError as error:
            notes.append(str(error))
        check_project(work_on, repair=True)
        assert check_project(work_on) == []
        assert answers(work_on) == expected, at
    assert killed >= 5
    assert all("doctor PROJECT --repair" in note for note in notes)
    assert any("the repair of" in note and "was interrupted" in note for note in notes)


def test_settings_that_were_changed_are_named(folder):
    path = folder / "project.yaml"
    before = path.read_text()
    path.write_text(before.replace("k: 8", "k: 9"))
    with pytest.raises(StoreError, match=r"project\.yaml was changed .* remove its line `checksum`"):
        Project.open(folder)
    result = CliRunner().invoke(app, ["doctor", str(folder), "--repair"])
    assert (result.exit_code, "cannot be repaired" in result.output) == (1, True)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if not line.startswith("checksum:")))
    with contextlib.closing(Project.open(folder)) as project:  # changed by hand, on purpose
        assert project.settings.k == 9
    assert "checksum: " in path.read_text()
    path.write_text("".join(before.splitlines(keepends=True)[:-3]))  # a file that was cut off
    with pytest.raises(StoreError, match="was changed"):
        Project.open(folder)


def test_a_project_of_version_1_gets_its_checksums(folder):
    lines = (folder / "project.yaml").read_text().splitlines(keepends=True)
    (folder / "project.yaml").write_text("version: 1\n" + "".join(lines[2:]))
    with contextlib.closing(Project.open(folder)):
        pass
    assert (folder / "project.yaml").read_text().splitlines(keepends=True) == lines


def test_rows_of_features_are_checked_when_they_are_read(folder):
    flip(folder / "features" / "features.npy")
    with (
        contextlib.closing(Project.open(folder)) as project,
        pytest.raises(StoreError, match="rows from 0 on were changed"),
    ):
        project.pool.inputs([3])


def test_nothing_is_repaired_under_a_page(folder):
    flip(folder / "meter.json")
    with page_lock(folder, "http://127.0.0.1:1/"), pytest.raises(StoreError, match="runs already"):
        check_project(folder, repair=True)
    assert len(check_project(folder)) == 1


def test_a_file_of_another_round_and_an_empty_one_are_found(folder):
    """They are whole; they do not belong where they are."""
    rounds = folder / "rounds"
    shutil.copy(rounds / "002" / "model.npz", rounds / "001" / "model.npz")
    (folder / "left-out.txt").write_bytes(b"")
    faults = check_project(folder)
    assert ["left-out.txt" in faults[0], "it is the model of round 2" in faults[1], len(faults)] == [True, True, 2]
    assert read_notes(folder, 2) is not None
    shutil.copy(rounds / "001" / "notes.json", rounds / "002" / "notes.json")
    assert read_notes(folder, 2) is None
    check_project(folder, repair=True)
    assert check_project(folder) == []
