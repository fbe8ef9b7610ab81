"""The ML backend over HTTP: who may ask, how much, and that refusals are sentences. The other side is a stand-in."""

from __future__ import annotations

import base64
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import label_studio as script
from labelwise.cli import app
from labelwise.errors import LabelError, StoreError
from labelwise.server.auth import Auth
from labelwise.server.connections import Limits
from labelwise.server.label_studio import MAX_BODY, backend_auth, make_backend_app
from labelwise.server.serve import Notify, Server, configured, listen

TOKEN = "0123456789abcdefTOKEN"


class Plain:
    """A backend that remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.error: Exception | None = None
        self.refused: list[str] = []

    def health(self) -> dict[str, Any]:
        return {"status": "UP"}

    def versions(self) -> dict[str, Any]:
        return {"versions": ["one"]}

    def _take(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        self.asked.append(body)
        return {"refused": self.refused} if self.refused else {"results": []}

    setup = predict = webhook = train = _take


@contextmanager
def served(plain: Plain, auth: Auth, say: Notify) -> Iterator[httpx.Client]:
    """The backend on a port, and a client for it."""
    server = Server(configured(make_backend_app(plain, auth, say), Limits()))  # type: ignore[arg-type]
    with listen("127.0.0.1", 0, print) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", trust_env=False) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture
def plain() -> Plain:
    return Plain()


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def client(plain: Plain, lines: list[str], tmp_path: Path) -> Iterator[httpx.Client]:
    with served(plain, backend_auth(tmp_path, token=TOKEN), lines.append) as made:
        yield made


def basic(password: str) -> dict[str, str]:
    return {"Authorization": "Basic " + base64.b64encode(f"labelwise:{password}".encode()).decode()}


@pytest.mark.parametrize(
    "headers", [basic(TOKEN), {"Authorization": f"Token {TOKEN}"}, {"Authorization": f"bearer {TOKEN}"}]
)
def test_the_token_opens_every_address(client: httpx.Client, plain: Plain, headers: dict[str, str]) -> None:
    for path in ("/", "/health", "/versions"):
        assert client.get(path, headers=headers).status_code == 200
    for path in ("/setup", "/predict", "/webhook", "/train"):
        assert client.post(path, json={"path": path}, headers=headers).json() == {"results": []}
    assert [one["path"] for one in plain.asked] == ["/setup", "/predict", "/webhook", "/train"]


def test_without_the_token_nothing_is_read(client: httpx.Client, plain: Plain, lines: list[str]) -> None:
    wrong: list[dict[str, str]] = [{}, {"Authorization": "Basic ???"}, {"Authorization": f"Digest {TOKEN}"}, basic("x")]
    for headers in wrong:
        for path in ("/health", "/versions"):
            assert client.get(path, headers=headers).status_code == 401
        found = client.post("/webhook", json={}, headers=headers)
        assert found.status_code == 401
        assert found.headers["www-authenticate"].startswith("Basic")
    assert plain.asked == []
    assert any("Refused POST /webhook: Give the token" in line for line in lines)
    assert len(lines) == len(set(lines)) == 3  # each once


def test_wrong_tokens_have_to_wait(client: httpx.Client) -> None:
    codes = [client.post("/predict", json={}, headers=basic(f"wrong{n}")).status_code for n in range(8)]
    assert codes[0] == 401
    assert codes[-1] == 429
    assert client.post("/predict", json={}, headers=basic(TOKEN)).status_code == 429


def test_a_page_in_a_browser_and_another_name_are_refused(client: httpx.Client, plain: Plain) -> None:
    origin = client.post("/webhook", json={}, headers={**basic(TOKEN), "Origin": "http://evil.example"})
    assert origin.status_code == 403
    assert client.post("/webhook", json={}, headers={**basic(TOKEN), "Host": "evil.example"}).status_code == 421
    assert plain.asked == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[1]", b"[" * 100_000, b'"text"'])
def test_a_body_that_is_no_json_object_is_refused(client: httpx.Client, plain: Plain, content: bytes) -> None:
    found = client.post("/predict", content=content, headers=basic(TOKEN))
    assert found.status_code == 422
    assert "JSON" in found.text
    assert plain.asked == []


def test_a_body_that_is_too_large_is_refused(plain: Plain, tmp_path: Path) -> None:
    auth = replace(backend_auth(tmp_path), max_body=1 << 20)
    with served(plain, auth, print) as client:
        large = b'{"a": "' + b"x" * (1 << 20) + b'"}'
        assert client.post("/predict", content=large).status_code == 413
        parts = (large[start : start + 65536] for start in range(0, len(large), 65536))
        found = client.post("/predict", content=parts)  # without a Content-Length
        assert found.status_code == 413
        assert "at most 1 MiB" in found.text
        assert client.post("/predict", content=b"{}").status_code == 200
    assert plain.asked == [{}]


def test_refusals_are_sentences(client: httpx.Client, plain: Plain, lines: list[str]) -> None:
    plain.refused = ["task 1: no row has this text"]
    found = client.post("/webhook", json={}, headers=basic(TOKEN))
    assert (found.status_code, found.json()["refused"]) == (422, plain.refused)
    for error, status in ((LabelError("not so"), 422), (StoreError("disk full"), 503), (ValueError("secret"), 500)):
        plain.error = error
        found = client.post("/webhook", json={}, headers=basic(TOKEN))
        assert found.status_code == status
        assert ("secret" in found.text) is False
        assert status == 500 or found.text == str(error)
    assert lines[0] == "Not taken in: task 1: no row has this text"
    assert "ValueError: secret" in lines[-1]
    assert client.get("/nothing", headers=basic(TOKEN)).status_code == 404
    assert client.get("/predict", headers=basic(TOKEN)).status_code == 405


def test_a_token_is_required_where_others_can_reach_it(tmp_path: Path) -> None:
    assert backend_auth(tmp_path).token is None
    public = backend_auth(tmp_path, "0.0.0.0")
    assert public.token is not None
    assert public.token == backend_auth(tmp_path, "0.0.0.0").token
    assert public.token != Auth.make(tmp_path, "0.0.0.0").token  # whoever predicts cannot open the page
    assert backend_auth(tmp_path, names=["host.docker.internal"]).is_own_host("host.docker.internal:9090")
    assert public.max_body == MAX_BODY


def test_serve_needs_a_project(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    with pytest.raises(StoreError, match=r"Make one with: labelwise label .*photos"):
        CliRunner().invoke(app, ["label-studio", "serve", str(tmp_path / "photos")], catch_exceptions=False)


@pytest.mark.slow
def test_serve_from_the_command_line_until_it_is_stopped(tmp_path: Path) -> None:
    script.texts(tmp_path / "texts").close()
    folder = tmp_path / "texts" / "project"
    command = [sys.executable, "-m", "labelwise", "label-studio", "serve", str(folder), "--port", "0", "--token", TOKEN]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        address = line.rpartition(" ")[2].strip()
        assert address.startswith(f"http://labelwise:{TOKEN}@127.0.0.1:")
        found = httpx.get(f"{address}/health", trust_env=False, timeout=30)
        assert found.json() == {"status": "UP", "model_class": "Labelwise"}
    finally:
        process.send_signal(signal.SIGTERM)
        rest = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert f"Stopped. Continue with: labelwise label-studio serve {folder}" in rest
