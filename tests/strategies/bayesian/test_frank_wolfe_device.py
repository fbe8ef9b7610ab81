"""Frank-Wolfe's loop of an accelerator, on a stand-in: the steps of the CPU, and the host hardly ever waits."""

import functools
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
from labelwise.selection.memory import Size
from labelwise.shards import Shard, Shards
from labelwise.shards.checkpoint import journal
from labelwise.signals.spec import LogProbs
from labelwise.strategies import AcsFw
from labelwise.strategies.bayesian import acs_fw, frank_wolfe, frank_wolfe_rows
from labelwise.strategies.bayesian import reference as slow
from labelwise.strategies.bayesian.frank_wolfe_rows import Row
from labelwise.strategies.bayesian.kernels import torch as frank_wolfe_cuda
from labelwise.strategies.bayesian.kernels.torch import Leg, Start
from second_device import AWAY, Away, second_device

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


def chosen(log_probs: np.ndarray, k: int, device: Any = "cpu", parts: int = 1, **how: Any) -> lw.Selection:
    return AcsFw(**how).select(pool_of(log_probs, device, parts), Shards([]), k, Key(1))


def same(got: lw.Selection, expected: lw.Selection, near: float = 1e-9) -> None:
    assert got.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(got.weights, expected.weights, rtol=near)
    np.testing.assert_allclose(got.scores, expected.scores, rtol=near, atol=near)
    told = ["distinct", "filled_by_score", "stopped"]
    if expected.notes["objective_share"] > 1e-28:  # else all that is left is rounding, and it may help or not
        told.append("steps")
    assert [got.notes[name] for name in told] == [expected.notes[name] for name in told]
    assert got.notes["objective"] == pytest.approx(expected.notes["objective"], rel=1e-6, abs=1e-9)


