"""Decisions of reviewers, annotators with links of their own, and numbers of several people; on both databases."""

import contextlib
import math
import sqlite3
import threading

import pytest
from test_store import filled, pick, say

from labelwise.errors import ArgumentError, LabelError, StoreError
from labelwise.project.store import Annotator, Item, Round, Store
from labelwise.project.store.projection import annotator_of
from labelwise.project.store.repair import repair_store


@pytest.fixture
def pair(store_url):
    """Each item is for two people, who disagree about the first one."""
    made = filled(store_url, people=2)
    for name in ("cat", "dog"):
        made.add_class(name, "setup")
    say(made, "ann", "cat")
    say(made, "bob", "dog")
    yield made
    made.close()


def test_a_decision_stands_whatever_the_ballots_are(pair):
    assert pair.answers()[0].kind == "split"
    event = pair.decide("rita", 0, "label", "dog", "decision-1", note="a dog indeed")
    assert (event.kind, event.who, event.value, event.note) == ("decision", "rita", "dog", "a dog indeed")
    assert pair.decide("rita", 0, "label", "cat", "decision-1") == event  # a request sent twice
    found = pair.answers()[0]
    assert (found.kind, found.value, found.decided_by) == ("label", "dog", "rita")
    assert found.votes == {"ann": "cat", "bob": "dog"}
    pair.change("bob", 0, "label", "cat", "change-1")
    pair.undo("ann")
    assert pair.answers()[0].value == "dog"
    assert pair.answers(upto=event.seq - 1)[0].kind == "split"  # a model of before had no label of this row
    pair.decide("rita", 0, "unsure", None, "decision-2")
    assert (pair.answers()[0].kind, pair.answers()[0].value) == ("unsure", None)
    pair.reopen("rita", 0, "reopen-1")
    assert (pair.answers()[0].value, pair.answers()[0].decided_by) == ("cat", "")
    with _again(pair) as again:
        assert again.answers() == pair.answers()


def _again(store):
    """The same store, opened anew: what is read is what was written."""
    return contextlib.closing(Store.open(store._database.url.render_as_string(hide_password=False)))


def test_a_decided_row_is_not_asked_for_again(pair):
    say(pair, "ann", "cat")  # row 1, half answered
    pair.decide("rita", 1, "label", "cat", "decision-1")
    task = pair.next_task("bob")
    assert task is not None
    assert task.row == 2
    pair.release("bob")
    pair.reopen("rita", 1, "reopen-1")
    assert pair.next_task("bob").row == 1


