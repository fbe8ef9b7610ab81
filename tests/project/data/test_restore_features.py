"""Projects that somebody touched: features removed, the store gone or damaged, other options than before."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from labelwise import cli
from labelwise.cli import app, label
from labelwise.cli.bench import _error_line
from labelwise.cli.interrupted import Stopped
from labelwise.errors import ArgumentError, LabelwiseError, SourceError, StoreError
from labelwise.project import Project, Settings
from labelwise.project.data.restore_features import restore_features
from labelwise.project.project import check_store_address
from labelwise.project.settings import new_classes

WORDS = ["cat", "dog", "sun", "rain", "tree", "stone", "car", "bird"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project of twelve texts."""
    lines = "".join(f'"{a} and {b}",{len(a)}\n' for a in WORDS[:4] for b in WORDS[4:7])
    (tmp_path / "texts.csv").write_text("body,n\n" + lines)
    settings = Settings(name="t", kind="text", source="../texts.csv", text="body", encoder="words", classes=("a", "b"))
    Project.create(tmp_path / "p", settings).close()
    return tmp_path / "p"


def quiet(text: str, done: int, total: int) -> None:
    """Nobody listens."""


def test_features_that_are_gone_are_computed_again(folder: Path) -> None:
    before = np.load(folder / "features" / "features.npy")
    assert not restore_features(folder, quiet)
    shutil.rmtree(folder / "features")
    with pytest.raises(StoreError, match="`labelwise resume` computes it again"):
        Project.open(folder)
    assert restore_features(folder, quiet)
    np.testing.assert_array_equal(np.load(folder / "features" / "features.npy"), before)
    Project.open(folder).close()


def without_fingerprint(folder: Path) -> None:
    """Make it a project of before the fingerprint was in project.yaml."""
    path = folder / "project.yaml"
    lines = path.read_text().splitlines(keepends=True)
    others = [line for line in lines if not line.startswith(("fingerprint:", "checksum:"))]
    assert len(others) == len(lines) - 2
    path.write_text("".join(others))


def test_a_table_of_other_values_in_the_same_places_is_refused_also_without_features(folder: Path) -> None:
    table = folder.parent / "texts.csv"
    before = table.read_text()
    shutil.rmtree(folder / "features")
    table.write_text(before.replace("cat", "cow"))
    with pytest.raises(SourceError, match="has changed since the project was made"):
        restore_features(folder, quiet)
    assert not (folder / "features").exists()
    table.write_text(before)
    assert restore_features(folder, quiet)
    Project.open(folder).close()
    table.write_text(before.replace("cat", "cow"))
    with pytest.raises(SourceError, match="has changed since the project was made"):
        Project.open(folder)


def test_a_project_of_before_the_fingerprint_was_kept_still_opens(folder: Path) -> None:
    without_fingerprint(folder)
    Project.open(folder).close()
    shutil.rmtree(folder / "features")
    assert restore_features(folder, quiet)
    Project.open(folder).close()
    table = folder.parent / "texts.csv"
    table.write_text(table.read_text().replace("cat", "cow"))
    with pytest.raises(SourceError, match="has changed since the project was made"):  # by features/about.json
        Project.open(folder)


def test_a_refused_project_leaves_nothing_behind_and_takes_nothing_away(folder: Path) -> None:
    home = folder.parent
    (home / "pictures").mkdir()
    for name in "abcd":
        (home / "pictures" / f"{name}.png").write_bytes(b"no image")
    (home / "there").mkdir()
    (home / "there" / "own.txt").write_text("mine")
    before = sorted(home.rglob("*"))
    text = Settings(name="t", kind="text", source="../../texts.csv", text="body", encoder="words")
    for settings in (
        replace(text, recipe="nothing"),
        replace(text, text="nowhere"),
        replace(text, encoder="nothing"),
        Settings(name="i", kind="image", source="../../pictures", encoder="pixels"),
    ):
        for place in (home / "deep" / "q", home / "there" / "q"):
            with pytest.raises(LabelwiseError):
                Project.create(place, settings)
            assert sorted(home.rglob("*")) == before


def test_features_of_other_rows_are_not_taken(folder: Path) -> None:
    without_fingerprint(folder)
    shutil.rmtree(folder / "features")
    with (folder.parent / "texts.csv").open("a") as file:
        file.write("one more,1\n")
    for _ in range(2):  # what was computed of the wrong rows does not stay
        with pytest.raises(SourceError, match="does not have the 12 rows"):
            restore_features(folder, quiet)


