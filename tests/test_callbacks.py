"""Callbacks of sessions, rounds, suites and comparisons."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from torch import nn
from typer.testing import CliRunner

import labelwise as lw
from labelwise.bench.suite.runner import run_suite
from labelwise.bench.suite.suite import read_suite
from labelwise.callbacks import EVENTS, CallbackFailed, Callbacks, callbacks_named
from labelwise.cli import app
from labelwise.errors import ArgumentError

PAGE = (Path(__file__).parents[1] / "docs" / "callbacks.md").read_text(encoding="utf-8")
X = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


class Recorder(lw.Callback):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def of(self, event):
        return [values for name, values in self.told if name == event]


def _keep(event):
    return lambda self, *values: self.told.append((event, values))


for _event in EVENTS:
    setattr(Recorder, _event, _keep(_event))


def net():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def test_a_session_tells_of_epochs_fits_picks_and_progress():
    recorder = Recorder()
    learner = lw.TorchLearner(net, epochs=3, keep="last")
    al = lw.Session(X, learner, "badge", classes=2, batch=16, callbacks=recorder)
    al.tell(range(8), Y[:8])
    picks = al.ask(5)
    assert [epoch for epoch, _ in recorder.of("on_epoch")] == [1, 2, 3]
    assert set(recorder.of("on_epoch")[0][1]) == {"loss", "accuracy"}
    (fit,) = recorder.of("on_fit")[0]
    assert len(fit.ids) == 8
    assert fit.notes["epochs"] == 3
    assert recorder.of("on_selection")[0][0].ids.tolist() == picks.ids.tolist()
    steps = recorder.of("on_progress")
    assert [values for values in steps if values[0] == "train"] == [("train", n, 3) for n in (1, 2, 3)]
    assert ("read", 72, 72) in steps
    assert steps[-1][0] == "select"
    assert steps[-1][1] == steps[-1][2]
    assert not recorder.of("on_round")


def test_callbacks_change_no_pick():
    def run(callbacks):
        return [
            record.picked
            for record in lw.rounds(X, Y, LogisticRegression(), "badge", k=5, n=2, seed=3, callbacks=callbacks)
        ]

    assert run(None) == run([Recorder(), lw.ProgressBar()])


def test_rounds_tell_of_records_before_they_are_given_out():
    recorder = Recorder()
    for number, record in enumerate(lw.rounds(X, Y, LogisticRegression(), k=5, n=2, callbacks=[recorder])):
        assert recorder.of("on_round")[number] == (record,)
    assert [values[1:] for values in recorder.of("on_progress") if values[0] == "rounds"] == [(1, 3), (2, 3), (3, 3)]


def test_a_held_out_loss_is_told():
    recorder = Recorder()
    learner = lw.TorchLearner(net, epochs=2, keep="loss", holdout=0.5, holdout_from=4)
    al = lw.Session(X, learner, classes=2, callbacks=recorder)
    al.tell(range(20), Y[:20])
    al.fit()
    assert "held_out_loss" in recorder.of("on_epoch")[0][1]


class Broken(lw.Callback):
    """Raises in every method."""


for _event in EVENTS:
    setattr(Broken, _event, lambda self, *values: 1 / 0)


def test_an_exception_in_a_callback_loses_nothing(tmp_path):
    def session(**more):
        learner = lw.TorchLearner(net, epochs=2)
        return lw.Session(X, learner, "badge", classes=2, folder=tmp_path / "s", resume=True, **more)

    al = session(callbacks=Broken())
    al.tell(range(8), Y[:8])
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        picks = al.ask(5)
    texts = [str(one.message) for one in found if one.category is CallbackFailed]
    assert any(
        "Broken.on_selection raised ZeroDivisionError: division by zero. The run continues" in one for one in texts
    )
    assert any("Broken.on_epoch" in one for one in texts)
    al.tell(picks.ids, Y[picks.ids])
    again = session()
    assert again.labelled.tolist() == al.labelled.tolist()
    assert again.history_table()["ids"][-1] == picks.ids.tolist()


def test_picks_are_stored_before_a_callback_that_stops_the_program(tmp_path):
    class Stop(lw.Callback):
        def on_selection(self, picks):
            self.ids = picks.ids.tolist()
            raise KeyboardInterrupt

    stop = Stop()
    al = lw.Session(X, recipe="kcenter", classes=2, folder=tmp_path / "s", callbacks=stop)
    with pytest.raises(KeyboardInterrupt):
        al.ask(5)
    assert (tmp_path / "s").exists()
    loaded = lw.Session.load(tmp_path / "s", X)
    assert loaded._pending.picks.ids.tolist() == stop.ids


def test_any_object_with_a_method_is_a_callback_and_others_are_refused():
    class Plain:
        def on_fit(self, fit):
            self.fit = fit

    plain = Plain()
    al = lw.Session(X, LogisticRegression(), classes=2, callbacks=[plain])
    al.tell([0, 1, 2, 3], Y[:4])
    al.fit()
    assert len(plain.fit.ids) == 4

    class Misspelt(lw.Callback):
        def on_rounds(self, record): ...

    with pytest.raises(ArgumentError, match=r"on_rounds, which is none of.*did you mean 'on_round'"):
        Callbacks.of(Misspelt())
    with pytest.raises(ArgumentError, match=r"write Recorder\(\)"):
        Callbacks.of(Recorder)
    with pytest.raises(ArgumentError, match="found 3"):
        lw.Session(X, recipe="random", callbacks=3)


def test_the_bar_shows_what_takes_long(monkeypatch, capsys):
    bar = lw.ProgressBar(wait=0.0)
    bar.on_progress("read", 1, 4)
    assert capsys.readouterr().err == ""  # no terminal
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    bar.on_progress("train", 1, 4)
    bar._bar._timer.join()
    bar.on_progress("train", 3, 4)
    bar._bar._bar.refresh()
    said = capsys.readouterr().err
    assert "training" in said
    assert "3/4" in said
    bar.on_progress("train", 4, 4)
    assert bar._bar is None


LOGGER = """
import json
class ToFile:
    def on_round(self, record):
        with open("told.jsonl", "a") as file:
            file.write(json.dumps([record.strategy, record.round]) + "\\n")
