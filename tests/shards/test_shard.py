from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from labelwise.errors import LabelwiseError, NumericsError, RowError, StoreError
from labelwise.rng import Key
from labelwise.shards import Shard, Shards, place, shards_of
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, Features, Probs, Signal
from labelwise.strategies.uncertainty.reference import top_k
from labelwise.verify.chi_square import ALARM, chi_square_p

E = Embedding()


def _pool(values: torch.Tensor, ids: torch.Tensor, count: int = 1) -> Shards:
    return shards_of(ids, {E: values}, count)


def _column(shard: Shard) -> torch.Tensor:
    return shard.columns[E][:, 0]


@pytest.mark.parametrize("count", [1, 2, 5, 40])
@pytest.mark.parametrize("seed", range(6))
def test_best_is_a_sort_with_ties_by_lot(count: int, seed: int):
    gen = torch.Generator().manual_seed(seed)
    ids = torch.randperm(1000, generator=gen)[:37] - 500
    values = torch.randint(0, 6, (37, 1), generator=gen).double()
    pool, by_lot = _pool(values, ids, count).with_ties(Key(seed)), Key(seed).lots(ids).argsort()
    assert pool.n == 37
    for k in (1, 2, 7, 20, 36, 37):
        best = pool.best(_column, k)
        assert best.ids.tolist() == top_k(ids[by_lot], values[by_lot, 0].tolist(), k)
        of = dict(zip(ids.tolist(), values[:, 0].tolist()))
        assert best.values.tolist() == [of[i] for i in best.ids.tolist()]


def test_best_leaves_out_what_may_not_be_taken_until_nothing_else_is_left():
    values = torch.tensor([[1.0], [-torch.inf], [3.0], [-torch.inf]])
    assert _pool(values, torch.arange(4), 2).best(_column, 2).ids.tolist() == [2, 0]


@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_slack_ties_close_values_by_lot(count: int):
    values = torch.tensor([[1.0], [5.0 - 1e-7], [2.0], [5.0], [5.0 - 2e-7], [5.0 - 1e-3]], dtype=torch.float64)
    ids = torch.tensor([1, 8, 3, 7, 5, 2])
    ids = ids[Key(0).lots(ids).argsort()][torch.tensor([0, 5, 2, 4, 3, 1])]  # rows by lot: 0, 5, 2, 4, 3, 1
    assert _pool(values, ids, count).best(_column, 1, 1e-6).ids.tolist() == [ids[4]]
    assert _pool(values, ids, count).best(_column, 1, 1e-9).ids.tolist() == [ids[3]]
    assert _pool(values, ids, count).best(_column, 1).ids.tolist() == [ids[3]]
    assert _pool(-values, ids, count).best(_column, 1, 1e-6).ids.tolist() == [ids[0]]
    assert _pool(values * 0, ids, count).best(_column, 1, 1e-6).ids.tolist() == [ids[0]]


@pytest.mark.parametrize("seed", range(30))
def test_slack_gives_the_same_row_for_every_number_of_shards(seed: int):
    """Many values inside one slack: the row must not depend on which of them share a shard."""
    gen = torch.Generator().manual_seed(seed)
    values = 1 + 3e-6 * torch.rand(12, 1, generator=gen, dtype=torch.float64)
    ids = torch.randperm(12, generator=gen)
    near = values[:, 0] >= values.max() * (1 - 1e-6)
    expected = int(ids[near][Key(0).lots(ids[near]).argmin()])
    assert [int(_pool(values, ids, count).best(_column, 1, 1e-6).ids) for count in (1, 2, 3, 12)] == [expected] * 4


def test_slack_is_measured_from_the_highest_value_of_all_shards():
    """The first row is tied with the best of its own shard only; the second is tied with the best of all."""
    values = 1 - torch.tensor([[1.2e-6], [0.8e-6], [0.3e-6], [5.0], [5.0], [0.0]], dtype=torch.float64)
    ids = torch.tensor([1, 2, 3, 4, 5, 9])
    ids = ids[Key(0).lots(ids).argsort()]
    assert [int(_pool(values, ids, count).best(_column, 1, 1e-6).ids) for count in (1, 2, 3, 6)] == [ids[1]] * 4


def test_lots_order_rows_at_random_whatever_their_ids():
    """Over keys every order of three rows is equally likely; the lots of many rows are distinct."""
    for ids in (torch.arange(3), torch.tensor([-(1 << 62), 0, (1 << 63) - 1])):
        orders = Counter(tuple(Key(seed).lots(ids).argsort().tolist()) for seed in range(1200))
        assert chi_square_p([*orders.values()], [1 / 6] * 6) > ALARM
    assert len(Key(1).lots(torch.arange(-5000, 5000)).unique()) == 10_000