def test_features_that_do_not_fit_the_models_are_not_taken(folder: Path) -> None:
    home = folder / "rounds" / "001"
    home.mkdir(parents=True)
    np.savez(home / "model.npz", weight=np.zeros((2, 999)), bias=np.zeros(2), classes='["a", "b"]', labels=3)
    shutil.rmtree(folder / "features")
    with pytest.raises(StoreError, match="999 features"):
        restore_features(folder, quiet)


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        (lambda path: path.unlink(), "restore it from a backup"),
        (lambda path: path.write_bytes(b""), "Restore it from a backup"),
        (lambda path: path.write_bytes(b"rubbish" * 900), "is damaged"),
        (lambda path: os.truncate(path, 9000), "is damaged"),
    ],
)
def test_a_store_that_is_gone_or_damaged_says_what_to_do(folder: Path, damage, text: str) -> None:
    damage(folder / "store.db")
    with pytest.raises(StoreError, match=text):
        Project.open(folder)


def test_a_project_moved_without_its_data_says_where_to_correct_it(folder: Path) -> None:
    (folder.parent / "deep").mkdir()
    shutil.move(folder, folder.parent / "deep" / "p")
    with pytest.raises(SourceError, match=r"correct `source` in its project\.yaml"):
        Project.open(folder.parent / "deep" / "p")


def test_other_options_than_the_projects_are_not_dropped_in_silence(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(label, "serve_project", lambda *args: None)
    start = ["label", str(folder.parent / "texts.csv"), "--project", str(folder)]
    other = CliRunner().invoke(app, [*start, "--text", "n"])
    assert isinstance(other.exception, ArgumentError)
    assert "made of body" in str(other.exception)
    assert isinstance(CliRunner().invoke(app, [*start, "--features", "n"]).exception, ArgumentError)
    said = CliRunner().invoke(app, [*start, "--text", "body", "-k", "50", "--people", "2"])
    assert said.exit_code == 0
    assert "-k 20; -k 50 is ignored" in said.output
    assert "--people 1; --people 2 is ignored" in said.output
    assert "is ignored" not in CliRunner().invoke(app, start).output


@pytest.mark.parametrize(
    ("classes", "text"),
    [
        ("cat,Cat", "'cat' and 'Cat' differ only by case or space"),
        ("hot dog,hotdog", "'hot dog' and 'hotdog' differ only by case or space"),
        ("cat,dog,cat", "must be different"),
        (f"cat,{'x' * 101}", "1 to 100 characters; found 101"),
    ],
)
def test_names_of_classes_have_the_limits_of_the_page(folder: Path, classes: str, text: str) -> None:
    words = ["label", str(folder.parent / "texts.csv"), "--text", "body", "--classes", classes]
    found = CliRunner().invoke(app, words)
    assert isinstance(found.exception, ArgumentError)
    assert text in str(found.exception)
    assert not (folder.parent / "texts-labelwise").exists()
    assert new_classes(("a  b", "x" * 100)) == ("a b", "x" * 100)
    assert Settings(name="t", kind="text", source="", classes=("cat", "Cat")).classes  # older projects still open


def test_ctrl_c_while_a_project_is_made_says_that_it_can_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("labelwise.project.create.begin", lambda *args: signal.raise_signal(signal.SIGINT))
    with pytest.raises(Stopped, match="130"):
        label.create_project(folder, Settings(name="t", kind="text", source=""))
    assert "The same command continues where it stopped" in capsys.readouterr().err


def test_a_store_that_cannot_be_is_refused_before_features_are_computed(folder: Path) -> None:
    with pytest.raises(ArgumentError, match="--store is postgresql://"):
        check_store_address("mysql://host/x")
    settings = Settings(name="t", kind="text", source="../texts.csv", text="body", store="env:LABELWISE_NO_SUCH_NAME")
    with pytest.raises(StoreError, match="which is not set"):
        Project.create(folder.parent / "q", settings)
    assert not (folder.parent / "q").exists()


def test_a_run_keeps_to_its_folder_and_failures_say_all_their_words(tmp_path: Path) -> None:
    text = "datasets: [digits]\nmodels: [linear]\nstrategies: [margin]\nseeds: 1\nstart: 10\nk: 10\nrounds: 1\n"
    (tmp_path / "c.yaml").write_text("name: ../../away\n" + text)
    found = CliRunner().invoke(app, ["bench", "run", str(tmp_path / "c.yaml"), "--plan"])
    assert "the name of a folder" in str(found.exception)
    odd = CliRunner().invoke(app, ["bench", "run", str(tmp_path / "c.yaml"), "--plan", "--out", "runs [/old]"])
    assert "in runs [/old]" in odd.output
    assert _error_line("Traceback\n  File\nE: needs x with:\n    pip install x\n") == "E: needs x with: pip install x"


def test_a_store_that_cannot_be_written_is_not_taken_for_one_that_is_there(folder: Path) -> None:
    (folder.parent / "q" / "store.db").mkdir(parents=True)
    settings = Settings(name="t", kind="text", source="../texts.csv", text="body", encoder="words")
    with pytest.raises(StoreError, match="failed: unable to open"):
        Project.create(folder.parent / "q", settings)


def test_a_full_disk_is_one_message_and_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "records.jsonl")

    monkeypatch.setattr(cli, "app", full)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 1
    assert "No space left on device: 'records.jsonl'. Check the disk" in capsys.readouterr().err
