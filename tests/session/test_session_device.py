"""A session chooses where its model computes: on an accelerator if the signals fit, and the picks are the CPU's.

`tests/second_device.py` stands in for an accelerator where there is none: tensors of two devices that may not meet.
Tests marked `cuda` run on a real one: `pytest -q tests/session/test_session_device.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import pickle
import time
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import labelwise as lw
from labelwise.errors import MemoryLimitError
from labelwise.rng import Key
from labelwise.selection import Scored, Strategy, memory
from labelwise.selection.memory import COPIES, PlacementPolicy, choose_storage, needed_bytes
from labelwise.selection.run import RunOptions
from labelwise.selection.strategy import Size
from labelwise.session import read_pool
from labelwise.shards import Shard, Shards, devices, placement
from labelwise.shards.checkpoint import journal
from labelwise.shards.devices import CPU, copied_to, free_bytes, wait_for
from labelwise.shards.factories import ReadPart
from labelwise.shards.placement import RESERVED_PART, Placement
from labelwise.shards.ray import Ray
from labelwise.shards.shard import CPU_BLOCK_BYTES, DEVICE_BLOCK_BYTES
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import Labelled, read
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Basis, Embedding, GradSketch, LabelProbs, LogProbs, Needs, Probs, stored
from labelwise.strategies import AcsFw, Badge, Bss, Sabal
from labelwise.train import labelled_columns
from second_device import AWAY, Away, Mixed, Second, on_host, second_device
from tuned import AFTER_EVERY_ANSWER

cuda = pytest.mark.gpu

RNG = np.random.default_rng(0)
X = RNG.normal(size=(240, 5))
Y = (X[:, 0] + 0.3 * X[:, 1] > 0).astype(int) + (X[:, 2] > 1)
TOLD = 60
NAMES = lw.strategies.names()
# Nothing of theirs was ever on an accelerator.
WITHOUT_A_MODEL = ("random", "typiclust", "probcover", "bss random features", "bss tangent")
MORE: dict[str, Strategy] = {
    "sabal-iht": Sabal("iht", iterations=12),  # the stand-in is slow
    "sabal bayesian": Sabal(form="bayesian", draws=8),
    "sabal iht bayesian": Sabal("iht", form="bayesian", draws=8, iterations=10),
    "sabal unit weights": Sabal(unit_weights=True, beta=1.0),
    "sabal second order": Sabal(second_order=True, sigma_scale="batch"),
    "acs-fw projected": AcsFw(projections=6),
    "bss warm": Bss(warm=True),
    "bss random features": Bss(basis=Basis("random_features", width=20)),
    "bss tangent": Bss(basis=Basis("tangent", width=20, hidden=8)),
}
EVERY = {**{name: lw.strategies.get(name) for name in NAMES}, **MORE}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Linear(16, 3)).double()


def session(
    strategy: Any, model: Callable[[], nn.Module] = net, state: Any = None, x: np.ndarray = X, **more: Any
) -> lw.Session:
    """A session whose model has seen some labels, with a temperature that is not 1; in `state` where that is given."""
    recipe = EVERY.get(strategy, strategy) if isinstance(strategy, str) and strategy in MORE else strategy
    learner = lw.TorchLearner(model, epochs=6, valid=(X[:40], Y[:40]))
    asked = stored(lw.strategies.get(recipe).needs.pool)
    drawn = any(isinstance(signal, LogProbs) for signal in asked)
    one = lw.Session(x, lw.laplace(learner, draws=8) if drawn else learner, recipe, classes=3, seed=1, **more)
    if state is None:
        one.tell(np.arange(TOLD), Y[:TOLD])
    else:
        one.restore(state)
    one.fit()
    return one


@functools.cache
def trained(name: str) -> lw.Session:
    """The session of a strategy; asked again, it answers the same."""
    return session(name)


def rows_of(one: lw.Session, k: int = 12) -> tuple[Shards, Shards, Placement]:
    """Free and labelled rows as `ask` reads them, and where they are."""
    with one.rows(one.recipe.strategy, k) as (pool, labelled, home):
        return pool, labelled, home


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> Iterator[Second]:
    """Inside, models answer from a second device with much free memory."""
    here = ModelReader.read
    monkeypatch.setattr(
        ModelReader, "read", lambda *given: {signal: one.to(AWAY) for signal, one in here(*given).items()}
    )
    monkeypatch.setattr(memory, "free_bytes", lambda device: 16 << 30 if device == AWAY else None)
    with second_device() as mode:
        yield mode


def same(got: lw.Selection, expected: lw.Selection, near: float = 1e-9) -> None:
    assert got.ids.tolist() == expected.ids.tolist()
    np.testing.assert_allclose(got.weights, expected.weights, rtol=near, atol=near)
    np.testing.assert_allclose(got.scores, expected.scores, rtol=near, atol=near)


# ---- the stand-in itself -------------------------------------------------------------------------------------------


def test_the_second_device_refuses_what_an_accelerator_refuses() -> None:
    with second_device() as mode:
        here, there = torch.arange(4.0), torch.arange(4.0, device=AWAY)
        assert (there.device, here.device, there.to("cpu").device) == (AWAY, CPU, CPU)
        mixed: list[Callable[[], Any]] = [
            lambda: here + there,
            lambda: here @ there,
            lambda: torch.cat([here, there]),
            lambda: torch.stack([here[0], there[0]]),
            lambda: torch.isin(there, here),
            lambda: torch.searchsorted(there, here),
            lambda: torch.where(there > 1, there, here),
            lambda: here[there.long()],
            lambda: here.__setitem__(there.long(), here),
            lambda: there.__setitem__(here.long(), here),
            lambda: there.add_(here),
            lambda: there.numpy(),
            lambda: np.asarray(there),
        ]
        for one in mixed:
            with pytest.raises(Mixed):
                one()
        assert isinstance(there + here[1], Away)  # a number of the CPU is fine
        assert isinstance(there[here.long()], Away)
        assert isinstance(there.topk(2).values, Away)
        assert all(isinstance(one, Away) for one in there)
        assert (there + 1).tolist() == [1, 2, 3, 4]
        before = sum(mode.crossed.values())
        there[:2] = here[:2]
        assert sum(mode.crossed.values()) == before
        here[:2] = there[:2]
        there.cpu()
        assert sum(mode.crossed.values()) == before + 2
        assert isinstance(pickle.loads(pickle.dumps(there)), Away)
        assert not isinstance(on_host([there])[0], Away)


class ByNumpy(Scored):
    """Assumes the CPU."""

    needs = Needs(pool=(Probs(),))

    def score(self, rows: Rows, key: Key) -> Tensor:
        return torch.from_numpy(rows.tensor(Probs()).numpy().max(1))


class ByTable(Scored):
    """Forgets to bring its table to the rows."""

    needs = Needs(pool=(Probs(),))

    def score(self, rows: Rows, key: Key) -> Tensor:
        return rows.tensor(Probs()) @ torch.arange(3, dtype=torch.float64)


@pytest.mark.parametrize("careless", [ByNumpy(), ByTable()])
def test_a_strategy_that_assumes_the_cpu_is_caught(careless: Strategy, away: Second) -> None:
    with pytest.raises(Mixed):
        session(careless).ask(5)


# ---- every strategy, on the stand-in -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def expected() -> dict[str, lw.Selection]:
    return {name: trained(name).ask(12) for name in EVERY}


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_strategy_chooses_where_the_model_is(name: str, expected: Any, away: Second) -> None:
    got = trained(name).ask(12)
    same(got, expected[name])
    place = got.notes.pop("place", None)
    assert place == (None if name in WITHOUT_A_MODEL else f"selected on {AWAY}")
    assert set(got.notes) == set(expected[name].notes)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_strategy_takes_arrays_of_another_device(name: str) -> None:
    """Those that ask no model too."""
    from labelwise.verify.problems import problem_for, with_labelled

    strategy = EVERY[name]
    problem = problem_for(strategy, 3)
    problem = with_labelled(strategy, problem) if strategy.needs.labelled else problem
    behind = problem.labelled or {}
    here = lw.select(strategy, 12, **problem.arrays, ids=problem.ids, labelled=problem.labelled)
    with second_device():
        arrays, past = (
            {name: torch.from_numpy(np.ascontiguousarray(one)).to(AWAY) for name, one in given.items()}
            for given in (problem.arrays, behind)
        )
        ids = torch.from_numpy(problem.ids).to(AWAY)
        there = lw.select(strategy, 12, **arrays, ids=ids, labelled=past or None)
    same(there, here)


class Elsewhere:
    """A part in another process that has the device: its functions come from the CPU, and its answers go there."""

    def __init__(self, shard: Shard):
        self.shard = shard

    def __len__(self) -> int:
        return len(self.shard)

    def begin(self, fn: Callable[[Shard], Any]) -> Callable[[], Any]:
        return lambda: on_host(fn(self.shard))


def _elsewhere(shards: Shards, parts: int) -> Shards:
    (whole,) = shards.map(lambda shard: shard)
    cuts = [slice(len(whole) * i // parts, len(whole) * (i + 1) // parts) for i in range(parts)]
    made = [
        Shard(whole.ids[cut].to(AWAY), {signal: one[cut].to(AWAY) for signal, one in whole.columns.items()})
        for cut in cuts
    ]
    return Shards([Elsewhere(shard) for shard in made])


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_every_strategy_may_have_its_rows_on_the_accelerators_of_other_processes(name: str, expected: Any) -> None:
    """Who asks is on the CPU, as the driver of a cluster is."""
    one = trained(name)
    strategy = one.recipe.strategy
    pool, labelled, _ = rows_of(one)
    key = one.key.fold("select", TOLD)
    with second_device():
        got = strategy.select(_elsewhere(pool, 2).with_ties(key), labelled.with_ties(key), 12, key)
    same(got, expected[name])


@pytest.mark.parametrize(
    "name", ["sabal-greedy", "sabal-iht", "sabal unit weights", "sabal bayesian", "acs-fw", "bait"]
)
def test_the_loops_of_an_accelerator_run_in_another_process(name: str, expected: Any) -> None:
    """All rows in one shard, and the problem comes from the CPU."""
    one = trained(name)
    pool, labelled, _ = rows_of(one)
    key = one.key.fold("select", TOLD)
    with second_device():
        got = one.recipe.strategy.select(_elsewhere(pool, 1).with_ties(key), labelled.with_ties(key), 12, key)
    same(got, expected[name], 1e-7)


# ---- reading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["badge", "sabal-greedy", "bald", "dynamical", "bait"])
def test_signals_are_written_where_they_were_computed(name: str, away: Second) -> None:
    """Nothing goes through the host while the pool is read, whatever the number of batches."""
    one = session(name, batch=32, state=trained(name).state())
    away.crossed.clear()
    pool, labelled, placed = rows_of(one)
    assert not away.crossed
    assert placed.device == AWAY
    assert pool.map(lambda shard: len(shard.columns)) > [0]
    for shard in pool.map(lambda shard: shard) + labelled.map(lambda shard: shard):
        assert shard.device == AWAY
        assert all(isinstance(column, Away) for column in shard.columns.values())


def test_an_ensemble_and_its_features_meet_on_one_device(away: Second) -> None:
    """Members, and numbers of the pool beside those of a model, are brought together."""
    model = lw.ensemble(lw.TorchLearner(net, epochs=3), members=3)
    one = lw.Session(X, model, "bald", classes=3)
    one.tell(np.arange(30), Y[:30])
    assert one.ask(5).notes["place"] == f"selected on {AWAY}"

    class Both(Scored):
        needs = Needs(pool=(Probs(), Basis("polynomial")))

        def score(self, rows: Rows, key: Key) -> Tensor:
            return rows.tensor(Probs()).amax(1) + rows.tensor(Basis("polynomial")).sum(1)

    assert session(Both()).ask(5).notes["place"] == f"selected on {AWAY}"


def test_other_readers_of_a_model_are_given_columns_of_the_cpu(away: Second) -> None:
    reader = session("badge").fit().reader
    pool = lw.Pool.of(X)
    (here,) = read(reader, pool, pool.ids, (Probs(),), len(X))
    (there,) = read(reader, pool, pool.ids, (Probs(),), len(X), device=None)
    assert (here.tensor(Probs()).device, there.tensor(Probs()).device) == (CPU, AWAY)


def test_predictions_of_a_model_on_a_device_are_those_of_the_cpu(away: Second) -> None:
    one = trained("margin")
    with torch._C.DisableTorchFunction():
        expected = one.model(torch.from_numpy(X)).softmax(1).detach().numpy()
    np.testing.assert_allclose(one.predict_proba(X), expected, atol=1e-9)
    assert (one.predict() == expected.argmax(1)).all()
    assert one.score(X, Y) == (expected.argmax(1) == Y).mean()


def test_a_clock_is_read_when_the_device_is_done(away: Second, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work on an accelerator goes on after the call that asked for it: each part is waited for before its clock."""
    one = session("kcenter", state=trained("kcenter").state())
    told: list[Any] = []
    for module in (read_pool, labelled_columns, placement):
        monkeypatch.setattr(module, "wait_for", told.append)
    clock = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: (told.append("clock"), clock())[1])
    one.ask(12)
    assert told == ["clock", AWAY, AWAY, "clock", "clock", AWAY, "clock"]  # pool and labelled rows read; then picks


