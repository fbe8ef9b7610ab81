"""BAIT on one accelerator: the picks of the CPU, steps that the host does not wait for, and what they stop at."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import labelwise as lw
from killed import Killed, count_runs
from labelwise.errors import NumericsError
from labelwise.rng import Key
from labelwise.selection.strategy import Size
from labelwise.shards import Shards
from labelwise.shards.graphs import captured
from labelwise.signals.spec import Embedding, Probs
from labelwise.strategies import Bait
from labelwise.strategies.bait import backward, bait, search
from labelwise.strategies.bait.design import Design, solve_cholesky
from labelwise.strategies.bait.kernels import torch as kernels
from labelwise.verify.problems import Problem, by_lot, shards_for
from second_device import AWAY, Away, Second, second_device
from tuned import tuned

SMALL = {"solved_numbers": 1}  # so that `min_solved` rows are solved at once


def problem(n: int, c: int, d: int, seed: int, concentration: float = 0.4) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {"probs": rng.dirichlet(np.full(c, concentration), n), "embedding": rng.normal(size=(n, d))}


def on_device(arrays: dict[str, np.ndarray] | None) -> Any:
    return arrays if arrays is None else {name: torch.from_numpy(array).to(AWAY) for name, array in arrays.items()}


def select_on_device(strategy: Bait, k: int, arrays: Any, labelled: Any = None, **options: Any) -> tuple[Any, Second]:
    with second_device() as mode:
        options |= {"ids": torch.from_numpy(options["ids"]).to(AWAY)} if "ids" in options else {}
        return lw.select(strategy, k, **on_device(arrays), labelled=on_device(labelled), **options), mode


def check_same(strategy: Bait, k: int, arrays: Any, labelled: Any = None, close: float = 1e-9, **options: Any) -> Any:
    """The same picks in the same order, the same gains and traces; what the device gave."""
    want = lw.select(strategy, k, **arrays, labelled=labelled, **options)
    got, mode = select_on_device(strategy, k, arrays, labelled, **options)
    assert list(got.ids) == list(want.ids)
    assert np.allclose(got.scores, want.scores, rtol=close, atol=1e-13)
    assert set(got.notes) == set(want.notes)
    assert (got.notes["backend"], want.notes["backend"]) == ("device", "torch")
    for name in ("trace_before", "trace_after"):
        assert got.notes[name] == pytest.approx(want.notes[name], rel=close)
    return got, mode


def record_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """The last argument of each call."""
    function, calls = getattr(module, name), []

    def counting(*args: Any) -> Any:
        calls.append(args[-1])
        return function(*args)

    monkeypatch.setattr(module, name, counting)
    return calls


def steps_made(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many rows were added (-1) and removed (1) without the host."""
    run, made = kernels.Steps.run, Counter()

    def running(self: Any, shard: Any) -> Any:
        found = run(self, shard)
        made[self.sign] += len(found.positions)
        return found

    monkeypatch.setattr(kernels.Steps, "run", running)
    return made


# ---- the same picks ------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("oversample", [1, 2, 3])
@pytest.mark.parametrize("c", [1, 2, 5, 12])
@pytest.mark.parametrize("seed", range(3))
def test_picks_are_those_of_the_cpu(seed: int, c: int, oversample: int, monkeypatch: pytest.MonkeyPatch):
    made = steps_made(monkeypatch)
    arrays, labelled_arrays = problem(60, max(2, c), 3 + seed, seed), problem(7, max(2, c), 3 + seed, seed + 50)
    if c == 1:
        arrays.pop("probs"), labelled_arrays.pop("probs")
    strategy = Bait(oversample=oversample, consistent=seed == 1, lambda_=(1.0, 0.1)[seed % 2], regress=c == 1)
    check_same(strategy, 15, arrays, labelled_arrays if seed else None)
    assert made[-1] > 0.5 * 15 * oversample
    assert made[1] == 15 * (oversample - 1)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (9, 9), (12, 7), (130, 60)])
def test_few_rows_and_all_of_them(n: int, k: int):
    check_same(Bait(), k, problem(n, 3, 4, n))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_of_copies_the_smallest_lots_are_taken_and_the_largest_go(seed: int):
    rng = np.random.default_rng(seed)
    arrays = {name: array[rng.integers(0, 12, 60)] for name, array in problem(12, 3, 3, seed).items()}
    ids = rng.permutation(60) * 3 - 50
    check_same(Bait(oversample=1 + seed % 2), 20, arrays, ids=ids)


def test_rows_that_only_rounding_tells_apart_are_copies():
    arrays = {name: np.concatenate([array] * 2) for name, array in problem(20, 3, 3, 1).items()}
    arrays["embedding"][20:] *= 1 + 1e-13  # the gain is higher, by less than what sums are good for
    got, _ = check_same(Bait(oversample=1), 10, arrays)
    assert min(got.ids) < 20


