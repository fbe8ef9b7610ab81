"""The page where disagreements are decided."""

import re

import pytest

from fake_project import Browser, fake_project, running
from labelwise.server import Auth

EVIL = "<img src=x onerror=alert(1)>\"' & {{7*7}}"

pytestmark = pytest.mark.slow  # each test has a server of its own


@pytest.fixture
def project(tmp_path):
    made = fake_project(
        tmp_path / "project", [f"text {row} {EVIL}" for row in range(6)], people=2, classes=("cat", EVIL)
    )
    for who, values in (("ann", ["cat", "cat", None]), (f"ben {EVIL}"[:40], [EVIL, "cat", None])):
        for value in values:
            task = made.store.next_task(who)
            note = f"note {EVIL}" if value == EVIL else ""
            made.store.answer(task.token, who, "label" if value else "unsure", value, 1.0, note)
    yield made
    made.close()


@pytest.fixture
def rita(project):
    auth = Auth.make(project.folder)
    with running(project, auth) as address, Browser(address, auth, "rita") as browser:
        yield browser


def fields(html):
    return {name: re.search(f'name="{name}" value="([^"]+)"', html)[1] for name in ("row", "seen", "token")}


def test_disagreements_are_listed_decided_and_reopened(project, rita):
    page = rita.get("/review").text
    assert "To decide (1)" in page
    assert "Unsure or skipped (1)" in page
    sent = fields(page)
    assert sent["row"] == "0"
    reply = rita.post("/decide", data={**sent, "choice": "label:cat", "note": "seen twice"})
    assert "decided" in reply.text
    assert "by rita" in reply.text
    found = project.store.answers()[0]
    assert (found.value, found.decided_by) == ("cat", "rita")
    assert "Nobody disagrees" in rita.get("/review").text
    decided = rita.get("/review?show=decided").text
    assert "Note by rita: seen twice" in decided
    assert "decided by rita" in rita.get("/gallery").text.replace("\n", " ")
    rita.post("/decide", data={**fields(decided), "choice": "reopen"})
    assert project.store.answers()[0].kind == "split"


def test_the_gallery_of_a_reviewer_changes_the_decision(project, rita):
    rita.post("/decide", data={**fields(rita.get("/review").text), "choice": "unsure"})
    assert project.store.answers()[0].kind == "unsure"
    reply = rita.post("/change", data={"row": 0, "choice": "label:cat", "token": "change-000001"})
    assert reply.status_code == 200
    found = project.store.answers()[0]
    assert (found.value, found.decided_by, set(found.votes) & {"rita"}) == ("cat", "rita", set())
    assert rita.post("/change", data={"row": 0, "choice": "skip", "token": "change-000002"}).status_code == 422


def test_a_page_that_is_out_of_date_decides_nothing(project, rita):
    sent = fields(rita.get("/review").text)
    project.store.change("ann", 0, "label", EVIL, "change of ann")
    reply = rita.post("/decide", data={**sent, "choice": "label:cat"})
    assert "Somebody has changed this item" in reply.text
    assert project.store.answers()[0].value == EVIL
    assert project.store.answers()[0].decided_by == ""


def test_what_is_sent_is_checked(project, rita):
    sent, before = fields(rita.get("/review").text), project.store.last_seq()
    for wrong, status in (
        ({"choice": "label:cow"}, 422),
        ({"choice": ""}, 422),
        ({"choice": "x" * 201}, 422),
        ({"row": 99, "choice": "unsure"}, 422),
        ({"row": 4, "choice": "unsure"}, 422),
        ({"row": 10**30, "choice": "unsure"}, 422),
        ({"row": "0; DROP TABLE", "choice": "unsure"}, 422),
        ({"seen": 10**30, "choice": "label:cat"}, 200),
        ({"token": "short", "choice": "unsure"}, 422),
    ):
        assert rita.post("/decide", data={**sent, **wrong}).status_code == status, wrong
    assert project.store.last_seq() == before
    assert rita.get("/review?show=everything").status_code == 422
    assert rita.get("/review?page=0").status_code == 422
    assert rita.get("/review?page=99").status_code == 200


def test_a_set_of_classes_is_decided_by_boxes(tmp_path):
    made = fake_project(tmp_path / "project", ["a", "b"], people=2, classes=("cat", "dog", "cow"), task="multi")
    made.store.use_sets()
    for who, value in (("ann", "cat|dog"), ("ben", "cow")):
        task = made.store.next_task(who)
        made.store.answer(task.token, who, "label", value, 1.0)
    auth = Auth.make(made.folder)
    with running(made, auth) as address, Browser(address, auth, "rita") as browser:
        page = browser.get("/review").text
        assert page.count('type="checkbox"') == 3
        reply = browser.post("/decide", data={**fields(page), "choice": "set", "names": ["dog", "cat", "cow"]})
        assert "decided" in reply.text
        assert made.store.answers()[0].value == "cat|dog|cow"
        reply = browser.post("/decide", data={**fields(reply.text), "choice": "label:cat|dog"})
        assert made.store.answers()[0].value == "cat|dog"
        reply = browser.post("/decide", data={**fields(reply.text), "choice": "set", "names": ["horse"]})
        assert reply.status_code == 422
    made.close()


def test_nothing_that_people_write_is_markup(project, rita):
    project.store.set_annotator(EVIL, "own", "setup")
    auth = Auth.make(project.folder)
    with running(project, auth) as address, Browser(address, auth, name=None) as owner:
        owner.get(f"/?token={auth.token_of(EVIL, 1)}")
        for path in ("/", "/review", "/review?show=unsure", "/gallery", "/people", "/history", "/report"):
            page = owner.get(path)
            assert page.status_code == 200
            assert "<img src=x" not in page.text
            assert "alert(1)&gt;" in page.text, path
            assert "' &amp; 49" not in page.text
