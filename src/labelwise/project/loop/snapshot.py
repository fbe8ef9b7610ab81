"""Standing: what is known after an event. A function of the events up to it and of the settings, of nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from labelwise.pool import Pool
from labelwise.project.loop.model import head_learner
from labelwise.project.settings import Settings
from labelwise.project.store import Round, Store
from labelwise.selection.memory import check_each
from labelwise.session import Session

ROUNDS = 50  # for which a limit on memory has to be enough when a project is made: labelled rows are held too


@dataclass(frozen=True)
class Standing:
    """Labels to train on and to test on, by row, in the order of the rows; class numbers, or numbers."""

    after: int
    classes: tuple[str, ...]
    train: dict[int, float]
    test: dict[int, float]
    picked: frozenset[int]  # rows of all rounds
    skipped_tests: int  # test rows that somebody looked at and gave no label
    unusable: tuple[str, ...]  # labels that are no numbers, in a project of numbers


def last_seq(store: Store) -> int:
    """The number of the last event."""
    low = 0
    while True:  # pages of events: only the last number is of interest
        events = store.events(low, 10_000)
        if not events:
            return low
        low = events[-1].seq


def standing(
    store: Store, settings: Settings, order: np.ndarray, after: int, rounds: Sequence[Round] | None = None
) -> Standing:
    """What is known after event `after`; `order` is the reserve. `rounds` are those made by then, by default all."""
    answers = store.answers(upto=after)
    made = store.rounds() if rounds is None else rounds
    picks = [pick for one in made for pick in store.picks(one.number)]
    place = {int(row): at for at, row in enumerate(order)}
    reach = max((place[pick.row] + 1 for pick in picks if pick.slice == "test" and pick.row in place), default=0)
    classes = _classes(store, after) if settings.task == "classify" else []
    train: dict[int, float] = {}
    test: dict[int, float] = {}
    wrong, skipped = [], 0
    for row in sorted(answers):
        answer = answers[row]
        if row in place and place[row] < reach and answer.value is None:
            skipped += 1
        if answer.value is None:
            continue
        value = _value(answer.value, settings, classes)
        if value is None:
            wrong.append(f"row {row}: {answer.value!r} is not a number")
        elif row not in place:
            train[row] = value
        elif place[row] < reach:  # a label of a reserve row that came from elsewhere waits until its turn
            test[row] = value
    return Standing(after, tuple(classes), train, test, frozenset(pick.row for pick in picks), skipped, tuple(wrong))


def session_of(pool: Pool, settings: Settings, order: np.ndarray, known: Standing) -> Session:
    """A session in which every answer is told, on the rows a strategy may choose from."""
    ids = pool.ids.numpy()
    closed = np.array(sorted((known.picked | set(order.tolist())) - set(known.train)), np.int64)
    rows = ids[~np.isin(ids, closed)]
    session = Session(
        pool.subset(rows),
        head_learner(int(pool.inputs(ids[:1]).shape[1]), len(known.classes), settings.task),
        settings.recipe,
        classes=known.classes or None,
        task=settings.task,
        seed=settings.seed,
        max_memory=settings.max_memory or None,
    )
    if known.train:
        rows_told = list(known.train)
        labels = [known.train[row] for row in rows_told]
        session.tell(rows_told, labels if settings.task == "regress" else [int(label) for label in labels])
    return session


def check_limit(pool: Pool, settings: Settings) -> None:
    """Raise MemoryLimitError now where the limit of the settings is too small for the first rounds of this pool."""
    if not settings.max_memory:
        return
    rounds = max(1, min(ROUNDS, (len(pool) - 2) // settings.k))
    rows = dict(zip(pool.ids[:2].tolist(), (0.0, 1.0)))  # any answers give a model of the size there will be
    check_each((partial(_check, pool, settings, {}, 1), partial(_check, pool, settings, rows, rounds)))


def _check(pool: Pool, settings: Settings, train: dict[int, float], rounds: int) -> None:
    named = settings.classes if len(settings.classes) > 1 else ("one", "other")
    known = Standing(0, named if settings.task == "classify" else (), train, {}, frozenset(), 0, ())
    session_of(pool, settings, np.empty(0, np.int64), known).check_memory(settings.k, rounds)


def _classes(store: Store, after: int) -> list[str]:
    """The classes by the order they were added in, up to event `after`."""
    return [str(event.value) for event in store.events() if event.kind == "class" and event.seq <= after]


def _value(text: str, settings: Settings, classes: list[str]) -> float | None:
    if settings.task == "classify":
        if text not in classes:
            classes.append(text)  # a project whose classes were never named learns them from its labels
        return float(classes.index(text))
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