def test_ties_follow_the_key_and_not_the_ids():
    pool = _pool(torch.zeros(60, 1), torch.arange(60), 3)
    picks = [pool.with_ties(Key(seed)).best(_column, 5).ids.tolist() for seed in (0, 1, 0)]
    assert picks[0] == picks[2] != picks[1]


def test_slack_with_the_largest_id_there_is():
    top = (1 << 63) - 1
    pool = _pool(torch.tensor([[0.0], [1.0]], dtype=torch.float64), torch.tensor([5, top]), 2)
    assert pool.best(_column, 1, 1e-6).ids.tolist() == [top]


def test_sum_and_map():
    values = torch.arange(10.0)[:, None]
    for count in (1, 3, 10):
        pool = _pool(values, torch.arange(10), count)
        assert float(pool.sum(lambda shard: shard.columns[E].sum())) == 45
        assert pool.sum(len) == 10
        assert sum(pool.map(len)) == 10
        assert torch.cat(pool.map(lambda shard: shard.ids)).tolist() == list(range(10))


@pytest.mark.parametrize("count", [1, 2, 5])
def test_take_gives_rows_in_the_order_of_the_question(count: int):
    gen = torch.Generator().manual_seed(1)
    ids = torch.randperm(300, generator=gen)[:50] - 100
    values = torch.randn(50, 3, generator=gen)
    pool = _pool(values, ids, count)
    asked = torch.randperm(50, generator=gen)[:17]
    for _ in range(2):  # the second time from what was sorted the first time
        rows = pool.take(ids[asked])
        assert torch.equal(rows.ids, ids[asked])
        assert torch.equal(rows.tensor(E), values[asked])
    twice = pool.take(ids[[4, 4, 2]])
    assert torch.equal(twice.tensor(E), values[[4, 4, 2]])
    assert len(pool.take(ids[:0])) == 0


@pytest.mark.parametrize("missing", [-101, 1000, (1 << 63) - 1, -(1 << 63)])
def test_take_names_ids_that_are_not_there(missing: int):
    pool = _pool(torch.zeros(5, 1), torch.tensor([2, 4, 6, 8, 10]), 2)
    with pytest.raises(RowError, match=str(missing)):
        pool.take(torch.tensor([4, missing]))


def test_shards_are_views_and_empty_ones_vanish():
    values = torch.zeros(3, 2)
    pool = _pool(values, torch.arange(3), 8)
    assert pool.n == 3
    assert all(len(shard) for shard in pool.map(lambda shard: shard))
    starts = pool.map(lambda shard: shard.columns[E].data_ptr())
    assert starts[0] == values.data_ptr()
    assert Shards([]).n == 0
    joined = pool.join(_pool(torch.ones(2, 2), torch.tensor([-1, -2])))
    assert joined.n == 5
    assert joined.take(torch.tensor([-2, 1])).tensor(E).tolist() == [[1, 1], [0, 0]]


def test_blocks_cover_all_rows_once_whatever_their_size():
    values = torch.arange(1000.0)[:, None]
    shard = Shard(torch.arange(1000), {E: values})
    for size in (1, 3000, 8 << 20):
        shard.block_bytes = size
        blocks = list(shard.blocks(scratch=1))
        assert torch.equal(torch.cat([rows.ids for _, rows in blocks]), shard.ids)
        assert torch.equal(shard.each(lambda rows: rows.tensor(E) * 2), values * 2)
        assert len(blocks) == {1: 16, 3000: 14, 8 << 20: 1}[size]


