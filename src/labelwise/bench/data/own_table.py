"""A table of the user's own, with a target column, as data for a comparison: rows to choose from, rows to test on.

Columns of numbers are standardised; other columns are categories, one input each. What is missing is said, not hidden:
a missing number counts as the mean, with one more input that says that it is missing; a missing category is one more
category. Means, spreads and categories are those of the rows to choose from.
"""

from __future__ import annotations

import datetime
import difflib
import numbers
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from labelwise.bench.data.load import Data
from labelwise.errors import ArgumentError, SourceError
from labelwise.io.encode_table import encode, read_columns
from labelwise.pool import Pool
from labelwise.pool.labels import in_class_order
from labelwise.pool.sources.csv_file import read_texts, separator_hint
from labelwise.pool.sources.table import number
from labelwise.rng import Key

MISSING = ("", "na", "n/a", "nan", "null", "none", "?")  # texts that stand for no value, in any case
LEVELS = 50  # categories of one column that have an input of their own, the most common ones
ALIKE = 0.9  # correlation of a feature with the target above which it may be the answer itself
FEW = 20  # different whole numbers up to which a target is taken for classes

Task = Literal["classify", "regress"]
Values = list[float | None] | list[str | None]


@dataclass(frozen=True)
class OwnTable:
    """A table that was read: its features, its target, and what there is to say about them."""

    name: str
    task: Task
    target: str
    numeric: dict[str, list[float | None]]
    categories: dict[str, list[str | None]]
    answers: np.ndarray  # class numbers, or numbers
    classes: tuple[str, ...] | None
    groups: np.ndarray | None  # a number for each row: rows of one number stay together
    rows: np.ndarray  # the place of each row in the file, from 0
    notes: tuple[str, ...]

    @property
    def metric(self) -> str:
        """What a learning curve shows."""
        return "accuracy" if self.task == "classify" else "rmse"

    def aside(self, seed: int, share: float) -> np.ndarray:
        """Whether each row is one to test on: a `share` of the rows, or of the groups, drawn by `seed`."""
        groups = np.arange(len(self.rows)) if self.groups is None else self.groups
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
        """The rows to choose from, and those set aside to test on."""
        inside = self.aside(seed, share)
        inputs = self._encoded(np.flatnonzero(~inside))
        whole = Pool.of(inputs, ids=self.rows, labels=self.answers, classes=self.classes)
        pool, test = whole.subset(self.rows[~inside]), whole.subset(self.rows[inside])
        return Data(self.name, "table", self.task, self.metric, pool, test, self.classes, None, "your own")

    def _encoded(self, train: np.ndarray) -> np.ndarray:
        columns: dict[str, Any] = {}
        for name, values in self.numeric.items():
            found = np.array([np.nan if value is None else value for value in values], np.float64)
            seen = found[train][~np.isnan(found[train])]
            columns[name] = np.where(np.isnan(found), seen.mean() if len(seen) else 0.0, found)
            if np.isnan(found).any():
                columns[f"{name}: missing"] = np.isnan(found).astype(np.float64)
        for name, texts in self.categories.items():
            filled = ["(missing)" if text is None else text for text in texts]
            common = dict(Counter(filled[row] for row in train).most_common(LEVELS))
            columns[name] = [text if text in common else "(other)" for text in filled]
        return encode(columns, tuple(self.categories), train)


