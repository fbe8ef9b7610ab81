"""Why a row was picked, in words, from the model that picked it: what goes into `Pick.why`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labelwise.pool import Pool
from labelwise.project.loop.snapshot import Standing
from labelwise.selection import Selection
from labelwise.signals.read import Reader, read
from labelwise.signals.spec import Prediction, Probs
from labelwise.strategies import ALL, reason_of

TEST = "Drawn at random, to measure how good the model is; never used for training."
_CLOSE = 0.25  # two classes whose probabilities differ by less are said to be hesitated between
_SURE = 0.8
_FAR = 0.75  # quantile of the distances to what is labelled from which on a pick is said to be far
_LABELLED = 2000  # labelled rows looked at for distances


def reasons(
    picks: Selection, strategy: str, pool: Pool, reader: Reader | None, known: Standing
) -> list[dict[str, Any]]:
    """One reason for each pick: `words` for people, and the numbers behind them."""
    if reader is None or not known.train:
        return [{"words": reason_of(strategy), "strategy": strategy} for _ in picks.ids]
    ids = torch.from_numpy(picks.ids)
    distant_N, far = _distances(picks.ids, pool, known)
    said = _numbers(reader, pool, ids) if reader.gives(Prediction()) else _guesses(reader, pool, ids, known.classes)
    # Of a strategy that reads probabilities alone, the prediction says all.
    by_prediction = strategy in ALL and ALL[strategy].needs.pool == (Probs(),)
    found = []
    for place, (words, why) in enumerate(said):
        told = [words] if by_prediction else [reason_of(strategy), words]
        if distant_N[place] >= far:
            told.append("Far from everything labelled so far.")
        found.append(
            {"words": " ".join(told), "strategy": strategy, "distance": round(float(distant_N[place]), 4), **why}
        )
    return found


def _guesses(
    reader: Reader, pool: Pool, ids: torch.Tensor, classes: tuple[str, ...]
) -> list[tuple[str, dict[str, Any]]]:
    p_kC = torch.cat([rows.tensor(Probs()) for rows in read(reader, pool, ids, (Probs(),))])
    names = [*classes, *(f"class {number}" for number in range(len(classes), p_kC.shape[1]))]
    value_k2, best_k2 = p_kC.topk(min(2, p_kC.shape[1]), dim=1)
    found = []
    for value, best in zip(value_k2.tolist(), best_k2.tolist()):
        probs = {names[number]: round(share, 4) for number, share in zip(best, value)}
        if len(value) > 1 and value[0] - value[1] < _CLOSE:
            words = (
                f"The model hesitates between {names[best[0]]} ({value[0]:.2f}) and {names[best[1]]} ({value[1]:.2f})."
            )
        elif value[0] < _SURE:
            words = f"The model takes it for {names[best[0]]}, but is not sure ({value[0]:.2f})."
        else:
            words = f"The model takes it for {names[best[0]]} ({value[0]:.2f})."
        found.append((words, {"probs": probs}))
    return found


def _numbers(reader: Reader, pool: Pool, ids: torch.Tensor) -> list[tuple[str, dict[str, Any]]]:
    y_k = torch.cat([rows.tensor(Prediction()) for rows in read(reader, pool, ids, (Prediction(),))]).flatten()
    return [(f"The model predicts {value:.4g}.", {"predicted": value}) for value in y_k.tolist()]


def _distances(picked: np.ndarray, pool: Pool, known: Standing) -> tuple[np.ndarray, float]:
    """Distance of each pick to the nearest labelled row, and how far is far: by the rows that have a label."""
    rows = np.array(list(known.train)[-_LABELLED:])
    x_LD, x_kD = pool.inputs(rows).double(), pool.inputs(picked).double()
    distant_N = torch.cdist(x_kD, x_LD).amin(1).numpy()
    if len(rows) < 2:
        return distant_N, float("inf")
    among_LL = torch.cdist(x_LD, x_LD).fill_diagonal_(torch.inf)
    return distant_N, float(torch.quantile(among_LL.amin(1), _FAR))
