"""Learning curve: run a recipe on a data set round by round, and measure the peak memory of each selection.

Memory that training has freed stays in the heap, and a selection that fits into it would raise no peak. So free memory
is given back to the system before a selection is measured; the selection then pays for getting its pages again.
"""

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
from labelwise.train import evaluate

ON_POOL = "pool"  # in the notes of a record with a certificate: the metrics on all rows of the pool


def first_batch(data: Data, count: int, seed: int) -> np.ndarray:
    """The ids of the first batch of a seed, for every strategy the same: `count` random rows of the pool."""
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
        continues_training: whether training starts from the model of the round before.
        choose: chooses the rows of a round; None asks the session for k.
    """

    name: str
    session: Session
    data: Data
    start: np.ndarray | int
    k: int
    rounds: int
    device: str = "cpu"
    continues_training: bool = False
    choose: Callable[[], Selection] | None = None

    def __post_init__(self) -> None:
        needed = self.first + self.k * self.rounds
        if needed > len(self.data.pool):
            raise BudgetError(
                f"{self.name}: {self.first} first labels and {self.rounds} rounds of {self.k} need {needed} labels; "
                f"the pool has {len(self.data.pool)} rows. Lower start, k or rounds"
            )

    @property
    def first(self) -> int:
        """Rows of the first batch."""
        return self.start if isinstance(self.start, int) else len(self.start)

    @property
    def answers(self) -> Oracle:
        """Returns the true labels of pool rows."""
        return make_oracle(None, self.data.pool)

    def label_first_batch(self) -> np.ndarray:
        """Label the first batch and return its ids."""
        ids = self.session.ask(self.start).ids if isinstance(self.start, int) else self.start
        self.session.tell(ids, self.answers(ids))
        return ids

    def check_memory(self) -> None:
        """Check that the memory limit is enough for the first batch and every round. Do not run the curve afterwards.

        Raises:
            MemoryLimitError: the limit is too small.
        """
        check_each((self._check_first, self._check_rounds))

    def _check_first(self) -> None:
        if isinstance(self.start, int):
            self.session.check_memory(self.start)

    def _check_rounds(self) -> None:
        ids = first_batch(self.data, self.first, self.session.seed)
        self.session.tell(ids, self.answers(ids))
        self.session.check_memory(self.k, self.rounds)

    def run_round(self, number: int) -> Record:
        """Train, measure, choose rows and label them: the record of this round."""
        memory: dict[str, float] = {}
        on_pool: dict[str, float] = {}
        ask = self.choose or partial(self.session.ask, self.k)

        def choose() -> Selection:
            if self.session.recipe.certify == "basis":
                on_pool.update(self._measure_on_pool())
            peak = PeakMemory(self.device)
            picks = no_picks() if number == self.rounds else ask()
            memory.update(peak.read())
            return picks

        test = (self.data.test, self.data.test_labels)
        record = one_round(self.session, self.answers, test, number, self.name, choose)
        return replace(
            record,
            peak_mb=memory["peak_mb"],
            notes={**record.notes, "memory": memory} | ({ON_POOL: on_pool} if on_pool else {}),
            environment={**environment(self.device), "seed": str(self.session.seed)},
        )

    def _measure_on_pool(self) -> dict[str, float]:
        """The metrics on all rows of the pool, labelled ones included: what a certificate speaks of."""
        pool = self.data.pool
        return evaluate(self.session.fit().reader, pool, pool.ids, self.data.labels, self.session.batch)


_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class PeakMemory:
    """Peak memory since creation; since the start of the process where the system cannot reset the peak."""

    def __init__(self, device: str):
        self.cuda = device.startswith("cuda")
        self.fresh = True  # whether free memory was given back, so that it cannot hide what is used now
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20
            return
        self.fresh = release_free_memory()
        try:
            _CLEAR.write_text("5")  # resets the peak (VmHWM) to current use
            self.before, self.files = _status_mb("VmRSS"), _status_mb("RssFile")
        except (OSError, ValueError):
            self.before, self.files, self.fresh = peak_mb(), 0.0, False

    def read(self) -> dict[str, Any]:
        """Peak memory since creation, in MB, and how much of it is above the start.

        Pages of files that were mapped since, such as a pool's or a library's, do not count above the start: the system
        reclaims them when it needs memory.
        """
        files = 0.0
        if self.cuda:
            most = torch.cuda.max_memory_allocated() / 2**20
        else:
            try:
                most, files = _status_mb("VmHWM"), max(0.0, _status_mb("RssFile") - self.files)
            except (OSError, ValueError):
                most, self.fresh = peak_mb(), False
        above = round(max(0.0, most - self.before - files), 1)
        return {"peak_mb": round(most, 1), "above_mb": above, FRESH: self.fresh}


def release_free_memory() -> bool:
    """Give free memory of this process back to the system; False where the allocator cannot."""
    gc.collect(1)  # a full collection takes longer than many a selection
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another system, another allocator
        return False
    trim(0)
    return True


def _status_mb(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 2**10
    raise ValueError(f"{_STATUS} has no line {name}")
