"""Rounds: train on the labels so far, choose the next rows, explain them, and measure the model afterwards."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from labelwise import strategies
from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.project.loop import suspects
from labelwise.project.loop.explain import TEST, near_copies, reasons
from labelwise.project.loop.holdout import interleaved, slice_size
from labelwise.project.loop.multi import choose_multi, free_rows, multi_suspects, train_multi
from labelwise.project.loop.set_model import hot, outputs_of, set_losses
from labelwise.project.loop.snapshot import Snapshot, session_of, take_snapshot
from labelwise.project.loop.stored_model import Model, read_model, round_folder, write_model
from labelwise.project.meter.meter import History, Span, losses_of, measure
from labelwise.project.predict.trained import cross_outputs
from labelwise.project.project import Project
from labelwise.project.store import Pick, Round
from labelwise.project.suggest.settings import read_suggest_settings
from labelwise.project.suggest.suggestions import MIN_ROWS
from labelwise.rng import Key
from labelwise.session import Session
from labelwise.signals.model.calibration import label_temperature
from labelwise.signals.model.reader import ModelReader
from labelwise.stats.estimate import LAW
from labelwise.theory.certificate import sentence
from labelwise.train.torch.training_loop import NEAR_CHANCE

EXPECTED_FROM, EXPECTED_ROWS = 30, 4000  # labels, and rows of the pool, for the accuracy estimated from all labels


def make_round(project: Project, number: int, after: int) -> bool:
    """Train on the events up to `after`, choose round `number` and add it to the store.

    The same events and settings give the same round. If the process is killed before the store has the round, nothing
    has happened.

    Returns:
        False if no row is left to choose.
    """
    if project.settings.task == "multi":
        return _make_multi_round(project, number, after)
    settings, began = project.settings, time.perf_counter()
    before = [one for one in project.store.rounds() if one.number < number]
    snapshot = take_snapshot(project.store, settings, project.reserve, after, before)
    session = session_of(project.pool, settings, project.reserve, snapshot)
    early = [one for one in before if one.notes.get("early") or one.notes.get("measures")]
    given = sum(len(project.store.picks(one.number)) for one in early)
    size = slice_size(number - len(early), settings.k, settings.test_share, given)
    wanted = max(size, settings.k - len(session.free))
    missing = _tests_missing(project, before)
    test = _next_tests(project, snapshot, missing or wanted, before)
    k = 0 if missing and test else min(settings.k - len(test), len(session.free))
    if not test and k < 1:
        return False
    chosen: list[Pick] = []
    model = train(session, snapshot) if snapshot.train else None
    cold = not snapshot.train or (settings.task == "classify" and len(set(snapshot.train.values())) == 1)
    strategy = strategies.name_of(session.recipe.start if cold else session.recipe.strategy) if k > 0 else "random"
    if k > 0:
        picks = session.ask(k)
        reader = None if cold else session.fit().reader
        why = reasons(picks, strategy, session.pool, reader, snapshot)
        if (picks.weights != 1).any():
            why = [{**one, "weight": weight} for one, weight in zip(why, picks.weights.tolist())]
        if settings.kind != "table":  # where rows that are alike need not be the same
            closed = snapshot.picked | set(snapshot.train) | set(project.reserve.tolist()) | set(picks.ids.tolist())
            same = near_copies(picks.ids, session.pool, closed)
            why = [{**one, "copies": same[row]} if row in same else one for one, row in zip(why, picks.ids.tolist())]
        chosen = [
            Pick(row, "chosen", score, one) for row, score, one in zip(picks.ids.tolist(), picks.scores.tolist(), why)
        ]
    notes = _notes(snapshot, began)
    if model is not None and (warning := training_warning(project, snapshot, model)):
        notes["warning"] = warning
    if missing and test:
        notes["measures"] = True
    if model is not None and (found := session.fit().notes.get("certificate")):
        notes["certificate"] = {"sentence": sentence(found["seen"]), **found}
    if chosen and (law := session.law):
        notes[LAW] = law
    if chosen and (design := session.design):
        notes["design"] = design
    if chosen and picks.notes.get("warning"):
        notes["draw_warning"] = f"{picks.notes['warning']}."
    _add_round(project, Round(number, strategy, "none", settings.seed, after, notes), chosen, test, model)
    return True


def _make_multi_round(project: Project, number: int, after: int) -> bool:
    """`make_round` for several classes."""
    settings, began = project.settings, time.perf_counter()
    before = [one for one in project.store.rounds() if one.number < number]
    snapshot = take_snapshot(project.store, settings, project.reserve, after, before)
    free = free_rows(project, snapshot)
    early = [one for one in before if one.notes.get("early")]
    given = sum(len(project.store.picks(one.number)) for one in early)
    size = slice_size(number - len(early), settings.k, settings.test_share, given)
    test = _next_tests(project, snapshot, max(size, settings.k - len(free)), before)
    k = min(settings.k - len(test), len(free))
    if not test and k < 1:
        return False
    model = train_multi(project, snapshot)
    name, chosen = "random", list[Pick]()
    if k > 0:
        name, chosen = choose_multi(project, snapshot, model, free, k)
    notes = _notes(snapshot, began)
    _add_round(project, Round(number, name, "none", settings.seed, after, notes), chosen, test, model)
    return True


def _notes(snapshot: Snapshot, began: float) -> dict[str, Any]:
    """What every round notes of itself."""
    return {
        "labels": len(snapshot.train),
        "tests": len(snapshot.test),
        "seconds": round(time.perf_counter() - began, 3),
        "unusable": list(snapshot.unusable[:20]),
    }


def _add_round(project: Project, made: Round, chosen: list[Pick], test: list[int], model: Model | None) -> None:
    """Write the model of a round, then add it to the store with its picks and test rows in their order."""
    by_row = {pick.row: pick for pick in chosen}
    by_row |= {row: Pick(row, "test", 0.0, {"words": TEST, "strategy": "test"}) for row in test}
    key = Key(made.seed).fold("project", "order", made.number)
    order = interleaved([pick.row for pick in chosen], test, key)
    if model is not None:
        write_model(round_folder(project.folder, made.number), model)
        made = replace(made, model=model.name)
    project.store.add_round(made, [by_row[row] for row in order])


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
        if settings.task == "multi":
            found = multi_suspects(project, snapshot)
        else:
            found = suspects.find(rows, project.pool.inputs(rows), list(snapshot.train.values()), names, key)
        suspects.write_suspects(folder, found)
        measure(project.folder, _history(project, snapshot, number), settings, len(project.pool), number, after)
    write_checked(folder / "notes.json", {"round": number, "after": after, "labels": len(snapshot.train)})


def train(session: Session, snapshot: Snapshot) -> Model:
    """The model trained on every answer of the session."""
    reader = session.fit().reader
    layer = reader.model if isinstance(reader, ModelReader) else None
    assert isinstance(layer, nn.Linear), "the learner of a project trains a linear layer"
    weight_CD, bias_C = (part.detach().numpy().copy() for part in (layer.weight, layer.bias))
    return Model(weight_CD, bias_C, snapshot.classes, len(snapshot.train))


def retrain_rounds(project: Project) -> None:
    """Train the model of each round again, on the answers it had. The next step of a worker measures the last one."""
    made: list[Round] = []
    for one in project.store.rounds():
        folder = round_folder(project.folder, one.number)
        snapshot = take_snapshot(project.store, project.settings, project.reserve, one.after, made)
        made.append(one)
        (folder / "notes.json").unlink(missing_ok=True)
        if snapshot.train and project.settings.task == "multi":
            model = train_multi(project, snapshot)
            if model is not None:
                write_model(folder, model)
        elif snapshot.train:
            write_model(folder, train(session_of(project.pool, project.settings, project.reserve, snapshot), snapshot))


def training_warning(project: Project, snapshot: Snapshot, model: Model) -> str:
    """What is wrong with a model of classes that knows its own training rows hardly better than chance; else empty."""
    labels = torch.tensor([int(value) for value in snapshot.train.values()])
    if project.settings.task != "classify" or len(labels.unique()) < 2:
        return ""
    chance = math.log(len(model.classes))
    x_ND = project.pool.inputs(list(snapshot.train)).numpy()
    logit_NC = torch.from_numpy(x_ND @ model.weight_CD.T + model.bias_C)
    loss = float(nn.functional.cross_entropy(logit_NC, labels))
    if loss <= NEAR_CHANCE * chance:
        return ""
    return (
        f"The model trained on {len(labels)} labels has hardly learnt from them: its loss on these very items is "
        f"{loss:.2f}, that of guessing {chance:.2f}. The features may not show what you label, or many labels are "
        "wrong. Its choices are little better than random ones."
    )


def _tests_missing(project: Project, before: list[Round]) -> int:
    """How many test rows are to be asked first, so that suggestions from outside the project are measured on them."""
    settings = project.settings
    if settings.task == "regress" or not settings.test_share:
        return 0
    if not read_suggest_settings(project.folder).is_measured_first:
        return 0
    given = sum(pick.slice == "test" for one in before for pick in project.store.picks(one.number))
    return max(0, MIN_ROWS - given)


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
    multi = project.settings.task == "multi"
    if multi:
        found_now = train_multi(project, snapshot)
        assert found_now is not None
        now, free = found_now, len(free_rows(project, snapshot))
    else:
        session = session_of(project.pool, project.settings, project.reserve, snapshot)
        now, free = train(session, snapshot), len(session.free)
    models = [model for model in models if model.labels < now.labels] + [now]
    hot_MC = hot(snapshot.values(snapshot.test), snapshot.classes) if multi else None
    if hot_MC is not None:
        outs = [outputs_of(m, x_MD.numpy().reshape(len(rows), -1), snapshot.classes) for m in models] if rows else []
        losses = [set_losses(out > 0, hot_MC) for out in outs] or [np.empty(0) for _ in models]
    else:
        losses = [losses_of(x_MD.numpy(), label_M, snapshot.classes, m.weight_CD, m.bias_C, m.classes) for m in models]
    progress = project.store.progress()
    weight_M, factor = project.test_weights(snapshot)
    return History(
        rows=np.array(rows, np.int64),
        x_MD=x_MD,
        label_M=label_M,
        classes=snapshot.classes,
        labels_R=[model.labels for model in models],
        losses_RM=losses,
        weight_M=weight_M,
        factor=factor,
        seconds=progress.median_seconds,
        free=free,
        expected=None if multi else _expected(project, snapshot, now),
        running=None if multi else _running(session),
        hot_MC=hot_MC,
        named_MC=outs[-1] > 0 if hot_MC is not None and rows else None,
    )


def _running(session: Session) -> Span | None:
    """What all labels say of the model, where their rows were drawn with known chances."""
    found = session.estimate
    if found is None:
        return None
    one = found["accuracy" if "accuracy" in found else "rmse"]
    return Span(one["value"], one["low"], one["high"] if math.isfinite(one["high"]) else None)


def _expected(project: Project, snapshot: Snapshot, model: Model) -> float | None:
    """The mean calibrated probability of the predicted class over the pool; None for numbers, or with few labels.

    Training rows are chosen because they are hard, so their cross-validated accuracy is lower than that of the pool.
    Their calibrated probabilities carry over to other rows.
    """
    if project.settings.task == "regress" or len(set(snapshot.train.values())) < 2:
        return None
    rows = torch.tensor(list(snapshot.train))
    label_N = torch.tensor([int(value) for value in snapshot.train.values()])
    key = Key(project.settings.seed).fold("project", "expected", snapshot.after)
    out_NC, target_N = cross_outputs(rows, project.pool.inputs(rows).double(), label_N, len(model.weight_CD), key)
    if len(target_N) < EXPECTED_FROM:
        return None
    temperature, _ = label_temperature(torch.from_numpy(out_NC), torch.from_numpy(target_N))
    ids = project.pool.ids.numpy()
    some = ids[key.numpy().permutation(len(ids))[:EXPECTED_ROWS]]
    logit_NC = project.pool.inputs(some).numpy() @ model.weight_CD.T + model.bias_C
    return float((torch.from_numpy(logit_NC).double() / temperature).softmax(1).amax(1).mean())


def read_notes(folder: Path, number: int) -> dict[str, Any] | None:
    """What `finish_round` wrote last for a round; None if it has not finished."""
    try:
        found = read_checked(round_folder(folder, number) / "notes.json", "the round is measured again", early=None)
    except (OSError, StoreError):
        return None
    return found if set(found) == {"round", "after", "labels"} and found["round"] == number else None
