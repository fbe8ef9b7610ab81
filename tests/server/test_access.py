"""Annotators with links of their own: who is let in, what each role may do, and how a session ends."""

import re
import time
from dataclasses import replace

import pytest

from fake_project import Browser, fake_project, running
from labelwise.server import Auth, access
from labelwise.server.auth import IDLE_SECONDS, SESSION_SECONDS, Session

ROLES = {"olga": "own", "rita": "review", "ann": "label", "ben": "label"}

pytestmark = pytest.mark.slow  # each test has a server of its own


@pytest.fixture
def project(tmp_path):
    made = fake_project(tmp_path / "project", [f"text {row}" for row in range(12)], people=2)
    for name, role in ROLES.items():
        made.store.set_annotator(name, role, "setup")
    yield made
    made.close()


@pytest.fixture
def auth(project):
    return Auth.make(project.folder)


@pytest.fixture
def address(project, auth):
    with running(project, auth, every=-1.0) as found:  # so that a test need not wait for a second
        yield found


class Named(Browser):
    """A browser that opened the link of an annotator."""

    def __init__(self, address, auth, name, link=1):
        Browser.__init__(self, address, auth, name=None)
        self.token = auth.token_of(name, link)

    def __enter__(self):
        Browser.__enter__(self)
        self.get(f"/?token={self.token}")
        session = self.page_auth.read(self.cookies.get(self.page_auth.cookie, ""))
        if session is not None:
            self.headers["x-csrf-token"] = self.page_auth.csrf(session)
        return self


def label(browser, value):
    token = re.search(r'data-token="([^"]+)"', browser.get("/card").text)[1]
    return browser.post("/answer", data={"token": token, "kind": "label", "value": value})


def test_with_annotators_the_page_opens_with_their_links_alone(project, auth, address):
    with Browser(address, auth, name=None) as stranger:
        assert stranger.get("/").status_code == 401  # on loopback too
        for token in ("", "x" * 32, auth.token_of("ann", 2), auth.token_of("nobody", 1), auth.token_of("ann", 0)):
            assert stranger.get(f"/?token={token}").status_code == 401
        assert not stranger.cookies
    with Named(address, auth, "ann") as ann:
        page = ann.get("/")
        assert page.status_code == 200
        assert ">ann</span>" in page.text
        assert ann.token not in page.text
        assert ann.post("/who", data={"name": "olga"}).status_code == 403
        assert label(ann, "cat").status_code == 200
    assert [one.who for one in project.store.events() if one.kind == "label"] == ["ann"]


def test_sessions_of_before_end_when_the_first_annotator_comes(tmp_path):
    project = fake_project(tmp_path / "project", ["a", "b", "c"])
    shared = Auth.make(project.folder, token="a" * 20)
    with running(project, shared, every=-1.0) as address, Browser(address, shared, "ann") as browser:
        assert label(browser, "cat").status_code == 200
        assert browser.get("/report").status_code == 200  # as always: whoever has the link may do everything
        project.store.set_annotator("olga", "own", "setup")
        assert browser.get("/card").status_code == 401
        assert browser.get(f"/?token={shared.token}").status_code == 401  # the shared link is over too
        token = shared.token_of("olga", 1)
        assert "url=/" in browser.get(f"/?token={token}").text
        assert browser.get("/people").status_code == 200
    project.close()


GETS = {
    "/grid": "label",
    "/tiles": "label",
    "/gallery": "label",
    "/status": "label",
    "/card": "label",
    "/image/0": "label",
    "/neighbours/0": "label",
    "/review": "review",
    "/report": "review",
    "/people": "own",
    "/history": "own",
    "/download/labels.csv": "own",
    "/download/history.csv": "own",
    "/download/predictions.csv": "own",
    "/download/model.zip": "own",
}
NEEDS_A_PROJECT = ("/download/labels.csv", "/download/predictions.csv", "/download/model.zip")  # not a fake one
POSTS = {
    "/class": ("review", {"name": "bird"}),
    "/decide": ("review", {"row": 0, "choice": "label:cat", "seen": 0, "token": "t" * 12}),
    "/people": ("own", {"name": "eve", "role": "own"}),
}


