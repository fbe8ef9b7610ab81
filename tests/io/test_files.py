"""Atomic writes, locks and appends, and that no other module has its own."""

import multiprocessing
import os
import re
import stat
from pathlib import Path

import pytest

import labelwise
from labelwise.errors import StoreError
from labelwise.io import files

SOURCES = Path(labelwise.__file__).parent


def test_content_is_replaced_in_one_step(tmp_path):
    path = tmp_path / "new" / "one.bin"
    files.write_bytes(path, [b"first ", b"content"])
    with pytest.raises(TypeError), files.atomic_file(path) as file:
        file.writelines([b"second", "no bytes"])
    assert path.read_bytes() == b"first content"
    assert [one.name for one in path.parent.iterdir()] == ["one.bin"]
    files.write_text(path, "é\r\n")
    assert path.read_bytes() == "é\r\n".encode()


def test_a_link_is_followed_and_the_file_can_be_shared(tmp_path):
    (tmp_path / "target").write_text("old")
    (tmp_path / "link").symlink_to("target")
    files.write_text(tmp_path / "link", "new")
    assert (tmp_path / "target").read_text() == "new"
    assert (tmp_path / "link").is_symlink()
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "target").stat().st_mode) == 0o666 & ~umask


def test_file_and_folder_are_synced_before_it_returns(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def noted(handle):
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    files.write_text(tmp_path / "one", "text")
    assert synced == [False, True]
    with files.atomic_file(tmp_path / "one", durable=False) as file:
        file.write(b"quick")
    assert synced == [False, True]


def test_a_missing_folder_is_not_made_again_by_a_late_writer(tmp_path):
    with pytest.raises(FileNotFoundError), files.atomic_file(tmp_path / "gone" / "one"):
        pass
    assert not (tmp_path / "gone").exists()


def test_a_file_is_created_once(tmp_path):
    path = tmp_path / "secret"
    files.create_file(path, b"first", 0o600)
    files.create_file(path, b"second", 0o600)
    assert path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [one.name for one in tmp_path.iterdir()] == ["secret"]


def _hold(path, ready, done):
    with files.open_locked(path):
        ready.set()
        done.wait(30)


def test_a_lock_is_for_one_process(tmp_path):
    pytest.importorskip("fcntl")
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path / "lock", ready, done), daemon=True)
    other.start()
    assert ready.wait(60)
    with pytest.raises(StoreError, match="locked by another process"), files.open_locked(tmp_path / "lock", timeout=0):
        pass

    def stop():
        raise SystemExit(0)

    with pytest.raises(SystemExit), files.open_locked(tmp_path / "lock", check=stop):
        pass
    done.set()
    with files.open_locked(tmp_path / "lock", timeout=30):
        other.join(30)


@pytest.mark.parametrize("short", [True, False])
def test_an_append_is_whole_or_undone(tmp_path, monkeypatch, short):
    path = tmp_path / "log"
    path.write_bytes(b"one\ntorn")
    write = os.pwrite
    if short:  # a write may take a part of the bytes only
        monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:2], at))
    with files.open_locked(path) as handle:
        files.append_at(handle, b"two\n", 4)
        assert path.read_bytes() == b"one\ntwo\n"

        def full(handle, data, at):
            write(handle, data[:1], at)
            raise OSError("no space left")

        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(OSError, match="no space left"):
            files.append_at(handle, b"three\n", 8)
    assert path.read_bytes() == b"one\ntwo\n"


def test_logs_take_any_text(tmp_path):
    files.append_log(tmp_path / "log.txt", "one \udcff\n")
    files.append_text(tmp_path / "log.txt", "two\n")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d one \?\ntwo\n", (tmp_path / "log.txt").read_text())


def test_there_is_one_writer_one_lock_and_one_append():
    alone = re.compile(r"os\.(fsync|replace|link)\(|flock\(|NamedTemporaryFile|mkstemp|open\([^)\n]*[\"']a[b+]*[\"']")
    found = [
        f"{path.relative_to(SOURCES)}: {line.strip()}"
        for path in SOURCES.rglob("*.py")
        if path != SOURCES / "io" / "files.py"
        for line in path.read_text().splitlines()
        if alone.search(line)
    ]
    assert not found, "use labelwise.io.files instead"
