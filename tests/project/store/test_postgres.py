"""A whole project whose answers are in PostgreSQL: the rounds, picks and meter of one on SQLite."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labelwise.project import Project, Settings
from labelwise.project.loop.heartbeat import HeartbeatWriter
from labelwise.project.loop.worker import step
from private_postgres import PrivatePostgres


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
