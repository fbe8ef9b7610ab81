"""A project from the first row to the last: rounds, test slice, meter, suspects, kills; the same events, same picks."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from fake_project import digits_table, work
from labelwise.cli import app
from labelwise.errors import ArgumentError, MemoryLimitError, SourceError, StoreError
from labelwise.project import Project, Settings
from labelwise.project.loop.heartbeat import Heartbeat, HeartbeatWriter, read_heartbeat
from labelwise.project.loop.holdout import interleaved, reserve, slice_size
from labelwise.project.loop.rounds import make_round
from labelwise.project.loop.snapshot import take_snapshot
from labelwise.project.loop.stored_model import read_model
from labelwise.project.loop.worker import Waits, run, worker_lock
from labelwise.project.project import check_store_address
from labelwise.rng import Key

Y = load_digits().target
N = 260


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of 260 digits as rows of a table, which nobody has touched yet."""
    folder = tmp_path_factory.mktemp("digits")
    Project.create(folder / "project", digits_table(folder, N, 12)).close()
    return folder


@contextlib.contextmanager
def copied(made: Path, tmp_path: Path, name: str = "copy") -> Iterator[Project]:
    shutil.copytree(made, tmp_path / name)
    with contextlib.closing(Project.open(tmp_path / name / "project")) as project:
        yield project


def label_all(project: Project, most: int = 10**9) -> int:
    """Answer as someone who knows the digits; how many there were."""
    count = 0
    while count < most and (task := project.store.next_task("ann")) is not None:
        project.store.answer(task.token, "ann", "label", str(Y[task.row]), 4.0)
        count += 1
    return count


