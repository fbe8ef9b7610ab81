"""Features of tables: numbers with the pieces of their range, categories one by one, words, and what is missing.

`labelwise label`, `labelwise simulate` and pools of frames make their features here: `fit_table`, then `block_scale`.
`standard_features` makes those of the benchmark's own data sets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from labelwise.errors import SourceError
from labelwise.io.encode_texts import TextEncoder, fit_texts
from labelwise.io.tables import Table, Values, is_missing, number, numbers, texts
from labelwise.io.text import many

CATEGORIES = 50  # of one column; rarer ones share one feature
_CONSTANT = "the same in every row: no feature"
_STEPS = 8  # pieces that the range of a numeric column is cut into
_BLOCK = 4096


@dataclass(frozen=True)
class NumberColumn:
    """A numeric column: its values between 0 and 1, how far each is into each eighth of the rows, and gaps."""

    low: float
    high: float
    median: float
    steps: tuple[tuple[float, float], ...]
    has_gaps: bool

    @classmethod
    def fit(cls, x_N: np.ndarray) -> NumberColumn:
        present_N = np.isfinite(x_N)
        x_P = x_N[present_N]
        if not len(x_P):
            return cls(0.0, 0.0, 0.0, (), False)
        low, high = np.quantile(x_P, [0.001, 0.999])
        cuts = np.quantile(x_P, np.linspace(0, 1, _STEPS + 1)).tolist()
        steps = tuple((a, b) for a, b in pairwise(cuts) if b > a)
        # The eighths let a linear model bend; two of them say little more than the number itself.
        steps = steps if len(steps) > 2 else ()
        return cls(float(low), float(high), float(np.median(x_P)), steps, not present_N.all())

    def encode(self, x_N: np.ndarray) -> list[np.ndarray]:
        present_N = np.isfinite(x_N)
        filled_N = np.where(present_N, x_N, self.median)
        parts = []
        if self.high > self.low:
            parts.append((np.clip(filled_N, self.low, self.high) - self.low) / (self.high - self.low))
        parts += [np.clip((filled_N - a) / (b - a), 0, 1) for a, b in self.steps]
        return [*parts, (~present_N).astype(np.float64)] if self.has_gaps else parts

    def __str__(self) -> str:
        return f"numbers {self.low:g} to {self.high:g}" + (", some missing" if self.has_gaps else "")


@dataclass(frozen=True)
class CategoryColumn:
    """A column of texts: one feature for each common category, one for all others. A missing value is a category."""

    common: tuple[str, ...]
    has_others: bool

    @classmethod
    def fit(cls, texts: Sequence[str]) -> CategoryColumn:
        count = Counter(_category(text) for text in texts)
        ordered = sorted(count.items(), key=lambda item: (-item[1], item[0]))
        common = tuple(value for value, _ in ordered[:CATEGORIES])
        return cls(common, len(count) > len(common)) if len(common) > 1 else cls((), False)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        index = {value: place for place, value in enumerate(self.common)}
        code_N = np.array([index.get(_category(text), len(self.common)) for text in texts])
        return [(code_N == place).astype(np.float64) for place in range(len(self.common) + self.has_others)]

    def __str__(self) -> str:
        return many(len(self.common), "category") + (", and others as one" if self.has_others else "")


@dataclass(frozen=True)
class TextColumn:
    """A column of free texts: the words in them."""

    words: TextEncoder

    @classmethod
    def fit(cls, texts: Sequence[str]) -> TextColumn:
        return cls(fit_texts(texts))

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        return list(self.words.encode(texts).T)

    def __str__(self) -> str:
        return "words of texts"


Column = NumberColumn | CategoryColumn | TextColumn


@dataclass(frozen=True)
class TableEncoder:
    """What `fit_table` learnt of each column."""

    columns: dict[str, Column]
    widths: tuple[int, ...]  # features of each column

    @property
    def blocks(self) -> tuple[int, ...]:
        """The number of features of each column that has any."""
        return tuple(width for width in self.widths if width)

    @property
    def width(self) -> int:
        """The number of features."""
        return sum(self.widths)

    def describe(self) -> dict[str, str]:
        """What was made of each column, in words."""
        found = zip(self.columns.items(), self.widths)
        return {name: f"{column}: {many(width, 'feature')}" if width else _CONSTANT for (name, column), width in found}

    def encode(self, table: Table) -> np.ndarray:
        """Features (n, width) float32 of a table with the same columns."""
        parts = [part for name, one in self.columns.items() for part in _encode_column(one, table.columns[name])]
        return np.stack(parts, axis=1).astype(np.float32)


def fit_table(
    table: Table, rows: np.ndarray | None = None, categories: Collection[str] = (), free_texts: Collection[str] = ()
) -> TableEncoder:
    """Learn the encoding of a table.

    A column is numeric where all its values are numbers or missing. A column that is constant gives no feature.

    Args:
        table: The columns to encode.
        rows: Positions of the rows to learn quantiles, categories and words from; all if None.
        categories: Columns of texts that are categories even if all of them are written as numbers.
        free_texts: Columns of free texts, of which the words count.

    Raises:
        SourceError: No column tells rows apart.

    >>> table = Table.of({"age": ["10", "", "50"], "job": ["cook", "pilot", "cook"]})
    >>> encoder = fit_table(table)
    >>> encoder.blocks  # age, its eighths and whether it is missing; two jobs
    (10, 2)
    >>> encoder.encode(table)[:, [0, 9, 10, 11]]
    array([[0. , 0. , 1. , 0. ],
           [0.5, 1. , 0. , 1. ],
           [1. , 0. , 1. , 0. ]], dtype=float32)
    """
    seen = table if rows is None else table.subset(rows)
    columns: dict[str, Column] = {}
    widths = []
    for name, values in table.columns.items():
        if name in free_texts:
            columns[name] = TextColumn.fit(texts(seen.columns[name]))
        elif name in categories or numbers(values) is None:
            columns[name] = CategoryColumn.fit(texts(seen.columns[name]))
        else:
            found = numbers(seen.columns[name])
            assert found is not None, "some of the values that are all numbers"
            columns[name] = NumberColumn.fit(found)
        widths.append(len(_encode_column(columns[name], seen.columns[name][:1])))
    if not sum(widths):
        raise SourceError(f"the columns {', '.join(table.columns)} hold the same in every row; nothing can be learnt.")
    return TableEncoder(columns, tuple(widths))


def block_scale(x_ND: np.ndarray, rows: np.ndarray, blocks: Sequence[int]) -> np.ndarray:
    """(2, D) float32: what to subtract from each feature, and what to divide it by.

    Each block of features then has the same total variance on `rows`, so that each column of a table counts alike,
    and a row has length 1 on average.

    Args:
        x_ND: Features; a file that is mapped is read in pieces.
        rows: (n,) positions to learn from.
        blocks: The number of features in each block, from the first on.
    """
    total_D = np.zeros(x_ND.shape[1])
    square_D = np.zeros(x_ND.shape[1])
    for some in np.array_split(rows, max(1, len(rows) // _BLOCK)):
        total_D += x_ND[some].astype(np.float64).sum(0)
    mean_D = total_D / len(rows)
    for some in np.array_split(rows, max(1, len(rows) // _BLOCK)):
        square_D += ((x_ND[some].astype(np.float64) - mean_D) ** 2).sum(0)
    variance_D = square_D / len(rows)
    scale_D, start, used = np.ones_like(mean_D), 0, 0
    for width in blocks:
        spread = float(np.sqrt(variance_D[start : start + width].sum()))
        if spread > 1e-6:
            scale_D[start : start + width] = spread
            used += 1
        start += width
    return np.stack([mean_D, scale_D * np.sqrt(max(used, 1))]).astype(np.float32)


def why_useless(values: Values) -> str:
    """Why a column is no feature; "" if it is one.

    >>> why_useless(["1", "2", "3"])
    'it only counts the rows'
    """
    present = [text for text in texts(finite(values)) if text]
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


def mixed_column(name: str, values: Values) -> str:
    """A note on a column that is a category because a few of its values are not numbers; "" for any other column."""
    if isinstance(values, np.ndarray):
        return ""
    present = [value.strip() for value in values if not is_missing(value)]
    odd = [value for value in present if number(value) is None]
    if not odd or 2 * len(odd) >= len(present):
        return ""
    return (
        f"column {name} holds {len(present) - len(odd)} numbers, but also {odd[0]!r:.40}: its values were taken for "
        "categories. Correct or empty those to have numbers"
    )


def standard_features(columns: Mapping[str, Values], categories: Sequence[str], train: np.ndarray) -> np.ndarray:
    """Features (n, D) float32 of the benchmark's own data sets: numbers standardised, categories one-hot.

    It differs from `fit_table` because published benchmark records were made with it: their picks can only be compared
    with new ones on features that are equal bit by bit. It knows no missing values, and a category that `train` does
    not hold is all zeros.

    Args:
        columns: By name; texts are categories whether named or not.
        categories: Columns of numbers that stand for categories.
        train: Positions of the rows to learn means, spreads and categories from. A column constant there becomes 0.

    >>> columns = {"age": np.array([10.0, 30.0, 50.0]), "job": ["a", "b", "c"]}
    >>> standard_features(columns, ["job"], np.array([0, 1]))
    array([[-1.,  1.,  0.],
           [ 1.,  0.,  1.],
           [ 3.,  0.,  0.]], dtype=float32)
    """
    parts = [
        _one_hot(np.array(values), train)
        if name in categories or not isinstance(values, np.ndarray)
        else _standardised(values, train)
        for name, values in columns.items()
    ]
    return np.concatenate(parts, axis=1)


def _encode_column(column: Column, values: Values) -> list[np.ndarray]:
    if isinstance(column, TextColumn | CategoryColumn):
        return column.encode(texts(values))
    found = numbers(values)
    if found is None:
        raise SourceError("a column of numbers was expected; it holds a text")
    return column.encode(found)


def finite(values: Values) -> Values:
    """A column with infinite numbers as missing ones."""
    return np.where(np.isfinite(values), values, np.nan) if isinstance(values, np.ndarray) else values


def _category(text: str) -> str:
    return "" if is_missing(text) else text.strip()


def _one_hot(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    known = np.unique(values[train])
    return (values[:, None] == known[None, :]).astype(np.float32)


def _standardised(values: np.ndarray, train: np.ndarray) -> np.ndarray:
    spread = values[train].std()
    # A spread of rounding size is that of a constant column.
    if spread <= 1e-12 * max(1.0, float(np.abs(values[train]).max())):
        return np.zeros((len(values), 1), np.float32)
    return ((values - values[train].mean()) / spread)[:, None].astype(np.float32)
