"""Label Studio's JSON: tasks with annotations and predictions, and the labelling configuration they are for.

A task holds our row as `al_id`, so that its answers find their way back.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import quoteattr

from labelwise.project.exchange.entries import Entry
from labelwise.project.project import Project
from labelwise.project.settings import Kind, Task
from labelwise.project.store import Event

_TAGS: dict[Kind, tuple[str, str]] = {"image": ("Image", "image"), "text": ("Text", "text"), "table": ("Table", "row")}


@dataclass(frozen=True)
class Control:
    """The parts of a labelling configuration that answers refer to: the control, the object, and where its data is."""

    name: str
    object: str
    field: str
    task: Task

    def result(self, value: str) -> list[dict[str, Any]]:
        """A label as Label Studio writes it."""
        kind = "choices" if self.task == "classify" else "number"
        said: Any = {"choices": [value]} if self.task == "classify" else {"number": float(value)}
        return [{"from_name": self.name, "to_name": self.object, "type": kind, "value": said}]


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
        lines.append('  <Choices name="label" toName="item" choice="single-radio" required="true">')
        lines += [f"    <Choice value={quoteattr(name)}/>" for name in classes]
        lines.append("  </Choices>")
    return "\n".join([*lines, "</View>"]) + "\n"


def data_of(project: Project, row: int, ref: str, field: str, image: str | None) -> dict[str, Any]:
    """What a task shows; `image` is the address of the picture."""
    if project.settings.kind == "image":
        return {"al_id": row, "al_ref": ref, field: image if image is not None else ref}
    shown = project.view(row)
    return {"al_id": row, "al_ref": ref, field: shown.text if shown.fields is None else dict(shown.fields)}


def annotation(event: Event, control: Control) -> dict[str, Any]:
    """An answer of a person. A skipped or unsure one is a cancelled annotation, as Label Studio's own are."""
    said = event.kind in ("label", "import") and event.value is not None
    at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds")
    # Label Studio refuses a name it does not know, and takes an annotation without one.
    by = {"completed_by": {"email": event.who}} if "@" in event.who else {}
    return {
        **by,
        "al_who": event.who,
        "result": control.result(str(event.value)) if said else [],
        "was_cancelled": not said,
        "lead_time": event.seconds,
        "created_at": at,
        "updated_at": at,
        "ground_truth": False,
    }


def prediction(why: Mapping[str, Any], model: str, control: Control) -> dict[str, Any] | None:
    """What the model thought of a pick when it was chosen; None where there was no model."""
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
    """An entry as a task with everything known about it."""
    control = control_of(project)
    found = prediction(why, entry.model, control)
    return {
        "data": data_of(project, entry.row, entry.ref, control.field, image),
        "annotations": [annotation(event, control) for _, event in sorted(entry.ballots.items())],
        "predictions": [] if found is None else [found],
    }
