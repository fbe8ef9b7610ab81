"""Label Studio's ML backend protocol, without HTTP: what a project answers to each request.

Scores order tasks. Label Studio shows the lowest score first, both in its uncertainty sampling and in a list that is
sorted by "Prediction score". A row that was picked has its place in the queue of the labelling page, from 0 to 0.5;
any other row has 0.5 + p/2, where p is the probability of its predicted class (of sets of classes: of what is predicted
for the class that the model is least sure of). Rows of the test slice get an empty result: a prediction would bias the
answer that the model is measured by.

A prediction comes from the model of the last round, and its version names both. Label Studio stores scores and asks
again when the version changes, so they depend on the rounds alone, not on the answers since.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from labelwise.errors import LabelError
from labelwise.project.exchange.changes import RowFinder
from labelwise.project.exchange.entries import classes_of
from labelwise.project.exchange.read_labels import FoundLabel
from labelwise.project.exchange.studio_json import Control, prediction, read_config
from labelwise.project.exchange.studio_sync import Importer, control_in, read_link, row_of
from labelwise.project.loop.stored_model import Model, read_model, round_folder
from labelwise.project.project import Project

LAST = 1.0  # the score of a task that nobody needs to label
WRITES = ("ANNOTATION_CREATED", "ANNOTATIONS_CREATED", "ANNOTATION_UPDATED")
DELETES = ("ANNOTATIONS_DELETED", "ANNOTATION_DELETED")


@dataclass(frozen=True)
class _Rounds:
    """What the rounds so far say: the version, the model of the last one, and the place of each pick from 0 to 1."""

    number: int
    version: str
    model: Model | None
    place: Mapping[int, float]


class StudioBackend:
    """A project as an ML backend. Each method takes the body of a request and returns that of the reply.

    A request that cannot be read raises a LabelError, whose sentence is the reply. Safe to use from many threads.
    """

    def __init__(self, project: Project, add_classes: bool = False):
        self._project, self._add_classes = project, add_classes
        self._lock = threading.RLock()
        self._finder = RowFinder(project)
        self._importer = Importer(project, add_classes=add_classes)
        self._reserved = frozenset(project.reserve.tolist())
        self._rounds = _Rounds(0, _version(0, "none"), None, {})

    def health(self) -> dict[str, Any]:
        """That the backend runs."""
        return {"status": "UP", "model_class": "Labelwise"}

    def versions(self) -> dict[str, Any]:
        """The versions of the model, the latest first."""
        found = [_version(one.number, one.model) for one in reversed(self._project.store.rounds())]
        return {"versions": found or [_version(0, "none")]}

    def setup(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Check the labelling configuration, and take the classes from it if the project has none."""
        theirs = _project_of(body.get("project"), body.get("schema"))
        with self._lock:
            choices = control_labels(theirs, control_in(theirs, self._project, ()))
            classes = classes_of(self._project)
            new = [name for name in choices if name not in classes]
            if new and classes and not self._add_classes:
                raise LabelError(
                    f"project {theirs['id']} of Label Studio has the choice {', '.join(map(repr, new[:5]))}, which is "
                    "not a class here. Remove it from the labelling configuration, or start with --add-classes"
                )
            control_in(theirs, self._project, classes)  # fails if Label Studio cannot show one of them
            if self._project.settings.task != "regress":
                for name in new:
                    self._project.store.add_class(name, "label-studio")
            return {"model_version": self._known_rounds().version}

    def predict(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """A prediction for each task, in their order."""
        theirs = _project_of(body.get("project"), body.get("label_config"))
        control, tasks = control_in(theirs, self._project, ()), _dicts(body.get("tasks"), "tasks")
        with self._lock:
            rounds = self._known_rounds()
            rows = [self._row(task, control) for task in tasks]
        found = [row for row in rows if isinstance(row, int)]
        if tasks and not found:
            raise LabelError(f"no task is a row of this project; {_named(tasks[0])}: {rows[0]}")
        scores, whys = self._predicted(found, rounds)
        choices = control_labels(theirs, control)
        results = []
        for row in rows:
            score, why = (scores[row], whys[row]) if isinstance(row, int) else (LAST, {})
            made = prediction(why, rounds.version, control)
            shown = made["result"] if made is not None else []
            if control.task != "regress" and shown and not set(shown[0]["value"]["choices"]) <= set(choices):
                shown = []
            results.append({"model_version": rounds.version, "score": score, "result": shown})
        return {"results": results}

    def webhook(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Import what people have answered. Other events need nothing."""
        action = body.get("action")
        if action == "START_TRAINING":
            return {"status": "ok", "result": "The model is trained after every round, without being asked."}
        if action not in (*WRITES, *DELETES):
            return {"status": "ok", "result": f"{action!r:.60} needs nothing"}
        project = body.get("project")
        if not isinstance(project, Mapping):
            raise LabelError('the event has no "project"; let the webhook send its payload')
        key = f"project-{project.get('id')}"
        with self._lock:
            self._importer.refresh()
            if action in DELETES:
                link = read_link(self._project.folder)
                for one in _dicts(body.get("annotations", body.get("annotation")), "annotations"):
                    self._importer.remove(_number(one, "annotation"), [key, *([link.key] if link else [])])
                return self._result([])
            theirs = _project_of(project.get("id"), project.get("label_config"))
            annotations = _dicts(body.get("annotation"), "annotation")
            tasks = {_number(one, "task"): one for one in _dicts(body.get("task"), "task")}
            return self._take(
                [{**tasks.get(_task_of(one), {}), "id": _task_of(one), "annotations": [one]} for one in annotations],
                theirs, key,
            )  # fmt: skip

    def train(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Import the annotations of all tasks, which versions of Label Studio before webhooks send."""
        theirs = _project_of(body.get("project"), body.get("label_config"))
        with self._lock:
            self._importer.refresh()
            return self._take(_dicts(body.get("annotations"), "annotations"), theirs, f"project-{theirs['id']}")

    def _take(self, tasks: Sequence[Mapping[str, Any]], theirs: dict[str, Any], key: str) -> dict[str, Any]:
        control = control_in(theirs, self._project, ())
        link, refused = read_link(self._project.folder), []
        for task in tasks:
            row = self._row(task, control)
            if isinstance(row, str):
                refused.append(f"{_named(task)}: {row}")
                continue
            for one in _dicts(task.get("annotations"), "annotations"):
                _number(one, "annotation")
                _dicts(one.get("result") or [], "result")
            pushed = link is not None and row_of(task, link.key) is not None
            self._importer.add(task, row, control, link.key if link is not None and pushed else key)
        return self._result(refused)

    def _result(self, refused: list[str]) -> dict[str, Any]:
        found = self._importer.result
        refused += found.unusable
        refused += [
            f"{name!r} is not a class of the project, and the answer was not taken in. Start with --add-classes, then "
            "submit the annotation again"
            for name in found.unknown_classes
        ]
        counts = {"labels": found.labels, "skips": found.skips, "known": found.known}
        return {"status": "refused" if refused else "ok", **counts, "refused": refused}

    def _known_rounds(self) -> _Rounds:
        """What the rounds say, read again when there is a new one. The lock is held."""
        store = self._project.store
        made = store.rounds()
        if made and made[-1].number != self._rounds.number:
            last = made[-1]
            order = [pick.row for one in made for pick in store.picks(one.number)]
            self._rounds = _Rounds(
                last.number,
                _version(last.number, last.model),
                read_model(round_folder(self._project.folder, last.number)),
                {row: place / len(order) for place, row in enumerate(order)},
            )
        return self._rounds

    def _predicted(self, rows: Sequence[int], rounds: _Rounds) -> tuple[dict[int, float], dict[int, dict[str, Any]]]:
        """The score of each row, and what the model predicts for those outside the test slice."""
        scores = {row: rounds.place[row] / 2 if row in rounds.place else LAST for row in rows}
        whys: dict[int, dict[str, Any]] = {row: {} for row in rows}
        free = [row for row in whys if row not in self._reserved]
        model = rounds.model
        if model is None or not free:
            return scores, whys
        out_NC = self._project.pool.inputs(free).numpy().astype(np.float64) @ model.weight_CD.T + model.bias_C
        if self._project.settings.task == "regress":
            return scores, whys | {row: {"predicted": float(out)} for row, out in zip(free, out_NC[:, 0])}
        if self._project.settings.task == "multi":
            p_NC = torch.from_numpy(out_NC).sigmoid().numpy()
            whys |= {row: {"each": dict(zip(model.classes, p_C.tolist()))} for row, p_C in zip(free, p_NC)}
            sure_N = np.maximum(p_NC, 1 - p_NC).min(1)
        else:
            p_NC = torch.from_numpy(out_NC).softmax(1).numpy()
            for row, p_C in zip(free, p_NC):
                best = int(p_C.argmax())
                whys[row] = {"probs": {model.classes[best]: float(p_C[best])}}
            sure_N = p_NC.max(1)
        return scores | {row: 0.5 + float(p) / 2 for row, p in zip(free, sure_N) if row not in rounds.place}, whys

    def _row(self, task: Mapping[str, Any], control: Control) -> int | str:
        """The row of a task, or the reason why it has none."""
        data = task.get("data")
        if not isinstance(data, Mapping):
            return "it has no data"
        key = data.get("al_key")
        if key is not None:
            link = read_link(self._project.folder)
            row = row_of(dict(task), link.key) if link is not None else None
            return row if row is not None else "it was pushed by another project"
        kind, shown = self._project.settings.kind, data.get(control.field)
        path = data.get("al_ref", shown) if kind == "image" else None
        if kind == "text" and not isinstance(shown, str):
            return f"its field {control.field!r} is not a text"
        if kind == "table" and "al_id" not in data:
            return "a task of a table needs al_id, which `labelwise label-studio push` and `labelwise export` write"
        text = shown if kind == "text" else None
        number = None if data.get("al_id") is None else str(data["al_id"])
        return self._finder.find(FoundLabel("", "", number, path if isinstance(path, str) else None, text))


def control_labels(theirs: Mapping[str, Any], control: Control) -> list[str]:
    """The choices of a control."""
    return list(theirs["parsed_label_config"][control.name].get("labels") or [])


def _version(number: int, model: str) -> str:
    return f"labelwise round {number} ({model})"


def _project_of(number: Any, config: Any) -> dict[str, Any]:
    """The project of Label Studio in the form of its API, from the number (or "number.time") and the configuration."""
    if not isinstance(config, str) or not config.strip():
        raise LabelError("the request has no labelling configuration. Set one up in the project of Label Studio first")
    return {
        "id": str(number).partition(".")[0],
        "title": "Label Studio",
        "label_config": config,
        "parsed_label_config": read_config(config),
    }


def _dicts(found: Any, name: str) -> list[dict[str, Any]]:
    """A list of mappings, or one; LabelError for anything else."""
    listed = [found] if isinstance(found, Mapping) else found
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise LabelError(f'the request should have "{name}", a list of objects; found {type(found).__name__}')
    return listed


def _number(one: Mapping[str, Any], name: str, part: str = "id") -> int:
    found = one.get(part)
    if not isinstance(found, int) or isinstance(found, bool):
        raise LabelError(f"the {name} should have a whole number as its {part}; found {str(found)!r:.40}")
    return found


def _task_of(annotation: Mapping[str, Any]) -> int:
    return _number(annotation, "annotation", "task")


def _named(task: Mapping[str, Any]) -> str:
    return f"task {task.get('id')!r:.40}"
