"""Rounds: train on what is known, choose the next rows, say why; and what is measured after each."""

from __future__ import annotations

import hashlib
import io
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from labelwise import strategies
from labelwise.errors import StoreError
from labelwise.io.files import write_bytes, write_text
from labelwise.project.loop import suspects
from labelwise.project.loop.explain import TEST, reasons
from labelwise.project.loop.holdout import interleaved, slice_size
from labelwise.project.loop.snapshot import Standing, session_of, standing
from labelwise.project.meter.meter import measure
from labelwise.project.meter.rows import History, losses_of
from labelwise.project.project import Project
from labelwise.project.store import Pick, Round
from labelwise.rng import Key
from labelwise.session import Session
from labelwise.signals.model.forward import ModelReader


@dataclass(frozen=True)
class Model:
    """A linear layer that a round was chosen with, and how many labels it was trained on."""

    weight_CD: np.ndarray
    bias_C: np.ndarray
    classes: tuple[str, ...]
    labels: int

    @property
    def name(self) -> str:
        """Eight hex digits of its numbers."""
        digest = hashlib.blake2b(self.weight_CD.tobytes() + self.bias_C.tobytes(), digest_size=4)
        return f"linear/{digest.hexdigest()}"


def place(folder: Path, number: int) -> Path:
    """Where what belongs to a round is kept."""
    return folder / "rounds" / f"{number:03d}"


def make_round(project: Project, number: int, after: int) -> bool:
    """Train on the events up to `after`, choose round `number` and add it to the store; False if no row is left.

    The same events and settings give the same round. Killed before the store has it, nothing has happened.
    """
    settings, began = project.settings, time.perf_counter()
    before = [one for one in project.store.rounds() if one.number < number]
    known = standing(project.store, settings, project.reserve, after, before)
    session = session_of(project.pool, settings, project.reserve, known)
    wanted = max(slice_size(number, settings.k, settings.test_share), settings.k - len(session.free))
    test = _next_tests(project, known, wanted, before)
    chosen_k = min(settings.k - len(test), len(session.free))
    if not test and chosen_k < 1:
        return False
    chosen: list[Pick] = []
    model = train(session, known) if known.train else None
    strategy = strategies.name_of(session.recipe.start)
    if chosen_k > 0:
        picks = session.ask(chosen_k)
        cold = not known.train or (settings.task == "classify" and len(set(known.train.values())) == 1)
        strategy = strategies.name_of(session.recipe.start if cold else session.recipe.strategy)
        reader = None if cold else session.fit().reader
        why = reasons(picks, strategy, session.pool, reader, known)
        chosen = [
            Pick(row, "chosen", score, one) for row, score, one in zip(picks.ids.tolist(), picks.scores.tolist(), why)
        ]
    by_row = {pick.row: pick for pick in chosen}
    by_row |= {row: Pick(row, "test", 0.0, {"words": TEST, "strategy": "test"}) for row in test}
    key = Key(settings.seed).fold("project", "order", number)
    order = interleaved([pick.row for pick in chosen], test, key)
    home = place(project.folder, number)
    if model is not None:
        write_model(home, model)
    notes = {
        "labels": len(known.train),
        "tests": len(known.test),
        "seconds": round(time.perf_counter() - began, 3),
        "unusable": list(known.unusable[:20]),
    }
    made = Round(number, strategy, model.name if model is not None else "none", settings.seed, after, notes)
    project.store.add_round(made, [by_row[row] for row in order])
    return True


def finish_round(project: Project, number: int, after: int) -> None:
    """Meter and suspects after a round was made, or after the last answers; `notes.json` says that it is done."""
    settings = project.settings
    rounds = project.store.rounds()
    known = standing(project.store, settings, project.reserve, after, [one for one in rounds if one.number <= number])
    home = place(project.folder, number)
    home.mkdir(parents=True, exist_ok=True)
    if known.train:
        rows = list(known.train)
        key = Key(settings.seed).fold("project", "suspects", after)
        names = known.classes if settings.task == "classify" else ()
        found = suspects.find(rows, project.pool.inputs(rows), list(known.train.values()), names, key)
        suspects.write_suspects(home, found)
        measure(project.folder, _history(project, known, number), settings, len(project.pool), number, after)
    write_text(home / "notes.json", json.dumps({"round": number, "after": after, "labels": len(known.train)}) + "\n")


def train(session: Session, known: Standing) -> Model:
    """The model of all answers told to the session."""
    reader = session.fit().reader
    layer = reader.model if isinstance(reader, ModelReader) else None
    assert isinstance(layer, nn.Linear), "the learner of a project trains a linear layer"
    weight_CD, bias_C = (part.detach().numpy().copy() for part in (layer.weight, layer.bias))
    return Model(weight_CD, bias_C, known.classes, len(known.train))


def write_model(home: Path, model: Model) -> None:
    """Keep the model of a round."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        weight=model.weight_CD,
        bias=model.bias_C,
        classes=np.array(json.dumps(list(model.classes))),
        labels=np.array(model.labels),
    )
    write_bytes(home / "model.npz", buffer.getvalue())


def read_model(home: Path) -> Model | None:
    """The model of a round; None for a round that had none."""
    path = home / "model.npz"
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as found:
            classes = tuple(json.loads(str(found["classes"])))
            return Model(found["weight"], found["bias"], classes, int(found["labels"]))
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} cannot be read ({error}); remove it, the meter then leaves that round out") from error


def _next_tests(project: Project, known: Standing, count: int, before: list[Round]) -> list[int]:
    """The next rows of the reserve; one that has a label already (by import) is passed over, and counts as tested."""
    order = project.reserve.tolist()
    taken = {pick.row for one in before for pick in project.store.picks(one.number) if pick.slice == "test"}
    start = max((at + 1 for at, row in enumerate(order) if row in taken), default=0)
    labelled = project.store.answers(upto=known.after)
    rows = [row for row in order[start:] if row not in known.picked and row not in labelled]
    return rows[:count]


def _history(project: Project, known: Standing, number: int) -> History:
    """The losses of this model and of the ones before it on the test rows there are now."""
    rows = list(known.test)
    x_MD = project.pool.inputs(rows) if rows else torch.empty(0, 0)
    label_M = np.array(list(known.test.values()))
    models: list[Model] = []
    for one in range(1, number + 1):
        found = read_model(place(project.folder, one))
        if found is not None:
            models.append(found)
    session = session_of(project.pool, project.settings, project.reserve, known)
    now = train(session, known)
    models = [model for model in models if model.labels < now.labels] + [now]
    losses = [losses_of(x_MD.numpy(), label_M, known.classes, m.weight_CD, m.bias_C, m.classes) for m in models]
    progress = project.store.progress()
    return History(
        rows=np.array(rows, np.int64),
        x_MD=x_MD,
        label_M=label_M,
        classes=known.classes,
        labels_R=[model.labels for model in models],
        losses_RM=losses,
        seconds=progress.median_seconds,
        free=len(session.free),
    )


def notes_of(folder: Path, number: int) -> dict[str, Any] | None:
    """What `finish_round` wrote last for a round; None where it has not run to its end."""
    try:
        found = json.loads((place(folder, number) / "notes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
