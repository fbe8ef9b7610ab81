"""Which backend is chosen, why others are not, how one is forced, and where that is seen."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise import arrays
from labelwise.errors import ArgumentError, StoreError
from labelwise.selection import backends
from labelwise.selection.run import RunOptions
from labelwise.shards import Shards, shards_of
from labelwise.shards.checkpoint.journal import FolderJournal
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, Needs
from second_device import AWAY, second_device


@dataclass(frozen=True)
class Fake:
    """A backend that supports problems up to a size."""

    name: str
    most: float

    def supports(self, problem: int) -> str | None:
        return None if problem <= self.most else f"{problem} is more than {self.most}"


FAST, SLOW = Fake("fast", 10), Fake("torch", np.inf)


@pytest.fixture(autouse=True)
def not_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(backends.VARIABLE, raising=False)


def test_the_first_that_supports_the_problem_is_chosen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "labelwise.selection.backends")
    with backends.recorded_backends() as names:
        assert backends.choose((FAST, SLOW), 3) is FAST
        assert backends.choose((FAST, SLOW), 30) is SLOW
        assert backends.choose((FAST, SLOW), 31) is SLOW
    assert names == ["fast", "torch"]
    assert "fast refused: 30 is more than 10" in caplog.text
    with pytest.raises(ArgumentError, match="no backend supports this selection: fast refused: 11 is more than 10"):
        backends.choose((FAST,), 11)


def test_a_backend_is_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(backends.VARIABLE, "torch")
    assert backends.choose((FAST, SLOW), 3) is SLOW
    monkeypatch.setenv(backends.VARIABLE, "fast")
    with pytest.raises(ArgumentError, match=r"LABELWISE_BACKEND is 'fast'.*30 is more than 10"):
        backends.choose((FAST, SLOW), 30)
    monkeypatch.setenv(backends.VARIABLE, "fats")
    with pytest.raises(ArgumentError, match=r"LABELWISE_BACKEND is 'fats'.* fast, torch"):
        backends.choose((FAST, SLOW), 3)
    monkeypatch.setenv(backends.VARIABLE, "")
    assert backends.choose((FAST, SLOW), 3) is FAST


class Choosing(lw.Scored):
    """The rows with the longest vectors, by a backend."""

    needs = Needs(pool=(Embedding(),))

    def score(self, rows: Rows, key: object) -> torch.Tensor:
        backends.choose((FAST, SLOW), len(rows.ids))
        return rows[Embedding()].square().sum(1)


def test_notes_name_the_backend() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    assert lw.select(Choosing(), 2, embedding=x).notes == {"backend": "torch"}
    assert lw.select(Choosing(), 2, embedding=x[:9]).notes["backend"] == "fast"
    assert "backend" not in lw.select("random", 2, embedding=x).notes


def test_a_checkpoint_belongs_to_the_forced_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Backends ask the shards different questions, so that one cannot continue from the answers to another."""
    stopped = FolderJournal.remove
    monkeypatch.setattr(FolderJournal, "remove", lambda journal: journal.checkpoint())
    x = np.random.default_rng(0).normal(size=(40, 3))
    lw.select(Choosing(), 2, embedding=x, folder=tmp_path / "checkpoint")
    monkeypatch.setattr(FolderJournal, "remove", stopped)
    monkeypatch.setenv(backends.VARIABLE, "torch")
    with pytest.raises(StoreError):
        lw.select(Choosing(), 2, embedding=x, folder=tmp_path / "checkpoint")
    monkeypatch.delenv(backends.VARIABLE)
    assert len(lw.select(Choosing(), 2, embedding=x, folder=tmp_path / "checkpoint")) == 2


class OnTriton(Choosing):
    """As `Choosing`, by a backend that Triton has to be there for."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: object) -> lw.Selection:
        backends.accelerator_refusal(pool, triton=True)
        return super().select(pool, labelled, k, key)


def test_a_selection_that_began_with_triton_says_so_where_triton_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    with monkeypatch.context() as there:
        there.setattr(FolderJournal, "remove", lambda journal: journal.checkpoint())
        there.setattr(backends, "_shard_refusal", lambda triton, shard: None)
        expected = lw.select(OnTriton(), 2, embedding=x, folder=tmp_path / "checkpoint")
    monkeypatch.setattr(backends, "_shard_refusal", lambda triton, shard: "Triton is not installed")
    with pytest.raises(StoreError, match=r"began with Triton's kernels.*Triton is not installed.*remove the folder"):
        lw.select(OnTriton(), 2, embedding=x, folder=tmp_path / "checkpoint")
    # In a session the selection begins again, since its folder is for checkpoints alone.
    monkeypatch.setattr(arrays.RunOptions, "of", lambda *given: RunOptions(folder=given[1], is_private=True))
    assert lw.select(OnTriton(), 2, embedding=x, folder=tmp_path / "checkpoint") == expected
    assert not (tmp_path / "checkpoint").exists()


def test_where_the_rows_are_is_asked_of_the_shards() -> None:
    def pool(ids: torch.Tensor, shards: int = 1) -> Shards:
        return shards_of(ids, {Embedding(): ids[:, None].double()}, shards)

    assert backends.accelerator_refusal(pool(torch.arange(6))) == "rows are on cpu"
    assert backends.accelerator_refusal(pool(torch.arange(6), 3)) == "rows are in 3 shards, expected 1"
    with second_device():
        away = pool(torch.arange(6).to(AWAY))
        assert backends.accelerator_refusal(away) is None
        assert "Triton kernels are for CUDA" in str(backends.accelerator_refusal(away, triton=True))


def test_a_compiler_that_fails_costs_time_and_no_picks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setattr(backends.torch.cuda, "is_available", lambda: True)

    def failed(*size: int, device: str) -> None:
        raise RuntimeError("no gcc")

    monkeypatch.setattr(backends.torch, "zeros", failed)
    with pytest.warns(UserWarning, match="cannot compile a kernel here .*picks are the same"):
        assert "Triton cannot compile a kernel" in str(backends.triton_refusal.__wrapped__())