def make():
    return ToFile()
"""


@pytest.mark.slow
def test_simulate_and_bench_run_tell_of_rounds_once(tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mylogs.py").write_text(LOGGER)
    lines = ["a,b,y", *(f"{a:.3f},{b:.3f},{'yes' if a > 0 else 'no'}" for a, b, _, _ in np.tile(X, (2, 1)))]
    (tmp_path / "t.csv").write_text("\n".join(lines))
    words = "simulate t.csv --target y --strategies margin --rounds 1 -k 8 --seeds 1 --callback mylogs:ToFile"
    for _ in range(2):  # the second run finds every record
        assert CliRunner().invoke(app, words.split()).exit_code == 0
        told = [json.loads(line) for line in (tmp_path / "told.jsonl").read_text().splitlines()]
        assert told == [["random", 0], ["random", 1], ["margin", 0], ["margin", 1]]
    (tmp_path / "told.jsonl").unlink()
    text = (
        "name: tiny\ndatasets: [{name: digits, limit: 200}]\nstart: 10\nk: 10\nrounds: 1\nmodels: [logistic]\n"
        "strategies: [random]\nseeds: [0]\n"
    )
    (tmp_path / "suite.yaml").write_text(text)
    recorder = Recorder()
    for _ in range(2):
        list(run_suite(read_suite(tmp_path / "suite.yaml"), text, tmp_path / "run", 0, Callbacks.of(recorder)))
        assert [record.labels for (record,) in recorder.of("on_round")] == [10, 20]


def test_a_callback_of_the_command_line_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match="--callback nothing:here: it cannot be imported"):
        callbacks_named(["nothing:here"])
    with pytest.raises(ArgumentError, match="expected MODULE:NAME"):
        callbacks_named(["nothing"])
    assert callbacks_named(["labelwise.callbacks:ProgressBar"]).hears("on_progress")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["mlflow", "wandb", "tensorboard"])
def test_the_examples_of_the_page_write_records(package: str, tmp_path: Path):
    """Where the package is installed; nothing is sent anywhere."""
    pytest.importorskip(package)
    first, *_ = re.findall(r"```python run\n(.*?)```", PAGE, flags=re.DOTALL)
    (own,) = re.findall(rf"```python {package}\n(.*?)```", PAGE, flags=re.DOTALL)
    where = {
        "MLFLOW_TRACKING_URI": (tmp_path / "mlruns").as_uri(),
        "MLFLOW_ALLOW_FILE_STORE": "true",
        "WANDB_SILENT": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", first + own], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **where}
    )
    assert done.returncode == 0, done.stderr
    assert "CallbackFailed" not in done.stderr
    made = {
        "mlflow": "mlruns/*/*/metrics/accuracy",
        "wandb": "wandb/offline-run-*/*.wandb",
        "tensorboard": "runs/events.*",
    }
    assert [path for path in tmp_path.glob(made[package]) if path.stat().st_size]
