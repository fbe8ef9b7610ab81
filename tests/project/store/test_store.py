"""The store of a project, call by call, on SQLite and on PostgreSQL."""

import math
import threading
import time
from collections.abc import Iterator

import pytest
import sqlalchemy
from sqlalchemy import text

from labelwise.errors import ArgumentError, LabelError, StoreError
from labelwise.project.store import Agreement, Answer, Item, Pick, Round, Store, Task
from labelwise.project.store.agreement import agreement


def filled(url: str, people: int = 1, items: int = 10, picks: int = 6) -> Store:
    store = Store.create(url, people=people)
    store.add_items(Item(row, f"{row}.jpg") for row in range(items))
    store.add_round(Round(1, "margin", "model 0", 7, 0, {}), [pick(row) for row in range(picks)])
    return store


def pick(row: int, slice_: str = "chosen") -> Pick:
    return Pick(row, slice_, row / 10, {"rank": row})


def say(store: Store, who: str, value: str | None, kind: str = "label") -> Task:
    task = store.next_task(who)
    assert task is not None
    store.answer(task.token, who, kind, value, 1.0)
    return task


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    made = filled(store_url)
    yield made
    made.close()


@pytest.fixture
def pair(store_url: str) -> Iterator[Store]:
    """Each item is for two people."""
    made = filled(store_url, people=2)
    yield made
    made.close()


# --- items, classes, rounds ------------------------------------------------------------------------------------------


def test_items_come_back_by_row_or_as_asked(store):
    assert store.items()[3] == Item(3, "3.jpg")
    assert [item.row for item in store.items([7, 2, 7])] == [7, 2, 7]
    with pytest.raises(StoreError, match=r"rows \[99\] are not in the store; it has 10 items"):
        store.items([2, 99])


def test_items_are_added_all_or_none(store):
    with pytest.raises(StoreError, match="already"):
        store.add_items([Item(50, "new"), Item(3, "again")])
    assert len(store.items()) == 10
    store.add_items([])
    store.add_items([Item(2**40, "far")])
    assert store.items([2**40]) == [Item(2**40, "far")]


@pytest.mark.parametrize("ref", ["a\x00b", "caf\udce9.jpg"])
def test_text_no_database_can_keep_is_refused(store, ref):
    with pytest.raises(ArgumentError, match="ref of an item"):
        store.add_items([Item(77, ref)])


def test_odd_text_comes_back_as_it_was(store):
    odd = "naïve 'quoted\" %s :name ☂ \U0001f600 \n<script>"
    store.add_items([Item(77, odd)])
    assert store.items([77])[0].ref == odd
    store.note("ann", 77, odd, "t")
    assert store.events()[-1].note == odd


def test_classes_keep_their_order_and_are_added_once(store):
    first = store.add_class("zebra", "ann")
    store.add_class(" ant ", "bob")
    assert store.add_class("zebra", "bob") == first
    assert store.classes() == ["zebra", "ant"]
    assert [event.kind for event in store.events()] == ["class", "class"]
    with pytest.raises(ArgumentError, match="must not be empty"):
        store.add_class("  ", "ann")


def test_a_label_outside_the_classes_is_refused(store):
    task = store.next_task("ann")
    store.add_class("cat", "ann")
    with pytest.raises(LabelError, match="is not a class of this project"):
        store.answer(task.token, "ann", "label", "car", 1.0)
    with pytest.raises(LabelError, match="is not a class of this project"):
        store.import_labels([(1, "cat"), (2, "car")], "csv")
    assert store.answers() == {}
    store.answer(task.token, "ann", "label", "cat", 1.0)


def test_rounds_and_picks_come_back_as_given(store):
    made = Round(2, "badge", "model 1", 2**64 - 1, 12, {"seconds": 1.5})
    picks = [Pick(8, "test", math.inf, {}), Pick(7, "chosen", -0.25, {"words": "near the border", "list": [1]})]
    store.add_round(made, picks)
    assert store.rounds() == [Round(1, "margin", "model 0", 7, 0, {}), made]
    assert store.picks(2) == picks
    with pytest.raises(StoreError, match="no round 3"):
        store.picks(3)


def test_a_score_that_is_no_number_comes_back(store):
    store.add_round(Round(2, "random", "", 0, 0, {}), [Pick(8, "test", math.nan, {})])
    assert math.isnan(store.picks(2)[0].score)


