"""What a round leaves for the next one changes its time, never its picks."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

import labelwise as lw
from labelwise.selection.reuse import RowCache, current_cache, reusing, row_hashes

IDS, HASHES = torch.tensor([7, 3, 5]), torch.tensor([70, 30, 50])


def _stored() -> RowCache:
    cache = RowCache()
    cache.store("a", IDS, HASHES, {"near": torch.tensor([0.7, 0.3, 0.5])}, {1: 10, 2: 20})
    return cache


def test_rows_are_found_by_id_in_any_order():
    columns, centres = _stored().recall("a", torch.tensor([5, 7]), torch.tensor([50, 70]), {1: 10, 2: 20, 4: 40})
    assert columns["near"].tolist() == pytest.approx([0.5, 0.7])
    assert centres == {1, 2}


@pytest.mark.parametrize(
    ("name", "ids", "hashes", "centres"),
    [
        ("b", [5], [50], {1: 10, 2: 20}),  # another name
        ("a", [5, 6], [50, 60], {1: 10, 2: 20}),  # a new row
        ("a", [5, 9], [50, 90], {1: 10, 2: 20}),  # a new row behind all
        ("a", [5, 7], [50, 71], {1: 10, 2: 20}),  # a value of a row has changed
        ("a", [5], [50], {1: 10, 2: 21}),  # a value of a centre has changed
        ("a", [5], [50], {1: 10}),  # a centre is gone
        ("a", [], [], {1: 10, 2: 20}),
    ],
)
def test_nothing_is_reused_where_anything_differs(name, ids, hashes, centres):
    cache = _stored()
    assert cache.recall(name, torch.tensor(ids).long(), torch.tensor(hashes).long(), centres) is None
    assert cache.hits == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_one_bit_changes_the_hash_of_its_row(dtype):
    x = torch.randn(50, 9, dtype=dtype, generator=torch.Generator().manual_seed(0))
    before, y = row_hashes(x), x.clone()
    assert len(before.unique()) == 50
    y[3, 4] = torch.nextafter(y[3, 4], torch.tensor(9.0, dtype=dtype))
    y[5] = y[5].flip(0)
    y[8] = y[7]
    after = row_hashes(y)
    assert (after != before).nonzero()[:, 0].tolist() == [3, 5, 8]
    assert after[8] == before[7]


def test_the_cache_is_in_reach_within_only():
    cache = RowCache()
    with reusing(cache):
        assert current_cache() is cache
    assert current_cache() is None


def _session(x: np.ndarray, is_on: bool, **options) -> lw.Session:
    al = lw.Session(x, LogisticRegression(), "kcenter", classes=2, **options)
    if not is_on:
        al._cache.is_allowed = lambda rows, centres, limit: False
    return al


def _round(al: lw.Session, y: np.ndarray, told: int) -> list[int]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # few rows of a class
        ids = al.ask(6).ids
    al.tell(ids[:told], y[ids[:told]])
    return ids.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_rounds_that_reuse_distances_have_the_same_picks(seed):
    random = np.random.default_rng(seed)
    x = random.normal(size=(150, 5)).astype([np.float32, np.float64][seed % 2]) + (seed // 2) * 40  # far: centred
    x = np.round(x) if seed == 3 else x  # ties
    y = (x[:, 0] > np.median(x[:, 0])).astype(int)
    on, off = _session(x, True, seed=seed), _session(x, False, seed=seed)
    for told in (6, 6, 4, 6):
        assert _round(on, y, told) == _round(off, y, told)
    assert (on._cache.hits, off._cache.hits) == (2, 0)  # the first batch is random, the second has nothing to reuse
    taken = on.labelled[:1]
    for one in (on, off):
        one.retract(taken)
    assert _round(on, y, 6) == _round(off, y, 6)
    assert on._cache.hits == 2  # a labelled row is gone: distances start anew
    assert _round(on, y, 6) == _round(off, y, 6)
    assert on._cache.hits == 3


def test_a_second_round_computes_the_distances_of_the_new_labels_alone(monkeypatch: pytest.MonkeyPatch):
    from labelwise.strategies.distance import nearest

    centres, plain = [], nearest._lower_to

    def counted(column, signal, shard):
        centres.append(len(column))
        return plain(column, signal, shard)

    monkeypatch.setattr(nearest, "_lower_to", counted)
    x = np.random.default_rng(0).normal(size=(400, 5))
    al, y = _session(x, True), (x[:, 0] > 0).astype(int)
    al.tell(np.arange(200), y[:200])
    _round(al, y, 6)
    assert centres[0] == 200
    centres.clear()
    _round(al, y, 6)
    assert centres[0] == nearest.WIDE  # six, of which two are repeated


def test_a_small_limit_on_memory_has_no_cache():
    assert RowCache.is_allowed(1_000_000, 10_000, None)
    assert RowCache.is_allowed(100_000, 1_000, 4 << 30)
    assert not RowCache.is_allowed(1_000_000, 0, 1 << 30)
    assert not RowCache.is_allowed(100_000, 1_000_000, 4 << 30)
