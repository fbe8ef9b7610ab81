"""Explanations: why a row was picked, in words, from the model that picked it. The content of `Pick.why`.

`words` says what is particular about this row, in one or two short sentences; `general` what its strategy looks for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from labelwise.pool import Pool
from labelwise.project.loop.snapshot import Snapshot
from labelwise.rng import Key
from labelwise.selection import Selection
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs
from labelwise.strategies import reason_of

TEST = "Drawn at random, to measure how good the model is; never used for training."
_CLOSE = 0.25  # the model hesitates between two classes whose probabilities differ by less
_SURE = 0.8  # probability from which on the model counts as sure
_FAR = 0.75  # a pick is far if it is farther from every label than this share of the labelled rows are from each other
_LABELLED = 2000  # labelled rows used for distances
_SAME = 0.15  # distance of two rows that are nearly the same; rows have length 1 on average
_COPIES = 20  # most rows that are offered with one pick
_BLOCK = 8192
_SHARED = 2000  # rows of the pool that are divided among the picks of a cold start


def reasons(
    picks: Selection, strategy: str, pool: Pool, reader: Reader | None, snapshot: Snapshot
) -> list[dict[str, Any]]:
    """One explanation for each pick: `words` for people, and the numbers behind them.

    Args:
        picks: the rows that were chosen.
        strategy: the name of the strategy that chose them.
        pool: the features of the rows.
        reader: predictions of the model; None before there is one.
        snapshot: the labels the model was trained on.
    """
    general = reason_of(strategy)
    if reader is None or not snapshot.train:
        shares = _shares(picks.ids, pool)
        return [{"words": _share_words(one), "general": general, "strategy": strategy} for one in shares]
    ids = torch.from_numpy(picks.ids)
    distance_N, far = _distances(picks.ids, pool, snapshot)
    if reader.gives(Prediction()):
        predictions = _numbers(reader, pool, ids)
    else:
        predictions = _classes(reader, pool, ids, snapshot.classes)
    found = []
    for distance, (sentence, numbers) in zip(distance_N.tolist(), predictions):
        words = f"{sentence} Unlike anything labelled so far." if distance >= far else sentence
        more = {"general": general, "strategy": strategy, "distance": round(distance, 4)}
        found.append({"words": words, **more, **numbers})
    return found


def near_copies(picked: np.ndarray, pool: Pool, closed: Collection[int]) -> dict[int, list[int]]:
    """For each pick the rows that are nearly the same, the nearest first, each with one pick and none of `closed`."""
    ids, x_kD = pool.ids.numpy(), pool.inputs(picked)
    found: dict[int, list[tuple[float, int]]] = {}
    for start in range(0, len(ids), _BLOCK):
        block = ids[start : start + _BLOCK]
        distance_kN = torch.cdist(x_kD, pool.inputs(block), compute_mode="use_mm_for_euclid_dist")
        near_N, pick_N = distance_kN.min(0)
        for i in (near_N <= _SAME).nonzero()[:, 0].tolist():
            row = int(block[i])
            if row not in closed:
                found.setdefault(int(picked[pick_N[i]]), []).append((float(near_N[i]), row))
    return {pick: [row for _, row in sorted(some)[:_COPIES]] for pick, some in found.items()}


def _shares(picked: np.ndarray, pool: Pool) -> list[float]:
    """The share of all items that is closer to each pick than to the others."""
    ids = pool.ids.numpy()
    some = ids[Key(0).fold("shares").numpy().permutation(len(ids))[:_SHARED]]
    nearest_N = torch.cdist(pool.inputs(some), pool.inputs(picked)).argmin(1)
    return (torch.bincount(nearest_N, minlength=len(picked)) / len(some)).tolist()


def _share_words(share: float) -> str:
    if share < 0.01:
        return "Stands for less than 1 % of all items."
    return f"Stands for about {100 * share:.0f} % of all items, which are closer to it than to the rest of this batch."


def _classes(
    reader: Reader, pool: Pool, ids: torch.Tensor, classes: tuple[str, ...]
) -> list[tuple[str, dict[str, Any]]]:
    p_kC = torch.cat([rows.tensor(Probs()) for rows in read(reader, pool, ids, (Probs(),))])
    names = [*classes, *(f"class {number}" for number in range(len(classes), p_kC.shape[1]))]
    value_k2, best_k2 = p_kC.topk(min(2, p_kC.shape[1]), dim=1)
    found = []
    for value, best in zip(value_k2.tolist(), best_k2.tolist()):
        probs = {names[number]: round(share, 4) for number, share in zip(best, value)}
        first = f"{names[best[0]]} ({100 * value[0]:.0f} %)"
        if len(value) > 1 and value[0] - value[1] < _CLOSE:
            sentence = f"Between {first} and {names[best[1]]} ({100 * value[1]:.0f} %)."
        elif value[0] < _SURE:
            sentence = f"Perhaps {first}."
        else:
            sentence = f"Probably {first}."
        found.append((sentence, {"probs": probs}))
    return found


def _numbers(reader: Reader, pool: Pool, ids: torch.Tensor) -> list[tuple[str, dict[str, Any]]]:
    y_k = torch.cat([rows.tensor(Prediction()) for rows in read(reader, pool, ids, (Prediction(),))]).flatten()
    return [(f"Predicted: {value:.4g}.", {"predicted": value}) for value in y_k.tolist()]


def _distances(picked: np.ndarray, pool: Pool, snapshot: Snapshot) -> tuple[np.ndarray, float]:
    """Distance of each pick to the nearest labelled row, and the distance that counts as far."""
    rows = np.array(list(snapshot.train)[-_LABELLED:])
    x_LD, x_kD = pool.inputs(rows).double(), pool.inputs(picked).double()
    distance_N = torch.cdist(x_kD, x_LD).amin(1).numpy()
    if len(rows) < 2:
        return distance_N, float("inf")
    among_LL = torch.cdist(x_LD, x_LD).fill_diagonal_(torch.inf)
    return distance_N, float(torch.quantile(among_LL.amin(1), _FAR))
