"""Checkpoints of runs: every finished round is on disk, and a stopped run continues from there.

The records are the whole state. The first batch follows from the seed; picks, their weights and the notes that a
strategy wants back are in the records. To continue, they are put into a new session. Because a fit is a function of
answers and seed, the next round is the same as without the stop. Only where training starts from the last weights, the
model is saved too, named by its round, before the record of that round: a record never refers to a missing model.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from labelwise.bench.suite.curve import Curve
from labelwise.errors import StoreError
from labelwise.io.files import FileLockedError, open_locked, sync_folder
from labelwise.io.values import load_value, save_value
from labelwise.session import Session
from labelwise.stats.record import Record, append, read_records

MODELS = "models"
AGAIN = "the same command then runs its rounds again, and all other runs stay"


def continue_run(path: Path, curve: Callable[[], Curve], rounds: int, name: str) -> Iterator[Record]:
    """Run the remaining rounds of a run; yield each record once it is on disk.

    Args:
        path: the file of its records.
        curve: makes the learning curve; called only if a round is left.
        rounds: rounds after the first batch.
        name: of the run.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A worker whose runner was killed may still write its last round: wait for its lock.
    with open_locked(path):
        sync_folder(path.parent)
        done = read_run_records(path, name)
        if len(done) > rounds:
            return
        made = curve()
        start = made.label_first_batch()
        _replay(made, done, path)
        for number in range(len(done), rounds + 1):
            record = made.run_round(number)
            if number == 0:
                record = replace(record, notes={**record.notes, "start": start.tolist()})
            if made.continues_training:
                _save(made.session, _model(path, number))
            append(path, record)
            if number:
                _model(path, number - 1).unlink(missing_ok=True)
            yield record
        _model(path, rounds).unlink(missing_ok=True)


def read_or_advise(path: Path, consequence: str = AGAIN) -> list[Record]:
    """The records of a file; if one cannot be read, the error tells what happens when the file is removed."""
    try:
        return read_records(path)
    except StoreError as error:
        raise StoreError(f"{error} Remove that file, {path}: {consequence}") from error


def read_run_records(path: Path, name: str = "", consequence: str = AGAIN) -> list[Record]:
    """The records of a file that holds one run, from round 0 on; `name` is the name of the run or the end of it."""
    found = read_or_advise(path, consequence)
    for number, record in enumerate(found):
        if record.round != number or record.run != found[0].run or not record.run.endswith(name):
            wanted = found[0].run if found[0].run.endswith(name) else name.lstrip("/")
            raise StoreError(
                f"{path}, line {number + 1}: expected round {number} of {wanted}, found round {record.round} of "
                f"{record.run}. Remove that file, {path}: {consequence}"
            )
    return found


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder for one runner."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack = contextlib.ExitStack()
        stack.enter_context(open_locked(folder / ".lock", timeout=0.0))
    except FileLockedError:
        raise StoreError(
            f"{folder} is in use by another runner; nothing was changed. Wait for it, stop it, or name another folder "
            "with --out"
        ) from None
    except OSError as error:
        raise StoreError(f"{folder}: a run cannot be saved there ({error}); name another folder with --out") from error
    with stack:
        yield


def has_started(path: Path, settings: dict[str, Any]) -> bool:
    """Whether a run with these settings was started in a folder; `path` is the file with the settings.

    Raises:
        StoreError: the folder holds a run with other settings.
    """
    if not path.exists():
        return False
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be read: expected the settings of the run as JSON, found {error}. If you ask for the same "
            "as when the run was started, remove that file, and the run continues; else name another folder with --out"
        ) from error
    found = differences(before, json.loads(json.dumps(settings)))
    if found:
        lines = "\n".join(f"  {line}" for line in found[:20])
        raise StoreError(
            f"{path.parent} holds a run of another configuration; nothing was changed. What differs:\n{lines}\n"
            f"To continue it, ask for the same as before (see {path.name} there), or name another folder with --out"
        )
    return True


def differences(before: Any, now: Any, where: str = "", sides: tuple[str, str] = ("in the run", "now")) -> list[str]:
    """One line for each value that differs between two settings; `sides` names the two in these lines."""
    if isinstance(before, dict) and isinstance(now, dict):
        return [
            line
            for key in dict.fromkeys([*before, *now])
            for line in differences(before.get(key), now.get(key), f"{where}.{key}".lstrip("."), sides)
        ]
    one, other = sides
    if isinstance(before, list | tuple) and isinstance(now, list | tuple):
        pairs = enumerate(zip(before, now))
        lines = [line for i, (a, b) in pairs for line in differences(a, b, f"{where}[{i}]", sides)]
        if len(before) != len(now):
            lines.append(f"{where}: {len(before)} entries {one}, {len(now)} {other}")
        return lines
    return [] if before == now else [f"{where or 'all of it'}: {before!r} {one}, {now!r} {other}"]


def _replay(curve: Curve, done: list[Record], path: Path) -> None:
    """Put the rounds of earlier records into a session that has the first batch."""
    session = curve.session
    for record in done:
        answers = session.as_answers(curve.answers(np.array(record.picked)))
        weights = record.notes.get("weights", [1.0] * len(record.picked))
        back = record.notes["selection"] if session.recipe.strategy.needs.history else {}
        session.ledger.add(record.round + 1, record.picked, answers, weights, session.recipe.name, back)
    if done and curve.continues_training:
        _load(session, path, done[-1])


def _model(path: Path, number: int) -> Path:
    """The file of the model after a round, from which training of the next round starts."""
    return path.parent.parent / MODELS / f"{path.stem}--{number}.bin"


def _save(session: Session, path: Path) -> None:
    fit = session.state().fit or session.fit()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_value(path, {"ids": fit.ids, "state": dict(fit.state or {})})


def _load(session: Session, records: Path, last: Record) -> None:
    """Restore the model from which training of the next round starts."""
    path = _model(records, last.round)
    try:
        found = load_value(path, "")
        ids: Tensor = found["ids"]
        state: dict[str, Tensor] = found["state"]
    except (StoreError, KeyError, TypeError) as error:
        what = "is damaged" if path.exists() else "is missing"
        raise StoreError(
            f"{path} {what}: training starts from the model of round {last.round}. Remove the records of "
            f"{last.run}, {records}: {AGAIN}"
        ) from error
    assert session.learner is not None
    fit = session.learner.restore(state, ids)
    session.restore(replace(session.state(), fit=fit, fit_answers=last.labels))