def test_every_route_asks_for_a_role(project, auth, address):
    from labelwise.server import make_app

    known = {*GETS, *POSTS, "/", "/who", "/answer", "/undo", "/change", "/tile", "/tile/undo", "/favicon.ico"}
    found = {path.replace("{row}", "0") for path in make_app(project, auth).openapi()["paths"]}
    assert found <= known, "a new route is missing in this table"


@pytest.mark.parametrize("name", ["ann", "rita", "olga"])
def test_a_role_may_do_what_it_may_and_nothing_more(project, auth, address, name):
    role, before = ROLES[name], project.store.last_seq()
    with Named(address, auth, name) as browser:
        for path, least in GETS.items():
            if access.may(role, least) and path in NEEDS_A_PROJECT:
                continue
            status = browser.get(path).status_code
            assert (status == 403) == (not access.may(role, least)), path
        for path, (least, data) in POSTS.items():
            if not access.may(role, least):
                reply = browser.post(path, data=data)
                assert reply.status_code == 403, path
                assert "role" in reply.text
        links = re.findall(r'<a href="(/\w*)"', browser.get("/").text.partition("</nav>")[0])
        assert set(links) >= {"/", "/gallery"}
        assert all(access.may(role, GETS.get(link, "label")) for link in links)
    assert project.store.last_seq() == before


def test_a_revoked_link_ends_in_an_open_page_and_nothing_of_it_is_saved(project, auth, address):
    with Named(address, auth, "ann") as ann, Named(address, auth, "olga") as olga:
        token = re.search(r'data-token="([^"]+)"', ann.get("/card").text)[1]
        reply = olga.post("/people", data={"name": "ann", "role": "revoked"})
        assert reply.status_code == 200
        before = project.store.last_seq()
        late = ann.post("/answer", data={"token": token, "kind": "label", "value": "cat"})
        assert late.status_code == 401
        assert "revoked" in late.text
        assert project.store.last_seq() == before
        assert ann.get("/image/0").status_code == 401
        assert ann.get(f"/?token={ann.token}").status_code == 401
        olga.post("/people", data={"name": "ann", "role": "label"})
        assert ann.get("/card").status_code == 401  # a new link is needed, the old session does not come back
        with Named(address, auth, "ann", link=2) as again:
            assert again.post("/answer", data={"token": token, "kind": "label", "value": "cat"}).status_code == 200
        assert olga.post("/people", data={"name": "olga", "role": "label"}).text.count("one person at") == 1
        olga.post("/people", data={"name": "rita", "role": "label"})
        assert "role" in olga.get("/history").text
    with Named(address, auth, "rita") as rita:  # a changed role counts at once, with the same link
        assert rita.get("/review").status_code == 403


def test_another_process_revokes_a_link(project, auth, address):
    from labelwise.project.store import Store

    with Named(address, auth, "ben") as ben:
        assert ben.get("/card").status_code == 200
        other = Store.open(f"sqlite:///{project.folder / 'store.db'}")
        other.set_annotator("ben", None, "command line")
        other.close()
        assert ben.get("/card").status_code == 401


def test_nothing_is_saved_with_a_link_that_another_process_has_just_revoked(project, auth):
    # Read again after a minute: a page that only reads does not see it yet.
    with running(project, auth, every=60.0) as address, Named(address, auth, "ben") as ben:
        token = re.search(r'data-token="([^"]+)"', ben.get("/card").text)[1]
        project.store.set_annotator("ben", None, "command line")
        assert ben.get("/card").status_code == 200
        assert ben.post("/answer", data={"token": token, "kind": "label", "value": "cat"}).status_code == 401
        assert ben.get("/card").status_code == 401
    assert not [one for one in project.store.events() if one.kind == "label"]


