"""Copy a store to another database: every answer, round and pick with its number and its checksum."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from sqlalchemy import insert, inspect, select

from labelwise.errors import StoreError
from labelwise.project.store import chains, schema
from labelwise.project.store.database import Database
from labelwise.project.store.schema import about, event, item, pick, round_

_TABLES = (about, item, round_, pick, event)  # leases are not copied: who works on an item may be lost
_AT_ONCE = 1000


@contextlib.contextmanager
def copied_store(source: str, target: str) -> Iterator[None]:
    """Copy a store and compare its checksums. If the block fails, nothing is copied.

    Args:
        source: the address of the store, of this version.
        target: the address of a database without a store.

    Raises:
        StoreError: `target` holds a store, cannot be reached, or does not return what was written.
    """
    with (
        contextlib.closing(Database(source)) as old,
        contextlib.closing(Database(target)) as new,
        old.reading() as reader,
        new.building() as writer,
    ):
        if inspect(writer).has_table(about.name):
            raise StoreError(f"{new.name} already holds a project. Choose an empty database")
        schema.build(writer)
        for table in _TABLES:
            query = select(table).order_by(*table.primary_key.columns)
            for rows in reader.execute(query).mappings().partitions(_AT_ONCE):
                writer.execute(insert(table), [dict(row) for row in rows])
        faults = chains.check(writer, None)
        if faults or chains.heads(writer) != chains.heads(reader):
            what = "; ".join(faults[:3]) or "its checksums differ"
            raise StoreError(f"{new.name} does not return what was written: {what}. Nothing was copied")
        yield
