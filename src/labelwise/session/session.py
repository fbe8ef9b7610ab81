"""Session: ask which rows to label, tell the answers. The state is the ledger of answers; the rest is computed.

The seed is split by purpose: "start" for the first batch, "train" for each fit (weights and order of data), "select"
for each later batch. Fit and picks depend on the answers given so far and on nothing else, not even on the order in
which they came, so a session that is loaded in a new process goes on with the same picks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise import recipes
from labelwise.errors import LabelError, NeedError, RowError
from labelwise.labels.answers import classes_of, count_of, ids_of, task_of
from labelwise.labels.oracle import class_numbers, numbers
from labelwise.pool import Ledger, Pool
from labelwise.recipes import Recipe
from labelwise.selection import Selection, Strategy
from labelwise.selection.read_pool import Gathering, noted
from labelwise.selection.run import How, select_kept
from labelwise.selection.validate import check_budget, key_of
from labelwise.session import folder as store
from labelwise.session.pending import Asked
from labelwise.shards.ray.ray_shards import Ray, engine_of
from labelwise.signals.read import Reader
from labelwise.signals.spec import stored
from labelwise.train import Fit, Learner, learner_of
from labelwise.train.labelled_columns import labelled_rows, looked_back, reader_for


class Session:
    """Active learning for people who own the loop.

    >>> import labelwise as lw
    >>> X = np.random.default_rng(0).normal(size=(100, 4)).astype("float32")
    >>> from sklearn.linear_model import LogisticRegression
    >>> al = lw.Session(X, LogisticRegression(), "margin", classes=2, seed=0)
    >>> for _ in range(3):
    ...     picks = al.ask(5)
    ...     al.tell(picks.ids, (X[picks.ids, 0] > 0).astype(int))
    >>> len(al.labelled)
    15
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
    ):
        """Start a session.

        Args:
            pool: a Pool, or whatever `Pool.of` takes: an array, a tensor, a list of texts, a Dataset.
            learner: a torch module or a function that makes one, a scikit-learn estimator, or a Learner. Not needed
                by strategies that ask no model.
            recipe: the name of a strategy, "first+then", a Strategy with parameters, or a Recipe.
            classes: how many classes there are, or their names. Taken from the pool when it knows.
            task: "regress" where labels are numbers; what the learner is made for if None, else "classify".
            weights: whether rows count in training by the weights they were drawn with; None as the learner is made.
            seed: the only source of chance.
            folder: where to keep the session. Each answer is on disk before `tell` returns; `Session.load` goes on
                from there. It must not hold a session yet.
            spill: a folder for mapped files that hold the signals of the pool, for pools larger than memory.
            batch: rows of one forward pass.
            max_memory: what `ask` may hold beside pool and model, such as "4GB", in the memory that holds the signals:
                an accelerator's, the CPU's, else files. Too small a limit is refused with the smallest that works.
            engine: None for this process; "ray" or a `Ray`, and workers read the pool, each with its own model.
            half: keep signals of several numbers a row in float16 while choosing, computed with in float32: half the
                memory and half the bytes to read. docs/results/half.md has what that does to the picks.
        """
        self.pool = pool if isinstance(pool, Pool) else Pool.of(pool)
        self.recipe = recipes.get(recipe)
        self.learner = None if learner is None else self.recipe.learner(learner_of(learner, task))
        if weights is not None and self.learner is not None:
            self.learner = recipes.weighing(self.learner, weights)
        self.weights = weights
        self.task = task_of(task, self.learner)
        self.classes = classes_of(classes, self.pool) if self.task == "classify" else None
        if self.task == "regress":
            self.recipe = self.recipe.for_regression()
        self.seed = seed
        self.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}  # of the last ask
        self._key = key_of(seed)
        where, self._how = None if spill is None else Path(spill), How.of(max_memory)
        self._gathering = Gathering(self.pool, batch, self._how, engine_of(engine), where, bool(half))
        self._fit: tuple[int, Fit] | None = None  # with the number of answers it was trained on
        self.estimate: dict[str, Any] | None = None  # of the model that drew the last batch, from that batch's answers
        self._asked: Asked | None = None  # the last batch
        self._chooser: Reader | None = None  # the model that chose it; None in a session that was loaded since
        self.folder = None if folder is None else Path(folder)
        self.ledger = Ledger() if self.folder is None else store.create(self.folder, self._settings())
        self._round = 0

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
        """Go on with a session kept in `folder`, on the same pool. `recipe` only where it is a class of your own."""
        stored_settings = store.settings(Path(folder))
        session = Session(
            pool,
            learner,
            recipe if recipe is not None else store.recipe_of(Path(folder), stored_settings),
            classes=stored_settings["classes"],
            task=stored_settings.get("task"),
            weights=stored_settings.get("weights"),
            seed=stored_settings["seed"],
            batch=stored_settings["batch"],
            half=stored_settings.get("half", False),
            max_memory=max_memory,
            engine=engine,
        )
        session.folder = Path(folder)
        store.check(session.folder, stored_settings, session._settings())
        session.ledger = store.ledger(session.folder)
        session._asked = store.load_asked(session.folder, session._answers())
        partly = session._asked is not None and not session._asked.complete(session.ledger)
        session._round = session._asked.round if session._asked is not None and partly else session._next_round()
        if session.learner is not None:
            session._fit = store.load_fit(session.folder, session.learner)
        return session

    @property
    def labelled(self) -> np.ndarray:
        """Ids of the rows that have an answer."""
        return self.ledger.labelled.numpy()

    @property
    def free(self) -> np.ndarray:
        """Ids of the rows that have none."""
        return self.ledger.free(self.pool.ids).numpy()

    @property
    def round(self) -> int:
        """The number of the round that answers told now belong to; the first is 0."""
        return self._round

    def ask(self, k: int, progress: Callable[[int, int], None] | None = None) -> Selection:
        """k rows worth labelling next, after training on all answers so far. Asked again, it answers the same.

        `progress` is called with (done, total) from time to time while picks are made.
        """
        free = self.ledger.free(self.pool.ids)
        check_budget(k, len(free))
        how = self._how.heard_by(progress)
        self.seconds = {"read": 0.0, "select": 0.0, "train": 0.0}
        done = self.ledger.labelled
        # A model that has seen one class says the same of every row: choose as at the start.
        cold = not len(done) or (self.task == "classify" and len(self.ledger.labels.unique()) == 1)
        strategy = self.recipe.start if cold else self.recipe.strategy
        if strategy.needs.history:
            strategy = strategy.with_history(self._history())
        picks = self._chosen(strategy, k, free, how)
        self._chooser = self._fit[1].reader if self._fit is not None and self._fit[0] == self._answers() else None
        self._round = self._next_round()
        self._asked = Asked.of(strategy, picks, self._round, self._answers(), len(free), self._chooser is not None)
        if self.folder is not None:
            store.save_asked(self.folder, self._asked)
        return picks

    def tell(self, ids: Any, labels: Any) -> None:
        """Record answers: class numbers or names, or numbers in regression. All of them or, on an error, none.

        Any row of the pool may be told, asked for or not; telling a row again corrects its label. With a folder, the
        answers are on disk when this returns.
        """
        rows = ids_of(ids)
        answers = self.as_answers(labels)
        if len(rows) != len(answers):
            raise LabelError(f"one label for each id was expected, found {len(rows)} ids and {len(answers)} labels")
        known = torch.isin(torch.tensor(rows, dtype=torch.int64), self.pool.ids)
        if not bool(known.all()):
            bad = rows[int((~known).nonzero()[0])]
            raise RowError(f"row id {bad} is not in the pool of {len(self.pool)} rows; nothing was recorded")
        if not rows:
            return
        weights = [1.0] * len(rows) if self._asked is None else self._asked.weights_of(rows)
        notes = {} if self._asked is None else self._asked.notes_for(rows)
        self.ledger.add(self._round, rows, answers, weights, self.recipe.name, notes)
        self.estimate = self._estimate()

    def as_answers(self, labels: Any) -> list[int] | list[float]:
        """Labels as the ledger keeps them: class numbers, or numbers in regression."""
        return numbers(labels) if self.task == "regress" else class_numbers(labels, self.classes)

    def fit(self) -> Fit:
        """The model trained on all answers so far."""
        done = len(self.ledger.labelled)
        if self._fit is not None and self._fit[0] == self._answers():
            return self._fit[1]
        if self.learner is None:
            raise NeedError(
                f"recipe {self.recipe.name!r} asks a model, but the session has no learner; pass a torch module, a "
                "scikit-learn classifier or a Learner"
            )
        if not done:
            raise LabelError("there is no answer to train on yet; tell some labels first")
        began = time.perf_counter()
        fit = self._trained(self.learner, self.ledger)
        self.seconds["train"] += time.perf_counter() - began
        self._fit = (self._answers(), fit)
        if self.folder is not None:
            store.save_fit(self.folder, self._fit)
        return fit

    def _trained(self, learner: Learner, ledger: Ledger) -> Fit:
        """A fit on the answers of `ledger`."""
        order = ledger.labelled.argsort()
        return learner.fit(
            self.pool,
            ledger.labelled[order],
            ledger.labels[order],
            weights=ledger.weights[order],
            classes=count_of(self.task, self.classes, ledger.labels),
            key=self._key.fold("train", len(order)),
            previous=self._fit[1] if self._fit is not None else None,
        )

    def _estimate(self) -> dict[str, Any] | None:
        """What the last batch says about the model that drew it, once every row of it has its answer."""
        if self._asked is None or not self._asked.law or not self._asked.complete(self.ledger):
            return None
        if self._chooser is None and self.learner is not None:  # loaded since: the same answers give the same model
            then = self._asked.before(self.ledger)
            if self._fit is not None and self._fit[0] == self._asked.answers:
                self._chooser = self._fit[1].reader
            elif then is not None and (self._fit is None or self._fit[1].state is None):
                self._chooser = self._trained(self.learner, then).reader
        return None if self._chooser is None else self._asked.estimate(self._chooser, self.pool, self.ledger)

    def _answers(self) -> int:
        """How many answers were given, corrections counted: a fit belongs to a state of the ledger."""
        return sum(len(entry.ids) for entry in self.ledger)

    def _chosen(self, strategy: Strategy, k: int, free: Tensor, how: How) -> Selection:
        """k of the free rows, read with what the strategy asks of them and of the labelled ones."""
        gathering, done = self._gathering, len(self.ledger.labelled)
        key = self._key.fold("select", done) if done else self._key.fold("start")
        reader = reader_for(stored(strategy.needs.pool), self.fit)
        trained, began = self.seconds["train"], time.perf_counter()
        with gathering.rows(strategy, k, reader, free, looked_back(self.ledger)) as (pool, home):
            asked = (self.pool, strategy.needs, self.ledger, self.fit, gathering.batch)
            labelled = labelled_rows(*asked, home.device, gathering.half)
            self.seconds["read"] = time.perf_counter() - began - (self.seconds["train"] - trained)
            began = time.perf_counter()
            # A worker on another machine may not reach the folder.
            how = how if gathering.cluster else how.kept_in(self.folder)
            picks = select_kept(strategy, pool, labelled.in_blocks(home.block), k, key, how)
            picks = noted(picks, pool, None if self._fit is None else self._fit[1], strategy.needs.pool)
            self.seconds["select"] = time.perf_counter() - began
        return picks

    def _history(self) -> tuple[dict[str, Any], ...]:
        """What `Strategy.with_history` is given."""
        return tuple(
            {**entry.notes, "ids": [row for row in entry.ids if row not in entry.notes.get("unasked", ())]}
            for entry in self.ledger
        )

    def _next_round(self) -> int:
        return max((entry.round + 1 for entry in self.ledger), default=0)

    def _settings(self) -> dict[str, Any]:
        """What has to be the same for a stored session to go on."""
        return {
            **({"task": "regress"} if self.task == "regress" else {}),
            **({} if self.weights is None else {"weights": self.weights}),
            **({"half": True} if self._gathering.half else {}),
            "recipe": self.recipe.settings(),
            "seed": int(self.seed),
            "classes": self.classes if isinstance(self.classes, int | None) else list(self.classes),
            "batch": self._gathering.batch,
            "rows": len(self.pool),
            "pool": self.pool.fingerprint(),
        }
