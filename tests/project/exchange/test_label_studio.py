"""Label Studio: push and pull against exchanges recorded from a real one (benchmarks/label_studio.py --record)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import label_studio as script  # it recorded the exchanges, and makes the same projects again
from labelwise.cli import app
from labelwise.errors import ArgumentError, LabelError, StoreError
from labelwise.project import Project
from labelwise.project.exchange.changes import plan
from labelwise.project.exchange.read_labels import read_labels
from labelwise.project.exchange.studio_client import Client, RefusedError, checked_url, is_local
from labelwise.project.exchange.studio_sync import FILE, control_in, pull, push, read_link

RECORDED = Path(__file__).parents[2] / "data" / "label_studio"
PERSONAL = "aaaa.bbbb.cccc"
Reply = tuple[int, Any]


@dataclass
class Fake:
    """Answers requests by a function, and remembers what was asked and with which authorization."""

    answer: Callable[[str, str, Any, str | None], Reply]
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextmanager
def serving(fake: Fake) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            size = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            by = self.headers.get("Authorization")
            fake.asked.append((self.command, self.path, by))
            status, answer = fake.answer(self.command, self.path, body, by)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            if status == 302:
                self.send_header("Location", answer)
                content = b""
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_PATCH = do_GET

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def replaying(name: str) -> Fake:
    """Says what the real one said, one after the other; anything else that is asked, or sent, is wrong."""
    said = iter(json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8")))

    def answer(method: str, path: str, body: Any, by: str | None) -> Reply:
        wanted = next(said, None)
        if wanted is None:
            return 599, {"detail": f"nothing more was recorded than before {method} {path}"}
        sent = {"refresh": "PERSONAL"} if path == "/api/token/refresh/" else body
        found = {"method": method, "path": path, "body": sent, "authorized": by is not None}
        differ = {key: (value, wanted[key]) for key, value in found.items() if value != wanted[key]}
        if differ:
            return 599, {"detail": f"not what was recorded: {differ}"}
        assert path == "/api/token/refresh/" or by == "Bearer ACCESS"
        return wanted["status"], wanted["answer"]

    return Fake(answer)


def test_push_and_pull_as_recorded(tmp_path: Path) -> None:
    fake = replaying("texts")
    with serving(fake) as url, closing(script.texts(tmp_path / "texts")) as project:
        script.with_key(project, url, "texts")
        client = Client(url, PERSONAL)
        first = push(project, client)
        assert (first.created, first.existing, first.round) == (6, 0, 1)
        again = push(project, client)
        assert (again.created, again.existing) == (0, 6)
        found = pull(project, client)
        assert (found.labels, found.skips, found.known, found.open, found.foreign) == (3, 1, 0, 2, 0)
        assert found.people == {"ann@example.org"}
        before = project.store.events()
        found = pull(project, client)
        assert (found.labels, found.skips, found.known, found.open) == (0, 0, 4, 2)
        assert project.store.events() == before
        found = pull(project, client)
        assert (found.labels, found.known) == (1, 3)
        answers = project.store.answers()
        assert [answers[row].value for row in (0, 1, 2)] == ["good", "bad", "bad"]
        assert answers[3].kind == "skip"
        told = [event for event in project.store.events() if event.kind == "label"]
        assert [event.seconds for event in told] == [3.5, 4.5, 5.5, 9.0]
        assert {event.round for event in told} == {1}
        assert project.store.progress().median_seconds == 5.0
        assert push(project, client).created == 0
    recorded = json.loads((RECORDED / "texts.json").read_text())
    assert len(fake.asked) == len(recorded)  # every recorded exchange was used


def test_test_rows_carry_no_prediction() -> None:
    recorded = json.loads((RECORDED / "texts.json").read_text())
    (sent,) = (one["body"] for one in recorded if one["path"].endswith("/import"))
    assert len(sent) == 6
    for task in sent:
        assert bool(task["predictions"]) == (task["data"]["al_why"] == "The model hesitates.")
    assert {task["data"]["al_why"] for task in sent} == {"The model hesitates.", "Drawn at random."}


def test_numbers_as_recorded(tmp_path: Path) -> None:
    with serving(replaying("numbers")) as url, closing(script.numbers(tmp_path / "numbers")) as project:
        script.with_key(project, url, "numbers")
        client = Client(url, PERSONAL)
        assert push(project, client).created == 4
        found = pull(project, client)
        assert (found.labels, found.open) == (1, 3)
        assert project.store.answers()[1].value == "99.5"


def test_several_choices_as_recorded(tmp_path: Path) -> None:
    with serving(replaying("sets")) as url, closing(script.sets(tmp_path / "sets")) as project:
        script.with_key(project, url, "sets")
        client = Client(url, PERSONAL)
        assert push(project, client).created == 4
        found = pull(project, client)
        assert (found.labels, found.open) == (2, 2)
        rows = [pick.row for pick in project.store.picks(1)]
        assert [project.store.answers()[row].value for row in rows[:2]] == ["fine|sad", "(none)"]


@pytest.mark.parametrize("name", ["export_json", "export_json_min"])
def test_its_own_exports_are_imported(tmp_path: Path, name: str) -> None:
    with closing(script.texts(tmp_path / "texts")) as project:
        found = read_labels(RECORDED / f"{name}.json", kind="text", text="body")
        changes = plan(project, found)
        assert {one.row: one.value for one in changes.new} == {0: "good", 1: "bad", 2: "bad"}
        assert not changes.unknown_rows


@pytest.mark.parametrize(
    ("case", "token", "words"),
    [
        ("wrong personal token", PERSONAL, "does not accept the token"),
        ("legacy token", "0" * 40, "off by default"),
        ("no such project", PERSONAL, "no such project"),
    ],
)
def test_refusals_as_recorded(case: str, token: str, words: str) -> None:
    every = json.loads((RECORDED / "refusals.json").read_text())
    said = {(one["method"], one["path"]): (one["status"], one["answer"]) for one in every if one["case"] == case}
    with serving(Fake(lambda method, path, body, by: said[method, path])) as url:
        with pytest.raises(StoreError, match=words) as caught:
            Client(url, token).get("/api/projects/987654/" if case == "no such project" else "/api/projects/")
        assert token not in str(caught.value)


# --- what the real one was not asked to do ---------------------------------------------------------------------------


def test_an_access_token_that_ran_out_is_renewed_once() -> None:
    given = iter(["first", "second", "third"])

    def answer(method: str, path: str, body: Any, by: str | None) -> Reply:
        if path == "/api/token/refresh/":
            assert body == {"refresh": PERSONAL}
            return 200, {"access": next(given)}
        return (200, {"fine": True}) if by == "Bearer second" else (401, {"detail": "expired"})

    fake = Fake(answer)
    with serving(fake) as url:
        client = Client(url, PERSONAL)
        assert client.get("/api/x") == {"fine": True}
        assert len(fake.asked) == 4
        client._access = "gone"
        with pytest.raises(RefusedError, match="does not accept the token"):
            client.get("/api/x")


def test_a_token_is_not_sent_after_a_redirect() -> None:
    other = Fake(lambda method, path, body, by: (200, {}))
    with serving(other) as elsewhere:
        away = Fake(lambda method, path, body, by: (302, f"{elsewhere}/api/x"))
        with serving(away) as url, pytest.raises(StoreError, match="redirects to"):
            Client(url, "0" * 40).get("/api/x")
    assert other.asked == []
    assert away.asked[0][2] == "Token " + "0" * 40


@pytest.mark.parametrize(
    ("reply", "words"),
    [
        ((200, b"<html>hello</html>"), "did not answer with JSON"),
        ((403, {"detail": "no"}), "not allowed to do this"),
        (
            (400, {"validation_errors": {"url": "URL resolves to a local IP address, SSRF protection"}}),
            "inside its own",
        ),
        ((500, b"<h1>oops</h1>"), "answered 500"),
    ],
)
def test_other_answers_are_said_plainly(reply: Reply, words: str) -> None:
    with serving(Fake(lambda method, path, body, by: reply)) as url, pytest.raises(StoreError, match=words):
        Client(url, "0" * 40).get("/api/x")


def test_nobody_there() -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        Client("http://127.0.0.1:9", "0" * 40).get("/api/x")


def test_addresses_and_tokens_are_checked() -> None:
    assert checked_url("http://localhost:8080/") == "http://localhost:8080"
    for url in ("file:///etc/passwd", "localhost:8080", "http://a:b@host", "http://host/?x=1", "http://"):
        with pytest.raises(ArgumentError):
            checked_url(url)
    with pytest.raises(ArgumentError, match="contains a space"):
        Client("http://localhost", "a b")
    assert PERSONAL not in repr(Client("http://localhost", PERSONAL))
    assert is_local("http://127.0.0.1:1")
    assert is_local("http://localhost")
    assert not is_local("http://label.example.org")


def test_a_broken_off_push_finds_its_project(tmp_path: Path) -> None:
    """The project was made, and then the connection broke before its number came back."""
    made: list[Any] = []
    theirs = {"id": 7, "parsed_label_config": _config(["good", "bad"])}

    def answer(method: str, path: str, body: Any, by: str | None) -> Reply:
        if path.startswith("/api/projects/?"):
            return 200, {"results": [{"id": 7, "description": one["description"]} for one in made], "next": None}
        if path == "/api/projects/":
            made.append(body)
            return 502, {"detail": "gone"}
        if path.startswith("/api/tasks/"):
            return 200, {"total": 0, "tasks": []}
        return 200, theirs

    with serving(Fake(answer)) as url, closing(script.texts(tmp_path / "texts")) as project:
        client = Client(url, "0" * 40)
        with pytest.raises(StoreError, match="502"):
            push(project, client)
        assert push(project, client).project == 7
        assert len(made) == 1
        place = read_link(project.folder)
        assert place is not None
        assert place.key in made[0]["description"]
        assert "0" * 40 not in (project.folder / FILE).read_text()
        with pytest.raises(StoreError, match="linked to"):
            push(project, Client("http://127.0.0.1:1", "0" * 40))
        with pytest.raises(StoreError, match="Pull from there"):
            pull(project, client, project_id=8)


def test_the_wrong_project_is_noticed(tmp_path: Path) -> None:
    with closing(script.texts(tmp_path / "texts")) as project:
        with pytest.raises(LabelError, match="no choice 'bad'"):
            control_in({"id": 1, "title": "x", "parsed_label_config": _config(["good"])}, project, ("good", "bad"))
        with pytest.raises(LabelError, match="no <Choices>"):
            control_in({"id": 1, "title": "x", "parsed_label_config": {}}, project, ("good",))
        with pytest.raises(StoreError, match="Push first"):
            pull(project, Client("http://127.0.0.1:1", "0" * 40))


def test_foreign_tasks_and_classes_are_left_alone(tmp_path: Path) -> None:
    choice = lambda value: [{"from_name": "label", "value": {"choices": value}}]  # noqa: E731
    key = "000000000000000a"

    def task(number: int, row: int, value: list[str], key: str = key) -> dict[str, Any]:
        one = {"id": number, "completed_by": 5, "updated_at": "2026", "result": choice(value), "was_cancelled": False}
        return {"id": number, "data": {"al_id": row, "al_key": key}, "annotations": [one]}

    tasks = [task(1, 0, ["good"], "other"), task(2, 1, ["odd"]), task(3, 2, ["good", "bad"]), task(4, 999, ["good"])]

    def answer(method: str, path: str, body: Any, by: str | None) -> Reply:
        if path.startswith("/api/tasks/"):
            return 200, {"total": 4, "tasks": tasks}
        if path == "/api/users/":
            return 200, []
        return 200, {"id": 3, "parsed_label_config": _config(["good", "bad", "odd"])}

    with serving(Fake(answer)) as url, closing(script.texts(tmp_path / "texts")) as project:
        (project.folder / FILE).write_text(json.dumps({"url": url, "key": key, "project": 3}))
        found = pull(project, Client(url, "0" * 40))
        assert (found.labels, found.foreign, found.unknown_classes) == (0, 2, {"odd": 1})
        assert len(found.unusable) == 1
        assert project.store.answers() == {}
        found = pull(project, Client(url, "0" * 40), add_classes=True)
        assert found.labels == 1
        assert project.store.answers()[1].votes == {"label-studio:5": "odd"}


def test_the_command_needs_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    run = CliRunner().invoke(
        app, ["label-studio", "push", str(tmp_path), "--url", "http://localhost:1", "--token-env", "NO_SUCH_TOKEN"]
    )
    assert isinstance(run.exception, ArgumentError)
    assert "NO_SUCH_TOKEN" in str(run.exception)


def test_the_command_pushes_and_pulls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project: Project = script.numbers(tmp_path / "numbers")
    project.close()
    monkeypatch.setenv("STUDIO", PERSONAL)
    recorded = json.loads((RECORDED / "numbers.json").read_text())
    at = next(place for place, one in enumerate(recorded) if one["path"].endswith("/import")) + 1
    fake = replaying("numbers")
    plain = fake.answer

    def answer(method: str, path: str, body: Any, by: str | None) -> Reply:
        if path == "/api/token/refresh/" and len(fake.asked) > at:  # each command asks for a token of its own
            return 200, {"access": "ACCESS"}
        return plain(method, path, body, by)

    fake.answer = answer
    with serving(fake) as url:
        script.with_key(project, url, "numbers")
        options = [str(project.folder), "--url", url, "--token-env", "STUDIO"]
        run = CliRunner().invoke(app, ["label-studio", "push", *options])
        assert run.exit_code == 0, run.output
        assert "4 tasks created" in run.output
        run = CliRunner().invoke(app, ["label-studio", "pull", *options])
        assert run.exit_code == 0, run.output
        assert "1 labels and 0 skips" in run.output
        assert "3 tasks have no annotation yet" in run.output


def test_what_people_have_answered_is_not_pushed(tmp_path: Path) -> None:
    """With two people for each row, one answer and a skip leave it open."""
    sent: list[Any] = []

    def answer(method: str, path: str, body: Any, by: str | None) -> Reply:
        if path == "/api/projects/7/import":
            sent.extend(task["data"] for task in body)
            return 201, {}
        if path.startswith("/api/tasks/"):
            return 200, {"total": 0, "tasks": []}
        return 200, {"id": 7, "parsed_label_config": _config(["light", "dark"])}

    with serving(Fake(answer)) as url, closing(script.images(tmp_path / "images")) as project:
        for who in ("ann", "bob"):
            project.store.change(who, 0, "label", "light", f"{who}0")
        project.store.change("ann", 1, "label", "light", "ann1")
        project.store.change("bob", 1, "skip", None, "bob1")
        made = push(project, Client(url, "0" * 40), project_id=7)
        assert (made.created, made.answered) == (2, 1)
        assert [one["al_id"] for one in sent] == [1, 2]
        assert all(one["text"].startswith("data:image/") for one in sent)  # the field that their configuration names
        with pytest.raises(ArgumentError, match="--round 5"):
            push(project, Client(url, "0" * 40), round=5)


def _config(labels: list[str]) -> dict[str, Any]:
    return {"label": {"type": "Choices", "to_name": ["item"], "inputs": [{"value": "text"}], "labels": labels}}
