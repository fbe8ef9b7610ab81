"""Suggestions: from class names, from an endpoint, and from the model of a project; measured before they are shown."""

from __future__ import annotations

import http.server
import json
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fake_project import work
from labelwise.cli.label import set_suggestions
from labelwise.errors import ArgumentError, StoreError
from labelwise.project import Project, Settings
from labelwise.project.suggest.endpoint import Endpoint
from labelwise.project.suggest.settings import SuggestSettings, read_descriptions, read_suggest_settings
from labelwise.project.suggest.suggestions import Guesses, Suggestions, choose, measure, read_suggestions
from labelwise.project.suggest.update import Updater

WORDS = ("cat", "dog", "fish")
CODE = """
WORDS = ("cat", "dog", "fish")

def words(texts):
    return [[float(word in text) for word in WORDS] + [len(text) / 1000] for text in texts]
"""


def quiet(text: str, done: int, total: int) -> None:
    pass


class StandIn(http.server.BaseHTTPRequestHandler):
    """An OpenAI-compatible endpoint that knows what to answer."""

    heard: ClassVar[list[tuple[str, Any, Any]]] = []
    status = 200

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.heard.append((self.path, body, self.headers.get("Authorization")))
        text = str(body["messages"][1]["content"])
        said = next((f"**{word.title()}**." for word in WORDS if word in text), "I cannot tell")
        reply = json.dumps({"choices": [{"message": {"content": said}}]}).encode()
        self.send_response(self.status)
        if self.status == 302:
            self.send_header("Location", "http://127.0.0.1:9/elsewhere")
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    """The address of a stand-in endpoint."""
    StandIn.heard, StandIn.status = [], 200
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """Sixty texts about three animals, with an encoder that knows their names."""
    texts = [f"{WORDS[row % 3]} number {row}" for row in range(60)]
    (tmp_path / "texts.csv").write_text("body\n" + "\n".join(texts) + "\n")
    (tmp_path / "my_word_encoder.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    settings = Settings(
        name="texts", kind="text", source="../texts.csv", text="body", encoder="my_word_encoder:words", classes=WORDS,
        k=8, recipe="typiclust+margin",
    )  # fmt: skip
    with closing(Project.create(tmp_path / "made", settings)) as made:
        yield made
    sys.modules.pop("my_word_encoder", None)


def truth_of(project: Project, row: int) -> str:
    return str(project.view(row).text).split()[0]


def answer_all(project: Project, wrong: bool = False) -> None:
    while (task := project.store.next_task("anna")) is not None:
        said = truth_of(project, task.row)
        project.store.answer(task.token, "anna", "label", "cat" if wrong else said, 1.0)


def settle(updater: Updater) -> None:
    for _ in range(40):
        if not updater.step(quiet):
            return
    raise AssertionError("there is always something to do")


# --- measured before trusted -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("right", "rows", "trusted"),
    [(19, 19, False), (20, 20, True), (13, 20, True), (10, 20, False)],
)
def test_a_source_is_trusted_when_it_was_measured_and_is_clearly_better_than_the_commonest_class(
    right: int, rows: int, trusted: bool
) -> None:
    truth = {row: WORDS[row % 3] for row in range(rows)}
    guesses = {row: name if row < right else None for row, name in truth.items()}
    found = measure("names", guesses, truth)
    assert (found.rows, found.right, found.trusted) == (rows, right, trusted)
    assert ("not used" in found.words) == (rows >= 20 and not trusted)
    chosen = choose([Guesses("names", guesses, {100: "cat", 101: None})], truth)
    assert (chosen.by, sorted(chosen.rows)) == (("names", [100]) if trusted else ("", []))


def test_the_best_trusted_source_suggests_and_unlikely_classes_are_left_to_people(tmp_path: Path) -> None:
    truth = {row: WORDS[row % 3] for row in range(30)}
    poor = Guesses("poor", {row: name if row < 20 else "x" for row, name in truth.items()}, {100: "dog"}, {100: 0.9})
    good = Guesses("good", truth, {100: "cat", 101: "fish"}, {100: 0.9, 101: 0.45})
    found = choose([poor, good], truth, "a note")
    assert (found.by, {row: one.value for row, one in found.rows.items()}) == ("good", {100: "cat"})
    found.write(tmp_path)
    assert read_suggestions(tmp_path) == found
    assert found.words == ["Suggestions by good: right on 30 of 30 random test items (89 to 100 %).", "a note"]
    (tmp_path / "suggestions.json").write_text("{}")
    with pytest.raises(StoreError, match="remove it"):
        read_suggestions(tmp_path)


def test_a_class_that_nearly_every_row_has_is_not_enough_to_be_trusted() -> None:
    truth = {row: "cat" if row else "dog" for row in range(40)}
    assert not measure("always cat", dict.fromkeys(truth, "cat"), truth).trusted


# --- class names -----------------------------------------------------------------------------------------------------


def test_class_names_are_measured_on_random_items_and_then_suggest(project: Project) -> None:
    set_suggestions(project, "auto", None, None)
    updater = Updater(project)
    work(project)
    first = project.store.picks(1)
    assert [pick.slice for pick in first] == ["test"] * 20
    assert updater.step(quiet)
    assert project.suggestions().words == [
        "Suggestions by class names (my_word_encoder:words): measured on 0 of 20 random test items so far."
    ]
    answer_all(project)
    work(project)
    assert {pick.slice for pick in project.store.picks(2)} == {"chosen"}  # test items were asked in advance
    assert updater.step(quiet)
    found = project.suggestions()
    assert found.by == "class names (my_word_encoder:words)"
    assert (found.sources[0].rows, found.sources[0].right) == (20, 20)
    assert {row: one.value for row, one in found.rows.items()} == {
        pick.row: truth_of(project, pick.row) for pick in project.store.picks(2)
    }
    assert not updater.step(quiet)  # nothing has changed
    answer_all(project)
    work(project)
    updater.step(quiet)
    assert {one.name for one in project.suggestions().sources} > {found.by}  # the model of the project is measured too