def test_two_reviewers_do_not_overwrite_each_other_unseen(pair):
    seen = pair.answers()[0].seq
    gate, said = threading.Barrier(2), []

    def decide(who, value):
        gate.wait()
        try:
            pair.decide(who, 0, "label", value, f"decision of {who}", seen=seen)
            said.append(value)
        except StoreError as error:
            said.append(str(error))

    threads = [threading.Thread(target=decide, args=one) for one in (("rita", "cat"), ("rosa", "dog"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum("Somebody has changed this item" in one for one in said) == 1
    assert pair.answers()[0].value in said


def test_what_cannot_be_decided_is_refused_and_leaves_nothing(pair):
    before = pair.last_seq()
    for refused, words in (
        (lambda: pair.decide("rita", 0, "skip", None, "t"), "'label' or 'unsure'"),
        (lambda: pair.decide("rita", 0, "label", "cow", "t"), "not a class"),
        (lambda: pair.decide("rita", 5, "label", "cat", "t"), "no answer yet"),
        (lambda: pair.decide("rita", 99, "label", "cat", "t"), "not in the store"),
        (lambda: pair.reopen("rita", 0, "t"), "not decided"),
        (lambda: pair.decide(" ", 0, "label", "cat", "t"), "must not be empty"),
        (lambda: pair.decide("rita", 0, "label", "cat", ""), "must not be empty"),
    ):
        with pytest.raises((ArgumentError, StoreError, LabelError), match=words):
            refused()
    assert pair.last_seq() == before


def test_a_token_that_a_database_cannot_store_is_refused_alike_on_both(pair):
    """A form may send anything as a token; PostgreSQL has no NUL in a text."""
    for refused in (
        lambda: pair.answer("\x00", "ann", "label", "cat", 1.0),
        lambda: pair.undo("ann", "\x00"),
        lambda: pair.change("ann", 0, "label", "cat", "\x00"),
        lambda: pair.note("ann", 0, "a note", "\x00"),
        lambda: pair.decide("rita", 0, "label", "cat", "\x00"),
        lambda: pair.reopen("rita", 0, "\x00"),
    ):
        with pytest.raises(ArgumentError, match="NUL"):
            refused()


# --- annotators ------------------------------------------------------------------------------------------------------


def test_links_are_given_changed_and_revoked(pair):
    assert pair.annotators() == {}
    assert pair.set_annotator("olga", "own", "setup") == Annotator("olga", "own", 1)
    pair.set_annotator("ann", "label", "olga")
    assert pair.set_annotator("ann", "review", "olga").link == 1  # a role changes, the link stays
    assert pair.set_annotator("ann", "review", "olga", new_link=True).link == 2
    assert pair.set_annotator("ann", None, "olga") == Annotator("ann", None, 2)
    assert pair.set_annotator("ann", "label", "olga").link == 3  # never one that was revoked
    before = pair.last_seq()
    pair.set_annotator("ann", "label", "olga")
    assert pair.last_seq() == before  # nothing changed, so nothing is written
    with _again(pair) as again:
        assert again.annotators() == {"olga": Annotator("olga", "own", 1), "ann": Annotator("ann", "label", 3)}
    assert [one.who for one in pair.events() if one.kind == "annotator"] == ["setup", *["olga"] * 5]


def test_somebody_always_owns_the_project(pair):
    for first in ("label", "review"):
        with pytest.raises(StoreError, match="one person at least has the role 'own'"):
            pair.set_annotator("ann", first, "setup")
    assert pair.annotators() == {}
    pair.set_annotator("olga", "own", "setup")
    for role in ("label", "review", None):
        with pytest.raises(StoreError, match="one person at least"):
            pair.set_annotator("olga", role, "olga")
    pair.set_annotator("ann", "own", "olga")
    assert pair.set_annotator("olga", None, "ann").role is None


@pytest.mark.parametrize("name", ["", " ", "\x00", "\udce9"])
def test_a_name_that_cannot_be_stored_is_refused(pair, name):
    with pytest.raises(ArgumentError):
        pair.set_annotator(name, "own", "setup")


def test_names_that_would_be_confused_are_refused(pair):
    pair.set_annotator("Olga", "own", "setup")
    with pytest.raises(ArgumentError, match="differ only by case"):
        pair.set_annotator("olga", "label", "Olga")
    with pytest.raises(ArgumentError, match="'nobody' has no link"):
        pair.set_annotator("nobody", None, "Olga")
    with pytest.raises(ArgumentError, match="a role is one of label, review, own"):
        pair.set_annotator("ann", "root", "Olga")


@pytest.mark.slow
def test_a_lost_event_may_have_revoked_a_link_so_none_from_before_is_valid(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    store = filled(url)
    store.set_annotator("olga", "own", "setup")
    store.set_annotator("ann", "label", "olga")
    say(store, "ann", "cat")
    store.close()
    with sqlite3.connect(tmp_path / "store.db") as database:
        database.execute("DROP TRIGGER labelwise_event_no_update")
        database.execute("UPDATE labelwise_event SET value = 'dog' WHERE seq = 3")
    database.close()
    repair_store(url, 1, [Item(row, f"{row}.jpg") for row in range(10)], tmp_path / "store.damaged.jsonl")
    again = Store.open(url)
    assert {one.role for one in again.annotators().values()} == {None}
    assert again.set_annotator("olga", "own", "setup").link == 2  # the way back, from the command line
    again.close()


@pytest.mark.parametrize(
    "value",
    [None, "", "{}", "[]", "[" * 10_000, "1" * 5000, '{"name": 1, "role": "root", "link": "x"}', '"olga"', "null"],
)
def test_an_odd_event_gives_nobody_a_role(value):
    assert annotator_of(value).role is None


# --- numbers of several people ---------------------------------------------------------------------------------------


def numbers(url, people):
    store = Store.create(url, people)
    store.add_items(Item(row, str(row)) for row in range(4))
    store.add_round(Round(1, "margin", "", 7, 0, {}), [pick(row) for row in range(4)])
    return store


def test_numbers_of_several_people_count_by_their_median(store_url):
    store = numbers(store_url, 3)
    for who, value in (("ann", "10"), ("bob", "12.5"), ("cleo", "1000")):
        say(store, who, value)
    assert (store.answers()[0].kind, store.answers()[0].value) == ("label", "12.5")
    for who in ("ann", "bob"):
        say(store, who, None, "unsure")
    say(store, "cleo", "3")
    assert store.answers()[1].kind == "unsure"
    for who, value in (("ann", "7"), ("bob", "7"), ("cleo", "7")):
        say(store, who, value)
    assert store.answers()[2].value == "7"  # as they wrote it
    found = store.agreement()
    assert (found.rows, found.pairs) == (2, 6)
    assert found.alpha is not None
    assert math.isfinite(found.alpha)
    store.close()


def test_two_numbers_make_their_mean_and_one_stays_as_it_is(store_url):
    store = numbers(store_url, 2)
    say(store, "ann", "10")
    assert store.answers()[0].value == "10"
    say(store, "bob", "11")
    assert (store.answers()[0].kind, store.answers()[0].value) == ("label", "10.5")
    store.close()
