"""The report of a project, on the page and as a file: its numbers, its charts, its commands, and what is escaped."""

from __future__ import annotations

import html
import re
import shlex
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from fake_project import Browser, running
from labelwise.cli import app
from labelwise.errors import StoreError
from labelwise.project import Project, Settings
from labelwise.project.loop.rounds import finish_round, make_round
from labelwise.project.loop.snapshot import take_snapshot
from labelwise.project.loop.stored_model import read_model, round_folder
from labelwise.report.html import SCRIPT
from labelwise.server import Auth
from labelwise.server.report import next_steps, report_html, report_values

NAMES = ("left", "<b>right</b>", "never")


def labelled(folder: Path, task: str) -> Project:
    """Four rounds of a table of two columns, three of them answered by Ann and every row by Bob too."""
    x_ND = np.random.default_rng(0).normal(size=(400, 2))
    (folder / "t.csv").write_text("a,b\n" + "".join(f"{a:.4f},{b:.4f}\n" for a, b in x_ND))
    settings = Settings(
        name="rows & more", kind="table", source="../t.csv", columns=("a", "b"), task=task, k=40, test_share=0.4,
        classes=NAMES if task == "classify" else (), recipe="random", people=2,
    )  # fmt: skip
    project = Project.create(folder / "my project", settings)
    for number in (1, 2, 3, 4):
        assert make_round(project, number, project.store.last_seq())
        if number > 1:
            finish_round(project, number, project.store.rounds()[-1].after)
        for who in ("ann", "bob") if number < 4 else ():
            while (task_now := project.store.next_task(who)) is not None:
                a, b = (float(value) for _, value in project.view(task_now.row).fields or ())
                side = NAMES[int(a + 0.8 * np.sin(9 * b) > 0)]
                value = side if task == "classify" else repr(a)
                if who == "bob" and task_now.row % 7 == 0 and task == "classify":
                    value = "left"
                project.store.answer(task_now.token, who, "label", value, 2.0 if who == "ann" else 5.0)
    return project


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory):
    with closing(labelled(tmp_path_factory.mktemp("classes"), "classify")) as project:
        yield project


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory):
    with closing(labelled(tmp_path_factory.mktemp("numbers"), "regress")) as project:
        yield project


def test_the_quality_is_that_of_the_newest_model_on_the_test_rows(classes: Project) -> None:
    meter, quality = classes.meter(), classes.quality()
    assert meter is not None
    assert meter.score is not None
    assert quality is not None
    model = read_model(round_folder(classes.folder, 4))
    assert model is not None
    reserved = set(classes.reserve.tolist())
    test = {row: one.value for row, one in classes.store.answers().items() if row in reserved and one.value is not None}
    found = {}
    for row in test:  # one at a time, from the features and the weights
        out_C = model.weight_CD @ classes.pool.inputs([row]).numpy()[0] + model.bias_C
        found[row] = model.classes[int(out_C[: len(model.classes)].argmax())]
    pairs = [(test[row], found[row]) for row in test]
    assert quality.rows == len(test) == meter.test
    for t, true in enumerate(quality.classes):
        for p, predicted in enumerate(quality.classes):
            assert quality.confusion_CC[t][p] == pairs.count((true, predicted))
    assert {one.row for one in quality.wrong} == {row for row in test if test[row] != found[row]}
    assert [one.size for one in quality.wrong] == sorted((one.size for one in quality.wrong), reverse=True)
    right = sum(true == predicted for true, predicted in pairs) / len(pairs)
    assert quality.curve[-1][1].value == pytest.approx(right) == pytest.approx(meter.score.value)
    assert [labels for labels, _ in quality.curve] == sorted({labels for labels, _ in quality.curve})
    by_name = {one.name: one for one in quality.by_class}
    assert by_name["never"].share is None
    assert by_name["left"].right == pairs.count(("left", "left"))


def test_the_random_control_is_drawn_up_to_the_labels_of_the_model(classes: Project) -> None:
    meter = classes.meter()
    assert meter is not None
    assert meter.control is not None
    assert meter.random[-1][0] == meter.labels
    assert meter.random[-1][1] == meter.control
    assert meter.measured < meter.labels
    assert all(one.low <= one.value for _, one in meter.random)
    page = html.unescape(report_html(classes)).replace("\N{NO-BREAK SPACE}", " ")
    assert f"extrapolated above {meter.measured} labels" in page
    assert "random labels: " in page


