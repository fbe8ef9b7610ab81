"""Which project of a Label Studio belongs to ours: kept in `label-studio.json`, without any token."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from labelwise.errors import LabelError, StoreError
from labelwise.io.files import write_text
from labelwise.project.exchange.entries import classes_of
from labelwise.project.exchange.studio_client import Client
from labelwise.project.exchange.studio_json import Control, config
from labelwise.project.project import Project

FILE = "label-studio.json"


@dataclass(frozen=True)
class Place:
    """Where the tasks are. `key` tells tasks of this project from those of others; it is in every task."""

    url: str
    key: str
    project: int | None = None


def read_place(folder: Path) -> Place | None:
    """What was written last; None before the first push."""
    path = folder / FILE
    try:
        return Place(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read ({error}); remove it to push to a new project") from error


def settle(ours: Project, client: Client, number: int | None) -> Place:
    """The project to push to: the one named, the one of last time, or a new one.

    The key is written before the project is made, and the project carries it: broken off in between, the next push
    finds the project that is there.
    """
    known = read_place(ours.folder)
    if known is not None and known.url != client.url and number is None:
        raise StoreError(
            f"this project is pushed to {known.url}, not to {client.url}; to move, name a project there by --project-id"
        )
    place = known or Place(client.url, secrets.token_hex(8))
    if number is not None and (place.url, place.project) != (client.url, number):
        client.get(f"/api/projects/{number}/")  # it has to be there
        place = replace(place, url=client.url, project=number)
    _write(ours.folder, place)
    if place.project is None:
        place = replace(place, project=_found(client, place.key) or _made(ours, client, place.key))
        _write(ours.folder, place)
    return place


def control_in(theirs: dict[str, Any], ours: Project, classes: Sequence[str]) -> Control:
    """The control of a labelling configuration that takes our labels; LabelError where none does."""
    wanted = "Choices" if ours.settings.task == "classify" else "Number"
    title = f"project {theirs.get('id')} ({theirs.get('title')})"
    for name, one in (theirs.get("parsed_label_config") or {}).items():
        if one.get("type") != wanted or not one.get("inputs"):
            continue
        missing = [label for label in classes if label not in (one.get("labels") or [])]
        if missing:
            raise LabelError(
                f"{title} has no choice {', '.join(map(repr, missing[:5]))}; add it to its labelling configuration, or "
                "let a new project be made"
            )
        return Control(name, one["to_name"][0], one["inputs"][0]["value"], ours.settings.task)
    raise LabelError(f"{title} has no <{wanted}> in its labelling configuration, for our labels; is it the right one?")


def _found(client: Client, key: str) -> int | None:
    return next((int(one["id"]) for one in client.projects() if key in str(one.get("description") or "")), None)


def _made(ours: Project, client: Client, key: str) -> int:
    classes = classes_of(ours)
    if ours.settings.task == "classify" and not classes:
        raise LabelError("the project has no classes yet, so nothing could be chosen in Label Studio; add some first")
    title = ours.settings.name[:50].strip()
    wanted: dict[str, Any] = {
        "title": title if len(title) >= 3 else f"{title} labels",
        "description": f"Labels chosen by Labelwise. Key: {key}",
        "label_config": config(ours, classes),
    }
    if ours.settings.people > 1:
        wanted["maximum_annotations"] = ours.settings.people
    return int(client.post("/api/projects/", wanted)["id"])


def _write(folder: Path, place: Place) -> None:
    write_text(folder / FILE, json.dumps(asdict(place)) + "\n")
