"""A table of the user's own, with a target column, as data for a comparison: rows to choose from, rows to test on.

The features are those that `labelwise label` makes of the same columns (`io.encode_table`). Quantiles, categories and
scales are learnt from the rows to choose from alone. Columns that are left out, missing values and other doubts become
notes for the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from labelwise.bench.data.load import Data
from labelwise.errors import ArgumentError, SourceError
from labelwise.io.encode_table import CATEGORIES, block_scale, fit_table, mixed_column
from labelwise.io.tables import Table, Values, check_file, number, numbers, read_table, separator_hint, texts
from labelwise.io.text import did_you_mean
from labelwise.pool import Pool
from labelwise.pool.labels import in_class_order
from labelwise.rng import Key

ALIKE = 0.9  # correlation of a feature with the target above which it may be the answer itself
FEW = 20  # different whole numbers up to which a target is taken for classes

Task = Literal["classify", "regress"]


@dataclass(frozen=True)
class OwnTable:
    """A table that was read: its features, its target, and notes for the user.

    Attributes:
        table: The rows with an answer, and the columns to learn from.
        numeric: The names of those that hold numbers.
        categories: The names of the others.
        answers: Class numbers, or numbers.
        groups: A number for each row; rows with the same number are never split.
    """

    name: str
    task: Task
    target: str
    table: Table
    numeric: tuple[str, ...]
    categories: tuple[str, ...]
    answers: np.ndarray
    classes: tuple[str, ...] | None
    groups: np.ndarray | None
    notes: tuple[str, ...]

    @property
    def metric(self) -> str:
        """What a learning curve shows."""
        return "accuracy" if self.task == "classify" else "rmse"

    @property
    def rows(self) -> np.ndarray:
        """The number of each row in the file, from 0."""
        return self.table.ids

    def test_rows(self, seed: int, share: float) -> np.ndarray:
        """Whether each row is one to test on: a `share` of the rows, or of the groups, drawn by `seed`."""
        groups = np.arange(len(self.table)) if self.groups is None else self.groups
        different = np.unique(groups)
        draw = Key(seed).fold("own table", "test").uniform(torch.from_numpy(different)).numpy()
        count = max(1, round(share * len(different)))
        if count >= len(different):
            raise ArgumentError(
                f"{len(different)} {'rows' if self.groups is None else 'groups'} cannot be split into a test part of "
                f"{share} and a rest to choose from; take a smaller --test or more rows"
            )
        return np.isin(groups, different[np.argsort(draw, kind="stable")[:count]])

    def data(self, seed: int, share: float) -> Data:
        """The rows to choose from, and those to test on."""
        is_test = self.test_rows(seed, share)
        inputs = self.features(np.flatnonzero(~is_test))
        whole = Pool.of(inputs, ids=self.rows, labels=self.answers, classes=self.classes)
        pool, test = whole.subset(self.rows[~is_test]), whole.subset(self.rows[is_test])
        return Data(self.name, "table", self.task, self.metric, pool, test, self.classes, None, "your own")

    def features(self, rows: np.ndarray) -> np.ndarray:
        """Features (n, D) float32 of all rows; the encoding and the scale are learnt from those at these positions."""
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
        task: By what the target looks like if None.
        features: The columns to learn from; all others that can be used if None.
        group: A column whose values keep rows together.
    """
    read = _read(path)
    for name in (target, *(features or ()), *((group,) if group else ())):
        _check_column(path, name, read)
    if features is not None and (target in features or len(set(features)) != len(features)):
        raise ArgumentError(f"the features are different columns without the target {target!r}; found {list(features)}")
    notes: list[str] = []
    answered = np.flatnonzero([text != "" for text in texts(_finite(read.columns[target]))])
    if not len(answered):
        raise SourceError(f"{path}: column {target!r} holds no value; name the column that holds the answers")
    if len(answered) < len(read):
        notes.append(f"{len(read) - len(answered)} rows without a value in {target!r} are left out")
    table = read.subset(answered)
    task = task or _guess_task(table.columns[target], target, notes)
    answers, classes = _answers(path, table.columns[target], target, task)
    names = list(features) if features is not None else _usable(read, (target, group), notes)
    if not names:
        raise SourceError(
            f"{path}: no column is left to learn {target!r} from; its columns are {', '.join(_names(read))}"
        )
    numeric = tuple(name for name in names if numbers(table.columns[name]) is not None)
    notes += _doubts(table, names)
    if task == "regress":
        notes += _nearly_the_target(table, numeric, answers, target)
    return OwnTable(
        name=path.name.removesuffix(".gz").rpartition(".")[0].replace("/", "-") or "table",
        task=task,
        target=target,
        table=table.subset(np.arange(len(table)), names),
        numeric=numeric,
        categories=tuple(name for name in names if name not in numeric),
        answers=answers,
        classes=classes,
        groups=None if group is None else _groups(path, table.columns[group], group),
        notes=tuple(notes),
    )


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


