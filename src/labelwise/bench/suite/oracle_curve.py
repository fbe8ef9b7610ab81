"""Headroom: the curve `oracle`, which is no strategy. It looks at true labels and test rows, to show what is possible.

Each round is a greedy search for the k rows after which the model is best on the test rows. It begins with whole
batches: those that some strategies (`ADVICE`) would take at this point, and some at random. Then it exchanges a part of
the best batch for other rows, again and again, and keeps what is better. Every batch is judged by training on the
labelled rows and its rows with their true labels, just as the next round will train, and measuring on the test rows:
accuracy, or RMSE for numbers, and the loss where that is equal.

The cost is a training and a reading of the test rows for each batch tried: the advice, `candidates` and `swaps` of them
a round. It is a lower bound of what is possible, since few of all batches are tried, one round after the other; and the
best of several on the test rows looks a little better than it is on others. A limit on memory does not hold for it.
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

ADVICE = ("margin", "badge", "bait", "typiclust", "kcenter")  # they train as random does and need no draws
CANDIDATES, SWAPS = 10, 30
PART = 4  # an exchange is of one row in so many: few enough to keep what is good, many enough to show on the test rows
_Score = tuple[float, float]  # the metric, then what decides where it is equal; higher is better


@dataclass(frozen=True)
class Search:
    """How wide a search is: strategies that are asked for a batch, batches at random, exchanges."""

    advice: tuple[str, ...] = ADVICE
    candidates: int = CANDIDATES
    swaps: int = SWAPS


def best_batch(session: Session, data: Data, k: int, search: Search) -> Selection:
    """The best batch of k free rows that the search finds, by what training with it gives on the test rows."""
    began = time.perf_counter()
    free = torch.from_numpy(session.free)
    key = Key(session.seed).fold("oracle", len(session.labelled))
    batches = {name: _advised(session, data, name, k) for name in search.advice}
    batches |= {f"random {number}": _drawn(free, k, key.fold(number)) for number in range(search.candidates)}
    scores = {name: _score(session, data, batch) for name, batch in batches.items()}
    first = max(scores, key=lambda name: scores[name])  # the first of equal ones
    best, score, kept = batches[first], scores[first], 0
    offered = torch.cat(list(batches.values())).unique()
    for number in range(search.swaps):
        # Rows that somebody proposed in this round and any free rows take turns.
        others = offered if number % 2 else free
        tried = _exchanged(best, others, max(1, k // PART), key.fold("swap", number))
        found = _score(session, data, tried)
        if found > score:
            best, score, kept = tried, found, kept + 1
    session.seconds["select"] = time.perf_counter() - began
    notes = {
        "oracle": "no strategy: chosen by the test rows",
        "search": "advice, random batches and exchanges",
        "tried": len(batches) + search.swaps,
        "began": first,
        "kept": kept,
        "worst": min(scores.values())[0],
    }
    return Selection(best.numpy(), np.ones(k), np.full(k, score[0]), notes)


def _drawn(rows: Tensor, count: int, key: Key) -> Tensor:
    return rows[key.uniform(rows).argsort(stable=True)[:count]]


def _exchanged(batch: Tensor, others: Tensor, count: int, key: Key) -> Tensor:
    """The batch with `count` of its rows, or as many as there are others, replaced."""
    fresh = _drawn(others[~torch.isin(others, batch)], count, key.fold("in"))
    return torch.cat([_drawn(batch, len(batch) - len(fresh), key.fold("stay")), fresh])


def _advised(session: Session, data: Data, name: str, k: int) -> Tensor:
    """What a strategy would choose now, with the model that is there."""
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
    """How good the model would be with this batch."""
    ids = torch.cat([session.ledger.labelled, batch]).sort().values
    at = torch.searchsorted(data.pool.ids, ids) if bool((data.pool.ids.diff() > 0).all()) else _places(data, ids)
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


def _places(data: Data, ids: Tensor) -> Tensor:
    order = data.pool.ids.argsort()
    return order[torch.searchsorted(data.pool.ids[order], ids)]