def test_suggestions_that_are_wrong_are_never_shown(project: Project) -> None:
    set_suggestions(project, "auto", None, None)
    updater = Updater(project)
    work(project)
    answer_all(project, wrong=True)
    work(project)
    updater.step(quiet)
    found = project.suggestions()
    assert (found.by, dict(found.rows)) == ("", {})
    assert "are not used" in found.words[0]


def test_a_class_that_is_added_needs_the_encoder_again_and_code_is_named_by_the_user(project: Project) -> None:
    set_suggestions(project, "auto", None, None)
    updater = Updater(project)
    work(project)
    updater.step(quiet)
    project.store.add_class("bird", "anna")
    updater.step(quiet)
    assert "the encoder is code" in project.suggestions().trouble
    set_suggestions(project, "auto", None, None)
    project.store.add_class("mouse", "anna")
    project.store.add_class("horse", "anna")
    assert read_suggest_settings(project.folder) == SuggestSettings("auto")


def test_off_takes_suggestions_away_and_the_model_alone_is_the_default(project: Project) -> None:
    assert read_suggest_settings(project.folder) == SuggestSettings("model")
    updater = Updater(project)
    for _ in range(5):
        work(project)
        answer_all(project)
    work(project)
    updater.step(quiet)
    assert all(one.name.startswith("the model of") for one in project.suggestions().sources)
    set_suggestions(project, "off", None, None)
    updater.step(quiet)
    assert project.suggestions() == Suggestions()


def test_descriptions_are_read_from_a_file_and_must_be_of_classes(project: Project, tmp_path: Path) -> None:
    path = tmp_path / "classes.yaml"
    path.write_text("cat: an animal that\n  purrs\n")
    set_suggestions(project, "auto", None, path)
    assert read_suggest_settings(project.folder).descriptions == {"cat": "an animal that purrs"}
    path.write_text("bird: it sings\n")
    with pytest.raises(ArgumentError, match="no class 'bird'"):
        set_suggestions(project, "auto", None, path)
    path.write_text("- cat\n")
    with pytest.raises(ArgumentError, match="expected lines such as"):
        read_descriptions(path)


def test_an_encoder_that_cannot_read_names_says_so(tmp_path: Path) -> None:
    from labelwise.project.data.plain_encoders import Pixels
    from labelwise.project.suggest.class_names import reader_of

    with pytest.raises(ArgumentError, match=r"cannot read class names.*CLIP or SigLIP"):
        reader_of(Pixels(), "image")


@pytest.mark.parametrize(
    ("given", "says"),
    [(("http://localhost:1/v1", ""), "--suggest-model"), (("auto", "llama"), "a model at an address")],
)
def test_a_model_belongs_to_an_address(given: tuple[str, str], says: str) -> None:
    with pytest.raises(ArgumentError, match=says):
        SuggestSettings(*given)


# --- an endpoint -----------------------------------------------------------------------------------------------------


def test_an_endpoint_suggests_after_it_was_measured(
    project: Project, endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LABELWISE_SUGGEST_KEY", "secret-key")
    set_suggestions(project, endpoint, "animals-1", None)
    updater = Updater(project)
    work(project)
    settle(updater)
    assert len(StandIn.heard) == 20  # each test item once
    path, body, key = StandIn.heard[0]
    assert (path, body["model"], key) == ("/v1/chat/completions", "animals-1", "Bearer secret-key")
    assert "- cat\n- dog\n- fish" in body["messages"][0]["content"]
    assert project.suggestions().by == ""
    answer_all(project)
    work(project)
    settle(updater)
    found = project.suggestions()
    assert found.by.startswith("animals-1 at 127.0.0.1:")
    assert {row: one.value for row, one in found.rows.items()} == {
        pick.row: truth_of(project, pick.row) for pick in project.store.picks(2)
    }
    assert len(StandIn.heard) == 28
    settle(Updater(project))  # a new worker asks nothing again
    assert len(StandIn.heard) == 28
    assert not any("secret-key" in path.read_text(errors="replace") for path in project.folder.glob("*.json"))


def test_an_endpoint_that_fails_is_named_on_the_page_and_not_asked_all_the_time(
    project: Project, endpoint: str
) -> None:
    StandIn.status = 500
    set_suggestions(project, endpoint, "animals-1", None)
    updater = Updater(project)
    work(project)
    settle(updater)
    assert len(StandIn.heard) == 1
    assert "refused with 500" in project.suggestions().words[-1]


def test_no_row_follows_a_redirect(endpoint: str) -> None:
    StandIn.status = 302
    with pytest.raises(StoreError, match="refused with 302"):
        Endpoint(endpoint, "m").guess("a cat", WORDS, {})


def test_an_image_is_sent_as_data(endpoint: str) -> None:
    assert Endpoint(endpoint, "m").guess(b"\x89PNG....", WORDS, {"cat": "it purrs"}) is None
    body = StandIn.heard[0][1]
    assert body["messages"][1]["content"][0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert "- cat: it purrs" in body["messages"][0]["content"]
