"""A labelling project: a folder with data, the answers of people, and a worker that trains and chooses.

Answers are events in SQLite or PostgreSQL (`store/`), appended and never changed. A worker process trains, chooses
and measures (`loop/`, `meter/`); `data/` makes features, `exchange/` imports and exports.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelwise.project.loop.heartbeat import Heartbeat as Heartbeat
    from labelwise.project.loop.suspects import Suspect as Suspect
    from labelwise.project.meter.meter import Meter as Meter
    from labelwise.project.predict.saved_model import SavedModel as SavedModel
    from labelwise.project.project import Neighbour as Neighbour
    from labelwise.project.project import Project as Project
    from labelwise.project.project import RowView as RowView
    from labelwise.project.settings import Settings as Settings

# Imported on first use: the store alone must not import torch.
_MODULES = {
    "Project": "labelwise.project.project",
    "Settings": "labelwise.project.settings",
    "RowView": "labelwise.project.project",
    "Neighbour": "labelwise.project.project",
    "Heartbeat": "labelwise.project.loop.heartbeat",
    "Suspect": "labelwise.project.loop.suspects",
    "Meter": "labelwise.project.meter.meter",
    "SavedModel": "labelwise.project.predict.saved_model",
}
__all__ = [*_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'labelwise.project' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
