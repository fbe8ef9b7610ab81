"""Labels of a project to files and back: every format, odd names, formulas, dry runs, and nobody overwritten."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.errors import ArgumentError, SourceError, StoreError
from labelwise.project import Project, Settings
from labelwise.project.exchange.changes import apply, plan
from labelwise.project.exchange.columns import escape_formula, unescape_formula
from labelwise.project.exchange.entries import ballots, entries
from labelwise.project.exchange.export import export
from labelwise.project.exchange.folders import UniqueNames, safe_name
from labelwise.project.exchange.read_labels import read_labels
from labelwise.project.store import Pick, Round

CLASSES = ("cat", "=dog", "../up", "Cat")
NAMES = ("a/one.png", "b/one.png", "c d.png", "=sum.png", "e.png", "f.png", "g.png", "h.png")


@pytest.fixture
def photos(tmp_path: Path) -> Iterator[Project]:
    """Eight small pictures, among them two of one name and one that a spreadsheet would run."""
    for number, name in enumerate(NAMES):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20 + number, 16), (30 * number, 80, 90)).save(path)
    settings = Settings(name="photos", kind="image", source="../photos", encoder="pixels", classes=CLASSES, people=2)
    with closing(Project.create(tmp_path / "project", settings)) as project:
        yield project


@pytest.fixture
def words(tmp_path: Path) -> Iterator[Project]:
    """Ten texts, two of which are the same."""
    texts = [
        "fine",
        "=cmd|' /C calc'!A0",
        "bad",
        "so, so",
        'a "quoted" one',
        "same",
        "same",
        "line\nbreak",
        "-3",
        "'=x",
    ]
    with (tmp_path / "words.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["body"], *([one] for one in texts)])
    settings = Settings(
        name="words", kind="text", source="../words.csv", text="body", encoder="words", classes=("good", "bad"),
    )  # fmt: skip
    with closing(Project.create(tmp_path / "project", settings)) as project:
        yield project


def free(project: Project) -> list[int]:
    """Rows outside the test slice."""
    return [row for row in project.pool.ids.tolist() if row not in set(project.reserve.tolist())]


def label(project: Project, labels: dict[int, str], who: str = "ann") -> None:
    for row, value in labels.items():
        project.store.change(who, row, "label", value, f"{who}-{row}-{value}", seconds=2.0)


def read(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))


# --- cells and names -------------------------------------------------------------------------------------------------


@given(st.text(alphabet=st.sampled_from("=+-@\t\r\n'a1.,e\uff1d"), max_size=6) | st.text(max_size=8))
def test_a_guarded_cell_is_no_formula_and_comes_back(cell: str) -> None:
    written = escape_formula(cell)
    assert unescape_formula(written) == cell
    if written[:1] and written[0] in "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20":
        assert written[0] == "-"
        assert float(written) <= 0


@given(st.text(max_size=300))
def test_safe_names_stay_in_their_folder(text: str) -> None:
    name = safe_name(text)
    assert name not in ("", ".", "..")
    assert not set(name) & set('/\\:*?"<>|\x00')
    assert not name.startswith(".")
    assert len(name.encode()) <= 121
    assert os.path.basename(name) == name


@given(st.lists(st.sampled_from(["a", "A", "a-2", "a-7", "", "é", "e\u0301"]), max_size=12))
def test_no_name_is_given_twice(texts: list[str]) -> None:
    names = UniqueNames()
    given_names = [names.unique(text, ".png", "7").casefold() for text in texts]
    assert len(set(given_names)) == len(texts)


# --- export ----------------------------------------------------------------------------------------------------------


def test_csv_has_the_labels_and_says_what_was_left_out(photos: Project, tmp_path: Path) -> None:
    rows, tests = free(photos), photos.reserve.tolist()
    label(photos, {rows[0]: "cat", rows[1]: "=dog", tests[0]: "cat"})
    photos.store.change("ann", rows[2], "unsure", None, "u")
    photos.store.note("ann", rows[0], "=nice", "n")
    made = export(photos, tmp_path / "labels.csv")
    assert (made.rows, made.omitted_test, made.omitted_unsure, made.format) == (2, 1, 1, "csv")
    found = read(tmp_path / "labels.csv")
    assert [int(one["id"]) for one in found] == rows[:2]
    assert [one["label"] for one in found] == ["cat", "'=dog"]
    assert found[0]["note"] == "'=nice"
    assert float(found[0]["seconds"]) == 2.0
    assert json.loads(found[0]["votes"]) == {"ann": "cat"}
    everything = export(photos, tmp_path / "all.csv", include=["all"])
    assert everything.rows == len(NAMES)
    assert {one["path"] for one in read(tmp_path / "all.csv")} == {escape_formula(name) for name in NAMES}
    kinds = [one["standing"] for one in read(tmp_path / "all.csv") if int(one["id"]) == rows[2]]
    assert kinds == ["unsure"]


def test_parquet_has_types(words: Project, tmp_path: Path) -> None:
    rows = free(words)
    label(words, {rows[0]: "good", rows[1]: "bad"})
    export(words, tmp_path / "labels.parquet")
    table = pq.read_table(tmp_path / "labels.parquet").to_pydict()
    assert table["id"] == rows[:2]
    assert table["label"] == ["good", "bad"]
    assert table["text"] == [words.view(row).text for row in rows[:2]]
    assert table["at"][0].tzinfo is not None


def test_nothing_is_overwritten_without_force(photos: Project, tmp_path: Path) -> None:
    label(photos, {free(photos)[0]: "cat"})
    (tmp_path / "mine.csv").write_text("precious")
    with pytest.raises(StoreError, match="already exists"):
        export(photos, tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "precious"
    assert export(photos, tmp_path / "mine.csv", force=True).rows == 1
    with pytest.raises(ArgumentError, match="belong to the project"):
        export(photos, photos.folder / "store.db", "csv", force=True)
    with pytest.raises(ArgumentError, match="format"):
        export(photos, tmp_path / "labels")


def test_folders_by_class_with_odd_names(photos: Project, tmp_path: Path) -> None:
    rows = free(photos)
    for row, value in zip(rows, CLASSES):
        label(photos, {row: value})
    rest = {row: "cat" for row in photos.pool.ids.tolist() if row not in rows[:4]}
    label(photos, rest)
    made = export(photos, tmp_path / "sorted", "folders", ["all"])
    assert made.rows == len(NAMES)
    listed = read(tmp_path / "sorted" / "labels.csv")
    folders = {unescape_formula(one["label"]): unescape_formula(one["file"]).split("/")[0] for one in listed}
    assert len({name.casefold() for name in folders.values()}) == 4
    assert folders["../up"] == "_up"
    inside = {path.relative_to(tmp_path / "sorted").as_posix() for path in (tmp_path / "sorted").rglob("*.png")}
    assert inside == {unescape_formula(one["file"]) for one in listed}
    for one in listed:
        original = tmp_path / "photos" / unescape_formula(one["path"])
        assert (tmp_path / "sorted" / unescape_formula(one["file"])).read_bytes() == original.read_bytes()
    assert not (tmp_path / "up").exists()
    again = plan(photos, read_labels(tmp_path / "sorted" / "labels.csv", kind="image"))
    assert len(again.same) == len(NAMES)


def test_folders_are_replaced_only_where_an_export_made_them(photos: Project, tmp_path: Path) -> None:
    label(photos, {free(photos)[0]: "cat"})
    export(photos, tmp_path / "sorted", "folders")
    with pytest.raises(StoreError, match="not empty"):
        export(photos, tmp_path / "sorted", "folders")
    assert export(photos, tmp_path / "sorted", "folders", force=True).rows == 1
    (tmp_path / "sorted" / "cat" / "mine.txt").write_text("precious")
    with pytest.raises(StoreError, match=r"mine\.txt"):
        export(photos, tmp_path / "sorted", "folders", force=True)
    with pytest.raises(ArgumentError, match="the data"):
        export(photos, tmp_path / "photos" / "sorted", "folders")
    with pytest.raises(ArgumentError, match="inside or around"):
        export(photos, tmp_path, "folders", force=True)
    assert not [path for path in tmp_path.iterdir() if path.name.endswith((".tmp", ".old"))]


def test_links_and_a_missing_picture(photos: Project, tmp_path: Path) -> None:
    rows = free(photos)
    label(photos, {rows[0]: "cat", rows[1]: "cat"})
    refs = {item.row: item.ref for item in photos.store.items()}
    (tmp_path / "photos" / refs[rows[1]]).unlink()
    made = export(photos, tmp_path / "linked", "folders", link=True)
    assert (made.rows, len(made.faults)) == (1, 1)
    linked = next(path for path in (tmp_path / "linked" / "cat").iterdir())
    assert linked.is_symlink()
    assert linked.resolve() == (tmp_path / "photos" / refs[rows[0]]).resolve()


def test_a_link_out_of_the_folder_is_not_copied(photos: Project, tmp_path: Path) -> None:
    row = free(photos)[0]
    label(photos, {row: "cat"})
    path = tmp_path / "photos" / next(item.ref for item in photos.store.items([row]))
    (tmp_path / "secret.png").write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(tmp_path / "secret.png")
    made = export(photos, tmp_path / "sorted", "folders")
    assert made.rows == 0
    assert "a link to a file outside" in made.faults[0]


def test_coco_numbers_categories_from_one(photos: Project, tmp_path: Path) -> None:
    rows = free(photos)
    label(photos, {rows[0]: "cat", rows[1]: "Cat"})
    export(photos, tmp_path / "coco.json", "coco")
    found = json.loads((tmp_path / "coco.json").read_text())
    assert [one["id"] for one in found["categories"]] == [1, 2, 3, 4]
    name = {one["id"]: one["name"] for one in found["categories"]}
    size = {one["id"]: (one["width"], one["height"]) for one in found["images"]}
    assert [(one["image_id"], name[one["category_id"]]) for one in found["annotations"]] == [
        (rows[0], "cat"),
        (rows[1], "Cat"),
    ]
    assert all("bbox" not in one for one in found["annotations"])
    assert size[rows[0]] == (20 + NAMES.index(found["images"][0]["file_name"]), 16)


def test_formats_that_do_not_fit_are_refused(words: Project, tmp_path: Path) -> None:
    for name in ("coco", "folders"):
        with pytest.raises(ArgumentError, match="images"):
            export(words, tmp_path / "out", name)
        assert not (tmp_path / "out").exists()
    with pytest.raises(ArgumentError, match="one of"):
        export(words, tmp_path / "out", "xml")
    with pytest.raises(ArgumentError, match="include"):
        export(words, tmp_path / "out.csv", include=["most"])


def test_label_studio_json_keeps_people_times_and_predictions(words: Project, tmp_path: Path) -> None:
    rows = free(words)
    why = {"words": "It hesitates.", "probs": {"good": 0.3, "bad": 0.7}}
    words.store.add_round(Round(1, "margin", "linear/1", 0, 0, {}), [Pick(rows[0], "chosen", 0.1, why)])
    label(words, {rows[0]: "good"}, "ann")
    label(words, {rows[0]: "good"}, "bob@example.org")
    export(words, tmp_path / "tasks.json", "label-studio")
    (task,) = json.loads((tmp_path / "tasks.json").read_text())
    assert task["data"]["al_id"] == rows[0]
    assert task["data"]["text"] == words.view(rows[0]).text
    assert [one["al_who"] for one in task["annotations"]] == ["ann", "bob@example.org"]
    assert task["annotations"][1]["completed_by"] == {"email": "bob@example.org"}
    assert task["annotations"][0]["lead_time"] == 2.0
    assert task["annotations"][0]["result"][0]["value"] == {"choices": ["good"]}
    (guess,) = task["predictions"]
    assert (guess["model_version"], guess["score"]) == ("linear/1", 0.7)
    assert guess["result"][0]["value"] == {"choices": ["bad"]}
    again = plan(words, read_labels(tmp_path / "tasks.json", kind="text", text="body"))
    assert (len(again.same), again.predictions) == (1, 1)


# --- import ----------------------------------------------------------------------------------------------------------


def test_a_dry_run_says_everything_and_changes_nothing(photos: Project, tmp_path: Path) -> None:
    rows = photos.pool.ids.tolist()
    refs = {item.row: item.ref for item in photos.store.items()}
    label(photos, {rows[0]: "cat", rows[1]: "cat"})
    lines = [
        ["path", "label"],
        [refs[rows[0]], "cat"],
        [refs[rows[1]], "=dog"],
        [f"./{refs[rows[2]]}", "'=dog"],
        ["nowhere.png", "cat"],
        [refs[rows[3]], "horse"],
        [refs[rows[4]], ""],
        [refs[rows[5]], "cat"],
        [refs[rows[5]], "Cat"],
    ]
    with (tmp_path / "in.csv").open("w", newline="") as file:
        csv.writer(file).writerows(lines)
    before = photos.store.events()
    run = CliRunner().invoke(app, ["import", str(photos.folder), str(tmp_path / "in.csv"), "--dry-run"])
    assert run.exit_code == 0, run.output
    for text in ("new        1", "same       1", "different  1", "cat -> =dog (ann)", "unknown rows 1", "nowhere.png"):
        assert text in run.output
    assert "'horse': skipped (1 times)" in run.output
    assert "'Cat' and 'cat'" in run.output
    assert "no label   1" in run.output
    assert photos.store.events() == before


def test_import_takes_new_labels_and_keeps_peoples_answers(photos: Project, tmp_path: Path) -> None:
    rows = photos.pool.ids.tolist()
    label(photos, {rows[0]: "cat"})
    label(photos, {rows[1]: "cat"}, "ann")
    label(photos, {rows[1]: "Cat"}, "bob")
    photos.store.change("bob", rows[2], "unsure", None, "u")
    text = "id,label\n" + "".join(f"{row},Cat\n" for row in rows[:4])
    (tmp_path / "in.csv").write_text(text)
    changes = plan(photos, read_labels(tmp_path / "in.csv", kind="image"), "old list")
    assert [one.row for one in changes.new] == [rows[3]]
    assert [one.voters for one in changes.different] == [("ann",), ("ann",), ("bob",)]
    assert apply(photos, changes) == 1
    answers = photos.store.answers()
    assert [answers[row].value for row in rows[:4]] == ["cat", None, None, "Cat"]
    assert answers[rows[3]].votes == {"old list": "Cat"}
    assert apply(photos, plan(photos, read_labels(tmp_path / "in.csv", kind="image"), "old list")) == 0
    assert apply(photos, changes, replacing=True) == 3
    answers = photos.store.answers()
    assert [answers[row].value for row in rows[:4]] == ["Cat"] * 4
    assert [one.kind for one in photos.store.events() if one.row == rows[0]] == ["label", "import"]


def test_texts_are_found_by_what_they_say(words: Project, tmp_path: Path) -> None:
    for row in words.pool.ids.tolist():
        label(words, {row: "good" if row % 2 else "bad"})
    export(words, tmp_path / "out.csv", include=["all"])
    again = plan(words, read_labels(tmp_path / "out.csv", kind="text", text="body"))
    assert len(again.same) == len(words.pool)
    assert not again.unknown_rows
    (tmp_path / "other.csv").write_text('body,label\nfine,bad\nsame,good\n"so, so",good\nnever seen,good\n')
    found = plan(words, read_labels(tmp_path / "other.csv", kind="text", text="body"))
    assert len(found.same) + len(found.different) == 2
    assert [line.split(": ")[1] for line in found.unknown_rows] == ["2 rows have this text", "no row has this text"]


def test_an_id_of_another_file_is_not_taken(photos: Project, tmp_path: Path) -> None:
    row = photos.pool.ids.tolist()[0]
    (tmp_path / "in.csv").write_text(f"id,path,label\n{row},other.png,cat\n999,,cat\n")
    found = plan(photos, read_labels(tmp_path / "in.csv", kind="image"))
    assert not found.new
    assert len(found.unknown_rows) == 2


@pytest.mark.parametrize(
    ("name", "content", "words_"),
    [
        ("a.csv", "id,colour\n1,red\n", "--label"),
        ("a.csv", "label,colour\ncat,red\n", "--key"),
        ("a.csv", "id,label\n1,cat,more\n", "found 3"),
        ("a.csv", 'id,label\n1,"cat\n', "CSV"),
        ("a.json", "[1, 2]", "list of tasks"),
        ("a.json", "[{", "not valid JSON"),
        ("none.csv", None, "does not exist"),
    ],
)
def test_files_that_cannot_be_read_say_why(tmp_path: Path, name: str, content: str | None, words_: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(SourceError, match=words_):
        read_labels(tmp_path / name)


def test_predictions_are_taken_only_when_asked_for(words: Project, tmp_path: Path) -> None:
    rows = free(words)
    result = [{"from_name": "l", "to_name": "t", "type": "choices", "value": {"choices": ["good"]}}]
    tasks = [
        {"data": {"al_id": rows[0]}, "predictions": [{"model_version": "m1", "result": result}]},
        {
            "data": {"al_id": rows[1]},
            "annotations": [{"result": result, "completed_by": 3, "was_cancelled": True}],
            "predictions": [],
        },
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    found = read_labels(tmp_path / "tasks.json", kind="text")
    assert plan(words, found).new == []
    assert plan(words, found).predictions == 1
    taken = plan(words, found, predictions=True)
    assert [(one.row, one.who) for one in taken.new] == [(rows[0], "model:m1")]


def test_new_classes_need_a_yes(words: Project, tmp_path: Path) -> None:
    rows = free(words)
    (tmp_path / "in.csv").write_text(f"id,label\n{rows[0]},odd\n")
    found = read_labels(tmp_path / "in.csv", kind="text")
    assert plan(words, found).unknown_classes == {"odd": 1}
    changes = plan(words, found, add_classes=True)
    assert apply(words, changes) == 1
    assert words.store.classes() == ["good", "bad", "odd"]


def test_ballots_are_what_the_store_counts(photos: Project) -> None:
    store, rows = photos.store, photos.pool.ids.tolist()
    label(photos, {rows[0]: "cat", rows[1]: "cat"})
    store.change("ann", rows[0], "label", "Cat", "t1")
    store.undo("ann")
    store.change("bob", rows[0], "unsure", None, "t2")
    store.change("bob", rows[1], "label", "Cat", "t3")
    store.undo("bob")
    store.import_labels([(rows[2], "=dog")], "list")
    counted = ballots(store.events())
    votes = {row: {w: e.value for w, e in by.items() if e.value is not None} for row, by in counted.items()}
    assert votes == {row: answer.votes for row, answer in store.answers().items()}
    assert {one.row: one.kind for one in entries(photos, ["all"]).rows if one.kind != "none"} == {
        row: answer.kind for row, answer in store.answers().items()
    }


# --- the command, the session, the report, the replay ----------------------------------------------------------------


def test_commands_write_and_say_so(photos: Project, tmp_path: Path) -> None:
    label(photos, {free(photos)[0]: "cat", photos.reserve.tolist()[0]: "cat"})
    run = CliRunner().invoke(app, ["export", str(photos.folder), "--to", str(tmp_path / "x.csv")])
    assert run.exit_code == 0, run.output
    assert "1 rows written" in run.output
    assert "1 labelled test rows" in run.output
    run = CliRunner().invoke(app, ["report", str(photos.folder)])
    assert run.exit_code == 0, run.output
    page = (photos.folder / "report.html").read_text()
    assert "nothing is measured yet" in page
    assert "=dog" in page
    assert "ann" in page
    assert page.count("<script") == 1  # the one that shows numbers on hover


def test_a_labelled_project_opens_as_a_session(words: Project, tmp_path: Path) -> None:
    rows = free(words)
    (tmp_path / "in.csv").write_text(f"id,label\n{rows[0]},good\n{rows[1]},bad\n")
    apply(words, plan(words, read_labels(tmp_path / "in.csv", kind="text")))
    with closing(Project.open(words.folder)) as opened:
        session = opened.session()
        assert sorted(session.labelled.tolist()) == rows[:2]
        asked = session.ask(2).ids.tolist()
    assert set(asked) <= set(rows[2:])
    assert len(asked) == 2


# --- numbers, packed images, interruptions ---------------------------------------------------------------------------


def test_numbers_go_out_and_come_back(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("label,b\n" + "".join(f"{row},{row % 3}\n" for row in range(8)))
    settings = Settings(
        name="t", kind="table", source="../t.csv", columns=("label", "b"), task="regress", recipe="typiclust+kcenter"
    )
    with closing(Project.create(tmp_path / "project", settings)) as project:
        rows = project.pool.ids.tolist()
        label(project, {row: str(-1.5 * row) for row in rows})
        export(project, tmp_path / "n.csv", include=["all"])
        found = read(tmp_path / "n.csv")
        assert [float(one["label"]) for one in found] == [-1.5 * row for row in rows]
        assert [one["data_label"] for one in found] == [str(row) for row in rows]
        export(project, tmp_path / "n.parquet", include=["all"])
        assert pq.read_table(tmp_path / "n.parquet").to_pydict()["label"] == [-1.5 * row for row in rows]
        assert len(plan(project, read_labels(tmp_path / "n.csv")).same) == len(rows)
        (tmp_path / "in.csv").write_text(f"row number,target\n{rows[0]},much\n{rows[1]},-1.50\n{rows[2]},7\n")
        changes = plan(project, read_labels(tmp_path / "in.csv", key="row number"))
        assert (len(changes.unusable), len(changes.same), len(changes.different)) == (1, 1, 1)
        with pytest.raises(ArgumentError, match="images"):
            export(project, tmp_path / "f", "folders")


def test_images_inside_a_file_get_names(tmp_path: Path) -> None:
    import pyarrow as pa

    encoded = []
    for number in range(6):
        stream = io.BytesIO()
        Image.new("RGB", (9, 9), (40 * number, 0, 0)).save(stream, "PNG")
        encoded.append({"bytes": stream.getvalue(), "path": None})
    pq.write_table(pa.table({"image": encoded}), tmp_path / "images.parquet")
    settings = Settings(
        name="i", kind="image", source="../images.parquet", image="image", encoder="pixels", classes=("a", "b")
    )
    with closing(Project.create(tmp_path / "project", settings)) as project:
        row = free(project)[0]
        label(project, {row: "a"})
        export(project, tmp_path / "sorted", "folders")
        assert (tmp_path / "sorted" / "a" / f"row-{row}.png").read_bytes() == encoded[row]["bytes"]
        with pytest.raises(ArgumentError, match="--link"):
            export(project, tmp_path / "linked", "folders", link=True)


def test_a_broken_off_export_leaves_nothing(photos: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = free(photos)
    label(photos, {rows[0]: "cat", rows[1]: "cat"})
    export(photos, tmp_path / "sorted", "folders")
    before = sorted(tmp_path.rglob("*"))

    def stopped(source: Path, target: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("labelwise.project.exchange.folders.shutil.copyfile", stopped)
    with pytest.raises(KeyboardInterrupt):
        export(photos, tmp_path / "sorted", "folders", force=True)
    assert sorted(tmp_path.rglob("*")) == before


def test_paths_are_found_however_they_are_written(photos: Project, tmp_path: Path) -> None:
    written = [
        str(tmp_path / "photos" / "a" / "one.png"),
        "b\\one.png",
        "/data/local-files/?d=photos/c%20d.png",
        "https://example.org/x/e.png",
        "one.png",  # there are two of that name
    ]
    tasks = [
        {"data": {"image": one}, "annotations": [{"result": [{"value": {"choices": ["cat"]}}]}]} for one in written
    ]
    (tmp_path / "in.json").write_text(json.dumps(tasks))
    changes = plan(photos, read_labels(tmp_path / "in.json", kind="image"))
    assert [one.ref for one in changes.new] == ["a/one.png", "b/one.png", "c d.png", "e.png"]
    assert len(changes.unknown_rows) == 1
