"""`labelwise.select`: arrays in, batch out. Any framework, no model object needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from labelwise import strategies
from labelwise.selection import Selection, Strategy
from labelwise.selection.run import RunOptions
from labelwise.selection.validate import select_from_arrays
from labelwise.shards.ray import Ray


def select(
    strategy: str | Strategy,
    k: int,
    *,
    probs: Any = None,
    label_probs: Any = None,
    embedding: Any = None,
    log_probs: Any = None,
    basis: Any = None,
    duals: Any = None,
    grad_sqnorm: Any = None,
    grad_dot: Any = None,
    grad_sketch: Any = None,
    ids: Any = None,
    labelled: dict[str, Any] | None = None,
    seed: int = 0,
    engine: str | Ray | None = None,
    folder: str | Path | None = None,
    max_memory: int | str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Selection:
    """Choose k rows of a pool described by arrays: NumPy or torch, on any device, the first axis is the rows.

    Nothing is copied: memory-mapped arrays stay mapped and are read block by block. Arithmetic is in float64 if one of
    the arrays is float64, else in float32.

    Args:
        strategy: a name (`labelwise.strategies.names()`) or a Strategy, such as `strategies.ProbCover(delta=0.5)`.
        k: how many rows to choose.
        probs: (N, C) class probabilities of the model.
        label_probs: (N, C) expected class probabilities of the labels; `probs` if not given.
        embedding: (N, D) input of the model's last linear layer, or features of an encoder.
        log_probs: (N, K, C) log class probabilities under K draws of the model's weights, the same for every row.
        basis: (N, P) functions of the row whose span is the class of models; made from `embedding` if not given.
        duals: (N,) predicted duals of the rows; learned from `labelled=dict(embedding=..., duals=...)` if not given.
        grad_sqnorm: (N,) squared lengths of the gradients of each row's loss by all parameters.
        grad_dot: (N,) inner products of those gradients with the summed gradient of the labelled rows.
        grad_sketch: (N, W) random projections of those gradients.
        ids: (N,) distinct integers that name the rows; 0..N-1 if not given.
        labelled: the same arrays for the rows already labelled, such as `dict(embedding=..., y=...)`.
        seed: the only source of chance. The same seed and rows give the same picks in any order of the rows.
        engine: None for this process; "ray", or a `labelwise.shards.ray.Ray` with its settings, for a
            Ray cluster. The picks are the same. Arrays that are mapped files travel by name, so each machine must
            find them there.
        folder: a new or empty folder for the checkpoint of a long selection. Stopped or killed, and called again with
            the same arguments, the selection resumes from there; what it wrote there is removed when it is done.
        max_memory: what this call may hold besides the arrays, such as "4GB" or a number of bytes; with an engine, in
            each process. Blocks are sized to it. docs/scale.md says what each strategy needs.
        progress: called with (done, total) from time to time while picks are made.

    Returns:
        A Selection: ids, weights, scores, notes.

    Raises:
        NeedError: if an array that the strategy needs is missing.
        RowError: if arrays, ids and labelled rows do not fit each other.
        BudgetError: if k is below 1 or above the number of rows.
        MemoryLimitError: if max_memory is too small; `smallest` of the error is the smallest limit that works.
        ArgumentError: if another argument is not what is described above.

    >>> import numpy as np
    >>> P = np.array([[0.9, 0.1], [0.5, 0.5], [0.7, 0.3]])
    >>> select("entropy", k=2, probs=P).ids
    array([1, 2])
    """
    arrays = {
        "probs": probs,
        "label_probs": label_probs,
        "embedding": embedding,
        "log_probs": log_probs,
        "basis": basis,
        "duals": duals,
        "grad_sqnorm": grad_sqnorm,
        "grad_dot": grad_dot,
        "grad_sketch": grad_sketch,
        "ids": ids,
    }
    options = RunOptions.of(max_memory, folder, progress)
    return select_from_arrays(strategies.get(strategy), k, arrays, labelled, seed, engine, options)
