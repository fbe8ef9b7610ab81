"""Database: connections and transactions, the same for SQLite and PostgreSQL.

There are three kinds of transaction. `reading` sees one moment. `writing` is on disk when it ends. `leasing` may be
lost in a power failure (then a task is given out again), so it does not wait for the disk. A killed process loses
neither.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, select, text
from sqlalchemy import event as hooks
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError as UrlError
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from labelwise.errors import ArgumentError, StoreError, extra
from labelwise.io.chain import read_heads, write_heads
from labelwise.project.store import chains
from labelwise.project.store.schema import about, event, lease, pick, round_

DAMAGED = ("file is not a database", "malformed", "Could not decode")  # in messages of SQLite
BUSY_SECONDS = 60
_INDEXED = (about, round_, pick, event, lease)  # the items have no index, and their digest reads them all
_REPAIR = "restore it from a backup, or run `labelwise doctor PROJECT --repair`"


class Database:
    """An engine and its three kinds of transaction. One of SQLite waits `busy_seconds` for another process."""

    def __init__(self, url: str, busy_seconds: float = BUSY_SECONDS) -> None:
        self.url = _read(url)
        self.name = self.url.render_as_string(hide_password=True)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.engine = _sqlite(self.url, busy_seconds) if self.is_sqlite else _postgres(self.url)
        # SQLite allows one writer at a time and lets the others poll; threads of this process queue here instead.
        self._writer = threading.Lock()
        self._noted: Mapping[str, str] | None = None
        self._closed = False
        hooks.listen(self.engine, "checkin", self._returned)

    @property
    def path(self) -> Path | None:
        """The file of an SQLite database; None for PostgreSQL."""
        return Path(self.url.database or "") if self.is_sqlite else None

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that only reads."""
        with self._begin("read") as connection:
            yield connection

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is on disk when it ends; one at a time over all processes.

        Events get their numbers in here, so a reader that has seen number n has seen every lower number.
        """
        with self._writer if self.is_sqlite else contextlib.nullcontext():
            with self._begin("write") as connection:
                if not self.is_sqlite:  # which has begun with the lock of the whole file
                    connection.execute(select(about.c.value).where(about.c.name == "version").with_for_update())
                yield connection
                heads = chains.heads(connection) if self.is_sqlite else None
            self._note(heads)

    @contextlib.contextmanager
    def leasing(self) -> Iterator[Connection]:
        """A transaction that changes leases only; many at a time on PostgreSQL."""
        with self._writer if self.is_sqlite else contextlib.nullcontext(), self._begin("lease") as connection:
            yield connection

    @contextlib.contextmanager
    def building(self) -> Iterator[Connection]:
        """Like `writing`, before the tables exist."""
        with self._begin("write") as connection:
            if not self.is_sqlite:
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('labelwise'), 1)"))
            yield connection

    def faults(self) -> list[str]:
        """What is wrong with the store, in words; empty if everything in it is as it was written."""
        noted = None if self.path is None else read_heads(self.path, _REPAIR)
        with self.reading() as connection:
            if self.is_sqlite:
                for table in _INDEXED:
                    found = connection.exec_driver_sql(f"PRAGMA integrity_check({table.name})").scalars().all()
                    if found != ["ok"]:
                        return [f"the table {table.name} is damaged ({found[0]})"]
            found, heads = chains.check(connection, noted), chains.heads(connection)
        if not found and noted is None and self.is_sqlite:
            self._note(heads)  # a copy of the database alone, or a store of an early version
        return found

    def checkpoint(self) -> None:
        """Bring what SQLite has written ahead into its file, as far as no reader needs it, so that a copy has it."""
        if self.is_sqlite:
            with contextlib.closing(self.engine.raw_connection()) as connection:
                connection.cursor().execute("PRAGMA wal_checkpoint(PASSIVE)")

    def _note(self, heads: Mapping[str, str] | None) -> None:
        """Note in a file what a committed store ends with."""
        if heads is not None and heads != self._noted and self.path is not None:
            with contextlib.suppress(OSError):  # a note that is behind is no error
                write_heads(self.path, heads)
                self._noted = heads

    def close(self) -> None:
        """Close every connection; one that another thread uses, as soon as that thread returns it."""
        self._closed = True
        self.engine.dispose()

    def _returned(self, _connection: Any, entry: ConnectionPoolEntry) -> None:
        if self._closed:
            entry.close()

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the connections if the block fails."""
        try:
            yield
        except BaseException:
            self.close()
            raise

    @contextlib.contextmanager
    def _begin(self, purpose: str) -> Iterator[Connection]:
        try:
            with self.engine.connect().execution_options(labelwise=purpose) as connection, connection.begin():
                yield connection
        except DBAPIError as error:
            if any(sign in str(error.orig) for sign in DAMAGED):
                raise StoreError(
                    f"the store {self.name} is damaged: {error.orig}. Restore it from a backup, or run `labelwise "
                    "doctor PROJECT --repair`, which sets it aside and keeps what is good"
                ) from error
            raise StoreError(
                f"the store {self.name} failed: {error.orig}. Nothing was changed. Check that the disk is not full, "
                "the folder is writable and the server is running, and try again"
            ) from error
        except UnicodeDecodeError as error:  # a name in a damaged schema
            raise StoreError(f"the store {self.name} is damaged: {error}. {_REPAIR.capitalize()}") from error
        except SQLAlchemyError as error:
            raise StoreError(f"the store {self.name} failed: {error}. Nothing was changed") from error


