"""The ML backend of Label Studio: what a real one asked and told (benchmarks/label_studio.py), and what it may send."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import label_studio as script
from labelwise.errors import LabelError
from labelwise.project import Project
from labelwise.project.exchange.studio_backend import StudioBackend
from labelwise.project.exchange.studio_json import config, read_config
from labelwise.project.exchange.studio_sync import Importer, control_in, read_link
from labelwise.project.loop.rounds import make_round
from labelwise.project.loop.stored_model import Model, round_folder, write_model

RECORDED = Path(__file__).parents[2] / "data" / "label_studio" / "backend.json"
CONFIG = (
    '<View><Text name="item" value="$text"/><Choices name="label" toName="item" choice="single">'
    '<Choice value="good"/><Choice value="bad"/></Choices></View>'
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a round; a test gets a copy."""
    folder = tmp_path_factory.mktemp("made") / "backend"
    script.backend(folder).close()
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path) -> Iterator[Project]:
    shutil.copytree(made, tmp_path / "backend")
    with closing(Project.open(tmp_path / "backend" / "project")) as opened:
        yield opened


def tasks_of(project: Project) -> list[dict[str, Any]]:
    """Every row as a task of Label Studio that nothing of Labelwise made."""
    return [{"id": 100 + row, "data": {"text": project.view(row).text}} for row in range(len(project.pool))]


def asked(project: Project, **more: Any) -> dict[str, Any]:
    return {"tasks": tasks_of(project), "project": "7.1700000000", "label_config": CONFIG, **more}


