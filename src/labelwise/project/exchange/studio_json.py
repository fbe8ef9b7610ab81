"""Label Studio's JSON: tasks with annotations and predictions, and their labelling configuration.

A task has the row as `al_id`, by which its annotations are matched when they come back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import quoteattr

from labelwise.errors import LabelError
from labelwise.project.exchange.entries import Entry
from labelwise.project.label_sets import names_of, value_of
from labelwise.project.project import Project
from labelwise.project.settings import Kind, Task
from labelwise.project.store import Event

_TAGS: dict[Kind, tuple[str, str]] = {"image": ("Image", "image"), "text": ("Text", "text"), "table": ("Table", "row")}


@dataclass(frozen=True)
class Control:
    """The parts of a labelling configuration that annotations refer to: control, object, and field of the data."""

    name: str
    object: str
    field: str
    task: Task

    def result(self, value: str) -> list[dict[str, Any]]:
        """A label in the form of Label Studio."""
        kind = "number" if self.task == "regress" else "choices"
        names = list(names_of(value)) if self.task == "multi" else [value]
        content: Any = {"number": float(value)} if self.task == "regress" else {"choices": names}
        return [{"from_name": self.name, "to_name": self.object, "type": kind, "value": content}]


def control_of(project: Project) -> Control:
    """The control of the configuration that `config` writes."""
    return Control("label", "item", _TAGS[project.settings.kind][1], project.settings.task)


def config(project: Project, classes: Sequence[str]) -> str:
    """The labelling configuration of a project."""
    tag, field = _TAGS[project.settings.kind]
    lines = ["<View>", f'  <{tag} name="item" value="${field}"/>']
    if project.settings.task == "regress":
        lines.append('  <Number name="label" toName="item" required="true"/>')
    else:
        several = project.settings.task == "multi"
        choice, required = ("multiple", "") if several else ("single-radio", ' required="true"')
        lines.append(f'  <Choices name="label" toName="item" choice="{choice}"{required}>')
        lines += [f"    <Choice value={quoteattr(name)}/>" for name in classes]
        lines.append("  </Choices>")
    return "\n".join([*lines, "</View>"]) + "\n"


def read_config(text: str) -> dict[str, dict[str, Any]]:
    """The controls of a labelling configuration, by name, in the form of Label Studio's API, with their `choice`.

    Raises:
        LabelError: bad XML.
    """
    try:
        # A configuration has no use for entities, which can grow without end.
        root = None if "<!DOCTYPE" in text.upper() or "<!ENTITY" in text.upper() else ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise LabelError(f"the labelling configuration cannot be read ({error})") from error
    if root is None:
        raise LabelError("the labelling configuration has a DOCTYPE, which is not read. Remove it")
    fields = {one.get("name"): one for one in root.iter() if (one.get("value") or "").startswith("$")}
    found: dict[str, dict[str, Any]] = {}
    for one in root.iter():
        shown = one.get("toName")
        if one.get("name") and shown and shown in fields:
            inputs = [{"type": fields[shown].tag, "value": str(fields[shown].get("value"))[1:]}]
            labels = [part.get("alias") or part.get("value") for part in one.iter("Choice")]
            found[str(one.get("name"))] = {
                "type": one.tag, "to_name": [shown], "inputs": inputs, "labels": labels, "choice": one.get("choice"),
            }  # fmt: skip
    return found


def data_of(project: Project, row: int, ref: str, field: str, image: str | None) -> dict[str, Any]:
    """The data of a task. `image` is the address of the image; by default its path."""
    if project.settings.kind == "image":
        return {"al_id": row, "al_ref": ref, field: image if image is not None else ref}
    view = project.view(row)
    return {"al_id": row, "al_ref": ref, field: view.text if view.fields is None else dict(view.fields)}


def annotation(event: Event, control: Control) -> dict[str, Any]:
    """An answer of a person. Skipped and unsure ones become cancelled annotations, as in Label Studio itself."""
    is_label = event.kind in ("label", "import") and event.value is not None
    at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds")
    # Label Studio refuses an unknown user, and accepts an annotation without one.
    by = {"completed_by": {"email": event.who}} if "@" in event.who else {}
    return {
        **by,
        "al_who": event.who,
        "result": control.result(str(event.value)) if is_label else [],
        "was_cancelled": not is_label,
        "lead_time": event.seconds,
        "created_at": at,
        "updated_at": at,
        "ground_truth": False,
    }


def prediction(why: Mapping[str, Any], model: str, control: Control) -> dict[str, Any] | None:
    """The prediction of the model when the row was picked; None if there was no model."""
    if control.task == "multi":
        each = {str(name): float(share) for name, share in (why.get("each") or {}).items()}
        if not each:
            return None
        score = math.prod(max(share, 1 - share) for share in each.values())
        named = value_of((name for name, share in each.items() if share > 0.5), list(each))
        return {"model_version": model, "score": score, "result": control.result(named)}
    if control.task == "classify":
        probs = {str(name): float(share) for name, share in (why.get("probs") or {}).items()}
        if not probs:
            return None
        best = max(probs, key=lambda name: probs[name])
        return {"model_version": model, "score": probs[best], "result": control.result(best)}
    predicted = why.get("predicted")
    if predicted is None or not math.isfinite(float(predicted)):
        return None
    return {"model_version": model, "result": control.result(repr(float(predicted)))}


def task(project: Project, entry: Entry, why: Mapping[str, Any], image: str | None) -> dict[str, Any]:
    """An entry as a task with its annotations and the prediction."""
    control = control_of(project)
    found = prediction(why, entry.model, control)
    return {
        "data": data_of(project, entry.row, entry.ref, control.field, image),
        "annotations": [annotation(event, control) for _, event in sorted(entry.ballots.items())],
        "predictions": [] if found is None else [found],
    }
