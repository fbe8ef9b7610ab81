"""Steps of Frank-Wolfe on an accelerator, on a stand-in: the steps of the CPU, and the host hardly ever waits."""

import functools
import itertools
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

import labelwise as lw
from labelwise.rng import Key
from labelwise.selection import progress
from labelwise.selection.strategy import Size
from labelwise.shards import Shard, Shards
from labelwise.shards.checkpoint import journal
from labelwise.signals.spec import LogProbs
from labelwise.strategies import AcsFw
from labelwise.strategies.bayesian import frank_wolfe
from labelwise.strategies.bayesian import reference as slow
from labelwise.strategies.bayesian.kernels import torch as kernels
from labelwise.strategies.bayesian.kernels.torch import Row, Run, Start, Tuning
from labelwise.verify.problems import by_lot
from second_device import AWAY, Away, second_device
from tuned import AFTER_EVERY_ANSWER, tuned

cuda = pytest.mark.gpu
HUGE = 1 << 60  # an id that is no float64
KINDS = ("normal", "copies", "crowd", "near", "equal", "flat")


def draws_of(kind: str, rows: int = 400, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    log_probs = slow.random_log_probs(rng, rows, 12, 4)
    if kind == "copies":
        log_probs = log_probs[rng.integers(0, rows // 4, rows)]
    elif kind == "crowd":  # more copies of a row than a step tells apart
        log_probs = log_probs[rng.integers(0, 3, rows)]
        log_probs[::50] = slow.random_log_probs(rng, len(log_probs[::50]), 12, 4)
    elif kind == "near":  # rows that are told apart in float64 alone
        log_probs = log_probs[:1] + 1e-6 * log_probs
        log_probs -= np.log(np.exp(log_probs).sum(2, keepdims=True))
    elif kind == "equal":
        log_probs = np.repeat(log_probs[:1], rows, 0)
    elif kind == "flat":  # draws agree: vectors of nothing but rounding, and sigma is the root of 1e-6
        log_probs = np.repeat(log_probs[:, :1], 12, 1)
    return log_probs


def ids_of(rows: int) -> Tensor:
    """In no order, and too large for a float64 to tell apart."""
    return torch.from_numpy(np.random.default_rng(7).permutation(rows)) + HUGE


def pool_of(log_probs: np.ndarray, device: Any = "cpu", parts: int = 1) -> Shards:
    ids, column = ids_of(len(log_probs)), torch.from_numpy(log_probs)
    cuts = torch.arange(len(ids)).chunk(parts)
    return Shards([Shard(ids[cut].to(device), {LogProbs(): column[cut].to(device)}) for cut in cuts])


def select(
    log_probs: np.ndarray,
    k: int,
    device: Any = "cpu",
    parts: int = 1,
    tuning: dict[str, int] | None = None,
    **options: Any,
) -> lw.Selection:
    strategy = tuned(AcsFw(**options), **(tuning or {}))
    return strategy.select(pool_of(log_probs, device, parts), Shards([]), k, Key(1))


def same(got: lw.Selection, expected: lw.Selection, near: float = 1e-9) -> None:
    assert got.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(got.weights, expected.weights, rtol=near)
    np.testing.assert_allclose(got.scores, expected.scores, rtol=near, atol=near)
    names = ["distinct", "filled_by_score", "stopped"]
    if expected.notes["objective_share"] > 1e-28:  # else all that is left is rounding, and it may help or not
        names.append("steps")
    assert [got.notes[name] for name in names] == [expected.notes[name] for name in names]
    assert got.notes["objective"] == pytest.approx(expected.notes["objective"], rel=1e-6, abs=1e-9)


@pytest.fixture
def by_all(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each step that the host makes."""
    made: list[int] = []
    plain = kernels.DeviceSteps._step_by_all
    monkeypatch.setattr(kernels.DeviceSteps, "_step_by_all", lambda steps: (made.append(1), plain(steps))[1])
    return made


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[Run]:
    made: list[Run] = []

    def recording(*args: Any) -> Run:
        made.append(kernels.run_steps(*args))
        return made[-1]

    monkeypatch.setattr(frank_wolfe, "run_steps", recording)
    return made


# ---- the steps of the CPU ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("candidates", "chunk", "run"), [(128, 64, 1024), (8, 5, 7)])
def test_the_picks_are_those_of_the_cpu(
    kind: str, dtype: str, candidates: int, chunk: int, run: int, runs: list[Run]
) -> None:
    """However many steps there are between two looks, and however few rows a step scores in float64."""
    tuning = {"candidates": candidates, "chunk": chunk, "run": run}
    for seed, k in ((0, 30), (1, 5)):
        log_probs = draws_of(kind, seed=seed).astype(dtype)
        expected = select(log_probs, k)
        assert not runs
        with second_device():
            got = select(log_probs, k, device=AWAY, tuning=tuning)
        # Sums of the rows are rounded in blocks of another size, and rows that are near leave little else.
        same(got, expected, 1e-7 if kind == "near" else 1e-9)
        counted = [step for run_ in runs for step in run_.steps if step.gamma > kernels.MIN_GAMMA]
        assert len(counted) == got.notes["steps"]
        assert all(len(run_.steps) <= run for run_ in runs)
        runs.clear()


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 2, 40, 128, 129])
def test_few_rows_are_taken_to_the_last(rows: int) -> None:
    log_probs = draws_of("normal", rows)
    expected = select(log_probs, rows)
    with second_device():
        same(select(log_probs, rows, device=AWAY), expected)


@pytest.mark.parametrize("options", [{"entropy": 0.0}, {"projections": 5}, {"projections": 40}])
def test_other_vectors(options: dict[str, Any]) -> None:
    log_probs = draws_of("normal")
    expected = select(log_probs, 25, **options)
    with second_device():
        same(select(log_probs, 25, AWAY, **options), expected)


@pytest.mark.slow
def test_rows_in_several_shards_are_guessed_as_on_the_cpu(runs: list[Run]) -> None:
    log_probs = draws_of("copies")
    with second_device():
        same(select(log_probs, 30, device=AWAY, parts=2), select(log_probs, 30))
        assert not runs
        same(select(log_probs, 30, device=AWAY), select(log_probs, 30))
        assert runs


@pytest.mark.slow
def test_sketches_can_be_forced_on_an_accelerator(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    log_probs = draws_of("copies")
    monkeypatch.setenv("LABELWISE_BACKEND", "torch")
    with second_device():
        same(select(log_probs, 30, device=AWAY), select(log_probs, 30))
        got = lw.select("acs-fw", 30, log_probs=torch.from_numpy(log_probs).to(AWAY))
    assert got.notes["backend"] == "torch"
    assert not runs


def test_where_no_step_helps_or_too_many_do_the_loop_ends() -> None:
    with second_device():
        got = select(draws_of("equal"), 7, device=AWAY)
        assert got.notes["stopped"] == "no step helps any more"
        assert got.notes["filled_by_score"] == 6
        assert (got.ids == by_lot(np.arange(400) + HUGE)[:7]).all()
        got = select(draws_of("normal")[:, :2], 100, device=AWAY, tuning={"max_steps": 1})
        assert got.notes["stopped"] == "1 k steps"
        assert got.notes["steps"] == 100
        assert got.notes["distinct"] < 100


# ---- single runs ---------------------------------------------------------------------------------------------------


def shard_of(vectors_NJ: Tensor, sigma_N: Tensor, device: Any) -> Shard:
    shard = Shard(ids_of(len(vectors_NJ)).to(device), {})
    shard.state["vector"], shard.state["sigma"] = vectors_NJ.to(device), sigma_N.to(device)
    return shard


def single_steps(path: frank_wolfe.Path, shard: Shard, k: int, max_steps: int, slack: float) -> frank_wolfe.Path:
    """Step by step, all rows in float64."""
    vectors_NJ, sigma_N = shard.state["vector"].double(), shard.state["sigma"]
    while path.is_running(k, max_steps):
        score_N = (vectors_NJ * path.gap_J).sum(1) / sigma_N
        tied = (score_N >= score_N.max() - slack * score_N.max().abs()).nonzero()[:, 0]
        row = tied[shard.lots[tied].argmin()]
        path.step(Row(int(shard.ids[row]), float(score_N[row]), vectors_NJ[row], float(sigma_N[row])))
    return path


def path_at(sigma_N: Tensor, target_J: Tensor, gap_J: Tensor, selected: list[int]) -> frank_wolfe.Path:
    """A path at some gap, whatever the weights."""
    path = frank_wolfe.Path(target_J, float(sigma_N.sum()))
    path.gap_J, path._weight = gap_J.clone(), dict.fromkeys(selected, 1.0)
    return path


def run_once(path: frank_wolfe.Path, shard: Shard, k: int, max_steps: int, slack: float, tuning: Tuning) -> Run:
    start = Start(path.target_J, path.sigma, path.gap_J, [*path.weights()], k, max_steps)
    run = kernels.run_steps(start, slack, tuning, shard)
    for step in run.steps:
        path.record(step)
    path.gap_J = run.gap_J
    return run


class Problem(NamedTuple):
    vectors_NJ: Tensor
    sigma_N: Tensor
    target_J: Tensor
    gap_J: Tensor


def both(
    problem: Problem,
    k: int,
    selected: Sequence[int] = (),
    max_steps: int = 50,
    slack: float = 1e-12,
    tuning: Tuning | None = None,
) -> tuple[frank_wolfe.Path, Run]:
    """The path by the steps of an accelerator, which is that of single steps, and its run."""
    vectors_NJ, sigma_N, target_J, gap_J = problem
    expected = path_at(sigma_N, target_J, gap_J, [*selected])
    single_steps(expected, shard_of(vectors_NJ, sigma_N, "cpu"), k, max_steps, slack)
    got = path_at(sigma_N, target_J, gap_J, [*selected])
    with second_device():
        run = run_once(got, shard_of(vectors_NJ, sigma_N, AWAY), k, max_steps, slack, tuning or Tuning())
    assert got.sequence == expected.sequence
    assert got.stopped == expected.stopped
    assert got.weights() == pytest.approx(expected.weights(), rel=1e-9)
    assert got.score == pytest.approx(expected.score, rel=1e-9)
    assert torch.allclose(got.gap_J, expected.gap_J, rtol=1e-9, atol=1e-9)
    return got, run


def problem_of(rows: int = 300) -> Problem:
    chance = torch.Generator().manual_seed(3)
    vectors_NJ = torch.randn(rows, 6, generator=chance, dtype=torch.float64)
    gap_J = 100 * torch.randn(6, generator=chance, dtype=torch.float64)
    return Problem(vectors_NJ, vectors_NJ.norm(dim=1), vectors_NJ.sum(0), gap_J)


def test_rows_of_an_earlier_leg_do_not_count_twice() -> None:
    first, _ = both(problem_of(), 6)
    again, _ = both(problem_of(), 6, [*first.weights()][:4])
    assert again.sequence == first.sequence
    assert again.distinct == 6


def test_at_a_full_step_the_rows_before_count_nothing() -> None:
    """A target further away than any step leads, as rounding may put it when the gap is closed."""
    vectors_NJ, sigma_N, target_J, _ = problem_of()
    target_J = target_J * 2 * float(sigma_N.sum() / target_J.norm())
    problem = Problem(vectors_NJ, sigma_N, target_J, 2 * target_J)
    path, _ = both(problem, 4)
    coming = path.sequence[1:3]
    assert len({*path.sequence[:3]}) == 3
    again, run = both(problem, 4, [*coming, HUGE + 299])
    assert run.steps[0].gamma == 1
    assert again.sequence == path.sequence
    assert HUGE + 299 not in again.weights()


@pytest.mark.parametrize("max_steps", [1, 3, 8, 9])
def test_no_more_steps_are_made_than_asked_for(max_steps: int) -> None:
    path, run = both(problem_of(), 40, max_steps=max_steps)
    assert len(run.steps) == len(path.sequence) == max_steps


@pytest.mark.parametrize(("apart", "slack"), [(0.0, 0.0), (1e-4, 1e-3)])
def test_ties_are_broken_by_lot(apart: float, slack: float) -> None:
    """Copies, which are tied without slack, and rows that slack ties."""
    vectors_NJ, sigma_N, target_J, gap_J = problem_of(60)
    larger = 1 + apart * torch.arange(5.0, dtype=torch.float64).repeat_interleave(60)
    vectors_NJ = vectors_NJ.repeat(5, 1) * larger[:, None]
    path, _ = both(Problem(vectors_NJ, sigma_N.repeat(5), 5 * target_J, gap_J), 12, slack=slack)
    ids = ids_of(300)
    for row in path.sequence:
        copies = ids.view(5, 60)[:, (ids == row).nonzero()[0] % 60]
        assert row == copies[Key(0).lots(copies).argmin()]


def test_the_rows_outside_are_looked_at_where_rounding_hides_the_highest(by_all: list[int]) -> None:
    """In float32 all rows are the same to a product of lengths like these; in float64 they are not."""
    chance = torch.Generator().manual_seed(0)
    vectors_NJ = torch.ones(200, 6) + 1e-6 * torch.randn(200, 6, generator=chance)
    target_J = vectors_NJ.double().sum(0)
    both(Problem(vectors_NJ, vectors_NJ.double().norm(dim=1), target_J, target_J), 5, tuning=Tuning(candidates=4))
    assert by_all


def test_few_near_rows_do_not_ask_the_host(by_all: list[int]) -> None:
    both(problem_of(), 30)
    log_probs = draws_of("copies")
    with second_device():
        select(log_probs, 40, device=AWAY)
    assert not by_all


# ---- waiting, and graphs -------------------------------------------------------------------------------------------


def many_draws() -> np.ndarray:
    """Of so many that steps help to the end."""
    return slow.random_log_probs(np.random.default_rng(0), 2000, 100, 4)


def waits(k: int) -> int:
    with second_device() as mode:
        pool = pool_of(many_draws(), AWAY)
        mode.waits.clear()
        assert AcsFw().select(pool, Shards([]), k, Key(0)).notes["distinct"] == k
    return mode.waits.total()


@pytest.mark.slow
def test_the_host_waits_once_for_many_steps() -> None:
    few, many = waits(64), waits(192)
    assert 2 <= many - few <= 128 // Tuning().chunk + 2  # some steps come back to a row
    assert few <= 8


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each read of all rows."""
    made: list[int] = []
    scores = kernels.DeviceSteps._scores
    monkeypatch.setattr(kernels.DeviceSteps, "_scores", lambda steps: (made.append(1), scores(steps))[1])
    return made


def test_few_steps_are_made_in_vain_behind_the_last(sweeps: list[int]) -> None:
    with second_device():
        got = select(draws_of("normal"), 20, device=AWAY)
    assert got.notes["steps"] <= len(sweeps) < got.notes["steps"] + Tuning().min_chunk


@pytest.mark.slow
def test_where_many_steps_are_in_doubt_few_are_made_in_vain(by_all: list[int], sweeps: list[int]) -> None:
    with second_device():
        got = select(draws_of("crowd").astype("float32"), 10, device=AWAY, tuning={"candidates": 1})
    assert len(by_all) > 5
    assert len(sweeps) <= 3 * got.notes["steps"] + 2 * Tuning().chunk


def test_a_step_is_one_that_a_graph_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for nothing in it, all that it changes is where it was, and is put back when it was tried."""
    tried: list[int] = []

    def as_captured(step: Callable[[], None], state: list[Tensor]) -> Callable[[], None]:
        before_step, addresses, waited = [one.clone() for one in state], _addresses(step), mode.waits.total()
        step()
        step()
        assert mode.waits.total() == waited
        assert _addresses(step) == addresses
        for one, before in zip(state, before_step):
            one.copy_(before)
        tried.append(1)
        return step

    log_probs = draws_of("copies")
    expected = select(log_probs, 30)
    monkeypatch.setattr(kernels, "captured", as_captured)
    for run in (1024, 20):
        with second_device() as mode:
            same(select(log_probs, 30, device=AWAY, tuning={"run": run}), expected)
    assert len(tried) > 2


def _addresses(step: Any) -> dict[str, int]:
    with torch._C.DisableTorchFunction():
        return {name: one.data_ptr() for name, one in vars(step.__self__).items() if isinstance(one, Away)}


# ---- progress, checkpoints, memory ----------------------------------------------------------------------------------


def test_progress_is_reported_after_each_run(runs: list[Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "monotonic", itertools.count().__next__)  # a second passes each time
    reported: list[tuple[int, int]] = []
    with second_device():
        column = torch.from_numpy(draws_of("normal")).to(AWAY)
        lw.select(tuned(AcsFw(), run=8), 30, log_probs=column, progress=lambda *args: reported.append(args))
    assert len(reported) == len(runs) > 3
    assert reported[-1] == (30, 30)


class Killed(BaseException):
    """Stands for kill -9."""


@pytest.mark.slow
def test_a_killed_selection_resumes_with_the_next_run(
    tmp_path: Path, runs: list[Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal.FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    strategy = tuned(AcsFw(), run=8)
    log_probs = draws_of("copies")
    expected = lw.select(strategy, 30, log_probs=log_probs)
    with second_device():
        column = torch.from_numpy(log_probs).to(AWAY)
        whole = lw.select(strategy, 30, log_probs=column)
        in_all = len(runs)
        assert in_all > 3
        for kills in range(2, in_all + 1):
            folder = tmp_path / str(kills)
            runs.clear()
            select = functools.partial(lw.select, strategy, 30, log_probs=column, folder=folder)
            with monkeypatch.context() as patched:
                patched.setattr(frank_wolfe, "run_steps", _dying(kills, frank_wolfe.run_steps))
                with pytest.raises(Killed):
                    select()
            assert len(runs) == kills - 1
            same(select(), expected)
            assert len(runs) == in_all  # no run was made twice
    same(whole, expected)


def _dying(at: int, run_steps: Callable[..., Run]) -> Callable[..., Run]:
    made: list[int] = []

    def dying(*args: Any) -> Run:
        made.append(1)
        if len(made) == at:
            raise Killed
        return run_steps(*args)

    return dying


def test_what_is_widened_on_an_accelerator_is_declared() -> None:
    shapes = {LogProbs(): (200, 4)}
    here, there = (Size(10**6, 100, shapes, accelerator=device) for device in (False, True))
    with second_device():
        shard = shard_of(torch.ones(10**4, 200), torch.ones(10**4), AWAY)
        widened = kernels.block_size(shard) * 200
    assert AcsFw().memory(there) - AcsFw().memory(here) >= 3 * 8 * widened > 10**8
    here, there = (Size(10, 5, shapes, accelerator=device) for device in (False, True))
    assert AcsFw().memory(there) - AcsFw().memory(here) == 3 * 8 * 10 * 200  # not more than there is


# ---- CUDA ----------------------------------------------------------------------------------------------------------


@cuda
@pytest.mark.parametrize("candidates", [128, 8])
@pytest.mark.parametrize("kind", ["normal", "copies", "crowd", "equal"])
def test_cuda_takes_the_rows_of_the_cpu(kind: str, candidates: int) -> None:
    tuning = {"candidates": candidates, "run": 40}
    log_probs = draws_of(kind, 3000)
    same(select(log_probs, 60, device="cuda", tuning=tuning), select(log_probs, 60), 1e-6)


@cuda
def test_cuda_waits_once_for_many_steps() -> None:
    def waited(k: int) -> int:
        pool = pool_of(many_draws(), "cuda")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                AcsFw().select(pool, Shards([]), k, Key(0))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(one.message) for one in caught)

    waited(10)  # what is loaded once
    few, many = waited(64), waited(192)
    assert few > 0
    assert many - few <= 128 // Tuning().chunk + 2
