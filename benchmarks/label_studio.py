"""Push to, pull from and be the backend of a real Label Studio, and record what was said for the tests.

    python -m venv .peers-label-studio && .peers-label-studio/bin/pip install label-studio
    python benchmarks/label_studio.py --record tests/data/label_studio

Label Studio needs an environment of its own (it holds numpy back). One is started on a free port, with its data in a
temporary folder, which takes minutes. Every step is checked, and a failed check ends the script. What is recorded holds
no token.
"""

from __future__ import annotations

import argparse
import http.cookiejar
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import LabelwiseError
from labelwise.project import Project, Settings
from labelwise.project.exchange.changes import plan
from labelwise.project.exchange.export import export
from labelwise.project.exchange.read_labels import read_labels
from labelwise.project.exchange.studio_backend import StudioBackend
from labelwise.project.exchange.studio_client import Client, RefusedError
from labelwise.project.exchange.studio_json import config
from labelwise.project.exchange.studio_sync import FILE, pull, push, read_link
from labelwise.project.loop.rounds import make_round
from labelwise.project.loop.stored_model import Model, round_folder, write_model
from labelwise.project.store import Pick, Round
from labelwise.server.connections import Limits
from labelwise.server.label_studio import backend_auth, make_backend_app
from labelwise.server.serve import Server, configured, listen

ROOT = Path(__file__).parents[1]
PEER = ROOT / ".peers-label-studio" / "bin" / "label-studio"
TOKEN = secrets.token_hex(16)
PERSON = "ann@example.org"
MORE = ("lame", "glad", "tame", "sour")
WORDS = ("fine", "awful", "lovely", "dull", "bright", "poor", "warm", "cold", "neat", "rough", "kind", "mean")
KEYS = {name: f"{n:016x}" for n, name in enumerate(("texts", "numbers", "images", "sets"), 10)}


@dataclass
class Recorder(Client):
    """A client that notes down what was said."""

    said: list[dict[str, Any]] = field(default_factory=list)

    def _send(self, method: str, path: str, body: Any, authorization: str | None) -> Any:
        shown = {"refresh": "PERSONAL"} if path == "/api/token/refresh/" else body
        one = {"method": method, "path": path, "authorized": authorization is not None, "body": shown, "status": 200}
        self.said.append(one)
        try:
            answer = Client._send(self, method, path, body, authorization)
        except RefusedError as error:
            one |= {"status": error.status, "answer": {"detail": error.detail}}
            raise
        one["answer"] = {"access": "ACCESS"} if path == "/api/token/refresh/" else answer
        return answer


# --- projects that are the same everywhere, so that what was recorded can be replayed --------------------------------


def texts(folder: Path) -> Project:
    """Twelve texts in two classes, and a round of six picks: four with a prediction and two test rows without."""
    folder.mkdir(parents=True)
    (folder / "words.csv").write_text("body\n" + "".join(f"it was {word}\n" for word in WORDS))
    settings = Settings(
        name="words", kind="text", source="../words.csv", text="body", encoder="words", classes=("good", "bad")
    )
    project = Project.create(folder / "project", settings)
    tests = [row for row in project.reserve.tolist() if row in range(6)][:2]
    picks = []
    for row in range(6):
        probs = {"good": 0.75, "bad": 0.25} if row % 2 == 0 else {"bad": 0.6, "good": 0.4}
        why = {"words": "Drawn at random."} if row in tests else {"words": "The model hesitates.", "probs": probs}
        picks.append(Pick(row, "test" if row in tests else "chosen", 0.5, why))
    project.store.add_round(Round(1, "margin", "linear/12345678", 0, 0, {}), picks)
    return project


def numbers(folder: Path) -> Project:
    """Eight rows of a table with numbers as labels, and a round of four picks."""
    folder.mkdir(parents=True)
    (folder / "houses.csv").write_text("size,rooms\n" + "".join(f"{40 + 10 * row},{1 + row % 4}\n" for row in range(8)))
    settings = Settings(
        name="houses", kind="table", source="../houses.csv", columns=("size", "rooms"), task="regress",
        recipe="typiclust+kcenter",
    )  # fmt: skip
    project = Project.create(folder / "project", settings)
    why = {"words": "The model predicts 120.", "predicted": 120.5}
    picks = [Pick(row, "chosen", 1.0, why) for row in range(4)]
    project.store.add_round(Round(1, "kcenter", "linear/12345678", 0, 0, {}), picks)
    return project


