"""Backups: written while people label, checked by opening them, and restored anywhere."""

import contextlib
import hashlib
import json
import shutil
import threading
import zipfile

import pytest
from test_project_repair import flip, folder, made, work  # noqa: F401  # fixtures
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.checked import with_checksum, without_checksum
from labelwise.project import Project
from labelwise.project.backup import back_up, restore
from labelwise.project.data.restore_features import restore_features
from labelwise.project.repair import check_project
from labelwise.project.settings import read_settings


def told(where):
    with contextlib.closing(Project.open(where)) as project:
        return project.store.events(), project.store.rounds(), project.meter(), len(project.pool)


def files(where):
    return sorted(path.relative_to(where).as_posix() for path in where.rglob("*"))


def test_there_and_back(folder, tmp_path):  # noqa: F811
    before = told(folder)
    (folder / "page.key").write_bytes(b"secret" * 8)
    result = CliRunner().invoke(app, ["backup", str(folder), "--to", str(tmp_path / "p.backup")])
    assert (result.exit_code, "opened again and checked" in result.output) == (0, True), result.output
    shutil.rmtree(folder)
    result = CliRunner().invoke(app, ["restore", str(tmp_path / "p.backup"), "--to", str(folder)])
    assert (result.exit_code, f"{len(before[0])} events" in result.output) == (0, True), result.output
    assert told(folder) == before
    assert not (folder / "page.key").exists()
    with contextlib.closing(Project.open(folder)) as project:
        work(project)
        assert len(project.store.rounds()) == 3
    assert files(tmp_path)[:2] == ["home", "home/p"]
    assert [name for name in files(tmp_path) if "labelwise-" in name] == []  # nothing temporary is left


def test_a_project_can_be_restored_elsewhere(folder, tmp_path):  # noqa: F811
    """Its data is found where it was, or where the user says."""
    before = told(folder)
    back_up(folder, tmp_path / "p.backup")
    restore(tmp_path / "p.backup", tmp_path / "far" / "away" / "p")
    assert told(tmp_path / "far" / "away" / "p") == before
    (tmp_path / "home" / "table.csv").rename(tmp_path / "moved.csv")
    _, rows = restore(tmp_path / "p.backup", tmp_path / "lost")
    assert not rows.exists()
    restore(tmp_path / "p.backup", tmp_path / "found", tmp_path / "moved.csv")
    assert told(tmp_path / "found") == before


def test_without_features_they_are_computed_again(folder, tmp_path):  # noqa: F811
    before = told(folder)
    back_up(folder, tmp_path / "small", features=False)
    back_up(folder, tmp_path / "large")
    assert (tmp_path / "small").stat().st_size < (tmp_path / "large").stat().st_size
    restore(tmp_path / "small", tmp_path / "p")
    assert not (tmp_path / "p" / "features").exists()
    restore_features(tmp_path / "p", lambda *_: None)
    assert told(tmp_path / "p") == before


def test_a_backup_of_a_project_that_is_used(folder, tmp_path):  # noqa: F811
    """Answers go on meanwhile; the backup has each that was given before it began, and is whole."""
    project, stop, given = Project.open(folder), threading.Event(), []

    def answer():
        while not stop.is_set():
            given.append(project.store.note("ann", 0, "busy", f"t{len(given)}").seq)

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        for number in range(3):
            before = given[-1] if given else 0
            found = back_up(folder, tmp_path / f"{number}.backup")
            restore(tmp_path / f"{number}.backup", tmp_path / str(number))
            assert check_project(tmp_path / str(number)) == []
            assert before <= found.events <= given[-1] + 1
            assert len(told(tmp_path / str(number))[0]) == found.events
    finally:
        stop.set()
        thread.join()
        project.close()


def test_refusals(folder, tmp_path):  # noqa: F811
    for to, error, match in (
        (folder / "x.backup", ArgumentError, "in the project folder"),
        (tmp_path / "none" / "x", StoreError, "does not exist"),
        (tmp_path, StoreError, "already exists"),
    ):
        with pytest.raises(error, match=match):
            back_up(folder, to)
    back_up(folder, tmp_path / "p.backup")
    with pytest.raises(StoreError, match="already exists"):
        back_up(folder, tmp_path / "p.backup")
    back_up(folder, tmp_path / "p.backup", force=True)
    before = files(tmp_path)
    for file, to, data, match in (
        (tmp_path / "p.backup", folder, None, "not empty"),
        (tmp_path / "nothing", tmp_path / "a" / "b", None, "does not exist"),
        (folder / "project.yaml", tmp_path / "a" / "b", None, "cannot be read as a backup"),
        (tmp_path / "p.backup", tmp_path / "a" / "b", tmp_path / "gone", "does not exist"),
    ):
        with pytest.raises((StoreError, ArgumentError), match=match):
            restore(file, to, data)
    assert files(tmp_path) == before


