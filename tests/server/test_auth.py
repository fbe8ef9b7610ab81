"""The guard of the page: who is let in, what is refused, and that nothing but rows of the project is ever served."""

import os
import socket
import stat
import threading
from pathlib import Path

import pytest

from fake_project import Browser, fake_project, running
from labelwise.errors import ArgumentError, StoreError
from labelwise.server import Auth, make_app
from labelwise.server.auth import Session, clean_name
from labelwise.server.middleware import cookie


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    made = fake_project(tmp_path_factory.mktemp("guard") / "project", [f"text {row}" for row in range(20)])
    yield made
    made.close()


@pytest.fixture(scope="module")
def auth(project):
    return Auth.make(project.folder)


@pytest.fixture(scope="module")
def address(project, auth):
    with running(project, auth) as found:
        yield found


@pytest.fixture
def browser(address, auth):
    with Browser(address, auth) as made:
        yield made


@pytest.fixture
def stranger(address, auth):
    with Browser(address, auth, name=None) as made:
        yield made


# --- names of the server, tokens, sessions ---------------------------------------------------------------------------


def test_the_secret_is_made_once_and_for_its_owner_alone(tmp_path):
    first, second = Auth.make(tmp_path), Auth.make(tmp_path)
    assert first.secret == second.secret
    assert len(first.secret) == 32
    assert stat.S_IMODE((tmp_path / "page.key").stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["page.key"]
    assert first.secret.hex() not in repr(first)
    whole = (tmp_path / "page.key").read_bytes()
    for other in (whole[:-1], whole[:33], whole + b"x", bytes([whole[0] ^ 1]) + whole[1:], whole[:-1] + b"~"):
        (tmp_path / "page.key").write_bytes(other)
        with pytest.raises(StoreError, match="was changed or cut off"):
            Auth.make(tmp_path)
    (tmp_path / "page.key").write_bytes(whole[:32])  # of an early version
    assert Auth.make(tmp_path).secret == whole[:32]
    (tmp_path / "page.key").write_bytes(b"short")
    with pytest.raises(StoreError, match="remove it"):
        Auth.make(tmp_path)


def test_a_token_is_asked_for_anywhere_but_on_loopback(tmp_path):
    for host in ("127.0.0.1", "localhost", "::1"):
        assert Auth.make(tmp_path, host).token is None
    away = Auth.make(tmp_path, "192.168.1.20").token
    assert away is not None
    assert len(away) >= 32
    assert Auth.make(tmp_path, "0.0.0.0").token == away  # the link stays good when the server starts again
    assert Auth.make(tmp_path, names=["labels.example.org"]).token == away
    assert Auth.make(tmp_path, token="a" * 16).token == "a" * 16
    (tmp_path / "other").mkdir()
    assert Auth.make(tmp_path / "other", "0.0.0.0").token != away
    for bad in ("short", "x" * 15, "with space and more", "<script>alert(1)</script>"):
        with pytest.raises(ArgumentError, match="token"):
            Auth.make(tmp_path, token=bad)


@pytest.mark.parametrize(
    ("host", "known"),
    [
        ("127.0.0.1:8765", True),
        ("localhost", True),
        ("LOCALHOST:1", True),
        ("[::1]:8765", True),
        ("evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example:8765", False),
        ("192.168.1.5", False),
        ("", False),
    ],
)
def test_only_names_of_this_server_are_answered(tmp_path, host, known):
    assert Auth.make(tmp_path).is_own_host(host) == known


def test_a_server_on_all_addresses_answers_to_addresses_and_not_to_foreign_names(tmp_path):
    auth = Auth.make(tmp_path, "0.0.0.0")
    assert auth.is_own_host("192.168.1.5:8765")
    assert auth.is_own_host("[fe80::1]:8765")
    assert not auth.is_own_host("evil.example")
    assert Auth.make(tmp_path, "0.0.0.0", names=["Labels.example.org"]).is_own_host("labels.example.org")


def test_a_session_cannot_be_forged_and_ends_with_its_token(tmp_path):
    auth, other = Auth.make(tmp_path), Auth.make(tmp_path, token="b" * 20)
    value = auth.sign(Session("id", "Zoë | 'x'"))
    assert auth.read(value) == Session("id", "Zoë | 'x'")
    assert other.read(value) is None
    text, _, mark = value.partition(".")
    for bad in ("", ".", text, text + ".", f"x{text}.{mark}", f"{text}.{mark[:-1]}0x", "ü.ü"):
        assert auth.read(bad) is None
    assert all(sign.isalnum() or sign in "._-" for sign in value)  # as it stands in a cookie


def test_names_are_one_short_line():
    assert clean_name("  Anna\n  Berg\x00 ") == "Anna Berg"
    for bad in ("", " \t ", "x" * 61):
        with pytest.raises(ArgumentError, match="name"):
            clean_name(bad)


# --- the fence -------------------------------------------------------------------------------------------------------


def test_headers_are_on_every_reply(browser):
    for path in ("/", "/gallery", "/report", "/card", "/status", "/static/page.css", "/nothing", "/image/99"):
        headers = browser.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'"), path
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "server" not in headers
    assert browser.get("/", headers={"host": "evil.example"}).headers["x-frame-options"] == "DENY"


def test_cookies_are_strict_unreadable_and_secure_over_https(stranger, auth):
    plain = stranger.get("/").headers["set-cookie"]
    assert "HttpOnly" in plain
    assert "SameSite=Strict" in plain
    assert "Secure" not in plain
    assert cookie(auth, auth.new(), https=True).endswith("; Secure")


def test_a_foreign_host_is_refused_whatever_it_asks(browser):
    for method, path in (("GET", "/"), ("GET", "/image/0"), ("POST", "/answer"), ("GET", "/static/page.css")):
        reply = browser.request(method, path, headers={"host": "rebound.example:8765"})
        assert reply.status_code == 421
        assert "<main" not in reply.text


@pytest.mark.parametrize(
    "host", ["[::1", "[::1]x", "[x]:80", "::1", "a:b", "a b", "[]", ":80", "127.0.0.1:1:2", "x@127.0.0.1"]
)
def test_a_malformed_host_is_refused_with_400(browser, host):
    reply = browser.get("/", headers={"host": host})
    assert reply.status_code == 400
    assert "Traceback" not in reply.text
    assert browser.post("/undo", headers={"origin": "http://[::1"}).status_code == 403


@pytest.mark.slow
def test_a_post_needs_our_origin_and_the_code_of_the_session(project, auth, browser, address):
    before, token = project.store.progress().labels, project.store.next_task("anna").token
    data = {"token": token, "kind": "label", "value": "cat"}
    for wrong in (
        {"origin": "http://evil.example"},
        {"origin": address.replace("http", "https")},
        {"origin": "http://127.0.0.1:9"},
        {"origin": "null"},
        {"origin": ""},
        {"x-csrf-token": ""},
        {"x-csrf-token": "0" * 40},
        {"x-csrf-token": "ü".encode("latin-1")},
        {"x-csrf-token": auth.csrf(Session("other", "anna"))},
    ):
        assert browser.post("/answer", data=data, headers=wrong).status_code == 403, wrong
    del browser.headers["origin"]
    assert browser.post("/answer", data=data).status_code == 403
    assert project.store.progress().labels == before
    for path in ("/undo", "/class", "/change", "/who", "/nothing"):
        assert browser.post(path, data={}).status_code == 403
    browser.headers["origin"] = address
    assert browser.post("/answer", data=data).status_code == 200
    assert project.store.progress().labels == before + 1


def test_without_a_session_nothing_of_the_project_is_told(project, stranger):
    leased = project.store.progress().leased
    for path in ("/card", "/status", "/image/0", "/neighbours/0", "/change"):
        reply = stranger.get(path)
        assert reply.status_code == 401
        assert "set-cookie" not in reply.headers
    assert stranger.post("/answer").status_code == 401
    assert "Who is labelling?" in stranger.get("/").text
    assert stranger.get("/card").status_code == 401  # a session, and no name yet
    assert stranger.get("/gallery").headers["location"] == "/"
    assert project.store.progress().leased == leased


@pytest.mark.slow
def test_with_a_token_only_the_link_lets_in(project):
    auth = Auth.make(project.folder, token="0123456789abcdef")
    with running(project, auth) as address, Browser(address, auth, name=None) as browser:
        for path in ("/", "/?token=", "/?token=0123456789abcdeX", "/gallery", "/?token=%00"):
            reply = browser.get(path)
            assert reply.status_code == 401
            assert "set-cookie" not in reply.headers
            assert "text" not in reply.text.partition("<main")[2]
        reply = browser.get("/?token=0123456789abcdef")
        assert reply.status_code == 200
        assert "url=/" in reply.text  # on to an address without the token
        assert "0123456789abcdef" not in reply.text
        assert "Who is labelling?" in browser.get("/").text
        browser.start("ben")
        assert 'class="text"' in browser.get("/").text


def test_a_visit_from_another_site_goes_through_a_page_of_ours(stranger):
    """A strict cookie does not come along on such a visit: a new session would put the old one's name away."""
    reply = stranger.get("/gallery", headers={"sec-fetch-site": "cross-site"})
    assert 'content="0;url=/gallery"' in reply.text
    assert "set-cookie" not in reply.headers


def test_bodies_are_limited_with_and_without_a_length(auth, browser):
    large = b"note=" + b"x" * auth.max_body
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert browser.post("/answer", content=large, headers=kind).status_code == 413
    assert browser.post("/answer", content=iter([large[:1000], large[1000:]]), headers=kind).status_code == 413


def test_a_file_upload_or_another_method_is_refused(browser):
    files = {"token": ("t.txt", b"x"), "kind": ("k.txt", b"y")}
    assert browser.post("/answer", files=files).status_code == 422
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
        assert browser.request(method, "/card").status_code in (403, 405)
    for path in ("/docs", "/redoc", "/openapi.json"):
        assert browser.get(path).status_code == 404


# --- no file outside the project -------------------------------------------------------------------------------------

PATHS = [
    "/static/../app.py",
    "/static/%2e%2e/app.py",
    "/static/..%2fapp.py",
    "/static/%2e%2e%2f%2e%2e%2fpage%2fapp.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/..%5capp.py",
    "/static/%00",
    "/image/../../project.yaml",
    "/image/..%2f..%2fstore.db",
    "/image/%2fetc%2fpasswd",
    "/image/page.key",
    "/image/0%00.png",
    "/image/1e0",
    "/image/-1",
    "/image/99999999999999999999999999",
    "/neighbours/..%2fstore.db",
    "/project.yaml",
    "/store.db",
    "/page.key",
    "/log.txt",
]


def test_no_path_leads_to_a_file(project, auth, browser):
    (project.folder / "project.yaml").write_text("name: SECRET")
    port = browser.base_url.port
    for path in PATHS:
        reply = raw(port, path, f"{auth.cookie}={browser.cookies[auth.cookie]}")
        assert int(reply.split()[1]) in (400, 404, 422), path
        for secret in (b"from __future__", b"root:", b"SECRET", b"SQLite format", auth.secret):
            assert secret not in reply, path


def raw(port, path, cookie):
    """What the server says to a path as it stands: clients tidy paths before they send them."""
    with socket.create_connection(("127.0.0.1", port)) as line:
        lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1", f"Cookie: {cookie}", "Connection: close", "", ""]
        line.sendall("\r\n".join(lines).encode())
        return b"".join(iter(lambda: line.recv(65536), b""))


def test_a_size_is_one_of_two_names(browser):
    for size in ("100000", "-1", "../large", "full"):
        assert browser.get("/image/0", params={"size": size}).status_code == 404


def test_static_files_are_what_the_package_holds(stranger):
    here = Path(make_app.__code__.co_filename).parent / "static"
    for path in here.iterdir():
        assert stranger.get(f"/static/{path.name}").content == path.read_bytes()
    assert stranger.get("/favicon.ico").content == (here / "icon.png").read_bytes()
    assert (here / "htmx-LICENSE.txt").read_text().startswith("Zero-Clause BSD")


def test_two_servers_started_at_once_have_one_secret(tmp_path):
    found, gate = [], threading.Barrier(8)

    def make():
        gate.wait()
        found.append(Auth.make(tmp_path).secret)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
