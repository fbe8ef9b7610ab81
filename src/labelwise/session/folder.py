"""A session in a folder: `session.json` holds its settings, `answers.jsonl` its ledger, `model.bin` its last fit.

The first two are enough to continue. The model is only stored where training continues from the last one, since
otherwise training again on the same answers gives the same model. `asked.json` holds the last batch asked for, with
the weights and notes that go into the ledger with its answers; folders of early versions have none and need none.
"""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from labelwise import strategies
from labelwise.errors import ArgumentError, StoreError, warn
from labelwise.io.checked import read_checked, write_checked
from labelwise.io.files import refuse_links, sync_folder
from labelwise.io.values import load_value, save_value
from labelwise.pool import Ledger, Pool
from labelwise.recipes import PARTS, RECOMMENDED, Recipe
from labelwise.session.pending import PendingBatch
from labelwise.train import Fit, Learner, Objective, PrimalDual

VERSION = 2  # up to 1, files had no checksum
SETTINGS = "session.json"
ANSWERS = "answers.jsonl"
PENDING = "asked.json"
MODEL, EARLY_MODEL = "model.bin", "model.pt"  # the second up to a version that kept weights as torch writes them
_TRAIN_AGAIN = "remove it to train from the answers alone"
_FIELDS = ("recipe", "seed", "classes", "batch", "rows", "pool")
CHANGES = "changes"
AFTER = "after"  # the digest of the last entry of the ledger that a file belongs to
_DEFAULTS = {"task": "classify", "half": False}  # not written into the file


@dataclass(frozen=True)
class Changes:
    """What of a session has changed since it was started.

    Attributes:
        classes: the classes now; None if they are those it was started with.
        pools: the number of rows and the fingerprint of the pool after each addition of rows.
    """

    classes: int | tuple[str, ...] | None = None
    pools: tuple[tuple[int, str], ...] = ()

    @staticmethod
    def of(stored: dict[str, Any]) -> Changes:
        """Those in the settings of a stored session."""
        found = stored.get(CHANGES, {})
        classes = found.get("classes")
        pools = tuple((int(rows), str(pool)) for rows, pool in found.get("pools", ()))
        return Changes(tuple(classes) if isinstance(classes, list) else classes, pools)

    def with_pool(self, pool: Pool) -> Changes:
        """These changes, and the addition of rows that made `pool`."""
        return replace(self, pools=(*self.pools, (len(pool), pool.fingerprint())))

    def rows_awaited(self, pool: Pool) -> int:
        """How many rows are still to be added to `pool`; StoreError if it is none of the pools there were."""
        if (len(pool), pool.fingerprint()) not in self.pools:
            raise StoreError(
                "other rows than these were added to the session before it was stored; add the same rows, in the same "
                "form and order, or resume it with a pool of all rows"
            )
        return self.pools[-1][0] - len(pool)


def create(folder: Path, settings: dict[str, Any]) -> Ledger:
    """Start a session in `folder`, which must not hold one; return its empty ledger."""
    try:
        if is_used(folder):
            raise StoreError(
                f"{folder} already holds a session; continue with Session(..., resume=True) or "
                f"Session.load({str(folder)!r}, pool, learner), or choose another folder. Nothing was changed."
            )
        folder.mkdir(parents=True, exist_ok=True)
        # The file of the ledger exists from the start, so that a missing one is known to be lost.
        (folder / ANSWERS).touch()
        _write(folder, settings)
    except OSError as error:
        raise _unusable(folder, error) from error
    return Ledger(folder / ANSWERS)


def settings(folder: Path) -> dict[str, Any]:
    """The settings that `create` wrote."""
    path = folder / SETTINGS
    refuse_links(folder)
    try:
        found = read_checked(path, "restore it from a copy", early=1)
    except (FileNotFoundError, NotADirectoryError):
        raise StoreError(
            f"{folder} holds no session: there is no {path.name}. Start one with Session(..., folder=...)"
        ) from None
    if found.get("version") not in (1, VERSION):
        raise StoreError(
            f"{path} has version {found.get('version')!r}; this Labelwise reads versions up to {VERSION}. Open it with "
            "the Labelwise it was made with"
        )
    _check_fields(path, "", found, _FIELDS)
    _check_fields(path, "recipe.", found["recipe"], ("name", "strategy", "start"))
    for name in ("strategy", "start"):
        _check_fields(path, f"recipe.{name}.", found["recipe"][name], ("class",))
    if found["version"] < VERSION:
        with contextlib.suppress(OSError):  # a folder that cannot be written to can be read
            _write(folder, found)
    return found


