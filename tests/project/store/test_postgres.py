"""A whole project whose answers are in PostgreSQL: the rounds, picks and meter of one on SQLite."""

from __future__ import annotations

import contextlib
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_chains import filled

from labelwise.project import Project, Settings
from labelwise.project.loop.heartbeat import HeartbeatWriter
from labelwise.project.loop.worker import step
from labelwise.project.store import Store
from private_postgres import PrivatePostgres, programs


def _played(folder: Path, settings: Settings, labels: list[str]) -> tuple[list[list[int]], dict[int, str | None], str]:
    """Three rounds, answered by two people in turn; the picks, the answers and what the meter says at the end."""
    Project.create(folder, settings).close()
    for _ in range(3):
        with contextlib.closing(Project.open(folder)) as project:  # opened anew for each round
            heartbeat = HeartbeatWriter(folder)
            while step(project, heartbeat):
                pass
            heartbeat.close("stopped")
            while True:
                tasks = [task for who in ("ann", "bob") if (task := project.store.next_task(who)) is not None]
                if not tasks:
                    break
                for task, who in zip(tasks, ("ann", "bob")):
                    project.store.answer(task.token, who, "label", labels[task.row], 3.0)
    with contextlib.closing(Project.open(folder)) as project:
        picks = [[pick.row for pick in project.store.picks(one.number)] for one in project.store.rounds()]
        answers = {row: answer.value for row, answer in project.store.answers().items()}
        meter = project.meter()
        assert meter is not None
        return picks, answers, " ".join(meter.words)


@pytest.mark.slow
def test_a_project_on_postgresql_goes_the_way_of_one_on_sqlite(postgres: PrivatePostgres, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(120, 4))
    labels = ["warm" if row[0] + row[1] > 0 else "cold" for row in rows]
    event_rows = ["a,b,c,d", *(",".join(f"{value:.6f}" for value in row) for row in rows)]
    (tmp_path / "table.csv").write_text("\n".join(event_rows) + "\n")
    columns, classes = ("a", "b", "c", "d"), ("cold", "warm")
    settings = Settings(name="t", kind="table", source="../table.csv", columns=columns, classes=classes, k=10)
    here = _played(tmp_path / "sqlite", settings, labels)
    there = _played(tmp_path / "postgresql", replace(settings, store=postgres.url()), labels)
    assert not (tmp_path / "postgresql" / "store.db").exists()
    assert len(here[0]) == 3
    assert here == there


def test_a_dump_of_postgresql_is_restored_by_its_own_tools(postgres: PrivatePostgres, tmp_path: Path) -> None:
    """The commands of docs/backup.md, on a server of the tests' own."""

    store = filled(postgres.url("dumped"))
    before = store.events(), store.picks(2)
    store.close()
    address = f"postgresql://labelwise@/{{}}?host={postgres.folder}"
    dump = tmp_path / "answers.dump"

    def run(program: str, *arguments: str) -> None:
        folder = programs()
        assert folder is not None
        own = (folder / "initdb").resolve().with_name(program)
        subprocess.run([own, *arguments], check=True, capture_output=True, text=True)

    run("pg_dump", "--format=custom", "--schema=dumped", f"--file={dump}", address.format("postgres"))
    run("createdb", "--host", str(postgres.folder), "--username", "labelwise", "restored")
    run("pg_restore", "--exit-on-error", f"--dbname={address.format('restored')}", str(dump))
    with contextlib.closing(Store.open(address.format("restored") + "&options=-csearch_path%3Ddumped")) as again:
        assert (again.events(), again.picks(2)) == before
        again.note("ann", 0, "goes on", "t")
