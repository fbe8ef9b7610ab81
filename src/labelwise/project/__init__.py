"""Project: a folder of data, the people who label it, and the worker that trains and chooses beside them."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelwise.project.loop.heartbeat import Working as Working
    from labelwise.project.loop.suspects import Suspect as Suspect
    from labelwise.project.meter.reading import Meter as Meter
    from labelwise.project.project import Neighbour as Neighbour
    from labelwise.project.project import Project as Project
    from labelwise.project.project import Shown as Shown
    from labelwise.project.settings import Settings as Settings

# Looked up on first use: the store alone must not import torch.
_HOME = {
    "Project": "labelwise.project.project",
    "Settings": "labelwise.project.settings",
    "Shown": "labelwise.project.project",
    "Neighbour": "labelwise.project.project",
    "Working": "labelwise.project.loop.heartbeat",
    "Suspect": "labelwise.project.loop.suspects",
    "Meter": "labelwise.project.meter.reading",
}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'labelwise.project' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)