def images(folder: Path) -> Project:
    """Six small pictures, and a round of three."""
    from PIL import Image

    (folder / "photos").mkdir(parents=True)
    for row in range(6):
        Image.new("RGB", (32, 24), (40 * row, 90, 200 - 30 * row)).save(folder / "photos" / f"photo {row}.png")
    settings = Settings(
        name="photos", kind="image", source="../photos", encoder="pixels", classes=("light", "dark"), people=2
    )
    project = Project.create(folder / "project", settings)
    picks = [Pick(row, "chosen", 1.0, {"words": "Typical.", "probs": {"light": 0.9, "dark": 0.1}}) for row in range(3)]
    project.store.add_round(Round(1, "typiclust", "linear/12345678", 0, 0, {}), picks)
    return project


def backend(folder: Path) -> Project:
    """Sixteen texts, four of them labelled, and the first round with a model: four picks."""
    folder.mkdir(parents=True)
    (folder / "words.csv").write_text("body\n" + "".join(f"it was {word}\n" for word in (*WORDS, *MORE)))
    settings = Settings(
        name="words", kind="text", source="../words.csv", text="body", encoder="words", classes=("good", "bad"), k=4,
        recipe="margin",
    )  # fmt: skip
    project = Project.create(folder / "project", settings)
    free = [row for row in range(len(project.pool)) if row not in project.reserve]
    project.store.import_labels([(row, ("good", "bad")[n % 2]) for n, row in enumerate(free[:4])], "ann")
    make_round(project, 1, project.store.last_seq())
    return project


def sets(folder: Path) -> Project:
    """Twelve texts of several classes, and a round of four picks; its model says the same of every row."""
    folder.mkdir(parents=True)
    (folder / "words.csv").write_text("body\n" + "".join(f"it was {word}\n" for word in WORDS))
    classes = ("fine", "lame", "sad")
    settings = Settings(
        name="sets", kind="text", source="../words.csv", text="body", encoder="words", classes=classes, k=4,
        task="multi", recipe="margin",
    )  # fmt: skip
    project = Project.create(folder / "project", settings)
    free = [row for row in range(len(WORDS)) if row not in project.reserve][:4]
    each = {"fine": 0.75, "lame": 0.625, "sad": 0.25}
    picks = [Pick(row, "chosen", 0.5, {"words": "lame, or not (62 %)?", "each": each}) for row in free]
    width = project.pool.inputs(free[:1]).shape[1]
    model = Model(np.zeros((3, width)), np.array([1.5, 0.5, -1.0]), classes, 0)
    write_model(round_folder(project.folder, 1), model)
    project.store.add_round(Round(1, "margin", "linear/12345678", 0, 0, {}), picks)
    return project


# --- the real one ----------------------------------------------------------------------------------------------------