def test_the_file_needs_nothing_else_and_escapes_every_name(classes: Project) -> None:
    page = report_html(classes)
    assert "<b>right" not in page
    assert "&lt;b&gt;right&lt;/b&gt;" in page
    assert re.findall(r'(?:src|href)="(?!data:)', page) == []
    assert page.count("<script>") == 1
    assert SCRIPT in page
    assert "sha256-" in page
    meter = classes.meter()
    assert meter is not None
    for part in ("Learning curve", "What to do next", "Accuracy by class", "Confusion matrix", "Examples of errors"):
        assert f"<h2>{part}</h2>" in page


def test_people_and_their_agreement(classes: Project) -> None:
    values = report_values(classes, lambda row: "")
    by_name = {one["who"]: one for one in values["people"]}
    assert (by_name["ann"]["median"], by_name["bob"]["median"]) == (2.0, 5.0)
    assert by_name["ann"]["minutes"] == pytest.approx(2 * by_name["ann"]["labels"] / 60)
    votes = [one.votes for one in classes.store.answers().values() if len(one.votes) == 2]
    alike = sum(one["ann"] == one["bob"] for one in votes)
    assert values["pairs"] == [("ann", "bob", len(votes), alike)]
    assert alike < len(votes)


def test_every_command_of_the_report_works_in_another_folder(
    classes: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = html.unescape(report_html(classes))
    found = [line for block in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL) for line in block.split("\n")]
    commands = [shlex.split(line)[1:] for line in found if line.startswith("labelwise ")]
    assert {command[0] for command in commands} == {"report", "export", "predict", "model"}
    for command in commands:
        run = CliRunner().invoke(app, command)
        assert run.exit_code == 0, (command, run.output, run.exception)
    assert {"labels.csv", "predictions.csv", "model"} <= {one.name for one in tmp_path.iterdir()}


def test_the_next_steps_name_what_helps_most(classes: Project) -> None:
    meter, quality, answers = classes.meter(), classes.quality(), classes.store.answers()
    assert quality is not None
    steps = next_steps(classes, meter, quality, 3, classes.store.agreement(), answers)
    words = " ".join(step.words for step in steps)
    assert "3 labels that are probably wrong" in words
    assert "never (0)" in words
    assert "is most often taken for" in words
    first = next_steps(classes, None, None, 0, classes.store.agreement(), answers)
    assert "Label the first round" in first[0].words


def test_a_project_of_numbers(numbers: Project) -> None:
    quality, page = numbers.quality(), html.unescape(report_html(numbers))
    assert quality is not None
    assert len(quality.pairs) == quality.rows
    off = [abs(true - predicted) for true, predicted, _ in quality.pairs]
    snapshot = take_snapshot(numbers.store, numbers.settings, numbers.reserve, numbers.store.last_seq())
    weights, _ = numbers.test_weights(snapshot)
    assert [row for *_, row in quality.pairs] == list(snapshot.test)
    assert quality.curve[-1][1].value == pytest.approx(float(np.sqrt(np.average(np.square(off), weights=weights))))
    assert quality.wrong[0].size == pytest.approx(max(off))
    assert "Predicted and true" in page
    assert page.count('class="dot"') == quality.rows
    assert "Confusion matrix" not in page


def test_the_page_shows_the_report_and_serves_its_script(classes: Project) -> None:
    auth = Auth.make(classes.folder)
    with running(classes, auth) as address, Browser(address, auth, "ann") as ann:
        page = ann.get("/report").text
        assert "/download/labels.csv" in page
        assert not re.search(r"\sstyle=|<style|<script(?![^>]*\bsrc=)", page)
        for name in re.findall(r'(?:src|href)="(/static/charts/[^"]+)"', page):
            assert ann.get(name).status_code == 200
        assert ann.get("/static/charts/report.js").text == SCRIPT


def test_a_part_that_cannot_be_read_is_named_and_the_rest_is_there(
    classes: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn() -> None:
        raise StoreError("meter.json is torn")

    monkeypatch.setattr(classes, "meter", torn)
    page = report_html(classes)
    assert "meter.json is torn" in page
    assert "ann" in page


def test_before_the_first_answer_the_report_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a\n" + "".join(f"{row}\n" for row in range(30)))
    settings = Settings(name="new", kind="table", source="../t.csv", columns=("a",), classes=("x", "y"))
    with closing(Project.create(tmp_path / "project", settings)) as project:
        page = report_html(project)
    assert "Label the first round" in page
    assert "labelwise predict" not in page
    assert "There are no answers yet." in page
