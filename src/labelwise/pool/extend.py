"""`extended`: a pool with more rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, RowError
from labelwise.io.frames import index_of, join_frames
from labelwise.pool.labels import labels_of
from labelwise.pool.pool import Pool
from labelwise.pool.row_keys import are_keys
from labelwise.pool.source import Source
from labelwise.pool.sources.arrays import as_array
from labelwise.pool.sources.chain import ChainSource
from labelwise.pool.sources.frame import FrameSource
from labelwise.pool.sources.sparse import SparseSource


def extended(pool: Pool, rows: Any, *, ids: Any = None, labels: Any = None, features: Any = None) -> Pool:
    """A pool with the rows of `pool` and new ones; arguments and errors as for `Pool.extended`."""
    new = _pool_of(rows, pool, ids, labels, features)
    taken = new.ids[torch.isin(new.ids, pool.ids)]
    if len(taken):
        raise RowError(
            f"id {new.keys_of(taken[:1]).tolist()[0]!r} is in the pool already; new rows have ids of their own"
        )
    joined = torch.cat([pool.ids, new.ids]).numpy()
    if pool.row_keys is not None and new.row_keys is not None:
        joined = np.concatenate([pool.row_keys.values, new.row_keys.values])
    return Pool(
        _joined_source(pool, new),
        ids=joined,
        labels=_joined("labels", pool.labels, new.labels),
        classes=pool.classes,
        features=_joined("features", _features_of(pool), _features_of(new)),
        skipped=(*pool.skipped, *new.skipped),
    )


def _pool_of(rows: Any, pool: Pool, ids: Any, labels: Any, features: Any) -> Pool:
    """The new rows as a pool, with ids, labels and numbers as those of `pool`."""
    if isinstance(rows, Pool):
        if not (ids is None and labels is None and features is None):
            raise ArgumentError("new rows in a Pool have ids, labels and features of their own; leave these out here")
        return pool.like(rows)
    if isinstance(rows, np.ndarray | Tensor):
        rows = _as_numbers_of(pool, rows)
    made = pool.like(rows)
    ids = index_of(rows) if ids is None else ids
    if ids is None and pool.row_keys is not None:
        raise RowError("the rows of this pool have names; pass ids=, a name for each new row")
    if ids is not None and are_keys(ids) != (pool.row_keys is not None):
        found, expected = ("names", "whole numbers") if are_keys(ids) else ("whole numbers", "names")
        raise RowError(f"ids: {expected} were expected, as those of the pool; found {found}")
    if ids is None:
        ids = torch.arange(len(made)) + int(pool.ids.max()) + 1
    if labels is not None and pool.classes is not None:
        labels, _ = labels_of(labels, pool.classes, made.ids)
    return Pool(made._source, ids=ids, labels=labels, features=features)


def _as_numbers_of(pool: Pool, rows: Any) -> Any:
    """New rows in the type of number of the pool; ArgumentError where values would be lost."""
    one = pool.inputs(pool.ids[:1])
    if not isinstance(one, Tensor):
        return rows
    found = as_array(rows) if isinstance(rows, Tensor) else rows
    wanted = as_array(one).dtype
    if not np.can_cast(found.dtype, wanted, "same_kind"):
        raise ArgumentError(f"new rows are like those of the pool, which are {wanted}; found {found.dtype}")
    return found.astype(wanted, copy=False)


def _joined_source(pool: Pool, new: Pool) -> Source:
    old, added = pool._source, new._source
    if isinstance(old, SparseSource) and isinstance(added, SparseSource):
        return old.joined(pool._positions_of(pool.ids), added, new._positions_of(new.ids))
    if not isinstance(old, FrameSource) or not isinstance(added, FrameSource):
        return ChainSource([*_parts(pool), *_parts(new)])
    return old.grown(join_frames([old.rows(pool._positions_of(pool.ids)), added.rows(new._positions_of(new.ids))]))


def _parts(pool: Pool) -> list[tuple[Any, np.ndarray]]:
    """The sources of a pool and which rows of them it has, in its order."""
    source, positions = pool._source, pool._positions_of(pool.ids)
    if isinstance(source, ChainSource) and (positions == np.arange(len(source))).all():
        return list(source.parts)
    return [(source, positions)]


def _features_of(pool: Pool) -> Tensor | None:
    return None if pool.features is None else pool.features[pool._feature_rows(pool.ids)]


def _joined(what: str, old: Tensor | None, new: Tensor | None) -> Tensor | None:
    if (old is None) != (new is None):
        found = "new rows have none; pass" if new is None else "the pool has none; leave out"
        raise ArgumentError(f"{what}: all rows of a pool have them, or none has; {found} {what}=")
    return None if old is None or new is None else torch.cat([old, new.to(old.dtype)])