@pytest.mark.parametrize(
    ("given", "computed"),
    [
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_what_rows_are_computed_in(given: torch.dtype, computed: torch.dtype):
    shard = Shard(torch.arange(3), {E: torch.ones(3, 2).to(given)})
    assert shard.dtype == computed
    assert shard.rows(slice(0, 3)).tensor(E).dtype == computed
    assert shard.columns[E].dtype == given


def test_one_wide_column_makes_all_wide():
    shard = Shard(torch.arange(3), {E: torch.ones(3, 2), Probs(): torch.ones(3, 1, dtype=torch.float64)})
    assert shard.rows(slice(0, 3)).tensor(E).dtype == torch.float64


def test_bad_values_are_found_in_any_block():
    values = torch.zeros(300, 1)
    values[299] = torch.nan
    pool = _pool(values, torch.arange(300) + 1000, 2).in_blocks(1)
    with pytest.raises(NumericsError, match="1299"):
        pool.map(lambda shard: shard.each(lambda rows: rows.tensor(E)))
    with pytest.raises(NumericsError, match="1299"):  # and again: a check that failed is not a check that passed
        pool.map(lambda shard: shard.each(lambda rows: rows.tensor(E)))


# --- place ----------------------------------------------------------------------------------------------------------


def _stream(columns: dict[Signal, torch.Tensor], step: int) -> list[Rows]:
    n = len(next(iter(columns.values())))
    starts = range(0, n, step)
    return [
        Rows(torch.arange(i, min(i + step, n)) * 3 - 9, {s: c[i : i + step] for s, c in columns.items()})
        for i in starts
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("mapped", [False, True])
def test_place_keeps_content_and_dtype(dtype: torch.dtype, mapped: bool, tmp_path: Path):
    gen = torch.Generator().manual_seed(0)
    columns: dict[Signal, torch.Tensor] = {
        E: (torch.randn(11, 3, generator=gen) * 10).to(dtype),
        Features(): torch.randn(11, 4, 2, generator=gen),
        Probs(): torch.randn(11, generator=gen),
    }
    pool = place(_stream(columns, 4), 11, tmp_path / "deep" / "folder" if mapped else None)
    assert pool.n == 11
    (shard,) = pool.map(lambda shard: shard)
    assert shard.ids.tolist() == [3 * i - 9 for i in range(11)]
    assert set(shard.columns) == set(columns)
    for signal, column in columns.items():
        # Files have no bfloat16; float32 holds its values exactly.
        stored_dtype = torch.float32 if mapped and column.dtype == torch.bfloat16 else column.dtype
        assert shard.columns[signal].dtype == stored_dtype
        assert torch.equal(shard.columns[signal], column.to(stored_dtype))
    if mapped:
        assert len(list((tmp_path / "deep" / "folder").iterdir())) == 3
    else:
        assert not list(tmp_path.iterdir())


def test_mapped_files_are_plain_npy(tmp_path: Path):
    columns: dict[Signal, torch.Tensor] = {E: torch.arange(6.0).reshape(3, 2)}
    place(_stream(columns, 2), 3, tmp_path)
    (path,) = tmp_path.iterdir()
    assert np.array_equal(np.load(path), np.arange(6.0).reshape(3, 2))


@pytest.mark.parametrize("n", [10, 12])
def test_place_notices_a_wrong_count(n: int, tmp_path: Path):
    columns: dict[Signal, torch.Tensor] = {E: torch.zeros(11, 1)}
    for folder in (None, tmp_path):
        with pytest.raises(StoreError, match=str(n)):
            place(_stream(columns, 4), n, folder)


def test_place_of_nothing():
    assert place([], 0).n == 0
    with pytest.raises(StoreError, match="found 0"):
        place([], 3)


def test_place_notices_rows_that_change_their_form():
    """A model whose output changes shape, or stops giving a signal: never a torch error, never unwritten memory."""
    first = Rows(torch.arange(2), {E: torch.zeros(2, 3)})
    with pytest.raises(LabelwiseError):
        place([first, Rows(torch.arange(2, 4), {E: torch.zeros(2, 4)})], 4)
    with pytest.raises(LabelwiseError):  # one column would be spread over three
        place([first, Rows(torch.arange(2, 4), {E: torch.zeros(2, 1)})], 4)
    with pytest.raises(LabelwiseError):
        place([first, Rows(torch.arange(2, 4), {})], 4)
    with pytest.raises(LabelwiseError):
        place([first, Rows(torch.arange(2, 4), {E: torch.zeros(2, 3), Probs(): torch.ones(2, 1)})], 4)


def test_blocks_of_some_rows_are_those_rows_and_none_where_there_are_none():
    shard = Shard(torch.arange(300) * 2, {Embedding(): torch.arange(300.0)[:, None]})
    shard.block_bytes = 1  # as few rows at a time as there may be
    at = torch.tensor([299, 3, *range(10, 200)])
    parts = list(shard.some_blocks(at))
    assert len(parts) > 1
    assert torch.cat([part for part, _ in parts]).tolist() == at.tolist()
    assert torch.cat([rows.ids for _, rows in parts]).tolist() == (2 * at).tolist()
    assert torch.cat([rows.tensor(Embedding())[:, 0] for _, rows in parts]).tolist() == at.tolist()
    assert list(shard.some_blocks(at[:0])) == []