@pytest.fixture
def by_all(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each step that the host makes."""
    made: list[int] = []
    plain = frank_wolfe_cuda._Loop._step_by_all
    monkeypatch.setattr(frank_wolfe_cuda._Loop, "_step_by_all", lambda loop: (made.append(1), plain(loop))[1])
    return made


@pytest.fixture
def legs(monkeypatch: pytest.MonkeyPatch) -> list[Leg]:
    made: list[Leg] = []

    def noted(*given: Any) -> Leg:
        made.append(frank_wolfe_cuda.leg(*given))
        return made[-1]

    monkeypatch.setattr(frank_wolfe, "leg", noted)
    return made


# ---- the steps of the CPU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("near", "chunk", "most"), [(128, 64, 1024), (8, 5, 7)])
def test_the_picks_are_those_of_the_cpu(
    kind: str, dtype: str, near: int, chunk: int, most: int, legs: list[Leg], monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many steps there are between two looks, and however few rows a step tells apart."""
    for name, value in {"NEAR": near, "CHUNK": chunk, "LEG": most}.items():
        monkeypatch.setattr(frank_wolfe_cuda, name, value)
    for seed, k in ((0, 30), (1, 5)):
        log_probs = draws_of(kind, seed=seed).astype(dtype)
        expected = chosen(log_probs, k)
        assert not legs
        with second_device():
            got = chosen(log_probs, k, device=AWAY)
        # Sums of the rows are rounded in blocks of another size, and rows that are near leave little else.
        same(got, expected, 1e-7 if kind == "near" else 1e-9)
        counted = [step for leg in legs for step in leg.steps if step.gamma > frank_wolfe_rows.HALT]
        assert len(counted) == got.notes["steps"]
        assert all(len(leg.steps) <= most for leg in legs)
        legs.clear()


@pytest.mark.parametrize("rows", [1, 2, 40, 128, 129])
def test_few_rows_are_taken_to_the_last(rows: int) -> None:
    log_probs = draws_of("normal", rows)
    expected = chosen(log_probs, rows)
    with second_device():
        same(chosen(log_probs, rows, device=AWAY), expected)


@pytest.mark.parametrize("how", [{"entropy": 0.0}, {"projections": 5}, {"projections": 40}])
def test_other_vectors(how: dict[str, Any]) -> None:
    log_probs = draws_of("normal")
    expected = chosen(log_probs, 25, **how)
    with second_device():
        same(chosen(log_probs, 25, AWAY, **how), expected)


def test_rows_in_several_shards_are_guessed_as_on_the_cpu(legs: list[Leg]) -> None:
    log_probs = draws_of("copies")
    with second_device():
        same(chosen(log_probs, 30, device=AWAY, parts=2), chosen(log_probs, 30))
        assert not legs
        same(chosen(log_probs, 30, device=AWAY), chosen(log_probs, 30))
        assert legs


def test_where_no_step_helps_or_too_many_do_the_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    with second_device():
        got = chosen(draws_of("equal"), 7, device=AWAY)
        assert got.notes["stopped"] == "no step helps any more"
        assert got.notes["filled_by_score"] == 6
        assert (got.ids == np.arange(7) + HUGE).all()
        monkeypatch.setattr(acs_fw, "STEPS", 1)
        got = chosen(draws_of("normal")[:, :2], 100, device=AWAY)
        assert got.notes["stopped"] == "1 k steps"
        assert got.notes["steps"] == 100
        assert got.notes["distinct"] < 100


# ---- single legs ---------------------------------------------------------------------------------------------------


def shard_of(vectors_NJ: Tensor, sigma_N: Tensor, device: Any) -> Shard:
    shard = Shard(ids_of(len(vectors_NJ)).to(device), {})
    shard.state["vector"], shard.state["sigma"] = vectors_NJ.to(device), sigma_N.to(device)
    return shard


def literally(path: frank_wolfe.Path, shard: Shard, k: int, most: int, slack: float) -> frank_wolfe.Path:
    """Step by step, all rows in float64."""
    vectors_NJ, sigma_N = shard.state["vector"].double(), shard.state["sigma"]
    while path.goes_on(k, most):
        score_N = (vectors_NJ * path.gap_J).sum(1) / sigma_N
        tied = (score_N >= score_N.max() - slack * score_N.max().abs()).nonzero()[:, 0]
        at = tied[shard.ids[tied].argmin()]
        path.step(Row(int(shard.ids[at]), float(score_N[at]), vectors_NJ[at], float(sigma_N[at])))
    return path


def started(sigma_N: Tensor, target_J: Tensor, gap_J: Tensor, taken: list[int]) -> frank_wolfe.Path:
    """A path at some gap, whatever the weights."""
    path = frank_wolfe.Path(target_J, float(sigma_N.sum()))
    path.gap_J, path._weight = gap_J.clone(), dict.fromkeys(taken, 1.0)
    return path


def walked(path: frank_wolfe.Path, shard: Shard, k: int, most: int, slack: float) -> Leg:
    start = Start(path.target_J, path.sigma, path.gap_J, [*path.weights()], k, most)
    leg = frank_wolfe_cuda.leg(start, slack, shard)
    for step in leg.steps:
        path.note(step)
    path.gap_J = leg.gap_J
    return leg


class Problem(NamedTuple):
    vectors_NJ: Tensor
    sigma_N: Tensor
    target_J: Tensor
    gap_J: Tensor


def both(
    problem: Problem, k: int, taken: Sequence[int] = (), most: int = 50, slack: float = 1e-12
) -> tuple[frank_wolfe.Path, Leg]:
    """The path by the loop of an accelerator, which is that of single steps, and its leg."""
    vectors_NJ, sigma_N, target_J, gap_J = problem
    expected = started(sigma_N, target_J, gap_J, [*taken])
    literally(expected, shard_of(vectors_NJ, sigma_N, "cpu"), k, most, slack)
    got = started(sigma_N, target_J, gap_J, [*taken])
    with second_device():
        leg = walked(got, shard_of(vectors_NJ, sigma_N, AWAY), k, most, slack)
    assert got.sequence == expected.sequence
    assert got.stopped == expected.stopped
    assert got.weights() == pytest.approx(expected.weights(), rel=1e-9)
    assert got.score == pytest.approx(expected.score, rel=1e-9)
    assert torch.allclose(got.gap_J, expected.gap_J, rtol=1e-9, atol=1e-9)
    return got, leg


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
    again, leg = both(problem, 4, [*coming, HUGE + 299])
    assert leg.steps[0].gamma == 1
    assert again.sequence == path.sequence
    assert HUGE + 299 not in again.weights()


@pytest.mark.parametrize("most", [1, 3, 8, 9])
def test_no_more_steps_are_made_than_asked_for(most: int) -> None:
    path, leg = both(problem_of(), 40, most=most)
    assert len(leg.steps) == len(path.sequence) == most


@pytest.mark.parametrize(("apart", "slack"), [(0.0, 0.0), (1e-4, 1e-3)])
def test_ties_go_to_the_smaller_id(apart: float, slack: float) -> None:
    """Copies, which are tied without slack, and rows that slack ties."""
    vectors_NJ, sigma_N, target_J, gap_J = problem_of(60)
    larger = 1 + apart * torch.arange(5.0, dtype=torch.float64).repeat_interleave(60)
    vectors_NJ = vectors_NJ.repeat(5, 1) * larger[:, None]
    path, _ = both(Problem(vectors_NJ, sigma_N.repeat(5), 5 * target_J, gap_J), 12, slack=slack)
    ids = ids_of(300)
    for row in path.sequence:
        assert row == ids.view(5, 60)[:, (ids == row).nonzero()[0] % 60].min()


def test_the_rows_outside_are_looked_at_where_rounding_hides_the_highest(
    by_all: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float32 all rows are the same to a product of lengths like these; in float64 they are not."""
    monkeypatch.setattr(frank_wolfe_cuda, "NEAR", 4)
    chance = torch.Generator().manual_seed(0)
    vectors_NJ = torch.ones(200, 6) + 1e-6 * torch.randn(200, 6, generator=chance)
    target_J = vectors_NJ.double().sum(0)
    both(Problem(vectors_NJ, vectors_NJ.double().norm(dim=1), target_J, target_J), 5)
    assert by_all


def test_few_near_rows_do_not_ask_the_host(by_all: list[int]) -> None:
    both(problem_of(), 30)
    log_probs = draws_of("copies")
    with second_device():
        chosen(log_probs, 40, device=AWAY)
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


def test_the_host_waits_once_for_many_steps() -> None:
    few, many = waits(64), waits(192)
    assert 2 <= many - few <= 128 // frank_wolfe_cuda.CHUNK + 2  # some steps come back to a row
    assert few <= 8


@pytest.fixture
def sweeps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each read of all rows."""
    made: list[int] = []
    near = frank_wolfe_cuda._Loop._near
    monkeypatch.setattr(frank_wolfe_cuda._Loop, "_near", lambda loop: (made.append(1), near(loop))[1])
    return made


def test_few_steps_are_made_in_vain_behind_the_last(sweeps: list[int]) -> None:
    with second_device():
        got = chosen(draws_of("normal"), 20, device=AWAY)
    assert got.notes["steps"] <= len(sweeps) < got.notes["steps"] + frank_wolfe_cuda.LEAST


def test_where_many_steps_are_in_doubt_few_are_made_in_vain(
    by_all: list[int], sweeps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frank_wolfe_cuda, "NEAR", 1)
    with second_device():
        got = chosen(draws_of("crowd").astype("float32"), 10, device=AWAY)
    assert len(by_all) > 5
    assert len(sweeps) <= 3 * got.notes["steps"] + 2 * frank_wolfe_cuda.CHUNK


def test_a_step_is_one_that_a_graph_can_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host waits for nothing in it, all that it changes is where it was, and is put back when it was tried."""
    tried: list[int] = []

    def as_captured(step: Callable[[], None], state: list[Tensor]) -> Callable[[], None]:
        kept, places, waited = [one.clone() for one in state], _places(step), mode.waits.total()
        step()
        step()
        assert mode.waits.total() == waited
        assert _places(step) == places
        for one, before in zip(state, kept):
            one.copy_(before)
        tried.append(1)
        return step

    log_probs = draws_of("copies")
    expected = chosen(log_probs, 30)
    monkeypatch.setattr(frank_wolfe_cuda, "captured", as_captured)
    for most in (1024, 20):
        monkeypatch.setattr(frank_wolfe_cuda, "LEG", most)
        with second_device() as mode:
            same(chosen(log_probs, 30, device=AWAY), expected)
    assert len(tried) > 2


def _places(step: Any) -> dict[str, int]:
    with torch._C.DisableTorchFunction():
        return {name: one.data_ptr() for name, one in vars(step.__self__).items() if isinstance(one, Away)}


# ---- progress, journal, memory -------------------------------------------------------------------------------------


def test_progress_is_told_after_each_leg(legs: list[Leg], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frank_wolfe_cuda, "LEG", 8)
    monkeypatch.setattr("labelwise.selection.progress.MIN_INTERVAL", 0.0)
    heard: list[tuple[int, int]] = []
    with second_device():
        column = torch.from_numpy(draws_of("normal")).to(AWAY)
        lw.select("acs-fw", 30, log_probs=column, progress=lambda *said: heard.append(said))
    assert len(heard) == len(legs) > 3
    assert heard[-1] == (30, 30)


class Killed(BaseException):
    """Stands for kill -9."""


def test_killed_at_any_question_it_goes_on_with_the_next_leg(
    tmp_path: Path, legs: list[Leg], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "EVERY", 0.0)  # a state after every answer
    monkeypatch.setattr(journal, "SHARE", float("inf"))
    monkeypatch.setattr(frank_wolfe_cuda, "LEG", 8)
    load = torch.load  # the stand-in is rebuilt where it was, and torch knows no such place
    monkeypatch.setattr(torch, "load", lambda *given, map_location=None, **more: load(*given, **more))
    log_probs = draws_of("copies")
    expected = lw.select("acs-fw", 30, log_probs=log_probs)
    with second_device():
        column = torch.from_numpy(log_probs).to(AWAY)
        whole = lw.select("acs-fw", 30, log_probs=column)
        in_all = len(legs)
        assert in_all > 3
        for kills in range(2, in_all + 1):
            folder = tmp_path / str(kills)
            legs.clear()
            select = functools.partial(lw.select, "acs-fw", 30, log_probs=column, folder=folder)
            with monkeypatch.context() as patched:
                patched.setattr(frank_wolfe, "leg", _dying(kills, frank_wolfe.leg))
                with pytest.raises(Killed):
                    select()
            assert len(legs) == kills - 1
            same(select(), expected)
            assert len(legs) == in_all  # none was made twice
    same(whole, expected)


def _dying(at: int, leg: Callable[..., Leg]) -> Callable[..., Leg]:
    made: list[int] = []

    def dying(*given: Any) -> Leg:
        made.append(1)
        if len(made) == at:
            raise Killed
        return leg(*given)

    return dying


def test_what_is_widened_on_an_accelerator_is_declared() -> None:
    shapes = {LogProbs(): (200, 4)}
    here, there = (Size(10**6, 100, shapes, accelerator=device) for device in (False, True))
    with second_device():
        shard = shard_of(torch.ones(10**4, 200), torch.ones(10**4), AWAY)
        widened = frank_wolfe_rows.block(shard) * 200
    assert AcsFw().memory(there) - AcsFw().memory(here) >= 3 * 8 * widened > 10**8
    here, there = (Size(10, 5, shapes, accelerator=device) for device in (False, True))
    assert AcsFw().memory(there) - AcsFw().memory(here) == 3 * 8 * 10 * 200  # not more than there is


# ---- CUDA ----------------------------------------------------------------------------------------------------------


@cuda
@pytest.mark.parametrize("near", [128, 8])
@pytest.mark.parametrize("kind", ["normal", "copies", "crowd", "equal"])
def test_cuda_takes_the_rows_of_the_cpu(kind: str, near: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frank_wolfe_cuda, "NEAR", near)
    monkeypatch.setattr(frank_wolfe_cuda, "LEG", 40)
    log_probs = draws_of(kind, 3000)
    same(chosen(log_probs, 60, device="cuda"), chosen(log_probs, 60), 1e-6)


@cuda
def test_cuda_waits_once_for_many_steps() -> None:
    def waited(k: int) -> int:
        pool = pool_of(many_draws(), "cuda")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                AcsFw().select(pool, Shards([]), k, Key(0))
            finally:
                torch.cuda.set_sync_debug_mode("default")
        return sum("synchroniz" in str(one.message) for one in said)

    waited(10)  # what is loaded once
    few, many = waited(64), waited(192)
    assert few > 0
    assert many - few <= 128 // frank_wolfe_cuda.CHUNK + 2