def _write(folder: Path, settings: dict[str, Any]) -> None:
    write_checked(folder / SETTINGS, {**settings, "version": VERSION}, indent=2)


def save_changes(folder: Path, changes: Changes) -> None:
    """Store what has changed; it is on disk when this returns."""
    stored = {**settings(folder), CHANGES: {"classes": changes.classes, "pools": changes.pools}}
    try:
        _write(folder, stored)
    except OSError as error:
        raise _unusable(folder, error) from error


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
    _check_recipe(folder, wanted)
    try:
        objective = _build_objective(wanted["objective"]) if "objective" in wanted else None
        strategy, start = _build_strategy(wanted["strategy"]), _build_strategy(wanted["start"])
        why = str(stored.get(RECOMMENDED, ""))
        weights = bool(wanted.get("weights", False))
        parts = {part: wanted.get(part) for part in PARTS}
        return Recipe(wanted["name"], strategy, start, objective, wanted.get("restart"), why, weights, **parts)
    except ArgumentError as error:
        raise StoreError(
            f"the session in {folder} was made with recipe {wanted['name']!r} ({wanted['strategy']['class']}), which "
            "is not a strategy of Labelwise; pass it as Session.load(..., recipe=...)"
        ) from error


def check(folder: Path, stored: dict[str, Any], now: dict[str, Any]) -> tuple[Changes, int]:
    """Raise StoreError where the session to continue is not the one that was stored.

    Returns:
        What has changed since it was started, and how many of the rows added to it are not in the pool of now.
    """
    ignored = ("version", RECOMMENDED, CHANGES)  # they decide about no pick
    changes, awaited = Changes.of(stored), 0
    stored = {name: value for name, value in stored.items() if name not in ignored}
    now = {name: value for name, value in json.loads(json.dumps(now)).items() if name not in ignored}
    if changes.pools:
        pools = ((stored["rows"], stored["pool"]), *changes.pools)
        stored["rows"], stored["pool"] = pools[-1]
        if (now["rows"], now["pool"]) in pools:
            awaited = stored["rows"] - now["rows"]
            now["rows"], now["pool"] = pools[-1]
    if changes.classes is not None and now.get("classes") == json.loads(json.dumps(changes.classes)):
        now["classes"] = stored["classes"]
    for name in dict.fromkeys(("task", *stored, *now)):  # first the task, which decides about classes and recipe
        expected, found = stored.get(name, _DEFAULTS.get(name)), now.get(name, _DEFAULTS.get(name))
        if expected == found:
            continue
        if name == "recipe" and found is not None and expected["name"] != found["name"]:
            expected, found = expected["name"], found["name"]
        what = {"pool": "the content of the pool", "rows": "the number of rows"}.get(name, name)
        raise StoreError(f"the session in {folder} was made with {what} {expected!r}, found {found!r}; {_remedy(name)}")
    return changes, awaited


def _remedy(name: str) -> str:
    if name in ("pool", "rows"):
        return "pass the same pool, in the same form, as when it was started"
    if name == "recipe":
        return (
            "pass the same recipe (Session.load without recipe= takes the stored one), or start a new session in "
            "another folder"
        )
    return f"continue with the same {name}, or start a new session in another folder"


def is_used(folder: Path) -> bool:
    """Whether there is a session; an empty ledger alone is left by a start that was interrupted."""
    answers = folder / ANSWERS
    try:
        return (folder / SETTINGS).exists() or (answers.exists() and answers.stat().st_size > 0)
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


def save_pending(folder: Path, batch: PendingBatch, ledger: Ledger) -> None:
    """Store the batch that was asked for, with the digest of the answers before; it is on disk when this returns."""
    try:
        write_checked(folder / PENDING, {**batch.to_json(), AFTER: ledger.digest_after(batch.answers)})
    except OSError as error:
        raise StoreError(
            f"{folder / PENDING} cannot be written ({error}); check the permissions of the folder"
        ) from error


