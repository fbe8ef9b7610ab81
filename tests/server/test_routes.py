"""The routes of the page, over real HTTP: answers, undo, classes, people, gallery, bad data, and what is escaped."""

import re
from dataclasses import replace

import pytest

from fake_project import Browser, Suspect, fake_project, heartbeat, running
from labelwise.errors import SourceError, StoreError
from labelwise.project.store import Task
from labelwise.project.suggest.suggestions import Measured, Suggestion, Suggestions
from labelwise.server import Auth
from labelwise.server.routes_label import CLASS_KEYS, reason, with_keys

NASTY = "<b>bold</b> <script>alert(1)</script> <svg onload=alert(2)> \" onmouseover='x' &amp; {{ 7919*7907 }}"


class Site:
    """A project, a server and the browsers on it."""

    def __init__(self, project, auth, address):
        self.project, self.auth, self.address = project, auth, address

    def browser(self, name="anna"):
        return Browser(self.address, self.auth, name)


@pytest.fixture
def table(tmp_path, request):
    made = fake_project(
        tmp_path / "project", **getattr(request, "param", {"data": [f"text {row}" for row in range(12)]})
    )
    auth = Auth.make(made.folder)
    with running(made, auth) as address:
        yield Site(made, auth, address)
    made.close()


def token_of(text):
    return re.search(r'data-token="([^"]+)"', text)[1]


def row_of(text):
    return int(re.search(r'id="card"[^>]* data-row="(\d+)"', text)[1])


def answer(browser, text, value="cat", kind="label", **more):
    return browser.post(
        "/answer", data={"token": token_of(text), "kind": kind, "value": value, "seconds": "1.5", **more}
    )


# --- answers ---------------------------------------------------------------------------------------------------------


def test_an_answer_is_in_the_store_when_the_next_card_comes(table):
    with table.browser() as anna:
        first = anna.get("/card").text
        reply = answer(anna, first, "dog", note="  blurred ")
        assert reply.status_code == 200
        event = table.project.store.events()[-1]
        assert (event.who, event.kind, event.value, event.note, event.seconds) == (
            "anna",
            "label",
            "dog",
            "blurred",
            1.5,
        )
        assert event.row == row_of(first) != row_of(reply.text)
        assert "Saved: dog." in reply.text


def test_the_same_answer_sent_again_is_one_answer(table):
    with table.browser() as anna:
        first = anna.get("/card").text
        replies = [answer(anna, first) for _ in range(3)]
        assert [reply.status_code for reply in replies] == [200] * 3
        assert len({row_of(reply.text) for reply in replies}) == 1
        assert sum(event.kind == "label" for event in table.project.store.events()) == 1
        other = answer(anna, first, "dog")  # from a second window
        assert "already answered this item: cat" in other.text
        assert table.project.store.answers()[row_of(first)].value == "cat"


@pytest.mark.slow
def test_bad_answers_are_refused_and_say_why(table):
    with table.browser() as anna:
        first = anna.get("/card").text
        for value, kind in (("bird", "label"), ("", "label"), ("cat", "undo"), ("cat", "import"), ("cat", "class")):
            assert answer(anna, first, value, kind).status_code == 422
        assert anna.post("/answer", data={"kind": "label", "value": "cat"}).status_code == 422
        assert answer(anna, first, note="x" * 4001).status_code == 422
        unknown = anna.post("/answer", data={"token": "nothing", "kind": "label", "value": "cat"})
        assert unknown.status_code == 409
        assert row_of(unknown.text) == row_of(first)
        assert table.project.store.answers() == {}
        for seconds in ("-3", "nan", "1e9"):
            text = anna.get("/card").text
            assert anna.post("/answer", data={"token": token_of(text), "kind": "skip", "seconds": seconds}).is_success
        assert [event.seconds for event in table.project.store.events()[-3:]] == [None, None, 3600.0]


def test_an_answer_to_somebody_elses_item_is_refused(table):
    with table.browser("anna") as anna, table.browser("ben") as ben:
        mine = anna.get("/card").text
        reply = answer(ben, mine)
        assert reply.status_code == 409
        assert "someone else" in reply.text
        assert row_of(reply.text) != row_of(mine)


