"""A project whose page opens before its features are there: random rows first, kills at any moment, the same end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from fake_project import Browser, running
from labelwise.cli import app
from labelwise.errors import ArgumentError, StoreError
from labelwise.project import Project, Settings
from labelwise.project import create as creation
from labelwise.project.create import begin, complete, offer_random
from labelwise.project.data.restore_features import change_encoder, restore_features
from labelwise.project.loop.heartbeat import HeartbeatWriter
from labelwise.project.loop.worker import step
from labelwise.project.settings import read_settings
from labelwise.server import Auth

ROWS = creation.PAGE_FIRST_FROM["pixels"]


def nothing(text: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def pending(tmp_path: Path) -> tuple[Path, Settings]:
    """A folder of images that is large enough for its features to be computed behind; two images are torn."""
    photos = tmp_path / "photos"
    photos.mkdir()
    for at in range(ROWS):
        shade = np.random.default_rng(at).integers(0, 255, (6, 6, 3)) // (1 + at % 2)
        Image.fromarray(shade.astype(np.uint8)).save(photos / f"{at:03d}.png")
    for at in (7, 8):
        (photos / f"{at:03d}.png").write_bytes(b"\x89PNG torn")
    settings = Settings(
        name="photos", kind="image", source="../photos", encoder="pixels", classes=("odd", "even"), k=10,
        recipe="random+margin",
    )  # fmt: skip
    return tmp_path / "project", settings


def answer(project: Project, count: int) -> list[int]:
    rows = []
    for _ in range(count):
        task = project.store.next_task("ann")
        assert task is not None
        assert project.view(task.row).image
        assert project.image(task.row, 64)
        project.store.answer(task.token, "ann", "label", "even" if int(task.ref[:3]) % 2 == 0 else "odd", 1.0)
        rows.append(task.row)
    return rows


def labels(project: Project) -> dict[int, str | None]:
    return {row: one.value for row, one in project.store.answers().items()}


def test_the_first_items_are_the_random_slice_and_are_labelled_before_there_are_features(pending) -> None:
    folder, settings = pending
    with closing(begin(folder, settings, nothing)) as project:
        assert project.pending
        assert read_settings(folder).pending
        assert not (folder / "features").exists()
        assert project.store.next_task("ann").slice == "test"
        early = answer(project, 6)
        complete(project, nothing)
        assert not project.pending
        given = labels(project)
        assert early == project.reserve[:6].tolist()  # the test slice of the finished project
    whole = folder.parent / "whole"
    with closing(Project.create(whole, settings)) as direct, closing(Project.open(folder)) as found:
        assert found.store.items() == direct.store.items()
        assert len(found.store.items()) == ROWS - 2
        assert found.reserve.tolist() == direct.reserve.tolist()
        assert (found.pool.inputs(found.pool.ids) == direct.pool.inputs(direct.pool.ids)).all()
        assert found.settings == direct.settings
        assert found.excluded == direct.excluded
        assert labels(found) == given


def test_more_random_items_are_offered_as_people_answer_and_none_twice(pending) -> None:
    folder, settings = pending
    with closing(begin(folder, settings, nothing)) as project:
        seen: list[int] = []
        for _ in range(4):
            seen += answer(project, 8)
            offer_random(project)
        assert len(set(seen)) == 32
        assert seen == [row for row in project.reserve.tolist() if project.data.refs[row] not in BROKEN][:32]
        assert all(one.notes["early"] for one in project.store.rounds())


BROKEN = ("007.png", "008.png")


def test_a_cold_start_follows_at_once_and_the_share_of_test_items_holds(pending) -> None:
    folder, settings = pending
    with closing(begin(folder, settings, nothing)) as project:
        answer(project, 3)
        heartbeat = HeartbeatWriter(folder)
        try:
            assert step(project, heartbeat)  # features
            assert not project.pending
            while len(project.store.rounds()) == 1:
                assert step(project, heartbeat)  # though 7 random items are not answered yet
        finally:
            heartbeat.close("stopped")
        second = project.store.picks(2)
        assert {pick.slice for pick in second} == {
            "chosen"
        }  # ten test items were asked for before: the share is used up
        assert project.store.rounds()[1].strategy == "random"
        assert project.store.rounds()[1].notes.get("early") is None
        answer(project, 17)
        assert len(labels(project)) == 20


def test_a_kill_between_any_two_steps_loses_no_answer(pending, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, settings = pending

    class Killed(BaseException):
        pass

    def killed(*given: object) -> None:
        raise Killed

    for place in ("_new_store", "offer_random"):  # before the settings are written, and before the first round
        with monkeypatch.context() as patched:
            patched.setattr(creation, place, killed)
            with pytest.raises(Killed):
                begin(folder, settings, nothing)
        assert (folder / "project.yaml").exists() == (place == "offer_random")
    given: dict[int, str | None] = {}
    for place in ("_features", "_items", "_write", ""):
        with closing(Project.open(folder)) as project:
            assert project.pending
            offer_random(project)
            answer(project, 3)
            given = labels(project)
            if place:
                with monkeypatch.context() as patched:
                    patched.setattr(creation, place, killed)
                    with pytest.raises(Killed):
                        complete(project, nothing)
            else:
                complete(project, nothing)
    with closing(Project.open(folder)) as project:
        assert not project.pending
        assert labels(project) == given
        assert len(given) == 12
        assert len(project.store.items()) == ROWS - 2


def test_what_needs_features_says_that_they_are_not_there_yet(pending, tmp_path: Path) -> None:
    folder, settings = pending
    begin(folder, settings, nothing).close()
    with closing(Project.open(folder)) as project:
        with pytest.raises(StoreError, match="still being computed"):
            project.pool  # noqa: B018
        assert project.neighbours(int(project.reserve[0])) == []
        assert project.quality() is None
    run = CliRunner().invoke(app, ["predict", str(folder), "--to", str(tmp_path / "p.csv")])
    assert "a model needs labels" in str(run.exception)
    (tmp_path / "labels.csv").write_text("path,label\n000.png,even\n")
    for words in (["recommend", str(folder)], ["import", str(folder), str(tmp_path / "labels.csv")]):
        run = CliRunner().invoke(app, words)
        assert "still being computed" in str(run.exception)
    assert CliRunner().invoke(app, ["export", str(folder), "--to", str(tmp_path / "l.csv")]).exit_code == 0
    assert CliRunner().invoke(app, ["report", str(folder)]).exit_code == 0
    run = CliRunner().invoke(app, ["status", str(folder)])
    assert run.exit_code == 0
    assert f"{ROWS} image rows, encoder pixels" in run.output
    assert restore_features(folder, nothing) is False


def test_an_encoder_of_other_rows_is_refused_before_the_page_opens(pending) -> None:
    folder, settings = pending
    with pytest.raises(ArgumentError, match="minilm does not work for images"):
        begin(folder, replace(settings, encoder="minilm"), nothing)
    assert not folder.exists()


def test_another_encoder_for_a_pending_project(pending) -> None:
    folder, settings = pending
    with closing(begin(folder, replace(settings, encoder="auto"), nothing)) as project:
        answer(project, 4)
        given = labels(project)
    assert change_encoder(folder, "pixels", nothing)
    with closing(Project.open(folder)) as project:
        assert not project.pending
        assert project.settings.encoder == "pixels"
        assert labels(project) == given


def test_the_page_takes_the_features_when_another_process_has_them(pending) -> None:
    folder, settings = pending
    begin(folder, settings, nothing).close()
    auth = Auth.make(folder)
    with closing(Project.open(folder)) as shown, running(shown, auth) as address, Browser(address, auth) as ann:
        assert "Drawn at random" in ann.get("/card").text
        assert "0 labelled so far" in ann.get("/status").text  # not "of 10": the list of items follows
        assert ann.get("/report").status_code == 200
        assert ann.get("/download/predictions.csv").status_code == 409
        assert ann.get(f"/neighbours/{shown.reserve[0]}").status_code == 200
        with closing(Project.open(folder)) as worker:
            complete(worker, nothing)
        assert shown.pending
        assert shown.refresh()
        assert shown.feature_info.encoder == "pixels"
        assert ann.get("/card").status_code == 200


@pytest.mark.slow
def test_the_command_opens_the_page_a_killed_worker_goes_on_and_answers_stay(pending) -> None:
    """The real command, page and worker; the worker is killed while it computes features."""
    folder, _ = pending
    photos = folder.parent / "photos"
    code = "import sys; from labelwise.cli import main; sys.argv[0] = 'labelwise'; main()"
    arguments = [str(photos), "--project", str(folder), "--classes", "odd,even", "--encoder", "pixels", "--no-open"]
    page = subprocess.Popen(
        [sys.executable, "-c", code, "label", *arguments, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    assert page.stdout is not None
    try:
        lines = []
        for line in page.stdout:
            lines.append(line)
            if "Labelling page: " in line:
                break
        assert "Features are computed while you label." in "".join(lines)
        address = lines[-1].split("Labelling page: ")[1].strip().rstrip("/")
        with closing(Project.open(folder)) as project:
            assert project.pending
        auth = Auth.make(folder)
        with Browser(address, auth) as ann:
            given = _answered(ann, 5)
            killed = _worker_of(page.pid)
            os.kill(killed, signal.SIGKILL)
            given += _answered(ann, 5)
            deadline = time.monotonic() + 120
            while read_settings(folder).pending and time.monotonic() < deadline:
                time.sleep(0.2)
            assert not read_settings(folder).pending
            assert _worker_of(page.pid) != killed
        with closing(Project.open(folder)) as project:
            assert len(labels(project)) == len(set(given)) == 10
            assert set(given) == set(labels(project))
            assert len(project.pool) == ROWS - 2
    finally:
        page.send_signal(signal.SIGINT)
        page.communicate(timeout=30)


def _answered(ann: Browser, count: int) -> list[int]:
    import re

    rows = []
    for _ in range(count):
        card = ann.get("/card").text
        token, row = re.search(r'data-token="([^"]+)"', card), re.search(r'data-row="(\d+)"', card)
        assert token is not None
        assert row is not None
        reply = ann.post("/answer", data={"token": token[1], "kind": "label", "value": "odd", "seconds": "1"})
        assert reply.status_code == 200
        rows.append(int(row[1]))
    return rows


def _worker_of(pid: int) -> int:
    """The process of the worker that this page started, once it runs."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            except OSError:
                continue
            if b"labelwise.project.loop.worker" in words and str(pid).encode() in words:
                return int(entry.name)
        time.sleep(0.1)
    raise AssertionError("no worker runs")
