"""Slow and greedy peers: what waits too long is closed, and others are served meanwhile."""

import contextlib
import socket
import time

import pytest

from fake_project import Browser, fake_project, running
from labelwise.server import Auth
from labelwise.server.connections import BURST, GRACE, Limits

QUICK = Limits(connections=12, of_one_peer=8, head_seconds=0.25, body_seconds=0.4, reply_seconds=0.2, least_read=4096)
PATIENT = Limits(connections=12, of_one_peer=8)


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    made = fake_project(tmp_path_factory.mktemp("slow") / "project", [f"text {row} " + "x" * 4000 for row in range(60)])
    yield made
    made.close()


@pytest.fixture(scope="module")
def auth(project):
    return Auth.make(project.folder)


@pytest.fixture(scope="module")
def quick(project, auth):
    with running(project, auth, QUICK) as address:
        yield address


@pytest.fixture(scope="module")
def patient(project, auth):
    with running(project, auth, PATIENT) as address:
        yield address


def connected(address, sent=b""):
    host, _, port = address.removeprefix("http://").partition(":")
    line = socket.create_connection((host, int(port)), timeout=5)
    line.sendall(sent)
    return line


def all_of(line):
    """What the server sends until it closes the connection."""
    found = b""
    try:
        while part := line.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def closed(line):
    line.setblocking(False)
    try:
        while line.recv(65536):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def half_a_post(address, browser):
    """A request of a person with a session, whose body stays away."""
    cookie = "; ".join(f"{name}={value}" for name, value in browser.cookies.items())
    names = {"Origin": address, "Cookie": cookie, "X-CSRF-Token": browser.headers["x-csrf-token"]}
    names["Content-Type"] = "application/x-www-form-urlencoded"
    lines = "".join(f"{name}: {value}\r\n" for name, value in names.items())
    host = address.removeprefix("http://")
    return f"POST /undo HTTP/1.1\r\nHost: {host}\r\nContent-Length: 900\r\n{lines}\r\ntoken=".encode()


def test_half_a_head_is_answered_with_408_and_closed(quick):
    began = time.monotonic()
    with connected(quick, b"GET / HTTP/1.1\r\nHost: 127") as line:
        reply = all_of(line)
    assert reply.startswith(b"HTTP/1.1 408 Request Timeout")
    assert b"Send it again" in reply
    assert 0.2 < time.monotonic() - began < 2


def test_a_head_that_drips_in_is_not_given_more_time(quick):
    began = time.monotonic()
    with connected(quick) as line, contextlib.suppress(ConnectionError):
        while time.monotonic() - began < 3:
            line.sendall(b"G")
            time.sleep(0.03)
    assert time.monotonic() - began < 1.5


def test_a_connection_that_says_nothing_is_closed_without_a_word(quick):
    with connected(quick) as line:
        assert all_of(line) == b""


def test_half_a_body_is_answered_with_408_and_nothing_is_stored(project, auth, quick):
    before = len(project.store.events())
    with Browser(quick, auth) as browser, connected(quick, half_a_post(quick, browser)) as line:
        assert all_of(line).startswith(b"HTTP/1.1 408")
        assert browser.get("/card").status_code == 200
    assert len(project.store.events()) == before
    log = project.folder / "log.txt"
    assert not log.exists() or "Traceback" not in log.read_text()


def test_a_refused_request_whose_body_stays_away_gets_one_reply(quick):
    sent = f"POST /undo HTTP/1.1\r\nHost: {quick.removeprefix('http://')}\r\nContent-Length: 900\r\n\r\ntok"
    with connected(quick, sent.encode()) as line:
        assert all_of(line).count(b"HTTP/1.1 ") == 1


@pytest.mark.slow
def test_a_reply_that_is_not_read_is_closed(quick):
    host = quick.removeprefix("http://")
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect(("127.0.0.1", int(host.partition(":")[2])))
        line.settimeout(5)
        request = f"GET /static/htmx-2.0.11.min.js HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
        line.sendall(request * 150)  # 7.5 MB, more than the buffers of the system take
        time.sleep(1.2)
        read = all_of(line)
    assert 0 < len(read) < 150 * 50_000


def test_a_slow_reader_who_reads_on_gets_everything(quick):
    host = quick.removeprefix("http://")
    with connected(quick, f"GET /static/htmx-2.0.11.min.js HTTP/1.0\r\nHost: {host}\r\n\r\n".encode()) as line:
        time.sleep(0.6)
        assert b"HTTP/1.1 200" in (reply := all_of(line))
    assert len(reply) > 52_182


def test_others_are_served_while_one_peer_opens_more_than_it_may(auth, patient):
    with contextlib.ExitStack() as stack:
        lines = [stack.enter_context(connected(patient, b"GET / HTTP/1.1\r\nX")) for _ in range(30)]
        time.sleep(2 * GRACE)
        with Browser(patient, auth) as browser:
            began = time.monotonic()
            for _ in range(5):
                assert browser.get("/card").status_code == 200
                lines += [stack.enter_context(connected(patient, half_a_post(patient, browser))) for _ in range(5)]
                time.sleep(GRACE)
            assert browser.post("/undo", data={"token": "one more undo"}).status_code == 200
            assert time.monotonic() - began < PATIENT.head_seconds  # then the server closes the first of them anyway
        open_now = sum(not closed(line) for line in lines)
        assert open_now <= BURST * PATIENT.of_one_peer


def test_a_proxy_has_the_connections_of_all(project, auth):
    with running(project, auth, Limits(12, 4, frozenset({"127.0.0.1"}))) as address:
        lines = [connected(address, b"GET / HTTP/1.1\r\nX") for _ in range(20)]
        time.sleep(2 * GRACE)
        with Browser(address, auth):
            open_now = sum(not closed(line) for line in lines)
        for line in lines:
            line.close()
    assert 4 < open_now <= BURST * 12


def test_there_are_no_more_connections_than_files(monkeypatch):
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (256, 4096))
    assert Limits().possible == 51
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    assert Limits().possible == 358
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert Limits(connections=700).possible == 700


def test_people_who_arrive_together_are_not_closed_for_connections_that_rest(patient):
    """Requests that were quick give a connection a second more, but not before somebody who has just come."""
    get = b"GET /static/page.css HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(PATIENT.of_one_peer):
            line = stack.enter_context(connected(patient, get))
            assert line.recv(65536).startswith(b"HTTP/1.1 200")
        time.sleep(2 * GRACE)
        together = [stack.enter_context(connected(patient)) for _ in range(PATIENT.of_one_peer - 1)]
        for line in together:
            line.sendall(get)
            assert line.recv(65536).startswith(b"HTTP/1.1 200")
