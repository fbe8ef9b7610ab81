"""Several classes for an item, from the settings to the exports."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fake_project import Browser, fake_project, running, work
from labelwise.cli import app
from labelwise.errors import ArgumentError, LabelError, StoreError
from labelwise.io.checked import with_checksum
from labelwise.project import Project, SavedModel, Settings
from labelwise.project.exchange.changes import apply, plan
from labelwise.project.exchange.export import export
from labelwise.project.exchange.read_labels import read_labels
from labelwise.project.exchange.studio_backend import StudioBackend
from labelwise.project.exchange.studio_client import Client
from labelwise.project.exchange.studio_json import config, read_config
from labelwise.project.exchange.studio_sync import pull, push
from labelwise.project.label_sets import NONE, majority, names_of, value_of
from labelwise.project.loop.multi import multi_suspects
from labelwise.project.loop.set_model import hot, logistic_each, outputs_of, set_losses
from labelwise.project.loop.snapshot import take_snapshot, with_multi_recipe
from labelwise.project.loop.stored_model import read_model, round_folder
from labelwise.project.meter.sentences import figures
from labelwise.project.predict.predictions import predict
from labelwise.project.predict.saved_model import model_files, write_model_folder
from labelwise.project.predict.trained import train
from labelwise.server import Auth
from labelwise.server.report import report_html

CLASSES = ("red", "big", "old")


def truth(row: int) -> str:
    """Row 7, 15 ... has no class; the others those of their bits."""
    return value_of([name for bit, name in enumerate(CLASSES) if (row % 8 + 1) >> bit & 1], CLASSES)


def settings(**more: object) -> Settings:
    found = Settings(
        name="things", kind="table", source="../things.csv", columns=("a", "b", "c"), task="multi", classes=CLASSES,
        k=20, test_share=0.3, recipe="recommended",
    )  # fmt: skip
    return replace(found, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A table of 400 rows whose columns tell the classes; five rounds are labelled as they are."""
    folder = tmp_path_factory.mktemp("multi")
    rng = np.random.default_rng(0)
    lines = ["a,b,c"]
    for row in range(400):
        on = np.array([name in names_of(truth(row)) for name in CLASSES])
        lines.append(",".join(f"{value:.3f}" for value in on * 2 - 1 + 0.3 * rng.standard_normal(3)))
    (folder / "things.csv").write_text("\n".join(lines) + "\n")
    with closing(Project.create(folder / "things-labelwise", settings())) as project:
        for _ in range(5):
            work(project)
            label_all(project)
        work(project)
        yield project


def label_all(project: Project) -> None:
    while (task := project.store.next_task("anna")) is not None:
        project.store.answer(task.token, "anna", "label", truth(task.row), 1.0)


# --- labels ----------------------------------------------------------------------------------------------------------


def test_a_set_is_one_text_in_the_order_of_the_classes() -> None:
    assert [truth(row) for row in (0, 1, 2, 6, 7)] == ["red", "big", "red|big", "red|big|old", NONE]
    assert hot(["red|old", NONE], CLASSES).tolist() == [[1, 0, 1], [0, 0, 0]]


@pytest.mark.parametrize(
    ("votes", "agreed"),
    [
        ({"red": 1, "red|big": 1, "red|old": 1}, {"red": 3}),
        ({"red": 1, "red|big": 1}, {"red": 1, "red|big": 1}),
        ({"red": 1, "big": 1, "old": 1}, {NONE: 3}),
        ({"red": 2, None: 1, "red|big": 1}, {"red": 3, None: 1}),
    ],
)
def test_people_agree_on_the_classes_that_more_than_half_gave(votes: dict, agreed: dict) -> None:
    assert majority(Counter(votes), CLASSES) == Counter(agreed)


def test_the_store_takes_sets_of_its_classes_alone(made: Project) -> None:
    row = int(made.reserve[-1])
    for wrong in ("red|blue", "big|red", "red|red", ""):
        with pytest.raises((LabelError, ArgumentError)):
            made.store.change("ben", row, "label", wrong, f"token-{wrong}")
    with pytest.raises(ArgumentError, match="must have no"):
        made.store.add_class("a|b", "ben")
    with pytest.raises(ArgumentError, match="must have no"):
        settings(classes=("a|b", "c"))