def test_rounds_and_a_regression_choose_there_too(away: Second) -> None:
    learner = lw.TorchLearner(net, epochs=2)
    records = list(lw.rounds(X, Y, learner, "margin", 5, 2, classes=3, seed=0))
    assert [one.notes["selection"].get("place") for one in records] == [f"selected on {AWAY}"] * 2 + [None]
    number = lw.TorchLearner(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1)), epochs=2, loss="mse")
    one = lw.Session(X, number, "bait", seed=0)
    one.tell(np.arange(20), X[:20, 0])
    assert one.ask(5).notes["place"] == f"selected on {AWAY}"


# ---- the rule ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "limit", "place"),
    [
        (None, None, "memory"),  # there is no accelerator
        (1000, None, "accelerator"),  # 750 of 1000 may be used, and 600 + 100 are asked for
        (934, None, "accelerator"),
        (932, None, "memory"),
        (10**9, 700, "accelerator"),  # the caller's bound holds there as well
        (10**9, 699, "memory"),
        (10**9, 649, "files"),
        (None, 650, "memory"),
        (None, 649, "files"),
        (0, None, "memory"),
    ],
)
def test_the_rule(free: int | None, limit: int | None, place: str) -> None:
    assert RESERVED_PART == 4
    assert choose_storage(600, 100, 50, free, limit) == place


