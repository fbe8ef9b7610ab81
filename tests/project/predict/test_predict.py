"""Predictions and models of a project: right columns, honest errors, the same numbers without the project, no code."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.errors import ArgumentError, LabelError, SourceError, StoreError
from labelwise.io.checked import write_checked
from labelwise.project import Project, SavedModel, Settings
from labelwise.project.data.saved_encoders import restored
from labelwise.project.exchange.export import export
from labelwise.project.loop.rounds import make_round
from labelwise.project.predict.accept import accept
from labelwise.project.predict.predictions import check_max_error, predict
from labelwise.project.predict.saved_model import model_files, write_model_folder
from labelwise.project.predict.trained import train

X, Y = load_digits(return_X_y=True)
N = 400
WORDS = {"good": "fine great lovely superb warm", "bad": "dull awful broken cold poor"}


def answer_rounds(project: Project, rounds: int, truth: dict[int, str]) -> None:
    for number in range(1, rounds + 1):
        assert make_round(project, number, project.store.last_seq())
        while (task := project.store.next_task("ann")) is not None:
            project.store.answer(task.token, "ann", "label", truth[task.row], 2.0)


def table(path: Path, rows: np.ndarray, target: bool = False) -> tuple[str, ...]:
    names = tuple(f"p{j}" for j in range(64))
    lines = [",".join(names)] + [",".join(f"{value:g}" for value in row) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return names


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of digits as rows of a table, with 160 answers."""
    folder = tmp_path_factory.mktemp("digits")
    names = table(folder / "digits.csv", X[:N])
    settings = Settings(
        name="di gits", kind="table", source="../digits.csv", columns=names, classes=tuple("0123456789"), k=40,
        recipe="typiclust+margin",
    )  # fmt: skip
    with closing(Project.create(folder / "project", settings)) as project:
        answer_rounds(project, 4, {row: str(Y[row]) for row in range(N)})
    return folder / "project"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of texts, with 30 answers."""
    folder = tmp_path_factory.mktemp("texts")
    lines = [f"it was {a} and {b}" for words in WORDS.values() for a in words.split() for b in words.split()]
    (folder / "texts.csv").write_text("body\n" + "\n".join(lines) + "\n")
    truth = {row: "good" if row < 25 else "bad" for row in range(50)}
    settings = Settings(
        name="texts", kind="text", source="../texts.csv", text="body", encoder="words", classes=("good", "bad"),
        k=15, recipe="typiclust+margin",
    )  # fmt: skip
    with closing(Project.create(folder / "project", settings)) as project:
        answer_rounds(project, 2, truth)
    return folder / "project"


@pytest.mark.slow
def test_predictions_are_probable_calibrated_and_leave_labels_of_people_alone(digits: Path) -> None:
    with closing(Project.open(digits)) as project:
        found = predict(project, max_error=0.05)
        answers = project.store.answers()
    assert found.ids == list(range(N))
    assert found.accepted is not None
    right = np.array([one == str(Y[row]) for row, one in zip(found.ids, found.predicted)])
    probability = np.array(found.probability, float)
    free = np.array([label is None for label in found.labels])
    assert right[free].mean() > 0.85
    assert abs(probability[free].mean() - right[free].mean()) < 0.06
    for row, label, take in zip(found.ids, found.labels, found.take):
        assert label == (answers[row].value if row in answers else None)
        assert (take is None) == (label is not None)
    taken = np.array([one is True for one in found.take])
    assert taken.sum() == found.accepted.rows > 50
    assert probability[taken].min() >= found.accepted.bar
    assert (~right[taken]).mean() < 0.1
    assert found.accepted.low is not None
    assert found.accepted.high is not None
    assert found.accepted.low <= (~right[taken]).sum() <= found.accepted.high


NONE = np.empty(0), np.empty(0, bool)


def held_out(n: int, p: float = 0.0, wrong: int = 0) -> tuple[np.ndarray, np.ndarray]:
    return np.full(n, p), np.arange(n) >= wrong


def test_fewer_errors_accept_fewer_rows_and_equal_rows_go_together() -> None:
    p = np.array([0.999, 0.98, 0.98, 0.9, 0.6])
    many = held_out(20_000)
    assert [accept(p, share, NONE, many).rows for share in (0.0001, 0.012, 0.02, 0.03, 0.5)] == [0, 1, 3, 3, 5]
    assert accept(p, 0.5, NONE, many).high is None
    # Equal rows: the mean of the first two is small enough, but the third has the same probability.
    assert accept(np.array([0.999, 0.98, 0.98]), 0.011, NONE, many).rows == 1


def test_a_few_rows_that_happen_to_be_right_are_no_evidence() -> None:
    p = np.full(100, 0.999)
    assert [accept(p, 0.02, held_out(n), NONE).rows for n in (0, 10, 47, 48)] == [0, 0, 0, 100]
    assert [accept(p, 0.05, held_out(10), held_out(n)).rows for n in (7, 8)] == [0, 100]


def test_held_out_rows_that_contradict_the_probabilities_raise_the_bar() -> None:
    p = np.linspace(0.9, 0.9999, 400)
    test = np.linspace(0.9, 0.9999, 60)
    sure = accept(p, 0.1, (test, np.ones(60, bool)), NONE)
    wrong = accept(p, 0.1, (test, test > 0.95), NONE)
    assert (sure.rows, sure.wrong) == (400, 0)
    assert wrong.bar > 0.94
    assert 0 < wrong.rows < 240
    assert accept(p, 0.1, (test, np.zeros(60, bool)), NONE).rows == 0


def test_the_interval_of_the_errors_comes_from_the_test_slice() -> None:
    made = accept(np.full(1000, 0.99), 0.05, held_out(50, 0.99, wrong=1), held_out(300))
    assert (made.rows, made.tests, made.wrong, round(made.expected, 6)) == (1000, 50, 1, 10.0)
    assert made.low is not None
    assert made.high is not None
    assert 0 < made.low < 20 < made.high < 150


@pytest.mark.slow
def test_a_saved_model_predicts_new_rows_as_the_project_does_and_without_it(digits: Path, tmp_path: Path) -> None:
    names = table(tmp_path / "new.csv", X[N : N + 60])
    with closing(Project.open(digits)) as project:
        trained, held_out = train(project)
        write_model_folder(tmp_path / "model", model_files("di gits", trained, held_out))
        by_project = predict(project, tmp_path / "new.csv")
        own = predict(project)
        own_again = predict(project, digits.parent / "digits.csv")
    np.testing.assert_allclose(np.array(own.probability, float), np.array(own_again.probability, float), atol=1e-5)
    loaded = SavedModel.load(tmp_path / "model")
    by_model = loaded.predict(tmp_path / "new.csv")
    assert by_model == by_project
    assert len(by_model.ids) == 60
    right = np.mean([one == str(Y[N + row]) for row, one in enumerate(by_model.predicted)])
    assert right > 0.8
    done = subprocess.run(
        [sys.executable, tmp_path / "model" / "predict.py", tmp_path / "new.csv"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["prediction"] for row in rows] == by_model.predicted
    for arguments, words in (([tmp_path / "nowhere"], "error: "), ([], "usage: ")):
        done = subprocess.run(
            [sys.executable, tmp_path / "model" / "predict.py", *arguments], capture_output=True, text=True
        )
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(words), done.stderr
    (tmp_path / "less.csv").write_text("p0,p1\n1,2\n")
    with pytest.raises(SourceError, match="p2"):
        loaded.predict(tmp_path / "less.csv")
    assert names[0] in (tmp_path / "model" / "README.md").read_text()


@pytest.mark.slow
def test_a_model_of_texts_has_what_its_encoder_learnt(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text("body,other\nso superb and fine,1\nsuch awful poor work,2\n")
    with closing(Project.open(texts)) as project:
        write_model_folder(tmp_path / "model", model_files("texts", *train(project)))
        by_project = predict(project, tmp_path / "new.csv")
    assert by_project.predicted == ["good", "bad"]
    assert SavedModel.load(tmp_path / "model").predict(tmp_path / "new.csv") == by_project


@pytest.mark.slow
def test_a_model_is_data_and_code_of_a_user_is_not_run(digits: Path, tmp_path: Path) -> None:
    with closing(Project.open(digits)) as project:
        write_model_folder(tmp_path / "model", model_files("digits", *train(project)))
    with np.load(tmp_path / "model" / "model.npz", allow_pickle=False) as found:
        assert all(found[name].dtype != object for name in found.files)
    about = json.loads((tmp_path / "model" / "model.json").read_text())
    about |= {"encoder": "torch:tests_that_nobody_has.Encoder", "kind": "image"}
    write_checked(tmp_path / "model" / "model.json", about)
    loaded = SavedModel.load(tmp_path / "model")
    (tmp_path / "photos").mkdir()
    from PIL import Image

    Image.new("RGB", (8, 8)).save(tmp_path / "photos" / "one.png")
    with pytest.raises(ArgumentError, match="decides about no code"):
        loaded.predict(tmp_path / "photos")
    with pytest.raises(ArgumentError, match="decides about no code"):
        restored("torch:os.getcwd", "image", {}, {})
    (tmp_path / "model" / "model.npz").unlink()
    with pytest.raises(StoreError, match=r"model\.npz is missing"):
        SavedModel.load(tmp_path / "model")


@pytest.mark.slow
def test_numbers_have_an_interval_from_the_test_slice(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.random((300, 3))
    y = 5 * x[:, 0] + 2 * x[:, 1] + rng.normal(0, 0.1, 300)
    lines = ["a,b,c"] + [",".join(f"{value:.6f}" for value in row) for row in x]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    settings = Settings(
        name="t", kind="table", source="../t.csv", task="regress", columns=("a", "b", "c"), k=60, test_share=0.5,
        recipe="random",
    )  # fmt: skip
    with closing(Project.create(tmp_path / "project", settings)) as project:
        answer_rounds(project, 2, {row: repr(float(y[row])) for row in range(300)})
        found = predict(project)
        columns = found.columns()
        export(project, tmp_path / "all.parquet", include=["all"])
        write_model_folder(tmp_path / "model", model_files("t", *train(project)))
    inside = [low <= value <= high for low, value, high in zip(columns["low"], y.tolist(), columns["high"])]
    assert found.accepted is None
    assert 0.8 < np.mean(inside) < 0.99
    assert pq.read_table(tmp_path / "all.parquet")["prediction"].to_pylist() == columns["prediction"]
    assert SavedModel.load(tmp_path / "model").predict(tmp_path / "t.csv").margin == found.margin


@pytest.mark.slow
def test_the_export_of_all_rows_carries_predictions(digits: Path, tmp_path: Path) -> None:
    with closing(Project.open(digits)) as project:
        found = predict(project)
        export(project, tmp_path / "all.csv", include=["all"])
        export(project, tmp_path / "labels.csv")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "all.csv").read_text())))
    assert [row["prediction"] for row in rows] == found.predicted
    assert rows[0]["p0"] == f"{X[0, 0]:g}"
    assert "prediction" not in (tmp_path / "labels.csv").read_text().splitlines()[0]


@pytest.mark.slow
def test_the_commands_say_what_they_wrote_and_refuse_what_they_cannot(digits: Path, tmp_path: Path) -> None:
    def invoke(*words: object) -> str:
        done = CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)
        return done.output

    out = tmp_path / "p.csv"
    said = invoke("predict", digits, "--to", out, "--max-error", "5 %")
    assert "400 predictions" in said
    assert "at 5 % errors" in said
    assert "test rows" in said
    with pytest.raises(StoreError, match="--force"):
        invoke("predict", digits, "--to", out)
    with pytest.raises(ArgumentError, match="belong to the project"):
        invoke("predict", digits, "--to", digits / "p.csv")
    with pytest.raises(ArgumentError, match="belong to the project"):
        invoke("model", digits, "--to", digits / "model")
    with pytest.raises(SourceError, match="does not exist"):
        invoke("predict", digits, "--on", tmp_path / "nowhere.csv", "--to", tmp_path / "q.csv")
    assert "predict.py" in invoke("model", digits, "--to", tmp_path / "model")
    with pytest.raises(StoreError, match="already has a model"):
        invoke("model", digits, "--to", tmp_path / "model")
    (tmp_path / "model" / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="other files"):
        invoke("model", digits, "--to", tmp_path / "model", "--force")


def test_too_few_labels_are_named(tmp_path: Path) -> None:
    names = table(tmp_path / "d.csv", X[:30])
    settings = Settings(name="d", kind="table", source="../d.csv", columns=names, classes=("0", "1"), k=4)
    with closing(Project.create(tmp_path / "project", settings)) as project:
        with pytest.raises(LabelError, match="labels of two classes"):
            predict(project)
        export(project, tmp_path / "all.csv", include=["all"])
    assert "prediction" not in (tmp_path / "all.csv").read_text()


@pytest.mark.parametrize("text", ["2", "0", "100%", "-1%", "two", "nan"])
def test_a_share_of_errors_lies_between_nothing_and_all(text: str) -> None:
    with pytest.raises(ArgumentError, match="--max-error"):
        check_max_error(text)
