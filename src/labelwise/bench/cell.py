"""Cell: one learning curve, a record on disk for each round, and how to go on with one that was killed.

The records are all the state there is. The first batch is drawn from the seed, the same for every strategy, also for
those that could choose one themselves; picks, their weights and the notes a strategy wants back are in the records.
Going on puts them into a session again, and since a fit is a function of answers and seed, the next round is the
one that would have come. Only where training goes on from the last weights is a model kept too, under the number of its
round, before the record of that round is written: a record never refers to a model that is not there.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.bench.data import Data
from labelwise.bench.features import key_of, prepared
from labelwise.bench.headroom import best_batch
from labelwise.bench.memory import Peak
from labelwise.bench.models import learner_for
from labelwise.bench.suite import ORACLE, Cell
from labelwise.choose import Selection
from labelwise.errors import BudgetError, StoreError
from labelwise.keys import Key
from labelwise.label import oracle_of
from labelwise.loop import measure
from labelwise.pool.disk import opened, sync_folder
from labelwise.report.atomic import write_pieces
from labelwise.report.environment import environment
from labelwise.report.record import Record, append, read_records
from labelwise.session import Session
from labelwise.strategies import Random

RECORDS, MODELS, CACHE = "records", "models", "cache"
_MEASURED = ("select_seconds", "train_seconds", "read_seconds", "peak_mb")  # what two equal runs may differ in


@dataclass(frozen=True)
class Place:
    """Where the files of a cell are inside the folder of a run."""

    run: Path
    cell: Cell

    @property
    def records(self) -> Path:
        return self.run / RECORDS / f"{self.cell.file}.jsonl"

    def model(self, number: int) -> Path:
        """The model of a round, where training goes on from it."""
        return self.run / MODELS / f"{self.cell.file}--{number}.pt"


def run_cell(cell: Cell, run: Path, told: Callable[[Record], None] = lambda record: None) -> None:
    """Run what is left of a cell; `told` is called after each record is on disk."""
    place = Place(run, cell)
    place.records.parent.mkdir(parents=True, exist_ok=True)
    # A worker whose runner was killed may still be at its last round: it is waited for.
    with opened(place.records, os.O_RDWR | os.O_CREAT):
        sync_folder(place.records.parent)
        done = records_of(place.records)
        if len(done) > cell.data.rounds:
            return
        data = prepared(key_of(cell.data), run / CACHE)
        _check_size(cell, data)
        session = _session(cell, data)
        start = first_batch(data, cell.data.start, cell.seed)
        session.tell(start, oracle_of(None, data.pool)(start))
        _replay(session, data, done, place)
        for number in range(len(done), cell.data.rounds + 1):
            record = _round(session, data, cell, number, start)
            if _goes_on(cell, session):
                _save(session, place.model(number))
            append(place.records, record)
            if number:
                place.model(number - 1).unlink(missing_ok=True)
            told(record)
        place.model(cell.data.rounds).unlink(missing_ok=True)


def records_of(path: Path) -> list[Record]:
    """The records of a cell so far; one that cannot be read is a StoreError that says how to go on without it."""
    try:
        return read_records(path)
    except StoreError as error:
        raise StoreError(
            f"{error} Remove that file, {path}: its rounds run again with the next `labelwise bench run`, and the "
            "other cells are kept"
        ) from error


def first_batch(data: Data, count: int, seed: int) -> np.ndarray:
    """The ids that every strategy of a seed starts from: `count` rows of the pool at random."""
    draw = Key(seed).fold("bench", "start").uniform(data.pool.ids)
    return data.pool.ids[draw.argsort(stable=True)[:count]].sort().values.numpy()


def comparable(record: Record) -> dict[str, Any]:
    """What has to be equal in two runs on the same machine: all but times and memory."""
    values = {name: value for name, value in vars(record).items() if name not in _MEASURED}
    return {**values, "notes": {name: value for name, value in record.notes.items() if name != "memory"}}


def _session(cell: Cell, data: Data) -> Session:
    spec = cell.strategy
    oracle = spec.name == ORACLE
    strategy = Random() if oracle else spec.strategy()
    learner = learner_for(cell.model, data, strategy, spec.weights, cell.device)
    recipe: Any = Random() if oracle else spec.recipe()
    return Session(data.pool, learner, recipe, classes=data.classes, task=data.task, seed=cell.seed)


def _round(session: Session, data: Data, cell: Cell, number: int, start: np.ndarray) -> Record:
    """Train, measure, choose and label: one record."""
    session.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}
    labels = len(session.labelled)
    metrics, trained = measure(session, (data.test, data.test_labels))
    notes: dict[str, Any] = {"training": dict(session.fit().notes)}
    peak = Peak(cell.device)
    last = number == cell.data.rounds
    picks = Selection(np.empty(0), np.empty(0), np.empty(0)) if last else _picks(session, data, cell)
    notes |= {"selection": dict(picks.notes), "memory": peak.read()}
    seconds = dict(session.seconds)
    if not last:
        session.tell(picks.ids, oracle_of(None, data.pool)(picks.ids))
        if session.estimate is not None:
            notes["estimate"] = session.estimate
    if (picks.weights != 1).any():
        notes["weights"] = picks.weights.tolist()
    if number == 0:
        notes["start"] = start.tolist()
    return Record(
        run=cell.name,
        strategy=cell.strategy.label,
        seed=cell.seed,
        round=number,
        labels=labels,
        metrics=metrics,
        select_seconds=seconds["select"],
        train_seconds=trained,
        read_seconds=seconds["read"],
        peak_mb=peak.most,
        picked=picks.ids.tolist(),
        notes=notes,
        environment={**environment(cell.device), "seed": str(cell.seed)},
    )


def _picks(session: Session, data: Data, cell: Cell) -> Selection:
    if cell.strategy.name != ORACLE:
        return session.ask(cell.data.k)
    return best_batch(session, data, cell.data.k, int(cell.strategy.parameters.get("candidates", 10)))


def _replay(session: Session, data: Data, done: list[Record], place: Place) -> None:
    """Put the rounds of earlier records into a session that holds the first batch."""
    for record in done:
        answers = session.as_answers(oracle_of(None, data.pool)(np.array(record.picked)))
        weights = record.notes.get("weights", [1.0] * len(record.picked))
        back = record.notes["selection"] if session.recipe.strategy.needs.history else {}
        session.ledger.add(record.round + 1, record.picked, answers, weights, session.recipe.name, back)
    if done and _goes_on(place.cell, session):
        _load(session, place.model(done[-1].round), done[-1])


def _goes_on(cell: Cell, session: Session) -> bool:
    """Whether training goes on from the model of the round before."""
    return cell.model.is_torch and (session.recipe.restart is False or cell.model.parameters.get("restart") is False)


def _save(session: Session, path: Path) -> None:
    fit = session.fit() if session._fit is None else session._fit[1]
    stream = io.BytesIO()
    torch.save({"ids": fit.ids, "state": dict(fit.state or {})}, stream)
    write_pieces(path, [stream.getvalue()])


def _load(session: Session, path: Path, last: Record) -> None:
    """The model that the next round goes on from, as that of the rows that were labelled then."""
    if not path.exists():
        raise StoreError(
            f"{path} is missing: training goes on from the model of round {last.round}. Remove the records of "
            f"{last.run} to run this cell again"
        )
    found: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    ids: Tensor = found["ids"]
    assert session.learner is not None
    session._fit = (last.labels, session.learner.restore(found["state"], ids))


def _check_size(cell: Cell, data: Data) -> None:
    spec = cell.data
    wanted = spec.start + spec.k * spec.rounds
    if wanted > len(data.pool):
        raise BudgetError(
            f"{cell.name}: {spec.start} first labels and {spec.rounds} rounds of {spec.k} are {wanted} labels; "
            f"the pool has {len(data.pool)} rows. Lower start, k or rounds"
        )