def test_a_database_that_fails_is_not_a_refusal(table, monkeypatch):
    """The page forgets a refused answer and sends a failed one again: the two must differ."""
    with table.browser() as anna:
        first = anna.get("/card").text

        def full(*given):
            raise StoreError("the disk is full") from OSError(28)

        with monkeypatch.context() as patched:
            patched.setattr(table.project.store, "answer", full)
            reply = answer(anna, first)
        assert (reply.status_code, reply.text) == (503, "the disk is full")
        assert "the disk is full" in (table.project.folder / "log.txt").read_text()
        assert answer(anna, first).status_code == 200


def test_undo_brings_the_item_back_and_is_done_once(table):
    with table.browser() as anna:
        first = anna.get("/card").text
        answer(anna, first)
        for _ in range(2):  # the second is the same request sent again
            back = anna.post("/undo", data={"token": "undo-token-1"})
            assert row_of(back.text) == row_of(first)
            assert "undone</span>" in back.text
        assert table.project.store.answers() == {}
        assert answer(anna, back.text, "dog").is_success
        assert table.project.store.answers()[row_of(first)].value == "dog"
        assert anna.post("/undo", data={"token": "undo-token-2"}).is_success
        nothing = anna.post("/undo", data={"token": "undo-token-3"})
        assert "no answer to undo" in nothing.text


@pytest.mark.slow
def test_two_people_never_have_the_same_item(table):
    with table.browser("anna") as anna, table.browser("ben") as ben:
        seen = {"anna": [], "ben": []}
        for _ in range(6):
            cards = {"anna": anna.get("/card").text, "ben": ben.get("/card").text}
            assert row_of(cards["anna"]) != row_of(cards["ben"])
            for name, browser in (("anna", anna), ("ben", ben)):
                seen[name].append(row_of(cards[name]))
                answer(browser, cards[name])
        assert sorted(seen["anna"] + seen["ben"]) == list(range(12))


def test_a_new_name_lets_go_of_the_open_item(table):
    with table.browser("anna") as anna, table.browser("ben") as ben:
        row = row_of(anna.get("/card").text)
        assert anna.post("/who", data={"name": "<i>carl"}).status_code == 204
        assert row_of(ben.get("/card").text) == row
        page = anna.get("/").text
        assert "&lt;i&gt;carl" in page
        assert "<i>carl" not in page
        assert anna.post("/who", data={"name": " "}).status_code == 422


@pytest.mark.slow
@pytest.mark.parametrize("table", [{"data": [f"text {row}" for row in range(4)], "people": 2}], indirect=True)
def test_two_people_for_each_item_and_how_far_they_agree(table):
    with table.browser("anna") as anna, table.browser("ben") as ben:
        for value in ("cat", "cat", "cat", "dog"):
            answer(anna, anna.get("/card").text, value)
        done = anna.get("/card").text
        assert "Preparing" in done or "Waiting for others" in done
        for _ in range(4):
            answer(ben, ben.get("/card").text, "cat")
        assert "People agree in 75 % of 4 pairs" in ben.get("/status").text
        split = ben.get("/gallery", params={"kind": "split"}).text
        assert "1 item" in split
        assert "anna: dog" in split


@pytest.mark.slow
@pytest.mark.parametrize(
    "table", [{"data": [{"a": 1}] * 4, "kind": "table", "classes": (), "task": "regress"}], indirect=True
)
def test_numbers(table):
    with table.browser() as anna:
        first = anna.get("/card").text
        assert 'id="number"' in first
        assert "data-value" not in first
        for bad in ("", "cat", "nan", "inf", "1 2"):
            reply = answer(anna, first, bad)
            assert reply.status_code == 422
            assert "Enter a number" in reply.text
        for unclear, plain in (("1,000", "1000"), ("-250,000", "-250000")):
            reply = answer(anna, first, unclear)
            assert reply.status_code == 422
            assert f"is ambiguous. Write {plain}," in reply.text
        assert answer(anna, first, " 12,5 ").is_success
        assert table.project.store.answers()[row_of(first)].value == "12.5"
        assert anna.post(
            "/change", data={"row": row_of(first), "choice": "-3e2", "token": "token-of-change"}
        ).is_success
        assert table.project.store.answers()[row_of(first)].value == "-300.0"


def test_a_log_that_cannot_be_written_hides_no_message(table, monkeypatch):
    def full(who):
        raise StoreError("the disk is full")

    (table.project.folder / "log.txt").mkdir()
    with table.browser() as anna:
        monkeypatch.setattr(table.project.store, "next_task", full)
        reply = anna.get("/card")
        assert (reply.status_code, reply.text) == (503, "the disk is full")


