"""Snapshot: what is known after an event. It depends only on the events up to it and on the settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise import recipes, strategies
from labelwise.errors import ArgumentError, LabelwiseError
from labelwise.io.sizes import parse_size
from labelwise.pool import Ledger, Pool
from labelwise.project.loop.model import head_learner
from labelwise.project.settings import Settings
from labelwise.project.store import Round, Store
from labelwise.rng import Key
from labelwise.selection.memory import check_each
from labelwise.session import Session
from labelwise.session.session import SessionState
from labelwise.signals.spec import Embedding, Features, HeadGrad, Probs, Weight
from labelwise.stats.estimate import LAW

MULTI_RECIPE = "typiclust+margin"  # of items with several classes, where none is named
_MULTI_POOL, _MULTI_LABELLED = (Features, Embedding, Probs, HeadGrad), (Features, Embedding)
CHECKED_ROUNDS = 50  # rounds that a memory limit must be enough for: labelled rows take memory too


@dataclass(frozen=True)
class Snapshot:
    """Training and test labels by row, in the order of the rows. A label is a class number, or a number."""

    after: int
    classes: tuple[str, ...]
    train: dict[int, float]
    test: dict[int, float]
    picked: frozenset[int]  # rows of every round
    unusable: tuple[str, ...]  # labels that are not numbers, in a project with numbers as labels
    tested: int = 0  # rows of the test reserve that were used
    round_of: Mapping[int, int] = field(default_factory=dict)  # of the rows that a strategy chose
    weights: Mapping[int, float] = field(default_factory=dict)  # those of them that are not 1
    laws: Mapping[int, dict[str, Any]] = field(default_factory=dict)  # of rounds drawn by a known law
    sets: tuple[str, ...] = ()  # different labels, where a label is a set of classes: its number is the place here

    def values(self, labels: Mapping[int, float]) -> list[str]:
        """The labels as they are stored, where they are sets of classes."""
        return [self.sets[int(value)] for value in labels.values()]


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
    picks_of = {one.number: store.picks(one.number) for one in made}
    picks = [pick for some in picks_of.values() for pick in some]
    position = {int(row): n for n, row in enumerate(order)}
    used = max((position[pick.row] + 1 for pick in picks if pick.slice == "test" and pick.row in position), default=0)
    classes = _classes(store, after) if settings.task != "regress" else []
    sets: list[str] = []
    train: dict[int, float] = {}
    test: dict[int, float] = {}
    wrong: list[str] = []
    for row in sorted(answers):
        answer = answers[row]
        if answer.value is None:
            continue
        value = _value(answer.value, settings, sets if settings.task == "multi" else classes)
        if value is None:
            wrong.append(f"row {row}: {answer.value!r} is not a number")
        elif row not in position:
            train[row] = value
        elif position[row] < used:  # an imported label of a reserve row waits until the row is used
            test[row] = value
    chosen = {number: [pick for pick in some if pick.slice == "chosen"] for number, some in picks_of.items()}
    return Snapshot(
        after, tuple(classes), train, test, frozenset(pick.row for pick in picks), tuple(wrong), used,
        {pick.row: number for number, some in chosen.items() for pick in some},
        {pick.row: pick.why["weight"] for some in chosen.values() for pick in some if "weight" in pick.why},
        {one.number: one.notes[LAW] for one in made if LAW in one.notes},
        tuple(sets),
    )  # fmt: skip


def session_of(pool: Pool, settings: Settings, order: np.ndarray, snapshot: Snapshot) -> Session:
    """A session with every training label, on the rows a strategy may choose from."""
    ids = pool.ids.numpy()
    closed = np.array(sorted((snapshot.picked | set(order.tolist())) - set(snapshot.train)), np.int64)
    rows = ids[~np.isin(ids, closed)]
    weighted = settings.recipe != recipes.RECOMMENDED and recipes.get(settings.recipe).weights
    session = Session(
        pool.subset(rows),
        head_learner(int(pool.inputs(ids[:1]).shape[1]), len(snapshot.classes), settings.task, weighted),
        settings.recipe,
        classes=snapshot.classes or None,
        task="regress" if settings.task == "regress" else "classify",
        seed=settings.seed,
        max_memory=settings.max_memory or None,
    )
    if snapshot.train:
        session.restore(
            SessionState(_ledger(snapshot, settings, len(rows)), round=max(snapshot.round_of.values(), default=0) + 1)
        )
    return session


def training_weights(session: Session, rows: Sequence[int]) -> Tensor | None:
    """The weights (N,), of mean 1, that the recipe of a session trains these rows with; None for equal ones."""
    if not session.recipe.weights:
        return None
    weight = dict(zip(session.ledger.labelled.tolist(), session.ledger.joint_weights(len(session.pool)).tolist()))
    if session.recipe.weigh not in (None, "density"):  # made for the labels, not with their draws
        fit = session.fit()
        weight = dict(zip(fit.ids.tolist(), fit.published[Weight()].tolist()))
    weight_N = torch.tensor([weight[row] for row in rows], dtype=torch.float64)
    return weight_N / weight_N.mean()


def _ledger(snapshot: Snapshot, settings: Settings, rows: int) -> Ledger:
    """The training labels by round, with the weights their rows were drawn with; imported labels belong to round 0."""
    ledger = Ledger()
    of_round: dict[int, list[int]] = {}
    for row in snapshot.train:
        of_round.setdefault(snapshot.round_of.get(row, 0), []).append(row)
    for number, some in sorted(of_round.items()):
        labels = [snapshot.train[row] if settings.task == "regress" else int(snapshot.train[row]) for row in some]
        weights = [snapshot.weights.get(row, 1.0) for row in some]
        law = snapshot.laws.get(number)
        notes = {} if law is None else {LAW: {**law, "pool": rows}}
        ledger.add(number, some, labels, weights, settings.recipe, notes)
    return ledger


def check_recipe(settings: Settings) -> None:
    """Raise ArgumentError for a recipe that cannot choose three batches with the model of a project."""
    if settings.task == "multi":
        with_recipe(settings, Pool.of(np.zeros((2, 1), np.float32)))
        return
    rows, columns = 48, 4  # a small made-up pool
    x_ND = Key(0).fold("recipe").numpy().standard_normal((rows, columns)).astype("float32")
    regress = settings.task == "regress"
    if settings.recipe != recipes.RECOMMENDED:
        recipes.get(settings.recipe)  # a wrong name has its own error
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


def with_recipe(settings: Settings, pool: Pool) -> Settings:
    """The settings with the name of a recipe in place of "recommended", so that the project keeps it."""
    if settings.task == "multi":
        return with_multi_recipe(settings)
    if settings.recipe != recipes.RECOMMENDED:
        return settings
    found = recipes.recommended(
        head_learner(int(pool.inputs(pool.ids[:1]).shape[1]), len(settings.classes), settings.task),
        pool,
        task=settings.task,
        classes=len(settings.classes) or None,
        k=settings.k,
        max_memory=parse_size(settings.max_memory or None),
    )
    return replace(settings, recipe=found.recipe)


def with_multi_recipe(settings: Settings) -> Settings:
    """The settings with the name of a recipe. ArgumentError for one with a strategy that has no meaning here."""
    if settings.recipe == recipes.RECOMMENDED:
        return replace(settings, recipe=MULTI_RECIPE)
    recipe = recipes.get(settings.recipe)
    if any(getattr(recipe, part) is not None for part in recipes.PARTS):
        raise ArgumentError(
            f"--recipe {settings.recipe}: with --multi, a recipe chooses rows and has no other parts; name the "
            f"strategies alone, such as {recipe.name.partition(' | ')[0]}"
        )
    for one in (recipe.start, recipe.strategy):
        needs = strategies.get(one).needs if isinstance(one, str) else one.needs
        known = all(isinstance(one, _MULTI_POOL) for one in needs.pool)
        if not (known and all(isinstance(one, _MULTI_LABELLED) for one in needs.labelled)) or recipe.weights:
            raise ArgumentError(
                f"--recipe {settings.recipe}: with --multi, strategies see features and the class that the model is "
                f"least sure of; {strategies.name_of(one)} needs more. Take {MULTI_RECIPE}, typiclust+badge or "
                "typiclust+kcenter"
            )
    return settings


def check_limit(pool: Pool, settings: Settings) -> None:
    """Raise MemoryLimitError if the memory limit of the settings is too small for the first rounds of this pool."""
    if not settings.max_memory or settings.task == "multi":  # whose rounds are chosen from arrays, within the limit
        return
    rounds = max(1, min(CHECKED_ROUNDS, (len(pool) - 2) // settings.k))
    rows = dict(zip(pool.ids[:2].tolist(), (0.0, 1.0)))  # any two labels give a model of the final size
    check_each((partial(_check, pool, settings, {}, 1), partial(_check, pool, settings, rows, rounds)))


def _check(pool: Pool, settings: Settings, train: dict[int, float], rounds: int) -> None:
    named = settings.classes if len(settings.classes) > 1 else ("one", "other")
    snapshot = Snapshot(0, named if settings.task == "classify" else (), train, {}, frozenset(), ())
    session_of(pool, settings, np.empty(0, np.int64), snapshot).check_memory(settings.k, rounds)


def _classes(store: Store, after: int) -> list[str]:
    """The classes in the order they were added, up to event `after`."""
    return [str(event.value) for event in store.events() if event.kind == "class" and event.seq <= after]


def _value(text: str, settings: Settings, classes: list[str]) -> float | None:
    if settings.task != "regress":
        if text not in classes:
            classes.append(text)  # a project without named classes takes them from its labels
        return float(classes.index(text))
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
