"""On an accelerator the host waits for many picks at once, for every strategy, and the picks are those of the CPU.

`tests/second_device.py` counts where the host would wait; where there is a CUDA device, torch counts as well.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import labelwise as lw
from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.selection import greedy
from labelwise.shards import Shard, Shards, topk
from labelwise.shards.devices import copied_to
from labelwise.signals.exact_sum import add_at
from labelwise.signals.rows import Rows, sq_dist, sq_norm
from labelwise.signals.spec import Embedding, Needs
from labelwise.strategies import BatchBald, Dynamical, Sabal
from second_device import AWAY, second_device

cuda = pytest.mark.gpu

ROWS, FEW, MANY = 1200, 30, 90
EACH = 0.5  # waits for a further pick, at most: a list or a chunk of picks may end
# Configurations of the labels are all kept for the first picks, and how many there are only the device knows; the
# gains of a list are told from those of the rest by the host.
LAZY = {"batchbald": 8.0}
E = Embedding()
STRATEGIES: dict[str, Any] = {name: name for name in lw.strategies.names()}
STRATEGIES |= {"dynamical diverse": Dynamical(diverse=True), "sabal-iht": Sabal("iht", iterations=10)}
STRATEGIES |= {"batchbald": BatchBald(configurations=300)}


def arrays(name: str, dtype: torch.dtype = torch.float64, classes: int = 4, copies: int = 1) -> dict[str, Tensor]:
    """What a strategy may ask for of each row."""
    chance = torch.Generator().manual_seed(0)
    n = ROWS // copies

    def drawn(*size: int) -> Tensor:
        return torch.randn(*size, generator=chance, dtype=dtype)

    logits = 2 * drawn(n, classes)
    given = {"probs": logits.softmax(1), "label_probs": (logits / 1.5).softmax(1), "embedding": drawn(n, 6)}
    if name in ("bald", "batchbald", "acs-fw"):
        given |= {"log_probs": (logits[:, None] + drawn(n, 24, classes)).log_softmax(2)}
    if name.startswith("dynamical"):
        given |= {"grad_sqnorm": drawn(n).square(), "grad_dot": drawn(n), "grad_sketch": drawn(n, 8)}
    if name == "ally":
        given |= {"duals": drawn(n).abs()}
    return {one: array.repeat(copies, *[1] * (array.ndim - 1)) for one, array in given.items()}


def select(name: str, k: int, device: Any, dtype: torch.dtype = torch.float64, classes: int = 4) -> lw.Selection:
    given: dict[str, Any] = {one: array.to(device) for one, array in arrays(name, dtype, classes).items()}
    return lw.select(STRATEGIES[name], k, **given, seed=0)


def counted_away(run: Callable[[], lw.Selection]) -> tuple[lw.Selection, int]:
    with second_device() as mode:
        found = run()
    return found, mode.waits.total()


def counted_by_torch(run: Callable[[], lw.Selection]) -> tuple[lw.Selection, int]:
    run()  # kernels are compiled
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")  # which warns that it is a prototype
        try:
            found = run()
        finally:
            torch.cuda.set_sync_debug_mode("default")
    return found, sum("synchroniz" in str(one.message) for one in seen)


def check(name: str, device: Any, counted: Callable[..., Any], classes: int = 4) -> None:
    few, waits = counted(lambda: select(name, FEW, device, classes=classes))
    many, more = counted(lambda: select(name, MANY, device, classes=classes))
    assert more - waits <= LAZY.get(name, EACH) * (MANY - FEW), (name, waits, more)
    assert few.ids.tolist() == select(name, FEW, "cpu", classes=classes).ids.tolist()
    assert many.ids.tolist() == select(name, MANY, "cpu", classes=classes).ids.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("name", STRATEGIES)
def test_no_pick_makes_the_host_wait(name: str) -> None:
    check(name, AWAY, counted_away)


def test_of_many_classes_the_host_waits_three_times_for_a_list() -> None:
    found, waits = counted_away(lambda: select("sabal-greedy", FEW, AWAY, classes=140))
    sweeps = found.notes["sweeps"]
    assert waits <= 3 * sweeps + 40
    assert found.ids.tolist() == select("sabal-greedy", FEW, "cpu", classes=140).ids.tolist()


@cuda
@pytest.mark.parametrize("name", STRATEGIES)
def test_no_pick_makes_the_host_wait_for_cuda(name: str) -> None:
    check(name, "cuda", counted_by_torch)


# ---- greedy strategies in chunks -----------------------------------------------------------------------------------


class Farthest(lw.Greedy):
    """Farthest first, with a carry: how many rows were taken."""

    needs = Needs(pool=(E,))

    def start(self, pool: Shards, labelled: Shards, k: int) -> int:
        return 0

    def init(self, rows: Rows, carry: int) -> Tensor:
        return sq_norm(rows[E])

    def gain(self, rows: Rows, state: Tensor, carry: int) -> Tensor:
        return state * (1 + carry % 2)

    def update(self, rows: Rows, state: Tensor, carry: int, pick: Rows) -> Tensor:
        return torch.minimum(state, sq_dist(rows[E], pick[E])[:, 0])

    def advance(self, carry: int, pick: Rows) -> int:
        return carry + 1


class Sampling(Farthest):
    """k-means++."""

    sampled = True

    def gain(self, rows: Rows, state: Tensor, carry: int) -> Tensor:
        return state.log()


class Faulty(Farthest):
    """Its gains stop being numbers after some picks."""

    def gain(self, rows: Rows, state: Tensor, carry: int) -> Tensor:
        return torch.where((rows.ids == 7) & (carry == 5), torch.nan, state)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [Farthest(), Sampling()], ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("copies", [1, 30])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_greedy_picks_in_chunks_are_those_one_by_one(strategy: Any, copies: int, dtype: torch.dtype) -> None:
    """With copies, more rows are asked for than are distinct: ties, and draws among rows of no weight."""
    x = arrays("", dtype, copies=copies)["embedding"]
    ids = torch.arange(ROWS).flip(0) * 3
    k = 2 * greedy.CHUNK + 5
    expected = lw.select(strategy, k, embedding=x, ids=ids, seed=3)
    found, waits = counted_away(lambda: lw.select(strategy, k, embedding=x.to(AWAY), ids=ids.to(AWAY), seed=3))
    assert found.ids.tolist() == expected.ids.tolist()
    assert found.scores == pytest.approx(expected.scores, rel=1e-5 if dtype == torch.float32 else 1e-12)
    assert waits <= 25


def test_a_gain_that_is_no_number_is_named_after_its_chunk() -> None:
    x = arrays("")["embedding"]
    with pytest.raises(NumericsError, match="row id 7 the value nan") as here:
        lw.select(Faulty(), 20, embedding=x)
    with second_device(), pytest.raises(NumericsError) as there:
        lw.select(Faulty(), 20, embedding=x.to(AWAY))
    assert str(there.value) == str(here.value)


# ---- the highest rows by one read ----------------------------------------------------------------------------------


@pytest.mark.parametrize("slack", [0.0, 1e-3])
@pytest.mark.parametrize("levels", [1, 3, 40, 10**9])
def test_the_best_rows_of_a_device_are_those_of_the_cpu(slack: float, levels: int) -> None:
    """Few levels make more ties than are read with the asked rows; -inf marks rows that may not be taken."""
    chance = torch.Generator().manual_seed(levels)
    ids = torch.randperm(5000, generator=chance)[:ROWS] - 2500
    values = torch.randint(-levels, levels, (ROWS,), generator=chance).double()
    values[torch.rand(ROWS, generator=chance) < 0.2] = -torch.inf
    for k in (1,) if slack else (1, 5, topk.EXTRA, ROWS - 1, ROWS, ROWS + 9):
        for dtype in (torch.float64, torch.float32):
            here = Shards([Shard(ids, {})]).best(lambda shard: values.to(dtype), k, slack)  # noqa: B023
            with second_device():
                away = Shards([Shard(ids.to(AWAY), {})])
                there = away.best(lambda shard: values.to(AWAY, dtype), k, slack)  # noqa: B023
            assert there.ids.tolist() == here.ids.tolist()
            assert there.values.tolist() == here.values.tolist()
            assert there.values.dtype == here.values.dtype


def test_the_best_rows_of_a_device_travel() -> None:
    """From a worker with an accelerator to a driver without: two views of one memory cannot."""
    with second_device():
        ids, values = torch.arange(9).to(AWAY), torch.linspace(0, 1, 9, dtype=torch.float64).to(AWAY)
        for k in (2, 9):
            found = topk.top_rows(ids, Key(0).lots, values, k, 0.0)
            assert [one.tolist() for one in copied_to(found, torch.device("cpu"))] == [one.tolist() for one in found]


def test_rows_are_found_by_id_in_any_order() -> None:
    chance = torch.Generator().manual_seed(0)
    for ids in (torch.arange(50), torch.arange(50) * 2 - 40, torch.randperm(100, generator=chance)[:50]):
        asked = torch.randperm(120, generator=chance)[:60] - 10
        expected = [(place, ids.tolist().index(one)) for place, one in enumerate(asked.tolist()) if one in ids.tolist()]
        here, positions = Shard(ids, {}).find(asked)
        assert list(zip(here.tolist(), positions.tolist())) == expected
        with second_device() as mode:
            shard = Shard(ids.to(AWAY), {})
            shard.find(asked)
            before = mode.waits.total()
            here, positions = shard.find(asked)
            assert mode.waits.total() == before  # its ids were read once
            assert list(zip(here.tolist(), positions.tolist())) == expected


# ---- sums that repeat ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=cuda)])
def test_sums_by_place_repeat_to_the_bit(device: str) -> None:
    chance = torch.Generator().manual_seed(0)
    place, x = torch.randint(7, (20_000,), generator=chance), torch.randn(20_000, 3, generator=chance)
    once, again = (add_at(torch.zeros(7, 3, device=device), place.to(device), x.to(device)) for _ in range(2))
    assert torch.equal(once, again)
    expected = torch.stack([x[place == one].double().sum(0) for one in range(7)])
    torch.testing.assert_close(once.cpu().double(), expected, rtol=1e-4, atol=1e-3)