@pytest.mark.parametrize(
    ("number", "rows", "match"),
    [
        (1, [8], "above 1, found 1"),
        (2, [8, 3], "row 3 was already picked in round 1"),
        (2, [8, 9, 8], "twice"),
        (2, [8, 99], "not in the store"),
    ],
)
def test_a_round_is_added_all_or_nothing(store, number, rows, match):
    with pytest.raises(StoreError, match=match):
        store.add_round(Round(number, "margin", "", 0, 0, {}), [pick(row) for row in rows])
    assert len(store.rounds()) == 1
    store.add_round(Round(2, "margin", "", 0, 0, {}), [pick(8)])


# --- tasks -----------------------------------------------------------------------------------------------------------


def test_a_task_says_what_was_picked_and_why(store):
    task = store.next_task("ann", lease_seconds=100)
    assert (task.row, task.ref, task.round, task.slice, task.score) == (0, "0.jpg", 1, "chosen", 0.0)
    assert (task.why, task.strategy, task.model, task.redo) == ({"rank": 0}, "margin", "model 0", False)
    assert 90 < task.until - time.time() <= 100
    assert task.token


def test_each_item_is_with_one_person_at_a_time(store):
    tasks = {who: store.next_task(who) for who in "abcdef"}
    assert sorted(task.row for task in tasks.values()) == list(range(6))
    assert store.next_task("g") is None
    again = store.next_task("c")
    assert (again.row, again.token) == (tasks["c"].row, tasks["c"].token)
    assert store.progress().leased == 6


def test_a_lease_that_ran_out_goes_to_the_next(store):
    late = store.next_task("ann", lease_seconds=0)
    assert store.next_task("bob").row == late.row
    with pytest.raises(StoreError, match="went to bob"):
        store.answer(late.token, "ann", "label", "cat", 1.0)
    assert store.events() == []


def test_a_late_answer_is_taken_while_nobody_has_the_row(store):
    late = store.next_task("ann", lease_seconds=0)
    store.answer(late.token, "ann", "label", "cat", 1.0)
    assert store.answers()[late.row].votes == {"ann": "cat"}


def test_a_late_answer_to_an_answered_row_is_refused(store):
    late = store.next_task("ann", lease_seconds=0)
    assert say(store, "bob", "dog").row == late.row
    with pytest.raises(StoreError, match="went to bob"):
        store.answer(late.token, "ann", "label", "cat", 1.0)
    assert store.answers()[late.row].votes == {"bob": "dog"}


def test_asking_again_keeps_the_token_of_a_lease_that_ran_out(store):
    late = store.next_task("ann", lease_seconds=0)
    again = store.next_task("ann")
    assert again.token == late.token
    assert again.until > late.until


def test_released_tasks_are_free(store):
    task = store.next_task("ann")
    store.release("ann")
    assert store.next_task("bob").row == task.row


def test_rows_can_be_passed_over(store):
    assert store.next_task("ann", skip=[0, 1]).row == 2
    assert store.next_task("ann", skip=[2]).row == 0


def test_a_peek_leases_nothing_and_tells_what_comes(store):
    assert [task.row for task in store.peek("ann", 2)] == [0, 1]
    assert store.progress().leased == 0
    store.next_task("bob")
    assert store.next_task("ann").row == 1
    ahead = store.peek("ann", 9)
    assert [task.row for task in ahead] == [2, 3, 4, 5]
    assert {(task.token, task.until) for task in ahead} == {("", 0.0)}
    assert store.peek("ann", 0) == []


def test_picks_are_asked_in_the_order_given_over_the_rounds(store):
    store.add_round(Round(2, "margin", "model 1", 0, 0, {}), [pick(9, "test"), pick(7), pick(8, "test")])
    assert [say(store, "ann", "cat").row for _ in range(9)] == [0, 1, 2, 3, 4, 5, 9, 7, 8]
    assert store.next_task("ann") is None


def test_two_windows_of_one_person_get_the_same_task(store_url):
    filled(store_url).close()
    stores = [Store.open(store_url) for _ in range(4)]
    barrier, found = threading.Barrier(4), []

    def ask(store):
        barrier.wait()
        found.append(store.next_task("ann").token)

    _together(ask, stores)
    assert len(found) == 4
    assert len(set(found)) == 1


