"""The page in a real browser: keys, undo, several people, a lost connection, retraining, resuming after a kill."""

import csv
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from fake_project import Suspect, fake_project, running
from labelwise.project import Project, Settings
from labelwise.project.suggest.suggestions import Suggestion, Suggestions
from labelwise.report.charts import Line, Point, line_chart
from labelwise.report.html import html_document
from labelwise.server import Auth
from private_postgres import leave_out

REVIEWS = [f"Review {row}: <b>not bold</b>, and quite long. " * 4 for row in range(30)]


@pytest.fixture(scope="module")
def chromium():
    """The chromium of the system."""
    found = (shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome"))
    program = next((path for path in found if path is not None), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        leave_out("the page was not tried in a browser: the package playwright is not installed")
    if program is None:
        leave_out("the page was not tried in a browser: no chromium is installed (apt-get install chromium)")
    with sync_playwright() as play:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = play.chromium.launch(executable_path=program, args=options)
        yield browser
        browser.close()


def wait_until(page, expression, timeout=20.0):
    """Wait until `expression` is true in `page`.

    Playwright's own `wait_for_function` evaluates a text inside of the page when it polls, which the page's
    Content-Security-Policy forbids: it fails whenever its first look comes too early.
    """
    end = time.monotonic() + timeout
    while not _is_true(page, expression):
        assert time.monotonic() < end, f"not true within {timeout:g} s: {expression}"
        page.wait_for_timeout(20)


def _is_true(page, expression):
    """Whether `expression` is true; not yet, where the page is just being replaced."""
    try:
        return page.evaluate(expression)
    except Exception as error:  # of playwright, which may not be installed
        if "context was destroyed" not in str(error):
            raise
        return False


class Person:
    """Somebody at the keyboard. What the browser complains about is kept."""

    def __init__(self, browser, address, name, width=1280, height=800, touch=False):
        self.context = browser.new_context(
            viewport={"width": width, "height": height}, has_touch=touch, is_mobile=touch
        )
        self.page = self.context.new_page()
        self.complaints = []
        # Caught from the start: a request sent just after catching begins may still get through.
        self.sending = lambda route: route.continue_()
        self.page.route("**/answer", lambda route: self.sending(route))
        self.page.on("console", self.hear)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.goto(address)
        # On a busy machine the page may be there before its scripts are; nobody types that fast.
        wait_until(self.page, "Boolean(window.htmx) && document.readyState === 'complete'")
        self.page.fill("input[name=name]", name)
        self.page.keyboard.press("Enter")
        self.ready()

    def hear(self, said):
        if said.type == "error":
            self.complaints.append(f"{said.text} ({said.location.get('url')})")

    def ready(self, timeout=20000):
        self.page.wait_for_selector("#card[data-ready]", timeout=timeout)

    @property
    def row(self):
        return int(self.page.get_attribute("#card", "data-row"))

    def press(self, key, timeout=20000):
        """Press a key and wait for the next card."""
        token = self.page.get_attribute("#card", "data-token")
        self.page.keyboard.press(key)
        self.page.wait_for_selector(f'#card[data-ready]:not([data-token="{token}"])', timeout=timeout)

    def close(self):
        self.page.unroute_all(behavior="ignoreErrors")
        self.context.close()
        assert self.complaints == []


@pytest.fixture
def project(tmp_path, request):
    made = fake_project(tmp_path / "project", **getattr(request, "param", {"data": REVIEWS}))
    yield made
    made.close()


@pytest.fixture
def address(project):
    with running(project, Auth.make(project.folder)) as found:
        yield found


@pytest.fixture
def anna(chromium, address):
    person = Person(chromium, address, "anna")
    yield person
    person.close()


def labels(project):
    return {row: answer.value for row, answer in project.store.answers().items()}


@pytest.mark.slow
def test_labelling_with_the_keyboard(project, anna):
    page, rows = anna.page, []
    for key in "1221":
        rows.append(anna.row)
        anna.press(key)
    assert labels(project) == dict(zip(rows, ["cat", "dog", "dog", "cat"]))
    assert "Saved: cat." in page.inner_text("#said")
    assert "Next: " in page.inner_text("#said")
    anna.press("z")  # back to the last one
    assert anna.row == rows[3]
    assert page.is_visible("#item-title .tag")
    anna.press("2")
    assert labels(project)[rows[3]] == "dog"
    anna.press("Backspace")
    anna.press("1")
    assert labels(project)[rows[3]] == "cat"
    skipped, unsure = anna.row, None
    anna.press("s")
    unsure = anna.row
    anna.press("u")
    answers = project.store.answers()
    assert (answers[skipped].kind, answers[unsure].kind) == ("skip", "unsure")
    noted = anna.row
    page.keyboard.press("n")
    page.keyboard.type("s12 is only text here")
    page.keyboard.press("Escape")
    anna.press("1")
    event = project.store.events()[-1]
    assert (event.row, event.value, event.note) == (noted, "cat", "s12 is only text here")
    assert 0 < event.seconds < 60
    page.keyboard.press("+")
    page.keyboard.type("bird")
    page.keyboard.press("Enter")
    page.wait_for_selector('button[data-value="bird"]')
    row = anna.row
    page.wait_for_selector("#card[data-ready]")
    anna.press("3")
    assert labels(project)[row] == "bird"
    page.keyboard.press("?")
    assert page.is_visible("#keys")
    page.keyboard.press("Escape")
    before = anna.row
    page.keyboard.press("9")  # no such class
    page.keyboard.press("Control+1")
    assert anna.row == before


@pytest.mark.slow
def test_data_is_text_and_says_why_it_was_picked(project, anna):
    assert "<b>not bold</b>" in anna.page.inner_text(".stage")
    assert anna.page.locator(".stage b").count() == 0
    assert f"Reason {anna.row}." in anna.page.inner_text(".why")
    assert "margin" in anna.page.inner_text(".why")
    first = anna.row
    anna.press("1")
    anna.page.wait_for_selector(".neighbours li")
    assert "cat" in anna.page.inner_text(".neighbours")
    assert f"Review {first}:" in anna.page.inner_text(".neighbours")
    anna.page.wait_for_selector("text=1 of 30 answered")


@pytest.mark.slow
def test_two_people_at_once(chromium, address, project, anna):
    ben = Person(chromium, address, "ben")
    seen = {anna: [], ben: []}
    for turn in range(5):
        assert anna.row != ben.row
        for person in (anna, ben):
            seen[person].append(person.row)
            person.press("12"[turn % 2])
    assert not set(seen[anna]) & set(seen[ben])
    assert {event.who for event in project.store.events() if event.kind == "label"} == {"anna", "ben"}
    ben.close()


@pytest.mark.slow
def test_an_answer_that_does_not_arrive_is_sent_again_and_counted_once(project, anna):
    page, row = anna.page, anna.row
    lost = []

    def lose(route):
        lost.append(route.request.post_data)
        if len(lost) == 2:
            route.fetch()  # it arrives, and the reply is lost
        route.abort()

    anna.sending = lose
    page.keyboard.press("1")
    page.wait_for_selector("#trouble:not([hidden])")
    page.locator("#trouble", has_text="not saved yet").wait_for()
    page.keyboard.press("2")  # not taken while the first is on its way
    while len(lost) < 3:
        page.wait_for_timeout(50)
    assert anna.row == row
    anna.sending = lambda route: route.continue_()
    page.wait_for_selector(f'#card[data-ready]:not([data-row="{row}"])')
    assert page.is_hidden("#trouble")
    assert [(event.row, event.value) for event in project.store.events() if event.kind == "label"] == [(row, "cat")]
    assert len(set(lost)) == 1
    anna.complaints = [text for text in anna.complaints if "ERR_FAILED" not in text]


@pytest.mark.slow
def test_an_answer_is_kept_over_a_reload(project, anna):
    page, row = anna.page, anna.row
    anna.sending = lambda route: route.abort()
    page.keyboard.press("2")
    page.wait_for_selector("#trouble:not([hidden])")
    # Other keys, such as labelwise-hint:, hold what the person has seen or prefers.
    answers = "Object.keys(localStorage).filter((key) => key.startsWith('labelwise:')).length"
    assert page.evaluate(answers) == 1
    anna.sending = lambda route: route.continue_()
    page.on("dialog", lambda dialog: dialog.accept())
    page.reload()
    page.wait_for_selector(f'#card[data-ready]:not([data-row="{row}"])')
    assert labels(project) == {row: "dog"}
    wait_until(page, f"{answers} === 0")  # the card may be there a moment before
    anna.complaints = [text for text in anna.complaints if "ERR_FAILED" not in text]


PICTURES = {"data": [1, 2, (), 4, 5, 6], "kind": "image"}  # () is none


@pytest.mark.slow
@pytest.mark.parametrize("project", [PICTURES], indirect=True)
def test_pictures_are_fetched_ahead_and_a_broken_one_is_said(project, anna):
    page, asked = anna.page, project.asked
    for _ in range(100):
        if (1, 1280) in asked:  # while the first is looked at
            break
        page.wait_for_timeout(50)
    assert asked.count((1, 1280)) == 1
    anna.press("1")
    assert anna.row == 1
    assert page.evaluate("() => document.querySelector('.stage img').naturalWidth") > 0
    assert asked.count((1, 1280)) == 1  # and not again
    anna.press("1")
    assert anna.row == 2
    page.wait_for_selector(".stage .bad")
    assert "cannot be shown" in page.inner_text(".stage")
    anna.press("s")
    assert page.evaluate("() => document.querySelector('.stage img').naturalWidth") > 0
    anna.complaints = [text for text in anna.complaints if "Failed to load resource" not in text]


TOWNS = [{"age": row, "town": "Rome"} for row in range(8)]
NUMBERS = {"data": TOWNS, "kind": "table", "classes": (), "task": "regress"}


@pytest.mark.slow
@pytest.mark.parametrize("project", [NUMBERS], indirect=True)
def test_numbers_are_typed_without_the_mouse(project, anna):
    rows = [anna.row]
    anna.page.keyboard.type("12.5")
    anna.press("Enter")
    rows.append(anna.row)
    anna.page.keyboard.type("1-")
    anna.page.keyboard.press("Enter")
    anna.page.wait_for_selector("#number-form .bad:not([hidden])")
    anna.page.fill("#number", "-3")
    anna.press("Enter")
    assert labels(project) == dict(zip(rows, ["12.5", "-3.0"]))
    rows.append(anna.row)
    anna.press("u")  # no digit: a command also while the field has the keyboard
    assert project.store.answers()[rows[2]].kind == "unsure"
    anna.press("z")
    assert anna.row == rows[2]
    anna.complaints = [text for text in anna.complaints if "422" not in text]


MANY = {"data": REVIEWS, "classes": tuple(f"kind {number:02d}" for number in range(40))}


@pytest.mark.slow
@pytest.mark.parametrize("project", [MANY], indirect=True)
def test_a_class_is_found_by_its_name(project, anna):
    row = anna.row
    anna.page.keyboard.press("/")
    anna.page.keyboard.type("37")
    assert anna.page.locator(".classes button:visible").count() == 1
    anna.press("Enter")
    assert labels(project) == {row: "kind 37"}
    assert anna.page.locator(".classes button").count() == 40


@pytest.mark.slow
def test_the_gallery_changes_a_label(project, anna):
    rows = []
    for key in "1122":
        rows.append(anna.row)
        anna.press(key)
    project.doubted = [Suspect(rows[1], "cat", "dog", 0.95)]
    page = anna.page
    page.click("nav >> text=Gallery")
    page.wait_for_selector(".one")
    assert page.locator(".one").first.get_attribute("id") == f"row-{rows[1]}"
    assert "95 % sure that cat is wrong" in page.locator(".one").first.inner_text()
    page.select_option(f"#row-{rows[1]} select", "label:dog")
    page.wait_for_selector(f"#row-{rows[1]} .tag.good")
    assert labels(project)[rows[1]] == "dog"
    page.select_option("select[name=label]", "cat")
    page.wait_for_selector("text=1 item.")
    page.select_option("select[name=label]", "")
    page.wait_for_selector("text=4 items.")  # else the one item of before is taken for the one that is searched
    page.fill("#search", f"review {rows[2]}:")
    page.wait_for_selector("text=1 item.")
    assert page.locator(".one").count() == 1


@pytest.mark.slow
def test_fields_wait_for_the_script_that_sends_what_they_hold(chromium, address):
    page, requests = chromium.new_page(), []
    page.route("**/htmx-*.js", lambda route: requests.append(route))
    page.goto(address, wait_until="commit")
    page.wait_for_selector("input[name=name]")
    assert page.locator("input[name=name]").is_disabled()
    requests.pop().continue_()
    page.unroute("**/htmx-*.js")
    page.wait_for_selector("input[name=name]:enabled:focus")
    page.fill("input[name=name]", "anna")
    page.keyboard.press("Enter")
    page.wait_for_selector("#card[data-ready]")
    page.close()


@pytest.mark.slow
def test_on_a_phone_nothing_is_cut_off_and_buttons_are_large(chromium, address, project):
    ben = Person(chromium, address, "ben", 390, 844, touch=True)
    page, row = ben.page, ben.row
    for path in ("/", "/gallery", "/report"):
        page.goto(address + path)
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390, path
    page.goto(address)
    ben.ready()
    sizes = page.evaluate(
        """() => [...document.querySelectorAll('#card button')].map(b => b.getBoundingClientRect())
        .filter(r => r.width).map(r => [r.width, r.height, r.bottom])"""
    )
    assert all(width >= 44 and height >= 44 for width, height, _ in sizes)
    assert max(bottom for *_, bottom in sizes[:2]) < 844  # the classes are on the first screen
    page.tap("button[data-value=dog]")
    page.wait_for_selector(f'#card[data-ready]:not([data-row="{row}"])')
    assert labels(project) == {row: "dog"}
    ben.close()


TEN = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


@pytest.mark.slow
@pytest.mark.parametrize(
    "project", [{"data": REVIEWS, "classes": TEN[:4]}, {"data": REVIEWS, "classes": TEN}], indirect=True
)
@pytest.mark.parametrize("size", [(1280, 780), (390, 830)])
def test_names_of_classes_and_pages_are_not_broken_or_cut_off(chromium, address, project, size):
    anna = Person(chromium, address, "anna", *size, touch=size[0] < 500)
    lines = anna.page.evaluate(
        """() => [...document.querySelectorAll('.classes button span')].filter(span =>
        span.offsetHeight > 1.6 * parseFloat(getComputedStyle(span).fontSize)).map(span => span.innerText)"""
    )
    assert lines == []  # names of more than one line
    assert (
        anna.page.evaluate(
            "() => { const nav = document.querySelector('nav'); return nav.scrollWidth - nav.clientWidth }"
        )
        <= 0
    )
    assert anna.page.evaluate("() => document.documentElement.scrollWidth") <= size[0]
    anna.close()


@pytest.mark.slow
def test_every_control_has_a_name_and_the_keyboard_reaches_it(address, anna):
    for path in ("/", "/gallery", "/report"):
        anna.page.goto(address + path)
        nameless = anna.page.evaluate(
            """() => [...document.querySelectorAll('button, a, input, select, textarea, img, progress')]
            .filter(e => e.type !== 'hidden' && !(e.labels && e.labels.length))
            .filter(e => !e.getAttribute('aria-label') && !e.alt && !e.textContent.trim()).map(e => e.outerHTML)"""
        )
        assert nameless == []
        assert anna.page.evaluate("() => document.querySelectorAll('h1').length") == 1
        assert anna.page.evaluate("() => document.documentElement.lang") == "en"
    anna.page.goto(address)
    anna.ready()
    reached = set()
    for _ in range(25):
        anna.page.keyboard.press("Tab")
        reached.add(anna.page.evaluate("() => document.activeElement.textContent.trim().replace(/\\s+/g, ' ')"))
    assert {"1 cat", "2 dog", "s Skip", "u Unsure", "z Undo", "n Note", "+ Class"} <= reached


@pytest.mark.slow
def test_the_link_with_the_token_opens_the_page_and_leaves_the_address(chromium, project):
    auth = Auth.make(project.folder, token="0123456789abcdefghij")
    with running(project, auth) as address:
        ben = Person(chromium, f"{address}/?token={auth.token}", "ben")
        assert ben.page.url == f"{address}/"
        row = ben.row
        ben.press("1")
        assert labels(project) == {row: "cat"}
        ben.close()
        stranger = chromium.new_page()
        stranger.goto(address)
        assert "Open the full link" in stranger.inner_text("main")
        stranger.close()


# --- a real project, the real worker ---------------------------------------------------------------------------------


def points(folder: Path, rows: int = 60) -> Path:
    """A project of points on a line, left or right of 0."""
    folder.mkdir()
    x = np.random.Generator(np.random.PCG64(0)).normal(size=(rows, 2))
    with (folder / "points.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["x", "y"], *x.round(4).tolist()])
    kind = {"kind": "table", "source": "../points.csv", "columns": ("x", "y"), "classes": ("left", "right"), "k": 6}
    Project.create(folder / "project", Settings(name="Points", **kind)).close()
    return folder / "project"


class Server:
    """`serve` in a process of its own, with its worker."""

    def __init__(self, folder, port):
        code = (
            "import sys; from labelwise.server import serve; from labelwise.project import Project; "
            "serve(Project.open(sys.argv[1]), port=int(sys.argv[2]), open_browser=False)"
        )
        command = [sys.executable, "-c", code, str(folder), str(port)]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if line.startswith("Labelling page"):
                self.address = line.split()[-1]
                return
        raise AssertionError("the server did not start")

    def end(self, number):
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.said = self.process.stderr.read()
        self.process.stderr.close()
        return code


@pytest.fixture
def start():
    """Starts servers; none of them outlives the test."""
    started = []

    def begin(folder, port):
        started.append(Server(folder, port))
        return started[-1]

    yield begin
    for server in started:
        if server.process.poll() is None:
            server.end(signal.SIGTERM)


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def answer_truly(person, times):
    for _ in range(times):
        person.page.wait_for_selector("#card[data-token][data-ready]", timeout=60000)
        x = float(re.search(r"x\s+(-?[\d.e-]+)", person.page.inner_text(".stage"))[1])
        token = person.page.get_attribute("#card", "data-token")
        person.page.keyboard.press("1" if x < 0 else "2")
        person.page.wait_for_selector(f'#card:not([data-token="{token}"])')


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_retraining_and_resuming_after_a_kill(chromium, start, tmp_path):
    folder, port = points(tmp_path / "here"), free_port()
    server = start(folder, port)
    anna = Person(chromium, server.address, "anna")
    answer_truly(anna, 8)  # into the second round, which the worker trained for and chose
    anna.page.wait_for_selector("#card[data-token][data-ready]", timeout=60000)
    row = anna.row
    worker = int(re.search(r'"pid": (\d+)', (folder / "worker.json").read_text())[1])
    server.end(signal.SIGKILL)
    anna.page.keyboard.press("1")  # given while no server is there
    trouble = anna.page.locator("#trouble", has_text="not saved yet")
    trouble.wait_for()  # whatever else failed before it
    anna.page.evaluate("document.dispatchEvent(new Event('htmx:sendError'))")  # as the meter's next question will
    assert trouble.is_visible()
    server = start(folder, port)
    assert server.address.endswith(f":{port}/")
    anna.page.wait_for_selector(f'#card:not([data-row="{row}"])', timeout=60000)
    assert anna.page.is_hidden("#trouble")
    answer_truly(anna, 3)
    anna.page.goto(server.address + "report")
    assert "Rounds" in anna.page.inner_text("main")
    anna.complaints = [text for text in anna.complaints if not ("ERR_" in text or "htmx:" in text)]
    anna.close()
    assert server.end(signal.SIGTERM) == 0
    assert "Stopped." in server.said
    for _ in range(100):
        if not Path(f"/proc/{worker}").exists():
            break
        time.sleep(0.1)
    assert not Path(f"/proc/{worker}").exists()  # the worker of a killed server goes too
    project = Project.open(folder)
    try:
        events = [event for event in project.store.events() if event.kind == "label"]
        assert len(events) == 12
        assert len({event.row for event in events}) == 12
        assert project.store.answers()[row].value == "left"
        assert len(project.store.rounds()) >= 2
        assert project.store.rounds()[1].after > 0
    finally:
        project.close()


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_chart_of_a_file_tells_its_numbers_on_hover_and_tap_and_nothing_is_cut_off(chromium, tmp_path, width):
    own = Line("own", [Point(10, 0.2, 0.1, 0.3), Point(20, 0.4, 0.3, 0.5)], "var(--line-0)")
    chart = line_chart([own], "A chart", lambda value: f"{100 * value:.0f} %", share=True)
    (tmp_path / "page.html").write_text(html_document("Page", [f'<div class="report"><h1>Page</h1>{chart}</div>']))
    context = chromium.new_context(viewport={"width": width, "height": 800}, has_touch=width < 500)
    page, complaints = context.new_page(), []
    page.on("console", lambda said: complaints.append(said.text))
    page.goto((tmp_path / "page.html").as_uri())
    assert page.is_hidden(".tip")
    seen = ".narrow" if width < 500 else ".wide"
    box = page.locator(f"{seen} .hit").nth(1).bounding_box()
    point = page.touchscreen.tap if width < 500 else page.mouse.move
    point(box["x"] + 0.8 * box["width"], box["y"] + 20)
    assert page.inner_text(".tip") == "20 labels\nown: 40 % (30 % to 50 %)"
    tip = page.locator(".tip").bounding_box()
    assert tip["x"] >= 0
    assert tip["x"] + tip["width"] <= width
    page.keyboard.press("Escape")
    assert page.is_hidden(".tip")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    assert page.locator(".wide").is_visible() != page.locator(".narrow").is_visible()
    assert complaints == []
    context.close()


@pytest.mark.slow
def test_enter_accepts_a_suggestion_and_a_full_stop_hides_it(project, anna):
    page, first = anna.page, anna.row
    project.suggested = Suggestions("names", (), {row: Suggestion("dog", 0.9) for row in range(1, 30)})
    page.keyboard.press("Enter")  # nothing is suggested for the first item
    assert anna.row == first
    anna.press("1")
    second = anna.row
    anna.press("Enter")
    assert labels(project) == {first: "cat", second: "dog"}
    page.keyboard.press(".")
    assert not page.is_visible("[data-suggested]")
    hidden = anna.row
    page.keyboard.press("Enter")
    assert anna.row == hidden
    page.reload()
    page.wait_for_selector("#card[data-ready]")
    assert not page.is_visible("[data-suggested]")  # the choice stays
    page.keyboard.press(".")
    anna.press("Enter")
    assert labels(project)[hidden] == "dog"


@pytest.mark.slow
@pytest.mark.parametrize("size", [(1280, 800), (390, 830)])
@pytest.mark.parametrize("project", [{"data": list(range(30)), "kind": "image", "name": "Shots"}], indirect=True)
def test_the_grid_is_labelled_with_the_keyboard_and_a_row_of_suggestions_is_accepted(chromium, address, project, size):
    project.suggested = Suggestions("names", (), {row: Suggestion("dog", 0.9) for row in range(30)})
    anna = Person(chromium, address, "anna", *size)
    page = anna.page
    page.click("nav a[href='/grid']")
    page.wait_for_selector("#grid[data-shown='1'] .tile.marked")
    tiles = page.locator(".tile")
    assert tiles.count() == 12
    page.keyboard.press("ArrowRight")
    page.keyboard.press("1")  # the second item
    page.keyboard.press("Enter")  # the third: the suggestion
    page.wait_for_selector('.tile[data-row="2"] .told:has-text("Saved: dog")')
    assert labels(project) == {1: "cat", 2: "dog"}
    page.keyboard.press("z")
    page.wait_for_selector('.tile[data-row="2"]:not(.done)')
    assert labels(project) == {1: "cat"}
    tops = [tile.bounding_box()["y"] for tile in tiles.all()]
    row = {at for at, top in enumerate(tops) if abs(top - tops[2]) < 4}
    page.keyboard.press("Shift+Enter")
    expected = {1: "cat"} | {at: "dog" for at in row if at != 4 and at != 1 and at != 9}  # 4 and 9 are test items
    for at in expected:
        page.wait_for_selector(f'.tile[data-row="{at}"] .told:has-text("Saved")')
    assert labels(project) == expected
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    for at in range(12):
        if at not in expected:
            page.click(f'.tile[data-row="{at}"] button[data-value="cat"]')
    page.wait_for_selector("#grid[data-shown='2'] .tile.marked")  # the next ones come by themselves
    assert len(labels(project)) == 12
    anna.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "project", [{"data": REVIEWS, "task": "multi", "classes": ("red", "big", "old")}], indirect=True
)
def test_several_classes_are_marked_and_saved_together(project, anna):
    project.store.use_sets()
    page, first = anna.page, anna.row
    page.keyboard.press("3")
    page.keyboard.press("1")
    page.keyboard.press("2")
    page.keyboard.press("2")  # and not
    anna.press("Enter")
    second = anna.row
    anna.press("Enter")  # none of them
    third = anna.row
    page.click('button[data-value="big"]')
    anna.press("Enter")
    assert labels(project) == {first: "red|old", second: "(none)", third: "big"}
    page.click("nav a[href='/grid']")
    page.wait_for_selector("#grid[data-shown='1'] .tile.marked")
    row = int(page.get_attribute(".tile.marked", "data-row"))
    page.keyboard.press("1")
    page.keyboard.press("2")
    page.keyboard.press("Enter")
    page.wait_for_selector(f'.tile[data-row="{row}"] .told:has-text("Saved: red|big")')
    assert labels(project)[row] == "red|big"
