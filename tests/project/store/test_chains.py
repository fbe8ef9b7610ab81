"""What was written is what is read: changes, missing entries and cut ends of a store are found and named."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from sqlalchemy import text

from labelwise.errors import ArgumentError, StoreError
from labelwise.io.chain import Link
from labelwise.project.store import Item, Pick, Round, Store, chains, leases


def engine_of(url):
    return sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))


def filled(url):
    """A store with six events, two rounds, a lease, and an odd ref."""
    store = Store.create(url)
    store.add_items([Item(row, f"{row}\nü.jpg") for row in range(9)])
    for name in ("cat", "dog"):
        store.add_class(name, "labelwise")
    for number in (1, 2):
        rows = range(3 * number, 3 * number + 3)
        picks = [Pick(row, "test" if row % 3 == 0 else "chosen", -0.0, {"words": "é"}) for row in rows]
        store.add_round(Round(number, "margin", f"m{number}", 2**64 - 1, 2, {"labels": 1}), picks)
    for who in ("ann", "bob"):
        store.answer(store.next_task(who).token, who, "label", "cat", -0.0, "a note")
    store.import_labels([(0, "dog")], "csv")
    store.undo("ann")
    return store


def do(url, *statements):
    """Change a store without asking its triggers."""
    engine = engine_of(url)
    with engine.begin() as connection:
        if url.startswith("sqlite"):
            names = connection.execute(text("SELECT name FROM sqlite_master WHERE type = 'trigger'")).scalars().all()
            for name in names:
                connection.execute(text(f"DROP TRIGGER {name}"))
        else:
            for table in ("item", "round", "pick", "event"):
                connection.execute(text(f"ALTER TABLE labelwise_{table} DISABLE TRIGGER USER"))
        for statement in statements:
            connection.execute(text(statement))
    engine.dispose()


def fault(url):
    with pytest.raises(StoreError, match=r"doctor PROJECT --repair") as caught:
        Store.open(url)
    return str(caught.value)


def test_a_whole_store_has_a_link_for_each_entry(store_url):
    store = filled(store_url)
    store.close()
    Store.open(store_url).close()
    engine = engine_of(store_url)
    with engine.connect() as connection:
        links = connection.execute(text("SELECT chain FROM labelwise_event ORDER BY seq")).scalars().all()
        heads = chains.heads(connection)
    engine.dispose()
    assert [link.split()[0] for link in links] == [str(number) for number in range(1, 7)]
    assert heads["events"] == links[-1]
    assert len(set(links)) == 6


DAMAGE = {
    "UPDATE labelwise_event SET value = 'dog' WHERE seq = 3": "event 3 was changed after it was written",
    "UPDATE labelwise_event SET seconds = 1 WHERE seq = 4": "event 4 was changed",
    "UPDATE labelwise_event SET row = 5 WHERE seq = 6": "event 6 was changed",
    "UPDATE labelwise_event SET chain = '3 00' WHERE seq = 3": "the digest of event 3 was changed, its content was not",
    "UPDATE labelwise_event SET chain = '9 00' WHERE seq = 6": "the digest of event 6 was changed, its content was not",
    "DELETE FROM labelwise_event WHERE seq = 2": "1 event before event 3 is missing",
    "DELETE FROM labelwise_event WHERE seq = 6": "the last 1 event of 6 is missing",
    "DELETE FROM labelwise_event": "the last 6 events of 6 are missing",
    "UPDATE labelwise_item SET ref = 'x' WHERE row = 8": "the list of its 9 items",
    "DELETE FROM labelwise_item WHERE row = 2": "the list of its 8 items",
    "UPDATE labelwise_pick SET slice = 'chosen' WHERE row = 3": "round 1 was changed",
    "UPDATE labelwise_pick SET why = '{}' WHERE row = 8": "round 2 was changed",
    "UPDATE labelwise_round SET after = 1 WHERE number = 2": "round 2 was changed",
    "UPDATE labelwise_round SET notes = '[]' WHERE number = 1": "round 1 was changed",
    "UPDATE labelwise_about SET value = '2' WHERE name = 'people'": "number of people",
    "UPDATE labelwise_about SET name = 'peoples' WHERE name = 'people'": "number of people",
    "UPDATE labelwise_about SET value = '5 00' WHERE name = 'events'": "up to number 5 are not those",
    "UPDATE labelwise_about SET value = 'x' WHERE name = 'rounds'": "count of its rounds is damaged",
}


@pytest.mark.parametrize("statement", DAMAGE)
def test_damage_is_named(store_url, statement):
    filled(store_url).close()
    do(store_url, statement)
    assert DAMAGE[statement] in fault(store_url)


def test_two_faults_are_both_named(store_url):
    filled(store_url).close()
    do(store_url, *(f"UPDATE labelwise_event SET note = 'x' WHERE seq = {seq}" for seq in (2, 5)))
    assert "event 2 was changed after it was written; event 5 was changed after it was written" in fault(store_url)


def test_a_cut_end_is_found_by_the_file_next_to_the_store(tmp_path):
    """Also where all that the database itself knows was put back."""
    url = f"sqlite:///{tmp_path}/store.db"
    filled(url).close()
    with closing(sqlite3.connect(tmp_path / "store.db")) as store:
        last = store.execute("SELECT chain FROM labelwise_event WHERE seq = 4").fetchone()[0]
    cut = f"UPDATE labelwise_about SET value = '{last}' WHERE name = 'events'"
    do(url, "DELETE FROM labelwise_event WHERE seq > 4", cut)
    assert "the last 2 events of 6 are missing" in fault(url)
    (tmp_path / "store.db.head").unlink()  # as in a copy of the database alone
    Store.open(url).close()
    assert (tmp_path / "store.db.head").exists()


def test_a_lost_write_ahead_log_is_found(tmp_path):
    store = filled(f"sqlite:///{tmp_path}/store.db")
    (tmp_path / "copy").mkdir()
    for name in ("store.db", "store.db.head"):
        shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    store.close()
    assert "the last 4 events of 6 are missing" in fault(f"sqlite:///{tmp_path}/copy/store.db")
    (tmp_path / "copy" / "store.db.head").unlink()
    copy = Store.open(f"sqlite:///{tmp_path}/copy/store.db")
    assert len(copy.rounds()) == 2  # a checkpoint follows each round, so a copy has what was there by then
    assert len(copy.items()) == 9
    copy.close()


def test_a_damaged_note_is_named(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    filled(url).close()
    path = tmp_path / "store.db.head"
    path.write_text(path.read_text().replace('"events": "6', '"events": "5'))
    with pytest.raises(StoreError, match=r"store\.db\.head was changed"):
        Store.open(url)


def test_a_damaged_index_is_found(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    filled(url).close()
    connection = sqlite3.connect(tmp_path / "store.db")
    token = connection.execute("SELECT token FROM labelwise_event WHERE seq = 3").fetchone()[0].encode()
    connection.close()
    data = bytearray((tmp_path / "store.db").read_bytes())
    places = [at for at in range(len(data)) if data.startswith(token, at)]
    assert len(places) >= 2  # the table and its index
    faults = set()
    for at in places:
        (tmp_path / "store.db").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        faults.add(fault(url).partition(":///")[2])
    assert all("labelwise_event is damaged" in one for one in faults)


def test_a_store_of_version_1_is_chained_when_it_is_opened(store_url):
    store = filled(store_url)
    before = store.events(), store.rounds(), store.picks(1), store.items()
    store.close()
    statements = [f"ALTER TABLE labelwise_{table} DROP COLUMN chain" for table in ("event", "round")]
    do(store_url, *statements, "DELETE FROM labelwise_about WHERE name NOT IN ('version', 'people')")
    do(store_url, "UPDATE labelwise_about SET value = '1' WHERE name = 'version'")
    if store_url.startswith("sqlite"):  # the triggers of version 1
        (Path(store_url.removeprefix("sqlite:///")).with_name("store.db.head")).unlink(missing_ok=True)
        one = "BEGIN SELECT RAISE(ABORT, 'append-only'); END"
        names = [f"labelwise_{table}_no_update" for table in ("event", "round")]
        do(store_url, *(f"CREATE TRIGGER {name} BEFORE UPDATE ON {name[:-10]} {one}" for name in names[:1]))
        engine = engine_of(store_url)
        with engine.begin() as connection:
            connection.execute(text(f"CREATE TRIGGER {names[1]} BEFORE UPDATE ON {names[1][:-10]} {one}"))
            if not connection.execute(text("SELECT 1 FROM sqlite_master WHERE name = :n"), {"n": names[0]}).first():
                connection.execute(text(f"CREATE TRIGGER {names[0]} BEFORE UPDATE ON {names[0][:-10]} {one}"))
            connection.execute(text(f"CREATE TRIGGER labelwise_event_in_order BEFORE INSERT ON labelwise_event {one}"))
        engine.dispose()
    for _ in range(2):
        store = Store.open(store_url)
        assert (store.events(), store.rounds(), store.picks(1), store.items()) == before
        store.close()
    store = Store.open(store_url)
    store.note("ann", 0, "later", "t")
    store.close()
    Store.open(store_url).close()
    engine = engine_of(store_url)
    with engine.begin() as connection, pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"):
        connection.execute(text("UPDATE labelwise_event SET value = 'x' WHERE seq = 3"))
    engine.dispose()


def entries(*names):
    """A chain of entries with these contents."""
    link, found = Link(), []
    for number, name in enumerate(names, start=1):
        link = link.after(name.encode())
        found.append(chains.Entry(number, name.encode(), chains.text_of(link)))
    return found, link


@pytest.mark.parametrize("gone", [{1}, {3}, {2, 3}, {1, 5}, {2, 4}])
def test_missing_entries_are_counted(gone):
    whole, last = entries(*"abcdef")
    found = chains.follow("event", [one for one in whole if one.number not in gone], [last])
    assert not found.bad
    assert sum(int(fault.split()[0]) for fault in found.faults) == len(gone)


def test_a_changed_entry_and_its_changed_digest_are_told_apart():
    whole, last = entries(*"abcdef")
    for place in range(6):
        for change in ({"content": b"x"}, {"link": "7 abc"}, {"link": "nonsense"}):
            changed = [chains.Entry(**{**vars(one), **(change if i == place else {})}) for i, one in enumerate(whole)]
            found = chains.follow("event", changed, [last])
            assert found.bad == ({place + 1} if "content" in change else set()), change
            assert len(found.faults) == 1


def test_an_early_end_that_was_noted_must_still_be_there():
    whole, last = entries(*"abcdef")
    early = chains.link_of(whole[2].link)
    assert chains.follow("event", whole, [last, early]).faults == []
    other = Link(3, "0" * 32)
    assert "up to number 3" in chains.follow("event", whole, [last, other]).faults[0]


# --- leases ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_was_ahead_holds_no_row(tmp_path, monkeypatch):
    store = filled(f"sqlite:///{tmp_path}/store.db")
    with monkeypatch.context() as ahead:
        ahead.setattr(leases.time, "time", lambda now=time.time: now() + 86_400)
        late = store.next_task("cid", skip=(3,))
    assert late.until > time.time() + 86_000
    assert store.progress().leased == 1  # that of ann, who took an answer back
    task = store.next_task("dan")
    assert task.row == late.row  # before, it was out for a day
    with pytest.raises(StoreError, match="went to dan"):
        store.answer(late.token, "cid", "label", "cat", 1.0)
    store.close()


def test_leases_on_postgresql_go_by_the_clock_of_the_database(postgres, monkeypatch):
    store = filled(postgres.url())
    now = time.time()
    monkeypatch.setattr(leases.time, "time", lambda: now + 86_400)
    assert abs(store.next_task("cid").until - now - 600) < 60
    store.close()


def test_a_lease_is_for_an_hour_at_most(tmp_path):
    store = filled(f"sqlite:///{tmp_path}/store.db")
    for call in (store.next_task, store.undo):
        with pytest.raises(ArgumentError, match="at most 3600 seconds"):
            call("ann", lease_seconds=86_400)
    assert store.next_task("cid", lease_seconds=3600).row == 5
    assert store.next_task("dan").row == 6
    store.close()


def test_a_damaged_lease_gives_nobody_another_row(store_url):
    store = filled(store_url)
    task = store.next_task("cid")
    do(store_url, f"UPDATE labelwise_lease SET row = 8 WHERE who = 'cid' AND row = {task.row}")
    with pytest.raises(StoreError, match="task is unknown"):
        store.answer(task.token, "cid", "label", "cat", 1.0)
    again = store.next_task("cid")
    assert again.row == task.row
    assert store.answer(again.token, "cid", "label", "cat", 1.0).row == task.row
    while (task := store.next_task("cid")) is not None:  # row 8 too
        store.answer(task.token, "cid", "label", "cat", 1.0)
    store.close()
