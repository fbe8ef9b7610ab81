"""Rounds: train on the labels so far, choose the next rows, explain them, and measure the model afterwards."""

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
from labelwise.project.loop.snapshot import Snapshot, session_of, take_snapshot
from labelwise.project.meter.meter import History, losses_of, measure
from labelwise.project.project import Project
from labelwise.project.store import Pick, Round
from labelwise.rng import Key
from labelwise.session import Session
from labelwise.signals.model.forward import ModelReader


@dataclass(frozen=True)
class Model:
    """The linear layer a round was chosen with. `labels` is the number of labels it was trained on."""

    weight_CD: np.ndarray
    bias_C: np.ndarray
    classes: tuple[str, ...]
    labels: int

    @property
    def name(self) -> str:
        """`linear/` and eight hex digits of a hash of the weights."""
        digest = hashlib.blake2b(self.weight_CD.tobytes() + self.bias_C.tobytes(), digest_size=4)
        return f"linear/{digest.hexdigest()}"


def round_folder(folder: Path, number: int) -> Path:
    """The folder of a round inside the project folder."""
    return folder / "rounds" / f"{number:03d}"


def make_round(project: Project, number: int, after: int) -> bool:
    """Train on the events up to `after`, choose round `number` and add it to the store.

    The same events and settings give the same round. If the process is killed before the store has the round, nothing
    has happened.

    Returns:
        False if no row is left to choose.
    """
    settings, began = project.settings, time.perf_counter()
    before = [one for one in project.store.rounds() if one.number < number]
    snapshot = take_snapshot(project.store, settings, project.reserve, after, before)
    session = session_of(project.pool, settings, project.reserve, snapshot)
    wanted = max(slice_size(number, settings.k, settings.test_share), settings.k - len(session.free))
    test = _next_tests(project, snapshot, wanted, before)
    k = min(settings.k - len(test), len(session.free))
    if not test and k < 1:
        return False
    chosen: list[Pick] = []
    model = train(session, snapshot) if snapshot.train else None
    cold = not snapshot.train or (settings.task == "classify" and len(set(snapshot.train.values())) == 1)
    strategy = strategies.name_of(session.recipe.start if cold else session.recipe.strategy)
    if k > 0:
        picks = session.ask(k)
        reader = None if cold else session.fit().reader
        why = reasons(picks, strategy, session.pool, reader, snapshot)
        chosen = [
            Pick(row, "chosen", score, one) for row, score, one in zip(picks.ids.tolist(), picks.scores.tolist(), why)
        ]
    by_row = {pick.row: pick for pick in chosen}
    by_row |= {row: Pick(row, "test", 0.0, {"words": TEST, "strategy": "test"}) for row in test}
    key = Key(settings.seed).fold("project", "order", number)
    order = interleaved([pick.row for pick in chosen], test, key)
    if model is not None:
        write_model(round_folder(project.folder, number), model)
    notes = {
        "labels": len(snapshot.train),
        "tests": len(snapshot.test),
        "seconds": round(time.perf_counter() - began, 3),
        "unusable": list(snapshot.unusable[:20]),
    }
    made = Round(number, strategy, model.name if model is not None else "none", settings.seed, after, notes)
    project.store.add_round(made, [by_row[row] for row in order])
    return True


def finish_round(project: Project, number: int, after: int) -> None:
    """Write the meter and the suspects of a round, then `notes.json`, which marks that this is done."""
    settings = project.settings
    rounds = project.store.rounds()
    until = [one for one in rounds if one.number <= number]
    snapshot = take_snapshot(project.store, settings, project.reserve, after, until)
    folder = round_folder(project.folder, number)
    folder.mkdir(parents=True, exist_ok=True)
    if snapshot.train:
        rows = list(snapshot.train)
        key = Key(settings.seed).fold("project", "suspects", after)
        names = snapshot.classes if settings.task == "classify" else ()
        found = suspects.find(rows, project.pool.inputs(rows), list(snapshot.train.values()), names, key)
        suspects.write_suspects(folder, found)
        measure(project.folder, _history(project, snapshot, number), settings, len(project.pool), number, after)
    write_text(
        folder / "notes.json", json.dumps({"round": number, "after": after, "labels": len(snapshot.train)}) + "\n"
    )


def train(session: Session, snapshot: Snapshot) -> Model:
    """The model trained on every answer of the session."""
    reader = session.fit().reader
    layer = reader.model if isinstance(reader, ModelReader) else None
    assert isinstance(layer, nn.Linear), "the learner of a project trains a linear layer"
    weight_CD, bias_C = (part.detach().numpy().copy() for part in (layer.weight, layer.bias))
    return Model(weight_CD, bias_C, snapshot.classes, len(snapshot.train))


def write_model(folder: Path, model: Model) -> None:
    """Write the model of a round to its folder."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        weight=model.weight_CD,
        bias=model.bias_C,
        classes=np.array(json.dumps(list(model.classes))),
        labels=np.array(model.labels),
    )
    write_bytes(folder / "model.npz", buffer.getvalue())


def read_model(folder: Path) -> Model | None:
    """The model in the folder of a round; None if the round had none."""
    path = folder / "model.npz"
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as found:
            classes = tuple(json.loads(str(found["classes"])))
            return Model(found["weight"], found["bias"], classes, int(found["labels"]))
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} cannot be read ({error}). Remove it; the meter then leaves that round out") from error


def _next_tests(project: Project, snapshot: Snapshot, count: int, before: list[Round]) -> list[int]:
    """The next test rows of the reserve. A row with an imported label is skipped, and counts as tested."""
    order = project.reserve.tolist()
    taken = {pick.row for one in before for pick in project.store.picks(one.number) if pick.slice == "test"}
    start = max((position + 1 for position, row in enumerate(order) if row in taken), default=0)
    labelled = project.store.answers(upto=snapshot.after)
    rows = [row for row in order[start:] if row not in snapshot.picked and row not in labelled]
    return rows[:count]


def _history(project: Project, snapshot: Snapshot, number: int) -> History:
    """The losses of this model and the ones before it on the test rows labelled so far."""
    rows = list(snapshot.test)
    x_MD = project.pool.inputs(rows) if rows else torch.empty(0, 0)
    label_M = np.array(list(snapshot.test.values()))
    models: list[Model] = []
    for one in range(1, number + 1):
        found = read_model(round_folder(project.folder, one))
        if found is not None:
            models.append(found)
    session = session_of(project.pool, project.settings, project.reserve, snapshot)
    now = train(session, snapshot)
    models = [model for model in models if model.labels < now.labels] + [now]
    losses = [losses_of(x_MD.numpy(), label_M, snapshot.classes, m.weight_CD, m.bias_C, m.classes) for m in models]
    progress = project.store.progress()
    return History(
        rows=np.array(rows, np.int64),
        x_MD=x_MD,
        label_M=label_M,
        classes=snapshot.classes,
        labels_R=[model.labels for model in models],
        losses_RM=losses,
        seconds=progress.median_seconds,
        free=len(session.free),
    )


def read_notes(folder: Path, number: int) -> dict[str, Any] | None:
    """What `finish_round` wrote last for a round; None if it has not finished."""
    try:
        found = json.loads((round_folder(folder, number) / "notes.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