def read_own(
    path: Path,
    target: str,
    *,
    task: Task | None = None,
    features: Sequence[str] | None = None,
    group: str | None = None,
) -> OwnTable:
    """The table in a .csv, .csv.gz or .parquet file; `features` are all other columns that can be used if None."""
    columns = _columns(path)
    for name in (target, *(features or ()), *((group,) if group else ())):
        _check_column(path, name, columns)
    if features is not None and (target in features or len(set(features)) != len(features)):
        raise ArgumentError(f"the features are different columns without the target {target!r}; found {list(features)}")
    notes: list[str] = []
    keep = [row for row, value in enumerate(columns[target]) if value is not None]
    if not keep:
        raise SourceError(f"{path}: column {target!r} holds no value; name the column that holds the answers")
    if len(keep) < len(columns[target]):
        notes.append(f"{len(columns[target]) - len(keep)} rows without a value in {target!r} are left out")
    # Typed again: the only text among numbers may have been in a row that is left out.
    kept = {name: _typed(_kept(values, keep)) for name, values in columns.items()}
    task = task or _guessed(kept[target], target, notes)
    answers, classes = _answers(path, kept[target], target, task)
    names = features if features is not None else [name for name in columns if name not in (target, group)]
    if features is None:
        names = [name for name in names if not _left_out(name, columns[name], notes)]
    numeric, categories = _features(kept, names, notes)
    if task == "regress":
        notes += _nearly_the_target(numeric, answers, target)
    if not numeric and not categories:
        raise SourceError(f"{path}: no column is left to learn {target!r} from; its columns are {', '.join(columns)}")
    groups = None if group is None else _groups(path, kept[group], group)
    name = path.name.removesuffix(".gz").rpartition(".")[0].replace("/", "-") or "table"
    rows = np.array(keep, np.int64)
    return OwnTable(name, task, target, numeric, categories, answers, classes, groups, rows, tuple(notes))


def _columns(path: Path) -> dict[str, Values]:
    """Every column, as numbers where all its values are, else as texts; None where a value is missing."""
    if not path.is_file():
        raise SourceError(f"{path}: there is no such file; a .csv, .csv.gz or .parquet file was expected")
    ending = path.name.lower()
    if ending.endswith((".csv", ".csv.gz")):
        return {name: _typed(_stripped(values)) for name, values in read_texts(path).items()}
    if ending.endswith((".parquet", ".pq")):
        return {name: _typed([_plain(value) for value in values]) for name, values in read_columns(path).items()}
    raise SourceError(f"{path}: a table ends in .csv, .csv.gz or .parquet; this name ends in {path.suffix!r}")


def _stripped(values: list[str]) -> list[Any]:
    return [None if value.strip().lower() in MISSING else value.strip() for value in values]


def _plain(value: Any) -> Any:
    """A value of a Parquet file as a number, a text or None; anything else as it is."""
    if isinstance(value, str):
        return None if value.strip().lower() in MISSING else value.strip()
    if isinstance(value, numbers.Number):
        return float(value) if np.isfinite(float(value)) else None  # type: ignore[arg-type]
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else value


def _typed(values: list[Any]) -> Values:
    found = [number(value) if isinstance(value, str) else value for value in values]
    if all(new is not None or old is None for new, old in zip(found, values)):
        return found
    return [value if value is None or isinstance(value, str) else _text(value) for value in values]


