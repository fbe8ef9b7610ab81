"""Curve: one run of a comparison on a data set, round by round, with the memory of each selection apart."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from labelwise.bench.data.load import Data
from labelwise.bench.suite.peak_memory import Peak
from labelwise.errors import BudgetError
from labelwise.labels import oracle_of
from labelwise.labels.oracle import Oracle
from labelwise.loop import no_picks, one_round
from labelwise.rng import Key
from labelwise.selection import Selection
from labelwise.selection.memory import check_each
from labelwise.session import Session
from labelwise.stats.environment import environment
from labelwise.stats.record import Record


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
        return oracle_of(None, self.data.pool)

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