def _finite(values: Values) -> Values:
    return np.where(np.isfinite(values), values, np.nan) if isinstance(values, np.ndarray) else values


def _present(values: Values) -> list[str]:
    return [text for text in texts(_finite(values)) if text]


def _guess_task(values: Values, target: str, notes: list[str]) -> Task:
    """Classes or numbers, by what the target looks like. Many numbers with a few texts are for the user to decide."""
    present = _present(values)
    found = [number(text) for text in present]
    different = {value for value in found if value is not None}
    many = len(different) > FEW or not all(value.is_integer() for value in different)
    odd = [text for text, known in zip(present, found) if known is None]
    if odd and 2 * len(odd) < len(present):
        mixed = f"{target!r} holds numbers, and in {len(odd)} of {len(present)} rows texts such as {odd[0]!r}"
        if many:
            raise ArgumentError(
                f"{mixed}: correct or empty those (rows without a value are left out), or write --task classification"
            )
        notes.append(f"{mixed}: taken for classes")
    if not odd and many:
        notes.append(f"{target!r} holds numbers: taken for regression (--task classification for classes)")
        return "regress"
    if not odd:
        notes.append(f"{target!r} holds {len(different)} whole numbers: taken for classes (--task regression if not)")
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
    reasons = {name: _why_useless(values) for name, values in table.columns.items() if name not in others}
    reasons |= dict.fromkeys(table.unreadable, "it holds neither numbers nor texts")
    notes += [f"column {name!r} is left out: {reason}" for name, reason in reasons.items() if reason]
    return [name for name, reason in reasons.items() if not reason]


def _why_useless(values: Values) -> str:
    """Why a column is no feature; "" if it is one."""
    present = _present(values)
    if not present:
        return "it holds no value"
    found = numbers(values)
    if found is not None:
        counts = len(found) > 2 and np.isfinite(found).all() and bool((np.diff(found) == 1).all())
        return "it only counts the rows" if counts else ""
    different = len(set(present))
    if different > CATEGORIES and different > len(present) // 2:
        return f"its {different} different texts look like names or free text"
    return ""


def _doubts(table: Table, names: Sequence[str]) -> list[str]:
    """Notes on missing values, and on columns that are nearly numbers."""
    notes = []
    for name in names:
        missing = len(table) - len(_present(table.columns[name]))
        if missing:
            notes.append(f"column {name!r}: {missing} of {len(table)} values are missing, and the model is told so")
        mixed = mixed_column(name, table.columns[name])
        notes += [mixed] if mixed else []
    return notes


def _nearly_the_target(table: Table, numeric: Sequence[str], answers: np.ndarray, target: str) -> list[str]:
    """Notes on columns that all but hold the answer: more often a leak than a feature."""
    notes = []
    for name in numeric:
        found = numbers(table.columns[name])
        present = np.isfinite(found) if found is not None else np.zeros(len(answers), bool)
        if found is not None and present.sum() > 2 and found[present].std() > 0 and answers[present].std() > 0:
            alike = float(np.corrcoef(found[present], answers[present])[0, 1])
            if abs(alike) > ALIKE:
                notes.append(f"column {name!r} has correlation {alike:.2f} with {target!r}: is it known beforehand?")
    return notes


def _groups(path: Path, values: Values, group: str) -> np.ndarray:
    found = numbers(values)
    names = texts(_finite(values if found is None else found))
    empty = names.count("")
    if empty:
        raise ArgumentError(f"{path}: {empty} rows have no value in the group column {group!r}; each row needs one")
    return np.unique(np.array(names), return_inverse=True)[1].astype(np.int64)
