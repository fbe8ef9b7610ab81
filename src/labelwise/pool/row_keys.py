"""Row keys: names of rows that are not whole numbers, such as texts, tuples or UUIDs, and the ids that stand for them.

The id of a key is a hash of its value. It is the same in every process and does not depend on the other rows or on
their order; so neither do picks. Everything but the public functions works with ids.
"""

from __future__ import annotations

import datetime
import hashlib
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import LabelwiseError, RowError
from labelwise.io.frames import is_missing_value, plain_values
from labelwise.io.text import shortened
from labelwise.pool.ids import Finder, no_ids


class RowKeys:
    """The keys of some rows, and their ids.

    Attributes:
        values: (n,) the keys, as objects.
        ids: (n,) int64, the id of each.

    >>> keys = RowKeys(["ant", ("b", 2)])
    >>> keys.of_ids(keys.ids_of([("b", 2)])).tolist()
    [('b', 2)]
    """

    def __init__(self, values: Any, ids: Tensor | None = None):
        """Name rows by `values` (n,); `ids` are those of the values, where they are known."""
        self.values = key_array(values)
        self.ids = _hashed(self.values) if ids is None else ids
        if ids is None:
            _check_distinct(self.values, self.ids)
        self._find = Finder(self.ids)

    def __len__(self) -> int:
        return len(self.values)

    def ids_of(self, keys: Any) -> Tensor:
        """The ids (k,) of some of the keys; RowError for one that is none of them."""
        wanted = key_array(keys)
        found = _hashed(wanted)
        known = torch.isin(found, self.ids).numpy()
        if not known.all():
            missing = wanted[~known].tolist()
            listed = ", ".join(repr(key) for key in missing[:5]) + (" ..." if len(missing) > 5 else "")
            raise RowError(
                f"{len(missing)} ids are not in the pool of {len(self)} rows: {listed}; it has {self._some()}."
            )
        return found

    def knows(self, values: Any) -> bool:
        """Whether all of these values are keys."""
        try:
            self.ids_of(values)
        except RowError:
            return False
        return True

    def of_ids(self, ids: Any) -> np.ndarray:
        """The keys (k,) of some ids."""
        return self.values[self._find(ids)]

    def subset(self, rows: np.ndarray) -> RowKeys:
        """The keys at these positions."""
        return RowKeys(self.values[rows], self.ids[torch.from_numpy(rows)])

    @contextmanager
    def in_errors(self) -> Iterator[None]:
        """Within, errors that name a row by its id name it by its key."""
        try:
            yield
        except LabelwiseError as error:
            if error.args and isinstance(error.args[0], str):
                known = {str(row): repr(key) for row, key in zip(self.ids.tolist(), self.values.tolist())}
                text = re.sub(r"(?<=\bid )\d+", lambda found: known.get(found[0], found[0]), error.args[0])
                error.args = (text, *error.args[1:])
            raise

    def _some(self) -> str:
        return "ids such as " + ", ".join(repr(key) for key in self.values[:3].tolist())


def are_keys(values: Any) -> bool:
    """Whether ids given for rows are keys, and not whole numbers."""
    if isinstance(values, Tensor):
        return False
    values = plain_values(values)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values.dtype.kind not in "iufbc" or (values.dtype == np.uint64 and bool((values >= 2**63).any()))
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        return False
    # True and 0.5 are more often a mask or a score than the name of a row.
    return any(
        not (isinstance(value, float | np.number | np.bool_ | Tensor) or (isinstance(value, int) and _fits(value)))
        for value in values
    )


def _fits(number: int) -> bool:
    """Whether a whole number can be an id; others, such as hashes of 64 bits, are keys."""
    return -(2**63) <= number < 2**63


def key_array(values: Any) -> np.ndarray:
    """Keys (n,) as an array of objects."""
    values = plain_values(values)
    no_list = isinstance(values, str | bytes | Set | Mapping) or not hasattr(values, "__len__")  # a set has no order
    if no_list or not hasattr(values, "__iter__"):
        raise RowError(
            f"ids are a list or an array with one for each row, not {shortened(repr(values), 60)}.{no_ids(values)}"
        )
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise RowError(f"ids are one for each row; an array of shape {values.shape} was found.")
        values = _dates(values) if values.dtype.kind == "M" else values.tolist()
    array = np.empty(len(values), object)
    for row, key in enumerate(values):
        array[row] = key.item() if isinstance(key, np.generic) and not isinstance(key, np.datetime64) else key
    return array


def as_json(key: Any) -> Any:
    """A key as JSON holds it: a whole number, a text or a list of them."""
    if isinstance(key, tuple):
        return [as_json(part) for part in key]
    return key if isinstance(key, int | str) else str(key)


def _dates(values: np.ndarray) -> list[Any]:
    """Dates of numpy as those of Python, whose values do not depend on the unit."""
    exact = values.astype("M8[us]")
    if (exact != values).any():  # also where one is missing
        raise RowError("ids are dates with nanoseconds, or some are missing; give them as texts.")
    return exact.tolist()


def _hashed(keys: np.ndarray) -> Tensor:
    digests = [hashlib.blake2b(_spelling(key), digest_size=8).digest() for key in keys]
    # 62 bits: ids are not negative, and two of a billion keys share one in about one pool of ten.
    found = np.frombuffer(b"".join(digests), "<u8") >> np.uint64(2)
    return torch.from_numpy(found.astype(np.int64))


def _spelling(key: Any) -> bytes:
    """Bytes that are equal for equal keys and differ for others, in every process."""
    if isinstance(key, str):
        return b"s" + key.encode("utf-8", "surrogatepass")
    if is_missing_value(key):
        raise RowError(f"the id of a row is missing ({key!r}); each row needs its own id.")
    if isinstance(key, int) or (isinstance(key, float) and key.is_integer()):  # 1, 1.0 and True are one key in Python
        return b"i%d" % int(key)
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, uuid.UUID):
        return b"u" + key.bytes
    if isinstance(key, datetime.date | datetime.time):
        return b"d" + key.isoformat().encode()
    if isinstance(key, tuple):
        parts = [_spelling(part) for part in key]
        return b"(" + b"".join(b"%d:" % len(part) + part for part in parts)
    try:
        hash(key)
    except TypeError:
        raise RowError(
            f"{key!r:.60} ({type(key).__name__}) cannot be the id of a row: it is not hashable. Ids are whole numbers, "
            "texts, tuples of them, dates or UUIDs."
        ) from None
    if type(key).__repr__ is object.__repr__:
        raise RowError(
            f"an object of type {type(key).__name__} cannot be the id of a row: it has no value that is the same in "
            "every process. Give its class a __repr__, or take texts or numbers."
        )
    return f"o{type(key).__qualname__} {key!r}".encode("utf-8", "surrogatepass")


def _check_distinct(keys: np.ndarray, ids: Tensor) -> None:
    values, counts = ids.unique(return_counts=True)
    if len(values) == len(ids):
        return
    again = values[counts > 1][0]
    same = keys[(ids == again).numpy()].tolist()
    if same[0] != same[1]:
        raise RowError(f"ids {same[0]!r} and {same[1]!r} have the same hash by chance; change one of them.")
    raise RowError(f"ids are unique; id {same[0]!r} occurs {len(same)} times.")