def first_rows(device: torch.device) -> Rows:
    return Rows(torch.arange(2), {Probs(): torch.ones(2, 10, device=device), Embedding(): torch.ones(2, 64).to(device)})


def test_the_rule_counts_signals_the_strategy_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the edge, to the byte."""
    rows, signals = 100_000, 100_000 * 74 * 4
    size = Size(rows, 50, {Probs(): (10,), Embedding(): (64,)}, 4, 30, accelerator=True)
    least = signals + needed_bytes(Badge(), size, CPU_BLOCK_BYTES)
    policy = PlacementPolicy(Badge(), 50, rows, 30, None)
    with second_device():
        first = first_rows(AWAY)
        for spare, device in ((0, AWAY), (-1, CPU)):
            about = 4 * (least + spare) // 3  # a quarter stays free
            free = next(one for one in range(about - 8, about + 8) if one - one // RESERVED_PART == least + spare)
            monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
            placed = policy(first)
            assert placed.device == device
            assert not placed.files
            assert placed.note == (f"selected on {AWAY}" if device == AWAY else f"selected on cpu: no room on {AWAY}")
        monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 40)
        assert policy(first).block == DEVICE_BLOCK_BYTES
        assert dataclasses.replace(policy, share=1e-6)(first).device == CPU
        bound = dataclasses.replace(policy, limit=least)
        assert (bound(first).device, bound(first).block) == (AWAY, CPU_BLOCK_BYTES)
        # One byte less is too little for the blocks of an accelerator; the CPU's may be smaller.
        below = dataclasses.replace(policy, limit=least - 1)(first)
        assert (below.device, below.files) == (CPU, False)
        files = dataclasses.replace(policy, limit=signals)(first)
        assert files.files
        with pytest.raises(MemoryLimitError):
            dataclasses.replace(policy, limit=1000)(first)
        assert dataclasses.replace(policy, files=True)(first).files  # a folder that was given is used


def test_what_a_selection_holds_there_is_bounded_by_the_same_limit() -> None:
    """The larger the room, the larger the blocks, and never more than fits."""
    size = Size(100_000, 50, {Probs(): (10,), Embedding(): (64,)}, 4, accelerator=True)
    signals = 100_000 * 74 * 4
    with second_device():
        first = first_rows(AWAY)
        for limit in (200 << 20, 400 << 20, 1 << 30, 4 << 30):
            policy = PlacementPolicy(Badge(), 50, 100_000, 0, limit)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(memory, "free_bytes", lambda device: 1 << 40)
                placed = policy(first)
            assert placed.device == AWAY
            assert placed.block is not None
            assert signals + needed_bytes(Badge(), size, placed.block) <= limit
            larger = (
                placed.block == DEVICE_BLOCK_BYTES or signals + needed_bytes(Badge(), size, 2 * placed.block) > limit
            )
            assert larger
    assert COPIES * DEVICE_BLOCK_BYTES > 1 << 30


def test_sabal_declares_what_its_loops_lay_out_on_an_accelerator() -> None:
    shapes = {Probs(): (10,), LabelProbs(): (10,), Embedding(): (64,)}
    here, there = (Size(10**6, 100, shapes, accelerator=device) for device in (False, True))
    assert Sabal().memory(there) - Sabal().memory(here) >= 10**6 * (10 + 64) * 4
    assert Badge().memory(there) == Badge().memory(here)


def test_a_limit_for_arrays_of_a_device_counts_what_is_held_there() -> None:
    p, h = torch.full((500, 4), 0.25), torch.rand(500, 8)
    arrays = {"probs": p, "label_probs": p.flip(0), "embedding": h}
    with second_device():
        least = []
        for device in (CPU, AWAY):
            there = {name: one.to(device) for name, one in arrays.items()}
            with pytest.raises(MemoryLimitError) as refused:
                lw.select("sabal-greedy", 5, **there, max_memory=1000)
            least.append(refused.value.smallest)
            picks = lw.select("sabal-greedy", 5, **there, max_memory=refused.value.smallest)
            assert len(picks) == 5
    assert least[1] - least[0] >= 500 * (4 + 8) * 4


def test_without_room_the_cpu_chooses_and_says_so(
    away: Second, expected: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 20)
    got = session("badge", state=trained("badge").state()).ask(12)
    same(got, expected["badge"])
    assert got.notes["place"] == f"selected on cpu: no room on {AWAY}"
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 34)
    spilt = session("badge", state=trained("badge").state(), spill=tmp_path).ask(12)
    same(spilt, expected["badge"])
    assert "place" not in spilt.notes
    assert len(list((tmp_path / "pool").glob("*.npy"))) == 2
    with pytest.raises(MemoryLimitError):
        session("badge", state=trained("badge").state(), max_memory="1MB").ask(12)
    roomy = session("badge", state=trained("badge").state(), max_memory="1GB").ask(12)
    same(roomy, expected["badge"])
    assert roomy.notes["place"] == f"selected on {AWAY}"


def test_a_device_whose_free_memory_is_not_known_is_left_alone() -> None:
    assert free_bytes(CPU) is None
    assert free_bytes(torch.device("mps")) is None
    wait_for(CPU)


@pytest.mark.parametrize("when", ["at once", "later"])
def test_a_device_that_runs_out_while_rows_are_read_leaves_them_to_the_cpu(
    when: str, expected: Any, away: Second, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its free memory was read before: others may have taken it since."""
    place = importlib.import_module("labelwise.shards.placement")
    one, asked = session("badge", batch=32, state=trained("badge").state()), []
    column, read_ = place._column, ModelReader.read

    def full(signal: Any, n: int, first: Tensor, folder: Any, device: torch.device) -> Tensor:
        if device == AWAY and when == "at once":
            raise torch.cuda.OutOfMemoryError("full")
        return column(signal, n, first, folder, device)

    def third(*given: Any) -> Any:
        asked.append(1)
        if len(asked) == 3 and when == "later":
            raise torch.cuda.OutOfMemoryError("full")
        return read_(*given)

    monkeypatch.setattr(place, "_column", full)
    monkeypatch.setattr(ModelReader, "read", third)
    got = one.ask(12)
    same(got, expected["badge"])
    assert got.notes["place"] == f"selected on cpu: no room on {AWAY}"
    assert len(asked) == 6 + (1 if when == "at once" else 3)  # 180 rows, 32 at a time, and what had been read before


