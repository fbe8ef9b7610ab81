"""Curve: one run of a comparison on a data set, round by round, with the memory of each selection apart."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from labelwise.bench.data.load import Data
from labelwise.errors import BudgetError
from labelwise.labels import make_oracle
from labelwise.labels.oracle import Oracle
from labelwise.loop import no_picks, one_round
from labelwise.rng import Key
from labelwise.selection import Selection
from labelwise.selection.memory import check_each
from labelwise.session import Session
from labelwise.stats.environment import environment, peak_mb
from labelwise.stats.record import Record
from labelwise.stats.summary import FRESH


def first_batch(data: Data, count: int, seed: int) -> np.ndarray:
    """The ids that every strategy of a seed starts from: `count` rows of the pool at random."""
    draw = Key(seed).fold("bench", "start").uniform(data.pool.ids)
    return data.pool.ids[draw.argsort(stable=True)[:count]].sort().values.numpy()


@dataclass(frozen=True)
class Curve:
    """A learning curve.

    Attributes:
        name: of the run, as its records have it.
        session: one in which nothing is labelled yet.
        data: rows to choose from with their labels, and rows to test on.
        start: ids of the first batch, or how many rows the recipe chooses for it.
        k: rows of each round.
        rounds: how many rounds after the first batch.
        device: "cpu" or "cuda".
        goes_on: whether training goes on from the model of the round before.
        choose: how the rows of a round are chosen; None asks the session for k.
    """

    name: str
    session: Session
    data: Data
    start: np.ndarray | int
    k: int
    rounds: int
    device: str = "cpu"
    goes_on: bool = False
    choose: Callable[[], Selection] | None = None

    def __post_init__(self) -> None:
        asked = self.first + self.k * self.rounds
        if asked > len(self.data.pool):
            raise BudgetError(
                f"{self.name}: {self.first} first labels and {self.rounds} rounds of {self.k} are {asked} labels; "
                f"the pool has {len(self.data.pool)} rows. Lower start, k or rounds"
            )

    @property
    def first(self) -> int:
        """Rows of the first batch."""
        return self.start if isinstance(self.start, int) else len(self.start)

    @property
    def answers(self) -> Oracle:
        """Gives the labels of rows of the pool."""
        return make_oracle(None, self.data.pool)

    def begin(self) -> np.ndarray:
        """Label the first batch; its ids."""
        ids = self.session.ask(self.start).ids if isinstance(self.start, int) else self.start
        self.session.tell(ids, self.answers(ids))
        return ids

    def check_memory(self) -> None:
        """Raise MemoryLimitError where the limit of the session is too small for the first batch or one of the rounds.

        It labels a first batch and trains: the curve is not to be walked after that.
        """
        check_each((self._check_first, self._check_rounds))

    def _check_first(self) -> None:
        if isinstance(self.start, int):
            self.session.check_memory(self.start)

    def _check_rounds(self) -> None:
        ids = first_batch(self.data, self.first, self.session.seed)
        self.session.tell(ids, self.answers(ids))
        self.session.check_memory(self.k, self.rounds)

    def walk(self, number: int) -> Record:
        """Walk the round of this number."""
        memory: dict[str, float] = {}
        ask = self.choose or partial(self.session.ask, self.k)

        def choose() -> Selection:
            peak = Peak(self.device)
            picks = no_picks() if number == self.rounds else ask()
            memory.update(peak.read())
            return picks

        held = (self.data.test, self.data.test_labels)
        record = one_round(self.session, self.answers, held, number, self.name, choose)
        return replace(
            record,
            peak_mb=memory["peak_mb"],
            notes={**record.notes, "memory": memory},
            environment={**environment(self.device), "seed": str(self.session.seed)},
        )


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Begins when it is made. On Linux the peak of the process is reset then; elsewhere it is its whole life's."""

    def __init__(self, device: str):
        self.cuda = device.startswith("cuda")
        self.fresh = True  # whether memory that was let go of before cannot hide what is taken now
        self.most = 0.0
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20
            return
        self.fresh = given_back()
        try:
            _CLEAR.write_text("5")  # resets the peak (VmHWM) to what is held now
            self.before, self.files = _held("VmRSS"), _held("RssFile")
        except (OSError, ValueError):
            self.before, self.files, self.fresh = peak_mb(), 0.0, False

    def read(self) -> dict[str, Any]:
        """The most that was held since, and how much that is above the beginning, in MB.

        Pages of files that were mapped since, such as a pool's or a library's, are not counted above it: the system
        takes them back when it needs room.
        """
        files = 0.0
        if self.cuda:
            self.most = torch.cuda.max_memory_allocated() / 2**20
        else:
            try:
                self.most, files = _held("VmHWM"), max(0.0, _held("RssFile") - self.files)
            except (OSError, ValueError):
                self.most, self.fresh = peak_mb(), False
        above = round(max(0.0, self.most - self.before - files), 1)
        return {"peak_mb": round(self.most, 1), "above_mb": above, FRESH: self.fresh}


def given_back() -> bool:
    """Give memory that is free inside this process back to the system; whether the allocator is one that can."""
    gc.collect(1)  # not all there is: that takes longer than many a selection
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another system, another allocator
        return False
    trim(0)
    return True


def _held(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 2**10
    raise ValueError(f"{_STATUS} does not say {name}")