def test_a_damaged_project_is_not_backed_up_as_if_it_were_whole(folder, tmp_path):  # noqa: F811
    flip(folder / "rounds" / "002" / "model.npz")
    with pytest.raises(StoreError, match="the project in it is damaged"):
        back_up(folder, tmp_path / "p.backup")
    assert files(tmp_path) == ["home", *(f"home/{name}" for name in files(tmp_path / "home"))]


def test_damage_and_malice_in_a_backup_are_refused(folder, tmp_path):  # noqa: F811
    path = tmp_path / "p.backup"
    back_up(folder, path)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), len(whole) // 40):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        try:
            restore(path, tmp_path / "p")
        except StoreError:
            refused += 1
            assert not (tmp_path / "p").exists()
        else:  # times and the like, which nothing reads
            assert told(tmp_path / "p") == told(folder)
            shutil.rmtree(tmp_path / "p")
    assert refused >= 30
    for name in ("../out", "/out", "a/../../out", "..\\out", "c:out"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr(name, b"x")
            about = {"format": 1, "made": 1, "data": "x", "events": 0, "rounds": 0, "features": False}
            archive.writestr("backup.json", json.dumps(with_checksum({**about, "files": {name: [1, "x"]}})))
        with pytest.raises(StoreError, match="outside of the project"):
            restore(path, tmp_path / "p")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["page.key", "page.lock", "worker.json"])
def test_a_backup_that_brings_a_secret_of_the_page_is_refused(folder, tmp_path, name):  # noqa: F811
    """Whoever made it would know the links of the restored project."""
    back_up(folder, tmp_path / "p.backup")
    with zipfile.ZipFile(tmp_path / "p.backup") as archive:
        content = {one: archive.read(one) for one in archive.namelist()}
    about = without_checksum(json.loads(content.pop("backup.json")), "", "")
    content[name], about["files"][name] = b"x" * 32, [32, hashlib.sha256(b"x" * 32).hexdigest()]
    with zipfile.ZipFile(tmp_path / "planted.backup", "w") as archive:
        for one, data in content.items():
            archive.writestr(one, data)
        archive.writestr("backup.json", json.dumps(with_checksum(about)))
    with pytest.raises(StoreError, match="has a file that no backup has"):
        restore(tmp_path / "planted.backup", tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_answers_in_postgresql_have_tools_of_their_own(folder, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("STORE", "postgresql://u@h/d")
    settings = read_settings(folder)
    type(settings)(**{**vars(settings), "store": "env:STORE"}).write(folder)
    with pytest.raises(StoreError, match="pg_dump"):
        back_up(folder, tmp_path / "p.backup")


def test_store_db_alone_has_every_answer_up_to_the_last_round(folder, tmp_path):  # noqa: F811
    with contextlib.closing(Project.open(folder)) as project:
        work(project)
        (tmp_path / "copy").mkdir()
        shutil.copy(folder / "store.db", tmp_path / "copy")
        rounds, events = project.store.rounds(), project.store.events()
        from labelwise.project.store import Store

        with contextlib.closing(Store.open(f"sqlite:///{tmp_path}/copy/store.db")) as copy:
            assert copy.rounds() == rounds
            assert copy.events() == events


def test_a_project_moves_to_another_database(folder, tmp_path, new_store_url):  # noqa: F811
    """Every event and round with its number; the project goes on, and nothing of its old store is left."""
    before = told(folder)
    back_up(folder, tmp_path / "p.backup")
    address = new_store_url()
    restore(tmp_path / "p.backup", tmp_path / "moved", store=address)
    assert read_settings(tmp_path / "moved").store == address
    assert not [name for name in files(tmp_path / "moved") if name.startswith("store.db")]
    assert told(tmp_path / "moved") == before
    assert check_project(tmp_path / "moved") == []
    with contextlib.closing(Project.open(tmp_path / "moved")) as project:
        work(project)
        assert len(project.store.rounds()) == 3
    with pytest.raises(StoreError, match="already holds a project"):
        restore(tmp_path / "p.backup", tmp_path / "again", store=address)
    assert not (tmp_path / "again").exists()


def test_a_move_that_fails_leaves_the_database_empty(folder, tmp_path, new_store_url, monkeypatch):  # noqa: F811
    back_up(folder, tmp_path / "p.backup")
    address = new_store_url()
    with monkeypatch.context() as broken:
        broken.setattr("labelwise.project.backup.sync_folder", lambda _: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            restore(tmp_path / "p.backup", tmp_path / "half", store=address)
    restore(tmp_path / "p.backup", tmp_path / "whole", store=address)
    assert check_project(tmp_path / "whole") == []


def test_a_password_is_not_written(folder, tmp_path):  # noqa: F811
    back_up(folder, tmp_path / "p.backup")
    command = ["restore", str(tmp_path / "p.backup"), "--to", str(tmp_path / "p"), "--store", "postgresql://a:b@host/d"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert "contains a password" in str(result.exception)
    assert not (tmp_path / "p").exists()
