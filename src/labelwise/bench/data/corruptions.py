"""Corruptions: what makes real pools hard, added to any data set. They change the pool, never the test rows.

imbalance   classes, in a random order, keep fewer and fewer of their rows: the last keeps `share` of them
duplicates  a `share` of the rows are `times` in the pool
near        as duplicates, but copies differ a little: noise of `scale` deviations of each column, one word of a text
noise       a `share` of the labels are wrong: another class at random, or the number of another row
outliers    rows that belong to no class are added, `share` of the pool: each column (or word) from a row of its own;
            their labels are random
sorted      ids are given out class by class, as in a folder of class folders; in regression by rising number

All random choices come from the seed of the data set.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.bench.data.load import Data
from labelwise.bench.suite.config import Section
from labelwise.errors import ArgumentError
from labelwise.pool import Pool
from labelwise.rng import Key

CASES = ("imbalance", "duplicates", "near", "noise", "outliers", "sorted")
_SHARES = {"imbalance": 0.1, "duplicates": 0.2, "near": 0.2, "noise": 0.2, "outliers": 0.3, "sorted": 1.0}


@dataclass(frozen=True)
class Corruption:
    """A corruption and its strength; fields named like the keys of the suite file."""

    case: str
    share: float
    times: int = 5
    scale: float = 0.05


def read_corruption(value: Any, where: str, task: str) -> Corruption | None:
    """The corruption of a configuration: a name, or a mapping with `case`."""
    if value is None:
        return None
    section = Section({"case": value} if isinstance(value, str) else value, f"{where}: hard")
    section.only(one.name for one in fields(Corruption))
    case = section.one_of("case", CASES)
    corruption = Corruption(
        case, section.share("share", _SHARES[case]), section.whole("times", 2, 5), section.share("scale", 0.05)
    )
    if case == "imbalance" and task == "regress":
        raise ArgumentError(f"{where}: hard: expected a case for numbers (imbalance is of classes), found {case!r}")
    return corruption


def corrupt(data: Data, corruption: Corruption, seed: int) -> Data:
    """The data set with a corrupted pool."""
    key = Key(seed).fold("hard", corruption.case)
    pool = _CASES[corruption.case](_Rows.of(data), corruption, key).pool(data)
    return replace(data, pool=pool, noisy=None)


@dataclass(frozen=True)
class _Rows:
    """The pool as arrays."""

    inputs: Any  # a tensor (n, ...), or a list of texts
    ids: Tensor
    labels: Tensor
    classes: int  # 0 in regression

    @staticmethod
    def of(data: Data) -> _Rows:
        classes = 0 if data.task == "regress" else len(data.classes or ()) or int(data.labels.max()) + 1
        return _Rows(data.pool.inputs(data.pool.ids), data.pool.ids, data.labels, classes)

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, at: Tensor) -> Any:
        """Inputs at these positions."""
        return self.inputs[at] if isinstance(self.inputs, Tensor) else [self.inputs[i] for i in at.tolist()]

    def keep(self, at: Tensor) -> _Rows:
        """These rows only."""
        return _Rows(self.take(at), self.ids[at], self.labels[at], self.classes)

    def add(self, inputs: Any, labels: Tensor) -> _Rows:
        """With more rows, whose ids follow the largest."""
        both = torch.cat([self.inputs, inputs]) if isinstance(self.inputs, Tensor) else [*self.inputs, *inputs]
        fresh = int(self.ids.max()) + 1 + torch.arange(len(labels))
        return _Rows(both, torch.cat([self.ids, fresh]), torch.cat([self.labels, labels]), self.classes)

    def pool(self, data: Data) -> Pool:
        """A pool of these rows."""
        return Pool.of(self.inputs, ids=self.ids, labels=self.labels, classes=data.classes)


def _imbalance(rows: _Rows, corruption: Corruption, key: Key) -> _Rows:
    order = key.fold("classes").numpy().permutation(rows.classes)
    steps = max(1, rows.classes - 1)
    chosen = []
    for place, number in enumerate(order.tolist()):
        own = (rows.labels == number).nonzero()[:, 0]
        count = round(len(own) * corruption.share ** (place / steps))
        shuffled = key.fold("rows").uniform(rows.ids[own]).argsort()
        chosen.append(own[shuffled[: max(1, count)]])
    return rows.keep(torch.cat(chosen).sort().values)


def _duplicates(rows: _Rows, corruption: Corruption, key: Key) -> _Rows:
    at = _some(rows, corruption.share, key).repeat(corruption.times - 1)
    return rows.add(rows.take(at), rows.labels[at])


def _near(rows: _Rows, corruption: Corruption, key: Key) -> _Rows:
    at = _some(rows, corruption.share, key).repeat(corruption.times - 1)
    copies, chance = rows.take(at), key.fold("change").numpy()
    if not isinstance(copies, Tensor):
        return rows.add([_reworded(text, chance) for text in copies], rows.labels[at])
    spread = rows.inputs.double().std(0, keepdim=True).to(copies.dtype)
    noise = torch.from_numpy(chance.standard_normal(tuple(copies.shape))).to(copies.dtype)
    return rows.add(copies + corruption.scale * spread * noise, rows.labels[at])


def _noise(rows: _Rows, corruption: Corruption, key: Key) -> _Rows:
    at, labels = _some(rows, corruption.share, key), rows.labels.clone()
    chance = key.fold("wrong").numpy()
    if rows.classes:
        labels[at] = (labels[at] + torch.from_numpy(chance.integers(1, max(2, rows.classes), len(at)))) % rows.classes
    else:
        labels[at] = labels[torch.from_numpy(chance.integers(0, len(rows), len(at)))]
    return replace(rows, labels=labels)


def _outliers(rows: _Rows, corruption: Corruption, key: Key) -> _Rows:
    count, chance = max(1, round(corruption.share * len(rows))), key.fold("made").numpy()
    if isinstance(rows.inputs, Tensor):
        flat = rows.inputs.flatten(1)
        from_ND = torch.from_numpy(chance.integers(0, len(rows), (count, flat.shape[1])))
        made: Any = flat.gather(0, from_ND).reshape(count, *rows.inputs.shape[1:])
    else:
        words = [word for text in rows.inputs for word in text.split()]
        lengths = [len(rows.inputs[i].split()) for i in chance.integers(0, len(rows), count)]
        made = [" ".join(words[i] for i in chance.integers(0, len(words), length)) for length in lengths]
    if rows.classes:
        answers = torch.from_numpy(chance.integers(0, rows.classes, count)).to(rows.labels.dtype)
    else:
        answers = rows.labels[torch.from_numpy(chance.integers(0, len(rows), count))]
    return rows.add(made, answers)


def _sorted(rows: _Rows, corruption: Corruption, key: Key) -> _Rows:
    order = rows.labels.argsort(stable=True)
    return replace(rows.keep(order), ids=rows.ids.sort().values)


def _some(rows: _Rows, share: float, key: Key) -> Tensor:
    """Positions of a share of the rows."""
    return key.fold("some").uniform(rows.ids).argsort()[: max(1, round(share * len(rows)))].sort().values


def _reworded(text: str, chance: np.random.Generator) -> str:
    """The text without one of its words, where it has more than one."""
    words = text.split()
    if len(words) > 1:
        del words[int(chance.integers(len(words)))]
    return " ".join(words)


_CASES: dict[str, Callable[[_Rows, Corruption, Key], _Rows]] = {
    "imbalance": _imbalance,
    "duplicates": _duplicates,
    "near": _near,
    "noise": _noise,
    "outliers": _outliers,
    "sorted": _sorted,
}