@contextmanager
def started(peer: Path, data: Path, password: str, legacy: str) -> Iterator[str]:
    """A Label Studio of its own, and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    command = [str(peer), "start", "--no-browser", "--internal-host", "127.0.0.1", "--port", str(port)]
    command += ["--username", PERSON, "--password", password, "--user-token", legacy]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env |= {"LABEL_STUDIO_BASE_DATA_DIR": str(data), "COLLECT_ANALYTICS": "false", "SENTRY_DSN": ""}
    env |= {"SSRF_PROTECTION_ENABLED": "false", "ML_BLOCK_LOCAL_IP": "false"}  # the backend is on this machine
    with (data / "log.txt").open("wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=data, start_new_session=True)
        try:
            _wait(server, url, data / "log.txt")
            yield url
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait(timeout=60)


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    began = time.monotonic()
    while time.monotonic() - began < 900:
        if server.poll() is not None:
            sys.exit(f"Label Studio ended with {server.returncode}:\n{log.read_text(errors='replace')[-2000:]}")
        try:
            with urllib.request.urlopen(f"{url}/user/login/", timeout=10):
                print(f"Label Studio answers after {time.monotonic() - began:.0f} s")
                return
        except OSError:
            time.sleep(2)
    sys.exit("Label Studio did not answer within 15 minutes")


def personal_token(url: str, password: str) -> str:
    """Log in as a person does and make a personal access token."""
    jar = http.cookiejar.CookieJar()
    opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(jar))
    page = opener.open(f"{url}/user/login/").read().decode()
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert found, "the login page has changed"
    form = {"email": PERSON, "password": password, "csrfmiddlewaretoken": found[1]}
    opener.open(f"{url}/user/login/", urllib.parse.urlencode(form).encode()).read()
    csrf = next(str(one.value) for one in jar if one.name == "csrftoken")
    headers = {"X-CSRFToken": csrf, "Referer": url, "Content-Type": "application/json"}
    request = urllib.request.Request(f"{url}/api/token/", b"{}", headers, method="POST")
    return str(json.loads(opener.open(request).read())["token"])


def answered(client: Client, task: int, result: list[dict[str, Any]], seconds: float, cancelled: bool = False) -> Any:
    """Annotate a task as the page of Label Studio does."""
    body = {"result": result, "lead_time": seconds, "was_cancelled": cancelled}
    return client.post(f"/api/tasks/{task}/annotations/", body)


# --- the steps -------------------------------------------------------------------------------------------------------


def with_key(project: Project, url: str, name: str) -> None:
    """The key of the tasks is chance; here it is the same in each run."""
    (project.folder / FILE).write_text(json.dumps({"url": url, "key": KEYS[name], "project": None}))


def run_texts(project: Project, client: Client, other: Client) -> None:
    """Push, answer, pull; twice each; then change an answer. `other` does what the annotator does."""
    first = push(project, client)
    assert (first.created, first.existing) == (6, 0), first
    again = push(project, client)
    assert (again.created, again.existing, again.project) == (0, 6, first.project), again
    tasks = {task["data"]["al_id"]: task for task in other.tasks(first.project)}
    assert len(tasks) == 6
    assert all(len(tasks[p.row].get("predictions") or []) == ("probs" in p.why) for p in project.store.picks(1))
    result = lambda value: [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": [value]}}]  # noqa: E731
    for row, value in ((0, "good"), (1, "bad"), (2, "good")):
        made = answered(other, tasks[row]["id"], result(value), 3.5 + row)
    answered(other, tasks[3]["id"], [], 1.0, cancelled=True)
    found = pull(project, client)
    assert (found.labels, found.skips, found.known, found.open) == (3, 1, 0, 2), found
    found = pull(project, client)
    assert (found.labels, found.skips, found.known, found.open) == (0, 0, 4, 2), found
    other.patch(f"/api/annotations/{made['id']}/", {"result": result("bad"), "lead_time": 9.0})
    found = pull(project, client)
    assert (found.labels, found.known) == (1, 3), found
    answers = project.store.answers()
    assert {row: answers[row].value for row in (0, 1, 2)} == {0: "good", 1: "bad", 2: "bad"}
    assert answers[3].kind == "skip"
    assert answers[0].votes == {PERSON: "good"}
    events = [one for one in project.store.events() if one.kind == "label"]
    assert [one.seconds for one in events] == [3.5, 4.5, 5.5, 9.0], events
    assert push(project, client).created == 0


def run_numbers(project: Project, client: Client, other: Client) -> None:
    """The same with numbers, once."""
    made = push(project, client)
    assert made.created == 4
    tasks = {task["data"]["al_id"]: task for task in other.tasks(made.project)}
    result = [{"from_name": "label", "to_name": "item", "type": "number", "value": {"number": 99.5}}]
    answered(other, tasks[1]["id"], result, 2.0)
    found = pull(project, client)
    assert (found.labels, found.open) == (1, 3), found
    assert project.store.answers()[1].value == "99.5"


def run_sets(project: Project, client: Client, other: Client) -> None:
    """The same with several choices for a task, and as the backend of that project."""
    made = push(project, client)
    tasks = {task["data"]["al_id"]: task for task in other.tasks(made.project)}
    rows = sorted(tasks)
    assert made.created == len(rows) == 4
    result = lambda *names: [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": names}}]  # noqa: E731
    answered(other, tasks[rows[0]]["id"], result("sad", "fine"), 3.5)
    answered(other, tasks[rows[1]]["id"], [], 1.5)
    found = pull(project, client)
    assert (found.labels, found.open) == (2, 2), found
    with serving(project, StudioBackend(project)) as address:
        other.post("/api/ml/", {"project": made.project, "url": address, "title": "labelwise"})
        view = other.post("/api/dm/views/", {"project": made.project, "data": {}})
        selected = {"selectedItems": {"all": True, "excluded": []}, "ordering": []}
        path = f"/api/dm/actions?id=retrieve_tasks_predictions&project={made.project}&tabID={view['id']}"
        print("sets, retrieved:", other.post(path, selected))
        shown = [one for task in other.tasks(made.project) for one in task["predictions"]]
        new = [one for one in shown if one["model_version"].startswith("labelwise round 1")]
        assert new
        assert all(one["result"][0]["value"]["choices"] == ["fine", "lame"] for one in new if one["result"]), new
        answered(other, tasks[rows[2]]["id"], result("lame", "fine"), 2.5)
        _until(lambda: rows[2] in project.store.answers())
    answers = project.store.answers()
    assert [answers[row].value for row in rows[:3]] == ["fine|sad", "(none)", "fine|lame"]


def run_images(project: Project, client: Client, folder: Path) -> None:
    """Images inside tasks; our export into Label Studio; its exports into ours."""
    made = push(project, client)
    assert made.created == 3
    assert made.faults == ()
    project.store.import_labels([(0, "light"), (1, "dark")], "ann")
    export(project, folder / "ours.json", "label-studio", ["all"], image_url="/data/local-files/?d=photos/")
    tasks = json.loads((folder / "ours.json").read_text())
    place = client.get(f"/api/projects/{made.project}/")
    assert place["maximum_annotations"] == 2
    own = client.post("/api/projects/", {"title": "imported", "label_config": place["label_config"]})
    client.post(f"/api/projects/{own['id']}/import", tasks)
    back = list(client.tasks(own["id"]))
    assert len(back) == 6, len(back)
    assert sum(len(task["annotations"]) for task in back) == 2


def refusals(url: str, token: str, legacy: str) -> list[dict[str, Any]]:
    """What it says to tokens and projects that are wrong."""
    said: list[dict[str, Any]] = []
    wrong = token[:-6] + ("AAAAAA" if token[-6:] != "AAAAAA" else "BBBBBB")
    for name, client, path in (
        ("wrong personal token", Recorder(url, wrong), "/api/projects/"),
        ("legacy token", Recorder(url, legacy), "/api/projects/"),
        ("no such project", Recorder(url, token), "/api/projects/987654/"),
    ):
        try:
            client.get(path)
        except LabelwiseError as error:
            print(f"{name}: {error}")
        else:
            sys.exit(f"{name}: it was accepted")
        said += [one | {"case": name} for one in client.said]
    return said


class RecordingBackend(StudioBackend):
    """A backend that notes down what it was asked and what it replied."""

    def __init__(self, project: Project):
        super().__init__(project)
        self.said: list[dict[str, Any]] = []

    def _note(self, path: str, body: Any, reply: dict[str, Any]) -> dict[str, Any]:
        hidden = {name: "SECRET" for name in ("access_token", "hostname") if name in body}
        self.said.append({"path": path, "body": {**body, **hidden}, "answer": reply})
        return reply

    def setup(self, body: Any) -> dict[str, Any]:
        return self._note("/setup", body, super().setup(body))

    def predict(self, body: Any) -> dict[str, Any]:
        return self._note("/predict", body, super().predict(body))

    def webhook(self, body: Any) -> dict[str, Any]:
        return self._note("/webhook", body, super().webhook(body))


@contextmanager
def serving(project: Project, studio: StudioBackend) -> Iterator[str]:
    """The backend over HTTP with a token; its address for Label Studio."""
    auth = backend_auth(project.folder, token=TOKEN)
    server = Server(configured(make_backend_app(studio, auth, print), Limits()))
    listening = listen("127.0.0.1", 0, print)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://labelwise:{TOKEN}@127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def run_backend(project: Project, client: Client) -> list[dict[str, Any]]:
    """Label Studio with this backend: connect, retrieve predictions, look at the order, answer, change, delete."""
    studio = RecordingBackend(project)
    place = client.post("/api/projects/", {"title": "backend", "label_config": config(project, ("good", "bad"))})
    number = place["id"]
    client.post(
        f"/api/projects/{number}/import", [{"text": project.view(row).text} for row in range(len(project.pool))]
    )
    with serving(project, studio) as address:
        made = client.post("/api/ml/", {"project": number, "url": address, "title": "labelwise"})
        print("connected:", made.get("readable_state"), "| version:", made.get("model_version"))
        tasks = list(client.tasks(number))
        view = client.post("/api/dm/views/", {"project": number, "data": {"ordering": ["tasks:predictions_score"]}})
        selected = {"selectedItems": {"all": True, "excluded": []}, "ordering": []}
        path = f"/api/dm/actions?id=retrieve_tasks_predictions&project={number}&tabID={view['id']}"
        print("retrieved:", client.post(path, selected))
        version = studio.versions()["versions"][0]
        client.patch(f"/api/projects/{number}/", {"model_version": version, "sampling": "Uncertainty sampling"})
        shown = client.get("/api/tasks", {"project": number, "view": view["id"], "fields": "all", "page_size": 100})
        order = [task["data"]["text"] for task in shown["tasks"]]
        picks = [project.view(pick.row).text for pick in project.store.picks(1)]
        assert order[: len(picks)] == picks, (order, picks)
        print("sorted by prediction score, the tasks begin with the picks of the round, in their order")
        assert client.get(f"/api/projects/{number}/next/")["data"]["text"] == picks[0]
        print("uncertainty sampling gives the first pick first")
        by_text = {task["data"]["text"]: task["id"] for task in tasks}
        result = [{"from_name": "label", "to_name": "item", "type": "choices", "value": {"choices": ["good"]}}]
        first = answered(client, by_text[picks[0]], result, 3.5)
        answered(client, by_text[picks[1]], [], 1.0, cancelled=True)
        _until(lambda: len(project.store.answers()) == 6)
        changed = [{**result[0], "value": {"choices": ["bad"]}}]
        client.patch(f"/api/annotations/{first['id']}/", {"result": changed, "lead_time": 9.0})
        row = project.store.picks(1)[0].row
        _until(lambda: project.store.answers()[row].value == "bad")
        client._call("DELETE", f"/api/annotations/{first['id']}/", None)
        _until(lambda: project.store.answers()[row].kind == "skip")
        print("answered, skipped, changed, deleted: each arrived by webhook")
        print("versions:", client.get(f"/api/ml/{made['id']}/versions"))
    return studio.said


def _until(done: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not done():
        assert time.monotonic() - began < 60, "Label Studio did not send it"
        time.sleep(0.2)


def exports(client: Client, number: int) -> dict[str, Any]:
    """What Label Studio itself exports of a project."""
    return {name: client.get(f"/api/projects/{number}/export", {"exportType": name}) for name in ("JSON", "JSON_MIN")}


def main() -> None:
    """Run every step; record if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, default=PEER, help="the label-studio command")
    parser.add_argument("--url", help="one that runs already; its password is in LABEL_STUDIO_PASSWORD")
    parser.add_argument("--record", type=Path, help="folder for what was said")
    parser.add_argument("--backend", action="store_true", help="only what concerns the backend")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.url:
            steps(options.url, os.environ["LABEL_STUDIO_PASSWORD"], "0" * 40, folder, options)
            return
        password, legacy = secrets.token_urlsafe(12), secrets.token_hex(20)
        (folder / "studio").mkdir()
        with started(options.peer, folder / "studio", password, legacy) as url:
            steps(url, password, legacy, folder, options)