def test_a_model_that_runs_out_of_memory_itself_is_not_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked = session("badge", state=trained("badge").state()), []

    def full(*given: Any) -> Any:
        asked.append(1)
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(ModelReader, "read", full)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        one.ask(12)
    assert len(asked) == 1


def test_functions_run_with_the_device_of_their_rows_as_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton launches there, not where its tensors are."""
    second, inside = torch.device("cuda", 1), []

    class There(Shard):
        device = second

    @contextlib.contextmanager
    def entered(device: torch.device) -> Iterator[None]:
        inside.append(device)
        yield
        inside.pop()

    monkeypatch.setattr(torch.cuda, "device", entered)
    ids = torch.arange(3)
    here, there = Shard(ids, {Probs(): torch.ones(3, 1)}), There(ids + 3, {Probs(): torch.ones(3, 1)})
    assert Shards([here, there]).map(lambda shard: list(inside)) == [[], [second]]
    assert not inside


def test_products_of_a_selection_keep_their_bits_whatever_training_allows() -> None:
    seen: list[Any] = []

    class Looking(Scored):
        needs = Needs(pool=(Probs(),))

        def score(self, rows: Rows, key: Key) -> Tensor:
            x = rows.tensor(Probs())
            seen.append((torch.backends.cuda.matmul.allow_tf32, torch.get_float32_matmul_precision(), (x @ x.T).dtype))
            return x[:, 0]

    def precision() -> Any:
        kinds = (torch.backends.cuda.matmul, getattr(torch.backends.mkldnn, "matmul", None))
        return devices._precision(), [getattr(one, "fp32_precision", None) for one in kinds]

    def newer() -> None:
        torch.backends.cuda.matmul.fp32_precision = "tf32"

    old = torch.get_float32_matmul_precision()
    ways: list[Callable[[], None]] = [lambda: None, lambda: torch.set_float32_matmul_precision("high")]
    ways += [newer] if hasattr(torch.backends.cuda.matmul, "fp32_precision") else []
    try:
        for way in ways:
            torch.set_float32_matmul_precision(old)
            way()
            before = precision()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                lw.select(Looking(), 2, probs=np.full((4, 2), 0.5, dtype="float32"))
            assert precision() == before
    finally:
        torch.set_float32_matmul_precision(old)
    assert seen == [(False, "highest", torch.float32)] * len(ways)


# ---- journal, parts ------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Not an error that anyone handles."""