def _text(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _check_column(path: Path, name: str, columns: dict[str, Values]) -> None:
    if name not in columns:
        near = difflib.get_close_matches(name, columns, 1)
        meant = f"; did you mean {near[0]!r}?" if near else "."
        there = f"Its columns are {', '.join(columns)}.{separator_hint(list(columns))}"
        raise ArgumentError(f"{path}: there is no column {name!r}{meant} {there}")


def _kept(values: Values, keep: list[int]) -> Values:
    return [values[row] for row in keep]  # type: ignore[return-value]


def _is_number(values: Values) -> bool:
    return all(isinstance(value, float | int) for value in values if value is not None)


def _guessed(values: Values, target: str, notes: list[str]) -> Task:
    """Classes, or numbers: what the target looks like. Numbers with a few texts among them are for the user to tell."""
    found = [number(v) if isinstance(v, str) else v if isinstance(v, float | int) else None for v in values]
    different = {value for value in found if value is not None}
    many = len(different) > FEW or not all(float(value).is_integer() for value in different)
    odd = [value for value, known in zip(values, found) if known is None]
    if odd and 2 * len(odd) < len(values):
        mixed = f"{target!r} holds numbers, and in {len(odd)} of {len(values)} rows texts such as {odd[0]!r}"
        if many:
            raise ArgumentError(
                f"{mixed}: mend or empty those (rows without a value are left out), or write --task classification"
            )
        notes.append(f"{mixed}: taken for classes")
    if not odd and many:
        notes.append(f"{target!r} holds numbers: taken for regression (--task classification for classes)")
        return "regress"
    if _is_number(values):
        notes.append(f"{target!r} holds {len(different)} whole numbers: taken for classes (--task regression if not)")
    return "classify"


def _answers(path: Path, values: Values, target: str, task: Task) -> tuple[np.ndarray, tuple[str, ...] | None]:
    if task == "regress":
        if not _is_number(values):
            bad = next(value for value in values if isinstance(value, str) and number(value) is None)
            raise ArgumentError(
                f"{path}: regression needs numbers in column {target!r}, found {bad!r}; mend the value, or write "
                "--task classification"
            )
        if len(set(values)) < 2:
            raise ArgumentError(f"{path}: every value in column {target!r} is {values[0]}; there is nothing to learn")
        return np.array(values, np.float64), None
    texts = [value if isinstance(value, str) else _text(value) for value in values]
    classes = in_class_order(texts)
    if len(classes) < 2 or len(classes) > len(texts) // 2:
        raise ArgumentError(
            f"{path}: classes in column {target!r} were expected, at least 2 and each more than once; found "
            f"{len(classes)} in {len(texts)} rows. Name another --target, or write --task regression for numbers"
        )
    place = {name: at for at, name in enumerate(classes)}
    return np.array([place[text] for text in texts], np.int64), classes


def _features(
    columns: dict[str, Values], names: Sequence[str], notes: list[str]
) -> tuple[dict[str, list[float | None]], dict[str, list[str | None]]]:
    """Columns of numbers and of categories."""
    numeric: dict[str, list[float | None]] = {}
    categories: dict[str, list[str | None]] = {}
    for name in names:
        values = columns[name]
        missing = sum(value is None for value in values)
        if missing:
            notes.append(f"column {name!r}: {missing} of {len(values)} values are missing, and the model is told so")
        if _is_number(values):
            numeric[name] = [None if value is None else float(value) for value in values]
            continue
        texts = [None if value is None else str(value) for value in values]
        categories[name] = texts
        digits = sum(text is not None and number(text) is not None for text in texts)
        if digits:
            odd = next(text for text in texts if text is not None and number(text) is None)
            notes.append(f"column {name!r} mixes numbers and texts such as {odd!r}: its values are categories")
    return numeric, categories


def _nearly_the_target(numeric: dict[str, list[float | None]], answers: np.ndarray, target: str) -> list[str]:
    """A column that all but holds the answer is more often a leak than a feature."""
    notes = []
    for name, values in numeric.items():
        found = np.array([np.nan if value is None else value for value in values], np.float64)
        there = ~np.isnan(found)
        if there.sum() > 2 and found[there].std() > 0 and answers[there].std() > 0:
            alike = float(np.corrcoef(found[there], answers[there])[0, 1])
            if abs(alike) > ALIKE:
                notes.append(f"column {name!r} has correlation {alike:.2f} with {target!r}: is it known beforehand?")
    return notes


def _left_out(name: str, values: Values, notes: list[str]) -> bool:
    """Whether a column that nobody asked for is no feature; the notes then say why."""
    reason = _useless(values, sum(value is None for value in values))
    if reason is not None:
        notes.append(f"column {name!r} is left out: {reason}")
    return reason is not None


def _useless(values: Values, missing: int) -> str | None:
    """Why a column is no feature, if it is not."""
    if missing == len(values):
        return "it holds no value"
    if _is_number(values):
        places = [float(value) for value in values if value is not None]
        counts = not missing and len(places) > 2 and all(a + 1 == b for a, b in pairwise(places))
        return "it only counts the rows" if counts else None
    if not all(value is None or isinstance(value, str) for value in values):
        return "it holds neither numbers nor texts"
    different = len(set(values) - {None})
    if different > LEVELS and different > (len(values) - missing) // 2:
        return f"its {different} different texts look like names or free text"
    return None


def _groups(path: Path, values: Values, group: str) -> np.ndarray:
    empty = sum(value is None for value in values)
    if empty:
        raise ArgumentError(f"{path}: {empty} rows have no value in the group column {group!r}; each row needs one")
    return np.unique(np.array([str(value) for value in values]), return_inverse=True)[1].astype(np.int64)
