"""`labelwise.select`: arrays in, batch out. Any framework, no model object needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from labelwise import strategies
from labelwise.pool.sources.arrays import file_of
from labelwise.recommend import RECOMMENDED, recommend_for_arrays
from labelwise.rng import key_of
from labelwise.selection import Selection, Strategy
from labelwise.selection.memory import PlacementPolicy, block_bytes
from labelwise.selection.run import RunOptions, run_selection
from labelwise.selection.validate import Inputs, read_inputs, whole_rows
from labelwise.shards import Shards, shards_of
from labelwise.shards.factories import array_parts
from labelwise.shards.placement import placement_note
from labelwise.shards.ray import Ray, engine_of


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

    Frames and Series of pandas, polars and Arrow are taken as well; the ids are then the index of pandas frames.

    Nothing is copied: memory-mapped arrays stay mapped and are read block by block. Arithmetic is in float64 if one of
    the arrays is float64, else in float32.

    Args:
        strategy: a name (`labelwise.strategies.names()`) or a Strategy, such as `strategies.ProbCover(delta=0.5)`; or
            "recommended", which chooses one by the arrays that are given and says in the notes why.
        k: how many rows to choose.
        probs: (N, C) class probabilities of the model.
        label_probs: (N, C) expected class probabilities of the labels; `probs` if not given.
        embedding: (N, D) input of the model's last linear layer, or features of an encoder. A frame with columns of
            texts, dates or categories is encoded as by `Pool.frame`.
        log_probs: (N, K, C) log class probabilities under K draws of the model's weights, the same for every row.
        basis: (N, P) functions of the row whose span is the class of models; made from `embedding` if not given.
        duals: (N,) predicted duals of the rows; learned from `labelled=dict(embedding=..., duals=...)` if not given.
        grad_sqnorm: (N,) squared lengths of the gradients of each row's loss by all parameters.
        grad_dot: (N,) inner products of those gradients with the summed gradient of the labelled rows.
        grad_sketch: (N, W) random projections of those gradients.
        ids: (N,) distinct integers, texts or other hashable values that name the rows; 0..N-1 if not given.
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
    if strategy != RECOMMENDED:
        return _select(strategies.get(strategy), k, arrays, labelled, seed, engine, options)
    k = whole_rows(k)
    choice = recommend_for_arrays(arrays, labelled, k, options.limit)
    picks = _select(strategies.get(choice.strategy), k, arrays, labelled, seed, engine, options)
    return replace(picks, notes={**picks.notes, RECOMMENDED: choice.why})


def _select(
    strategy: Strategy,
    k: int,
    arrays: Mapping[str, Any],
    labelled: dict[str, Any] | None,
    seed: int,
    engine: str | Ray | None,
    options: RunOptions,
) -> Selection:
    cluster = None if engine is None else engine_of(engine)
    inputs = read_inputs(strategy, k, arrays, labelled, options.limit is not None)
    strategy, k, n, keys = inputs.strategy, inputs.k, len(inputs.ids), inputs.row_keys
    rows = -(-n // (1 if cluster is None else cluster.parts(n)))  # in one process
    block = block_bytes(strategy, inputs.size(rows), options.limit)
    policy = PlacementPolicy(strategy, k, rows, inputs.labelled.n, options.limit)
    naming = nullcontext() if keys is None else keys.in_errors()
    with naming, _pool(cluster, inputs, policy, block) as pool:
        picks = run_selection(strategy, pool, inputs.labelled.in_blocks(block), k, key_of(seed), options)
        place = placement_note(pool) if cluster is not None and cluster.gpus else ""
    ids = picks.ids if keys is None else keys.of_ids(picks.ids)
    notes = {**picks.notes, "place": place} if place else picks.notes
    return replace(picks, ids=ids, notes=notes, library=inputs.library)


@contextmanager
def _pool(cluster: Ray | None, inputs: Inputs, policy: PlacementPolicy, block: int | None) -> Iterator[Shards]:
    """Within, the rows in this process or in a cluster's workers; a worker with a GPU calls the policy itself."""
    if cluster is None:
        yield shards_of(inputs.ids, inputs.columns, dtype=inputs.dtype).in_blocks(block)
        return
    device = ("cuda", replace(policy, share=min(1.0, cluster.gpus))) if cluster.gpus else ("cpu", None)
    columns, count = inputs.columns, cluster.parts(len(inputs.ids))
    found = {signal: file_of(inputs.given[signal], column) for signal, column in columns.items()}
    files = {signal: file for signal, file in found.items() if file is not None}  # of columns that are mapped
    parts = array_parts(inputs.ids, columns, files, inputs.dtype, count, *device)
    with cluster.shards(parts, [len(part.ids) for part in parts]) as pool:
        yield pool if cluster.gpus else pool.in_blocks(block)
