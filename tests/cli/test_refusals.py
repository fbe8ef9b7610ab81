"""A command that refuses its arguments leaves the disk as it was: no folder, no file, no change."""

import contextlib
import hashlib
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from labelwise.cli import app
from labelwise.errors import LabelwiseError
from labelwise.project import Project, Settings

LABEL = "label table.csv --features a,b --project new/p --no-open"
SIMULATE = "simulate table.csv --target y --seeds 2 --rounds 1 -k 4 --out new/out"
SELECT = "select --strategy badge -k 3 --probs p.npy --embedding h.npy --out new/picks.csv --folder new/run"

REFUSED = [
    "label nothing.csv --text a",
    "label table.csv",
    "label table.csv --text a --features b --project new/p",
    "label table.csv --text none --project new/p",
    "label empty.csv --text a --project new/p",
    "label tiny.csv --features a --project new/p",
    "label table.csv --features a --encoder nothing --project new/p",
    "label table.csv --text words --encoder no.module:name --project new/p",
    "label table.csv --features a --embeddings missing.npy --project new/p",
    "label table.csv --features a --embeddings p.npy --project new/p",
    "label table.csv --features a --encoder auto --embeddings short.npy --project new/p",
    "label table.csv --features a --encoder pixels --embeddings h.npy --project new/p",
    "label photos --text a --project new/p",
    "label photos --project new/p",
    f"{LABEL} --classes x,x",
    f"{LABEL} --classes x,X",
    f"{LABEL} --classes x --regress",
    f"{LABEL} --recipe nothing",
    f"{LABEL} --recipe batchbald",
    f"{LABEL} --max-memory 1MB",
    f"{LABEL} --max-memory much",
    f"{LABEL} --store mysql://u@h/d",
    f"{LABEL} --store postgresql://u:secret@h/d",
    f"{LABEL} --store env:NOT_SET",
    f"{LABEL} --store postgresql://u@/d?host=/nowhere",
    f"{LABEL} -k 1",
    f"{LABEL} --people 0",
    f"{LABEL} --test-share 2",
    f"{LABEL} --seed -1",
    f"{LABEL} --port 99999",
    f"{LABEL} --port -1",
    f"{LABEL} --host no.such.host.invalid",
    f"{LABEL} --host 1.2.3.4",
    f"{LABEL} --token short",
    f"{LABEL} --certificate missing.pem",
    f"{LABEL} --max-connections 0",
    "resume project --port 99999",
    "resume project --token short",
    "label table.csv --features a --project table.csv",
    "label table.csv --features a --project table.csv/p",
    "resume nothing",
    "resume photos",
    f"{SIMULATE} --target none",
    f"{SIMULATE} --strategies nothing",
    f"{SIMULATE} --training never",
    f"{SIMULATE} --task none",
    f"{SIMULATE} --test 1.5",
    f"{SIMULATE} --rounds 1000",
    f"{SIMULATE} --group none",
    f"{SIMULATE} --features none",
    f"{SIMULATE} --max-memory 1MB",
    f"{SIMULATE} --max-memory much",
    f"{SIMULATE} --callback no.module:name",
    f"{SIMULATE} --out table.csv",
    "simulate nothing.csv --target y --out new/out",
    "bench run nothing --out new/out",
    "bench run table.csv --out new/out",
    "bench run suite.yaml --out new/out",
    "bench run good.yaml --out new/out --max-memory much",
    "bench run good.yaml --out new/out --callback no.module:name",
    "bench run good.yaml --out table.csv",
    "bench report nothing --out new/report",
    "bench report project --out new/report",
    "bench replay nothing --out new/replay",
    "bench replay project --strategies nothing --out new/replay",
    "bench replay project --test 2 --out new/replay",
    f"{SELECT} --strategy nothing",
    f"{SELECT} -k 0",
    f"{SELECT} -k 1000",
    f"{SELECT} --probs missing.npy",
    f"{SELECT} --embedding short.npy",
    f"{SELECT} --max-memory 1KB",
    f"{SELECT} --max-memory much",
    f"{SELECT} --engine nothing",
    f"{SELECT} --out new/picks.doc",
    f"{SELECT} --out h.npy",
    f"{SELECT} --ids short.npy",
    "import project nothing.csv",
    "import project empty.csv",
    "import project table.csv --label none",
    "import project labels.csv --format nothing",
    "import project unknown.csv",
    "import project labels.csv --nothing",
    "export project --to new/labels.doc",
    "export project --to new/labels.csv --format nothing",
    "export project --to new/labels.csv --include nothing",
    "export project --to new/labels.csv --link",
    "export project --to new/folder --format folders",
    "export project --to new/labels.json --format label-studio --image-url x",
    "export project --to table.csv",
    "export nothing --to new/labels.csv",
    "predict project --to new/p.csv",
    "predict project --to new/p.doc",
    "model project --to new/model",
    "report nothing --to new/report.html",
    "backup nothing --to new/b",
    "backup project --to new/b",
    "backup project --to project/b",
    "restore table.csv --to new/p",
    "restore nothing --to new/p",
    "restore nothing --to project",
    "annotators add project ann --role king",
    "annotators add project ann --url example.org",
    "annotators add project ann --url http://[::1",
    "annotators revoke project nobody",
    "annotators new-link project nobody",
    "demo --label --port 99999 --out new/demo",
    "labels-needed --tol nan",
    "reproduce nothing --out new/r",
    "verify nothing --out new/v",
    "verify badge --json photos --out new/v",
    f"{SELECT} --probs h.npy",
    "doctor nothing --repair",
    "doctor photos --repair",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Tables, arrays, suites and a project, into which no refused command may write."""
    home = tmp_path_factory.mktemp("home")
    rows = np.random.default_rng(0).normal(size=(40, 2)).round(3)
    lines = [f"{a},{b},{int(a > 0)},text {i}" for i, (a, b) in enumerate(rows)]
    (home / "table.csv").write_text("\n".join(["a,b,y,words", *lines]) + "\n")
    (home / "tiny.csv").write_text("a\n1\n2\n")
    (home / "empty.csv").write_text("")
    (home / "labels.csv").write_text("row,label\n0,x\n")
    (home / "unknown.csv").write_text("row,label\n0,q\n")
    (home / "photos").mkdir()
    np.save(home / "p.npy", np.full((30, 2), 0.5))
    np.save(home / "h.npy", np.ones((30, 3)))
    np.save(home / "short.npy", np.ones((7, 3)))
    (home / "suite.yaml").write_text("name: x\ndatasets: [nothing]\nstrategies: [random]\n")
    (home / "good.yaml").write_text(
        "name: good\ndatasets: [digits]\nmodels: [logistic]\nstrategies: [random]\nseeds: 1\nrounds: 1\nk: 2\n"
    )
    columns, classes = ("a", "b"), ("x", "z")
    settings = Settings(name="P", kind="table", source="../table.csv", columns=columns, classes=classes)
    Project.create(home / "project", settings).close()
    with contextlib.closing(Project.open(home / "project")):
        pass
    return home


def _state(home):
    """Every file with its content, and every folder; files of SQLite's log are there while a store is open."""
    return {
        str(path.relative_to(home)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
        for path in sorted(home.rglob("*"))
        if not path.name.endswith(("-wal", "-shm"))
    }


@pytest.mark.slow
@pytest.mark.parametrize("command", REFUSED)
def test_a_refusal_leaves_nothing(home, monkeypatch, command):
    def serve(*_, **__):
        raise AssertionError("the command was not refused")

    monkeypatch.chdir(home)
    monkeypatch.setattr("uvicorn.Server.run", serve)
    monkeypatch.delenv("NOT_SET", raising=False)
    before = _state(home)
    result = CliRunner().invoke(app, command.split())
    assert result.exit_code != 0, result.output
    assert result.exception is None or isinstance(result.exception, LabelwiseError | SystemExit | OSError), (
        result.exception
    )
    after = _state(home)
    shutil.rmtree("new", ignore_errors=True)  # what one command leaves is not blamed on the next
    assert after == before