# --- classes and keys ------------------------------------------------------------------------------------------------


def test_a_class_is_added_and_shown_with_a_key(table):
    with table.browser() as anna:
        text = anna.post("/class", data={"name": ' a "bird" '}).text
        assert 'data-value="a &#34;bird&#34;" data-key="3"' in text
        assert anna.post("/class", data={"name": 'a "bird"'}).is_success  # twice is once
        assert table.project.store.classes() == ["cat", "dog", 'a "bird"']
        for bad in ("", "  ", "x" * 101):
            assert anna.post("/class", data={"name": bad}).status_code == 422


def test_keys_are_distinct_and_leave_the_commands_alone():
    names = [f"class {number}" for number in range(40)]
    keys = [one.key for one in with_keys(names)]
    assert keys[:10] == list("1234567890")
    assert [one.key for one in with_keys([*"0123456789", "other", "s", "B"])] == [*"0123456789", "a", "b", "c"]
    for count in range(40):  # one more class leaves the keys of the others alone
        assert [one.key for one in with_keys(names[:count])] == keys[:count]
    given = [key for key in keys if key]
    assert len(given) == len(set(given)) == len(CLASS_KEYS) == 32
    assert not set("suzn") & set(given)


@pytest.mark.parametrize(
    "table", [{"data": ["x"] * 4, "classes": tuple(f"kind {n}" for n in range(30))}], indirect=True
)
def test_many_classes_get_a_filter(table):
    with table.browser() as anna:
        assert 'id="find"' in anna.get("/card").text


def test_every_strategy_has_a_reason_and_a_test_pick_tells_nothing_of_the_model():
    from labelwise import strategies

    def why(strategy, slice="chosen", **why):
        return reason(Task("", 0, "", 2, slice, 0.0, why, strategy, "", 0.0, False))

    for name in strategies.names():
        assert not why(name).startswith(f"Chosen by {name}")
    assert why("badge") == strategies.Badge.reason
    assert why("badge", words="Hesitates.") == "Hesitates."
    assert "Hesitates" not in why("badge", "test", words="Hesitates.")


# --- what is shown ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "table",
    [
        {"data": [NASTY] * 4, "name": NASTY, "classes": (NASTY, "b")},
        {"data": [{NASTY: NASTY}] * 4, "kind": "table", "name": NASTY, "classes": (NASTY, "b")},
    ],
    indirect=True,
)
def test_markup_inside_the_data_is_text_everywhere(table):
    with table.browser(NASTY[:60]) as anna:
        first = anna.get("/card").text
        answer(anna, first, NASTY)
        table.project.doubted = [Suspect(row_of(first), NASTY, NASTY, 0.9)]
        table.project.state = heartbeat(message=NASTY)
        table.project.excluded = [NASTY]
        pages = [anna.get(path).text for path in ("/", "/card", "/gallery", "/status", "/report", "/neighbours/1")]
        pages.append(anna.get("/gallery", params={"text": NASTY, "label": NASTY, "person": NASTY}).text)
        for page in pages:
            assert "&lt;script&gt;" in page
            assert "<script>alert" not in page
            assert "<b>bold" not in page
            assert "<svg onload" not in page
            assert str(7919 * 7907) not in page  # data is not read as a template
            assert not re.search(r"<[^>]* onmouseover='x'", page.replace("&#39;", ""))


def test_no_page_has_inline_script_or_style(table):
    with table.browser() as anna:
        for path in ("/", "/gallery", "/report"):
            page = anna.get(path).text
            assert not re.search(r"<script(?![^>]*\bsrc=)", page)
            assert not re.search(r"\sstyle=|<style|\son\w+=|javascript:|hx-on", page)


@pytest.mark.parametrize(
    "table", [{"data": [SourceError("row 0 is torn"), "fine", 7, "x"], "kind": "image"}], indirect=True
)
def test_bad_data_is_said_on_the_page_and_in_the_log_and_the_rest_goes_on(table):
    with table.browser() as anna:
        first = anna.get("/").text
        assert "row 0 is torn" in first
        assert re.search(r'data-value="cat"[^>]*disabled', first)
        after = answer(anna, first, "", "skip")
        assert "fine" in after.text
        assert anna.get("/image/1").status_code == 422
        picture = anna.get("/image/2", params={"size": "small"})
        assert picture.headers["content-type"] == "image/png"
        assert "private" in picture.headers["cache-control"]
        log = (table.project.folder / "log.txt").read_text()
        assert log.count("row 0 is torn") == 1
        assert "image of row 1" in log
        assert anna.get("/gallery").status_code == 200


