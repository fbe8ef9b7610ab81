"""Read labels from a CSV or Label Studio file, without matching them to the rows of a project yet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labelwise.errors import SourceError
from labelwise.io.tables import csv_lines
from labelwise.project import label_sets
from labelwise.project.exchange.columns import unescape_formula
from labelwise.project.settings import Kind

IDS = ("al_id", "id")
PATHS = ("path", "al_ref", "ref", "file", "filename", "file_name", "image")
LABELS = ("label", "class", "choice", "category", "target")


@dataclass(frozen=True)
class FoundLabel:
    """A label in a file. `location` is its line or task; id, path and text are the keys it has."""

    location: str
    label: str
    id: str | None = None
    path: str | None = None
    text: str | None = None
    who: str | None = None
    seconds: float | None = None
    predicted: bool = False


@dataclass(frozen=True)
class FoundFile:
    """The labels of a file, and how many of its entries have none."""

    kind: Literal["csv", "label-studio"]
    labels: list[FoundLabel]
    unlabelled: int


def read_labels(
    path: Path,
    *,
    label: str | None = None,
    key: str | None = None,
    kind: Kind = "table",
    text: str = "text",
    sets: bool = False,
) -> FoundFile:
    """Read a CSV, or a JSON file that Label Studio exported.

    Args:
        path: the file.
        label: the column with the labels; by default the first known name.
        key: the column that says which row a label is for; by default id, path and text.
        kind: the kind of rows of the project.
        text: the name of the project's column of texts.
        sets: whether a label may be several classes.

    Raises:
        SourceError: the file cannot be read, or a column is missing.
    """
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        raise SourceError(f"{path} does not exist. Name a .csv or .json file with labels") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path} cannot be read ({error}). Expected CSV or JSON in UTF-8") from error
    if path.suffix.lower() == ".json" or content.lstrip()[:1] in ("[", "{"):
        return _from_json(path, content, sets)
    return _from_csv(path, label, key, kind, text)


# --- CSV -------------------------------------------------------------------------------------------------------------


def _from_csv(path: Path, label: str | None, key: str | None, kind: Kind, text: str) -> FoundFile:
    header, lines = csv_lines(path)
    names = [unescape_formula(name) for name in header]
    named = _label_column(path, names, label)
    keys = _key_columns(path, [name for name in names if name != named], key, kind, text)
    labels: list[FoundLabel] = []
    unlabelled = 0
    for line in lines:
        location = f"line {line.number}"
        if line.fault is not None:
            raise SourceError(f"{path} {location}: {line.fault}. Correct the line, or save it as CSV again")
        cells = {name: unescape_formula(field) for name, field in zip(names, line.fields)}
        value = cells[named].strip()
        if not value:
            unlabelled += 1
            continue
        given = {kind: cells[name] for kind, name in keys.items() if cells[name].strip()}
        labels.append(FoundLabel(location, value, given.get("id"), given.get("path"), given.get("text")))
    return FoundFile("csv", labels, unlabelled)


def _label_column(path: Path, names: list[str], label: str | None) -> str:
    found = label if label is not None else next((name for name in LABELS if name in names), None)
    if found is None or found not in names:
        missing = f"no column {label!r}" if label is not None else f"none of the columns {', '.join(LABELS)}"
        raise SourceError(f"{path} has {missing}; its columns are {', '.join(names)}. Name one with --label")
    return found


def _key_columns(path: Path, names: list[str], key: str | None, kind: Kind, text: str) -> dict[str, str]:
    """The columns that say which row a label is for: id, path and text, if the file has them."""
    if key is not None:
        if key not in names:
            raise SourceError(f"{path} has no column {key!r} for --key; its columns are {', '.join(names)}")
        usual = {"image": "path", "text": "text", "table": "id"}[kind]
        return {"id" if key in IDS else "path" if key in PATHS else usual: key}
    found: dict[str, str] = {}
    for one, wanted in (("id", IDS), ("path", PATHS), ("text", (text, "text"))):
        name = next((name for name in wanted if name in names), None)
        if name is not None:
            found[one] = name
    if not found:
        raise SourceError(
            f"{path}: no column says which row a label is for. Expected id, path or text; found {', '.join(names)}. "
            "Name one with --key"
        )
    return found


# --- Label Studio ----------------------------------------------------------------------------------------------------


def _from_json(path: Path, content: str, sets: bool) -> FoundFile:
    try:
        tasks = json.loads(content)
    except (ValueError, RecursionError) as error:  # the latter of brackets in brackets without end
        raise SourceError(f"{path} is not valid JSON ({error}). Export it again") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise SourceError(f"{path}: expected a list of tasks, as Label Studio exports it with JSON or JSON_MIN")
    labels: list[FoundLabel] = []
    unlabelled = 0
    for number, task in enumerate(tasks, 1):
        new = list(labels_of_task(task, f"task {task.get('id', number)}", sets))
        labels += new
        unlabelled += not any(not one.predicted for one in new)
    return FoundFile("label-studio", labels, unlabelled)


def labels_of_task(task: Mapping[str, Any], location: str, sets: bool = False) -> Iterable[FoundLabel]:
    """The labels of a task: the latest of each person, and those of models."""
    data = task.get("data")
    if not isinstance(data, Mapping):  # JSON_MIN: everything in one mapping
        yield from _flat(task, location, sets)
        return
    keys = _keys(data)
    latest: dict[str, FoundLabel] = {}
    for one in sorted(_dicts(task.get("annotations")), key=lambda one: str(one.get("updated_at") or "")):
        value = None if one.get("was_cancelled") else value_of(one.get("result"), sets)
        who = str(one.get("al_who") or person(one.get("completed_by")))
        if value is not None:
            latest[who] = FoundLabel(location, value, *keys, who, seconds_of(one.get("lead_time")))
    yield from latest.values()
    for one in _dicts(task.get("predictions")):
        value = value_of(one.get("result"), sets)
        if value is not None:
            model = str(one.get("model_version") or "unnamed")
            yield FoundLabel(location, value, *keys, f"model:{model}", None, True)


def value_of(result: Any, sets: bool = False) -> str | None:
    """The choice or number of a result; None if it is empty, of another kind, or has several choices without `sets`."""
    values = []
    for one in _dicts(result):
        value = one.get("value")
        if isinstance(value, Mapping) and isinstance(value.get("choices"), list):
            values += [str(choice) for choice in value["choices"]]
        elif isinstance(value, Mapping) and isinstance(value.get("number"), int | float):
            values.append(f"{value['number']:.10g}")
    if sets and isinstance(result, list):
        return label_sets.value_of(values, values)
    return values[0] if len(values) == 1 else None


def person(completed_by: Any) -> str:
    """The person of an annotation: the e-mail address if there is one, otherwise the number."""
    if isinstance(completed_by, Mapping):
        return str(completed_by.get("email") or f"label-studio:{completed_by.get('id', 'unknown')}")
    return f"label-studio:{'unknown' if completed_by is None else completed_by}"


def _flat(task: Mapping[str, Any], location: str, sets: bool) -> Iterable[FoundLabel]:
    value = next((task[name] for name in LABELS if name in task), None)
    if sets and isinstance(value, Mapping) and isinstance(value.get("choices"), list):
        value = label_sets.BETWEEN.join(map(str, value["choices"]))
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        text = f"{value:.10g}" if isinstance(value, float) else str(value)
        keys = {name: value for name, value in task.items() if name != "id"}  # this id is of the task, not of a row
        yield FoundLabel(location, text, *_keys(keys), person(task.get("annotator")), seconds_of(task.get("lead_time")))


def _keys(data: Mapping[str, Any]) -> tuple[str | None, str | None, str | None]:
    """Id, path and text of a task."""
    row = data.get("al_id")
    path = next((data[name] for name in ("al_ref", "image", "path") if isinstance(data.get(name), str)), None)
    text = data.get("text")
    return None if row is None else str(row), path, text if isinstance(text, str) else None


def _dicts(values: Any) -> list[Mapping[str, Any]]:
    return [one for one in values if isinstance(one, Mapping)] if isinstance(values, list) else []


def seconds_of(value: Any) -> float | None:
    """A valid time in seconds, or None."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e9
    return float(value) if good else None
