"""Push the picks of a round to Label Studio as tasks, and pull the finished annotations back as events.

Both can be repeated at any time: a row gets one task only, and an annotation is imported once. `label-studio.json` in
the project folder says which project of Label Studio the tasks are in; it never holds a token.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from labelwise.errors import ArgumentError, LabelError, SourceError, StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.project import label_sets
from labelwise.project.exchange.entries import ballots, classes_of
from labelwise.project.exchange.export import image_address
from labelwise.project.exchange.read_labels import person, seconds_of, value_of
from labelwise.project.exchange.studio_client import Client
from labelwise.project.exchange.studio_json import Control, config, data_of, prediction, read_config
from labelwise.project.project import Project
from labelwise.project.store import Event

BATCH = 50  # tasks of one request
SIZE = 1024  # pixels of an image inside a task


@dataclass(frozen=True)
class PushResult:
    """What a push did.

    `created`: new tasks. `existing`: rows that had a task. `answered`: rows that need none. `faults`: rows that could
    not be read.
    """

    project: int
    url: str
    round: int
    created: int
    existing: int
    answered: int
    faults: tuple[str, ...]


@dataclass
class PullResult:
    """What a pull did.

    `known`: annotations imported before. `open`: tasks without an annotation. `foreign`: tasks of other projects.
    """

    labels: int = 0
    skips: int = 0
    known: int = 0
    open: int = 0
    foreign: int = 0
    people: set[str] = field(default_factory=set)
    unknown_classes: dict[str, int] = field(default_factory=dict)
    unusable: list[str] = field(default_factory=list)


def push(
    project: Project,
    client: Client,
    *,
    round: int | None = None,
    project_id: int | None = None,
    image_url: str | None = None,
) -> PushResult:
    """Make a task for each pick of a round that needs an answer and has no task yet.

    Args:
        project: the project.
        client: the connection to Label Studio.
        round: number of the round; the last one if None.
        project_id: the project of Label Studio; the one of the last push, or a new one, if None.
        image_url: the prefix under which Label Studio finds the images; without it they are put into the tasks.
    """
    store = project.store
    rounds = {one.number: one for one in store.rounds()}
    if not rounds:
        raise StoreError("there is no round yet. Open the project with `labelwise resume`, which makes the first one")
    number = max(rounds) if round is None else round
    if number not in rounds:
        raise ArgumentError(f"--round {number} does not exist; there are rounds {min(rounds)} to {max(rounds)}")
    if image_url is not None and project.settings.kind != "image":
        raise ArgumentError("--image-url works only with a project of images")
    link = find_or_create_project(project, client, project_id)
    assert link.project is not None
    control = control_in(client.get(f"/api/projects/{link.project}/"), project, classes_of(project))
    existing = {row_of(task, link.key) for task in client.tasks(link.project)}
    picks = store.picks(number)
    closed = _closed(project)
    wanted = [one for one in picks if one.row not in existing and one.row not in closed]
    refs = {item.row: item.ref for item in store.items([one.row for one in wanted])} if wanted else {}
    tasks, faults = [], []
    for one in wanted:
        try:
            data = data_of(
                project, one.row, refs[one.row], control.field, _image(project, one.row, refs[one.row], image_url)
            )
        except SourceError as error:
            faults.append(str(error))
            continue
        guess = prediction(one.why, rounds[number].model, control)
        data |= {"al_key": link.key, "al_round": number, "al_why": str(one.why.get("words", ""))}
        tasks.append({"data": data, "predictions": [] if guess is None else [guess]})
    for start in range(0, len(tasks), BATCH):
        client.post(f"/api/projects/{link.project}/import", tasks[start : start + BATCH])
    had_task = sum(one.row in existing for one in picks)
    answered = sum(one.row in closed and one.row not in existing for one in picks)
    return PushResult(link.project, client.url, number, len(tasks), had_task, answered, tuple(faults))


def pull(project: Project, client: Client, *, project_id: int | None = None, add_classes: bool = False) -> PullResult:
    """Import the labels and skips people gave in Label Studio, each in the name of its person, with the time taken.

    Args:
        project: the project.
        client: the connection to Label Studio.
        project_id: the project of Label Studio; must be the one of the last push.
        add_classes: add classes that the project does not have.
    """
    link = read_link(project.folder)
    if link is None:
        raise StoreError("this project has not been pushed to Label Studio, so there is nothing to pull. Push first")
    if link.url != client.url or (project_id is not None and project_id != link.project):
        raise StoreError(
            f"this project was pushed to {link.url}, project {link.project}. Pull from there, or push here first"
        )
    if link.project is None:
        raise StoreError("the last push was interrupted before its project was created. Push again")
    control = control_in(client.get(f"/api/projects/{link.project}/"), project, ())
    importer = Importer(project, client.people(), add_classes)
    for task in client.tasks(link.project):
        row = row_of(task, link.key)
        if row is None:
            importer.result.foreign += 1
        else:
            importer.add(task, row, control, link.key)
    return importer.result


class Importer:
    """Imports annotations as events.

    The token of an event names the annotation and its version, so that none is imported twice. All versions of an
    annotation are in the name that the first one had: a webhook says the number of a person alone, not the address.
    """

    def __init__(self, project: Project, people: Mapping[int, str] = MappingProxyType({}), add_classes: bool = False):
        self._project, self._people, self._add_classes = project, people, add_classes
        self._items = {item.row for item in project.store.items()}
        self._events: list[Event] = []
        self.refresh()

    def refresh(self) -> None:
        """Read what is new in the store, and begin another result."""
        self.result = PullResult()
        self._events += self._project.store.events(after=self._events[-1].seq if self._events else 0)
        self._tokens = {event.token for event in self._events}
        self._versions = {
            event.token.rpartition("/")[0]: event for event in self._events if event.token.startswith("label-studio/")
        }
        self._ballots = ballots(self._events)
        self._classes = self._project.store.classes()

    def add(self, task: Mapping[str, Any], row: int, control: Control, key: str) -> None:
        """Import the annotations of a task, the latest of each person. `key` says which project the task is of."""
        if row not in self._items:
            self.result.foreign += 1
            return
        latest: dict[str, dict[str, Any]] = {}
        for one in sorted(task.get("annotations") or [], key=lambda one: str(one.get("updated_at") or "")):
            earlier = self._versions.get(f"label-studio/{key}/{one['id']}")
            latest[_who(one, self._people) if earlier is None else earlier.who] = one
        self.result.open += not latest
        for who, one in latest.items():
            parts = [part for part in one.get("result") or [] if part.get("from_name") == control.name]
            value = None if one.get("was_cancelled") else value_of(parts, control.task == "multi")
            if value is None and not one.get("was_cancelled"):
                self.result.unusable.append(f"task {task['id']} by {who}: it does not have exactly one label")
            elif value is None or self._usable(value, who):
                if value is not None and control.task == "multi":
                    value = label_sets.value_of(label_sets.names_of(value), self._classes)
                token = f"label-studio/{key}/{one['id']}/{one.get('updated_at')}"
                self._write(who, row, value, token, one.get("lead_time"))

    def remove(self, annotation: int, keys: Sequence[str]) -> None:
        """Import that an annotation was deleted: a skip of its person, if it is still their answer."""
        found = next((one for key in keys if (one := self._versions.get(f"label-studio/{key}/{annotation}"))), None)
        if found is None or found.row is None:
            self.result.foreign += 1
            return
        now = self._ballots.get(found.row, {}).get(found.who)
        if now is not None and now.token == found.token:
            self._write(found.who, found.row, None, f"{found.token.rpartition('/')[0]}/deleted", None)
        else:
            self.result.known += 1

    def _write(self, who: str, row: int, value: str | None, token: str, lead_time: Any) -> None:
        now = self._ballots.get(row, {}).get(who)
        same = now is not None and now.value == value and (now.kind == "skip") == (value is None)
        if token in self._tokens or same:
            self.result.known += 1
            return
        seconds = seconds_of(lead_time)
        self._project.store.change(who, row, "skip" if value is None else "label", value, token, seconds=seconds)
        self.result.people.add(who)
        self.result.labels += value is not None
        self.result.skips += value is None

    def _usable(self, value: str, who: str) -> bool:
        """Whether the project accepts this label. Missing classes are added if that is allowed."""
        task = self._project.settings.task
        names = () if task == "regress" else label_sets.names_of(value) if task == "multi" else (value,)
        new = [name for name in names if name not in self._classes]
        if new and not self._add_classes and self._classes:
            for name in new:
                self.result.unknown_classes[name] = self.result.unknown_classes.get(name, 0) + 1
            return False
        for name in new:
            self._project.store.add_class(name, who)
            self._classes.append(name)
        return True


def _closed(project: Project) -> set[int]:
    """Rows with as many answers as the project needs; a skip is not an answer."""
    counted = ballots(project.store.events()).items()
    return {row for row, by in counted if sum(one.kind != "skip" for one in by.values()) >= project.store.people}


def row_of(task: Mapping[str, Any], key: str) -> int | None:
    """The row of a task; None for a task of another project."""
    data = task.get("data") or {}
    row = data.get("al_id")
    return row if data.get("al_key") == key and isinstance(row, int) else None


def _who(annotation: Mapping[str, Any], people: Mapping[int, str]) -> str:
    by = annotation.get("completed_by")
    return people[by] if isinstance(by, int) and by in people else person(by)


def _image(project: Project, row: int, ref: str, image_url: str | None) -> str | None:
    """The address of an image for Label Studio, or the image itself as a data URL."""
    if project.settings.kind != "image":
        return None
    if image_url is not None:
        return image_address(image_url, ref)
    encoded = project.image(row, SIZE)
    kind = "png" if encoded.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(encoded).decode()}"


FILE = "label-studio.json"
_REMEDY = "remove it to push to a new project"


@dataclass(frozen=True)
class StudioLink:
    """The project of Label Studio that has the tasks. `key` is in every task and identifies those of this project."""

    url: str
    key: str
    project: int | None = None


def read_link(folder: Path) -> StudioLink | None:
    """The link of the last push; None before the first one."""
    path = folder / FILE
    try:
        return StudioLink(**read_checked(path, _REMEDY, early=None))
    except FileNotFoundError:
        return None
    except TypeError as error:
        raise StoreError(f"{path} cannot be read ({error}); {_REMEDY}") from error


def find_or_create_project(project: Project, client: Client, number: int | None) -> StudioLink:
    """The project of Label Studio to push to: the given one, the one of the last push, or a new one.

    The key is written before the project is created, and is part of it. So if a push is interrupted in between, the
    next one finds the project.
    """
    known = read_link(project.folder)
    if known is not None and known.url != client.url and number is None:
        raise StoreError(f"this project is linked to {known.url}, not to {client.url}. To move it, pass --project-id")
    link = known or StudioLink(client.url, secrets.token_hex(8))
    if number is not None and (link.url, link.project) != (client.url, number):
        client.get(f"/api/projects/{number}/")  # fails if there is none
        link = replace(link, url=client.url, project=number)
    _write(project.folder, link)
    if link.project is None:
        link = replace(link, project=_find(client, link.key) or _create(project, client, link.key))
        _write(project.folder, link)
    return link


def control_in(theirs: dict[str, Any], project: Project, classes: Sequence[str]) -> Control:
    """The control of a labelling configuration that accepts the labels of the project. LabelError if there is none."""
    wanted = "Number" if project.settings.task == "regress" else "Choices"
    title = f"project {theirs.get('id')} ({theirs.get('title')})"
    for name, one in (theirs.get("parsed_label_config") or {}).items():
        if one.get("type") != wanted or not one.get("inputs"):
            continue
        missing = [label for label in classes if label not in (one.get("labels") or [])]
        if missing:
            raise LabelError(
                f"{title} has no choice {', '.join(map(repr, missing[:5]))}. Add it to the labelling configuration, or "
                "push to a new project"
            )
        if project.settings.task == "multi" and read_config(theirs["label_config"])[name]["choice"] != "multiple":
            raise LabelError(
                f"{title} takes one choice for an item, and this project has several (--multi). Write "
                'choice="multiple" into the <Choices> of its labelling configuration'
            )
        return Control(name, one["to_name"][0], one["inputs"][0]["value"], project.settings.task)
    raise LabelError(f"{title} has no <{wanted}> in its labelling configuration for these labels. Check --project-id")


def _find(client: Client, key: str) -> int | None:
    return next((int(one["id"]) for one in client.projects() if key in str(one.get("description") or "")), None)


def _create(project: Project, client: Client, key: str) -> int:
    classes = classes_of(project)
    if project.settings.task != "regress" and not classes:
        raise LabelError(
            "the project has no classes yet, so there would be nothing to choose in Label Studio. Add classes first"
        )
    title = project.settings.name[:50].strip()
    wanted: dict[str, Any] = {
        "title": title if len(title) >= 3 else f"{title} labels",
        "description": f"Labels chosen by Labelwise. Key: {key}",
        "label_config": config(project, classes),
    }
    if project.settings.people > 1:
        wanted["maximum_annotations"] = project.settings.people
    return int(client.post("/api/projects/", wanted)["id"])


def _write(folder: Path, link: StudioLink) -> None:
    write_checked(folder / FILE, asdict(link))
