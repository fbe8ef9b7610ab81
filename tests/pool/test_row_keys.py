"""Rows named by texts, tuples, dates and UUIDs."""

from __future__ import annotations

import datetime
import hashlib
import uuid

import numpy as np
import pytest
import torch

from labelwise.errors import RowError
from labelwise.labels.answers import check_ids
from labelwise.pool import Pool
from labelwise.pool.row_keys import RowKeys
from labelwise.selection import Selection

KEYS = ["ant", "bee", ("c", 1), ("c", 2), uuid.UUID(int=5), datetime.date(2026, 1, 2), np.str_("dog"), b"e", 7]


def test_keys_are_mapped_to_ids_and_back() -> None:
    pool = Pool.of(np.arange(len(KEYS), dtype=np.float32)[:, None], ids=KEYS)
    assert pool.keys_of(pool.ids).tolist() == KEYS
    wanted = [("c", 2), "dog", 7]
    assert pool.inputs(pool.ids_of(wanted)).ravel().tolist() == [3, 6, 8]
    assert pool.keys_of(pool.ids_of(wanted)).tolist() == wanted
    assert pool.subset(pool.ids_of(["bee"])).keys_of(pool.ids_of(["bee"])).tolist() == ["bee"]
    assert pool.name(int(pool.ids_of(["ant"])[0])) == "row ant"


def test_the_id_of_a_key_does_not_depend_on_the_other_rows() -> None:
    found = int.from_bytes(hashlib.blake2b(b"sy", digest_size=8).digest(), "little") >> 2
    assert RowKeys(["x", "y"]).ids_of(["y"]) == RowKeys(["y", "z"]).ids[0] == found
    assert len(set(RowKeys(["1", 1, ("1",), (1,), b"1", datetime.date.min, ("1", "")]).ids.tolist())) == 7
    assert (RowKeys([1, "a"]).ids == RowKeys([1.0, "a"]).ids).all()  # one key in Python


def test_dates_of_numpy_are_those_of_python() -> None:
    days = np.array(["2026-01-01", "2026-01-02"], "M8[ns]")
    pool = Pool.of(np.eye(2), ids=days)
    assert pool.keys_of(pool.ids).tolist() == [datetime.datetime(2026, 1, 1), datetime.datetime(2026, 1, 2)]
    assert pool.ids_of(days[1:]) == pool.ids[1]
    with pytest.raises(RowError, match="nanoseconds, or some are missing"):
        Pool.of(np.eye(2), ids=np.array(["2026-01-01", "NaT"], "M8[ns]"))


def test_an_unknown_key_is_named_with_keys_there_are() -> None:
    with pytest.raises(RowError, match=r"1 ids are not in the pool of 2 rows: 'c'; it has ids such as 'a', 'b'"):
        Pool.of(np.eye(2), ids=["a", "b"]).ids_of(["a", "c"])


def test_whole_numbers_stay_ids_without_any_memory_for_keys() -> None:
    for ids in ([4, 2], np.array([4, 2], np.uint8), torch.tensor([4, 2]), [np.int16(4), 2]):
        pool = Pool.of(np.eye(2), ids=ids)
        assert pool.row_keys is None
        assert pool.ids.tolist() == [4, 2]
        assert pool.keys_of(pool.ids_of([2])).tolist() == [2]


def test_sets_are_no_rows_since_they_have_no_order() -> None:
    keys = RowKeys(["ant", "bee"])
    for some in ({"ant", "bee"}, {"ant": 1}, {"ant": 1}.keys()):
        with pytest.raises(RowError, match="ids are a list or an array with one for each row"):
            keys.ids_of(some)


@pytest.mark.parametrize(
    "ids", [np.array([2**63 + 1, 5, 2**64 - 1], np.uint64), [2**63 + 1, 5, 2**70], [-(2**63) - 1, 5, 6]]
)
def test_whole_numbers_that_no_id_can_be_are_names(ids) -> None:
    """Hashes of 64 bits without a sign, as polars gives them, would turn negative."""
    pool = Pool.of(np.eye(3), ids=ids)
    wanted = [int(number) for number in ids]
    assert pool.keys_of(pool.ids).tolist() == wanted
    assert pool.keys_of(pool.ids_of(wanted[:1])).tolist() == wanted[:1]


def test_what_is_no_list_of_ids_is_refused_with_what_to_pass() -> None:
    whole, named = Pool.of(np.eye(2)), Pool.of(np.eye(2), ids=["a", "b"])
    picks = Selection(np.array([0]), np.ones(1), np.zeros(1), {})
    for pool in (whole, named):
        with pytest.raises(RowError, match=r"Pass its ids, as in picks\.ids"):
            pool.ids_of(picks)
        with pytest.raises(RowError, match=r"Pass its ids, as in picks\.ids"):
            check_ids(picks, pool)
    with pytest.raises(RowError, match=r"not float64 of shape \(2,\)\. Pass index\.astype\(int\) where all are whole"):
        Pool.of(np.eye(2), ids=np.array([1.0, 2.0]))
    with pytest.raises(RowError, match=r"below 2\*\*63; found 9223372036854775808"):
        whole.ids_of(np.array([2**63], np.uint64))
