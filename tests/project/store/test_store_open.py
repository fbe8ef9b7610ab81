"""Making, opening and migrating a store; what happens when it is not what it should be."""

import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import text

from labelwise.errors import ArgumentError, StoreError
from labelwise.project.store import Item, Pick, Round, Store, migration, schema
from labelwise.project.store.database import Database
from private_postgres import leave_out

RECORDED = Path(__file__).parents[2] / "data" / "store_version_1.sql"


def engine_of(url: str) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


def set_version(url: str, version: int) -> None:
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE labelwise_about SET value = :v WHERE name = 'version'"), {"v": str(version)})
    engine.dispose()


def filled(url: str) -> Store:
    store = Store.create(url)
    store.add_items([Item(0, "a"), Item(1, "b")])
    store.add_round(Round(1, "margin", "m", 0, 0, {}), [Pick(0, "test", 0.5, {})])
    task = store.next_task("ann")
    store.answer(task.token, "ann", "label", "cat", 1.0)
    return store


def test_a_store_opens_with_what_was_written(store_url):
    store = filled(store_url)
    before = store.events(), store.answers(), store.rounds()
    store.close()
    again = Store.open(store_url)
    assert (again.events(), again.answers(), again.rounds()) == before
    again.close()


def test_a_store_is_made_once(store_url):
    filled(store_url).close()
    with pytest.raises(StoreError, match="already holds a project"):
        Store.create(store_url)
    again = Store.open(store_url)
    assert len(again.events()) == 1
    again.close()


def test_opening_where_there_is_none(store_url):
    with pytest.raises(StoreError, match=r"there is no store at|holds no project"):
        Store.open(store_url)
    if store_url.startswith("sqlite"):
        assert not Path(store_url.removeprefix("sqlite:///")).exists()


def test_a_newer_version_is_refused(store_url):
    filled(store_url).close()
    set_version(store_url, schema.VERSION + 1)
    with pytest.raises(StoreError, match=rf"newer Labelwise \(store version {schema.VERSION + 1}\)"):
        Store.open(store_url)


def test_a_version_older_than_any_step_is_refused(store_url):
    filled(store_url).close()
    set_version(store_url, 0)
    with pytest.raises(StoreError, match="has store version 0"):
        Store.open(store_url)


def opened(url, steps):
    """The store after other steps than those of the product."""
    database = Database(url)
    with database.closed_on_error():
        return Store(database, migration.migrate(database, steps))


def test_the_version_is_that_after_the_last_step():
    assert max(migration.STEPS) + 1 == schema.VERSION


def add_column(connection):
    connection.execute(text("ALTER TABLE labelwise_item ADD COLUMN size INTEGER DEFAULT 5"))


def test_steps_bring_an_older_version_up(store_url):
    """With two steps made up here: the versions of the product have had no reason for one yet."""
    before = filled(store_url)
    events = before.events()
    before.close()

    def fill(connection):
        assert connection.execute(text("SELECT sum(size) FROM labelwise_item")).scalar_one() == 10
        connection.execute(text("ALTER TABLE labelwise_item ADD COLUMN colour TEXT"))

    first = schema.VERSION
    for _ in range(2):  # the second time there is nothing to do
        store = opened(store_url, {first: add_column, first + 1: fill})
        assert store.events() == events
        store.close()
    engine = engine_of(store_url)
    with engine.connect() as connection:
        version = "SELECT value FROM labelwise_about WHERE name = 'version'"
        assert connection.execute(text(version)).scalar_one() == str(first + 2)
        assert connection.execute(text("SELECT colour FROM labelwise_item")).all() == [(None,), (None,)]
    engine.dispose()


def test_a_step_that_fails_leaves_the_old_version(store_url):
    filled(store_url).close()

    def broken(connection):
        connection.execute(text("SELECT 1 FROM nowhere"))

    first = schema.VERSION
    with pytest.raises(StoreError, match="nowhere"):
        opened(store_url, {first: add_column, first + 1: broken})
    store = Store.open(store_url)
    assert len(store.events()) == 1
    store.close()
    engine = engine_of(store_url)
    columns = {column["name"] for column in sqlalchemy.inspect(engine).get_columns("labelwise_item")}
    engine.dispose()
    assert columns == {"row", "ref"}


def test_a_recorded_store_of_version_1_opens(tmp_path):
    """Written by version 1 and kept as it was, so that later versions are tested on the real thing."""
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.executescript(RECORDED.read_text(encoding="utf-8"))
    connection.close()
    store = Store.open(f"sqlite:///{tmp_path}/store.db")
    assert store.people == 2
    assert store.classes() == ["cat", "dog"]
    assert [event.kind for event in store.events()] == [
        *["class", "class", "label", "label", "skip", "undo", "unsure", "import", "note"]
    ]
    answers = store.answers()
    assert {row: (answer.kind, answer.value) for row, answer in answers.items()} == {
        0: ("split", None),
        1: ("unsure", None),
        9: ("label", "dog"),
    }
    assert answers[0].votes == {"ann": "cat", "bob": "dog"}
    assert store.picks(1)[1].slice == "test"
    task = store.next_task("bob")
    assert (task.row, task.ref) == (1, "folder/1.jpg")
    store.answer(task.token, "bob", "label", "cat", 1.0)
    assert store.answers()[1].kind == "split"
    store.close()


