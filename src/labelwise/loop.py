"""rounds: the whole active-learning loop. Each round trains, measures, selects, labels and gives one record."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise import recipes
from labelwise.callbacks import Callbacks
from labelwise.errors import ArgumentError, BudgetError, RowError
from labelwise.io.frames import check_order, plain_values
from labelwise.labels import make_oracle
from labelwise.labels.oracle import Oracle
from labelwise.pool import Pool
from labelwise.pool.labels import in_class_order
from labelwise.pool.row_keys import as_json
from labelwise.recipes import Recipe
from labelwise.rng import Key, key_of
from labelwise.selection import Selection, Strategy
from labelwise.session import Session
from labelwise.shards.ray import Ray
from labelwise.stats.environment import environment, peak_mb
from labelwise.stats.record import Record
from labelwise.train import evaluate, learner_of
from labelwise.train.learner import adapt


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
    batch: int | None = None,
    max_memory: int | str | None = None,
    engine: str | Ray | None = None,
    half: bool = False,
    training: Literal["restart", "warm"] | None = None,
    name: str = "",
    callbacks: Any = None,
) -> Iterator[Record]:
    """Label a first batch, then n times: train, measure, choose k rows, label them. At the end train and measure again.

    Two runs with the same seed have the same test rows, the same first batch and the same initial weights, whatever
    their recipes; only a recipe that chooses the first batch itself has another one.

    Args:
        pool: a Pool, or anything `Pool.of` takes, such as an array or a frame.
        oracle: an array or Series with one label for each row of the pool, a function from ids to labels, or None
            for the labels that came with the pool.
        learner: a torch module or a function that makes one, a scikit-learn classifier, or a Learner.
        recipe: the name of a strategy, "first+then", a Strategy with parameters, a Recipe, or "recommended", as for
            `Session`.
        k: rows labelled in each round.
        n: how many rounds.
        start: rows of the first batch; k if not given.
        test: (inputs, labels) to measure on; or the share of the pool to hold out for that, whose labels are asked of
            the oracle too and are not counted; or None to measure nothing.
        classes: the number of classes, or their names; None takes those of the labels that are known, and names that
            the oracle gives later.
        task: "regress" if labels are numbers; None takes the task of the learner, else "classify".
        weights: whether training uses the weights that rows were drawn with; None as for `Session`.
        seed: the only source of chance.
        spill: a folder for memory-mapped files, for pools larger than memory.
        batch: rows that the model reads at once; None as for `Session`.
        max_memory: limit on the memory of a selection, as for `Session`.
        engine: None for this process; "ray" or a `Ray`, as for `Session`.
        half: store signals in float16 while choosing, as for `Session`.
        training: to compare recipes on equal terms. "restart": new weights in each round, also for a recipe that
            otherwise starts from the last ones (dynamical). "warm": the weights of the round before, for every recipe;
            it takes a torch model. None leaves it to the recipe and the learner.
        name: the name of the run in its records.
        callbacks: one `lw.Callback` or several, such as `lw.ProgressBar()`; docs/callbacks.md.

    Returns:
        An iterator of n + 1 records, each a round. Arguments are checked before the first one is computed.

    Raises:
        ArgumentError, BudgetError, LabelError, NeedError, RowError: an argument cannot be used, or the pool has not
            enough rows.
        MemoryLimitError: `max_memory` is too small for one of the rounds.

    >>> import labelwise as lw
    >>> from sklearn.linear_model import LogisticRegression
    >>> X = np.random.default_rng(0).normal(size=(200, 4)).astype("float32")
    >>> records = lw.rounds(X, (X[:, 0] > 0).astype(int), LogisticRegression(), "margin", k=10, n=3)
    >>> [record.labels for record in records]
    [10, 20, 30, 40]
    """
    source = pool if isinstance(pool, Pool) else Pool.of(pool)
    answers = make_oracle(oracle, source)
    key = key_of(seed)
    classes = classes if classes is not None else _known_classes(source, oracle)
    test_rows, source = _test_rows(test, source, answers, key.fold("test"))
    first = k if start is None else start
    _check_plan(first, k, n, len(source))
    _check_training(learner, training)
    if training is not None:
        if recipe == recipes.RECOMMENDED:
            recipe = Session(source, learner, recipe, classes=classes, task=task, max_memory=max_memory).recipe
        recipe = recipes.get(recipe).with_training(training)
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
        callbacks=callbacks,
    )
    if session.classes is None and test_rows is not None:
        names = {str(label) for label in plain_values(test_rows[1]) if isinstance(label, str)}
        if names:
            session.add_classes(in_class_order(tuple(names)))
    title = name or f"{session.recipe.name}/{seed}"
    return _run(session, answers, test_rows, first, k, n, title, Callbacks.of(callbacks))


def _check_training(learner: Any, training: str | None) -> None:
    """Raise if the learner cannot be trained as `training` says."""
    inner = getattr(learner, "learner", learner)  # of an ensemble
    if training == "restart" and getattr(inner, "restart", True) is False:
        raise ArgumentError('training="restart", but the learner has restart=False; leave one of them out.')
    if training == "warm" and adapt(made := learner_of(inner), "with_warm_start") is made:
        raise ArgumentError(
            f'training="warm" starts from the weights of the round before, which {type(inner).__name__} does not take; '
            "pass a torch model."
        )


def _run(
    session: Session,
    oracle: Oracle,
    test: tuple[Pool, Any] | None,
    first: int,
    k: int,
    n: int,
    name: str,
    callbacks: Callbacks,
) -> Iterator[Record]:
    picks = session.ask(first)
    session.tell(picks.ids, oracle(picks.ids))
    for number in range(n + 1):
        ask = partial(session.ask, k) if number else partial(_ask_first, session, k, n)
        record = one_round(session, oracle, test, number, name, no_picks if number == n else ask)
        callbacks.call("on_round", record)
        callbacks.call("on_progress", "rounds", number + 1, n + 1)
        yield record


def _ask_first(session: Session, k: int, n: int) -> Selection:
    """The first batch that a model chooses, once `max_memory` is known to be enough for all n."""
    session.check_memory(k, n)
    return session.ask(k)


def one_round(
    session: Session,
    oracle: Oracle,
    test: tuple[Pool, Any] | None,
    number: int,
    name: str,
    choose: Callable[[], Selection],
) -> Record:
    """Run one round: train, measure, choose rows, label them.

    Args:
        session: one with at least one answer, or without a learner.
        oracle: a function from ids (k,) to their labels (k,).
        test: the rows to measure on and their labels, or None to measure nothing.
        number: the number of the round, from 0.
        name: the name of the run.
        choose: a function that returns the rows to label next; `no_picks` in the last round.

    Returns:
        The record of the round.
    """
    session.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}
    labels = len(session.labelled)
    metrics, train_seconds = measure(session, test)
    picks = choose()
    notes: dict[str, Any] = {
        "selection": dict(picks.notes),
        "training": _equal_notes(session.fit().notes) if session.learner else {},
    }
    seconds = dict(session.seconds)
    if len(picks):
        session.tell(picks.ids, oracle(picks.ids))
        if session.batch_estimate is not None:
            notes["estimate"] = session.batch_estimate
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
        train_seconds=train_seconds,
        read_seconds=seconds["read"],
        peak_mb=peak_mb(),
        picked=[as_json(row) for row in picks.ids.tolist()],
        notes=notes,
        environment={**environment(), "seed": str(session.seed)},
    )


def _equal_notes(notes: Mapping[str, Any]) -> dict[str, Any]:
    """The notes of a fit that two equal runs have equal."""
    return {name: value for name, value in notes.items() if name != "seconds"}


def no_picks() -> Selection:
    """Return an empty batch, the choice of the last round."""
    return Selection(np.empty(0), np.empty(0), np.empty(0))


def measure(session: Session, test: tuple[Pool, Any] | None) -> tuple[dict[str, float], float]:
    """Train the model of a session and measure it on the test rows.

    Args:
        session: one with at least one answer, or without a learner.
        test: the rows to measure on and their labels, or None to measure nothing.

    Returns:
        The metrics, and the seconds that training took.
    """
    if session.learner is None:
        return {}, 0.0
    began = time.perf_counter()
    fit = session.fit()
    # Trained together with other sessions, a fit knows its share of the time.
    train_seconds = fit.notes.get("seconds", time.perf_counter() - began)
    if test is None:
        return {}, train_seconds
    rows, labels = test
    answers = torch.tensor(session.as_answers(labels))
    return evaluate(fit.reader, rows, rows.ids, answers, session.batch), train_seconds


def _test_rows(
    test: float | tuple[Any, Any] | None, pool: Pool, oracle: Oracle, key: Key
) -> tuple[tuple[Pool, Any] | None, Pool]:
    """The rows to measure on with their labels, and the rest of the pool, to choose from."""
    if test is None:
        return None, pool
    if isinstance(test, tuple):
        rows, labels = test
        check_order(labels, rows.keys_of(rows.ids) if isinstance(rows, Pool) else rows)
        rows = pool.like(rows)
        if len(rows) != len(labels):
            raise RowError(f"test must hold one label for each row, found {len(rows)} rows and {len(labels)} labels")
        return (rows, labels), pool
    if not 0 < test < 1:
        raise ArgumentError(f"test must be a share above 0 and below 1, (inputs, labels) or None; found {test!r}")
    count = max(1, round(test * len(pool)))
    order = key.uniform(pool.ids).argsort()
    test_ids: Tensor = pool.ids[order[:count]].sort().values
    if count >= len(pool):
        raise BudgetError(f"a pool of {len(pool)} rows is too small to set a share of {test} aside; pass test=None")
    rest_ids = pool.ids[~torch.isin(pool.ids, test_ids)]
    pool = pool.encoded_by(rest_ids)  # the encoder of a frame sees no test row
    rest = pool.subset(rest_ids)
    return (pool.subset(test_ids), oracle(pool.keys_of(test_ids))), rest


def _known_classes(pool: Pool, oracle: Any) -> int | tuple[str, ...] | None:
    """The classes, where the labels of all rows are known: a class may not have been drawn yet."""
    if pool.classes is not None:
        return pool.classes
    if oracle is None or callable(oracle):
        labels = pool.labels
        return None if labels is None or labels.is_floating_point() else int(labels.max()) + 1
    values = np.asarray(plain_values(oracle))
    if values.dtype.kind in "US" or (values.dtype == object and all(isinstance(value, str) for value in values)):
        return tuple(sorted({str(value) for value in values}))
    return int(values.max()) + 1 if values.dtype.kind in "iub" and values.size else None


def _check_plan(first: int, k: int, n: int, rows: int) -> None:
    """Raise before the first label is asked for if there are not enough rows."""
    for what, value, least in (("k", k, 1), ("start", first, 1), ("n", n, 0)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
            raise BudgetError(f"{what} must be a whole number of at least {least}, found {value!r}")
    first, k, n = int(first), int(k), int(n)  # small integers of numpy overflow
    if first + n * k > rows:
        raise BudgetError(
            f"{first} first labels and {n} rounds of {k} are {first + n * k} labels, but only {rows} rows are free; "
            "take fewer rounds, a smaller k or a smaller test share"
        )
