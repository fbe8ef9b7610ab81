"""Global ids: checked, unique, and found again in a list of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import RowError
from labelwise.io.frames import plain_values
from labelwise.io.text import shortened


def as_ids(ids: Any) -> Tensor:
    """Ids as an int64 tensor (n,) on the CPU."""
    ids = plain_values(ids)
    if isinstance(ids, np.ndarray) and ids.dtype == np.uint64 and ids.size and int(ids.max()) >= 2**63:
        raise RowError(f"ids of this pool are below 2**63; found {int(ids.max())}.")  # else it would turn negative
    try:
        if isinstance(ids, np.ndarray) and not ids.flags.writeable:
            ids = ids.copy()  # torch warns of read-only memory, such as that of a pandas index
        tensor = torch.as_tensor(np.asarray(ids) if isinstance(ids, list | tuple | range) else ids)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RowError(f"ids are whole numbers in one row, not {shortened(repr(ids), 60)}.{no_ids(ids)}") from error
    if tensor.numel() == 0 and tensor.ndim == 1:
        return tensor.to("cpu", torch.int64)
    if tensor.ndim != 1 or tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool:
        dtype = str(tensor.dtype).removeprefix("torch.")
        hint = " Pass index.astype(int) where all are whole, and texts, index.astype(str), where some have fractions."
        raise RowError(
            f"ids are whole numbers in one row, not {dtype} of shape {tuple(tensor.shape)}."
            f"{hint if tensor.is_floating_point() and tensor.ndim == 1 else ''}"
        )
    return tensor.to("cpu", torch.int64)


def no_ids(values: Any) -> str:
    """What to say where a whole selection is passed for its ids; empty for anything else."""
    return " Pass its ids, as in picks.ids." if hasattr(values, "ids") and hasattr(values, "scores") else ""


class Finder:
    """From ids to their places in a list of unique ids."""

    def __init__(self, ids: Tensor):
        self.count = len(ids)
        self.dense = bool((ids == torch.arange(len(ids))).all())
        if not self.dense:
            self.sorted, self.order = ids.sort()

    def __call__(self, ids: Any) -> np.ndarray:
        wanted = as_ids(ids)
        if self.dense:
            known, places = (wanted >= 0) & (wanted < self.count), wanted
        else:
            at = torch.searchsorted(self.sorted, wanted).clamp_(max=self.count - 1)
            known, places = self.sorted[at] == wanted, self.order[at]
        if not bool(known.all()):
            missing = wanted[~known].unique().tolist()
            listed = ", ".join(str(id) for id in missing[:5]) + (" ..." if len(missing) > 5 else "")
            raise RowError(f"{len(missing)} ids are not in the pool of {self.count} rows: {listed}.")
        return places.numpy()


def unique_ids(ids: Tensor, n: int) -> Tensor:
    """These ids, if they are `n` different ones."""
    if len(ids) != n:
        raise RowError(f"ids: one for each of the {n} rows was expected, {len(ids)} were found.")
    values, counts = ids.unique(return_counts=True)
    if len(values) < n:
        twice = values[counts > 1]
        raise RowError(f"ids are unique; id {int(twice[0])} occurs {int(counts[counts > 1][0])} times.")
    return ids


def as_runs(numbers: np.ndarray) -> tuple[np.ndarray, ...]:
    """Whole numbers in the space that they need to travel: those that go up by one are a start and a length.

    >>> as_runs(np.array([3, 4, 5, 6, 9, 10, 11]))
    (array([3, 9]), array([4, 3]))
    """
    starts = np.flatnonzero(np.diff(numbers, prepend=numbers[:1]) != 1)
    if 2 * len(starts) >= len(numbers):
        return (numbers,)
    return numbers[starts], np.diff(starts, append=len(numbers))


def from_runs(runs: tuple[np.ndarray, ...]) -> np.ndarray:
    """The numbers, in memory of their own."""
    if len(runs) == 1:
        return runs[0].copy()
    starts, lengths = runs
    return np.repeat(starts - (lengths.cumsum() - lengths), lengths) + np.arange(lengths.sum())
