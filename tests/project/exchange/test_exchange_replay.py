"""A labelled project as a report and as a simulation."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from labelwise.bench.suite.replay import ONLY, replay_of
from labelwise.cli import app
from labelwise.errors import BudgetError, LabelError
from labelwise.project import Project, Settings
from labelwise.project.loop.rounds import finish_round, make_round
from labelwise.project.loop.snapshot import last_seq
from labelwise.server.report_file import Point, curve_points, report_html, svg
from labelwise.stats.record import read_records

X, Y = load_digits(return_X_y=True)
N = 240


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of 240 digits, three rounds of 24 of which are labelled."""
    folder = tmp_path_factory.mktemp("digits")
    names = [f"p{j}" for j in range(64)]
    lines = [",".join(names)] + [",".join(f"{value:g}" for value in row) for row in X[:N]]
    (folder / "digits.csv").write_text("\n".join(lines) + "\n")
    settings = Settings(
        name="digits", kind="table", source="../digits.csv", columns=tuple(names), classes=tuple("0123456789"), k=24
    )
    with closing(Project.create(folder / "project", settings)) as project:
        for number in (1, 2, 3, 4):
            after = last_seq(project.store)
            assert make_round(project, number, after)
            if number > 1:
                finish_round(project, number, after)
            while number < 4 and (task := project.store.next_task("ann")) is not None:
                project.store.answer(task.token, "ann", "label", str(Y[task.row]), 4.0)
    return folder / "project"


def test_the_report_shows_meter_curve_classes_and_people(digits: Path, tmp_path: Path) -> None:
    with closing(Project.open(digits)) as project:
        curve, rows = curve_points(project)
        meter = project.meter()
        project.store.change("<b>bob</b>", 5, "label", "9", "odd")
        page = report_html(project)
        project.store.undo("<b>bob</b>")
    assert len(curve) == 3
    assert curve[-1].labels == 61
    assert rows == 11  # 15 % of 72
    assert meter is not None
    assert meter.score is not None
    assert curve[-1].value == pytest.approx(meter.score.value)
    assert all(one.low <= one.value <= one.high for one in curve)
    assert "<svg" in page
    assert "Accuracy by number of labels" in page
    assert "&lt;b&gt;bob&lt;/b&gt;" in page
    assert "<b>bob" not in page
    assert "4.0" in page
    for words in meter.words:
        assert words[:20].replace("'", "&#x27;").split(" %")[0] in page
    run = CliRunner().invoke(app, ["report", str(digits), "--to", str(tmp_path / "r.html")])
    assert run.exit_code == 0, run.output
    again = CliRunner().invoke(app, ["report", str(digits), "--to", str(tmp_path / "r.html")])
    assert "already exists" in str(again.exception)


def test_a_curve_stays_inside_its_frame() -> None:
    for curve in (
        [Point(10, 1.0, 1.0, 1.0), Point(20, 1.0, 1.0, 1.0)],
        [Point(10, 0.0, 0.0, float("inf")), Point(20, 0.0, 0.0, float("inf"))],
        [Point(5, 1200.0, 3.0, float("inf")), Point(6, 0.5, 0.1, 5e4)],
    ):
        drawn = svg(curve, "x", percent=False)
        assert "nan" not in drawn
        assert "inf" not in drawn
        numbers = [
            float(y) for part in drawn.split('points="')[1:] for y in part.split('"')[0].replace(",", " ").split()
        ]
        assert min(numbers) >= 0
        assert max(numbers) <= 720


def test_rows_and_splits_of_a_replay(digits: Path) -> None:
    with closing(Project.open(digits)) as project:
        found = replay_of(project)
        answers = project.store.answers()
    assert len(found.rows) == 72
    assert [found.classes[int(number)] for number in found.label_N] == [
        answers[row].value for row in found.rows.tolist()
    ]
    one, other = found.data(0, 0.3), found.data(1, 0.3)
    assert len(one.test) == 22
    assert set(one.test.ids.tolist()).isdisjoint(one.pool.ids.tolist())
    assert sorted([*one.test.ids.tolist(), *one.pool.ids.tolist()]) == found.rows.tolist()
    assert one.test.ids.tolist() != other.test.ids.tolist()
    assert one.test.ids.tolist() == found.data(0, 0.3).test.ids.tolist()
    plan = found.plan(("random",), 2, 5, 0.3)
    assert plan.start + plan.n * plan.k <= 50
    with pytest.raises(BudgetError, match="too few"):
        found.plan(("random",), 2, 40, 0.3)


@pytest.mark.slow
def test_replay_compares_and_says_what_it_is_worth(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "replay"
    arguments = ["bench", "replay", str(digits), "--strategies", "margin,badge", "--seeds", "2", "-k", "8"]
    run = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert run.exit_code == 0, run.output
    told = " ".join(run.output.split())
    assert ONLY in told
    records = read_records(out / "records.jsonl")
    assert {one.strategy for one in records} == {"random", "margin", "badge"}
    for seed in (0, 1):  # each strategy starts from the same rows
        first = [one.metrics["accuracy"] for one in records if one.seed == seed and one.round == 0]
        assert len(set(first)) == 1
    last = [one.metrics["accuracy"] for one in records if one.round == max(r.round for r in records)]
    assert np.mean(last) > 0.4  # chance is 0.1
    assert "on these rows only" in (out / "report.html").read_text()
    again = CliRunner().invoke(app, [*arguments, "--out", str(out)])
    assert "Continuing the runs in the folder" in " ".join(again.output.split())


def test_a_replay_needs_labels(digits: Path, tmp_path: Path) -> None:
    settings = Settings(name="few", kind="table", source="../few.csv", columns=("a",), classes=("x", "y"))
    (tmp_path / "few.csv").write_text("a\n" + "".join(f"{row}\n" for row in range(60)))
    with closing(Project.create(tmp_path / "project", settings)) as project:
        project.store.import_labels([(row, "x") for row in range(20)], "list")
        with pytest.raises(BudgetError, match="20 rows have a label"):
            replay_of(project)
        project.store.import_labels([(row, "x") for row in range(60)], "list")
        with pytest.raises(LabelError, match="two classes"):
            replay_of(project)