def choice(value: str) -> list[dict[str, Any]]:
    return [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": [value]}}]


def told(task: dict[str, Any], annotation: dict[str, Any], action: str = "ANNOTATION_CREATED") -> dict[str, Any]:
    given = {"id": 1, "task": task["id"], "completed_by": 3, "was_cancelled": False, "updated_at": "t1", **annotation}
    return {"action": action, "annotation": given, "task": task, "project": {"id": 7, "label_config": CONFIG}}


# --- a real one ------------------------------------------------------------------------------------------------------


def test_what_a_real_label_studio_asked_and_told(project: Project) -> None:
    studio = StudioBackend(project)
    before = len(project.store.events())

    def plain(reply: Any) -> Any:  # a model is named by a hash of weights, whose last bits differ between machines
        return json.loads(
            re.sub(r"linear/[0-9a-f]{8}", "linear/", json.dumps(reply)), parse_float=lambda text: round(float(text), 3)
        )

    paths = []
    for one in json.loads(RECORDED.read_text(encoding="utf-8")):
        reply = getattr(studio, one["path"].removeprefix("/"))(one["body"])
        assert plain(reply) == plain(one["answer"]), one["body"].get("action", one["path"])
        paths.append(one["body"].get("action", one["path"]))
    assert {"/setup", "/predict", "ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_DELETED"} <= set(paths)
    new = project.store.events()[before:]
    row, other = (pick.row for pick in project.store.picks(1)[:2])
    assert [(one.row, one.kind, one.value) for one in new] == [
        (row, "label", "good"), (other, "skip", None), (row, "label", "bad"), (row, "skip", None),
    ]  # fmt: skip
    assert [one.seconds for one in new] == [3.5, 1.0, 9.0, None]
    assert len({one.who for one in new}) == 1
    assert "SECRET" not in (project.folder / "store.db").read_bytes().decode("latin-1")


# --- predictions and their order -------------------------------------------------------------------------------------


def test_the_lowest_score_is_what_the_recipe_wants_first(project: Project) -> None:
    found = StudioBackend(project).predict(asked(project))["results"]
    picks = [pick.row for pick in project.store.picks(1)]
    order = sorted(range(len(found)), key=lambda row: found[row]["score"])
    assert order[: len(picks)] == picks
    assert all(found[row]["score"] >= 0.5 for row in order[len(picks) :])
    assert all(0 <= one["score"] <= 1 for one in found)


def test_a_score_outside_the_picks_rises_with_the_models_certainty(project: Project) -> None:
    found = StudioBackend(project).predict(asked(project))["results"]
    picked, reserved = {pick.row for pick in project.store.picks(1)}, set(project.reserve.tolist())
    session = project.session()
    for row in set(range(len(found))) - picked - reserved:
        p_C = session.predict_proba(ids=[row])[0]
        assert found[row]["score"] == pytest.approx(0.5 + p_C.max() / 2, abs=1e-5)
        assert found[row]["result"] == choice(("good", "bad")[int(p_C.argmax())])


def test_rows_of_the_test_slice_get_no_prediction(project: Project) -> None:
    found = StudioBackend(project).predict(asked(project))["results"]
    reserved = set(project.reserve.tolist())
    assert reserved
    assert {row for row, one in enumerate(found) if not one["result"]} == reserved


def test_a_new_round_has_another_version_and_other_scores(project: Project) -> None:
    studio = StudioBackend(project)
    before = studio.predict(asked(project))["results"]
    for pick in project.store.picks(1):
        studio.webhook(told(tasks_of(project)[pick.row], {"id": pick.row, "result": choice("good")}))
    assert studio.predict(asked(project))["results"] == before  # Label Studio stores scores until the version changes
    make_round(project, 2, project.store.last_seq())
    after = studio.predict(asked(project))["results"]
    assert {one["model_version"] for one in before} != {one["model_version"] for one in after}
    assert np.argsort([one["score"] for one in after])[4:8].tolist() == [p.row for p in project.store.picks(2)]
    assert studio.versions()["versions"] == [after[0]["model_version"], before[0]["model_version"]]


def test_before_the_first_round_every_task_has_an_empty_prediction(tmp_path: Path) -> None:
    with closing(script.texts(tmp_path / "texts")) as project:
        (first, *_) = found = StudioBackend(project).predict(asked(project))["results"]
        assert {one["score"] for one in found[:6]} == {place / 12 for place in range(6)}
        assert first["model_version"] == "labelwise round 1 (linear/12345678)"
        assert not any(one["result"] for one in found)  # there is no file with the model of this round


def test_a_task_that_is_no_row_comes_last_and_empty(project: Project) -> None:
    studio = StudioBackend(project)
    strange = {"id": 1, "data": {"text": "something else"}}
    found = studio.predict(asked(project, tasks=[strange, *tasks_of(project)[:1]]))["results"]
    assert len(found) == 2
    assert (found[0]["score"], found[0]["result"]) == (1.0, [])
    with pytest.raises(LabelError, match=r"no task is a row of this project; task 1: no row has this text"):
        studio.predict(asked(project, tasks=[strange]))


def test_numbers_are_predicted(tmp_path: Path) -> None:
    with closing(script.numbers(tmp_path / "numbers")) as project:
        width = project.pool.inputs([0]).shape[1]
        write_model(round_folder(project.folder, 1), Model(np.zeros((1, width)), np.array([2.5]), (), 4))
        tasks = [{"id": row, "data": {"al_id": row, "row": {}}} for row in range(8)]
        body = {"tasks": tasks, "project": "1.2", "label_config": config(project, ())}
        found = StudioBackend(project).predict(body)["results"]
        shown = [one["result"][0]["value"]["number"] for one in found if one["result"]]
        assert shown
        assert set(shown) == {2.5}
        assert [one["score"] for one in found[:4]] == [0, 0.125, 0.25, 0.375]


def test_images_are_found_by_the_end_of_their_address(tmp_path: Path) -> None:
    with closing(script.images(tmp_path / "images")) as project:
        addresses = ("/data/local-files/?d=photos/photo%201.png", "s3://bucket/photo 2.png", "s3://bucket/other.png")
        tasks = [{"id": n, "data": {"image": address}} for n, address in enumerate(addresses)]
        body = {"tasks": tasks, "project": "1.2", "label_config": config(project, ("light", "dark"))}
        found = [one["score"] for one in StudioBackend(project).predict(body)["results"]]
        assert found == [1 / 6, 2 / 6, 1.0]


# --- setup -----------------------------------------------------------------------------------------------------------


def test_setup_compares_the_choices_with_the_classes(project: Project) -> None:
    studio = StudioBackend(project)
    body = {"project": "7.17", "schema": CONFIG, "hostname": "http://localhost:8080", "access_token": "secret"}
    assert studio.setup(body)["model_version"].startswith("labelwise round 1 (linear/")
    more = {**body, "schema": CONFIG.replace('<Choice value="bad"/>', '<Choice value="bad"/><Choice value="odd"/>')}
    with pytest.raises(LabelError, match=r"'odd', which is not a class here.*--add-classes"):
        studio.setup(more)
    with pytest.raises(LabelError, match="has no choice 'bad'"):
        studio.setup({**body, "schema": CONFIG.replace('<Choice value="bad"/>', "")})
    assert project.store.classes() == ["good", "bad"]
    StudioBackend(project, add_classes=True).setup(more)
    assert project.store.classes() == ["good", "bad", "odd"]


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (None, "no labelling configuration"),
        ("<View>", "cannot be read"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><View/>', "DOCTYPE"),
        ("<View><Text name='item' value='$text'/></View>", "has no <Choices>"),
        (CONFIG.replace("Choices", "Labels"), "has no <Choices>"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(project: Project, schema: Any, words: str) -> None:
    with pytest.raises(LabelError, match=words):
        StudioBackend(project).setup({"project": "7.17", "schema": schema})


def test_a_configuration_is_read_as_its_own_api_gives_it() -> None:
    wanted = {"label": {"type": "Choices", "to_name": ["item"], "inputs": [{"type": "Text", "value": "text"}]}}
    assert read_config(CONFIG) == {"label": {**wanted["label"], "labels": ["good", "bad"], "choice": "single"}}
    with_alias = CONFIG.replace('value="good"', 'value="Good one" alias="good"')
    assert read_config(with_alias)["label"]["labels"] == ["good", "bad"]  # an annotation has the alias


# --- answers ---------------------------------------------------------------------------------------------------------


def test_every_version_of_an_annotation_stays_in_the_history(project: Project) -> None:
    studio, row = StudioBackend(project), project.store.picks(1)[0].row
    task, before = tasks_of(project)[row], len(project.store.events())
    first = told(task, {"result": choice("good"), "lead_time": 2.5})
    assert studio.webhook(first) == {"status": "ok", "labels": 1, "skips": 0, "known": 0, "refused": []}
    assert studio.webhook(first)["known"] == 1  # sent twice
    assert project.store.answers()[row].votes == {"label-studio:3": "good"}
    later = told(task, {"result": choice("bad"), "updated_at": "t2"}, "ANNOTATION_UPDATED")
    assert studio.webhook(later)["labels"] == 1
    deleted = {"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 1}], "project": {"id": 7}}
    assert studio.webhook(deleted)["skips"] == 1
    assert studio.webhook(deleted)["known"] == 1
    assert project.store.answers()[row].kind == "skip"
    new = project.store.events()[before:]
    assert [(one.kind, one.value, one.seconds) for one in new] == [
        ("label", "good", 2.5), ("label", "bad", None), ("skip", None, None),
    ]  # fmt: skip


def test_a_deleted_annotation_is_nothing_if_the_person_answered_again(project: Project) -> None:
    studio, row = StudioBackend(project), project.store.picks(1)[0].row
    task = tasks_of(project)[row]
    studio.webhook(told(task, {"result": choice("good")}))
    studio.webhook(told(task, {"id": 2, "result": choice("bad")}))
    reply = studio.webhook({"action": "ANNOTATIONS_DELETED", "annotations": [{"id": 1}], "project": {"id": 7}})
    assert (reply["skips"], reply["known"]) == (0, 1)
    assert project.store.answers()[row].value == "bad"


def test_several_annotations_at_once_and_those_of_a_training_request(project: Project) -> None:
    studio, tasks = StudioBackend(project), tasks_of(project)
    rows = [pick.row for pick in project.store.picks(1)[:3]]
    both = [told(tasks[row], {"id": row, "result": choice("good")}) for row in rows[:2]]
    body = {**both[0], "action": "ANNOTATIONS_CREATED"}
    body |= {name: [one[name] for one in both] for name in ("annotation", "task")}
    assert studio.webhook(body)["labels"] == 2
    annotations = [{**told(tasks[row], {"id": row, "result": choice("good")})["annotation"]} for row in rows]
    trained = [{**tasks[row], "annotations": [one]} for row, one in zip(rows, annotations)]
    reply = studio.train({"annotations": trained, "project": "7.17", "label_config": CONFIG})
    assert (reply["labels"], reply["known"]) == (1, 2)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"result": choice("odd")}, "'odd' is not a class of the project"),
        ({"result": choice("good") + choice("bad")}, "does not have exactly one label"),
        ({"result": [{**choice("good")[0], "from_name": "other"}]}, "does not have exactly one label"),
        ({"result": []}, "does not have exactly one label"),
    ],
)
def test_an_annotation_that_cannot_be_used_is_refused(project: Project, change: dict[str, Any], words: str) -> None:
    before = project.store.events()
    reply = StudioBackend(project).webhook(told(tasks_of(project)[0], change))
    assert reply["status"] == "refused"
    assert words in reply["refused"][0]
    assert project.store.events() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"project": None}, 'no "project"'),
        ({"annotation": "x"}, '"annotation", a list of objects; found str'),
        ({"annotation": {"id": "1", "task": 100}}, "whole number as its id"),
        ({"task": 7}, '"task", a list of objects; found int'),
        ({"task": None}, '"task", a list of objects; found NoneType'),
        ({"annotation": {"id": 1, "task": 100, "result": "x"}}, '"result", a list of objects; found str'),
    ],
)
def test_an_event_that_cannot_be_read_is_refused(project: Project, change: dict[str, Any], words: str) -> None:
    before = project.store.events()
    with pytest.raises(LabelError, match=words):
        StudioBackend(project).webhook({**told(tasks_of(project)[0], {"result": choice("good")}), **change})
    assert project.store.events() == before