def steps(url: str, password: str, legacy: str, folder: Path, options: argparse.Namespace) -> None:
    """The steps that `options` ask for, against the one at `url`."""
    token = personal_token(url, password)
    with closing(backend(folder / "backend")) as project:
        said: dict[str, Any] = {"backend": run_backend(project, Client(url, token))}
    print("backend: Label Studio asked it and told it")
    if not options.backend:
        said |= exchanged(url, token, legacy, folder)
    if options.record is not None:
        options.record.mkdir(parents=True, exist_ok=True)
        for name, content in said.items():
            text = json.dumps(content, indent=1, ensure_ascii=False).replace(url, "URL")
            text = re.sub(r'"token": "[^"]+"', '"token": "SECRET"', text)  # by which people are invited
            assert not any(secret in text for secret in (token, password, legacy, TOKEN)), "a secret would be recorded"
            (options.record / f"{name}.json").write_text(text + "\n")
        print(f"recorded in {options.record}")


def exchanged(url: str, token: str, legacy: str, folder: Path) -> dict[str, Any]:
    """Push, pull and import; what was said."""
    other = Client(url, token)
    said: dict[str, Any] = {}
    with closing(texts(folder / "texts")) as project:
        client = Recorder(url, token)
        with_key(project, url, "texts")
        run_texts(project, client, other)
        said["texts"] = client.said
        place = read_link(project.folder)
        assert place is not None
        assert place.project is not None
        for name, content in exports(other, place.project).items():
            said[f"export_{name.lower()}"] = content
            (folder / "theirs.json").write_text(json.dumps(content))
            changes = plan(project, read_labels(folder / "theirs.json", kind="text", text="body"))
            assert (len(changes.same), len(changes.new), len(changes.different)) == (3, 0, 0), (name, changes)
    print("texts: pushed, answered, pulled, changed, pulled; its exports are read")
    with closing(numbers(folder / "numbers")) as project:
        client = Recorder(url, token)
        with_key(project, url, "numbers")
        run_numbers(project, client, other)
        said["numbers"] = client.said
    print("numbers: pushed, answered, pulled")
    with closing(sets(folder / "sets")) as project:
        client = Recorder(url, token)
        with_key(project, url, "sets")
        run_sets(project, client, other)
        said["sets"] = client.said
    print("sets: pushed, answered, pulled, predicted")
    with closing(images(folder / "images")) as project:
        with_key(project, url, "images")
        run_images(project, Recorder(url, token), folder)
    print("images: pushed inside tasks; our export is taken in")
    said["refusals"] = refusals(url, token, legacy)
    return said


if __name__ == "__main__":
    main()
