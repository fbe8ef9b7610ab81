"""The test slice: rows drawn uniformly at random, never chosen by a strategy and never trained on.

Every row has a place in an order hashed from (seed, row id). The first of them are the reserve; each round takes the
next ones of the order as its test rows. What was taken so far is at any moment a uniform sample of the whole pool.
"""

from __future__ import annotations

import numpy as np
import torch

from labelwise.rng import Key

LEAST, SHARE, MOST = 200, 0.15, 0.5  # of the reserve: rows, share of the pool, share it never exceeds


def reserve(ids: np.ndarray, seed: int, test_share: float) -> np.ndarray:
    """The rows set aside for testing, in the order in which they are used."""
    if test_share == 0:
        return np.empty(0, np.int64)
    drawn = Key(seed).fold("project", "test").uniform(torch.from_numpy(ids)).numpy()
    count = min(max(LEAST, round(SHARE * len(ids))), int(MOST * len(ids)))
    return ids[np.lexsort((ids, drawn))][:count]


def slice_size(round: int, k: int, share: float) -> int:
    """How many test rows round `round` (the first is 1) has, so that the share holds over all rounds.

    >>> [slice_size(round, 10, 0.15) for round in (1, 2, 3, 4)]
    [2, 1, 2, 1]
    """
    upto = [int(share * k * number + 0.5) for number in (round - 1, round)]
    return min(upto[1] - upto[0], k - 1)


def interleaved(chosen: list[int], test: list[int], key: Key) -> list[int]:
    """Both kinds of rows in one list, the order of each kept; nobody can tell from the place which kind a row is."""
    rng = key.numpy()
    places = np.sort(rng.permutation(len(chosen) + len(test))[: len(test)])
    mixed, rest = [0] * (len(chosen) + len(test)), iter(chosen)
    for place, row in zip(places.tolist(), test):
        mixed[place] = row
    at = set(places.tolist())
    for place in range(len(mixed)):
        if place not in at:
            mixed[place] = next(rest)
    return mixed