def _kill_at(count: int, one: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask for 12 rows, and die where a shard is given the function of this number."""
    begin, begun = Shard.begin, []

    def dying(shard: Shard, fn: Any) -> Any:
        begun.append(fn)
        if len(begun) == count:
            raise Killed
        return begin(shard, fn)

    with monkeypatch.context() as patched:
        patched.setattr(Shard, "begin", dying)
        with pytest.raises(Killed):
            one.ask(12)


@pytest.mark.parametrize("name", ["kcenter", "sabal-greedy", "acs-fw"])
def test_a_session_that_was_killed_goes_on_on_its_device(
    name: str, expected: Any, away: Second, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(journal.FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    one = session(name, state=trained(name).state(), folder=tmp_path / "kept")
    _kill_at(24, one, monkeypatch)
    assert list((tmp_path / "kept" / "selection").glob("state-*.bin"))
    found: list[int] = []
    going_on = journal.FolderJournal._resumed
    monkeypatch.setattr(journal.FolderJournal, "_resumed", lambda self: (going_on(self), found.append(self.found))[0])
    restore, placed = Shard.restore, []

    def restored(shard: Shard, snapshot: Any) -> None:
        placed.extend(column.device for column in tree_leaves(snapshot) if isinstance(column, torch.Tensor))
        restore(shard, snapshot)

    monkeypatch.setattr(Shard, "restore", restored)
    got = one.ask(12)
    same(got, expected[name])
    assert found[0] > 0
    assert set(placed) == {AWAY}
    assert got.notes["place"] == f"selected on {AWAY}"
    assert not (tmp_path / "kept" / "selection").exists()


def test_a_journal_of_another_device_is_begun_anew() -> None:
    """Its answers hold tensors of that device."""
    column = {Embedding(): torch.ones(3, 2)}
    here = Shards([Shard(torch.arange(3), column)])
    with second_device():
        there = Shards([Shard(torch.arange(3).to(AWAY), {Embedding(): torch.ones(3, 2).to(AWAY)})])
        assert journal.fingerprint(here) != journal.fingerprint(there)


def test_values_are_carried_whole() -> None:
    rows = Rows(torch.arange(2), {Embedding(): torch.ones(2, 3)})
    value = {"rows": [rows], "many": (1, 2.5, "x", None)}
    got = copied_to(value, CPU)
    assert got["many"] == value["many"]
    assert torch.equal(got["rows"][0].tensor(Embedding()), rows.tensor(Embedding()))
    assert got["rows"][0] is not rows


def test_a_part_decides_where_it_is_made(away: Second) -> None:
    """A worker asks the rule itself: what is free on the driver's device says nothing about its own."""
    pytest.importorskip("ray")
    one = session("badge")
    none = Labelled(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    policy = PlacementPolicy(Badge(), 5, 40, 0, None)
    maker = ReadPart(one.fit().reader, one.pool, torch.arange(100, 140), (Probs(), Embedding()), 16, none, None, policy)
    with torch._C.DisableTorchFunction():
        sent = cloudpickle.dumps(maker)
        arrived = cloudpickle.loads(sent)
    shard = arrived()
    assert shard.device == AWAY
    assert shard.placement_note == f"selected on {AWAY}"
    assert shard.block_bytes == DEVICE_BLOCK_BYTES


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> list[Shard]:
    """The parts of a cluster, which are made in this process."""
    made: list[Shard] = []

    @contextlib.contextmanager
    def here(engine: Ray, makers: Any, sizes: Any) -> Iterator[Shards]:
        made[:] = [maker() for maker in makers]
        yield Shards(made)

    monkeypatch.setattr(Ray, "shards", here)
    return made


def test_a_limit_leaves_the_blocks_of_a_worker_to_its_own_device(away: Second, workers: list[Shard]) -> None:
    """The driver has a row of the CPU to go by, and workers may have accelerators."""
    state = trained("badge").state()
    got = session("badge", state=state, engine=Ray(workers=2, gpus=1), max_memory="4GB", batch=60).ask(12)
    assert {(shard.device, shard.block_bytes) for shard in workers} == {(AWAY, DEVICE_BLOCK_BYTES)}
    same(got, session("badge", state=state, batch=60).ask(12))


def test_arrays_go_to_a_workers_device_if_they_fit(
    away: Second, workers: list[Shard], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = importlib.import_module("labelwise.arrays")
    made = arrays.array_parts
    monkeypatch.setattr(arrays, "array_parts", lambda *given: made(*given[:5], AWAY, *given[6:]))
    engine, asked = Ray(workers=2, gpus=0.5), functools.partial(lw.select, "kcenter", 9, embedding=X)
    for limit in (None, "1GB"):
        got = asked(engine=engine, max_memory=limit)
        assert [shard.device for shard in workers] == [AWAY, AWAY]
        assert {shard.block_bytes for shard in workers} == {DEVICE_BLOCK_BYTES if limit is None else 128 << 20}
        assert got.notes["place"] == f"selected on {AWAY}"
        same(got, asked())
    for free in (1 << 20, 50 << 20):  # half of it is for this worker
        monkeypatch.setattr(memory, "free_bytes", lambda device, free=free: free)
        got = asked(engine=engine)
        assert [shard.device for shard in workers] == [CPU, CPU]
        assert got.notes["place"] == f"selected on cpu: no room on {AWAY}"
        same(got, asked())
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 34)
    moved = Shard.__init__

    def full(self: Shard, ids: Tensor, *more: Any) -> None:
        if ids.device == AWAY:
            raise torch.cuda.OutOfMemoryError
        moved(self, ids, *more)

    monkeypatch.setattr(Shard, "__init__", full)
    assert asked(engine=engine).notes["place"] == f"selected on cpu: no room on {AWAY}"


@pytest.mark.parametrize("gpus", [0.0, 0.5])
def test_a_worker_without_a_gpu_leaves_the_model_where_it_is(gpus: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray lets it see those of others."""
    parts, moved, one = importlib.import_module("labelwise.shards.factories"), [], session("badge")
    monkeypatch.setattr(parts, "_to_device", moved.append)
    none = Labelled(torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=torch.int64))
    pool_reader = read_pool.PoolReader(one.pool, 16, RunOptions(), Ray(gpus=gpus), None)
    policy = PlacementPolicy(Badge(), 5, 40, 0, None)
    pool_reader._factory(one.fit().reader, torch.arange(100, 140), (Probs(), Embedding()), none, policy)()
    assert len(moved) == (1 if gpus else 0)


def test_gradients_that_a_reader_remembers_do_not_travel() -> None:
    """They are on the device of the model that made them."""
    one = session("dynamical")
    one.ask(5)
    reader = one.fit().reader
    assert reader._gradients is not None
    again = pickle.loads(pickle.dumps(ModelReader(nn.Linear(2, 2))))
    assert again._gradients is None
    assert reader.__getstate__()["_gradients"] is None


# ---- CUDA ----------------------------------------------------------------------------------------------------------


# The first backward pass of a process makes torch say so where its thread has not met the device yet.
@cuda
@pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning")
@pytest.mark.parametrize("name", EVERY)
def test_cuda_makes_the_picks_of_the_cpu(name: str, expected: Any) -> None:
    """One model of float64 that was trained on the CPU, read on either device."""
    one = session(name)
    _to_cuda(one)
    got = one.ask(12)
    same(got, expected[name], 1e-6)
    place = got.notes.get("place")
    assert place == (None if name in WITHOUT_A_MODEL else "selected on cuda:0")


def _to_cuda(one: lw.Session) -> None:
    one.fit().reader.model.cuda()


@cuda
def test_predictions_on_cuda_are_those_of_the_cpu() -> None:
    one = session("margin")
    expected = one.predict_proba(X)
    _to_cuda(one)
    np.testing.assert_allclose(one.predict_proba(X), expected, atol=1e-6)
    assert next(one.model.parameters()).is_cuda


@cuda
def test_a_session_whose_model_is_made_on_cuda_reads_and_chooses_there(monkeypatch: pytest.MonkeyPatch) -> None:
    one = session("sabal-greedy", lambda: net().cuda(), batch=64)
    first = one.ask(12)
    assert first.notes["place"] == "selected on cuda:0"
    pool, _, placed = rows_of(one)
    assert placed.device.type == "cuda"
    assert all(column.is_cuda for (shard,) in [pool.map(lambda shard: shard)] for column in shard.columns.values())
    monkeypatch.setattr(memory, "free_bytes", lambda device: 1 << 20)
    second = one.ask(12)
    assert second.notes["place"] == "selected on cpu: no room on cuda:0"
    same(second, first, 1e-6)
    assert one.ask(12).ids.tolist() == first.ids.tolist()


@cuda
@pytest.mark.parametrize("name", ["kcenter", "badge", "bait", "acs-fw"])
def test_a_session_that_was_killed_goes_on_on_cuda(
    name: str, expected: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setattr(journal.FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    one = session(name, folder=tmp_path / "kept")
    _to_cuda(one)
    _kill_at(7, one, monkeypatch)
    same(one.ask(12), expected[name], 1e-6)


@cuda
@pytest.mark.parametrize("name", EVERY)
def test_rows_on_the_cuda_of_another_process_answer_to_the_cpu(name: str, expected: Any) -> None:
    class There:
        def __init__(self, shard: Shard):
            self.shard = shard

        def __len__(self) -> int:
            return len(self.shard)

        def begin(self, fn: Callable[[Shard], Any]) -> Callable[[], Any]:
            return lambda: copied_to(fn(self.shard), CPU)

    one = trained(name)
    pool, labelled, _ = rows_of(one)
    (whole,) = pool.map(lambda shard: shard)
    for parts in (1, 2):
        cuts = [slice(len(whole) * i // parts, len(whole) * (i + 1) // parts) for i in range(parts)]
        there = [
            There(Shard(whole.ids[cut].cuda(), {signal: x[cut].cuda() for signal, x in whole.columns.items()}))
            for cut in cuts
        ]
        got = one.recipe.strategy.select(Shards(there), labelled, 12, one.key.fold("select", TOLD))
        same(got, expected[name], 1e-6)


@cuda
@pytest.mark.parametrize("name", [name for name in EVERY if name not in WITHOUT_A_MODEL])
def test_cuda_holds_no_more_than_the_limit(name: str) -> None:
    """The smallest limit with which a session chooses there. Libraries' workspaces were there before."""
    x = np.random.default_rng(1).normal(size=(20_000, 5))
    one = session(name, lambda: net().cuda(), x=x, batch=512)
    assert one.ask(20).notes["place"] == "selected on cuda:0"
    (shard,) = rows_of(one, 20)[0].map(lambda shard: shard)
    size = Size.of(len(shard), 20, shard.columns, labelled=TOLD)
    signals = sum(column.numel() * column.element_size() for column in shard.columns.values())
    limit = signals + needed_bytes(one.recipe.strategy, size, CPU_BLOCK_BYTES)
    del shard
    one.max_memory = limit
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert one.ask(20).notes["place"] == "selected on cuda:0"
    assert torch.cuda.max_memory_allocated() - before <= limit


@cuda
def test_what_is_free_on_cuda_is_known_and_a_clock_may_be_read() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    before = free_bytes(device)
    filler = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    after = free_bytes(device)
    assert before is not None
    assert after is not None
    assert 200 << 20 <= before - after <= 300 << 20
    del filler
    back = free_bytes(device)  # what torch keeps for later is free
    assert back is not None
    assert back - after >= 200 << 20
    wait_for(device)


@cuda
def test_gradient_sketches_and_norms_stay_on_cuda() -> None:
    reader = ModelReader(net().cuda())
    pool = lw.Pool.of(X)
    (rows,) = read(reader, pool, pool.ids, (GradSketch(8), Probs()), len(X), device=None)
    assert all(column.is_cuda for column in rows.columns.values())