@pytest.mark.slow
def test_a_limit_on_memory_is_checked_when_it_is_given_and_decides_no_pick(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    page = importlib.import_module("labelwise.server.serve")  # the package holds the function of this name
    monkeypatch.setattr(page, "serve", lambda project, **_: opened.append(project.settings.max_memory))

    def label(*words: str) -> BaseException | None:
        named = ["--features", ",".join(f"p{j}" for j in range(64)), "--classes", ",".join("0123456789"), "-k", "12"]
        named += ["--recipe", "typiclust+badge"]  # that of the other project, whatever is recommended
        return CliRunner().invoke(app, ["label", str(made / "digits.csv"), *named, *words]).exception

    new = str(tmp_path / "new")
    refused = label("--project", new, "--max-memory", "1MB")
    assert isinstance(refused, MemoryLimitError)
    assert "max_memory is 1MB, but" in str(refused)
    assert not (tmp_path / "new" / "project.yaml").exists()
    least = f"{-(-refused.smallest // 10**6)}MB"
    assert f"allow {least} or more" in str(refused)
    assert label("--project", new, "--max-memory", least) is None
    assert opened == [least]
    with contextlib.closing(Project.open(tmp_path / "new")) as limited, copied(made, tmp_path) as free:
        for project in (limited, free):
            work(project)
            label_all(project)
            work(project)
        assert limited.session().max_memory == int(least[:-2]) * 10**6
        assert [limited.store.picks(n) for n in (1, 2)] == [free.store.picks(n) for n in (1, 2)]
    assert label("--project", new) is None  # it stays
    assert label("--project", new, "--max-memory", "2GB") is None  # or is changed
    assert isinstance(label("--project", new, "--max-memory", "1MB"), MemoryLimitError)
    assert isinstance(label("--project", new, "--max-memory", "much"), ArgumentError)
    assert CliRunner().invoke(app, ["resume", new]).exception is None
    assert opened == [least, least, "2GB", "2GB"]
    assert CliRunner().invoke(app, ["resume", new, "--max-memory", "3GB"]).exception is None
    assert opened[-1] == "3GB"


def test_rounds_test_slice_and_models(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as project:
        work(project)
        assert project.store.rounds()[0].strategy == "typiclust"
        for _ in range(3):
            label_all(project)
            work(project)
        rounds = project.store.rounds()
        assert [one.number for one in rounds] == [1, 2, 3, 4]
        assert {one.strategy for one in rounds[1:]} == {"badge"}
        picks = [pick for one in rounds for pick in project.store.picks(one.number)]
        tests = [pick.row for pick in picks if pick.slice == "test"]
        assert tests == project.reserve[: len(tests)].tolist()
        assert not {pick.row for pick in picks if pick.slice == "chosen"} & set(project.reserve.tolist())
        assert len(picks) == 4 * 12
        assert len(tests) == sum(slice_size(n, 12, 0.15) for n in (1, 2, 3, 4))
        model = read_model(project.folder / "rounds" / "004")
        assert model is not None
        assert model.labels == 36 - sum(slice_size(n, 12, 0.15) for n in (1, 2, 3))
        meter = project.meter()
        assert meter is not None
        assert (meter.labels, meter.round) == (model.labels, 4)
        assert meter.score is not None
        assert "What was saved can be estimated after about" in " ".join(meter.words)
        why = next(pick.why for pick in project.store.picks(4) if pick.slice == "chosen")
        assert why["words"].startswith(("Between", "Perhaps", "Probably"))
        assert sum(why["probs"].values()) <= 1.0001
        assert "random" in next(pick.why["words"] for pick in picks if pick.slice == "test")
        session = project.session()
        assert set(session.labelled.tolist()) == {p.row for p in picks if p.slice == "chosen"} - {
            p.row for p in project.store.picks(4)
        }


def test_the_same_events_give_the_same_picks(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as project:
        work(project)
        label_all(project)
        after = project.store.last_seq()
        project.close()
        shutil.copytree(tmp_path / "copy", tmp_path / "other")
    found = []
    for name in ("copy", "other"):
        with contextlib.closing(Project.open(tmp_path / name / "project")) as project:
            if name == "other":  # an answer that came while the first was at work changes nothing
                project.store.change("ann", project.store.picks(1)[0].row, "label", "0", "late")
            assert make_round(project, 2, after)
            found.append(project.store.picks(2))
    assert found[0] == found[1]


def test_the_next_round_comes_when_few_picks_are_left(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as project:
        work(project)
        label_all(project, most=8)
        work(project)
        assert len(project.store.rounds()) == 1
        assert read_heartbeat(project.folder).state == "dead"  # stopped by the test
        label_all(project, most=1)  # 3 of 12 are left: a quarter
        work(project)
        assert len(project.store.rounds()) == 2
        assert project.store.rounds()[1].after == project.store.last_seq()


def test_skipped_rows_are_never_picked_again_and_corrections_count(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as project:
        work(project)
        skipped = []
        while (task := project.store.next_task("ann")) is not None:
            kind = "unsure" if task.row % 3 == 0 else "label"
            skipped += [task.row] if kind == "unsure" else []
            project.store.answer(task.token, "ann", kind, str(Y[task.row]) if kind == "label" else None, 2.0)
        work(project)
        known = take_snapshot(project.store, project.settings, project.reserve, project.store.last_seq())
        assert skipped
        assert not set(skipped) & (set(known.train) | set(known.test))
        assert not set(skipped) & {pick.row for pick in project.store.picks(2)}
        row = next(iter(known.train))
        project.store.change("ann", row, "label", "7", "a token")
        again = take_snapshot(project.store, project.settings, project.reserve, project.store.last_seq())
        assert again.train[row] == 7


def test_labels_from_elsewhere_train_but_never_test_before_their_turn(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as project:
        aside = project.reserve.tolist()
        free = [row for row in project.pool.ids.tolist() if row not in aside][:30]
        given = [(row, str(Y[row])) for row in [*free, aside[0], aside[50]]]
        project.store.import_labels(given, "elsewhere")
        work(project)
        round_ = project.store.rounds()[0]
        assert round_.strategy == "badge"
        tests = [pick.row for pick in project.store.picks(1) if pick.slice == "test"]
        assert tests == aside[1 : 1 + len(tests)]
        known = take_snapshot(project.store, project.settings, project.reserve, project.store.last_seq())
        assert set(known.train) == set(free)
        assert set(known.test) == {aside[0]}


def test_until_every_row_is_picked(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x,y\n" + "".join(f"{x:.3f},{x * x:.3f}\n" for x in np.linspace(-1, 1, 30)))
    settings = Settings(
        name="t", kind="table", source="../t.csv", columns=("x",), task="regress", k=10, recipe="typiclust+kcenter"
    )
    with contextlib.closing(Project.create(tmp_path / "p", settings)) as project:
        for _ in range(6):
            work(project)
            while (task := project.store.next_task("bo")) is not None:
                x = float(dict(project.view(task.row).fields or [])["x"])
                project.store.answer(
                    task.token, "bo", "label", "no number" if task.row == 3 else f"{3 * x + 1:.3f}", 1.0
                )
        work(project)
        assert len({pick.row for one in project.store.rounds() for pick in project.store.picks(one.number)}) == 30
        meter = project.meter()
        assert meter is not None
        assert meter.metric == "rmse"
        assert meter.score is not None
        assert meter.score.value < 0.5  # of a standard deviation of 1.8
        assert meter.stop
        assert meter.labels + meter.test == 29  # row 3 holds no number
        known = take_snapshot(project.store, settings, project.reserve, project.store.last_seq())
        assert "row 3" in known.unusable[0]


# --- killed ----------------------------------------------------------------------------------------------------------


def start(project: Project) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "labelwise.project.loop.worker", str(project.folder)]
    return subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stderr=subprocess.DEVNULL)


def until(true: object, seconds: float = 400) -> None:
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.timeout(900)  # two processes that import torch, on whatever else the machine does
def test_killed_while_it_works_it_goes_on_and_makes_no_round_twice(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as project:
        worker = start(project)
        until(lambda: read_heartbeat(project.folder).state in ("choosing", "training") or project.store.rounds())
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker = start(project)
        until(lambda: read_heartbeat(project.folder).state == "waiting")
        label_all(project)
        until(lambda: len(project.store.rounds()) == 2)
        until(lambda: read_heartbeat(project.folder).state == "waiting")
        worker.terminate()
        assert worker.wait(120) == 0
        assert read_heartbeat(project.folder).state == "dead"
        assert [one.number for one in project.store.rounds()] == [1, 2]
        picked = [pick.row for number in (1, 2) for pick in project.store.picks(number)]
        assert len(set(picked)) == len(picked) == 24
        assert (project.folder / "rounds" / "002" / "notes.json").is_file()


def test_killed_before_the_meter_it_measures_later(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as project:
        work(project)
        label_all(project)
        assert make_round(project, 2, project.store.last_seq())  # and no finish_round: killed here
        assert project.meter() is None
        work(project)
        meter = project.meter()
        assert meter is not None
        assert meter.round == 2
        assert len(project.store.rounds()) == 2


def test_one_worker_at_a_time(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path) as project:
        with worker_lock(project.folder), pytest.raises(StoreError, match="already running"):
            run(project.folder, once=True, waits=Waits(lock=0.1))
        run(project.folder, once=True)
        assert len(project.store.rounds()) == 1


@pytest.mark.slow
def test_the_worker_of_a_second_page_waits_for_its_turn(tmp_path: Path) -> None:
    at_once = Waits(lock=0.0)
    got = threading.Event()

    def second() -> None:
        with worker_lock(tmp_path, os.getppid(), at_once):
            got.set()

    with worker_lock(tmp_path):
        waiting = threading.Thread(target=second)
        waiting.start()
        assert not got.wait(0.5)
        with (
            pytest.raises(SystemExit),
            worker_lock(tmp_path, os.getpid(), at_once),
        ):  # not the process that started this one
            pass
    waiting.join(10)
    assert got.is_set()


def test_an_error_is_said_and_logged_and_the_worker_goes_on(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from labelwise.project.loop import worker

    def fails(*_: object) -> bool:
        raise SourceError("the disk is upside down")

    with copied(made, tmp_path) as project:
        with monkeypatch.context() as patched:
            patched.setattr(worker, "make_round", fails)
            heartbeat = HeartbeatWriter(project.folder)
            assert worker._try_step(project, heartbeat, waits=Waits(poll=0.01, retry=0.1))
            found = read_heartbeat(project.folder)
            heartbeat.close("stopped")
        assert (found.state, found.message) == ("failed", "the disk is upside down")
        assert "upside down" in (project.folder / "log.txt").read_text()
        work(project)
        assert len(project.store.rounds()) == 1


def test_a_silent_worker_is_dead(tmp_path: Path) -> None:
    assert read_heartbeat(tmp_path).state == "dead"
    Heartbeat("training", "round 3", 1.0, 3, 1, time.time()).write(tmp_path)
    assert read_heartbeat(tmp_path).state == "training"
    Heartbeat("training", "round 3", 1.0, 3, 1, time.time() - 100).write(tmp_path)
    assert read_heartbeat(tmp_path).state == "dead"
    Heartbeat("training", "round 3", 1.0, 3, 1, time.time() + 86400).write(tmp_path)
    assert read_heartbeat(tmp_path).state == "dead"
    assert "the clock of this machine was set back" in read_heartbeat(tmp_path).message
    (tmp_path / "worker.json").write_text("{")
    assert "cannot be read" in read_heartbeat(tmp_path).message


# --- the data changes ------------------------------------------------------------------------------------------------


def test_a_table_that_changed_is_refused(made: Path, tmp_path: Path) -> None:
    with copied(made, tmp_path):
        pass
    path = tmp_path / "copy" / "digits.csv"
    whole = path.read_text()
    path.write_text(whole + "0," * 63 + "0\n")
    with pytest.raises(SourceError, match="has changed since"):
        Project.open(tmp_path / "copy" / "project")
    path.unlink()
    with pytest.raises(SourceError, match="is missing"):
        Project.open(tmp_path / "copy" / "project")
    path.write_text(whole)
    Project.open(tmp_path / "copy" / "project").close()


def test_a_folder_and_table_of_one_project_move_together(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made, tmp_path / "elsewhere")
    with contextlib.closing(Project.open(tmp_path / "elsewhere" / "project")) as project:
        assert project.view(3).fields is not None


# --- the test slice --------------------------------------------------------------------------------------------------


def test_the_reserve_is_the_first_of_an_order_and_no_more_than_half() -> None:
    ids = np.arange(1000) * 3
    first = reserve(ids, 5, 0.15)
    assert len(first) == 200
    assert set(first) <= set(ids.tolist())
    assert reserve(ids[::-1].copy(), 5, 0.15).tolist() == first.tolist()  # whatever the order of the rows
    assert reserve(ids, 6, 0.15).tolist() != first.tolist()
    assert len(reserve(np.arange(30), 0, 0.15)) == 15
    assert len(reserve(np.arange(10_000), 0, 0.15)) == 1500
    assert len(reserve(ids, 0, 0.0)) == 0


def test_every_row_is_equally_likely_to_be_tested() -> None:
    count = np.zeros(50)
    for seed in range(600):
        count[reserve(np.arange(50), seed, 0.15)[:10]] += 1
    # 600 draws of 10 in 50: mean 120, standard deviation 9.8
    assert abs(count - 120).max() < 4.2 * 9.8


def test_interleaving_keeps_the_order_of_each_kind() -> None:
    mixed = interleaved([1, 2, 3, 4, 5], [10, 20], Key(3))
    assert [row for row in mixed if row < 10] == [1, 2, 3, 4, 5]
    assert [row for row in mixed if row >= 10] == [10, 20]
    assert interleaved([1, 2], [], Key(0)) == [1, 2]


def test_an_address_with_a_password_is_not_written_down() -> None:
    with pytest.raises(ArgumentError, match="password"):
        check_store_address("postgresql://me:secret@host/db")
    for fine in ("postgresql://me@host:5432/db", "env:STORE", "sqlite:///x/store.db"):
        assert check_store_address(fine) == fine


def test_a_recipe_that_cannot_work_is_refused_before_anything_is_made(made: Path, tmp_path: Path) -> None:
    shutil.copy(made / "digits.csv", tmp_path / "digits.csv")
    settings = Settings(name="x", kind="table", source="../digits.csv", columns=("p1", "p2"), recipe="bald")
    with pytest.raises(ArgumentError, match="--recipe bald"):
        Project.create(tmp_path / "p", settings)
    settings = Settings(name="x", kind="table", source="../digits.csv", columns=("p1", "p2"), task="regress")
    with pytest.raises(ArgumentError, match="class probabilities"):
        Project.create(tmp_path / "p", settings)
    assert not (tmp_path / "p" / "project.yaml").exists()


def test_status_says_where_a_project_stands(made: Path, tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from labelwise.cli import app

    with copied(made, tmp_path) as project:
        work(project)
        label_all(project)
        work(project)
        folder = str(project.folder)
    said = CliRunner().invoke(app, ["status", folder])
    assert said.exit_code == 0, said.output
    assert "12 by 1 person, 4.0 seconds per label" in said.output
    assert "Accuracy" in said.output
    found = json.loads(CliRunner().invoke(app, ["status", folder, "--json"]).output)
    assert found["progress"]["labels"] == 12
    assert found["meter"]["labels"] == 10


def test_a_model_that_knows_its_own_rows_no_better_than_chance_is_in_the_notes_of_the_round(tmp_path: Path) -> None:
    lines = ["a,b", *(f"{i % 2},{i % 2}" for i in range(40))]
    for name, warned in (("useless", True), ("told", False)):
        (tmp_path / f"{name}.csv").write_text("\n".join(lines) + "\n")
        settings = Settings(
            name=name, kind="table", source=f"../{name}.csv", columns=("a", "b"), classes=("x", "y"), k=20
        )
        with contextlib.closing(Project.create(tmp_path / name, settings)) as project:
            assert make_round(project, 1, 0)
            assert "warning" not in project.store.rounds()[-1].notes
            answers = {0: itertools.cycle("xy"), 1: itertools.cycle("xy")}  # of rows with the same features, by turns
            while (task := project.store.next_task("ann")) is not None:
                label = next(answers[task.row % 2]) if name == "useless" else "xy"[task.row % 2]
                project.store.answer(task.token, "ann", "label", label, 1.0)
            assert make_round(project, 2, project.store.last_seq())
            text = project.store.rounds()[-1].notes.get("warning", "")
            assert ("has hardly learnt from them: its loss on these very items is 0.6" in text) is warned
