"""Push the picks of a round to Label Studio as tasks, and pull the finished annotations back as events.

Both can be repeated at any time: a row that has a task gets no other, and an annotation that was taken in is not taken
again.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from labelwise.errors import ArgumentError, LabelError, SourceError, StoreError
from labelwise.io.files import write_text
from labelwise.project.exchange.entries import ballots, classes_of
from labelwise.project.exchange.export import image_address
from labelwise.project.exchange.read_labels import person, seconds_of, value_of
from labelwise.project.exchange.studio_client import Client
from labelwise.project.exchange.studio_json import Control, config, data_of, prediction
from labelwise.project.project import Project

BATCH = 50  # tasks of one request
SIZE = 1024  # pixels of an image inside a task


@dataclass(frozen=True)
class Pushed:
    """What a push did: tasks made now, rows that had one, rows that need none, and what could not be shown."""

    project: int
    url: str
    round: int
    made: int
    there: int
    answered: int
    faults: tuple[str, ...]


@dataclass
class Pulled:
    """What a pull did; `old` were taken in before, `strange` are tasks that are not of this project."""

    labels: int = 0
    skips: int = 0
    old: int = 0
    open: int = 0
    strange: int = 0
    people: set[str] = field(default_factory=set)
    unknown_classes: dict[str, int] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)


def push(
    ours: Project,
    client: Client,
    *,
    round: int | None = None,
    project_id: int | None = None,
    image_url: str | None = None,
) -> Pushed:
    """Make a task of each pick of a round, the last by default, that still needs an answer and has no task.

    Images go inside the tasks, or are found by Label Studio below `image_url`.
    """
    store = ours.store
    rounds = {one.number: one for one in store.rounds()}
    if not rounds:
        raise StoreError(
            "nothing was picked yet; open the project with `labelwise resume`, which makes the first round"
        )
    number = max(rounds) if round is None else round
    if number not in rounds:
        raise ArgumentError(f"--round {number}: there are rounds {min(rounds)} to {max(rounds)}")
    if image_url is not None and ours.settings.kind != "image":
        raise ArgumentError("--image-url is for projects of images")
    place = settle(ours, client, project_id)
    assert place.project is not None
    control = control_in(client.get(f"/api/projects/{place.project}/"), ours, classes_of(ours))
    there = {_row(task, place.key) for task in client.tasks(place.project)}
    picks = store.picks(number)
    closed = _closed(ours)
    wanted = [one for one in picks if one.row not in there and one.row not in closed]
    refs = {item.row: item.ref for item in store.items([one.row for one in wanted])} if wanted else {}
    tasks, faults = [], []
    for one in wanted:
        try:
            data = data_of(ours, one.row, refs[one.row], control.field, _image(ours, one.row, refs[one.row], image_url))
        except SourceError as error:
            faults.append(str(error))
            continue
        guess = prediction(one.why, rounds[number].model, control)
        told = {**data, "al_key": place.key, "al_round": number, "al_why": str(one.why.get("words", ""))}
        tasks.append({"data": told, "predictions": [] if guess is None else [guess]})
    for start in range(0, len(tasks), BATCH):
        client.post(f"/api/projects/{place.project}/import", tasks[start : start + BATCH])
    had = sum(one.row in there for one in picks)
    done = sum(one.row in closed and one.row not in there for one in picks)
    return Pushed(place.project, client.url, number, len(tasks), had, done, tuple(faults))


def pull(ours: Project, client: Client, *, project_id: int | None = None, add_classes: bool = False) -> Pulled:
    """Take in what people have answered: labels and skips, each in the name of its person, with the time it took."""
    place = read_place(ours.folder)
    if place is None:
        raise StoreError("nothing was pushed from this project, so there is nothing to pull; push first")
    if place.url != client.url or (project_id is not None and project_id != place.project):
        raise StoreError(
            f"this project was pushed to {place.url}, project {place.project}; pull from there, or push here first"
        )
    if place.project is None:
        raise StoreError("the last push was broken off before its project was made; push again")
    taker = _Taker(ours, control_in(client.get(f"/api/projects/{place.project}/"), ours, ()), client.people())
    for task in client.tasks(place.project):
        row = _row(task, place.key)
        if row is None:
            taker.found.strange += 1
        else:
            taker.take(task, row, add_classes)
    return taker.found


class _Taker:
    """Takes in one task after the other."""

    def __init__(self, ours: Project, control: Control, people: dict[int, str]):
        self.found = Pulled()
        self._ours, self._control, self._people = ours, control, people
        events = ours.store.events()
        self._tokens = {event.token for event in events}
        self._ballots = ballots(events)
        self._classes = ours.store.classes()
        self._items = {item.row for item in ours.store.items()}

    def take(self, task: dict[str, Any], row: int, add_classes: bool) -> None:
        """Take in the annotations of a task, the latest of each person."""
        if row not in self._items:
            self.found.strange += 1
            return
        latest: dict[str, dict[str, Any]] = {}
        for one in sorted(task.get("annotations") or [], key=lambda one: str(one.get("updated_at") or "")):
            latest[_who(one, self._people)] = one
        self.found.open += not latest
        for who, one in latest.items():
            mine = [part for part in one.get("result") or [] if part.get("from_name") == self._control.name]
            value = None if one.get("was_cancelled") else value_of(mine)
            if value is None and not one.get("was_cancelled"):
                self.found.unusable.append(f"task {task['id']} by {who}: it does not hold one label")
            elif value is None or self._usable(value, who, task["id"], add_classes):
                token = f"label-studio/{task['data']['al_key']}/{one['id']}/{one.get('updated_at')}"
                self._write(who, row, value, token, one.get("lead_time"))

    def _write(self, who: str, row: int, value: str | None, token: str, lead_time: Any) -> None:
        now = self._ballots.get(row, {}).get(who)
        same = now is not None and now.value == value and (now.kind == "skip") == (value is None)
        if token in self._tokens or same:
            self.found.old += 1
            return
        seconds = seconds_of(lead_time)
        self._ours.store.change(who, row, "skip" if value is None else "label", value, token, seconds=seconds)
        self.found.people.add(who)
        self.found.labels += value is not None
        self.found.skips += value is None

    def _usable(self, value: str, who: str, task: int, add_classes: bool) -> bool:
        """Whether the project takes this label; a class it does not have is added where that is wanted."""
        if self._ours.settings.task == "regress" or value in self._classes:
            return True
        if not add_classes and self._classes:
            self.found.unknown_classes[value] = self.found.unknown_classes.get(value, 0) + 1
            return False
        self._ours.store.add_class(value, who)
        self._classes.append(value)
        return True


def _closed(ours: Project) -> set[int]:
    """Rows that as many people have answered as are wanted; a skip is no answer."""
    counted = ballots(ours.store.events()).items()
    return {row for row, by in counted if sum(one.kind != "skip" for one in by.values()) >= ours.store.people}


def _row(task: dict[str, Any], key: str) -> int | None:
    """Our row of a task; None for a task that is not of this project."""
    data = task.get("data") or {}
    row = data.get("al_id")
    return row if data.get("al_key") == key and isinstance(row, int) else None


def _who(annotation: dict[str, Any], people: dict[int, str]) -> str:
    by = annotation.get("completed_by")
    return people[by] if isinstance(by, int) and by in people else person(by)


def _image(ours: Project, row: int, ref: str, image_url: str | None) -> str | None:
    """The address of an image; without one of Label Studio's own, the image itself."""
    if ours.settings.kind != "image":
        return None
    if image_url is not None:
        return image_address(image_url, ref)
    encoded = ours.image(row, SIZE)
    kind = "png" if encoded.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"


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
