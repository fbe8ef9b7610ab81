"""The tables of the store, and the triggers that make its history append-only.

Items, rounds, picks and events are only inserted. Only leases change; they can be lost without losing an answer.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Connection, Float, ForeignKey, Index, Integer, MetaData, Table, Text
from sqlalchemy import text as sql

VERSION = 2

TABLES = MetaData()
_Row = BigInteger().with_variant(Integer, "sqlite")

about = Table("labelwise_about", TABLES, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))

item = Table(
    "labelwise_item",
    TABLES,
    Column("row", _Row, primary_key=True, autoincrement=False),
    Column("ref", Text, nullable=False),
)

round_ = Table(
    "labelwise_round",
    TABLES,
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("strategy", Text, nullable=False),
    Column("model", Text, nullable=False),
    Column("seed", Text, nullable=False),  # text, because seeds are unsigned 64-bit numbers
    Column("after", _Row, nullable=False),
    Column("notes", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("chain", Text, nullable=False),  # number and digest, see `chains.py`
)

pick = Table(
    "labelwise_pick",
    TABLES,
    Column("row", _Row, ForeignKey("labelwise_item.row"), primary_key=True, autoincrement=False),
    Column("round", Integer, ForeignKey("labelwise_round.number"), nullable=False),
    Column("place", Integer, nullable=False),
    Column("slice", Text, nullable=False),
    Column("score", Float(53)),  # NULL stands for NaN, which SQLite cannot store
    Column("why", Text, nullable=False),
    Index("labelwise_pick_order", "round", "place", unique=True),
)

event = Table(
    "labelwise_event",
    TABLES,
    Column("seq", _Row, primary_key=True, autoincrement=False),
    Column("at", Float(53), nullable=False),
    Column("who", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("row", _Row, ForeignKey("labelwise_item.row")),
    Column("round", Integer),
    Column("value", Text),
    Column("seconds", Float(53)),
    Column("note", Text, nullable=False),
    Column("strategy", Text, nullable=False),
    Column("score", Float(53)),
    Column("model", Text, nullable=False),
    Column("undoes", _Row, ForeignKey("labelwise_event.seq")),
    Column("token", Text, nullable=False, unique=True),
    Column("chain", Text, nullable=False),
)

lease = Table(
    "labelwise_lease",
    TABLES,
    Column("row", _Row, ForeignKey("labelwise_pick.row"), primary_key=True, autoincrement=False),
    Column("who", Text, primary_key=True),
    Column("token", Text, nullable=False, unique=True),
    Column("made", Float(53), nullable=False),
    Column("until", Float(53), nullable=False),
    Column("redo", Boolean, nullable=False),
    Index("labelwise_lease_until", "until"),
)

_FIXED = (item.name, round_.name, pick.name, event.name)


def build(connection: Connection) -> None:
    """Create the tables and triggers of this version."""
    TABLES.create_all(connection, checkfirst=False)
    for statement in sqlite_triggers() if connection.dialect.name == "sqlite" else _postgres_triggers():
        connection.execute(sql(statement))


def sqlite_triggers() -> list[str]:
    """Statements that make the triggers of an SQLite store."""
    triggers = [
        f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        f"BEGIN SELECT RAISE(ABORT, 'the table {table} is append-only'); END"
        for table in _FIXED
        for verb in ("UPDATE", "DELETE")
    ]
    # INSERT OR REPLACE deletes without asking the trigger above.
    triggers.append(
        "CREATE TRIGGER labelwise_event_in_order BEFORE INSERT ON labelwise_event WHEN NEW.seq IS NOT "
        "(SELECT coalesce(max(seq), 0) + 1 FROM labelwise_event) "
        "OR EXISTS (SELECT 1 FROM labelwise_event WHERE token = NEW.token) OR NEW.chain = '' "
        "BEGIN SELECT RAISE(ABORT, 'the table labelwise_event is append-only'); END"
    )
    for table, key in ((item.name, "row"), (round_.name, "number"), (pick.name, "row")):
        triggers.append(
            f"CREATE TRIGGER {table}_no_replace BEFORE INSERT ON {table} "
            f"WHEN EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key}) "
            f"BEGIN SELECT RAISE(ABORT, 'the table {table} is append-only'); END"
        )
    return triggers


def _postgres_triggers() -> list[str]:
    triggers = [
        "CREATE FUNCTION labelwise_refuse() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the table % is append-only', TG_TABLE_NAME; END $$"
    ]
    for table in _FIXED:
        triggers.append(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION labelwise_refuse()"
        )
        triggers.append(
            f"CREATE TRIGGER {table}_no_truncate BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION labelwise_refuse()"
        )
    return triggers
