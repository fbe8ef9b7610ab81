"""The durable store of a project: who answered what, when, and what was picked for whom; on SQLite or PostgreSQL."""

from __future__ import annotations

from labelwise.errors import extra

try:
    import sqlalchemy as _sqlalchemy  # noqa: F401
except ImportError as error:
    raise extra("sqlalchemy", "app") from error

from labelwise.project.store.records import (
    ROLES,
    Agreement,
    Annotator,
    Answer,
    Event,
    Item,
    Kind,
    Pick,
    Progress,
    Role,
    Round,
    Slice,
    Task,
)
from labelwise.project.store.store import Store

__all__ = [
    "ROLES",
    "Agreement",
    "Annotator",
    "Answer",
    "Event",
    "Item",
    "Kind",
    "Pick",
    "Progress",
    "Role",
    "Round",
    "Slice",
    "Store",
    "Task",
]
