"""Headroom: the curve `oracle`, which is no strategy. It looks at true labels and test rows, to show what is possible.

Each round draws some batches of k free rows at random, trains on the labelled rows with each of them and its true
labels, and takes the batch whose model is best on the test rows (accuracy, or RMSE for numbers; ties to the first).
It is greedy and sees few batches, so a better curve may exist; and the best of several on the test rows looks a little
better than it is. It costs a training for each batch.
"""

from __future__ import annotations

import time

import numpy as np
import torch

from labelwise.bench.data import Data
from labelwise.choose import Selection
from labelwise.keys import Key
from labelwise.session import Session
from labelwise.train import evaluate


def best_batch(session: Session, data: Data, k: int, candidates: int) -> Selection:
    """The best of `candidates` random batches of k free rows, by what training with it gives on the test rows."""
    began = time.perf_counter()
    free = torch.from_numpy(session.free)
    key = Key(session.seed).fold("oracle", len(session.labelled))
    values, batches = [], []
    for number in range(candidates):
        batch = free[key.fold(number).uniform(free).argsort(stable=True)[:k]]
        batches.append(batch)
        values.append(_value(session, data, batch))
    best = int(np.argmax(values))
    session.seconds["select"] = time.perf_counter() - began
    notes = {"oracle": "no strategy: chosen by the test rows", "candidates": candidates, "worst": min(values)}
    return Selection(batches[best].numpy(), np.ones(k), np.full(k, values[best]), notes)


def _value(session: Session, data: Data, batch: torch.Tensor) -> float:
    """How good the model would be with this batch: the metric of the data set, higher is better."""
    ids = torch.cat([session.ledger.labelled, batch]).sort().values
    at = torch.searchsorted(data.pool.ids, ids) if bool((data.pool.ids.diff() > 0).all()) else _places(data, ids)
    assert session.learner is not None, "the benchmark has a learner"
    fit = session.learner.fit(
        data.pool,
        ids,
        data.labels[at],
        classes=0 if data.task == "regress" else len(data.classes or ()),
        key=Key(session.seed).fold("train", len(ids)),
    )
    value = evaluate(fit.reader, data.test, data.test.ids, data.test_labels)[data.metric]
    return -value if data.metric == "rmse" else value


def _places(data: Data, ids: torch.Tensor) -> torch.Tensor:
    order = data.pool.ids.argsort()
    return order[torch.searchsorted(data.pool.ids[order], ids)]
