"""A session in a folder: `session.json` holds its settings, `answers.jsonl` its ledger, `model.pt` its last fit.

The first two are enough to continue. The model is only stored where training continues from the last one, since
otherwise training again on the same answers gives the same model. `asked.json` holds the last batch asked for, with
the weights and notes that go into the ledger with its answers; folders of early versions have none and need none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from labelwise import strategies
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.files import atomic_file, write_bytes, write_text
from labelwise.pool import Ledger
from labelwise.recipes import Recipe
from labelwise.session.pending import PendingBatch
from labelwise.train import Fit, Learner, Objective, PrimalDual

VERSION = 1
ANSWERS = "answers.jsonl"
PENDING = "asked.json"
_FIELDS = ("recipe", "seed", "classes", "batch", "rows", "pool")
_DEFAULTS = {"task": "classify", "half": False}  # not written into the file


def create(folder: Path, settings: dict[str, Any]) -> Ledger:
    """Start a session in `folder`, which must not hold one; return its empty ledger."""
    text = json.dumps({"version": VERSION, **settings}, indent=2) + "\n"
    try:
        if is_used(folder):
            raise StoreError(
                f"{folder} already holds a session; go on with Session(..., resume=True) or "
                f"Session.load({str(folder)!r}, pool, learner), or choose another folder. Nothing was changed."
            )
        folder.mkdir(parents=True, exist_ok=True)
        # The file of the ledger exists from the start, so that a missing one is known to be lost.
        (folder / ANSWERS).touch()
        write_text(folder / "session.json", text)
    except OSError as error:
        raise _unusable(folder, error) from error
    return Ledger(folder / ANSWERS)


def settings(folder: Path) -> dict[str, Any]:
    """The settings that `create` wrote."""
    path = folder / "session.json"
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{folder} holds no session: there is no {path.name}. Start one with Session(..., folder=...)"
        ) from None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        raise StoreError(f"{path} has version {version!r}; this Labelwise reads version {VERSION}")
    _check_fields(path, "", found, _FIELDS)
    _check_fields(path, "recipe.", found["recipe"], ("name", "strategy", "start"))
    for name in ("strategy", "start"):
        _check_fields(path, f"recipe.{name}.", found["recipe"][name], ("class",))
    return found


def ledger(folder: Path) -> Ledger:
    """The answers of the session in `folder`."""
    path = folder / ANSWERS
    if not path.exists():
        raise StoreError(
            f"{folder}: {ANSWERS} is missing; restore it from a copy. Only if no answer was ever given, make an empty "
            "file of that name"
        )
    return Ledger(path)


def recipe_of(folder: Path, stored: dict[str, Any]) -> Recipe:
    """The recipe of a stored session, from its name and parameters."""
    wanted = stored["recipe"]
    try:
        objective = _build_objective(wanted["objective"]) if "objective" in wanted else None
        strategy, start = _build_strategy(wanted["strategy"]), _build_strategy(wanted["start"])
        return Recipe(wanted["name"], strategy, start, objective, wanted.get("restart"))
    except ArgumentError as error:
        raise StoreError(
            f"the session in {folder} was made with recipe {wanted['name']!r} ({wanted['strategy']['class']}), which "
            "is not a strategy of Labelwise; pass it as Session.load(..., recipe=...)"
        ) from error


def check(folder: Path, stored: dict[str, Any], now: dict[str, Any]) -> None:
    """Raise StoreError where the session to continue is not the one that was stored."""
    stored = {name: value for name, value in stored.items() if name != "version"}
    now = json.loads(json.dumps(now))
    for name in dict.fromkeys(("task", *stored, *now)):  # first the task, which decides about classes and recipe
        expected, found = stored.get(name, _DEFAULTS.get(name)), now.get(name, _DEFAULTS.get(name))
        if expected == found:
            continue
        if name == "recipe" and found is not None and expected["name"] != found["name"]:
            expected, found = expected["name"], found["name"]
        what = {"pool": "the content of the pool", "rows": "the number of rows"}.get(name, name)
        raise StoreError(f"the session in {folder} was made with {what} {expected!r}, found {found!r}; {_remedy(name)}")


def _remedy(name: str) -> str:
    if name in ("pool", "rows"):
        return "pass the same pool, in the same form, as when it was started"
    if name == "recipe":
        return (
            "pass the same recipe (Session.load without recipe= takes the stored one), or start a new session in "
            "another folder"
        )
    return f"go on with the same {name}, or start a new session in another folder"


def is_used(folder: Path) -> bool:
    """Whether there is a session; an empty ledger alone is left by a start that was interrupted."""
    answers = folder / ANSWERS
    try:
        return (folder / "session.json").exists() or (answers.exists() and answers.stat().st_size > 0)
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> StoreError:
    return StoreError(
        f"{folder}: a session cannot be stored there ({error}); a folder that can be written to, or the name of "
        "a new one, was expected. Choose another folder"
    )


def _check_fields(path: Path, inside: str, found: Any, fields: tuple[str, ...]) -> None:
    for name in fields:
        if not isinstance(found, dict) or name not in found:
            raise StoreError(f"{path}: the field {inside + name!r} is missing; restore the file from a copy")


def save_pending(folder: Path, batch: PendingBatch) -> None:
    """Store the batch that was asked for; it is on disk when this returns."""
    try:
        write_bytes(folder / PENDING, json.dumps(batch.to_json(), allow_nan=False).encode())
    except OSError as error:
        raise StoreError(
            f"{folder / PENDING} cannot be written ({error}); check the permissions of the folder"
        ) from error


def load_pending(folder: Path, answers: int) -> PendingBatch | None:
    """The batch that was asked for last; None if there is none, or if it came after answers that are lost."""
    path = folder / PENDING
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{path} cannot be read: {error}. Restore it from a copy, or remove it to ask for that batch again"
        ) from error
    batch = PendingBatch.from_json(stored, str(path))
    return batch if batch.answers <= answers else None


def save_fit(folder: Path, fit: Fit, answers: int) -> None:
    """Store a fit that training continues from, with the number of answers it was trained on; no other fit."""
    if fit.state is None:
        return
    path = folder / "model.pt"
    with atomic_file(path) as file:
        torch.save({"answers": answers, "ids": fit.ids, "state": dict(fit.state)}, file)


def load_fit(folder: Path, learner: Learner) -> tuple[Fit | None, int]:
    """The fit that `save_fit` stored, and the number of answers it was trained on; (None, 0) if there is none."""
    path = folder / "model.pt"
    if not path.exists():
        return None, 0
    try:
        stored = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        raise StoreError(f"{path} cannot be read ({error}); remove it to train from the answers alone") from error
    return learner.restore(stored["state"], stored["ids"]), stored["answers"]


def _build_objective(stored: dict[str, Any]) -> Objective:
    values = {name: value for name, value in stored.items() if name != "class"}
    named = [name for name in ("epsilon", "schedule", "secondary") if isinstance(values.get(name), str)]
    named = [name for name in named if values[name] != "auto"]
    if stored["class"] != "PrimalDual" or named:
        raise ArgumentError(f"the objective {stored} holds a function or is a class of the user's own")
    return PrimalDual(**values)


def _build_strategy(stored: dict[str, Any]) -> Any:
    for kind in strategies.ALL.values():
        if kind.__name__ == stored["class"]:
            return kind(**{name: value for name, value in stored.items() if name != "class"})
    raise ArgumentError(f"there is no strategy class {stored['class']!r}")