# --- model and strategies --------------------------------------------------------------------------------------------


def test_the_model_of_each_class_is_at_its_optimum() -> None:
    generator = torch.Generator().manual_seed(0)
    x_ND = torch.randn(40, 3, dtype=torch.float64, generator=generator)
    hot_NC = (x_ND[:, :2] + 0.5 * torch.randn(40, 2, dtype=torch.float64, generator=generator) > 0).double()
    weight, bias = logistic_each(x_ND, hot_NC)
    off_NC = (x_ND @ weight.T + bias).sigmoid() - hot_NC
    assert float((off_NC.T @ x_ND + weight / 30).abs().max()) < 1e-3
    assert float((off_NC.sum(0) + 1e-3 * bias).abs().max()) < 1e-3


def test_the_loss_is_one_minus_the_overlap() -> None:
    hot_MC = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]])
    named_MC = np.array([[1, 0, 1], [1, 0, 0], [0, 0, 0], [0, 1, 0]])
    assert set_losses(named_MC, hot_MC) == pytest.approx([2 / 3, 0, 0, 1])


def test_rounds_are_chosen_by_the_class_that_is_least_sure(made: Project) -> None:
    rounds = made.store.rounds()
    assert made.settings.recipe == "typiclust+margin"
    assert [one.strategy for one in rounds] == ["typiclust", *["margin"] * 5]
    chosen = [pick for pick in made.store.picks(rounds[-1].number) if pick.slice == "chosen"]
    assert len(chosen) == 14
    for pick in chosen:
        each = pick.why["each"]
        doubtful = min(each, key=lambda name: abs(each[name] - 0.5))
        assert pick.why["words"].startswith(f"{doubtful}, or not (")
    taken = [pick.row for one in rounds for pick in made.store.picks(one.number)]
    assert len(set(taken)) == len(taken)
    assert not {p.row for p in chosen} & set(made.reserve.tolist())


@pytest.mark.parametrize("recipe", ["typiclust+badge", "typiclust+kcenter", "random", "entropy"])
def test_other_recipes_choose_and_can_be_repeated(made: Project, recipe: str) -> None:
    from labelwise.project.loop.multi import choose_multi, free_rows, train_multi
    from labelwise.project.loop.snapshot import with_multi_recipe

    own = with_multi_recipe(replace(made.settings, recipe=recipe))
    snapshot = take_snapshot(made.store, made.settings, made.reserve, made.store.last_seq())
    before, made.settings = made.settings, own
    try:
        model, free = train_multi(made, snapshot), free_rows(made, snapshot)
        first, second = (choose_multi(made, snapshot, model, free, 5) for _ in range(2))
    finally:
        made.settings = before
    assert first == second
    assert len({pick.row for pick in first[1]}) == 5


@pytest.mark.parametrize("recipe", ["bald", "typiclust+bait"])
def test_a_strategy_without_a_meaning_for_sets_is_refused(recipe: str, tmp_path: Path) -> None:
    (tmp_path / "things.csv").write_text("a,b,c\n" + "1,2,3\n" * 9)
    with pytest.raises(ArgumentError, match="the class that the model is least sure of"):
        Project.create(tmp_path / "made", settings(recipe=recipe))


# --- what it measures ------------------------------------------------------------------------------------------------


def test_the_meter_measures_the_overlap_on_the_test_items(made: Project) -> None:
    meter = made.meter()
    assert meter is not None
    assert meter.score is not None
    assert (meter.metric, meter.test) == ("overlap", 30)
    assert meter.score.value > 0.8
    assert meter.baseline is not None
    assert meter.baseline < 0.6
    names = [one.name for one in figures(meter)]
    assert names[:4] == ["Overlap of classes", "Exactly right", "F1, micro", "F1, macro"]
    assert meter.control is not None
    quality = made.quality()
    assert quality is not None
    assert [one.name for one in quality.by_class] == list(CLASSES)
    assert quality.curve[-1][1].value == pytest.approx(meter.score.value)
    page = report_html(made)
    assert "Found of each class" in page
    assert "labelwise model" in page