def load_pending(folder: Path, ledger: Ledger) -> PendingBatch | None:
    """The batch that was asked for last; None if there is none, or with a warning if it came after other answers."""
    path = folder / PENDING
    try:
        stored = read_checked(path, "restore it from a copy, or remove it to ask for that batch again", early=1)
    except FileNotFoundError:
        return None
    batch = PendingBatch.from_json(stored, str(path))
    if is_after(stored, ledger):
        return batch
    _warn(f"{path} is left out: its batch was asked for after other answers than those of {ANSWERS}. Ask again")
    return None


def save_fit(folder: Path, fit: Fit, answers: int, ledger: Ledger) -> None:
    """Store a fit that training continues from, with the number and digest of its answers; no other fit."""
    if fit.state is None:
        return
    stored = {"answers": answers, AFTER: ledger.digest_after(answers), "ids": fit.ids, "state": dict(fit.state)}
    save_value(folder / MODEL, stored)
    (folder / EARLY_MODEL).unlink(missing_ok=True)


def remove_fit(folder: Path) -> None:
    """Remove the stored fit, if there is one: training does not continue from it."""
    try:
        for name in (MODEL, EARLY_MODEL):
            (folder / name).unlink(missing_ok=True)
        sync_folder(folder)
    except OSError as error:
        raise _unusable(folder, error) from error


def load_fit(folder: Path, learner: Learner, ledger: Ledger) -> tuple[Fit | None, int]:
    """The fit that `save_fit` stored, and the number of answers it was trained on.

    (None, 0) if there is none, or with a warning if it was trained on other answers than those of the ledger.
    """
    path, read = folder / MODEL, _read_fit
    if not path.exists():
        path, read = folder / EARLY_MODEL, _read_early_fit
    if not path.exists():
        return None, 0
    try:
        stored = read(path)
        if is_after(stored, ledger):
            return learner.restore(stored["state"], stored["ids"]), int(stored["answers"])
    except (StoreError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {_TRAIN_AGAIN}") from error
    _warn(f"{path} is left out: it was trained on other answers than those of {ANSWERS}. The model is trained again")
    return None, 0


def is_after(stored: Mapping[str, Any], ledger: Ledger) -> bool:
    """Whether a stored batch or fit belongs to the first answers of the ledger. Early files have no digest of them."""
    found = ledger.digest_after(int(stored["answers"]))
    return found is not None and stored.get(AFTER, found) == found


def _warn(text: str) -> None:
    warn(f"{text}; this comes of a file that was restored alone, or of a repair.")


def _read_fit(path: Path) -> Any:
    return load_value(path, _TRAIN_AGAIN)


def _read_early_fit(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # a damaged file may raise anything, and torch advises to read it without this check
        raise StoreError("it is damaged, or holds more than weights") from error


def _build_objective(stored: dict[str, Any]) -> Objective:
    values = {name: value for name, value in stored.items() if name != "class"}
    named = [name for name in ("epsilon", "schedule", "secondary") if isinstance(values.get(name), str)]
    named = [name for name in named if values[name] != "auto"]
    if stored["class"] != "PrimalDual" or named:
        raise ArgumentError(f"the objective {stored} holds a function or is a class of the user's own")
    return PrimalDual(**values)


def _check_recipe(folder: Path, wanted: Any) -> None:
    """Raise StoreError where a stored recipe has not the form of one."""
    parts = [wanted.get(part) for part in ("strategy", "start")] if isinstance(wanted, dict) else [None]
    parts += [wanted["objective"]] if isinstance(wanted, dict) and "objective" in wanted else []
    if not all(isinstance(part, dict) and isinstance(part.get("class"), str) for part in parts) or "name" not in wanted:
        raise StoreError(f"{folder / SETTINGS}: the recipe is damaged: {wanted!r:.200}. Restore the file from a copy")


def _build_strategy(stored: dict[str, Any]) -> Any:
    for kind in strategies.ALL.values():
        if kind.__name__ == stored["class"]:
            values = {name: value for name, value in stored.items() if name != "class"}
            unknown = values.keys() - inspect.signature(kind).parameters.keys()
            if unknown:
                raise ArgumentError(f"{stored['class']} has no parameter {', '.join(sorted(unknown))}")
            return kind(**values)
    raise ArgumentError(f"there is no strategy class {stored['class']!r}")
