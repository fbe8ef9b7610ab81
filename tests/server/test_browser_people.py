"""Annotators with links of their own, in a real browser: what they see, a link revoked meanwhile, and what is left."""

import pytest
from test_browser import chromium, wait_until  # noqa: F401  # a fixture

from fake_project import fake_project, running
from labelwise.server import Auth


@pytest.fixture
def project(tmp_path):
    made = fake_project(tmp_path / "project", [f"Review {row}" for row in range(12)], people=2)
    for name, role in {"olga": "own", "ann": "label", "ben": "label"}.items():
        made.store.set_annotator(name, role, "setup")
    yield made
    made.close()


class Window:
    """A browser of its own; everything that it asks for and complains about."""

    def __init__(self, browser, address):
        self.context, self.address = browser.new_context(), address
        self.page, self.sent, self.complaints = self.context.new_page(), [], []
        self.page.on("request", lambda request: self.sent.append((request.url, request.headers.get("referer", ""))))
        self.page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self, token):
        self.page.goto(f"{self.address}/?token={token}")
        self.page.wait_for_selector("#card[data-ready]")


@pytest.mark.slow
def test_a_link_revoked_in_an_open_page_keeps_the_answer_until_there_is_a_new_one(project, chromium):  # noqa: F811
    auth = Auth.make(project.folder)
    with running(project, auth, every=-1.0) as address:
        ann = Window(chromium, address)
        ann.open(auth.token_of("ann", 1))
        assert ann.page.url == f"{address}/"
        with_token = [url for url, _ in ann.sent if "token=" in url]
        assert len(with_token) == 1  # the link itself
        assert not [url for url, referer in ann.sent if "token=" in referer and not url.startswith(address)]
        assert not ann.page.query_selector("text=Report")
        assert not ann.page.query_selector('[data-do="class"]')
        project.store.set_annotator("ann", None, "olga")
        ann.page.keyboard.press("1")
        ann.page.wait_for_selector("#trouble:not([hidden])")
        said = ann.page.inner_text("#trouble")
        assert "not saved yet" in said
        assert "revoked" in said
        assert project.store.progress().labels == 0
        other = ann.context.new_page()  # somebody else's link in the same browser sends nothing in their name
        other.goto(f"{address}/?token={auth.token_of('ben', 1)}")
        other.wait_for_selector("#card[data-ready]")
        assert [one for one in project.store.events() if one.kind == "label"] == []
        other.close()
        project.store.set_annotator("ann", "label", "olga")
        ann.open(auth.token_of("ann", 2))
        wait_until(ann.page, "!Object.keys(localStorage).some((key) => key.startsWith('labelwise:ann:'))")
        assert [(one.who, one.value) for one in project.store.events() if one.kind == "label"] == [("ann", "cat")]
        ann.context.close()


@pytest.mark.slow
def test_an_owner_decides_and_gives_and_revokes_links_on_the_page(project, chromium):  # noqa: F811
    for who, value in (("ann", "cat"), ("ben", "dog")):
        task = project.store.next_task(who)
        project.store.answer(task.token, who, "label", value, 1.0)
    auth = Auth.make(project.folder)
    with running(project, auth, every=-1.0) as address:
        olga = Window(chromium, address)
        olga.open(auth.token_of("olga", 1))
        olga.page.click("text=Review")
        olga.page.fill("#note-0", "by ear")
        olga.page.click("#row-0 button:has-text('dog')")
        olga.page.wait_for_selector("#row-0 .tag.good")
        found = project.store.answers()[0]
        assert (found.value, found.decided_by) == ("dog", "olga")
        assert [one.note for one in project.store.events() if one.kind == "decision"] == ["by ear"]
        olga.page.click("text=People")
        olga.page.fill("form:has-text('Add') input[name=name]", "cleo")
        olga.page.click("button:has-text('Add')")
        olga.page.wait_for_selector("input[aria-label='Link of cleo']")
        link = olga.page.input_value("input[aria-label='Link of cleo']")
        assert link == f"{address}/?token={auth.token_of('cleo', 1)}"
        olga.page.click("tr:has-text('ben') button:has-text('Revoke')")
        olga.page.wait_for_selector("tr:has-text('ben') option:has-text('revoked')", state="attached")
        assert project.store.annotators()["ben"].role is None
        olga.page.click("text=History")
        olga.page.wait_for_selector("text=revoked the link of ben")
        assert olga.complaints == []
        olga.context.close()
