"""Session: `ask` for the rows to label next, `tell` their labels. The ledger of answers is the only state.

Fits and picks are computed from the answers so far and from the seed alone, whatever the order of the answers, so a
session that is loaded in a new process continues with the same picks. The seed is split by purpose: "start" for the
first batch, "train" for each fit (initial weights and order of the data), "select" for each later batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise import recipes
from labelwise.callbacks import Callbacks
from labelwise.errors import ArgumentError, LabelError, NeedError, RowError, StoreError, TrainingWarning, warn
from labelwise.io.arguments import check_whole
from labelwise.io.sizes import parse_size
from labelwise.labels.answers import (
    check_class_numbers,
    check_ids,
    check_index,
    check_no_input,
    count_classes,
    resolve_classes,
    resolve_task,
)
from labelwise.labels.oracle import to_class_numbers, to_numbers
from labelwise.pool import Ledger, Pool
from labelwise.recipes import Recipe
from labelwise.rng import Key, key_of
from labelwise.selection import Selection, Strategy
from labelwise.selection.progress import progress_to
from labelwise.selection.reuse import RowCache, reusing
from labelwise.selection.run import RunOptions, run_selection
from labelwise.selection.validate import check_budget
from labelwise.session import folder as store
from labelwise.session import overview
from labelwise.session.changes import SessionChanges
from labelwise.session.estimator import SessionEstimator
from labelwise.session.pending import PendingBatch
from labelwise.session.read_pool import PoolReader, add_notes
from labelwise.shards import Shards
from labelwise.shards.placement import Placement
from labelwise.shards.ray import Ray, engine_of
from labelwise.signals.read import Reader
from labelwise.signals.spec import Weight, stored
from labelwise.stats.estimate import running
from labelwise.stats.training_warnings import warning_of
from labelwise.theory.certificate import Certificate, approximation_ratio, certificate_of
from labelwise.train import Fit, Learner, learner_of
from labelwise.train.labelled_columns import labelled_by_id, labelled_rows, reader_for, rows_for_gradients
from labelwise.train.learner import adapt, read_batch, uses_weights
from labelwise.train.progress import epochs_to


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


class Session(SessionEstimator, SessionChanges):
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
        batch_estimate: accuracy and loss on the free rows of the model that chose the last batch, estimated from that
            batch's answers; None until the batch is answered, and for strategies whose draws do not allow an estimate.

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
        batch: int | None = None,
        max_memory: int | str | None = None,
        engine: str | Ray | None = None,
        half: bool = False,
        resume: bool = False,
        callbacks: Any = None,
    ):
        """Start a session.

        Args:
            pool: a Pool, or anything `Pool.of` takes: an array, a tensor, a list of texts, a frame, a Dataset.
            learner: a torch module or a function that makes one, a scikit-learn estimator, or a Learner. Strategies
                that need no model need no learner.
            recipe: the name of a strategy, "first+then", a Strategy with parameters, or a Recipe; or "recommended",
                which chooses one by what is available (docs/recommend.md) and says in the notes of each batch why.
            classes: the number of classes, or their names; None takes them from the pool where it knows them.
            task: "regress" if labels are numbers; None takes the task of the learner, else "classify".
            weights: whether training uses the weights that rows were drawn with; None leaves it to the recipe, of which
                "bss" uses them, and to the learner.
            seed: the only source of chance.
            folder: a folder to store the session in; it must not hold one yet, unless `resume` is true. Answers are on
                disk before `tell` returns, and `Session.load` continues from there.
            spill: a folder for memory-mapped files with the pool's signals, for pools larger than memory.
            batch: rows that the model reads at once; None: 256, and up to 4,096 for an estimator of scikit-learn.
            max_memory: limit on the memory of `ask` besides pool and model, such as "4GB". It counts the memory that
                holds the signals: an accelerator's, the CPU's, or else files. A limit that is too small is refused,
                and the error names the smallest that works.
            engine: None for this process; "ray" or a `Ray` to read the pool on workers, each with its own model.
            half: store signals of several numbers a row in float16 and compute in float32: half the memory and half
                the bytes to read. docs/results/half.md shows how picks change.
            resume: continue the session that `folder` holds, as `Session.load` does, or start it where there is none:
                a cell of a notebook can be run twice. Recipe, seed, classes, pool and the other arguments that decide
                about picks must be those it was started with.
            callbacks: one `lw.Callback` or several, such as `lw.ProgressBar()`; docs/callbacks.md.

        Raises:
            ArgumentError, LabelError, NeedError, StoreError: an argument does not fit the others, or the folder
                already holds a session, or, with `resume`, one with other settings.
        """
        if resume and folder is None:
            raise ArgumentError("resume=True continues the session in a folder; pass folder= too")
        self._callbacks = Callbacks.of(callbacks)
        self._key = key_of(seed)
        self.pool = pool if isinstance(pool, Pool) else Pool.of(pool)
        model = None if learner is None else learner_of(learner, task)
        self.task = resolve_task(task, model)
        self.classes = resolve_classes(classes, self.pool) if self.task == "classify" else None
        self._is_open = self.task == "classify" and self.classes is None
        self.folder = None if folder is None else Path(folder)
        is_stored = self.folder is not None and resume and store.is_used(self.folder)
        if recipe == recipes.RECOMMENDED:
            recipe = self._recommended(model, max_memory, self.folder if is_stored else None)
        self.recipe = recipes.get(recipe)
        if weights is not None and (self.recipe.weigh or self.recipe.train):
            raise ArgumentError(
                f"weights={weights}: recipe {self.recipe.name!r} says itself how rows are weighed or trained on; leave "
                "one of the two out"
            )
        if model is None and self.recipe.weigh == "sabal":
            raise NeedError(
                f"recipe {self.recipe.name!r}: weigh sabal weighs rows for training, and the session has no learner; "
                "pass one, or leave weigh sabal out"
            )
        given = self.recipe if weights is None else replace(self.recipe, weights=False)
        self.learner = None if model is None else given.learner(model)
        if weights is not None and self.learner is not None:
            self.learner = recipes.weighing(self.learner, weights)
        if self.learner is not None:
            self.learner = adapt(self.learner, "with_holdout_key", self._key.fold("holdout"))
        self.weights = weights
        if self.task == "regress":
            self.recipe = self.recipe.for_regression()
        self.seed = seed
        self.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}
        self.batch_estimate: dict[str, Any] | None = None
        self._running: tuple[Any, dict[str, Any] | None] = (None, None)  # what it is from, and the estimate
        self._estimates: dict[int, dict[str, Any]] = {}  # by round
        spill_folder = None if spill is None else Path(spill)
        if batch is None and self.folder is not None and is_stored:
            batch = store.settings(self.folder)["batch"]
        self._pool_reader = PoolReader(
            self.pool,
            read_batch(self.learner, self.pool)
            if batch is None
            else check_whole("batch, the rows read at once,", batch, 1),
            RunOptions.of(max_memory),
            engine_of(engine),
            spill_folder,
            bool(half),
        )
        self._fit: Fit | None = None
        self._fit_answers = 0  # how many answers it was trained on
        self._pending: PendingBatch | None = None
        self._cache = RowCache()  # of distances that the next round reuses
        self._pending_reader: Reader | None = None  # the model that chose it; None in a session loaded since
        self._round = 0
        self._has_warned = False  # of training
        if self.folder is not None and is_stored:
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
        callbacks: Any = None,
    ) -> Session:
        """Continue a session that is stored in a folder.

        Args:
            folder: where the session was started with `Session(..., folder=...)`.
            pool: the same pool, in the same form.
            learner: the same learner.
            recipe: only for a strategy class of your own; otherwise the stored recipe is used.
            max_memory: as for a new session.
            engine: as for a new session.
            callbacks: as for a new session.

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
            callbacks=callbacks,
        )

    def _recommended(self, learner: Learner | None, max_memory: int | str | None, stored: Path | None) -> Recipe:
        """The recipe recommended for this session; of a stored session the one it was started with."""
        if stored is not None:
            return store.recipe_of(stored, store.settings(stored))
        classes = self.classes if isinstance(self.classes, int | None) else len(self.classes)
        found = recipes.recommended(
            learner, self.pool, task=self.task, classes=classes, max_memory=parse_size(max_memory)
        )
        return replace(recipes.get(found.recipe), recommended=f"{found.recipe}. {found.why}")

    def _load(self, folder: Path) -> Ledger:
        """Take over the session stored in `folder`; return its ledger."""
        self._changes, self._awaited = store.check(folder, store.settings(folder), self._settings())
        self.classes = self.classes if self._changes.classes is None else self._changes.classes
        self.ledger = store.ledger(folder)
        self._pending = pending = store.load_pending(folder, self.ledger)
        partly = pending is not None and not pending.is_complete(self.ledger)
        self._round = pending.round if pending is not None and partly else self._next_round()
        if self.learner is not None:
            self._fit, self._fit_answers = store.load_fit(folder, self.learner, self.ledger)
            self._fit = None if self._fit is None else replace(self._fit, pool=self.pool)
        return self.ledger

    def __repr__(self) -> str:
        return overview.one_line(self)

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        return overview.html_table(self)

    @property
    def labelled(self) -> np.ndarray:
        """Ids (n,) of the rows that have an answer."""
        return self.pool.keys_of(self.ledger.labelled)

    @property
    def free(self) -> np.ndarray:
        """Ids (m,) of the rows that have no answer yet."""
        return self.pool.keys_of(self.ledger.free(self.pool.ids))

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
            The picks: ids (k,), weights, scores and notes. Asking again without telling returns the same. Ids are
            what the user calls the rows: numbers, or the texts, tuples or other keys the pool was made with.

        Raises:
            BudgetError: k is not a whole number from 1 to the number of free rows.
            NeedError: the recipe needs a model or a signal that is not there.
            MemoryLimitError: `max_memory` is too small; the error names the smallest that works.
            StoreError: rows were added to the stored session, and the pool does not have them yet; pass them to
                `add_rows`.
        """
        self._require_all_rows()
        free = self.ledger.free(self.pool.ids)
        k = check_budget(k, len(free))
        options = self._pool_reader.options.with_progress(progress)
        options = options.with_progress(self._callbacks.progress("select", progress))
        self.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}
        strategy = self._next_strategy()
        with self.pool.keys_in_errors():
            picks = self._select(strategy, k, options)
        self._pending_reader = self._fit.reader if self._fit is not None and self._fit_is_current() else None
        self._round = self._next_round()
        has_model = self._pending_reader is not None
        self._pending = PendingBatch.of(
            strategy, picks, self._round, self._count_answers(), len(free), has_model, len(self.pool)
        )
        if self.folder is not None:
            store.save_pending(self.folder, self._pending, self.ledger)
        picks = replace(picks, ids=self.pool.keys_of(picks.ids), library=self.pool.library)
        self._callbacks.call("on_selection", picks)
        return picks

    def tell(self, ids: Any, labels: Any) -> None:
        """Record answers: all of them or, on an error, none.

        With a folder, the answers are on disk when this returns. In a session that was started without classes, names
        of new classes become classes, as by `add_classes`.

        Args:
            ids: (n,) distinct rows of the pool, asked for or not. Telling a row again corrects its label; `retract`
                takes an answer back.
            labels: (n,) class numbers or names, or numbers in regression, in the order of the ids.

        Raises:
            RowError: an id is not in the pool, or is given twice.
            LabelError: a label is none of the classes, there is not one label for each id, or the index of a Series of
                labels has the ids in another order, or those of other rows.
            StoreError: the answers cannot be written, or the pool lacks rows that were added, as for `ask`.
        """
        self._require_all_rows()
        rows = check_ids(ids, self.pool)
        check_index(labels, ids, self.pool)
        check_no_input(labels, self.pool)
        new_classes = self._found_classes(labels)
        answers = self._class_numbers(labels, new_classes) if new_classes else self.as_answers(labels)
        if len(rows) != len(answers):
            raise LabelError(f"one label for each id was expected, found {len(rows)} ids and {len(answers)} labels")
        self._check_rows(torch.tensor(rows, dtype=torch.int64))
        if not rows:
            return
        if self._is_open and self.classes is None:
            check_class_numbers(answers, len(self.pool))
        if new_classes:
            self.add_classes(new_classes)
        weights = [1.0] * len(rows) if self._pending is None else self._pending.weights_of(rows)
        notes = {} if self._pending is None else self._pending.notes_for(rows)
        self.ledger.add(self._round, rows, answers, weights, self.recipe.name, notes, self._names_of(rows))
        self.batch_estimate = self._estimate()
        if self.batch_estimate is not None:
            self._estimates[self._round] = self.batch_estimate

    @property
    def law(self) -> dict[str, Any]:
        """What is known of the draws of the last batch, as the ledger notes it; empty without a known law."""
        return {} if self._pending is None else self._pending.law

    @property
    def design(self) -> dict[str, Any]:
        """Notes on the joint design of all labels and the last batch, as the ledger has them; empty without weights."""
        return {} if self._pending is None else self._pending.design

    @property
    def estimate(self) -> dict[str, Any] | None:
        """How good the model trained on all answers so far is over the pool, each number with a 95 % interval.

        From all answers, each row predicted by a model that was not trained on it: the first look after new answers
        trains ten models. Corrected for how the rows were drawn, so it needs rounds that were drawn with known
        probabilities ("random", "bss", "leverage", also as a first batch); rows that were chosen otherwise later, or
        told without being asked for, do not bias it. docs/methods/weights.md has the formula.

        Returns:
            "labels", the rows it is from; "pool", the rows it is about; and the intervals "accuracy" and "nll", or
            "mse" and "rmse" in regression, each with "value", "low" and "high". None without a learner, or with fewer
            than ten rows drawn with known probabilities.

        Raises:
            StoreError: the pool lacks rows that were added, as for `ask`.

        >>> from sklearn.linear_model import LogisticRegression
        >>> X = np.random.default_rng(0).normal(size=(500, 3))
        >>> al = Session(X, LogisticRegression(), "random", classes=2)
        >>> ids = al.ask(60).ids
        >>> al.tell(ids, (X[ids, 0] > 0).astype(int))
        >>> found = al.estimate["accuracy"]
        >>> found["low"] < found["value"] <= found["high"]
        True
        """
        state = self._count_answers(), len(self.pool), self.classes
        if self.learner is not None and self._running[0] != state:
            self._require_all_rows()
            classes = count_classes(self.task, self.classes, self.ledger.labels)
            key = self._key.fold("estimate", len(self.ledger.labelled))
            with self.pool.keys_in_errors(), epochs_to(self._callbacks.epoch if self._callbacks else None):
                self._running = state, running(self.learner, self.pool, self.ledger, classes, key)
        return self._running[1]

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

    def _known_answers(self, labels: Any) -> list[int] | list[float]:
        # A name that has no answer yet gets a number that no model predicts.
        return self._class_numbers(labels, self._found_classes(labels)) if self._is_open else self.as_answers(labels)

    def fit(self) -> Fit:
        """Train on all answers so far, unless the last fit already did.

        Returns:
            The fit, whose `reader` answers about any row.

        Raises:
            NeedError: the session has no learner.
            LabelError: there is no answer yet.
            StoreError: the pool lacks rows that were added, as for `ask`.
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
        self._require_all_rows()
        began = time.perf_counter()
        with self.pool.keys_in_errors():
            self._fit = self._train(self.learner, self.ledger)
        if self._dropped:
            self._fit = replace(self._fit, notes={**self._fit.notes, "restarted": self._dropped})
            self._dropped = ""
        self._fit_answers = self._count_answers()
        if self._certifies:
            notes = {**self._fit.notes, "certificate": self.certificate().notes()}
            self._fit = replace(self._fit, notes=notes)
        self.seconds["train"] += time.perf_counter() - began
        self._warn_of_training(self._fit)
        if self.folder is not None:
            store.save_fit(self.folder, self._fit, self._fit_answers, self.ledger)
        self._callbacks.call("on_fit", self._fit)
        return self._fit

    @property
    def _certifies(self) -> bool:
        return self.recipe.certify not in (None, "none")

    def certificate(self) -> Certificate:
        """How much of the pool the labels so far see, with the weights that training gives them.

        In the embedding of the model, which is trained if need be; without a learner, in the features of the rows.

        Raises:
            LabelError: there is no answer yet.
            StoreError: the pool lacks rows that were added, as for `ask`.

        >>> al = Session(np.random.default_rng(0).normal(size=(300, 5)), recipe="random", classes=2)
        >>> al.tell(range(3), [0, 1, 0])
        >>> al.certificate().sentence()
        'Your labels see 61 % of what varies in the pool.'
        """
        self._require_all_rows()
        if not len(self.ledger.labelled):
            raise LabelError("there is no answer to certify yet: label the rows of ask(k), then tell(ids, labels)")
        fit = None if self.learner is None else self.fit()
        ids = labelled_by_id(self.ledger).ids
        weights = None if fit is None else fit.published.get(Weight())
        if weights is None and (fit is None or uses_weights(self.learner)):
            weights = self.ledger.joint_weights(len(self.pool))[self.ledger.labelled.argsort()]
        with self.pool.keys_in_errors():
            return certificate_of(None if fit is None else fit.reader, self.pool, ids, weights, self.batch)

    def _warn_of_training(self, fit: Fit) -> None:
        """Warn, once in a session, of a fit that has hardly learnt; the notes of each fit say it anyway."""
        found = warning_of(fit.notes)
        if found and not self._has_warned:
            self._has_warned = True
            warn(
                f"the fit on {len(fit.ids)} labels: {found}. fit().notes has the warning of each fit; this session "
                "warns once",
                TrainingWarning,
            )

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
        self.batch_estimate, self._estimates, self._running = None, {}, (None, None)
        if self.folder is not None:
            if self._pending is not None:
                store.save_pending(self.folder, self._pending, self.ledger)
            if self._fit is not None:
                store.save_fit(self.folder, self._fit, self._fit_answers, self.ledger)

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
        strategy = self.recipe.chooser(cold)
        return strategy.with_history(self.history()) if strategy.needs.history else strategy

    def _select(self, strategy: Strategy, k: int, options: RunOptions) -> Selection:
        """k of the free rows."""
        done = len(self.ledger.labelled)
        key = self._key.fold("select", done) if done else self._key.fold("start")
        began, trained = time.perf_counter(), self.seconds["train"]
        with ExitStack() as stack:
            with progress_to(self._callbacks.progress("read")):
                candidates, labelled, _ = stack.enter_context(self.rows(strategy, k))
            self.seconds["read"] = time.perf_counter() - began - (self.seconds["train"] - trained)
            began = time.perf_counter()
            if self._pool_reader.cluster is None:  # a worker on another machine may not reach the folder
                options = options.with_checkpoint_in(self.folder)
            cache = self._cache if self._cache.is_allowed(candidates.n, labelled.n, options.limit) else None
            with reusing(cache):
                picks = run_selection(strategy, candidates, labelled, k, key, options)
            picks = add_notes(picks, candidates, self._fit, strategy.needs.pool)
            if self._certifies and done:
                picks = replace(picks, notes={**picks.notes, **self._certificate_notes(picks)})
            if self.recipe.recommended:
                picks = replace(picks, notes={**picks.notes, recipes.RECOMMENDED: self.recipe.recommended})
            self.seconds["select"] = time.perf_counter() - began
        return picks

    def _certificate_notes(self, picks: Selection) -> dict[str, Any]:
        """The approximation ratio of a batch, where the model gives it; without a learner the certificate of labels."""
        if self.learner is None:
            return {"certificate": self.certificate().notes()}
        if self._fit is None or not self._fit_is_current():
            return {}
        labelled = labelled_by_id(self.ledger)
        ratio = approximation_ratio(self._fit.reader, self.pool, labelled, torch.from_numpy(picks.ids), self.batch)
        return {} if ratio is None or not np.isfinite(ratio.value) else {"approximation_ratio": ratio.value}

    def _train(self, learner: Learner, ledger: Ledger) -> Fit:
        order = ledger.labelled.argsort()
        with epochs_to(self._callbacks.epoch if self._callbacks else None):
            fit = learner.fit(
                self.pool,
                ledger.labelled[order],
                ledger.labels[order],
                weights=ledger.joint_weights(len(self.pool))[order],
                classes=count_classes(self.task, self.classes, ledger.labels),
                key=self._key.fold("train", len(order)),
                previous=self._fit,
            )
        return replace(fit, pool=self.pool)

    def _estimate(self) -> dict[str, Any] | None:
        """What the last batch says about the model that chose it, once every row of it has its answer."""
        pending = self._pending
        if pending is None or not pending.can_estimate or not pending.is_complete(self.ledger):
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
            if not entry.is_retraction
        )

    def history_table(self, like: str | None = None) -> Any:
        """Return the rounds as columns.

        Args:
            like: "pandas", "polars" or "pyarrow" for a frame; None for a dictionary of lists.

        Returns:
            Columns of equal length, one entry for each round: "round"; "labels", how many rows were labelled after it;
            "ids" and "answers", what was told in it (class numbers, numbers in regression, None for an answer that
            was taken back); "recipe"; "notes", those that the strategy wants back; "estimate", as `batch_estimate`,
            None for rounds told in another process. In pandas the round is the index; in polars and Arrow ids that
            are no numbers, notes and estimates are texts.

        >>> al = Session(np.eye(3), recipe="random", classes=2)
        >>> al.tell([0, 2], [1, 0])
        >>> al.history_table()["labels"]
        [2]
        """
        table = overview.history_table(self.ledger, self._estimates, self.pool)
        return table if like is None else overview.history_frame(table, like)

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
            **({recipes.RECOMMENDED: self.recipe.recommended} if self.recipe.recommended else {}),
            "seed": int(self.seed),
            "classes": self.classes if isinstance(self.classes, int | None) else list(self.classes),
            "batch": self.batch,
            "rows": len(self.pool),
            "pool": self.pool.fingerprint(),
        }