def test_a_class_too_many_is_a_suspect(made: Project) -> None:
    snapshot = take_snapshot(made.store, made.settings, made.reserve, made.store.last_seq())
    rows = list(snapshot.train)
    sets = tuple(dict.fromkeys([*snapshot.sets, NONE, "red", "big", "old", "red|big|old"]))
    wrong = rows[:5]
    train_labels = {
        row: sets.index(value_of(set(names_of(truth(row))) ^ {"old"}, CLASSES))
        if row in wrong
        else sets.index(truth(row))
        for row in rows
        if truth(row) in sets
    }
    sets_all = sets
    found = multi_suspects(made, replace(snapshot, train=train_labels, sets=sets_all))
    assert len({one.row for one in found} & set(wrong)) >= 3
    assert all(one.predicted == truth(one.row) for one in found if one.row in wrong)


# --- what comes out and goes in --------------------------------------------------------------------------------------


def test_predictions_are_sets_with_the_chance_that_all_of_it_is_right(made: Project) -> None:
    found = predict(made, max_error=0.3)
    rows = [at for at, label in enumerate(found.labels) if label is None]
    right = np.mean([found.predicted[at] == truth(found.ids[at]) for at in rows])
    assert right > 0.8
    assert np.mean([found.probability[at] or 0 for at in rows]) == pytest.approx(right, abs=0.1)
    assert any(found.take[at] for at in rows)


