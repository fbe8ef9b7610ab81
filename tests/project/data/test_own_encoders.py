"""Features from a user's own function and from files, and another encoder for a project that has answers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.cli.label import open_project
from labelwise.errors import ArgumentError, LabelwiseError, ModelError, SourceError
from labelwise.project import Project, Settings
from labelwise.project.data.encoders import encoder_of, is_code
from labelwise.project.data.restore_features import change_encoder, restore_features
from labelwise.project.loop.rounds import finish_round, make_round
from labelwise.project.loop.stored_model import read_model, round_folder
from labelwise.project.predict.predictions import predict

TEXTS = [f"{'good' if row % 2 else 'bad'} number {row}" for row in range(24)]
CODE = """
def lengths(texts):
    return [[len(one), one.count("o")] for one in texts]

def wrong(texts):
    return [[1.0, 2.0]]

def fails(texts):
    raise KeyError("no such word")

number = 3
"""


def quiet(text: str, done: int, total: int) -> None:
    pass


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A current folder with texts, and with a module that nobody has imported."""
    (tmp_path / "texts.csv").write_text("body\n" + "\n".join(TEXTS) + "\n")
    (tmp_path / "my_own_encoder.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    sys.modules.pop("my_own_encoder", None)


def settings(encoder: str) -> Settings:
    return Settings(
        name="texts", kind="text", source="../texts.csv", text="body", encoder=encoder, classes=("good", "bad"), k=6,
        recipe="typiclust+margin",
    )  # fmt: skip


def label_round(project: Project, number: int) -> None:
    after = project.store.last_seq()
    assert make_round(project, number, after)
    while (task := project.store.next_task("ann")) is not None:
        project.store.answer(task.token, "ann", "label", TEXTS[task.row].split()[0], 1.0)
    finish_round(project, number, after)


def test_a_function_of_the_current_folder_makes_the_features(here: Path) -> None:
    with closing(Project.create(here / "project", settings("my_own_encoder:lengths"))) as project:
        assert project.feature_info.encoder == "my_own_encoder:lengths"
        assert project.feature_info.width == 2
        x_ND = np.load(here / "project" / "features" / "features.npy")
    assert x_ND.tolist() == [[len(one), one.count("o")] for one in TEXTS]
    assert str(here) not in sys.path


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        ("my_own_encoder:nothing", ArgumentError, "cannot be imported"),
        ("no_such_module:lengths", ArgumentError, "cannot be imported"),
        ("my_own_encoder:number", ArgumentError, "expected a function"),
        ("my_own_encoder:fails", ModelError, "no such word"),
    ],
)
def test_what_is_wrong_with_a_function_is_said(here: Path, name: str, error: type[LabelwiseError], said: str) -> None:
    with pytest.raises(error, match=said):
        encoder_of(name, "text", None)


def test_a_function_that_loses_rows_is_refused(here: Path) -> None:
    with pytest.raises(ModelError, match="one row for each of"):
        Project.create(here / "project", settings("my_own_encoder:wrong"))


def test_code_runs_only_if_the_user_names_it(here: Path) -> None:
    Project.create(here / "project", settings("my_own_encoder:lengths")).close()
    (here / "project" / "features" / "about.json").unlink()
    sys.modules.pop("my_own_encoder")
    (here / "my_own_encoder.py").write_text("raise SystemExit('the code was run')")
    with pytest.raises(ArgumentError, match="--encoder my_own_encoder:lengths"):
        restore_features(here / "project", quiet)
    (here / "my_own_encoder.py").write_text(CODE)
    assert change_encoder(here / "project", "my_own_encoder:lengths", quiet)
    with closing(Project.open(here / "project")) as project:
        with pytest.raises(ArgumentError, match="decides about no code"):
            project.encoder()
        assert project.encoder("my_own_encoder:lengths").width == 2
    assert is_code("a:b")
    assert not is_code("sentence-transformers/all-MiniLM-L6-v2")
    assert not is_code("embeddings:../x.npy")


