"""Explanations: why a row was picked, in words, from the model that picked it. The content of `Pick.why`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labelwise.pool import Pool
from labelwise.project.loop.snapshot import Snapshot
from labelwise.selection import Selection
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs
from labelwise.strategies import ALL, reason_of

TEST = "Drawn at random, to measure how good the model is; never used for training."
_CLOSE = 0.25  # the model hesitates between two classes whose probabilities differ by less
_SURE = 0.8  # probability from which on the model counts as sure
_FAR = 0.75  # a pick is far if it is farther from every label than this share of the labelled rows are from each other
_LABELLED = 2000  # labelled rows used for distances


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
    if reader is None or not snapshot.train:
        return [{"words": reason_of(strategy), "strategy": strategy} for _ in picks.ids]
    ids = torch.from_numpy(picks.ids)
    distance_N, far = _distances(picks.ids, pool, snapshot)
    if reader.gives(Prediction()):
        predictions = _numbers(reader, pool, ids)
    else:
        predictions = _classes(reader, pool, ids, snapshot.classes)
    # If a strategy reads probabilities alone, the prediction is the whole reason.
    general = [] if strategy in ALL and ALL[strategy].needs.pool == (Probs(),) else [reason_of(strategy)]
    found = []
    for distance, (sentence, numbers) in zip(distance_N.tolist(), predictions):
        words = [*general, sentence, *(["Far from everything labelled so far."] if distance >= far else [])]
        found.append({"words": " ".join(words), "strategy": strategy, "distance": round(distance, 4), **numbers})
    return found


def _classes(
    reader: Reader, pool: Pool, ids: torch.Tensor, classes: tuple[str, ...]
) -> list[tuple[str, dict[str, Any]]]:
    p_kC = torch.cat([rows.tensor(Probs()) for rows in read(reader, pool, ids, (Probs(),))])
    names = [*classes, *(f"class {number}" for number in range(len(classes), p_kC.shape[1]))]
    value_k2, best_k2 = p_kC.topk(min(2, p_kC.shape[1]), dim=1)
    found = []
    for value, best in zip(value_k2.tolist(), best_k2.tolist()):
        probs = {names[number]: round(share, 4) for number, share in zip(best, value)}
        first = f"{names[best[0]]} ({value[0]:.2f})"
        if len(value) > 1 and value[0] - value[1] < _CLOSE:
            sentence = f"The model hesitates between {first} and {names[best[1]]} ({value[1]:.2f})."
        elif value[0] < _SURE:
            sentence = f"The model predicts {first}, but is not sure."
        else:
            sentence = f"The model predicts {first}."
        found.append((sentence, {"probs": probs}))
    return found


def _numbers(reader: Reader, pool: Pool, ids: torch.Tensor) -> list[tuple[str, dict[str, Any]]]:
    y_k = torch.cat([rows.tensor(Prediction()) for rows in read(reader, pool, ids, (Prediction(),))]).flatten()
    return [(f"The model predicts {value:.4g}.", {"predicted": value}) for value in y_k.tolist()]


def _distances(picked: np.ndarray, pool: Pool, snapshot: Snapshot) -> tuple[np.ndarray, float]:
    """Distance of each pick to the nearest labelled row, and the distance that counts as far."""
    rows = np.array(list(snapshot.train)[-_LABELLED:])
    x_LD, x_kD = pool.inputs(rows).double(), pool.inputs(picked).double()
    distance_N = torch.cdist(x_kD, x_LD).amin(1).numpy()
    if len(rows) < 2:
        return distance_N, float("inf")
    among_LL = torch.cdist(x_LD, x_LD).fill_diagonal_(torch.inf)
    return distance_N, float(torch.quantile(among_LL.amin(1), _FAR))
