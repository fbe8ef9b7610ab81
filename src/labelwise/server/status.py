"""State: how far the round and the project are, what the worker does, and the meter; beside every card."""

from __future__ import annotations

from collections import Counter
from typing import Any

from labelwise.errors import LabelwiseError
from labelwise.server.context import Desk
from labelwise.server.meter_view import headline, readout


def state(desk: Desk) -> dict[str, Any]:
    """What the template `state.html` needs. A meter that cannot be read costs the meter, not the page."""
    project = desk.project
    progress = project.store.progress()
    try:
        meter = project.meter()
    except LabelwiseError as error:
        desk.log(f"meter: {error}", once=True)
        meter = None
    return {
        "progress": progress,
        "working": project.working(),
        "meter": meter,
        "lines": readout(meter),
        "agreement": project.store.agreement() if project.settings.people > 1 else None,
        "left_out": len(project.left_out),
    }


def report(desk: Desk) -> dict[str, Any]:
    """What the template `report.html` needs."""
    project, values = desk.project, state(desk)
    labels = Counter(answer.value for answer in project.store.answers().values() if answer.value is not None)
    return {
        **values,
        "headline": headline(values["meter"], values["progress"].labels),
        "counts": labels.most_common(50) if project.settings.task == "classify" else [],
        "rounds": project.store.rounds(),
        "warnings": project.warnings,
        "left_out": project.left_out,
        "folder": project.folder.name,
    }
