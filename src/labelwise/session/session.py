"""Session: `ask` for the rows to label next, `tell` their labels. The ledger of answers is the only state.

Fits and picks are computed from the answers so far and from the seed alone, whatever the order of the answers, so a
session that is loaded in a new process continues with the same picks. The seed is split by purpose: "start" for the
first batch, "train" for each fit (initial weights and order of the data), "select" for each later batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise import recipes
from labelwise.errors import ArgumentError, LabelError, NeedError, RowError, StoreError
from labelwise.io.sizes import parse_size
from labelwise.labels.answers import check_ids, count_classes, resolve_classes, resolve_task
from labelwise.labels.oracle import to_class_numbers, to_numbers
from labelwise.pool import Ledger, Pool
from labelwise.recipes import Recipe
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.read_pool import PoolReader, add_notes
from labelwise.selection.run import RunOptions, run_selection
from labelwise.selection.validate import check_budget, key_of
from labelwise.session import folder as store
from labelwise.session import overview
from labelwise.session.estimator import SessionEstimator
from labelwise.session.pending import PendingBatch
from labelwise.shards import Shards
from labelwise.shards.placement import Placement
from labelwise.shards.ray import Ray, engine_of
from labelwise.signals.read import Reader
from labelwise.signals.spec import stored
from labelwise.train import Fit, Learner, learner_of
from labelwise.train.labelled_columns import labelled_rows, reader_for, rows_for_gradients
from labelwise.train.learner import with_holdout_key


@dataclass(frozen=True)
class SessionState:
    """What a session has learnt so far, besides the arguments it was made with; see `Session.state`.

    Attributes:
        ledger: all answers, in memory.
        fit: the last fit; None before the first.
        fit_answers: how many answers that fit was trained on, corrections counted.
        pending: the batch that was asked for last; None before the first.
        round: the round that answers told next belong to.
    """

    ledger: Ledger
    fit: Fit | None = None
    fit_answers: int = 0
    pending: PendingBatch | None = None
    round: int = 0


class Session(SessionEstimator):
    """Active learning for people who own the loop.

    Attributes:
        pool: the rows to choose from, as a `Pool`.
        learner: what is trained on the answers, as a `Learner`, or None.
        recipe: how batches are chosen, as a `Recipe`.
        task: "classify" or "regress".
        classes: the number of classes or their names; None where neither is known.
        weights: as given.
        seed: as given.
        folder: where the session is stored, or None.
        ledger: all answers so far. Read it; add answers by `tell`.
        seconds: what the last `ask` spent on "read", "train" and "select".
        estimate: accuracy and loss on the pool of the model that chose the last batch, estimated from that batch's
            answers; None until the batch is answered, and for strategies whose draws do not allow an estimate.

    >>> import labelwise as lw
    >>> X = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
    >>> from sklearn.linear_model import LogisticRegression
    >>> al = lw.Session(X, LogisticRegression(), "margin", classes=2, seed=0)
    >>> for _ in range(3):
    ...     picks = al.ask(5)
    ...     al.tell(picks.ids, (X[picks.ids, 0] > 0).astype(int))
    >>> len(al.labelled)
    15
    >>> al.predict(X[:3]).tolist()
    [1, 0, 0]
    >>> al
    Session(100 rows, 15 labelled, round 2, recipe 'margin', seed 0, no folder)
    """

    def __init__(
        self,
        pool: Any,
        learner: Any = None,
        recipe: str | Strategy | Recipe = "badge",
        *,
        classes: int | Sequence[str] | None = None,
        task: Literal["classify", "regress"] | None = None,
        weights: bool | None = None,
        seed: int = 0,
        folder: str | Path | None = None,
        spill: str | Path | None = None,
        batch: int = 256,
        max_memory: int | str | None = None,
        engine: str | Ray | None = None,
        half: bool = False,
        resume: bool = False,
    ):
        """Start a session.

        Args:
            pool: a Pool, or anything `Pool.of` takes: an array, a tensor, a list of texts, a Dataset.
            learner: a torch module or a function that makes one, a scikit-learn estimator, or a Learner. Strategies
                that need no model need no learner.
            recipe: the name of a strategy, "first+then", a Strategy with parameters, or a Recipe.
            classes: the number of classes, or their names; None takes them from the pool where it knows them.
            task: "regress" if labels are numbers; None takes the task of the learner, else "classify".
            weights: whether training uses the weights that rows were drawn with; None leaves it to the learner.
            seed: the only source of chance.
            folder: a folder to store the session in; it must not hold one yet, unless `resume` is true. Answers are on
                disk before `tell` returns, and `Session.load` continues from there.
            spill: a folder for memory-mapped files with the pool's signals, for pools larger than memory.
            batch: rows in one forward pass.
            max_memory: limit on the memory of `ask` besides pool and model, such as "4GB". It counts the memory that
                holds the signals: an accelerator's, the CPU's, or else files. A limit that is too small is refused,
                and the error names the smallest that works.
            engine: None for this process; "ray" or a `Ray` to read the pool on workers, each with its own model.
            half: store signals of several numbers a row in float16 and compute in float32: half the memory and half
                the bytes to read. docs/results/half.md shows how picks change.
            resume: continue the session that `folder` holds, as `Session.load` does, or start it where there is none:
                a cell of a notebook can be run twice. Recipe, seed, classes, pool and the other arguments that decide
                about picks must be those it was started with.

        Raises:
            ArgumentError, LabelError, NeedError, StoreError: an argument does not fit the others, or the folder
                already holds a session, or, with `resume`, one with other settings.
        """
        if resume and folder is None:
            raise ArgumentError("resume=True continues the session in a folder; pass folder= too")
        self._key = key_of(seed)
        self.pool = pool if isinstance(pool, Pool) else Pool.of(pool)
        self.recipe = recipes.get(recipe)
        self.learner = None if learner is None else self.recipe.learner(learner_of(learner, task))
        if weights is not None and self.learner is not None:
            self.learner = recipes.weighing(self.learner, weights)
        if self.learner is not None:
            self.learner = with_holdout_key(self.learner, self._key.fold("holdout"))
        self.weights = weights
        self.task = resolve_task(task, self.learner)
        self.classes = resolve_classes(classes, self.pool) if self.task == "classify" else None
        if self.task == "regress":
            self.recipe = self.recipe.for_regression()
        self.seed = seed
        self.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}
        self.estimate: dict[str, Any] | None = None
        self._estimates: dict[int, dict[str, Any]] = {}  # by round
        spill_folder = None if spill is None else Path(spill)
        self._pool_reader = PoolReader(
            self.pool, batch, RunOptions.of(max_memory), engine_of(engine), spill_folder, bool(half)
        )
        self._fit: Fit | None = None
        self._fit_answers = 0  # how many answers it was trained on
        self._pending: PendingBatch | None = None
        self._pending_reader: Reader | None = None  # the model that chose it; None in a session loaded since
        self._round = 0
        self.folder = None if folder is None else Path(folder)
        if self.folder is not None and resume and store.is_used(self.folder):
            self.ledger = self._load(self.folder)
        else:
            self.ledger = Ledger() if self.folder is None else store.create(self.folder, self._settings())

    @staticmethod
    def load(
        folder: str | Path,
        pool: Any,
        learner: Any = None,
        recipe: str | Strategy | Recipe | None = None,
        *,
        max_memory: int | str | None = None,
        engine: str | Ray | None = None,
    ) -> Session:
        """Continue a session that is stored in a folder.

        Args:
            folder: where the session was started with `Session(..., folder=...)`.
            pool: the same pool, in the same form.
            learner: the same learner.
            recipe: only for a strategy class of your own; otherwise the stored recipe is used.
            max_memory: as for a new session.
            engine: as for a new session.

        Returns:
            The session, with all answers, the last batch asked for, and the last fit where training continues from it.

        Raises:
            StoreError: the folder holds no session, a file cannot be read, or the pool or recipe is another one.
        """
        path = Path(folder)
        settings = store.settings(path)
        return Session(
            pool,
            learner,
            recipe if recipe is not None else store.recipe_of(path, settings),
            classes=settings["classes"],
            task=settings.get("task"),
            weights=settings.get("weights"),
            seed=settings["seed"],
            batch=settings["batch"],
            half=settings.get("half", False),
            max_memory=max_memory,
            engine=engine,
            folder=path,
            resume=True,
        )

    def _load(self, folder: Path) -> Ledger:
        """Take over the session stored in `folder`; return its ledger."""
        store.check(folder, store.settings(folder), self._settings())
        self.ledger = store.ledger(folder)
        self._pending = pending = store.load_pending(folder, self._count_answers())
        partly = pending is not None and not pending.is_complete(self.ledger)
        self._round = pending.round if pending is not None and partly else self._next_round()
        if self.learner is not None:
            self._fit, self._fit_answers = store.load_fit(folder, self.learner)
        return self.ledger

    def __repr__(self) -> str:
        return overview.one_line(self)

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        return overview.html_table(self)

    @property
    def labelled(self) -> np.ndarray:
        """Ids (n,) of the rows that have an answer."""
        return self.ledger.labelled.numpy()

    @property
    def free(self) -> np.ndarray:
        """Ids (m,) of the rows that have no answer yet."""
        return self.ledger.free(self.pool.ids).numpy()

    @property
    def round(self) -> int:
        """The number of the round that answers told now belong to; the first is 0."""
        return self._round

    @property
    def key(self) -> Key:
        """The key of the seed, which all chance of the session is folded from."""
        return self._key

    @property
    def batch(self) -> int:
        """Rows in one forward pass."""
        return self._pool_reader.batch

    @property
    def max_memory(self) -> int | None:
        """The limit on the memory of `ask`, in bytes; None for no limit. It may be changed between batches."""
        return self._pool_reader.options.limit

    @max_memory.setter
    def max_memory(self, limit: int | str | None) -> None:
        self._pool_reader = replace(
            self._pool_reader, options=replace(self._pool_reader.options, limit=parse_size(limit))
        )

    def ask(self, k: int, progress: Callable[[int, int], None] | None = None) -> Selection:
        """Choose the rows to label next, after training on all answers so far.

        Args:
            k: how many rows.
            progress: a function of (done, total) that is called from time to time while picks are made.

        Returns:
            The picks: ids (k,), weights, scores and notes. Asking again without telling returns the same.

        Raises:
            BudgetError: k is not a whole number from 1 to the number of free rows.
            NeedError: the recipe needs a model or a signal that is not there.
            MemoryLimitError: `max_memory` is too small; the error names the smallest that works.
        """
        free = self.ledger.free(self.pool.ids)
        k = check_budget(k, len(free))
        options = self._pool_reader.options.with_progress(progress)
        self.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}
        strategy = self._next_strategy()
        picks = self._select(strategy, k, options)
        self._pending_reader = self._fit.reader if self._fit is not None and self._fit_is_current() else None
        self._round = self._next_round()
        has_model = self._pending_reader is not None
        self._pending = PendingBatch.of(strategy, picks, self._round, self._count_answers(), len(free), has_model)
        if self.folder is not None:
            store.save_pending(self.folder, self._pending)
        return picks

    def tell(self, ids: Any, labels: Any) -> None:
        """Record answers: all of them or, on an error, none.

        With a folder, the answers are on disk when this returns.

        Args:
            ids: (n,) distinct rows of the pool, asked for or not. Telling a row again corrects its label.
            labels: (n,) class numbers or names, or numbers in regression.

        Raises:
            RowError: an id is not in the pool, or is given twice.
            LabelError: a label is none of the classes, or there is not one label for each id.
        """
        rows = check_ids(ids)
        answers = self.as_answers(labels)
        if len(rows) != len(answers):
            raise LabelError(f"one label for each id was expected, found {len(rows)} ids and {len(answers)} labels")
        self._check_rows(torch.tensor(rows, dtype=torch.int64))
        if not rows:
            return
        weights = [1.0] * len(rows) if self._pending is None else self._pending.weights_of(rows)
        notes = {} if self._pending is None else self._pending.notes_for(rows)
        self.ledger.add(self._round, rows, answers, weights, self.recipe.name, notes)
        self.estimate = self._estimate()
        if self.estimate is not None:
            self._estimates[self._round] = self.estimate

    def as_answers(self, labels: Any) -> list[int] | list[float]:
        """Convert labels to what the ledger stores.

        Args:
            labels: (n,) class numbers or names, or numbers in regression.

        Returns:
            Class numbers, or numbers in regression.

        Raises:
            LabelError: a label is none of the classes, or not a finite number.
        """
        return to_numbers(labels) if self.task == "regress" else to_class_numbers(labels, self.classes)

    def fit(self) -> Fit:
        """Train on all answers so far, unless the last fit already did.

        Returns:
            The fit, whose `reader` answers about any row.

        Raises:
            NeedError: the session has no learner.
            LabelError: there is no answer yet.
        """
        if self._fit is not None and self._fit_is_current():
            return self._fit
        if self.learner is None:
            raise NeedError(
                f"recipe {self.recipe.name!r} asks a model, but the session has no learner; pass a torch module, a "
                "scikit-learn classifier or a Learner"
            )
        if not len(self.ledger.labelled):
            raise LabelError("there is no answer to train on yet: label the rows of ask(k), then tell(ids, labels)")
        began = time.perf_counter()
        self._fit = self._train(self.learner, self.ledger)
        self._fit_answers = self._count_answers()
        self.seconds["train"] += time.perf_counter() - began
        if self.folder is not None:
            store.save_fit(self.folder, self._fit, self._fit_answers)
        return self._fit

    def state(self) -> SessionState:
        """Return what the session has learnt so far, for `restore` of a session on the same pool.

        Returns:
            A snapshot with a copy of the ledger: what happens to the session later does not change it. It lives in
            memory and holds the trained model; to keep a session on disk, use `folder=`.

        >>> import labelwise as lw
        >>> one, other = (lw.Session(np.eye(3), recipe=name, classes=2) for name in ("random", "kcenter"))
        >>> one.tell([1], [0])
        >>> other.restore(one.state())
        >>> other.free
        array([0, 2])
        """
        ledger = Ledger()
        for entry in self.ledger:
            ledger.append(entry)
        return SessionState(ledger, self._fit, self._fit_answers, self._pending, self._round)

    def restore(self, state: SessionState) -> None:
        """Continue from a state, in place of the answers and the fit of this session.

        The recipe, the seed and the other arguments stay those of this session. With a folder, the state is stored
        there when this returns.

        Args:
            state: what `state` of a session on the same pool returned; `dataclasses.replace` changes a part of it.

        Raises:
            StoreError: the session is stored in a folder and holds answers already, which are never removed.
            RowError, LabelError: an answer does not fit the pool or the classes.
        """
        if self.folder is not None and len(self.ledger):
            raise StoreError(
                f"a session without answers was expected; the one in {self.folder} holds {len(self.ledger)} entries, "
                "which are never removed. Restore the state in a session with a new folder, or without folder="
            )
        self._check_rows(state.ledger.labelled)
        self.as_answers(state.ledger.labels)
        if self.folder is None:
            self.ledger = Ledger()
        for entry in state.ledger:
            self.ledger.append(entry)
        self._fit, self._fit_answers = state.fit, state.fit_answers
        self._pending, self._pending_reader, self._round = state.pending, None, state.round
        self.estimate, self._estimates = None, {}
        if self.folder is not None:
            if self._pending is not None:
                store.save_pending(self.folder, self._pending)
            if self._fit is not None:
                store.save_fit(self.folder, self._fit, self._fit_answers)

    def check_memory(self, k: int, n: int = 1) -> None:
        """Check now that `max_memory` is large enough for each of the next batches; without a limit, do nothing.

        Before the first answer the check is for batches chosen as the first one is. Later it trains, if need be, and
        reads one row to know how large rows are.

        Args:
            k: rows in each batch.
            n: how many batches.

        Raises:
            MemoryLimitError: the limit is too small; the error names the smallest that works.
        """
        if self.max_memory is None:
            return
        strategy = self._next_strategy(cold=not len(self.ledger.labelled))
        reader = reader_for(stored(strategy.needs.pool), self.fit)
        free = self.ledger.free(self.pool.ids)
        gradient_rows = rows_for_gradients(self.ledger, strategy.needs, self.fit)
        self._pool_reader.check(strategy, k, n, reader, free, gradient_rows)

    @contextmanager
    def rows(self, strategy: Strategy, k: int) -> Iterator[tuple[Shards, Shards, Placement]]:
        """Read the rows as `ask` does, for looking at what a strategy is given. Use it in a `with` statement.

        Args:
            strategy: what to read is decided by its `needs`.
            k: rows of the batch it is for; memory is planned by it.

        Yields:
            The free rows, the labelled rows, and where they were placed.
        """
        free = self.ledger.free(self.pool.ids)
        reader = reader_for(stored(strategy.needs.pool), self.fit)
        gradient_rows = rows_for_gradients(self.ledger, strategy.needs, self.fit)
        with self._pool_reader.rows(strategy, k, reader, free, gradient_rows) as (candidates, placement):
            labelled = labelled_rows(
                self.pool, strategy.needs, self.ledger, self.fit, self.batch, placement.device, self._pool_reader.half
            )
            yield candidates, labelled.in_blocks(placement.block), placement

    def _next_strategy(self, cold: bool | None = None) -> Strategy:
        """The strategy of the next batch, with the history it asks for."""
        if cold is None:
            # A model that has seen one class says the same of every row: choose as for the first batch.
            cold = not len(self.ledger.labelled) or (self.task == "classify" and len(self.ledger.labels.unique()) == 1)
        strategy = self.recipe.start if cold else self.recipe.strategy
        return strategy.with_history(self.history()) if strategy.needs.history else strategy

    def _select(self, strategy: Strategy, k: int, options: RunOptions) -> Selection:
        """k of the free rows."""
        done = len(self.ledger.labelled)
        key = self._key.fold("select", done) if done else self._key.fold("start")
        began, trained = time.perf_counter(), self.seconds["train"]
        with self.rows(strategy, k) as (candidates, labelled, _):
            self.seconds["read"] = time.perf_counter() - began - (self.seconds["train"] - trained)
            began = time.perf_counter()
            if self._pool_reader.cluster is None:  # a worker on another machine may not reach the folder
                options = options.with_checkpoint_in(self.folder)
            picks = run_selection(strategy, candidates, labelled, k, key, options)
            picks = add_notes(picks, candidates, self._fit, strategy.needs.pool)
            self.seconds["select"] = time.perf_counter() - began
        return picks

    def _train(self, learner: Learner, ledger: Ledger) -> Fit:
        order = ledger.labelled.argsort()
        return learner.fit(
            self.pool,
            ledger.labelled[order],
            ledger.labels[order],
            weights=ledger.weights[order],
            classes=count_classes(self.task, self.classes, ledger.labels),
            key=self._key.fold("train", len(order)),
            previous=self._fit,
        )

    def _estimate(self) -> dict[str, Any] | None:
        """What the last batch says about the model that chose it, once every row of it has its answer."""
        pending = self._pending
        if pending is None or not pending.estimator or not pending.is_complete(self.ledger):
            return None
        if self._pending_reader is None and self.learner is not None:  # loaded since: equal answers, equal model
            before = pending.ledger_before(self.ledger)
            if self._fit is not None and self._fit_answers == pending.answers:
                self._pending_reader = self._fit.reader
            elif before is not None and (self._fit is None or self._fit.state is None):
                self._pending_reader = self._train(self.learner, before).reader
        return None if self._pending_reader is None else pending.estimate(self._pending_reader, self.pool, self.ledger)

    def history(self) -> tuple[dict[str, Any], ...]:
        """Return the earlier batches, as `Strategy.with_history` takes them: the notes and ids of each."""
        return tuple(
            {**entry.notes, "ids": [row for row in entry.ids if row not in entry.notes.get("unasked", ())]}
            for entry in self.ledger
        )

    def history_table(self) -> dict[str, list[Any]]:
        """Return the rounds as columns; `pandas.DataFrame(al.history_table())` makes a frame of them.

        Returns:
            Lists of equal length, one entry for each round: "round"; "labels", how many rows were labelled after it;
            "ids" and "answers", what was told in it (class numbers, or numbers in regression); "recipe"; "notes",
            those that the strategy wants back; "estimate", as the attribute, None for rounds told in another process.

        >>> al = Session(np.eye(3), recipe="random", classes=2)
        >>> al.tell([0, 2], [1, 0])
        >>> al.history_table()["labels"]
        [2]
        """
        return overview.history_table(self.ledger, self._estimates)

    def _count_answers(self) -> int:
        """How many answers were given, corrections counted: a fit belongs to a state of the ledger."""
        return sum(len(entry.ids) for entry in self.ledger)

    def _fit_is_current(self) -> bool:
        return self._fit is not None and self._fit_answers == self._count_answers()

    def _next_round(self) -> int:
        return max((entry.round + 1 for entry in self.ledger), default=0)

    def _check_rows(self, ids: Tensor) -> None:
        missing = ids[~torch.isin(ids, self.pool.ids)]
        if len(missing):
            raise RowError(
                f"row id {int(missing[0])} is not in the pool of {len(self.pool)} rows; nothing was recorded"
            )

    def _settings(self) -> dict[str, Any]:
        """What has to be the same for a stored session to continue."""
        return {
            **({"task": "regress"} if self.task == "regress" else {}),
            **({} if self.weights is None else {"weights": self.weights}),
            **({"half": True} if self._pool_reader.half else {}),
            "recipe": self.recipe.settings(),
            "seed": int(self.seed),
            "classes": self.classes if isinstance(self.classes, int | None) else list(self.classes),
            "batch": self.batch,
            "rows": len(self.pool),
            "pool": self.pool.fingerprint(),
        }