def lock_person(connection: Connection, who: str) -> None:
    """Let two windows of one person take turns, so that both get the same task. SQLite has one writer anyway."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('labelwise'), hashtext(:who))"), {"who": who})


def _read(url: str) -> URL:
    try:
        # Take the path of a file literally: folders may have ? and % in their names, and SQLite needs no options.
        start = "sqlite:///"
        found = URL.create("sqlite", database=url.removeprefix(start)) if url.startswith(start) else make_url(url)
    except UrlError:
        raise ArgumentError(
            "the address of a store must look like sqlite:///folder/store.db or postgresql://user@host/database; "
            "found something else"
        ) from None  # the text may hold a password
    backend = found.get_backend_name()
    if backend == "sqlite":
        if not found.database or found.database == ":memory:":
            raise ArgumentError("an SQLite store needs a file, found an address without one; use sqlite:///store.db")
        return found.set(drivername="sqlite")
    if backend in ("postgresql", "postgres"):
        return found.set(drivername="postgresql+psycopg")
    raise ArgumentError(f"a store is in sqlite or postgresql, found an address of {backend!r}")


def _sqlite(url: URL, busy_seconds: float) -> Engine:
    engine = create_engine(url, pool_size=8, max_overflow=-1, connect_args={"timeout": busy_seconds})

    @hooks.listens_for(engine, "connect")
    def _connected(connection: sqlite3.Connection, _record: Any) -> None:
        connection.isolation_level = None  # `_begun` starts transactions, not the driver
        try:
            for pragma in ("journal_mode=WAL", "foreign_keys=ON", "fullfsync=ON", "recursive_triggers=ON"):
                connection.execute(f"PRAGMA {pragma}")
        except BaseException:
            connection.close()  # older versions of SQLAlchemy leave it open
            raise

    @hooks.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        purpose = connection.get_execution_options()["labelwise"]
        connection.exec_driver_sql(f"PRAGMA synchronous={'NORMAL' if purpose == 'lease' else 'FULL'}")
        connection.exec_driver_sql("BEGIN" if purpose == "read" else "BEGIN IMMEDIATE")

    return engine


def _postgres(url: URL) -> Engine:
    try:
        engine = create_engine(url, pool_size=8, max_overflow=24, pool_pre_ping=True, isolation_level="READ COMMITTED")
    except ImportError as error:
        raise extra("psycopg", "postgres") from error

    @hooks.listens_for(engine, "begin")
    def _begun(connection: Connection) -> None:
        purpose = connection.get_execution_options()["labelwise"]
        if purpose == "read":
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        else:
            connection.exec_driver_sql(f"SET LOCAL synchronous_commit = {'off' if purpose == 'lease' else 'on'}")

    return engine