def test_a_saved_model_gives_the_same_sets_without_the_project(made: Project, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    assert CliRunner().invoke(app, ["model", str(made.folder), "--to", str(folder)]).exit_code == 0
    lines = made.settings.path(made.folder).read_text().splitlines()
    (tmp_path / "new.csv").write_text("\n".join(lines[:101]) + "\n")
    again, here = SavedModel.load(folder).predict(tmp_path / "new.csv", 0.3), predict(made, max_error=0.3)
    assert again.predicted == here.predicted[:100]
    assert again.probability == pytest.approx(here.probability[:100])
    assert any("|" in one for one in again.predicted if one)
    assert any(again.take)
    shown = subprocess.run(
        [sys.executable, str(folder / "predict.py"), str(tmp_path / "new.csv")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert [one.split(",")[3] for one in shown.stdout.splitlines()[1:]] == again.predicted
    assert "1 / (1 + exp(-output / temperature))" in (folder / "README.md").read_text()


def test_an_earlier_version_refuses_a_model_of_sets_and_a_damaged_one_is_refused(made: Project, tmp_path: Path) -> None:
    write_model_folder(tmp_path / "model", model_files("things", *train(made)))
    path = tmp_path / "model" / "model.json"
    about = json.loads(path.read_text())
    assert (about["format"], about["task"]) == (3, "multi")
    for task, words in (("classify", "held_out_label_M"), ("several", "'task' is classify, multi or regress")):
        changed = {name: value for name, value in about.items() if name != "checksum"} | {"task": task}
        path.write_text(json.dumps(with_checksum(changed)))
        with pytest.raises(StoreError, match=words):
            SavedModel.load(tmp_path / "model")


def test_labels_go_out_as_csv_and_come_back(made: Project, tmp_path: Path) -> None:
    export(made, tmp_path / "labels.csv", include=["test"])
    (tmp_path / "things.csv").write_text(made.settings.path(made.folder).read_text())
    with closing(Project.create(tmp_path / "again", settings())) as other:
        changes = plan(other, read_labels(tmp_path / "labels.csv", sets=True))
        assert (changes.unusable, changes.unknown_classes) == ([], {})
        apply(other, changes)
        expected = {row: one.value for row, one in made.store.answers().items()}
        assert {row: one.value for row, one in other.store.answers().items()} == expected
        lines = ["id,label", "399,old|red", "398,new|red"]
        (tmp_path / "more.csv").write_text("\n".join(lines) + "\n")
        found = read_labels(tmp_path / "more.csv", sets=True)
        assert plan(other, found).unknown_classes == {"new": 1}
        apply(other, plan(other, found, add_classes=True))
        assert other.store.answers()[398].value == "red|new"
        assert other.store.classes() == [*CLASSES, "new"]


def test_label_studio_gets_several_choices_and_gives_them_back(made: Project, tmp_path: Path) -> None:
    assert 'choice="multiple"' in config(made, CLASSES)
    export(made, tmp_path / "tasks.json", "label-studio")
    tasks = json.loads((tmp_path / "tasks.json").read_text())
    given = {one["data"]["al_id"]: one["annotations"][0]["result"][0]["value"]["choices"] for one in tasks}
    assert all(value_of(names, CLASSES) == truth(row) for row, names in given.items())
    back = {int(one.id or -1): one.label for one in read_labels(tmp_path / "tasks.json", sets=True).labels}
    assert {row: value_of(names_of(label), CLASSES) for row, label in back.items()} == {
        row: truth(row) for row in given
    }


def test_what_takes_one_class_says_so(made: Project) -> None:
    with pytest.raises(ArgumentError, match="takes one class for an item"):
        made.session()


def of_label_studio(project: Project, **more: object) -> dict:
    """A request of Label Studio about every row."""
    tasks = [{"id": row, "data": {"al_id": row, "row": {}}} for row in range(len(project.pool))]
    return {"tasks": tasks, "project": "7.17", "label_config": config(project, CLASSES), **more}


def test_the_backend_of_label_studio_predicts_sets_and_orders_by_the_least_sure_class(made: Project) -> None:
    studio, body = StudioBackend(made), of_label_studio(made)
    studio.setup({"project": "7.17", "schema": body["label_config"]})
    found = studio.predict(body)["results"]
    reserved, here = set(made.reserve.tolist()), predict(made)
    predicted = dict(zip(here.ids, here.predicted))
    picked = {pick.row for one in made.store.rounds() for pick in made.store.picks(one.number)}
    model = read_model(round_folder(made.folder, made.store.rounds()[-1].number))
    assert model is not None
    free = [row for row in range(len(found)) if row not in reserved]
    p_NC = 1 / (1 + np.exp(-outputs_of(model, made.pool.inputs(free).numpy(), CLASSES)))
    for row, p_C in zip(free, p_NC):
        shown = found[row]["result"][0]["value"]["choices"]
        assert shown == [name for name, p in zip(CLASSES, p_C) if p > 0.5]
        if row not in picked:
            assert found[row]["score"] == pytest.approx(0.5 + np.maximum(p_C, 1 - p_C).min() / 2, abs=1e-5)
    assert all(not found[row]["result"] for row in reserved)
    sets = [value_of(found[row]["result"][0]["value"]["choices"], CLASSES) for row in free if row in predicted]
    assert any("|" in one for one in sets)
    assert NONE in sets


def test_annotations_of_label_studio_are_sets_in_the_order_of_the_classes(tmp_path: Path) -> None:
    (tmp_path / "things.csv").write_text("a,b,c\n" + "".join(f"{row},2,3\n" for row in range(9)))

    def answered(row: int, *names: str) -> dict:
        result = [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": list(names)}}]
        one = {"id": row, "task": row, "completed_by": 3, "updated_at": "t1", "result": result if names else []}
        task = {"id": row, "data": {"al_id": row, "row": {}}}
        place = {"id": 7, "label_config": config(project, CLASSES)}
        return {"action": "ANNOTATION_CREATED", "annotation": one, "task": task, "project": place}

    with closing(Project.create(tmp_path / "made", settings())) as project:
        studio = StudioBackend(project)
        assert studio.webhook(answered(0, "old", "red"))["labels"] == 1
        assert studio.webhook(answered(1))["labels"] == 1
        assert studio.webhook(answered(2, "big"))["labels"] == 1
        assert {row: one.value for row, one in project.store.answers().items()} == {0: "red|old", 1: NONE, 2: "big"}
        reply = studio.webhook(answered(3, "red", "new"))
        assert reply["status"] == "refused"
        assert "'new' is not a class of the project" in reply["refused"][0]
        assert StudioBackend(project, add_classes=True).webhook(answered(3, "new", "red"))["labels"] == 1
        assert project.store.answers()[3].value == "red|new"


def test_a_configuration_with_one_choice_for_an_item_is_refused(made: Project) -> None:
    single = config(made, CLASSES).replace('choice="multiple"', 'choice="single"')
    with pytest.raises(LabelError, match='Write choice="multiple" into the <Choices>'):
        StudioBackend(made).setup({"project": "7.17", "schema": single})
    with pytest.raises(LabelError, match='Write choice="multiple" into the <Choices>'):
        StudioBackend(made).predict(of_label_studio(made, label_config=single))


def test_picks_are_pushed_with_several_choices_and_annotations_are_pulled(made: Project, tmp_path: Path) -> None:
    shutil.copytree(made.folder.parent, tmp_path / "copy")
    theirs: dict = {"tasks": []}

    class Studio:
        url = "http://127.0.0.1:1"

        def get(self, path: str) -> dict:
            text = theirs["config"]
            return {"id": 5, "title": "things", "label_config": text, "parsed_label_config": read_config(text)}

        def post(self, path: str, body: object) -> dict:
            if isinstance(body, dict):
                theirs["config"] = body["label_config"]
                return {"id": 5}
            theirs["tasks"] += [{"id": 100 + n, **one} for n, one in enumerate(body)]  # type: ignore[arg-type]
            return {}

        def projects(self) -> list:
            return []

        def tasks(self, number: int) -> list:
            return theirs["tasks"]

        def people(self) -> dict:
            return {3: "ann@example.org"}

    studio = cast("Client", Studio())
    with closing(Project.open(tmp_path / "copy" / made.folder.name)) as project:
        assert push(project, studio).created == 20
        assert 'choice="multiple"' in theirs["config"]
        guesses = [
            one["predictions"][0]["result"][0]["value"]["choices"] for one in theirs["tasks"] if one["predictions"]
        ]
        assert len(guesses) == 14
        for one in theirs["tasks"]:
            names = list(names_of(truth(one["data"]["al_id"])))[::-1]
            result = [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": names}}]
            at = {"id": one["id"], "completed_by": 3, "updated_at": "t1"}
            one["annotations"] = [{**at, "result": result if names else []}]
        assert pull(project, studio).labels == 20
        assert pull(project, studio).known == 20
        rows = [one["data"]["al_id"] for one in theirs["tasks"]]
        answers = project.store.answers()
        assert [answers[row].value for row in rows] == [truth(row) for row in rows]


# --- the page --------------------------------------------------------------------------------------------------------


def test_the_page_takes_sets_and_refuses_other_names(tmp_path: Path) -> None:
    project = fake_project(tmp_path / "p", [f"text {row}" for row in range(6)], task="multi", classes=CLASSES)
    project.store.use_sets()
    auth = Auth.make(project.folder)
    with running(project, auth) as address, Browser(address, auth) as anna:
        card = anna.get("/card").text
        assert "data-multi" in card
        assert 'data-do="save"' in card
        token = card.split('data-token="')[1].split('"')[0]
        fields = {"token": token, "kind": "label", "seconds": "1"}
        assert anna.post("/answer", data={**fields, "value": "red|blue"}).status_code == 422
        assert "Saved: red|old." in anna.post("/answer", data={**fields, "value": "old|red"}).text
        row = next(iter(project.store.answers()))
        assert "data-multi" in anna.get("/grid").text
        page = anna.get("/gallery?label=old").text
        assert 'value="red" checked' in page
        change = {"row": row, "choice": "set", "token": "change-01", "names": ["old", "big"]}
        assert anna.post("/change", data=change).status_code == 200
        assert project.store.answers()[row].value == "big|old"
        assert anna.post("/change", data={**change, "token": "change-02", "names": []}).status_code == 200
        assert project.store.answers()[row].value == NONE
    project.close()


@pytest.mark.parametrize("part", ["weigh sabal", "train primal-dual", "certify basis"])
def test_the_parts_of_a_recipe_that_have_no_meaning_here_are_refused(part: str) -> None:
    settings = Settings("several", "table", "rows.csv", recipe=f"typiclust+badge | {part}")
    with pytest.raises(ArgumentError, match=r"has no other parts; name the strategies alone, such as typiclust\+badge"):
        with_multi_recipe(settings)
