"""The road, top to bottom: pool, signals, shards, selection, labels, training, record; again, n times."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, BudgetError, RowError
from labelwise.labels import oracle_of
from labelwise.labels.oracle import Oracle
from labelwise.pool import Pool
from labelwise.recipes import Recipe
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.validate import key_of
from labelwise.session.session import Session
from labelwise.shards.ray.ray_shards import Ray
from labelwise.signals.spec import stored
from labelwise.stats.environment import environment, peak_mb
from labelwise.stats.record import Record
from labelwise.train import evaluate
from labelwise.train.labelled_columns import looked_back, reader_for


def rounds(
    pool: Any,
    oracle: Any,
    learner: Any,
    recipe: str | Strategy | Recipe = "badge",
    k: int = 100,
    n: int = 10,
    *,
    start: int | None = None,
    test: float | tuple[Any, Any] | None = 0.2,
    classes: int | Sequence[str] | None = None,
    task: Literal["classify", "regress"] | None = None,
    weights: bool | None = None,
    seed: int = 0,
    spill: str | Path | None = None,
    batch: int = 256,
    max_memory: int | str | None = None,
    engine: str | Ray | None = None,
    half: bool = False,
    name: str = "",
) -> Iterator[Record]:
    """Label a first batch, then n times: train, measure, choose k rows, label them; at last train and measure again.

    Two runs with the same seed start from the same first batch, the same test rows and the same initial weights,
    whatever their recipes, as long as those do not choose the first batch themselves.

    Args:
        pool: a Pool, or whatever `Pool.of` takes.
        oracle: an array with one label for each row of the pool, a function from ids to labels, or None for the
            labels that came with the pool.
        learner: a torch module or a function that makes one, a scikit-learn classifier, or a Learner.
        recipe: the name of a strategy, "first+then", a Strategy with parameters, or a Recipe.
        k: rows labelled in each round.
        n: how many rounds.
        start: rows of the first batch; k if not given.
        test: (inputs, labels) to measure on, or the share of the pool to set aside for that (its labels are asked of
            the oracle too and are not counted), or None to measure nothing.
        classes: how many classes there are, or their names.
        task: "regress" where labels are numbers; what the learner is made for if None, else "classify".
        weights: whether rows count in training by the weights they were drawn with; None as the learner is made.
        seed: the only source of chance.
        spill: a folder for mapped files, for pools larger than memory.
        batch: rows of one forward pass.
        max_memory: what a selection may hold beside pool and model, see `Session`.
        engine: None for this process; "ray" or a `Ray`, see `Session`.
        half: keep signals in float16 while choosing, see `Session`.
        name: what the run is called in its records.

    Returns:
        An iterator of n + 1 records. Arguments are checked when this is called, before the first record.
    """
    source = pool if isinstance(pool, Pool) else Pool.of(pool)
    answers = oracle_of(oracle, source)
    key = key_of(seed)
    classes = classes if classes is not None else _known_classes(source, oracle)
    held, source = _test_rows(test, source, answers, key.fold("test"))
    first = k if start is None else start
    _check_plan(first, k, n, len(source))
    session = Session(
        source,
        learner,
        recipe,
        classes=classes,
        task=task,
        weights=weights,
        seed=seed,
        spill=spill,
        batch=batch,
        max_memory=max_memory,
        engine=engine,
        half=half,
    )
    return _run(session, answers, held, first, k, n, name or f"{session.recipe.name}/{seed}")


def _run(
    session: Session, oracle: Oracle, held: tuple[Pool, Any] | None, first: int, k: int, n: int, name: str
) -> Iterator[Record]:
    picks = session.ask(first)
    session.tell(picks.ids, oracle(picks.ids))
    for number in range(n + 1):
        ask = partial(session.ask, k) if number else partial(_checked_ask, session, k, n)
        yield one_round(session, oracle, held, number, name, nothing if number == n else ask)


def one_round(
    session: Session,
    oracle: Oracle,
    held: tuple[Pool, Any] | None,
    number: int,
    name: str,
    choose: Callable[[], Selection],
) -> Record:
    """One round: train, measure on the rows `held` with their labels, choose, label what was chosen; its record.

    `choose` gives the rows to label next; none in the last round. `name` is that of the run.
    """
    session.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}
    labels = len(session.labelled)
    metrics, trained = measure(session, held)
    picks = choose()
    notes: dict[str, Any] = {
        "selection": dict(picks.notes),
        "training": dict(session.fit().notes) if session.learner else {},
    }
    seconds = dict(session.seconds)
    if len(picks):
        session.tell(picks.ids, oracle(picks.ids))
        if session.estimate is not None:
            notes["estimate"] = session.estimate
    if (picks.weights != 1).any():
        notes["weights"] = picks.weights.tolist()
    return Record(
        run=name,
        strategy=session.recipe.name,
        seed=session.seed,
        round=number,
        labels=labels,
        metrics=metrics,
        select_seconds=seconds["select"],
        train_seconds=trained,
        read_seconds=seconds["read"],
        peak_mb=peak_mb(),
        picked=picks.ids.tolist(),
        notes=notes,
        environment={**environment(), "seed": str(session.seed)},
    )


def check_memory(session: Session, k: int, n: int) -> None:
    """Raise MemoryLimitError now where `max_memory` is too small for one of the next n batches of k rows.

    Before the first answer these are batches as the first one is chosen. Later one row is read with the model of the
    answers so far, to know how large rows are. Nothing is done without a limit.
    """
    gathering = session._gathering
    if gathering.how.limit is None:
        return
    strategy = session.recipe.strategy if len(session.labelled) else session.recipe.start
    if strategy.needs.history:
        strategy = strategy.with_history(session._history())
    reader = reader_for(stored(strategy.needs.pool), session.fit)
    gathering.check(strategy, k, n, reader, session.ledger.free(session.pool.ids), looked_back(session.ledger))


def _checked_ask(session: Session, k: int, n: int) -> Selection:
    """The first batch that a model chooses; a limit on memory that is too small for a later one is said now."""
    check_memory(session, k, n)
    return session.ask(k)


def nothing() -> Selection:
    """The choice of the last round."""
    return Selection(np.empty(0), np.empty(0), np.empty(0))


def measure(session: Session, held: tuple[Pool, Any] | None) -> tuple[dict[str, float], float]:
    """Metrics of the model on the test rows, and the seconds it took to train."""
    if session.learner is None:
        return {}, 0.0
    began = time.perf_counter()
    fit = session.fit()
    trained = time.perf_counter() - began
    if held is None:
        return {}, trained
    rows, labels = held
    answers = torch.tensor(session.as_answers(labels))
    return evaluate(fit.reader, rows, rows.ids, answers, session._gathering.batch), trained


def _test_rows(
    test: float | tuple[Any, Any] | None, pool: Pool, oracle: Oracle, key: Key
) -> tuple[tuple[Pool, Any] | None, Pool]:
    """The rows to measure on with their labels, and what is left of the pool to choose from."""
    if test is None:
        return None, pool
    if isinstance(test, tuple):
        rows, labels = test
        rows = rows if isinstance(rows, Pool) else Pool.of(rows)
        if len(rows) != len(labels):
            raise RowError(f"test must hold one label for each row, found {len(rows)} rows and {len(labels)} labels")
        return (rows, labels), pool
    if not 0 < test < 1:
        raise ArgumentError(f"test must be a share above 0 and below 1, (inputs, labels) or None; found {test!r}")
    aside = max(1, round(test * len(pool)))
    order = key.uniform(pool.ids).argsort()
    held: Tensor = pool.ids[order[:aside]].sort().values
    if aside >= len(pool):
        raise BudgetError(f"a pool of {len(pool)} rows is too small to set a share of {test} aside; pass test=None")
    left = pool.subset(pool.ids[~torch.isin(pool.ids, held)])
    return (pool.subset(held), oracle(held.numpy())), left


def _known_classes(pool: Pool, oracle: Any) -> int | tuple[str, ...] | None:
    """The classes, where labels of all rows are at hand: a class may not have been drawn yet."""
    if pool.classes is not None:
        return pool.classes
    if oracle is None or callable(oracle):
        labels = pool.labels
        return None if labels is None or labels.is_floating_point() else int(labels.max()) + 1
    values = np.asarray(oracle)
    if values.dtype.kind in "US" or (values.dtype == object and all(isinstance(value, str) for value in values)):
        return tuple(sorted({str(value) for value in values}))
    return int(values.max()) + 1 if values.dtype.kind in "iub" and values.size else None


def _check_plan(first: int, k: int, n: int, rows: int) -> None:
    """Raise before any label is asked for when the plan cannot be carried out."""
    for what, value, least in (("k", k, 1), ("start", first, 1), ("n", n, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise BudgetError(f"{what} must be a whole number of at least {least}, found {value!r}")
    if first + n * k > rows:
        raise BudgetError(
            f"{first} first labels and {n} rounds of {k} are {first + n * k} labels, but only {rows} rows are free; "
            "take fewer rounds, a smaller k or a smaller test share"
        )