def _together(work, arguments):
    threads = [threading.Thread(target=work, args=(one,)) for one in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in arguments:
        if isinstance(one, Store):
            one.close()


@pytest.mark.slow
def test_many_at_once_never_get_the_same_row(store_url):
    """Twelve people in four stores (as in four processes) empty two rounds; each row is answered once."""
    store = filled(store_url, items=60, picks=40)
    store.add_round(Round(2, "margin", "", 0, 0, {}), [pick(row) for row in range(40, 60)])
    store.close()
    stores = [Store.open(store_url) for _ in range(4)]
    failures = []

    def work(number):
        own = stores[number % 4]
        try:
            while (task := own.next_task(f"p{number}")) is not None:
                own.answer(task.token, f"p{number}", "label", "x", 0.1)
        except Exception as error:
            failures.append(error)

    _together(work, range(12))
    assert failures == []
    rows = [event.row for event in stores[0].events()]
    assert sorted(rows) == list(range(60))
    assert [event.seq for event in stores[1].events()] == list(range(1, 61))
    assert stores[2].answers() == stores[3].answers()
    assert len(stores[2].answers()) == 60
    for one in stores:
        one.close()


# --- answers ---------------------------------------------------------------------------------------------------------


def test_an_answer_is_an_event_with_all_that_led_to_it(store):
    before = time.time()
    task = say(store, "ann", "cat")
    second = store.next_task("ann")
    event = store.answer(second.token, "ann", "label", "dog", 2.5, "dark picture")
    assert store.events(after=1) == [event]
    assert (event.seq, event.who, event.kind, event.row, event.round) == (2, "ann", "label", second.row, 1)
    assert (event.value, event.seconds, event.note) == ("dog", 2.5, "dark picture")
    assert (event.strategy, event.score, event.model) == ("margin", second.score, "model 0")
    assert (event.undoes, event.token) == (None, second.token)
    assert before <= event.at <= time.time()
    assert store.answers()[task.row] == Answer(task.row, "cat", {"ann": "cat"}, "label", "chosen", 1)


def test_a_request_sent_twice_writes_once(store):
    task = store.next_task("ann")
    event = store.answer(task.token, "ann", "label", "cat", 1.0)
    assert store.answer(task.token, "ann", "label", "dog", 9.0) == event
    assert store.events() == [event]


def test_the_same_token_at_the_same_moment_writes_once(store_url):
    filled(store_url).close()
    stores = [Store.open(store_url) for _ in range(4)]
    token, found = stores[0].next_task("ann").token, []
    barrier = threading.Barrier(4)

    def send(store):
        barrier.wait()
        found.append(store.answer(token, "ann", "label", "cat", 1.0))

    _together(send, stores)
    assert len(found) == 4
    assert len(set(found)) == 1


def test_tokens_of_others_and_made_up_ones_are_refused(store):
    task = store.next_task("ann")
    with pytest.raises(StoreError, match="given to someone else"):
        store.answer(task.token, "bob", "label", "cat", 1.0)
    with pytest.raises(StoreError, match="task is unknown"):
        store.answer("made up", "ann", "label", "cat", 1.0)
    store.answer(task.token, "ann", "label", "cat", 1.0)
    with pytest.raises(StoreError, match="given to someone else"):
        store.answer(task.token, "bob", "label", "cat", 1.0)


@pytest.mark.parametrize(
    ("kind", "value", "seconds"),
    [
        ("label", None, 1.0),
        ("label", " ", 1.0),
        ("skip", "cat", 1.0),
        ("undo", None, 1.0),
        ("label", "cat", -1.0),
        ("label", "cat", math.nan),
        ("label", 3, 1.0),
    ],
)
def test_an_answer_that_is_none_is_refused(store, kind, value, seconds):
    task = store.next_task("ann")
    with pytest.raises(ArgumentError):
        store.answer(task.token, "ann", kind, value, seconds)
    assert store.events() == []
    assert store.next_task("ann").token == task.token


def test_a_skipped_row_goes_to_others_and_is_closed_when_all_have_skipped_it(store):
    say(store, "bob", "cat")  # row 0; bob is known in this round
    task = store.next_task("ann")
    store.answer(task.token, "ann", "skip", None, 0.5)
    assert store.answers()[task.row] == Answer(task.row, None, {}, "skip", "chosen", 2)
    assert store.progress().answered == 1
    assert store.next_task("ann").row != task.row
    assert store.next_task("bob").row == task.row
    say(store, "bob", None, "skip")
    assert store.progress().answered == 2
    assert store.next_task("eve").row == 3  # closed: eve is not known yet, and has an open one
    say(store, "eve", "cat")
    assert store.next_task("eve").row == task.row  # known now, so it is open for her
    say(store, "eve", "dog")
    assert store.answers()[task.row].value == "dog"


def test_an_unsure_answer_is_an_answer(store):
    task = say(store, "ann", None, "unsure")
    assert store.answers()[task.row] == Answer(task.row, None, {}, "unsure", "chosen", 1)
    assert store.next_task("bob").row != task.row
    assert store.progress().labels == 0
    assert store.progress().answered == 1


def test_undo_takes_back_the_last_answer_and_gives_the_row_again(store):
    first, second = say(store, "ann", "cat"), say(store, "ann", "dog")
    third = store.next_task("ann")
    say(store, "bob", "cat")
    undone = store.undo("ann")
    assert (undone.kind, undone.row, undone.undoes, undone.who) == ("undo", second.row, 2, "ann")
    assert second.row not in store.answers()
    again = store.next_task("ann")
    assert (again.row, again.redo) == (second.row, True)
    assert again.token != second.token
    assert store.undo("ann").row == first.row
    assert [task.row for task in store.peek("ann", 2)] == [second.row, third.row]
    assert say(store, "ann", "bird").row == first.row
    assert say(store, "ann", "bird").row == second.row
    assert store.next_task("ann").token == third.token
    assert store.answers()[second.row].value == "bird"
    assert store.answers(upto=2)[second.row].value == "dog"


def test_there_may_be_nothing_to_undo(store):
    assert store.undo("ann") is None
    say(store, "bob", "cat")
    store.import_labels([(9, "cat")], "ann")
    assert store.undo("ann") is None
    assert len(store.events()) == 2


def test_undo_with_a_token_takes_back_once(store):
    say(store, "ann", "cat")
    say(store, "ann", "dog")
    first = store.undo("ann", token="u1")
    assert store.undo("ann", token="u1") == first
    assert len(store.answers()) == 1


def test_an_undone_row_goes_to_another_after_the_lease(store):
    task = say(store, "ann", "cat")
    store.undo("ann", lease_seconds=0)
    assert store.next_task("bob").row == task.row


def test_change_replaces_and_undo_brings_back(store):
    task = say(store, "ann", "cat")
    event = store.change("ann", task.row, "label", "dog", "c1", "looked again")
    assert (event.kind, event.value, event.round, event.strategy, event.token) == ("label", "dog", 1, "margin", "c1")
    assert store.change("ann", task.row, "label", "bird", "c1") == event
    assert store.answers()[task.row].votes == {"ann": "dog"}
    store.undo("ann")
    assert store.answers()[task.row] == Answer(task.row, "cat", {"ann": "cat"}, "label", "chosen", 3)
    store.change("ann", task.row, "unsure", None, "c2")
    assert store.answers()[task.row].kind == "unsure"


def test_change_also_answers_what_was_never_asked(store):
    event = store.change("ann", 9, "label", "cat", "c1")
    assert (event.round, event.strategy, event.score) == (None, "", None)
    assert store.answers()[9] == Answer(9, "cat", {"ann": "cat"}, "label", None, 1)
    assert store.undo("ann").row == 9
    assert store.answers() == {}
    with pytest.raises(StoreError, match="not in the store"):
        store.change("ann", 99, "label", "cat", "c2")


def test_change_of_a_row_held_ends_the_lease(store):
    task = store.next_task("ann")
    store.change("ann", task.row, "label", "cat", "c1")
    assert store.next_task("ann").row != task.row
    with pytest.raises(StoreError, match="task is unknown"):
        store.answer(task.token, "ann", "label", "dog", 1.0)


def test_a_note_changes_no_answer(store):
    event = store.note("ann", 3, "which breed?", "n1")
    assert store.note("ann", 3, "which breed?", "n1") == event
    assert store.answers() == {}
    assert store.undo("ann") is None


def test_imports_are_answers_in_a_name(store):
    assert store.import_labels([(0, "cat"), (9, "dog")], "labels.csv") == 2
    assert store.import_labels([(0, "cat"), (9, "bird")], "labels.csv") == 1
    assert store.import_labels([], "labels.csv") == 0
    assert store.answers()[0] == Answer(0, "cat", {"labels.csv": "cat"}, "label", "chosen", 1)
    assert store.answers()[9] == Answer(9, "bird", {"labels.csv": "bird"}, "label", None, 3)
    assert store.next_task("ann").row == 1  # row 0 is answered
    assert store.progress().answered == 1


def test_an_import_is_written_whole_or_not_at_all(store):
    with pytest.raises(StoreError, match="not in the store"):
        store.import_labels([(0, "cat"), (99, "dog")], "labels.csv")
    with pytest.raises(LabelError, match="two labels"):
        store.import_labels([(0, "cat"), (0, "dog")], "labels.csv")
    assert store.events() == []


def test_a_row_imported_first_and_picked_later_has_its_slice(store):
    store.import_labels([(9, "cat")], "csv")
    assert store.answers()[9].slice is None
    store.add_round(Round(2, "margin", "", 0, 0, {}), [pick(9, "test"), pick(8)])
    assert store.answers()[9].slice == "test"
    assert store.progress().answered == 1


# --- several people on one item --------------------------------------------------------------------------------------


def test_two_people_for_each_item(pair):
    assert say(pair, "ann", "cat").row == 0
    assert pair.next_task("ann").row == 1
    assert say(pair, "bob", "cat").row == 0
    assert pair.next_task("eve").row == 1  # ann holds it too
    assert pair.next_task("bob").row == 2  # 1 is with ann and eve
    assert pair.answers()[0] == Answer(0, "cat", {"ann": "cat", "bob": "cat"}, "label", "chosen", 2)
    assert pair.progress().answered == 1


def test_a_tie_is_split_and_a_third_voice_decides(pair):
    say(pair, "ann", "cat")
    say(pair, "bob", "dog")
    answer = pair.answers()[0]
    assert (answer.kind, answer.value, answer.votes) == ("split", None, {"ann": "cat", "bob": "dog"})
    assert pair.progress().labels == 0
    pair.change("eve", 0, "label", "dog", "c1")
    assert (pair.answers()[0].kind, pair.answers()[0].value) == ("label", "dog")
    pair.change("dan", 0, "unsure", None, "c2")
    assert pair.answers()[0].value == "dog"
    pair.change("fay", 0, "unsure", None, "c3")
    assert pair.answers()[0].kind == "split"  # two for dog, two who cannot tell
    pair.change("gil", 0, "unsure", None, "c4")
    assert pair.answers()[0].kind == "unsure"


def test_an_item_that_the_second_person_skips_is_closed_with_one_vote(pair):
    task = say(pair, "ann", "cat")
    assert say(pair, "bob", None, "skip").row == task.row
    assert pair.progress().answered == 1
    assert (pair.answers()[0].kind, pair.answers()[0].votes) == ("label", {"ann": "cat"})


def test_the_number_of_people_is_kept(store_url):
    filled(store_url, people=3).close()
    store = Store.open(store_url)
    assert store.people == 3
    assert [store.next_task(who).row for who in "abcd"] == [0, 0, 0, 1]
    store.close()


def test_agreement_in_the_store(pair):
    assert pair.agreement() == Agreement(0, 0, None, None)
    for who, values in {"ann": "aab", "bob": "abb"}.items():
        for value in values:
            say(pair, who, value)
    found = pair.agreement()
    assert (found.rows, found.pairs, found.share) == (3, 3, pytest.approx(2 / 3))
    assert found.alpha == pytest.approx(1 - (5 * 2) / (36 - 18))


def test_alpha_of_a_worked_example():
    """Four coders, twelve units with gaps: Krippendorff's own example of nominal data, whose alpha is 0.743."""
    coders = ["123321412...", "1233224125.3", ".3332342251.", "12332441251."]
    found = agreement([[vote for vote in column if vote != "."] for column in zip(*coders, strict=True)])
    assert found.alpha == pytest.approx(0.743, abs=5e-4)
    assert found.rows == 11


def test_alpha_needs_two_different_labels():
    assert agreement([["a", "a"], ["a", "a"]]) == Agreement(2, 2, 1.0, None)


def test_alpha_is_one_for_agreement_and_below_zero_for_contradiction():
    assert agreement([["a", "a"], ["b", "b"]]).alpha == 1.0
    assert agreement([["a", "b"], ["b", "a"]]).alpha < 0


# --- views -----------------------------------------------------------------------------------------------------------


def test_progress(store):
    assert store.progress().median_seconds is None
    for seconds in (1.0, 5.0, 2.0):
        task = store.next_task("ann")
        store.answer(task.token, "ann", "label", "cat", seconds)
    say(store, "bob", None, "unsure")
    store.next_task("bob")
    found = store.progress()
    assert (found.round, found.picks, found.answered, found.leased) == (1, 6, 4, 1)
    assert (found.labels, found.items, found.people, found.median_seconds) == (3, 10, 2, 2.0)
    store.add_round(Round(2, "margin", "", 0, 0, {}), [pick(8)])
    assert (store.progress().round, store.progress().picks, store.progress().answered) == (2, 1, 0)


def test_an_empty_store_has_nothing(store_url):
    store = Store.create(store_url)
    assert (store.items(), store.classes(), store.rounds(), store.events(), store.answers()) == ([], [], [], [], {})
    assert store.next_task("ann") is None
    assert store.peek("ann", 3) == []
    assert store.progress().round == 0
    store.close()


def test_events_are_read_from_a_number_on(store):
    for _ in range(4):
        say(store, "ann", "cat")
    assert [event.seq for event in store.events(after=1, limit=2)] == [2, 3]


def test_another_process_sees_what_was_written(store_url):
    one = filled(store_url)
    two = Store.open(store_url)
    assert two.answers() == {}
    task = say(one, "ann", "cat")
    assert two.answers()[task.row].value == "cat"
    one.add_round(Round(2, "margin", "", 0, 0, {}), [pick(9)])
    assert two.progress().round == 2
    two.undo("ann")
    assert one.answers() == {}
    assert one.next_task("ann").redo
    one.close()
    two.close()


def test_answers_given_out_are_not_changed_later(store):
    say(store, "ann", "cat")
    before = store.answers()
    say(store, "ann", "dog")
    assert len(before) == 1


# --- the history cannot be changed -----------------------------------------------------------------------------------


CHANGES = [
    "UPDATE labelwise_event SET value = 'dog'",
    "DELETE FROM labelwise_event",
    "UPDATE labelwise_pick SET score = 1",
    "DELETE FROM labelwise_item",
    "UPDATE labelwise_round SET model = 'other'",
]
OWN_CHANGES = {
    "postgresql": ["TRUNCATE labelwise_event CASCADE"],
    "sqlite": [
        "INSERT OR REPLACE INTO labelwise_event SELECT * FROM labelwise_event",
        "INSERT OR REPLACE INTO labelwise_event (seq, at, who, kind, note, strategy, model, token) "
        "SELECT seq + 1, at, who, kind, note, strategy, model, token FROM labelwise_event",
        "INSERT OR REPLACE INTO labelwise_item SELECT row, 'other' FROM labelwise_item",
    ],
}


def test_the_database_refuses_to_change_history(store_url):
    store = filled(store_url)
    say(store, "ann", "cat")
    before = store.events()
    engine = sqlalchemy.create_engine(store_url.replace("postgresql:", "postgresql+psycopg:"))
    for statement in CHANGES + OWN_CHANGES[store_url.split(":")[0]]:
        with pytest.raises(sqlalchemy.exc.DBAPIError, match="append-only"), engine.begin() as connection:
            connection.execute(text(statement))
    engine.dispose()
    assert store.events() == before
    assert store.items()[0].ref == "0.jpg"
    store.close()


def test_with_one_person_an_item_the_latest_ballot_stands(store_url):
    store = Store.create(store_url)
    store.add_items([Item(0, "a"), Item(1, "b")])
    for name in ("cat", "dog"):
        store.add_class(name, "ann")
    store.import_labels([(0, "cat"), (1, "cat")], "file")
    store.change("ann", 0, "label", "dog", "t1")
    store.change("bob", 0, "label", "cat", "t2")
    store.change("ann", 1, "unsure", None, "t3")
    answers = store.answers()
    assert (answers[0].kind, answers[0].value) == ("label", "cat")
    assert answers[0].votes == {"ann": "dog", "bob": "cat", "file": "cat"}
    assert answers[1].kind == "unsure"
    store.undo("bob")
    assert store.answers()[0].value == "dog"
    assert store.answers(upto=store.events()[-1].seq)[0].value == "dog"
    store.close()
