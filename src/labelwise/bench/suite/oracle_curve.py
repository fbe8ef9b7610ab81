"""Oracle curve: an estimate of what the best choice of rows could reach. It uses true labels and test rows.

Each round is a greedy search for the k rows after which the model is best on the test rows. It starts from whole
batches: those that some strategies (`ADVISERS`) would take now, and some random ones. Then it repeatedly exchanges a
part of the best batch for other rows and keeps the change if it is better. A batch is scored by training on the
labelled rows and the batch, exactly as the next round will train, and measuring on the test rows: accuracy, or RMSE in
regression, and the loss as tie-breaker.

Cost: one training and one evaluation for each batch tried (advisers + `candidates` + `swaps` a round). The result is a
lower bound of what is possible, because few batches are tried and each round is optimised alone. It is slightly
optimistic as well, because the best of several on the test rows is selected. Memory limits do not apply to it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from labelwise.bench.data.load import Data
from labelwise.rng import Key
from labelwise.selection import Selection
from labelwise.session import Session
from labelwise.train import evaluate

ADVISERS = ("margin", "badge", "bait", "typiclust", "kcenter")  # they train like random and need no draws
CANDIDATES, SWAPS = 10, 30
PART = 4  # an exchange replaces one row in PART: few enough to keep good rows, enough to show on the test rows
_Score = tuple[float, float]  # the metric, then the tie-breaker; higher is better


@dataclass(frozen=True)
class Search:
    """The size of a search: strategies that propose a batch, number of random batches, number of exchanges."""

    advisers: tuple[str, ...] = ADVISERS
    candidates: int = CANDIDATES
    swaps: int = SWAPS


def best_batch(session: Session, data: Data, k: int, search: Search) -> Selection:
    """Search for the k free rows after which the model is best on the test rows."""
    start = time.perf_counter()
    free = torch.from_numpy(session.free)
    key = Key(session.seed).fold("oracle", len(session.labelled))
    batches = {name: _advised_batch(session, data, name, k) for name in search.advisers}
    batches |= {f"random {number}": _draw_rows(free, k, key.fold(number)) for number in range(search.candidates)}
    scores = {name: _score(session, data, batch) for name, batch in batches.items()}
    first = max(scores, key=lambda name: scores[name])  # the first of equals
    best, score, accepted = batches[first], scores[first], 0
    proposed = torch.cat(list(batches.values())).unique()
    for number in range(search.swaps):
        # Alternate between rows of the batches above and all free rows.
        others = proposed if number % 2 else free
        tried = _exchange(best, others, max(1, k // PART), key.fold("swap", number))
        found = _score(session, data, tried)
        if found > score:
            best, score, accepted = tried, found, accepted + 1
    session.seconds["select"] = time.perf_counter() - start
    notes = {
        "oracle": "no strategy: chosen by the test rows",
        "search": "advice, random batches and exchanges",
        "tried": len(batches) + search.swaps,
        "began": first,
        "kept": accepted,
        "worst": min(scores.values())[0],
    }
    return Selection(best.numpy(), np.ones(k), np.full(k, score[0]), notes)


def _draw_rows(rows: Tensor, count: int, key: Key) -> Tensor:
    return rows[key.uniform(rows).argsort(stable=True)[:count]]


def _exchange(batch: Tensor, others: Tensor, count: int, key: Key) -> Tensor:
    """The batch with `count` of its rows (at most as many as there are others) replaced."""
    fresh = _draw_rows(others[~torch.isin(others, batch)], count, key.fold("in"))
    return torch.cat([_draw_rows(batch, len(batch) - len(fresh), key.fold("stay")), fresh])


def _advised_batch(session: Session, data: Data, name: str, k: int) -> Tensor:
    """The batch a strategy would choose now, with the current model."""
    adviser = Session(
        data.pool,
        session.learner,
        name,
        classes=data.classes,
        task=data.task,
        seed=session.seed,
        batch=session.batch,
    )
    adviser.restore(session.state())
    return torch.from_numpy(adviser.ask(k).ids)


def _score(session: Session, data: Data, batch: Tensor) -> _Score:
    """Train with this batch and measure on the test rows."""
    ids = torch.cat([session.ledger.labelled, batch]).sort().values
    at = torch.searchsorted(data.pool.ids, ids) if bool((data.pool.ids.diff() > 0).all()) else _positions(data, ids)
    assert session.learner is not None, "the benchmark has a learner"
    fit = session.learner.fit(
        data.pool,
        ids,
        data.labels[at],
        classes=0 if data.task == "regress" else len(data.classes or ()),
        key=Key(session.seed).fold("train", len(ids)),
        previous=session.fit(),
    )
    found = evaluate(fit.reader, data.test, data.test.ids, data.test_labels)
    return (-found["rmse"], 0.0) if data.metric == "rmse" else (found[data.metric], -found["nll"])


def _positions(data: Data, ids: Tensor) -> Tensor:
    order = data.pool.ids.argsort()
    return order[torch.searchsorted(data.pool.ids[order], ids)]
