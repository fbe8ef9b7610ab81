"""What can change in a living session: new rows, new classes, and answers that are taken back.

All of it is stored in the folder of the session. Picks stay a function of the seed, the answers and the pool.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, LabelError, RowError, StoreError
from labelwise.io.frames import plain_values
from labelwise.labels.answers import check_ids, resolve_classes
from labelwise.labels.oracle import to_class_numbers
from labelwise.pool import Ledger, Pool
from labelwise.pool.labels import in_class_order
from labelwise.pool.row_keys import as_json
from labelwise.session import folder as store
from labelwise.session.pending import PendingBatch
from labelwise.session.read_pool import PoolReader
from labelwise.train import Fit


class SessionChanges(ABC):
    """Rows, classes and answers of a session that change after its start."""

    pool: Pool
    task: Literal["classify", "regress"]
    classes: int | tuple[str, ...] | None
    folder: Path | None
    ledger: Ledger
    batch_estimate: dict[str, Any] | None
    _estimates: dict[int, dict[str, Any]]
    _fit: Fit | None
    _fit_answers: int
    _pending: PendingBatch | None
    _pool_reader: PoolReader
    _round: int
    _changes: store.Changes = store.Changes()
    _is_open: bool = False  # whether it was started without classes, which are then those of the answers
    _awaited: int = 0  # rows that were added before the session was resumed, and are not in its pool yet
    _dropped: str = ""  # why the next training does not continue from the last one

    @abstractmethod
    def _check_rows(self, ids: Tensor) -> None:
        """Raise RowError for an id that is not in the pool."""

    def add_rows(self, rows: Any, *, ids: Any = None, labels: Any = None, features: Any = None) -> np.ndarray:
        """Add rows to the pool. The trained model and all answers stay.

        A session that was resumed with its first pool is given the same rows again, by the same call: nothing is
        stored then. Or it is resumed with a pool of all rows, unless they are of a frame: the encoder of its columns
        has learnt from the first rows alone, and stays as it is.

        Args:
            rows: (m, ...) of the same kind as the pool's: an array, a tensor, a list of texts, a frame, or a Pool.
            ids: (m,) new ids; None takes the index of a pandas frame, else numbers them on from the largest one. A
                pool whose rows have names needs them.
            labels: (m,) where the pool has labels.
            features: (m, D) where the pool has features.

        Returns:
            The ids (m,) of the new rows.

        Raises:
            ArgumentError, RowError: the rows are of another kind than the pool's, or an id is taken.
            StoreError: other rows than these were added before the session was stored.

        >>> import labelwise as lw
        >>> al = lw.Session(np.eye(3), recipe="kcenter", classes=2)
        >>> al.add_rows(np.ones((2, 3)))
        array([3, 4])
        """
        pool = self.pool.extended(rows, ids=ids, labels=labels, features=features)
        if self._awaited:
            self._awaited = self._changes.rows_awaited(pool)
        elif self.folder is not None:
            self._store(self._changes.with_pool(pool))
        new = pool.keys_of(pool.ids[len(self.pool) :])
        self.pool = pool
        self._pool_reader = replace(self._pool_reader, pool=pool)
        return new

    def add_classes(self, names: Sequence[str] | None = None, *, total: int | None = None) -> None:
        """Declare classes that answers may have from now on. Known names are left as they are.

        The next training starts from new weights. A torch model needs one output for each class.

        Args:
            names: of the new classes, where classes have names; their numbers follow those of the others.
            total: the number of all classes, where they have none.

        Raises:
            ArgumentError: the session is one of regression, its classes have names and `names` is missing, or do not.
            LabelError: a name is no text, or `total` is below the number of classes so far.

        >>> import labelwise as lw
        >>> al = lw.Session(np.eye(3), recipe="random", classes=["ant", "bee"])
        >>> al.add_classes(["cat"])
        >>> al.classes
        ('ant', 'bee', 'cat')
        """
        if self.task == "regress":
            raise ArgumentError("labels are numbers in this session; it has no classes")
        if (names is None) == (total is None):
            raise ArgumentError("pass the names of new classes, or total=, the number of all classes")
        if names is None:
            if not isinstance(self.classes, int):
                has = "no fixed number of classes" if self.classes is None else "names for its classes"
                raise ArgumentError(f"total= is for a session with a number of classes; this one has {has}")
            count = resolve_classes(total, self.pool)
            if not isinstance(count, int) or count < self.classes:
                raise LabelError(f"there are {self.classes} classes already, total={total} is fewer")
            grown: int | tuple[str, ...] = count
        else:
            found = resolve_classes(names, self.pool)
            if not isinstance(found, tuple):
                raise LabelError(f"the names of new classes are a list of texts, found {names!r}")
            if isinstance(self.classes, int) or (self.classes is None and len(self.ledger)):
                raise ArgumentError("classes are numbers in this session; pass total=, the number of all classes")
            grown = (*(self.classes or ()), *(name for name in found if name not in (self.classes or ())))
        if grown != self.classes:
            self._forget_fit("new classes")
            self._store(replace(self._changes, classes=grown))
            self.classes = grown

    def retract(self, ids: Any) -> None:
        """Take answers back: the rows are free again, and may be asked for again.

        The next training starts from new weights, also with a warm start, since the last weights have learnt from
        what was wrong. With a folder, this is on disk when it returns. To correct an answer use `tell`.

        Args:
            ids: (n,) distinct rows that have an answer.

        Raises:
            RowError: a row has no answer, or is given twice; nothing is changed.
            StoreError: the pool lacks rows that were added, as for `ask`.
        """
        self._require_all_rows()
        rows = check_ids(ids, self.pool)
        self._check_rows(torch.tensor(rows, dtype=torch.int64))
        answered = set(self.ledger.labelled.tolist())
        missing = [row for row in rows if row not in answered]
        if missing:
            raise RowError(
                f"row {self.pool.keys_of(missing[:1]).tolist()[0]!r} has no answer to take back; nothing was changed"
            )
        if not rows:
            return
        self._forget_fit("answers that were taken back")
        self.ledger.retract(self._round, rows, self._names_of(rows))
        if self._pending is not None and not self._pending.is_complete(self.ledger):
            self.batch_estimate = None
            self._estimates.pop(self._pending.round, None)

    def _found_classes(self, labels: Any) -> tuple[str, ...]:
        """Names of classes among the labels of `tell` that are new, in a session that was started without classes."""
        if not self._is_open or not hasattr(labels, "__len__"):
            return ()
        names = {str(value) for value in plain_values(labels) if isinstance(value, str)} - set(self._class_names())
        if names and self.classes is None and len(self.ledger):
            raise LabelError(f"label {min(names)!r} is a name, but the answers so far are class numbers; pass a number")
        return in_class_order(tuple(names))

    def _names_of(self, rows: list[int]) -> list[Any] | None:
        """What the user calls these rows, as the ledger stores it; None where they are numbers."""
        return None if self.pool.row_keys is None else [as_json(key) for key in self.pool.keys_of(rows).tolist()]

    def _class_names(self) -> tuple[str, ...]:
        return self.classes if isinstance(self.classes, tuple) else ()

    def _class_numbers(self, labels: Any, found: tuple[str, ...]) -> list[int]:
        """Class numbers of labels, new names included."""
        return to_class_numbers(labels, (*self._class_names(), *found) if found else self.classes)

    def _require_all_rows(self) -> None:
        if self._awaited:
            raise StoreError(
                f"{self._awaited} rows were added to the session in {self.folder}; call add_rows with them again, or "
                "resume it with a pool of all rows"
            )

    def _forget_fit(self, why: str) -> None:
        """Train from the answers alone next time."""
        if self._fit is not None and self._fit.state is not None:
            self._dropped = f"{why}: training started from new weights"
        self._fit, self._fit_answers = None, 0
        if self.folder is not None:
            store.remove_fit(self.folder)

    def _store(self, changes: store.Changes) -> None:
        if self.folder is not None and changes != self._changes:
            store.save_changes(self.folder, changes)
        self._changes = changes