def test_other_events_need_nothing(project: Project) -> None:
    before = project.store.events()
    for action in ("TASKS_CREATED", "PROJECT_UPDATED", "START_TRAINING", None, 3):
        assert StudioBackend(project).webhook({"action": action, "project": {"id": 7}})["status"] == "ok"
    assert project.store.events() == before


def test_what_a_webhook_told_is_not_pulled_again_and_keeps_its_name(tmp_path: Path) -> None:
    with closing(script.texts(tmp_path / "texts")) as project:
        script.with_key(project, "http://127.0.0.1:1", "texts")
        link = read_link(project.folder)
        assert link is not None
        task = {"id": 5, "data": {"text": "shown otherwise", "al_key": link.key, "al_id": 0}}
        assert StudioBackend(project).webhook(told(task, {"result": choice("good")}))["labels"] == 1
        theirs = {"id": 7, "parsed_label_config": read_config(CONFIG)}
        importer = Importer(project, {3: "ann@example.org"})
        control = control_in(theirs, project, ())
        annotation = told(task, {"result": choice("good")})["annotation"]
        importer.add({**task, "annotations": [annotation]}, 0, control, link.key)
        assert (importer.result.known, importer.result.labels) == (1, 0)
        changed = {**annotation, "updated_at": "t2", "result": choice("bad")}
        importer.add({**task, "annotations": [changed]}, 0, control, link.key)
        assert project.store.answers()[0].votes == {"label-studio:3": "bad"}
        foreign = {"id": 6, "data": {"text": "it was fine", "al_key": "another", "al_id": 0}}
        reply = StudioBackend(project).webhook(told(foreign, {"id": 9, "result": choice("good")}))
        assert reply["refused"] == ["task 6: it was pushed by another project"]
