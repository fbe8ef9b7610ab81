"""Update: what the worker does for suggestions while it waits for answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from labelwise.errors import LabelwiseError, StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.project.data.features import OnProgress
from labelwise.project.loop.stored_model import Model, read_model, round_folder
from labelwise.project.predict.trained import cross_outputs
from labelwise.project.project import Project
from labelwise.project.suggest.class_names import ClassNames, embed, sentences
from labelwise.project.suggest.endpoint import IMAGE_SIDE, Endpoint
from labelwise.project.suggest.settings import OFF, SuggestSettings, read_suggest_settings
from labelwise.project.suggest.suggestions import Guesses, Suggestions, choose, of_logits, read_suggestions
from labelwise.rng import Key

GUESSES = "guesses.json"  # of an endpoint
PAUSE = 30.0  # seconds after an endpoint failed


class Updater:
    """Keeps `suggestions.json` of a project up to date, for as long as its worker runs."""

    def __init__(self, project: Project):
        self.folder = project.folder
        self._project = project
        self._done: tuple[object, ...] = ()
        self._trouble = ""
        self._failed_at = 0.0

    def step(self, on_progress: OnProgress) -> bool:
        """Do what is to be done after the last answers; whether there was something."""
        project = self._project
        if project.pending or project.settings.task != "classify":
            return False
        settings = read_suggest_settings(project.folder)
        rounds = project.store.rounds()
        asked = self._ask(settings) if settings.is_endpoint else False
        answers = project.store.answers()
        tests = {row: one.value for row, one in answers.items() if one.slice == "test" and one.value is not None}
        classes = tuple(project.store.classes())
        now = (settings, len(rounds), tuple(tests.items()), classes, self._trouble)
        if now == self._done and not asked:
            return False
        self._done = now  # before, so that an error is not repeated until something changes
        names = self._class_names(settings, classes, on_progress)
        _update(project, settings, names, tests, self._trouble)
        self._done = (*now[:-1], self._trouble)
        return True

    def _class_names(
        self, settings: SuggestSettings, classes: tuple[str, ...], on_progress: OnProgress
    ) -> ClassNames | None:
        """The embedded names of the classes, made again where they have changed; None where there are none."""
        if not settings.is_class_names or len(classes) < 2:
            return None
        texts = sentences(self._project.settings.kind, classes, settings.descriptions)
        try:
            found = ClassNames.read(self._project.folder)
            if found is None or (found.names, found.texts) != (classes, texts) or self._is_other(settings.by, found):
                found = embed(self._project, settings.by, texts, on_progress)
                found.write(self._project.folder)
            self._trouble = ""
            return found
        except (LabelwiseError, OSError) as error:
            self._trouble = f"No suggestions from class names: {str(error).splitlines()[0]}"
            return None

    def _is_other(self, by: str, found: ClassNames) -> bool:
        own = self._project.feature_info.encoder
        return found.encoder != (own if by == "auto" else by)

    def _ask(self, settings: SuggestSettings) -> bool:
        """Ask the endpoint about an item that it has not seen; whether there was one."""
        project = self._project
        if time.monotonic() - self._failed_at < PAUSE and self._trouble:
            return False
        known, classes = read_guesses(project.folder, settings), project.store.classes()
        row = next((row for row in _waiting(project, tests=True) if row not in known), None)
        if row is None or len(classes) < 2:
            return False
        endpoint = Endpoint(settings.by, settings.model)
        try:
            known[row] = endpoint.guess(_content(project, row), classes, settings.descriptions)
            self._trouble = ""
        except (LabelwiseError, OSError) as error:
            self._trouble, self._failed_at = f"No suggestions: {str(error).splitlines()[0]}", time.monotonic()
        write_guesses(project.folder, settings, known)
        return True


def read_guesses(folder: Path, settings: SuggestSettings) -> dict[int, str | None]:
    """What an endpoint has answered so far, by row."""
    try:
        found = read_checked(folder / GUESSES, "remove it; the endpoint is asked again", early=None)
    except (FileNotFoundError, StoreError):
        return {}
    if found.get("of") != [settings.by, settings.model]:
        return {}
    return {int(row): value for row, value in found["rows"].items()}


def write_guesses(folder: Path, settings: SuggestSettings, rows: Mapping[int, str | None]) -> None:
    """Write what an endpoint has answered."""
    given = {str(row): value for row, value in rows.items()}
    write_checked(folder / GUESSES, {"of": [settings.by, settings.model], "rows": given})


def _update(
    project: Project, settings: SuggestSettings, names: ClassNames | None, tests: dict[int, str], trouble: str
) -> None:
    if settings.by == OFF:
        if read_suggestions(project.folder) != Suggestions():
            Suggestions().write(project.folder)
        return
    rows, waiting = list(tests), _waiting(project)
    closed = set(project.reserve.tolist())
    labels = {
        row: one.value for row, one in project.store.answers().items() if one.value is not None and row not in closed
    }
    sources: list[Guesses] = []
    if names is not None:
        others = {row: label for row, label in labels.items() if label in names.names}
        scores = (
            names.scores(project, some) if some else np.empty((0, len(names.names)))
            for some in (rows, waiting, list(others))
        )
        sources.append(
            of_logits(
                f"class names ({names.encoder})",
                names.names,
                (rows, next(scores)),
                (waiting, next(scores)),
                tests,
                (next(scores), np.array([names.names.index(label) for label in others.values()], np.int64)),
            )
        )
    if settings.is_endpoint:
        known = read_guesses(project.folder, settings)
        host = settings.by.split("/")[2]
        sources.append(
            Guesses(
                f"{settings.model} at {host}",
                {row: known[row] for row in rows if row in known},
                {row: known[row] for row in waiting if row in known},
            )
        )
    model = _newest_model(project)
    if model is not None:
        both = (_outputs(project, model, some) for some in (rows, waiting))
        sources.append(
            of_logits(
                f"the model of {model.labels} labels",
                model.classes,
                (rows, next(both)),
                (waiting, next(both)),
                tests,
                _held_out(project, model, labels),
            )
        )
    choose(sources, tests, trouble).write(project.folder)


def _held_out(project: Project, model: Model, labels: dict[int, str]) -> tuple[np.ndarray, np.ndarray]:
    """Outputs for the training rows by models that were not trained on them, and their class numbers."""
    known = {row: model.classes.index(label) for row, label in labels.items() if label in model.classes}
    rows, label_N = torch.tensor(list(known)), torch.tensor(list(known.values()))
    if len(set(known.values())) < 2:
        return np.empty((0, len(model.classes))), np.empty(0, np.int64)
    key = Key(project.settings.seed).fold("project", "suggest")
    return cross_outputs(rows, project.pool.inputs(rows).double(), label_N, len(model.classes), key)


def _newest_model(project: Project) -> Model | None:
    for one in reversed(project.store.rounds()):
        found = read_model(round_folder(project.folder, one.number))
        if found is not None and len(found.classes) > 1:
            return found
    return None


def _outputs(project: Project, model: Model, rows: list[int]) -> np.ndarray:
    if not rows:
        return np.empty((0, len(model.classes)))
    out_NC = project.pool.inputs(rows).numpy().astype(np.float64) @ model.weight_CD.T + model.bias_C
    return np.asarray(out_NC[:, : len(model.classes)])


def _waiting(project: Project, tests: bool = False) -> list[int]:
    """The items of the last two rounds without an answer: those chosen, and the test items too if `tests`."""
    rounds, answers = project.store.rounds()[-2:], project.store.answers()
    picks = [pick for one in rounds for pick in project.store.picks(one.number)]
    if tests:  # the test items first, those with an answer as well: on them the source is measured
        first = [
            pick.row
            for one in project.store.rounds()
            for pick in project.store.picks(one.number)
            if pick.slice == "test"
        ]
        return [*first, *(pick.row for pick in picks if pick.slice == "chosen" and pick.row not in answers)]
    return [pick.row for pick in picks if pick.slice == "chosen" and pick.row not in answers]


def _content(project: Project, row: int) -> str | bytes:
    view = project.view(row)
    if view.image:
        return project.image(row, IMAGE_SIDE)
    if view.text is not None:
        return view.text
    return "\n".join(f"{name}: {value}" for name, value in view.fields or ())
