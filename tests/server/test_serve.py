"""Starting and stopping the page: ports, the link, the worker beside it, and kills under load (in small)."""

import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from fake_project import fake_project, running
from labelwise.errors import ArgumentError
from labelwise.project.loop.heartbeat import read_heartbeat
from labelwise.server import Auth
from labelwise.server.connections import Limits
from labelwise.server.context import write_log
from labelwise.server.serve import link_to, listen, tls_context
from labelwise.server.supervisor import Supervisor

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_a_port_that_is_taken_gives_the_next_free_one():
    said = []
    with listen("127.0.0.1", 0, said.append) as first:
        port = first.getsockname()[1]
        with listen("127.0.0.1", port, said.append) as second:
            assert second.getsockname()[1] > port
            assert said == [f"Port {port} is taken; using {second.getsockname()[1]}."]
            assert second.getsockname()[0] == "127.0.0.1"


def test_an_address_that_cannot_be_used_is_said():
    for host, port, word in (
        ("127.0.0.1", 70000, "port"),
        ("203.0.113.7", 8765, "No port"),
        ("no.invalid", 1, "address"),
    ):
        with pytest.raises(ArgumentError, match=word):
            listen(host, port, print)


def test_the_link_holds_the_token_and_a_name_others_can_use():
    assert link_to("127.0.0.1", 80, None) == "http://127.0.0.1:80/"
    assert link_to("::1", 80, "abc") == "http://[::1]:80/?token=abc"
    assert link_to("0.0.0.0", 80, None) == f"http://{socket.gethostname()}:80/"


def test_a_line_of_the_log_stays_one_line(tmp_path):
    write_log(tmp_path, "one\n2026 forged: two \udcff")
    text = (tmp_path / "log.txt").read_text()
    assert text.count("\n") == 1
    assert "page: one 2026 forged: two ?" in text


def waited(condition, limit=20.0):
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_a_worker_that_dies_is_started_again_and_it_is_said(tmp_path):
    said = []
    sleeping = [sys.executable, "-c", "import time; time.sleep(60)"]
    supervisor = Supervisor(tmp_path, said.append, sleeping)
    supervisor.start()
    try:
        first = supervisor.pid
        assert read_heartbeat(tmp_path).message == "starting"
        os.kill(first, signal.SIGKILL)
        assert waited(lambda: supervisor.pid not in (None, first))
        second = supervisor.pid
        assert said == ["The worker stopped (signal 9) and restarts now. Labelling continues."]
        assert said[0] in (tmp_path / "log.txt").read_text()
        os.kill(second, signal.SIGKILL)
        assert waited(lambda: len(said) == 2)
        assert "in 1 s" in said[1]
    finally:
        supervisor.stop()
    assert supervisor.pid is None


def test_a_worker_that_does_not_stop_is_killed(tmp_path, monkeypatch):
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open('there', 'w'); time.sleep(60)"
    monkeypatch.chdir(tmp_path)
    supervisor = Supervisor(tmp_path, print, [sys.executable, "-c", code], stop_seconds=0.2)
    supervisor.start()
    assert waited(lambda: (tmp_path / "there").exists())
    pid = supervisor.pid
    supervisor.stop()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_kills_of_server_and_worker_lose_and_duplicate_nothing():
    """Five kills; benchmarks/kill_page.py has 200."""
    command = [sys.executable, str(BENCHMARKS / "kill_page.py"), "--kills", "5", "--annotators", "6", "--seed", "1"]
    run = subprocess.run(
        [*command, "--dry", "--rows", "3000", "--k", "600"], capture_output=True, text=True, timeout=270
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "0 things wrong" in run.stdout
    assert "nothing lost, nothing twice" in run.stdout


# --- HTTPS -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """A certificate of 127.0.0.1 and its key, made for this run."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate of this test")
    folder = tmp_path_factory.mktemp("tls")
    made = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", *made, *files, *names], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_the_page_is_served_over_https_with_a_certificate(tmp_path, certificate):
    project = fake_project(tmp_path / "project", ["one", "two"])
    auth = Auth.make(project.folder)
    with running(project, auth, context=tls_context(*certificate)) as address:
        assert address.startswith("https://")
        with httpx.Client(base_url=address, verify=ssl.create_default_context(cafile=certificate[0])) as browser:
            reply = browser.get("/")
            assert reply.status_code == 200
            assert "Secure" in reply.headers["set-cookie"]
            session = auth.read(browser.cookies[auth.cookie])
            headers = {"origin": address, "x-csrf-token": auth.csrf(session)}
            assert browser.post("/who", data={"name": "anna"}, headers=headers).status_code == 204
            headers["origin"] = address.replace("https", "http")
            assert browser.post("/who", data={"name": "anna"}, headers=headers).status_code == 403
    project.close()


def test_a_certificate_that_cannot_be_used_is_said(tmp_path, certificate):
    cert, key = certificate
    (tmp_path / "no.pem").write_text("no certificate")
    locked = tmp_path / "locked.pem"
    command = ["openssl", "pkey", "-aes128", "-passout", "pass:secret", "-in", str(key), "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    for files in (
        (tmp_path / "none.pem", None),
        (tmp_path / "no.pem", None),
        (cert, None),
        (cert, cert),
        (cert, locked),
    ):
        with pytest.raises(ArgumentError, match=r"HTTPS.*PEM"):
            tls_context(*files)
    with pytest.raises(ArgumentError, match="--certificate"):
        tls_context(None, key)
    assert tls_context(None) is None
    assert link_to("127.0.0.1", 80, None, True) == "https://127.0.0.1:80/"


def test_a_proxy_is_named_by_its_address():
    assert Limits(proxies=frozenset({"10.0.0.5", "::1", "localhost"})).proxies
    with pytest.raises(ArgumentError, match="IP address"):
        Limits(proxies=frozenset({"*"}))


CRASHES = """
import sys, time
from pathlib import Path
from labelwise.project.loop.heartbeat import Heartbeat
folder = Path(sys.argv[1])
lives = folder / "lives"
number = int(lives.read_text()) + 1 if lives.exists() else 1
lives.write_text(str(number))
Heartbeat("training", "round", time.time(), number if sys.argv[2] == "gets on" else 1, 1, time.time()).write(folder)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gets on", "is stuck"])
def test_a_worker_that_makes_rounds_restarts_at_once_however_often_it_dies(tmp_path, how):
    """Each further death doubles the wait, unless a round was made meanwhile: people wait for the next one."""
    said: list[str] = []
    supervisor = Supervisor(tmp_path, said.append, [sys.executable, "-c", CRASHES, str(tmp_path), how])
    supervisor.start()
    try:
        assert waited(lambda: len(said) >= 3)
    finally:
        supervisor.stop()
    late = [line for line in said[1:3] if "restarts now" not in line]
    assert len(late) == (0 if how == "gets on" else 2)
