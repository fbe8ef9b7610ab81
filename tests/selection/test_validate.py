"""Frames, Series and ids of any kind as arguments of `labelwise.select`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import labelwise as lw
from labelwise import errors
from makers_of_frames import COLUMNS, LIBRARIES, frame_of

P = np.random.default_rng(0).dirichlet([1, 1, 1], 40)
E = np.random.default_rng(1).normal(size=(40, 4))
KEYS = [f"k{row}" for row in range(40)]


def columns(array: np.ndarray) -> dict[str, list[float]]:
    return {f"c{column}": array[:, column].tolist() for column in range(array.shape[1])}


@pytest.mark.parametrize("library", LIBRARIES)
def test_frames_are_arrays(library: str) -> None:
    probs, embedding = frame_of(library, columns(P)), frame_of(library, columns(E))
    picks = lw.select("badge", 5, probs=probs, embedding=embedding)
    assert picks == lw.select("badge", 5, probs=P, embedding=E)
    assert picks.library == library
    assert picks.ids.dtype == np.int64


@pytest.mark.parametrize("make", [list, np.array, pd.Series, pd.Index, pl.Series, pa.array])
def test_ids_that_are_texts(make: Any) -> None:
    picks = lw.select("entropy", 4, probs=P, ids=make(KEYS))
    assert [KEYS.index(key) for key in picks.ids] == lw.select("entropy", 4, probs=P).ids.tolist()
    order = np.random.default_rng(2).permutation(40)
    assert lw.select("entropy", 4, probs=P[order], ids=make([KEYS[row] for row in order])) == picks


def test_the_index_of_a_frame_names_the_rows() -> None:
    probs = pd.DataFrame(P, index=KEYS)
    picks = lw.select("margin", 3, probs=probs)
    assert set(picks.ids) < set(KEYS)
    assert picks.to_frame().index.tolist() == picks.ids.tolist()
    with pytest.raises(errors.RowError, match="probs and embedding of the pool have different indexes"):
        lw.select("badge", 3, probs=probs, embedding=pd.DataFrame(E, index=KEYS[::-1]))
    lw.select("badge", 3, probs=probs, embedding=E)  # an array has no index


@pytest.mark.parametrize("library", LIBRARIES)
def test_an_embedding_of_texts_and_dates_is_encoded(library: str) -> None:
    frame = frame_of(library, COLUMNS)
    pool = lw.Pool.of(frame)
    assert lw.select("typiclust", 2, embedding=frame) == lw.select("typiclust", 2, embedding=pool.raw(pool.ids))
    with pytest.raises(
        errors.ArgumentError, match="probs must be an array of numbers; the frame has columns of another"
    ):
        lw.select("entropy", 1, probs=frame)


def test_labelled_rows_are_encoded_as_the_pool_is_and_named_by_their_index() -> None:
    frame = pd.DataFrame({"age": np.arange(40.0) ** 2, "job": ["a", "b"] * 20}, index=KEYS)
    picks = lw.select("kcenter", 3, embedding=frame[10:], labelled={"embedding": frame[:10]})
    assert not set(picks.ids) & set(KEYS[:10])
    x_ND = lw.Pool.of(frame[10:]).like(frame).inputs(range(40))
    by_hand = lw.select(
        "kcenter", 3, embedding=x_ND[10:], ids=KEYS[10:], labelled={"embedding": x_ND[:10], "ids": KEYS[:10]}
    )
    assert picks == by_hand
    with pytest.raises(errors.RowError, match="is in labelled and in the pool"):
        lw.select("kcenter", 3, embedding=frame, labelled={"embedding": frame[:10]})


def test_to_frame_needs_a_library() -> None:
    picks = lw.select("entropy", 2, probs=P, ids=[("a", row) for row in range(40)])
    with pytest.raises(errors.ArgumentError, match=r'write to_frame\("pandas"\)'):
        picks.to_frame()
    with pytest.raises(errors.ArgumentError, match="not 'dask'"):
        picks.to_frame("dask")
    assert picks.to_frame("pandas").index.tolist() == picks.ids.tolist()
    assert picks.to_frame(pl.DataFrame({"a": [1]}))["id"].to_list() == [str(key) for key in picks.ids]


@pytest.mark.parametrize("name", ["acs-fw", "sabal-greedy", "badge"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.uint64])
def test_k_of_any_integer_kind(name: str, kind: type) -> None:
    log_probs = np.log(np.random.default_rng(0).dirichlet([1, 1, 1], (160, 4)))
    given = {"probs": P.repeat(4, 0), "embedding": E.repeat(4, 0) + np.arange(160)[:, None] / 7, "log_probs": log_probs}
    assert lw.select(name, kind(120), **given) == lw.select(name, 120, **given)


def test_squared_norms_below_zero_are_refused() -> None:
    with pytest.raises(errors.NumericsError, match=r"grad_sqnorm .* at least 0, but row id 1 holds -2"):
        lw.select("dynamical", 2, grad_sqnorm=np.array([1.0, -2, 3]), grad_dot=np.ones(3))
