"""Downloads of the page: labels, predictions and a model that works, for people with a name alone."""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from fake_project import Browser, running
from labelwise.project import Project, SavedModel, Settings
from labelwise.server import Auth


@pytest.fixture
def rows(tmp_path: Path) -> Iterator[Project]:
    """A project of 40 rows of a table: class "up" where the first number is above the second."""
    x = np.random.default_rng(0).random((40, 2))
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(f"{a:.4f},{b:.4f}" for a, b in x) + "\n")
    settings = Settings(
        name='my "rows"', kind="table", source="../t.csv", columns=("a", "b"), classes=("up", "down"), k=4,
        recipe="random",
    )  # fmt: skip
    with closing(Project.create(tmp_path / "project", settings)) as project:
        yield project


def test_downloads(rows: Project, tmp_path: Path) -> None:
    auth = Auth.make(rows.folder)
    free = [row for row in rows.pool.ids.tolist() if row not in set(rows.reserve.tolist())]
    with running(rows, auth) as address:
        with Browser(address, auth, None) as nobody:
            assert nobody.get("/download/labels.csv").status_code == 401
        with Browser(address, auth, "anna") as anna:
            early = anna.get("/download/model.zip")
            assert early.status_code == 409
            assert "There is no model yet" in early.text
            for row in free:
                a, b = (float(value) for _, value in rows.view(row).fields or ())
                rows.store.change("anna", row, "label", "up" if a > b else "down", f"token-{row}")
            labels = anna.get("/download/labels.csv")
            assert labels.headers["content-disposition"] == 'attachment; filename="my__rows_-labels.csv"'
            assert len(list(csv.DictReader(io.StringIO(labels.text)))) == len(free)
            found = list(csv.DictReader(io.StringIO(anna.get("/download/predictions.csv").text)))
            assert len(found) == 40
            assert {row["accept"] for row in found if row["label"]} == {""}
            packed = anna.get("/download/model.zip").content
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        archive.extractall(tmp_path / "unpacked")
    again = SavedModel.load(tmp_path / "unpacked" / "model").predict(tmp_path / "t.csv")
    assert again.predicted == [row["prediction"] for row in found]
