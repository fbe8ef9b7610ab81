"""The test slice: rows drawn uniformly at random, never chosen by a strategy and never trained on.

A hash of (seed, row id) orders the rows. The first of them are the reserve, and each round takes the next ones as its
test rows. The test rows so far are at any moment a uniform sample of the whole pool.
"""

from __future__ import annotations

import numpy as np
import torch

from labelwise.rng import Key

MIN_ROWS, SHARE, MAX_SHARE = 200, 0.15, 0.5  # of the reserve; the two shares are of the pool


def reserve(ids: np.ndarray, seed: int, test_share: float) -> np.ndarray:
    """The rows reserved for testing, in the order they are used; empty when `test_share` is 0."""
    if test_share == 0:
        return np.empty(0, np.int64)
    order = Key(seed).fold("project", "test").uniform(torch.from_numpy(ids)).numpy()
    count = min(max(MIN_ROWS, round(SHARE * len(ids))), int(MAX_SHARE * len(ids)))
    return ids[np.lexsort((ids, order))][:count]


def slice_size(round: int, k: int, share: float) -> int:
    """The number of test rows in round `round` (from 1), such that the share holds over all rounds.

    >>> [slice_size(round, 10, 0.15) for round in (1, 2, 3, 4)]
    [2, 1, 2, 1]
    """
    upto = [int(share * k * number + 0.5) for number in (round - 1, round)]
    return min(upto[1] - upto[0], k - 1)


def interleaved(chosen: list[int], test: list[int], key: Key) -> list[int]:
    """Both lists in one, each in its own order, at random places: the place does not tell which kind a row is."""
    is_test = np.zeros(len(chosen) + len(test), bool)
    is_test[key.numpy().permutation(len(is_test))[: len(test)]] = True
    from_chosen, from_test = iter(chosen), iter(test)
    return [next(from_test if one else from_chosen) for one in is_test.tolist()]