def test_another_encoder_keeps_every_answer_round_and_the_learning_curve(here: Path) -> None:
    with closing(Project.create(here / "project", settings("words"))) as project:
        for number in (1, 2, 3):
            label_round(project, number)
        before = project.store.events()
        width = project.feature_info.width
        labels = [one.labels for n in (2, 3) if (one := read_model(round_folder(project.folder, n))) is not None]
    assert not change_encoder(here / "project", "words", quiet)
    assert change_encoder(here / "project", "my_own_encoder:lengths", quiet)
    with closing(Project.open(here / "project")) as project:
        assert project.settings.encoder == "my_own_encoder:lengths"
        assert project.store.events() == before
        models = [read_model(round_folder(project.folder, n)) for n in (2, 3)]
        assert [one.labels for one in models if one is not None] == labels
        assert all(one is not None and one.weight_CD.shape[1] == 2 != width for one in models)
        label_round(project, 4)
        meter = project.meter()
        assert meter is not None
        assert len(predict(project).ids) == len(TEXTS)
    assert not (here / "project" / "features-old").exists()


def test_interrupted_while_it_computes_the_project_is_as_before(here: Path) -> None:
    Project.create(here / "project", settings("words")).close()

    def stop(text: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        change_encoder(here / "project", "my_own_encoder:lengths", stop)
    with closing(Project.open(here / "project")) as project:
        assert project.feature_info.encoder == "words"
    assert change_encoder(here / "project", "my_own_encoder:lengths", quiet)


def test_vectors_of_a_file_are_the_features(here: Path) -> None:
    x_ND = np.random.default_rng(0).random((24, 5)).astype(np.float32)
    np.save(here / "x.npy", x_ND)
    with closing(Project.create(here / "project", settings("embeddings:../x.npy"))) as project:
        label_round(project, 1)
        label_round(project, 2)
        assert len(predict(project).ids) == 24
        with pytest.raises(ArgumentError, match="other rows cannot be encoded"):
            predict(project, here / "texts.csv")
    assert np.array_equal(np.load(here / "project" / "features" / "features.npy"), x_ND)
    turned = list(range(23, -1, -1))
    paths = [f"texts.csv line {row + 2}" for row in turned]
    pq.write_table(pa.table({"path": paths, "vector": [x_ND[row].tolist() for row in turned]}), here / "x.parquet")
    assert change_encoder(here / "project", "embeddings:../x.parquet", quiet)
    assert np.allclose(np.load(here / "project" / "features" / "features.npy"), x_ND)


def test_vectors_that_do_not_fit_are_refused(here: Path) -> None:
    np.save(here / "few.npy", np.zeros((20, 3)))
    np.save(here / "flat.npy", np.zeros(24))
    np.save(here / "objects.npy", np.array([{"a": 1}] * 24), allow_pickle=True)
    pq.write_table(pa.table({"path": ["texts.csv line 2"], "x": [[1.0, 2.0]]}), here / "one.parquet")
    pq.write_table(pa.table({"x": [[1.0, 2.0], [1.0]]}), here / "uneven.parquet")
    for name, said in (
        ("few.npy", "20 vectors, but the data has 24"),
        ("flat.npy", "shape"),
        ("objects.npy", "cannot be read"),
        ("one.parquet", "23 rows have no vector"),
        ("uneven.parquet", "not all of one length"),
        ("none.npy", "found no file"),
        ("texts.csv", "ends in '.csv'"),
    ):
        with pytest.raises(SourceError, match=said):
            Project.create(here / "project", settings(f"embeddings:../{name}"))
    assert not (here / "project").exists()


def test_the_options_of_the_commands(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(here / "x.npy", np.random.default_rng(0).random((24, 5)))
    monkeypatch.setattr("labelwise.cli.label.serve_project", lambda project, *_: project.close())

    def invoke(*words: str) -> str:
        return CliRunner().invoke(app, list(words), catch_exceptions=False).output

    with pytest.raises(ArgumentError, match="not both"):
        invoke("label", "texts.csv", "--text", "body", "--encoder", "words", "--embeddings", "x.npy")
    assert "each with 5 features" in invoke("label", "texts.csv", "--text", "body", "--embeddings", "x.npy")
    assert "every answer is kept" in invoke("resume", "texts-labelwise", "--encoder", "words")
    assert "already" in invoke("label", "texts.csv", "--text", "body", "--encoder", "words")
    opened = open_project(here / "texts-labelwise")
    assert opened.settings.encoder == "words"
    opened.close()