@pytest.mark.slow
def test_without_items_the_page_says_what_it_waits_for(table):
    with table.browser() as anna:
        for _ in range(12):
            last = answer(anna, anna.get("/card").text)
        table.project.state = heartbeat("training", "preparing round 2")
        waiting = anna.get("/card").text
        assert "Preparing the next items" in waiting
        assert "Preparing round 2" in waiting
        assert 'hx-trigger="every 1500ms"' in waiting
        table.project.state = heartbeat("failed", "the disk is full")
        assert "the disk is full" in anna.get("/card").text
        table.project.state = heartbeat("idle", "every row has been picked")
        assert "All done" in anna.get("/card").text
        assert "Read the report" in anna.get("/").text
        assert last.is_success


def test_a_model_that_has_hardly_learnt_is_named_next_to_the_worker_and_in_the_report(table):
    rounds = table.project.store.rounds
    last = replace(rounds()[-1], notes={"warning": "The model trained on 12 labels has hardly learnt <b>."})
    with table.browser() as anna:
        assert "hardly learnt" not in anna.get("/").text + anna.get("/report").text
        table.project.store.rounds = lambda: [*rounds()[:-1], last]
        for page in ("/", "/report"):
            assert (
                '<p class="bad">The model trained on 12 labels has hardly learnt &lt;b&gt;.</p>' in anna.get(page).text
            )


@pytest.mark.slow
def test_an_error_nobody_thought_of_fails_one_request_in_words(table, monkeypatch):
    def torn(row):
        raise ZeroDivisionError("who would have thought")

    with table.browser() as anna:
        with monkeypatch.context() as patched:
            patched.setattr(table.project, "view", torn)
            reply = anna.get("/card")
        assert reply.status_code == 500
        assert "log.txt in the project folder" in reply.text
        assert "who would" not in reply.text
        assert reply.headers["x-frame-options"] == "DENY"
        assert anna.get("/card").status_code == 200
    assert "who would have thought" in (table.project.folder / "log.txt").read_text()


def test_a_broken_meter_costs_the_meter_alone(table, monkeypatch):
    def torn():
        raise StoreError("meter.json cannot be read")

    monkeypatch.setattr(table.project, "meter", torn)
    with table.browser() as anna:
        assert anna.get("/").status_code == 200
        assert "Not measured yet" in anna.get("/status").text
    assert "meter.json cannot be read" in (table.project.folder / "log.txt").read_text()


# --- the gallery -----------------------------------------------------------------------------------------------------


def rows_in(text):
    return [int(row) for row in re.findall(r'id="row-(\d+)"', text)]


@pytest.mark.slow
def test_the_gallery_shows_doubted_labels_first_and_can_be_filtered(table):
    with table.browser("anna") as anna, table.browser("ben") as ben:
        for browser, value in ((anna, "cat"), (anna, "dog"), (ben, "cat"), (anna, "cat"), (ben, "dog")):
            answer(browser, browser.get("/card").text, value)
        answer(ben, ben.get("/card").text, "", "unsure")
        given = table.project.store.answers()
        doubted = [row for row, one in given.items() if one.value == "cat"]
        table.project.doubted = [Suspect(doubted[1], "cat", "dog", 0.97), Suspect(doubted[0], "cat", "dog", 0.80)]
        table.project.doubted.append(Suspect(min(set(given) - set(doubted)), "cat", "dog", 0.99))  # changed since
        page = anna.get("/gallery").text
        assert rows_in(page)[:2] == [doubted[1], doubted[0]]
        assert set(rows_in(page)) == set(given)
        assert "2 with a label that may be wrong" in page
        assert page.count("The model predicts") == 2
        for wanted, expected in (
            ({"label": "cat"}, set(doubted)),
            ({"kind": "unsure"}, {row for row, one in given.items() if one.kind == "unsure"}),
            ({"person": "ben"}, {event.row for event in table.project.store.events() if event.who == "ben"}),
            ({"slice": "test"}, {row for row in given if row % 5 == 4}),
            ({"text": "TEXT 3"}, {3}),
            ({"text": "nothing like it"}, set()),
        ):
            assert set(rows_in(anna.get("/gallery", params=wanted).text)) == expected, wanted
        part = anna.get("/gallery", params={"label": "cat"}, headers={"hx-target": "found"}).text
        assert "<html" not in part