@pytest.mark.slow
def test_where_all_gains_are_zero_rows_are_selected_by_lot():
    """Every row may be the best: all have to be solved, however few are solved at once."""
    strategy = tuned(Bait(), min_solved=16, **SMALL)
    arrays = problem(70, 3, 3, 0)
    sure = {**arrays, "probs": np.tile([[1.0, 0.0, 0.0]], (70, 1))}
    first = sorted(by_lot(np.arange(70))[:30])
    assert sorted(select_on_device(strategy, 30, sure)[0].ids) == first
    arrays["embedding"] *= 0
    assert sorted(select_on_device(strategy, 30, arrays)[0].ids) == first


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_pruned_rows_return_to_the_cache_in_time(seed: int, monkeypatch: pytest.MonkeyPatch):
    strategy = tuned(
        Bait(consistent=bool(seed % 2)),
        extend_share=1 + 3 * (seed % 4 == 0),
        refresh_period=(500, 3)[seed // 3],
        prune_period=2 + seed % 3,
        lookahead=1 + seed % 2,
    )
    extended, made = record_calls(monkeypatch, kernels, "extend_cache"), steps_made(monkeypatch)
    arrays = {name: array[np.arange(60) % 55] for name, array in problem(55, 3, 3, seed, concentration=0.3).items()}
    check_same(strategy, 12, arrays)
    assert any(isinstance(shard.ids, Away) for shard in extended)
    assert made[-1] > 0  # and not all by the host


def test_a_design_that_lost_digits_is_refreshed(monkeypatch: pytest.MonkeyPatch):
    """Steps stop where gains have fallen far, though the next row is certain to be the best."""
    arrays = problem(40, 2, 2, 5, concentration=1.0)
    arrays["embedding"] *= 20
    calls = record_calls(monkeypatch, Design, "refresh")
    want = lw.select(Bait(lambda_=1e-4, oversample=1), 10, **arrays)
    before = len(calls)
    got, _ = select_on_device(Bait(lambda_=1e-4, oversample=1), 10, arrays)
    assert list(got.ids) == list(want.ids)
    assert len(calls) == 2 * before > 0


@pytest.mark.slow
def test_projected_and_merged_and_drawn():
    arrays = problem(60, 14, 30, 0)
    assert "projection" in check_same(Bait(widest=60), 6, arrays, seed=3)[0].notes
    assert "classes" in check_same(Bait(classes=5), 6, arrays)[0].notes
    assert "candidates" in check_same(Bait(candidates=20), 6, arrays, seed=4)[0].notes
    # A step cannot move a projection to the device: projected embeddings have to be cached there.
    assert kernels.Tuning().narrow >= bait.MAX_PROJECTION


def test_embeddings_that_are_not_cached_with_p_and_q():
    check_same(tuned(Bait(), narrow=4), 12, problem(60, 3, 6, 0))


def test_what_float64_cannot_hold_is_refused_in_words():
    arrays = problem(24, 3, 2, 1, concentration=0.1)
    arrays["embedding"][::2] *= 1e9
    with pytest.raises(NumericsError, match="larger lambda_ or scale embeddings"):
        select_on_device(Bait(lambda_=1e-6), 7, arrays)


@pytest.mark.slow
def test_blocks_of_few_rows():
    """Rows are updated and solved in many blocks, the last one partial."""
    strategy, arrays = tuned(Bait(), min_solved=7, **SMALL), problem(150, 3, 3, 2)
    want = lw.select(strategy, 30, **arrays)
    with second_device():
        _, pool, labelled = shards_for(strategy, Problem(arrays, np.arange(150), 30, device=AWAY))
        got = strategy.select(pool.in_blocks(1), labelled, 30, Key(0))
    assert list(got.ids) == list(want.ids)
    assert np.allclose(got.scores, want.scores, rtol=1e-9, atol=1e-13)


# ---- what a step stops at ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("concentration", [0.3, 2.0])
def test_steps_solve_more_rows_where_more_may_be_the_best(concentration: float, monkeypatch: pytest.MonkeyPatch):
    solved: list[int] = []
    steps = kernels.Steps

    def recording(tuning: Any, design: Any, rows: Any, sign: int, limits: Any) -> Any:
        solved.append(sign * limits.solved)
        return steps(tuning, design, rows, sign, limits)

    monkeypatch.setattr(kernels, "Steps", recording)
    monkeypatch.setattr(backward, "Steps", recording)
    added = record_calls(monkeypatch, kernels, "gain")
    removed = record_calls(monkeypatch, backward.Removal, "_remove_best")
    arrays = {name: array[np.arange(81) // 3] for name, array in problem(27, 6, 4, 3, concentration).items()}
    # Of three copies each may be removed first.
    check_same(tuned(Bait(), min_solved=2, **SMALL), 25, arrays)
    assert solved[0] == -2
    assert min(solved) < -2
    assert max(solved) > 2
    assert not any(isinstance(shard.ids, Away) for shard in added)  # no step was left to the host
    assert not any(isinstance(one._state["P"], Away) for one in removed)


@pytest.mark.slow
def test_no_step_is_made_where_rows_that_are_not_cached_may_gain_more(monkeypatch: pytest.MonkeyPatch):
    arrays, stopped = problem(80, 3, 4, 0), []
    add_rows = kernels.add_rows

    def adding(problem: Any, limits: Any, design: Any, shard: Any) -> Any:
        none = add_rows(problem, limits._replace(rest_bound=1e9), design, shard)
        stopped.append(len(none[0]))
        return add_rows(problem, limits, design, shard)

    monkeypatch.setattr(kernels, "add_rows", adding)
    check_same(Bait(), 20, arrays)
    assert stopped == [0] * len(stopped)
    assert len(stopped) > 0


@pytest.mark.slow
def test_an_inactive_step_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    """It runs inactive before it is captured, and after the step that stopped."""
    init, seen = kernels.Steps.__init__, Counter()

    def made(self: Any, tuning: Any, design: Any, rows: Any, sign: int, limits: Any) -> None:
        init(self, tuning, design, rows, sign, limits)
        state = [*rows[:5], *design.tables.values(), self.bound_N, self.step, self.open_rows, self.highest_gain]
        state = [one for one in state if isinstance(one, torch.Tensor)]
        before = [(one.clone(), one.data_ptr()) for one in state]
        self._step()
        for one, (values, address) in zip(state, before):
            assert torch.equal(one, values)
            assert one.data_ptr() == address
        seen[sign] += 1

    monkeypatch.setattr(kernels.Steps, "__init__", made)
    check_same(Bait(), 20, problem(80, 3, 4, 0))
    assert seen[-1] > 0
    assert seen[1] > 0


@pytest.mark.parametrize("place", ["in a row", "in the design"])
@pytest.mark.parametrize("sign", [-1, 1])
def test_a_step_that_is_not_positive_definite_is_left_to_the_host(
    sign: int, place: str, monkeypatch: pytest.MonkeyPatch
):
    run, change, done = kernels.Steps.run, Design.low_rank_change, []

    def running(self: Any, shard: Any) -> Any:
        if self.sign != sign:
            return run(self, shard)
        if place == "in a row":
            self.rows.p_Nrr[1] = sign * 3 * torch.eye(2, dtype=torch.float64).to(AWAY)
        else:
            monkeypatch.setattr(
                Design, "low_rank_change", lambda *args: (*(found := change(*args))[:2], found[2] & False)
            )
        done.append(len(run(self, shard).positions))
        raise ZeroDivisionError

    monkeypatch.setattr(kernels.Steps, "run", running)
    with pytest.raises(ZeroDivisionError):
        select_on_device(Bait(), 10, problem(40, 3, 4, 0))
    assert done == [0]


@pytest.mark.parametrize("rank", [1, 2, 7])
def test_elimination_is_the_cholesky_factor(rank: int):
    gen = torch.Generator().manual_seed(rank)
    a = torch.randn(20, rank, rank, generator=gen, dtype=torch.float64)
    a = a @ a.transpose(1, 2) + 0.1 * torch.eye(rank, dtype=torch.float64)
    a[3] -= 50 * torch.eye(rank, dtype=torch.float64)
    b = torch.randn(20, rank, 4, generator=gen, dtype=torch.float64)
    want, is_definite = solve_cholesky(a, b)
    with second_device():
        got, on_device_definite = (one.to("cpu") for one in solve_cholesky(a.to(AWAY), b.to(AWAY)))
    assert torch.equal(on_device_definite, is_definite)
    assert is_definite.tolist() == [row != 3 for row in range(20)]
    assert torch.allclose(got[is_definite], want[is_definite], rtol=1e-9)


# ---- the host, the memory and the journal --------------------------------------------------------------------------


@pytest.mark.slow
def test_the_host_does_not_wait_for_picks():
    strategy, arrays = Bait(), problem(600, 3, 6, 0, concentration=0.3)
    few, many = (select_on_device(strategy, k, arrays)[1].waits.total() for k in (25, 125))
    assert (many - few) / 100 < 0.5


@pytest.mark.slow
def test_no_step_waits_and_the_design_stays(monkeypatch: pytest.MonkeyPatch):
    step, waits = kernels.Steps._step, Counter()
    with second_device() as mode:

        def counting(self: Any) -> None:
            before = mode.waits.total()
            step(self)
            waits[self.sign] += mode.waits.total() - before

        monkeypatch.setattr(kernels.Steps, "_step", counting)
        arrays = on_device(problem(90, 4, 5, 0))
        mode.crossed.clear()
        lw.select(Bait(), 30, **arrays)
    assert set(waits) == {-1, 1}
    assert waits.total() == 0
    assert mode.crossed[20 * 20] == 1  # F, which is summed over the shards of any pool


def test_no_state_is_left_in_the_shard(monkeypatch: pytest.MonkeyPatch):
    seen = record_calls(monkeypatch, search, "_clear")
    select_on_device(Bait(), 10, problem(60, 3, 4, 0))
    (shard,) = seen
    assert set(shard.state) <= {"by_id"}

    def fails(*args: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(backward, "remove", fails)
    with pytest.raises(ZeroDivisionError):
        select_on_device(Bait(), 10, problem(60, 3, 4, 0))
    assert set(seen[-1].state) <= {"by_id"}


def test_with_several_shards_of_an_accelerator_the_design_is_in_this_process(monkeypatch: pytest.MonkeyPatch):
    made = steps_made(monkeypatch)
    arrays = problem(60, 3, 4, 0)
    want = lw.select(Bait(), 10, **arrays)
    original = Shards.__init__

    def halved(self: Any, shards: Any, *about: Any) -> None:
        found = list(shards)
        if len(found) == 1 and len(found[0]) == 60:
            (whole,) = found
            parts = (slice(0, 25), slice(25, 60))
            found = [type(whole)(whole.ids[p], {s: one[p] for s, one in whole.columns.items()}) for p in parts]
        original(self, found, *about)

    monkeypatch.setattr(Shards, "__init__", halved)
    got, _ = select_on_device(Bait(), 10, arrays)
    assert list(got.ids) == list(want.ids)
    assert not made


def test_the_host_search_can_be_forced_on_an_accelerator(monkeypatch: pytest.MonkeyPatch):
    arrays = problem(60, 3, 4, 0)
    want = lw.select(Bait(), 10, **arrays)
    monkeypatch.setenv("LABELWISE_BACKEND", "torch")
    made = steps_made(monkeypatch)
    got, _ = select_on_device(Bait(), 10, arrays)
    assert list(got.ids) == list(want.ids)
    assert got.notes["backend"] == "torch"
    assert not made


def test_memory_counts_what_steps_allocate():
    columns = {Probs(): torch.zeros(1, 10), Embedding(): torch.zeros(1, 16)}
    here = Size.of(20_000, 20, columns)
    with second_device():
        away = Size.of(20_000, 20, {signal: one.to(AWAY) for signal, one in columns.items()})
    rows = kernels.Tuning().solved(9)
    more = Bait().memory(away) - Bait().memory(here)
    # The rows that are solved at once: P, Q, I - P, both right sides, the work and the answer.
    assert more >= 8 * 9 * 9 * rows * (2 + 1 + 2 + 3 + 2) + 4 * 8 * 20_000


@pytest.mark.slow
@pytest.mark.parametrize("at", [12, 18, 22, 26, 30])
def test_a_selection_that_was_killed_goes_on(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    strategy, arrays = tuned(Bait(), prune_period=5), problem(80, 3, 4, 0)
    want = lw.select(strategy, 15, **arrays)
    calls = count_runs(monkeypatch)
    select_on_device(strategy, 15, arrays, folder=tmp_path / "whole")
    whole = calls[0]
    calls[:] = 0, 2 * at
    assert whole > 62
    with pytest.raises(Killed):
        select_on_device(strategy, 15, arrays, folder=tmp_path / "journal")
    calls[:] = 0, 0
    got, _ = select_on_device(strategy, 15, arrays, folder=tmp_path / "journal")
    assert list(got.ids) == list(want.ids)
    assert calls[0] <= whole - 2 * at + 8  # no answer is computed twice


def test_what_is_captured_is_the_step_where_there_are_no_graphs():
    with second_device():
        state = torch.zeros(1).to(AWAY)

        def step() -> None:
            state.add_(1)

        assert captured(step, [state]) is step


@pytest.mark.gpu
@pytest.mark.parametrize(("n", "c", "d"), [(3000, 2, 8), (3000, 5, 16), (1500, 12, 6), (1500, 3, 140)])
def test_picks_on_cuda_are_those_of_the_cpu(n: int, c: int, d: int, monkeypatch: pytest.MonkeyPatch):
    """With steps that are replayed, more than once in the same memory, and graphs that are gone afterwards."""
    made = steps_made(monkeypatch)
    arrays = problem(n, c, d, 0)
    want = lw.select(Bait(), 120, **arrays)
    for _ in range(2):
        got = lw.select(Bait(), 120, **{name: torch.from_numpy(array).cuda() for name, array in arrays.items()})
        assert list(got.ids) == list(want.ids)
        assert not kernels._graphs
    assert made[-1] > 240
    assert made[1] == 240
