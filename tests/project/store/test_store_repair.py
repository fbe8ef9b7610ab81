"""A damaged store is replaced by one with all that is good; everything that could be read is set aside."""

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from test_chains import do, engine_of, filled

from labelwise.project.store import Item, Store
from labelwise.project.store.repair import repair_store, store_faults

ITEMS = [Item(row, f"{row}\nü.jpg") for row in range(9)]


def repaired(url, tmp_path, people=1, items=ITEMS):
    aside = tmp_path / "store.damaged-1.jsonl"
    repair_store(url, people, items, aside)
    assert store_faults(url) == []
    return Store.open(url), [json.loads(line) for line in aside.read_text().splitlines()]


def plain(events):
    return [(one.seq, one.who, one.kind, one.row, one.value, one.undoes, one.token, one.at) for one in events]


def test_a_changed_event_is_set_aside_and_all_others_stay(store_url, tmp_path):
    store = filled(store_url)
    before = plain(store.events()), store.rounds(), store.picks(1), store.picks(2), store.items()
    store.close()
    do(store_url, "UPDATE labelwise_event SET value = 'dog' WHERE seq = 4")
    assert store_faults(store_url) == ["event 4 was changed after it was written"]
    again, aside = repaired(store_url, tmp_path)
    events = plain(again.events())
    assert events[:3] + events[4:] == before[0][:3] + before[0][4:]
    assert (events[3][:3], again.events()[3].note[:10]) == ((4, "labelwise", "lost"), "this event")
    assert (again.rounds(), again.picks(1), again.picks(2), again.items()) == before[1:]
    lost = next(row for row in aside if row["table"] == "labelwise_event" and row["seq"] == 4)
    assert (lost["value"], lost["who"]) == ("dog", "bob")
    assert {row: one.value for row, one in again.answers().items()} == {0: "dog"}
    while (task := again.next_task("bob")) is not None:  # the row of the lost answer is asked for again
        again.answer(task.token, "bob", "label", "cat", 1.0)
    assert again.answers()[4].value == "cat"
    again.close()
    Store.open(store_url).close()


def test_missing_events_keep_their_numbers(store_url, tmp_path):
    """Also the one that an undo takes back."""
    filled(store_url).close()
    undone = "SELECT undoes FROM labelwise_event WHERE kind = 'undo'"
    do(store_url, "UPDATE labelwise_event SET undoes = NULL WHERE seq = 99")  # no triggers
    engine = engine_of(store_url)
    with engine.begin() as connection:
        seq = connection.execute(text(undone)).scalar_one()
        if store_url.startswith("postgresql"):
            connection.execute(text("ALTER TABLE labelwise_event DROP CONSTRAINT labelwise_event_undoes_fkey"))
        connection.execute(text(f"DELETE FROM labelwise_event WHERE seq = {seq}"))
    engine.dispose()
    assert store_faults(store_url) == [f"1 event before event {seq + 1} is missing"]
    again, _ = repaired(store_url, tmp_path)
    kinds = [event.kind for event in again.events()]
    assert (kinds[seq - 1], len(kinds), kinds[-1]) == ("lost", 6, "undo")
    assert again.answers()[0].value == "dog"
    assert again.undo("ann") is None
    again.close()


def test_a_cut_end_counts_on(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    filled(url).close()
    do(
        url,
        "DELETE FROM labelwise_event WHERE seq > 3",
        "UPDATE labelwise_about SET value = '3 x' WHERE name = 'events'",
    )
    again, _ = repaired(url, tmp_path)
    assert [event.kind for event in again.events()] == ["class", "class", "label", "lost", "lost", "lost"]
    again.note("ann", 0, "goes on", "t")
    assert again.last_seq() == 7
    again.close()
    assert (tmp_path / "store.damaged-1.db").is_file()


def test_a_damaged_round_goes_with_its_picks_and_the_answers_stay(store_url, tmp_path):
    filled(store_url).close()
    do(store_url, "UPDATE labelwise_pick SET slice = 'chosen' WHERE row = 3")
    again, aside = repaired(store_url, tmp_path)
    assert [one.number for one in again.rounds()] == [2]
    assert {row: one.value for row, one in again.answers().items()} == {0: "dog", 4: "cat"}
    assert sum(row["table"] == "labelwise_pick" for row in aside) == 6
    again.close()


@pytest.mark.parametrize("known", [True, False])
def test_a_damaged_list_of_items_comes_from_the_data(store_url, tmp_path, known):
    filled(store_url).close()
    do(store_url, "UPDATE labelwise_item SET ref = 'other.jpg' WHERE row = 2")
    again, _ = repaired(store_url, tmp_path, items=ITEMS if known else [])
    assert again.items([2])[0].ref == ("2\nü.jpg" if known else "other.jpg")
    assert len(again.items()) == 9
    again.close()


def test_the_number_of_people_comes_from_the_settings(store_url, tmp_path):
    filled(store_url).close()
    do(store_url, "UPDATE labelwise_about SET value = '2' WHERE name = 'people'")
    again, _ = repaired(store_url, tmp_path, people=1)
    assert again.people == 1
    again.close()


def test_whole_pages_may_be_gone(tmp_path):
    """Every page in turn is overwritten: what can be read stays, whatever is lost is named, and the store opens."""
    path = tmp_path / "store.db"
    url = f"sqlite:///{path}"
    store = filled(url)
    store.import_labels([(row % 9, "cat") for row in range(9)], "csv2")
    store.close()
    whole, note = path.read_bytes(), (tmp_path / "store.db.head").read_bytes()
    with closing(sqlite3.connect(path)) as connection:
        size = connection.execute("PRAGMA page_size").fetchone()[0]
    left = []
    for number, start in enumerate(range(size, len(whole), size)):
        path.write_bytes(whole[:start] + b"\x5a" * size + whole[start + size :])
        (tmp_path / "store.db.head").write_bytes(note)
        if store_faults(url):
            folder = tmp_path / str(number)
            folder.mkdir()
            again, _ = repaired(url, folder)
            left.append(sum(event.kind != "lost" for event in again.events()))
            assert again.last_seq() == 15
            again.close()
    assert len(left) >= 8
    assert max(left) == 15  # an index, or the leases: nothing is lost


def test_a_store_of_version_1_that_cannot_be_upgraded(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    store = filled(url)
    before = plain(store.events())
    store.close()
    do(url, *(f"ALTER TABLE labelwise_{table} DROP COLUMN chain" for table in ("event", "round")))
    do(url, "DELETE FROM labelwise_about")
    assert "has store version -1" in store_faults(url)[0]
    again, _ = repaired(url, tmp_path)
    assert plain(again.events()) == before
    again.close()


def test_what_is_set_aside_never_overwrites(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    filled(url).close()
    do(url, "DELETE FROM labelwise_event WHERE seq = 6")
    repaired(url, tmp_path)[0].close()
    names = {path.name for path in Path(tmp_path).iterdir()}
    assert {"store.db", "store.db.head", "store.damaged-1.db", "store.damaged-1.jsonl"} <= names
