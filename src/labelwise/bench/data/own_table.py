"""The user's own table as data for a comparison: a pool, test rows and a target column.

The features are those of `labelwise label` (`io.encode_table`). Quantiles, categories and scales come from the pool
alone. Notes tell the user about columns that are left out, missing values and possible leaks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from labelwise.bench.data.load import Data
from labelwise.errors import ArgumentError, SourceError
from labelwise.io.encode_table import block_scale, finite, fit_table, mixed_column, why_useless
from labelwise.io.tables import Table, Values, check_file, number, numbers, read_table, separator_hint, texts
from labelwise.io.text import did_you_mean, many
from labelwise.pool import Pool
from labelwise.pool.labels import in_class_order
from labelwise.rng import Key

LEAK = 0.9  # correlation with the target above which a feature may be the answer itself
MOST_CLASSES = 20  # distinct whole numbers up to which a target is read as classes

Task = Literal["classify", "regress"]


@dataclass(frozen=True)
class OwnData(ABC):
    """Data with answers that was read: what a row is, its target, and notes for the user.

    Attributes:
        rows: The number of each row in the file, from 0.
        answers: Class numbers, or numbers.
        groups: The group of each row, by number; a group is never split.
    """

    name: str
    task: Task
    target: str
    rows: np.ndarray
    answers: np.ndarray
    classes: tuple[str, ...] | None
    groups: np.ndarray | None
    notes: tuple[str, ...]

    kind: ClassVar[Literal["image", "text", "table"]] = "table"

    @property
    @abstractmethod
    def inputs(self) -> str:
        """What a model learns from, in words."""

    @property
    @abstractmethod
    def encoding(self) -> dict[str, Any]:
        """What must be the same for a stopped run to continue."""

    @abstractmethod
    def features(self, rows: np.ndarray) -> np.ndarray:
        """Features (n, D) float32 of all rows; the scale is learnt from those at these positions."""

    @property
    def metric(self) -> str:
        """What a learning curve shows."""
        return "accuracy" if self.task == "classify" else "rmse"

    def test_rows(self, seed: int, share: float) -> np.ndarray:
        """Which rows are test rows: a `share` of the rows, or of the groups, drawn by `seed`."""
        groups = np.arange(len(self.rows)) if self.groups is None else self.groups
        distinct = np.unique(groups)
        draw = Key(seed).fold("own table", "test").uniform(torch.from_numpy(distinct)).numpy()
        count = max(1, round(share * len(distinct)))
        if count >= len(distinct):
            raise ArgumentError(
                f"{len(distinct)} {'rows' if self.groups is None else 'groups'} cannot be split into a test part of "
                f"{share} and a rest to choose from; take a smaller --test or more rows"
            )
        return np.isin(groups, distinct[np.argsort(draw, kind="stable")[:count]])

    def data(self, seed: int, share: float) -> Data:
        """The pool and the test rows."""
        is_test = self.test_rows(seed, share)
        inputs = self.features(np.flatnonzero(~is_test))
        whole = Pool.of(inputs, ids=self.rows, labels=self.answers, classes=self.classes)
        pool, test = whole.subset(self.rows[~is_test]), whole.subset(self.rows[is_test])
        return Data(self.name, self.kind, self.task, self.metric, pool, test, self.classes, None, "your own")


@dataclass(frozen=True)
class OwnTable(OwnData):
    """Rows of a table.

    Attributes:
        table: The rows with an answer, and the columns to learn from.
        numeric: The names of those that hold numbers.
        categories: The names of the others.
    """

    table: Table
    numeric: tuple[str, ...]
    categories: tuple[str, ...]

    @property
    def inputs(self) -> str:
        kinds = ((self.numeric, "numeric column"), (self.categories, "categorical column"))
        return " and ".join(many(len(names), kind) for names, kind in kinds if names)

    @property
    def encoding(self) -> dict[str, Any]:
        return {"features": [*self.numeric, *self.categories], "encoder": "columns"}

    def features(self, rows: np.ndarray) -> np.ndarray:
        """Features (n, D) float32 of all rows; the encoding and the scale are fitted to the rows at these positions."""
        encoder = fit_table(self.table, rows)
        x_ND = encoder.encode(self.table)
        mean_D, scale_D = block_scale(x_ND, rows, encoder.blocks)
        return (x_ND - mean_D) / scale_D


def read_own(
    path: Path,
    target: str,
    *,
    task: Task | None = None,
    features: Sequence[str] | None = None,
    group: str | None = None,
) -> OwnTable:
    """Read a table with answers.

    Args:
        path: A table, see `io.tables.read_table`.
        target: The column that holds the answers.
        task: Guessed from the target if None.
        features: The columns to learn from; every usable one if None.
        group: A column whose values keep rows together.
    """
    whole = _read(path)
    for name in (target, *(features or ()), *((group,) if group else ())):
        _check_column(path, name, whole)
    if features is not None and (target in features or len(set(features)) != len(features)):
        raise ArgumentError(f"the features are different columns without the target {target!r}; found {list(features)}")
    notes: list[str] = []
    answered = np.flatnonzero([text != "" for text in texts(finite(whole.columns[target]))])
    if not len(answered):
        raise SourceError(f"{path}: column {target!r} holds no value; name the column that holds the answers")
    if len(answered) < len(whole):
        notes.append(f"{len(whole) - len(answered)} rows without a value in {target!r} are left out")
    table = whole.subset(answered)
    task, answers, classes = answers_of(path, table.columns[target], target, task, notes)
    names = list(features) if features is not None else _usable(whole, (target, group), notes)
    if not names:
        raise SourceError(
            f"{path}: no column is left to learn {target!r} from; its columns are {', '.join(_names(whole))}. "
            "To learn from texts, name their column with --text"
        )
    numeric = tuple(name for name in names if numbers(table.columns[name]) is not None)
    notes += _missing_and_mixed(table, names)
    if task == "regress":
        notes += _leaks(table, numeric, answers, target)
    return OwnTable(
        name=name_of(path),
        task=task,
        target=target,
        rows=table.ids,
        table=table.subset(np.arange(len(table)), names),
        numeric=numeric,
        categories=tuple(name for name in names if name not in numeric),
        answers=answers,
        classes=classes,
        groups=None if group is None else groups_of(path, table.columns[group], group),
        notes=tuple(notes),
    )


def name_of(path: Path) -> str:
    """The name of the data at a path."""
    plain = path.resolve().name
    return (plain if path.is_dir() else plain.removesuffix(".gz").rpartition(".")[0]) or "table"


def answers_of(
    path: Path, values: Values, target: str, task: Task | None, notes: list[str]
) -> tuple[Task, np.ndarray, tuple[str, ...] | None]:
    """The task, by what the answers look like if it is None; class numbers or numbers; and the classes."""
    task = task or _guess_task(values, target, notes)
    return task, *_answers(path, values, target, task)


def _read(path: Path) -> Table:
    check_file(path)
    table = read_table(path)
    if table.faults:
        raise SourceError(f"{table.faults[0]}.{separator_hint(path, list(table.columns))}")
    return table


def _names(table: Table) -> list[str]:
    return [*table.columns, *table.unreadable]


def _check_column(path: Path, name: str, table: Table) -> None:
    if name in table.unreadable:
        raise ArgumentError(f"{path}: column {name!r} holds {table.unreadable[name]}; texts or numbers were expected")
    if name not in table.columns:
        meant = did_you_mean(name, table.columns) or "."
        hint = separator_hint(path, list(table.columns))
        raise ArgumentError(
            f"{path}: there is no column {name!r}{meant} Its columns are {', '.join(_names(table))}.{hint}"
        )


def _present(values: Values) -> list[str]:
    return [text for text in texts(finite(values)) if text]


def _guess_task(values: Values, target: str, notes: list[str]) -> Task:
    """Classes or numbers. Many numbers with a few texts are an error, since the user must decide."""
    present = _present(values)
    parsed = [number(text) for text in present]
    distinct = {value for value in parsed if value is not None}
    is_continuous = len(distinct) > MOST_CLASSES or not all(value.is_integer() for value in distinct)
    words = [text for text, value in zip(present, parsed) if value is None]
    if words and 2 * len(words) < len(present):
        mixed = f"{target!r} holds numbers, and in {len(words)} of {len(present)} rows texts such as {words[0]!r}"
        if is_continuous:
            raise ArgumentError(
                f"{mixed}: correct or empty those (rows without a value are left out), or write --task classification"
            )
        notes.append(f"{mixed}: taken for classes")
    if not words and is_continuous:
        notes.append(f"{target!r} holds numbers: taken for regression (--task classification for classes)")
        return "regress"
    if not words:
        notes.append(f"{target!r} holds {len(distinct)} whole numbers: taken for classes (--task regression if not)")
    return "classify"


def _answers(path: Path, values: Values, target: str, task: Task) -> tuple[np.ndarray, tuple[str, ...] | None]:
    found = numbers(values)
    if task == "regress":
        if found is None:
            bad = next(text for text in _present(values) if number(text) is None)
            raise ArgumentError(
                f"{path}: regression needs numbers in column {target!r}, found {bad!r}; correct the value, or write "
                "--task classification"
            )
        if len(np.unique(found)) < 2:
            raise ArgumentError(f"{path}: every value in column {target!r} is {found[0]}; there is nothing to learn")
        return found, None
    names = texts(values if found is None else found)
    classes = in_class_order(names)
    if len(classes) < 2 or len(classes) > len(names) // 2:
        raise ArgumentError(
            f"{path}: classes in column {target!r} were expected, at least 2 and each more than once; found "
            f"{len(classes)} in {len(names)} rows. Name another --target, or write --task regression for numbers"
        )
    place = {name: index for index, name in enumerate(classes)}
    return np.array([place[name] for name in names], np.int64), classes


def _usable(table: Table, others: Sequence[str | None], notes: list[str]) -> list[str]:
    """The columns that can be learnt from; the notes say why another is left out."""
    reasons = {name: why_useless(values) for name, values in table.columns.items() if name not in others}
    reasons |= dict.fromkeys(table.unreadable, "it holds neither numbers nor texts")
    notes += [f"column {name!r} is left out: {reason}" for name, reason in reasons.items() if reason]
    return [name for name, reason in reasons.items() if not reason]


def _missing_and_mixed(table: Table, names: Sequence[str]) -> list[str]:
    """Notes on missing values, and on columns that are nearly numbers."""
    notes = []
    for name in names:
        missing = len(table) - len(_present(table.columns[name]))
        if missing:
            notes.append(f"column {name!r}: {missing} of {len(table)} values are missing, and the model is told so")
        mixed = mixed_column(name, table.columns[name])
        notes += [mixed] if mixed else []
    return notes


def _leaks(table: Table, numeric: Sequence[str], answers: np.ndarray, target: str) -> list[str]:
    """Notes on columns so close to the target that they are more likely a leak than a feature."""
    notes = []
    for name in numeric:
        found = numbers(table.columns[name])
        present = np.isfinite(found) if found is not None else np.zeros(len(answers), bool)
        if found is not None and present.sum() > 2 and found[present].std() > 0 and answers[present].std() > 0:
            correlation = float(np.corrcoef(found[present], answers[present])[0, 1])
            if abs(correlation) > LEAK:
                notes.append(
                    f"column {name!r} has correlation {correlation:.2f} with {target!r}: is it known beforehand?"
                )
    return notes


def groups_of(path: Path, values: Values, group: str) -> np.ndarray:
    """A number for each value of a column whose equal values are never split."""
    found = numbers(values)
    names = texts(finite(values if found is None else found))
    empty = names.count("")
    if empty:
        raise ArgumentError(f"{path}: {empty} rows have no value in the group column {group!r}; each row needs one")
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)
