"""Links in a folder from someone else lead nothing that is written to a file of its reader, such as a shell profile."""

import contextlib
import os
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import labelwise as lw
from labelwise.cli import app
from labelwise.errors import StoreError
from labelwise.io.files import refuse_links
from labelwise.project import Project, Settings
from labelwise.project.backup import back_up
from labelwise.project.page_lock import page_address

X = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)


@pytest.fixture
def profile(tmp_path):
    """A file of the reader, as `~/.profile` is."""
    path = tmp_path / "profile"
    path.write_text("export A=1\n")
    yield path
    assert path.read_text() == "export A=1\n"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "rows.csv").write_text("a,b\n" + "".join(f"{n},{n * n}\n" for n in range(30)))
    settings = Settings(name="t", kind="table", source="../rows.csv", columns=("a", "b"), classes=("x", "y"), k=5)
    Project.create(tmp_path / "project", settings).close()
    return tmp_path / "project"


WRITTEN = ("log.txt", "worker.json", "worker.lock", "page.lock", "page.key", "meter.json", "rounds/001/model.npz")


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITTEN)
def test_a_project_with_a_link_is_not_opened(folder, profile, name):
    (folder / name).unlink(missing_ok=True)
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(profile)
    with pytest.raises(StoreError, match=f"{name} is a link to .*profile"):
        Project.open(folder)
    for words in (["resume", "--no-open"], ["status"], ["report"], ["annotators", "add"], ["backup"], ["export"]):
        more = {"annotators": ["ann"], "backup": ["--to", "b"], "export": ["--to", "e.csv"]}.get(words[0], [])
        done = CliRunner().invoke(app, [*words[:1], *words[1:2], str(folder), *words[2:], *more])
        assert isinstance(done.exception, StoreError | SystemExit), words
    assert "is a link" in CliRunner().invoke(app, ["doctor", str(folder), "--repair"]).stdout
    with pytest.raises(StoreError, match="is a link"):
        back_up(folder, folder.parent / "p.backup")


def test_a_folder_of_rounds_may_not_be_elsewhere_and_large_data_may(folder, tmp_path):
    shutil.move(folder / "features", tmp_path / "other disk")
    (folder / "features").symlink_to(tmp_path / "other disk", target_is_directory=True)
    Project.open(folder).close()
    (tmp_path / "elsewhere").mkdir()
    (folder / "rounds" / "009").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    with pytest.raises(StoreError, match="009 is a link"):
        Project.open(folder)


def test_a_session_with_a_link_is_not_loaded(tmp_path, profile):
    learner = lw.TorchLearner(torch.nn.Linear(3, 2), epochs=1)
    session = lw.Session(X, learner, recipe="random", classes=2, folder=tmp_path / "s", seed=0)
    session.tell([0, 1], [0, 1])
    for name in ("asked.json", "model.bin", "answers.jsonl.head"):
        original = (tmp_path / "s" / name).read_bytes() if (tmp_path / "s" / name).exists() else None
        (tmp_path / "s" / name).unlink(missing_ok=True)
        (tmp_path / "s" / name).symlink_to(profile)
        with pytest.raises(StoreError, match="is a link to"):
            lw.Session.load(tmp_path / "s", X, learner)
        (tmp_path / "s" / name).unlink()
        if original is not None:
            (tmp_path / "s" / name).write_bytes(original)
    lw.Session.load(tmp_path / "s", X, learner)


def test_a_journal_with_a_link_is_not_resumed(tmp_path, profile):
    (tmp_path / "j").mkdir()
    (tmp_path / "j" / "lock").symlink_to(profile)
    with pytest.raises(StoreError, match="lock is a link to"):
        lw.select("kcenter", 3, embedding=X, folder=tmp_path / "j")


def test_links_are_found_at_any_depth_and_loops_end(tmp_path):
    refuse_links(tmp_path / "nothing")
    (tmp_path / "a" / "b").mkdir(parents=True)
    refuse_links(tmp_path)
    (tmp_path / "a" / "b" / "up").symlink_to(tmp_path, target_is_directory=True)
    with pytest.raises(StoreError, match="up is a link"):
        refuse_links(tmp_path)
    with contextlib.suppress(OSError):
        os.unlink(tmp_path / "a" / "b" / "up")
    (tmp_path / "features").symlink_to(tmp_path / "a")
    refuse_links(tmp_path, ("features",))
    (tmp_path / "a" / "features").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="is a link"):
        refuse_links(tmp_path, ("features",))  # at the top alone


def test_the_address_in_a_lock_that_nobody_holds_is_not_told(folder):
    """The links of annotators begin with it: a planted one would send tokens elsewhere."""
    import json

    from labelwise.io.checked import with_checksum
    from labelwise.project.page_lock import page_lock

    planted = {"pid": 1, "host": "h", "link": "http://evil.example/"}
    (folder / "page.lock").write_text(json.dumps(with_checksum(planted)))
    assert page_address(folder) == ""
    assert "evil" not in CliRunner().invoke(app, ["annotators", "add", str(folder), "ann"]).stdout
    with page_lock(folder, "http://127.0.0.1:9/"):
        assert page_address(folder) == "http://127.0.0.1:9/"
