"""Several classes for an item: one yes-or-no model for each class on the same features, and what strategies mean then.

The model is that of `set_model.py`.
A strategy sees one question about each item: the class that the model is least sure of, yes or no. So `margin` takes
the items with the most doubtful class, and `badge` spreads them by the gradient of that question. Strategies that read
features alone see them as always. Others are refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labelwise import recipes, strategies
from labelwise.arrays import select
from labelwise.project.label_sets import names_of, value_of
from labelwise.project.loop.explain import near_copies, reasons
from labelwise.project.loop.set_model import hot, logistic_each, outputs_of
from labelwise.project.loop.snapshot import Snapshot
from labelwise.project.loop.stored_model import Model
from labelwise.project.loop.suspects import Suspect, find
from labelwise.project.project import Project
from labelwise.project.store import Pick
from labelwise.rng import Key
from labelwise.selection import Strategy

LEAST = 3  # labelled items with a class, and without it, from which on its labels can be suspect


def train_multi(project: Project, snapshot: Snapshot) -> Model | None:
    """The model of all labels; None without one."""
    if not snapshot.train or not snapshot.classes:
        return None
    x_ND = project.pool.inputs(list(snapshot.train)).double()
    hot_NC = torch.from_numpy(hot(snapshot.values(snapshot.train), snapshot.classes))
    weight_CD, bias_C = logistic_each(x_ND, hot_NC)
    return Model(weight_CD.float().numpy(), bias_C.float().numpy(), snapshot.classes, len(snapshot.train))


def free_rows(project: Project, snapshot: Snapshot) -> np.ndarray:
    """The rows that a strategy may choose."""
    ids = project.pool.ids.numpy()
    closed = np.array(sorted(snapshot.picked | set(snapshot.train) | set(project.reserve.tolist())), np.int64)
    return np.asarray(ids[~np.isin(ids, closed)])


def choose_multi(
    project: Project, snapshot: Snapshot, model: Model | None, free: np.ndarray, k: int
) -> tuple[str, list[Pick]]:
    """The name of the strategy, and its picks with their reasons."""
    settings = project.settings
    recipe = recipes.get(settings.recipe)
    x_ND = project.pool.inputs(free)
    chosen = recipe.start if model is None else recipe.strategy
    strategy: Strategy = strategies.get(chosen) if isinstance(chosen, str) else chosen
    p_NC = None if model is None else 1 / (1 + np.exp(-outputs_of(model, x_ND.numpy(), snapshot.classes)))
    arrays: dict[str, Any] = {"embedding": x_ND}
    if p_NC is not None:
        p_N = np.take_along_axis(p_NC, np.abs(p_NC - 0.5).argmin(1)[:, None], 1)[:, 0]
        arrays["probs"] = np.stack([p_N, 1 - p_N], axis=1).astype(np.float32)
    if strategy.needs.labelled and snapshot.train:
        arrays["labelled"] = {"embedding": project.pool.inputs(list(snapshot.train))}
    seed = int(Key(settings.seed).fold("project", "select", snapshot.after).numpy().integers(2**31))
    picks = select(strategy, k, ids=free, seed=seed, max_memory=settings.max_memory or None, **arrays)
    name = strategies.name_of(strategy)
    if model is None or p_NC is None:
        why = reasons(picks, name, project.pool, None, snapshot)
    else:
        place = {row: at for at, row in enumerate(free.tolist())}
        why = [_why(p_NC[place[row]], snapshot.classes, name) for row in picks.ids.tolist()]
    if settings.kind != "table":
        closed = snapshot.picked | set(snapshot.train) | set(project.reserve.tolist()) | set(picks.ids.tolist())
        same = near_copies(picks.ids, project.pool, closed)
        why = [{**one, "copies": same[row]} if row in same else one for one, row in zip(why, picks.ids.tolist())]
    rows = zip(picks.ids.tolist(), picks.scores.tolist(), why)
    return name, [Pick(row, "chosen", score, one) for row, score, one in rows]


def _why(p_C: np.ndarray, classes: tuple[str, ...], strategy: str) -> dict[str, Any]:
    doubtful = int(np.abs(p_C - 0.5).argmin())
    named = [classes[at] for at in np.flatnonzero(p_C > 0.5) if at != doubtful]
    sure = f" Probably: {', '.join(named[:4])}." if named else ""
    words = f"{classes[doubtful]}, or not ({100 * p_C[doubtful]:.0f} %)?{sure}"
    probs = {name: round(float(share), 4) for name, share in zip(classes, p_C)}
    return {"words": words, "general": strategies.reason_of(strategy), "strategy": strategy, "each": probs}


def multi_suspects(project: Project, snapshot: Snapshot) -> list[Suspect]:
    """Labels that probably have a class too many or lack one, by the models of each class; the likeliest first."""
    rows, values = list(snapshot.train), snapshot.values(snapshot.train)
    if not rows:
        return []
    x_ND, hot_NC = project.pool.inputs(rows), hot(values, snapshot.classes)
    best: dict[int, Suspect] = {}
    label = dict(zip(rows, values))
    for at, name in enumerate(snapshot.classes):
        with_ = int(hot_NC[:, at].sum())
        if min(with_, len(rows) - with_) < LEAST:
            continue
        key = Key(project.settings.seed).fold("project", "suspects", snapshot.after, at)
        for one in find(rows, x_ND, hot_NC[:, at].tolist(), ("no", "yes"), key):
            if one.row not in best or best[one.row].confidence < one.confidence:
                names = set(names_of(label[one.row])) ^ {name}
                predicted = value_of(names, snapshot.classes)
                best[one.row] = Suspect(one.row, label[one.row], predicted, one.confidence)
    return sorted(best.values(), key=lambda one: -one.confidence)
