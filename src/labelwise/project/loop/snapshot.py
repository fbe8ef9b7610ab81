"""Snapshot: what is known after an event. It depends only on the events up to it and on the settings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from labelwise.errors import ArgumentError, LabelwiseError
from labelwise.pool import Pool
from labelwise.project.loop.model import head_learner
from labelwise.project.settings import Settings
from labelwise.project.store import Round, Store
from labelwise.rng import Key
from labelwise.selection.memory import check_each
from labelwise.session import Session

CHECKED_ROUNDS = 50  # rounds that a memory limit must be enough for: labelled rows take memory too


@dataclass(frozen=True)
class Snapshot:
    """Training and test labels by row, in the order of the rows. A label is a class number, or a number."""

    after: int
    classes: tuple[str, ...]
    train: dict[int, float]
    test: dict[int, float]
    picked: frozenset[int]  # rows of every round
    skipped_tests: int  # test rows that were answered without a label
    unusable: tuple[str, ...]  # labels that are not numbers, in a project with numbers as labels


def last_seq(store: Store) -> int:
    """The number of the last event."""
    low = 0
    while True:  # the store has no query for it
        events = store.events(low, 10_000)
        if not events:
            return low
        low = events[-1].seq


def take_snapshot(
    store: Store, settings: Settings, order: np.ndarray, after: int, rounds: Sequence[Round] | None = None
) -> Snapshot:
    """What is known after an event.

    Args:
        store: the answers.
        settings: the settings of the project.
        order: rows of the test reserve, in the order they are used.
        after: number of the last event to take into account.
        rounds: the rounds that existed by then; all by default.
    """
    answers = store.answers(upto=after)
    made = store.rounds() if rounds is None else rounds
    picks = [pick for one in made for pick in store.picks(one.number)]
    position = {int(row): n for n, row in enumerate(order)}
    used = max((position[pick.row] + 1 for pick in picks if pick.slice == "test" and pick.row in position), default=0)
    classes = _classes(store, after) if settings.task == "classify" else []
    train: dict[int, float] = {}
    test: dict[int, float] = {}
    wrong, skipped = [], 0
    for row in sorted(answers):
        answer = answers[row]
        if row in position and position[row] < used and answer.value is None:
            skipped += 1
        if answer.value is None:
            continue
        value = _value(answer.value, settings, classes)
        if value is None:
            wrong.append(f"row {row}: {answer.value!r} is not a number")
        elif row not in position:
            train[row] = value
        elif position[row] < used:  # an imported label of a reserve row waits until the row is used
            test[row] = value
    return Snapshot(after, tuple(classes), train, test, frozenset(pick.row for pick in picks), skipped, tuple(wrong))


def session_of(pool: Pool, settings: Settings, order: np.ndarray, snapshot: Snapshot) -> Session:
    """A session with every training label, on the rows a strategy may choose from."""
    ids = pool.ids.numpy()
    closed = np.array(sorted((snapshot.picked | set(order.tolist())) - set(snapshot.train)), np.int64)
    rows = ids[~np.isin(ids, closed)]
    session = Session(
        pool.subset(rows),
        head_learner(int(pool.inputs(ids[:1]).shape[1]), len(snapshot.classes), settings.task),
        settings.recipe,
        classes=snapshot.classes or None,
        task=settings.task,
        seed=settings.seed,
        max_memory=settings.max_memory or None,
    )
    if snapshot.train:
        labels = list(snapshot.train.values())
        session.tell(list(snapshot.train), labels if settings.task == "regress" else [int(label) for label in labels])
    return session


def check_recipe(settings: Settings) -> None:
    """Raise ArgumentError for a recipe that cannot choose three batches with the model of a project."""
    rows, columns = 48, 4  # a small made-up pool
    x_ND = Key(0).fold("recipe").numpy().standard_normal((rows, columns)).astype("float32")
    regress = settings.task == "regress"
    try:
        session = Session(
            x_ND,
            head_learner(columns, 2, settings.task),
            settings.recipe,
            classes=None if regress else 2,
            task=settings.task,
            seed=settings.seed,
        )
        for _ in range(2):
            ids = session.ask(6).ids
            session.tell(ids, x_ND[ids, 0].astype(float) if regress else (x_ND[ids, 0] > 0).astype(int))
        session.ask(6)
    except LabelwiseError as error:
        raise ArgumentError(
            f"--recipe {settings.recipe}: it does not work with the model of a project, a linear layer on the "
            f"features. {error}"
        ) from error


def check_limit(pool: Pool, settings: Settings) -> None:
    """Raise MemoryLimitError if the memory limit of the settings is too small for the first rounds of this pool."""
    if not settings.max_memory:
        return
    rounds = max(1, min(CHECKED_ROUNDS, (len(pool) - 2) // settings.k))
    rows = dict(zip(pool.ids[:2].tolist(), (0.0, 1.0)))  # any two labels give a model of the final size
    check_each((partial(_check, pool, settings, {}, 1), partial(_check, pool, settings, rows, rounds)))


def _check(pool: Pool, settings: Settings, train: dict[int, float], rounds: int) -> None:
    named = settings.classes if len(settings.classes) > 1 else ("one", "other")
    snapshot = Snapshot(0, named if settings.task == "classify" else (), train, {}, frozenset(), 0, ())
    session_of(pool, settings, np.empty(0, np.int64), snapshot).check_memory(settings.k, rounds)


def _classes(store: Store, after: int) -> list[str]:
    """The classes in the order they were added, up to event `after`."""
    return [str(event.value) for event in store.events() if event.kind == "class" and event.seq <= after]


def _value(text: str, settings: Settings, classes: list[str]) -> float | None:
    if settings.task == "classify":
        if text not in classes:
            classes.append(text)  # a project without named classes takes them from its labels
        return float(classes.index(text))
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