@pytest.mark.parametrize("url", ["mysql://u@h/d", "sqlite://", "sqlite:///:memory:", "store.db", "http://x"])
def test_addresses_that_are_none(url):
    with pytest.raises(ArgumentError, match="sqlite"):
        Store.create(url)


def test_a_password_is_never_shown():
    with pytest.raises(ArgumentError) as caught:
        Store.create("postgresql:/u:secret@h/d:x")
    assert "secret" not in str(caught.value)
    with pytest.raises(StoreError) as refused:
        Store.open("postgresql://u:secret@/d?host=/nowhere/at/all")
    assert "secret" not in str(refused.value)
    assert "***" in str(refused.value)


@pytest.mark.parametrize("name", ["a b", "what?really=yes", "100%25", "#1", "ünïcode", "it's", "a;b", "file:x"])
def test_folders_with_odd_names(tmp_path, name):
    folder = tmp_path / name
    folder.mkdir()
    filled(f"sqlite:///{folder}/store.db").close()
    assert (folder / "store.db").stat().st_size > 0
    store = Store.open(f"sqlite:///{folder}/store.db")
    assert len(store.events()) == 1
    store.close()


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        Store.create(f"sqlite:///{tmp_path}/none/store.db")


def test_a_file_that_is_no_database(tmp_path):
    (tmp_path / "store.db").write_text("this is a shopping list, " * 100)
    with pytest.raises(StoreError, match="not a database"):
        Store.open(f"sqlite:///{tmp_path}/store.db")


def test_an_empty_file_is_no_store_yet(tmp_path):
    """What is left when the making of a store is killed."""
    (tmp_path / "store.db").touch()
    url = f"sqlite:///{tmp_path}/store.db"
    with pytest.raises(StoreError, match="holds no project"):
        Store.open(url)
    Store.create(url).close()
    Store.open(url).close()


def test_people_is_at_least_one(tmp_path):
    with pytest.raises(ArgumentError, match="at least 1"):
        Store.create(f"sqlite:///{tmp_path}/store.db", people=0)


def test_sqlite_writes_ahead_and_waits_for_the_disk(tmp_path):
    """An answer is synced, a lease is not."""
    store = filled(f"sqlite:///{tmp_path}/store.db")
    found = {}
    for name in ("reading", "writing", "leasing"):
        with getattr(store._database, name)() as connection:
            ask = [connection.exec_driver_sql(f"PRAGMA {one}").scalar_one() for one in ("journal_mode", "synchronous")]
            found[name] = (*ask, connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one())
    assert found == {"reading": ("wal", 2, 60000), "writing": ("wal", 2, 60000), "leasing": ("wal", 1, 60000)}
    store.close()


def test_postgres_waits_for_the_disk(postgres):
    store = filled(postgres.url())
    found = {}
    for name in ("writing", "leasing"):
        with getattr(store._database, name)() as connection:
            found[name] = connection.exec_driver_sql("SHOW synchronous_commit").scalar_one()
    assert found == {"writing": "on", "leasing": "off"}
    store.close()


def test_a_full_or_locked_store_says_so_and_goes_on(tmp_path):
    filled(f"sqlite:///{tmp_path}/store.db").close()
    store = Store(Database(f"sqlite:///{tmp_path}/store.db", busy_seconds=0.05), 1)
    other = sqlite3.connect(tmp_path / "store.db")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match=r"database is locked.*Nothing was changed"):
        store.import_labels([(1, "cat")], "csv")
    assert store.answers()[0].value == "cat"  # reading is not blocked
    other.rollback()
    other.close()
    assert store.import_labels([(1, "cat")], "csv") == 1
    store.close()


def test_a_lost_connection_is_made_again(postgres):
    url = postgres.url()
    store = filled(url)
    engine = engine_of(url)
    with engine.connect() as connection:
        connection.execute(text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"))
    engine.dispose()
    assert len(store.events()) == 1
    store.close()


def test_what_cannot_be_tested_is_left_out_here_and_fails_in_ci(monkeypatch):
    monkeypatch.delenv("LABELWISE_CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no database"):
        leave_out("no database")
    monkeypatch.setenv("LABELWISE_CI", "1")
    with pytest.raises(pytest.fail.Exception, match="no database"):
        leave_out("no database")


@pytest.mark.slow
def test_a_long_history_makes_no_call_slow(tmp_path):
    """What a call costs depends on what is new, not on what there is."""
    costs = []
    for size in (200, 20_000):
        store = Store.create(f"sqlite:///{tmp_path}/store{size}.db")
        store.add_items(Item(row, str(row)) for row in range(size))
        store.add_round(Round(1, "s", "", 0, 0, {}), [Pick(row, "chosen", 0.0, {}) for row in range(size)])
        store.import_labels([(row, "x") for row in range(size // 2)], "csv")
        store.answers()
        costs.append(min(_cost(store) for _ in range(15)))
        store.close()
    assert costs[1] < 4 * costs[0], costs


def _cost(store: Store) -> float:
    start = time.process_time()
    task = store.next_task("ann")
    store.answer(task.token, "ann", "label", "x", 1.0)
    store.peek("ann", 3)
    store.progress()
    return time.process_time() - start


def test_the_room_imports_neither_torch_nor_the_web():
    code = (
        "import sys, labelwise.project.store\n"
        "print([name for name in ('torch', 'numpy', 'fastapi', 'psycopg') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