@pytest.mark.slow
def test_a_label_is_changed_from_the_gallery_once(table):
    with table.browser() as anna:
        first = anna.get("/card").text
        answer(anna, first)
        change = {"row": row_of(first), "choice": "label:dog", "token": "token-of-change"}
        for _ in range(2):
            assert '<option value="label:dog" selected>' in anna.post("/change", data=change).text
        assert [event.value for event in table.project.store.events()][-2:] == ["cat", "dog"]
        assert anna.post("/change", data={**change, "choice": "unsure", "token": "another-token"}).is_success
        assert table.project.store.answers()[row_of(first)].kind == "unsure"
        for bad in ({"choice": "label:bird"}, {"choice": ""}, {"row": 999}, {"token": "x"}):
            assert anna.post("/change", data={**change, "token": "third-token", **bad}).status_code == 422


@pytest.mark.parametrize("table", [{"data": [f"text {row}" for row in range(12)], "people": 2}], indirect=True)
def test_the_gallery_shows_notes_and_who_was_unsure(table):
    with table.browser("anna") as anna, table.browser("ben") as ben:
        first = anna.get("/card").text
        answer(anna, first, "", "unsure", note="too dark <b>here</b>")
        row = row_of(first)
        page = anna.get("/gallery").text
        assert "anna: unsure" in page
        assert "Note by anna: too dark &lt;b&gt;here&lt;/b&gt;" in page
        table.project.store.change("ben", row, "label", "dog", "token-of-ben", "a tail")
        page = ben.get("/gallery").text
        assert "anna: unsure, ben: dog" in page
        assert "Note by ben: a tail" in page
        # A change without a note leaves the notes; an answer that is taken back takes its note with it.
        changed = anna.post("/change", data={"row": row, "choice": "label:cat", "token": "token-of-change"}).text
        assert "anna: cat, ben: dog" in changed
        assert "Note by anna: too dark" in changed
        ben.post("/undo", data={"token": "token-of-undo"})
        page = anna.get("/gallery").text
        assert "a tail" not in page
        assert "ben" not in re.sub(r"<select.*?</select>", "", page, flags=re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("table", [{"data": [f"text {row}" for row in range(60)]}], indirect=True)
def test_the_gallery_has_pages(table):
    table.project.store.import_labels([(row, "cat") for row in range(60)], "file")
    with table.browser() as anna:
        first, second = (rows_in(anna.get("/gallery", params={"page": page}).text) for page in (1, 2))
        assert (len(first), len(second)) == (48, 12)
        assert not set(first) & set(second)
        assert rows_in(anna.get("/gallery", params={"page": 999}).text) == second
        assert anna.get("/gallery", params={"page": 0}).status_code == 422


def test_better_features_are_a_hint_with_the_commands(table):
    with table.browser() as anna:
        assert "data-once" not in anna.get("/").text
        table.project.better = ["Better <b>.", "pip install it", "labelwise resume p --encoder auto"]
        text = anna.get("/").text
        assert "Better &lt;b&gt;." in text
        assert "pip install it\nlabelwise resume p --encoder auto</pre>" in text


# --- suggestions -----------------------------------------------------------------------------------------------------


def test_a_suggestion_is_on_the_card_of_a_chosen_item_and_never_on_that_of_a_test_item(table):
    source = Measured("class names (minilm)", 20, 18, 0.7, 0.97, 0.4)
    rows = {row: Suggestion("dog", 0.834) for row in range(12)}
    table.project.suggested = Suggestions(source.name, (source,), rows)
    with table.browser() as anna:
        for _ in range(5):
            text = anna.get("/card").text
            is_test = table.project.store.picks(1)[row_of(text)].slice == "test"
            assert ('data-suggested="dog"' in text and "(83 %)" in text) == (not is_test)
            answer(anna, text)
        assert "right on 18 of 20 random test items (70 to 97 %)" in anna.get("/status").text


def test_suggestions_that_cannot_be_read_do_not_keep_people_from_labelling(table, monkeypatch):
    def broken():
        raise StoreError("suggestions.json was changed")

    monkeypatch.setattr(table.project, "suggestions", broken)
    with table.browser() as anna:
        assert answer(anna, anna.get("/card").text).status_code == 200
    assert "suggestions.json was changed" in (table.project.folder / "log.txt").read_text()
