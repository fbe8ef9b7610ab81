"""The grid: many items at once, each answered on its own; near-copies that get the label of the item they copy."""

import re

import pytest

from fake_project import Browser, fake_project, running
from labelwise.project.store import Pick, Round
from labelwise.project.suggest.suggestions import Suggestion, Suggestions
from labelwise.server import Auth

TOKEN = re.compile(r'class="tile"[^>]* data-token="([^"]+)" data-row="(\d+)"')


@pytest.fixture
def texts(tmp_path):
    """Nine texts; one more round asks for row 9, which rows 10 and 11 copy, and row 3, labelled before, too."""
    made = fake_project(tmp_path / "project", [f"text {row} <i>" for row in range(12)], picks=9)
    auth = Auth.make(made.folder)
    with running(made, auth) as address:
        yield made, lambda name="anna": Browser(address, auth, name)
    made.close()


def tiles(text):
    return {int(row): token for token, row in TOKEN.findall(text)}


def send(browser, token, value="cat", **more):
    return browser.post("/tile", data={"token": token, "kind": "label", "value": value, "seconds": "2", **more})


def test_the_grid_shows_items_that_nobody_else_gets(texts):
    _project, browser = texts
    with browser("anna") as anna, browser("ben") as ben:
        page = anna.get("/grid").text
        mine, others = tiles(page), tiles(ben.get("/grid").text)
        assert (sorted(mine), sorted(others)) == ([0, 1, 2, 3, 4, 5], [6, 7, 8])
        assert "text 0 &lt;i&gt;" in page
        assert "<i>" not in page
        assert tiles(anna.get("/tiles").text) == mine  # asked again, they are the same


def test_each_answer_of_the_grid_is_saved_alone_and_counted_once(texts):
    project, browser = texts
    with browser() as anna:
        found = tiles(anna.get("/tiles").text)
        assert "Saved: <b>cat</b>" in send(anna, found[2]).text
        assert send(anna, found[2]).status_code == 200
        assert send(anna, found[4], "dog").status_code == 200
        assert send(anna, found[4], "bird").status_code == 422
        assert send(anna, "nothing").status_code == 409
        assert {row: one.value for row, one in project.store.answers().items()} == {2: "cat", 4: "dog"}
        assert sum(event.kind == "label" for event in project.store.events()) == 2
        assert sorted(tiles(anna.get("/tiles").text)) == [0, 1, 3, 5, 6, 7]


def test_an_undo_brings_the_tile_back(texts):
    project, browser = texts
    with browser() as anna:
        found = tiles(anna.get("/tiles").text)
        send(anna, found[3])
        back = anna.post("/tile/undo", data={"token": "undo-0001"}).text
        assert list(tiles(back)) == [3]
        assert "undone" in back
        assert project.store.answers() == {}
        assert send(anna, tiles(back)[3], "dog").status_code == 200
        assert project.store.answers()[3].value == "dog"
        assert anna.post("/tile/undo", data={"token": "undo-0001"}).status_code == 200  # sent again: nothing more
        assert project.store.answers()[3].value == "dog"


def test_suggestions_are_on_tiles_of_chosen_items_alone(texts):
    project, browser = texts
    project.suggested = Suggestions("names", (), {row: Suggestion("dog", 0.9) for row in range(9)})
    with browser() as anna:
        page = anna.get("/grid").text
        marked = {int(row) for row in re.findall(r'data-row="(\d+)" data-suggested="dog"', page)}
        assert marked == {0, 1, 2, 3, 5}  # 4 is a test item


@pytest.mark.parametrize("path", ["/answer", "/tile"])
def test_near_copies_get_the_label_too_once_and_never_one_that_has_an_answer(texts, path):
    project, browser = texts
    project.store.add_round(
        Round(2, "margin", "", 0, 0, {}), [Pick(9, "chosen", 1.0, {"words": "w", "copies": [10, 11, 0]})]
    )
    with browser() as anna:
        first = tiles(anna.get("/tiles").text)
        for row in range(6):
            send(anna, first[row], "dog")
        for row, token in tiles(anna.get("/tiles").text).items():
            if row != 9:
                send(anna, token, "dog")
        card = anna.get("/card").text
        assert "Label all 2 too" in card
        assert "text 10" in card
        fields = {
            "token": tiles(anna.get("/tiles").text)[9],
            "kind": "label",
            "value": "cat",
            "seconds": "1",
            "copies": "yes",
        }
        reply = anna.post(path, data=fields)
        assert "for 3 items" in reply.text
        anna.post(path, data=fields)
        found = {row: one.value for row, one in project.store.answers().items()}
        assert found == {**dict.fromkeys(range(9), "dog"), 9: "cat", 10: "cat", 11: "cat"}
        assert len(project.store.events()) == 2 + 12

        reply = anna.post("/tile/undo", data={"token": "undo-0002"})
        assert list(tiles(reply.text)) == [9]
        assert not {9, 10, 11} & set(project.store.answers())  # the copies with it


def test_near_copies_are_those_that_hardly_differ():
    import numpy as np

    from labelwise.pool import Pool
    from labelwise.project.loop.explain import near_copies

    x_ND = np.eye(6, dtype=np.float32)[[0, 1, 2, 0, 0, 1]]
    x_ND[4, 5] = 0.1
    x_ND[5, 5] = 0.4
    assert near_copies(np.array([0, 1]), Pool.of(x_ND), {0, 1}) == {0: [3, 4]}
    assert near_copies(np.array([0, 1]), Pool.of(x_ND), {0, 1, 3}) == {0: [4]}