def test_a_labeller_sees_and_changes_their_own_answers_alone(project, auth, address):
    with Named(address, auth, "ann") as ann, Named(address, auth, "ben") as ben:
        assert label(ann, "cat").status_code == 200
        assert label(ben, "dog").status_code == 200  # both were asked for row 0
        label(ben, "dog")
        page = ann.get("/gallery").text
        assert "row 0" in page
        assert "row 1" not in page
        assert "ben" not in page
        assert "disagree)" not in page
        assert "ben" not in ann.get("/gallery?person=ben").text.partition("<main")[2]
        data = {"row": 0, "choice": "label:dog", "token": "change-000001"}
        reply = ann.post("/change", data=data)
        assert reply.status_code == 200
        assert "ben" not in reply.text
        reply = ann.post("/change", data={**data, "row": 1, "token": "change-000002"})
        assert reply.status_code == 403
        assert "somebody else's" in reply.text
    assert project.store.answers()[1].votes == {"ben": "dog"}


def test_the_history_is_the_event_log_and_can_be_downloaded(project, auth, address):
    with Named(address, auth, "olga") as olga:
        label(olga, "cat")
        olga.post("/people", data={"name": "ben", "role": "revoked"})
        page = olga.get("/history").text
        for words in (
            "labelled row 0: cat",
            "revoked the link of ben",
            "gave ann the role label",
            "added the class cat",
        ):
            assert words in page
        lines = olga.get("/download/history.csv").text.splitlines()
        assert len(lines) == 1 + project.store.last_seq()
        assert auth.token_of("ann", 1) not in "\n".join(lines)
        assert "labelled" not in olga.get("/history?person=setup").text
        assert olga.get("/history?row=0").text.count("<tr>") == 2


# --- links and sessions ----------------------------------------------------------------------------------------------


def test_a_link_follows_from_the_secret_the_name_and_its_number(tmp_path):
    auth = Auth.make(tmp_path)
    tokens = {auth.token_of(name, link) for name in ("ann", "ben", "ann1", "1") for link in (1, 2, 11)}
    assert len(tokens) == 12
    assert all(len(token) == 32 and token.isalnum() for token in tokens)
    (tmp_path / "page.key").unlink()
    assert Auth.make(tmp_path).token_of("ann", 1) not in tokens  # who removes the secret revokes every link


def test_a_session_ends_a_while_after_its_last_use_and_at_last(tmp_path, monkeypatch):
    auth, now = Auth.make(tmp_path), time.time()
    session = auth.new("ann")
    value = auth.sign(session)
    assert auth.read(value) == session
    monkeypatch.setattr(time, "time", lambda: now + IDLE_SECONDS - 60)
    assert auth.read(value) == session
    again = auth.sign(auth.read(value))  # used: the time begins again
    monkeypatch.setattr(time, "time", lambda: now + IDLE_SECONDS + 60)
    assert auth.read(value) is None
    assert auth.read(again) == session
    monkeypatch.setattr(time, "time", lambda: now + SESSION_SECONDS + 60)
    assert auth.read(auth.sign(replace(session))) is None  # however much it was used
    monkeypatch.setattr(time, "time", lambda: now - 2 * 86400)
    assert auth.read(value) is None  # it was signed by a clock that was ahead
    assert auth.read(auth.sign(Session("id", "ann", began=now))) is not None


def test_a_page_in_use_keeps_its_session_and_one_that_is_only_open_does_not(project, auth, address, monkeypatch):
    with Named(address, auth, "ann") as ann:
        ann.get("/")
        now = time.time()
        monkeypatch.setattr(time, "time", lambda: now + 7200)
        assert "set-cookie" not in ann.get("/status").headers  # asked for by the page itself
        assert "set-cookie" in ann.get("/gallery").headers
        assert "set-cookie" not in ann.get("/gallery").headers  # once an hour
        monkeypatch.setattr(time, "time", lambda: now + 2 * IDLE_SECONDS)
        assert ann.get("/card").status_code == 401
        assert ann.get("/").status_code == 401


def test_the_link_of_another_person_takes_over_a_browser(project, auth, address):
    with Named(address, auth, "ann") as browser:
        browser.get(f"/?token={auth.token_of('ben', 1)}")
        assert auth.read(browser.cookies[auth.cookie]).who == "ben"
        first = auth.read(browser.cookies[auth.cookie]).id
        browser.get(f"/?token={auth.token_of('ben', 1)}")
        assert auth.read(browser.cookies[auth.cookie]).id == first  # its own link again: open pages go on
