"""The memory contract: each strategy runs under a hard limit of what it declares, and below it is refused at once."""

import json
import os
import pickle
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, MemoryLimitError
from labelwise.io.sizes import format_size, parse_size
from labelwise.selection import memory
from labelwise.selection.memory import needed_bytes, smallest_limit
from labelwise.selection.strategy import Size
from labelwise.shards import devices
from labelwise.signals.spec import Embedding, LogProbs, Probs, stored

NAMES = lw.strategies.names()
SLOW = {"probcover": 30_000, "bait": 110_000, "sabal-iht": 60_000, "typiclust": 60_000, "batchbald": 110_000}
ROWS, PICKS = 200_000, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pool in files."""
    folder, rng = tmp_path_factory.mktemp("pool"), np.random.default_rng(0)
    probs = rng.gamma(1.0, size=(ROWS, 4))
    probs /= probs.sum(1, keepdims=True)
    root = np.sqrt(probs)
    draws = rng.gamma(1.0, size=(ROWS, 3, 4)) + 1e-6
    arrays = {
        "probs": probs,
        "label_probs": root / root.sum(1, keepdims=True),
        "embedding": rng.normal(size=(ROWS, 8)) + 3 * rng.integers(0, 3, (ROWS, 1)),
        "log_probs": np.log(draws / draws.sum(2, keepdims=True)),
        "duals": rng.exponential(size=ROWS),
        "grad_sqnorm": rng.exponential(size=ROWS),
        "grad_dot": rng.normal(size=ROWS),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array.astype("float32"))
    return folder


# Runs in a process of its own, which forks one for each strategy: a hard limit cannot be taken back, and the heap of
# this process holds what earlier tests left there. RLIMIT_DATA counts private memory; files mapped to be read do not.
_LIMITED = """
import ctypes, gc, json, os, resource, sys
import numpy as np, torch
import labelwise as lw

torch.set_num_threads(1)

def held():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))

def limited(folder, name, arrays, rows, k, limit, hard):
    given = {one: np.load(f"{folder}/{one}.npy", mmap_mode="r")[:rows] for one in arrays}
    lw.select(name, 5, **{one: array[:400] for one, array in given.items()}, max_memory="1GB")  # what is loaded once
    top = held() + hard
    resource.setrlimit(resource.RLIMIT_DATA, (top, top))
    return lw.select(name, k, **given, max_memory=limit).ids.tolist()

folder, jobs = sys.argv[1], json.loads(sys.argv[2])
for job in jobs:
    read, write = os.pipe()
    if not os.fork():
        try:
            found = limited(folder, *job)
        except BaseException as error:
            found = f"{type(error).__name__}: {error}"[:500]
        os.write(write, json.dumps(found).encode())
        os._exit(0)
    os.close(write)
    print(os.read(read, 65536).decode(), flush=True)
    os.wait()
    os.close(read)
"""


def _arrays(name: str) -> list[str]:
    needs = lw.strategies.get(name).needs
    return sorted({signal.array for signal in stored(needs.pool + needs.instead)} or {"duals"})


def _size(name: str, folder: Path, rows: int, k: int) -> Size:
    shapes = {
        signal: np.load(folder / f"{signal.array}.npy", mmap_mode="r").shape[1:] or (1,)
        for signal in stored(lw.strategies.get(name).needs.pool + lw.strategies.get(name).needs.instead)
    }
    return Size(rows, k, shapes)


def _run(folder: Path, jobs: list[tuple[str, list[str], int, int, int, int]]) -> list[object]:
    command = [sys.executable, "-c", _LIMITED, str(folder), json.dumps(jobs)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=280
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def under_limit(folder: Path) -> dict[str, object]:
    """What each strategy picked under a hard limit of the smallest that it works with."""
    jobs = []
    for name in NAMES:
        rows = SLOW.get(name, ROWS)
        least = smallest_limit(lw.strategies.get(name), _size(name, folder, rows, PICKS))
        jobs.append((name, _arrays(name), rows, PICKS, least, least))
    return dict(zip(NAMES, _run(folder, jobs)))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a hard limit on private memory is Linux's")
@pytest.mark.parametrize("name", NAMES)
def test_under_a_hard_limit_of_what_it_declares(name: str, under_limit: dict[str, object], folder: Path) -> None:
    rows = SLOW.get(name, ROWS)
    given = {one: np.load(folder / f"{one}.npy", mmap_mode="r")[:rows] for one in _arrays(name)}
    assert under_limit[name] == lw.select(name, PICKS, **given).ids.tolist()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a hard limit on private memory is Linux's")
def test_under_a_hard_limit_with_many_picks(folder: Path) -> None:
    """What is kept for every pick counts too: the batch is a sixth of the pool."""
    rows, k = 6_000, 1_000
    least = [smallest_limit(lw.strategies.get(name), _size(name, folder, rows, k)) for name in NAMES]
    found = _run(folder, [(name, _arrays(name), rows, k, one, one) for name, one in zip(NAMES, least)])
    wrong = {name: picks for name, picks in zip(NAMES, found) if isinstance(picks, str) or len(set(picks)) != k}
    assert not wrong


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a hard limit on private memory is Linux's")
def test_the_hard_limit_binds(folder: Path) -> None:
    """Otherwise the test above passes because nothing is limited: with a quarter of it, there is no memory."""
    least = smallest_limit(lw.strategies.get("badge"), _size("badge", folder, ROWS, PICKS))
    (found,) = _run(folder, [("badge", _arrays("badge"), ROWS, PICKS, least, least // 8)])
    assert isinstance(found, str)
    assert "memory" in found.lower(), found


@pytest.mark.parametrize("name", NAMES)
def test_a_limit_too_small_is_refused_at_once_with_the_smallest_that_works(name: str, folder: Path) -> None:
    given = {one: np.load(folder / f"{one}.npy", mmap_mode="r") for one in _arrays(name)}
    began = time.process_time()
    with pytest.raises(
        MemoryLimitError, match=r"max_memory is 1MB, but .* needs \d+MB to choose 12 of 200,000"
    ) as info:
        lw.select(name, PICKS, **given, max_memory="1MB")
    assert time.process_time() - began < 1.0
    assert info.value.smallest == smallest_limit(lw.strategies.get(name), _size(name, folder, ROWS, PICKS))
    with pytest.raises(MemoryLimitError):
        lw.select(name, PICKS, **given, max_memory=info.value.smallest - 1)


@pytest.mark.parametrize("name", NAMES)
def test_more_rows_picks_and_labelled_rows_never_need_less(name: str, folder: Path) -> None:
    strategy, base = lw.strategies.get(name), _size(name, folder, 10_000, 50)
    more = [
        Size(20_000, 50, base.shapes),
        Size(10_000, 100, base.shapes),
        Size(10_000, 50, base.shapes, number=8),
        Size(10_000, 50, base.shapes, labelled=5_000),
        Size(10_000, 50, {signal: tuple(2 * one for one in shape) for signal, shape in base.shapes.items()}),
    ]
    assert all(needed_bytes(strategy, one) >= needed_bytes(strategy, base) for one in more)
    assert smallest_limit(strategy, base) < needed_bytes(strategy, base)


def test_blocks_are_sized_to_the_limit_and_picks_stay(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = {one: np.load(folder / f"{one}.npy", mmap_mode="r")[:60_000] for one in ("probs", "embedding")}
    size = _size("badge", folder, 60_000, 30)
    strategy, seen = lw.strategies.get("badge"), []
    block = memory.block_bytes
    monkeypatch.setattr("labelwise.arrays.block_bytes", lambda *all: seen.append(block(*all)) or seen[-1])
    limits = [
        None,
        smallest_limit(strategy, size),
        (smallest_limit(strategy, size) + needed_bytes(strategy, size)) // 2,
        "1GB",
    ]
    picks = [lw.select("badge", 30, **given, max_memory=limit).ids.tolist() for limit in limits]
    assert all(one == picks[0] for one in picks)
    assert seen[0] is None
    assert seen[1] == memory.MIN_BLOCK < seen[2] < seen[3]


def test_ids_that_are_given_count(folder: Path) -> None:
    assert needed_bytes(lw.strategies.get("entropy"), Size(10**6, 5, {Probs(): (4,)}, named=True)) > 120 * 10**6
    given = np.load(folder / "probs.npy", mmap_mode="r")[:50_000]
    with pytest.raises(MemoryLimitError):
        lw.select("entropy", 5, probs=given, ids=np.arange(50_000), max_memory="17MB")
    lw.select("entropy", 5, probs=given, max_memory="17MB")


@pytest.mark.parametrize("limit", ["4 apples", "GB", "-1GB", "0", 0, -5, 1.5, True, "1e9", ""])
def test_a_limit_that_is_no_size_is_refused(limit: object) -> None:
    with pytest.raises(ArgumentError, match="max_memory is a size such as 4GB"):
        parse_size(limit)


def test_sizes() -> None:
    assert [parse_size(one) for one in (None, 7, "7", "7b", "3 kB", "2KiB", "4GB", "0.5gb", "1TiB")] == [
        None, 7, 7, 7, 3000, 2048, 4 * 10**9, 5 * 10**8, 2**40,
    ]  # fmt: skip
    assert all(parse_size(format_size(size)) >= size for size in (1, 999_999, 10**6, 10**6 + 1, 123_456_789))


def test_limits_of_many_digits_and_of_numpy() -> None:
    assert (parse_size("9" * 400 + "GB") or 0) > 10**400
    assert parse_size(np.int64(5_000_000)) == 5_000_000
    assert lw.select("entropy", 1, probs=np.full((5, 2), 0.5), max_memory="9" * 400 + "GB").ids.tolist() == [0]
    with pytest.raises(ArgumentError, match="max_memory is a size"):
        parse_size(np.bool_(True))


def test_a_limit_just_below_what_is_needed_does_not_read_as_enough(folder: Path) -> None:
    least = smallest_limit(lw.strategies.get("kcenter"), _size("kcenter", folder, ROWS, PICKS))
    given = np.load(folder / "embedding.npy", mmap_mode="r")
    text = rf"max_memory is {(least - 1) / 1e6}MB, but KCenter needs {-(-least // 10**6)}MB"
    with pytest.raises(MemoryLimitError, match=text):
        lw.select("kcenter", PICKS, embedding=given, max_memory=least - 1)


def test_a_refusal_travels_with_its_number() -> None:
    error = pickle.loads(pickle.dumps(MemoryLimitError("too small", 17)))
    assert (str(error), error.smallest) == ("too small", 17)


def test_another_allocator_does_not_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.ctypes, "CDLL", lambda name: object())
    devices.set_mmap_threshold(1 << 20)


def test_a_strategy_of_ones_own_has_a_declaration() -> None:
    class Own(lw.Strategy):
        def select(self, pool, labelled, k, key):
            raise AssertionError

    assert Own().memory(Size(1000, 10, {Embedding(): (4,)})) > 256_000
    assert lw.strategies.Sabal(form="bayesian").memory(Size(1000, 10, {LogProbs(): (50, 4)})) > 200_000


X = np.random.default_rng(0).normal(size=(4000, 6)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def _session(limit: object, recipe: str = "badge", hidden: int = 32) -> lw.Session:
    model = lw.TorchLearner(lambda: nn.Sequential(nn.Linear(6, hidden), nn.ReLU(), nn.Linear(hidden, 2)), epochs=3)
    session = lw.Session(X, model, recipe, classes=2, seed=0, max_memory=limit)
    picks = session.ask(8)
    session.tell(picks.ids, Y[picks.ids])
    return session


def test_a_session_spills_signals_that_do_not_fit_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """512 numbers a row are 8 MB; what badge needs beside them is below 19 MB."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    free = _session(None, hidden=512).ask(8)
    aside: list[int] = []
    placing = sys.modules["labelwise.shards.placement"]  # the package holds the function of this name
    place_unnamed = placing.place_unnamed
    monkeypatch.setattr(placing, "place_unnamed", lambda *all: aside.append(1) or place_unnamed(*all))
    assert _session("1GB", hidden=512).ask(8).ids.tolist() == free.ids.tolist()
    assert not aside
    returned_memory = _session("1GB", hidden=512)
    returned_memory.max_memory = 1000
    with pytest.raises(MemoryLimitError) as info:
        returned_memory.ask(8)
    returned_memory.max_memory = info.value.smallest
    assert returned_memory.ask(8).ids.tolist() == free.ids.tolist()
    assert len(aside) == 1
    assert not list(tmp_path.glob("labelwise-*"))


def test_rounds_refuse_at_the_first_choice_what_would_be_too_little_for_the_last() -> None:
    """Labelled rows are held too: the last round needs more than the first."""

    def picks(limit: int | None, n: int) -> list[list[int]]:
        model = lw.TorchLearner(lambda: nn.Linear(6, 2), epochs=1)
        return [record.picked for record in lw.rounds(X, Y, model, "badge", 200, n, test=None, max_memory=limit)]

    def least(limit: int, n: int) -> int:
        with pytest.raises(MemoryLimitError) as refused:
            picks(limit, n)
        return refused.value.smallest

    start = least(1000, 1)  # of the first batch, which is drawn at random
    one, four = least(start, 1), least(start, 4)
    assert start < one < four
    assert least(four - 1, 4) == four
    assert picks(four, 4) == picks(None, 4)


def test_a_session_with_too_small_a_limit_is_refused() -> None:
    session = lw.Session(X, recipe="typiclust", classes=2, max_memory="2MB")
    with pytest.raises(MemoryLimitError, match="TypiClust needs"):
        session.ask(5)
    with pytest.raises(ArgumentError, match="max_memory"):
        lw.Session(X, recipe="typiclust", classes=2, max_memory="lots")


def test_rounds_take_a_limit() -> None:
    model = lw.TorchLearner(lambda: nn.Linear(6, 2), epochs=2)
    records = lw.rounds(X[:500], Y[:500], model, "margin", 5, 2, classes=2, max_memory="1GB")
    plain = lw.rounds(X[:500], Y[:500], model, "margin", 5, 2, classes=2)
    assert [one.picked for one in records] == [one.picked for one in plain]
    with pytest.raises(MemoryLimitError):
        list(lw.rounds(X[:500], Y[:500], model, "margin", 5, 2, classes=2, max_memory=1000))


def test_columns_placed_aside_can_be_written_and_read() -> None:
    from labelwise.shards.placement import place_unnamed
    from labelwise.signals.rows import Rows

    rows = [Rows(torch.arange(5), {Embedding(): torch.rand(5, 3)})]
    (shard,) = place_unnamed(iter(rows), 5).map(lambda one: one)
    assert torch.equal(shard.columns[Embedding()], rows[0].columns[Embedding()])


# ---- many labelled rows --------------------------------------------------------------------------------------------

_LABELLED = """
import ctypes, gc, json, os, resource, sys
import numpy as np, torch
import labelwise as lw

torch.set_num_threads(1)
folder, name, named = sys.argv[1], sys.argv[2], sys.argv[3] == "named"
arrays = ["probs", "embedding", "duals"]
pool = {one: np.load(f"{folder}/pool-{one}.npy", mmap_mode="r") for one in arrays[:2]}
past = {one: np.load(f"{folder}/past-{one}.npy", mmap_mode="r") for one in arrays}
most = {"ally": 300_000, "typiclust": 500_000, "probcover": 500_000}.get(name)  # these compute much for each row
past = {one: array[:most] for one, array in past.items()}
past = {one: past[one] for one in (["embedding", "duals"] if name == "ally" else arrays[:2])}
if name == "albl":
    past["y"] = np.zeros(len(past["probs"]), dtype="uint8")
strategy = lw.strategies.Ally(head={"epochs": 1}) if name == "ally" else name

def chosen(n, most, limit):
    own = {one: array[:n] for one, array in pool.items()}
    behind = {one: array[:most] for one, array in past.items()}
    if named:
        own["ids"], behind["ids"] = np.arange(n), np.arange(n, n + len(next(iter(behind.values()))))
    return lw.select(strategy, 10, **own, labelled=behind, max_memory=limit).ids.tolist()

chosen(300, 300, "1GB")  # what is loaded once
try:
    chosen(1000, None, 1)
except lw.errors.MemoryLimitError as error:
    least = error.smallest
gc.collect()
ctypes.CDLL(None).malloc_trim(0)
with open("/proc/self/status") as status:
    held = next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (held + least, held + least))
print(len(chosen(1000, None, least)))
"""


@pytest.fixture(scope="module")
def labelled_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small pool and many labelled rows, narrow: what is kept for each of them is more than what it has."""
    folder, rng = tmp_path_factory.mktemp("labelled"), np.random.default_rng(0)
    for name, rows in (("pool", 1000), ("past", 1_500_000)):
        p = rng.uniform(size=(rows, 1))
        arrays = {"probs": np.hstack([p, 1 - p]), "embedding": rng.normal(size=(rows, 1)), "duals": p[:, 0] * 2}
        for one, array in arrays.items():
            np.save(folder / f"{name}-{one}.npy", array.astype("float32"))
    return folder


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="a hard limit on private memory is Linux's")
@pytest.mark.parametrize("named", ["named", "not named"])
@pytest.mark.parametrize("name", ["kcenter", "typiclust", "probcover", "bait", "albl", "ally"])
def test_labelled_rows_count_as_well(name: str, named: str, labelled_folder: Path) -> None:
    command = [sys.executable, "-c", _LABELLED, str(labelled_folder), name, named]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.stdout.strip() == "10", done.stderr[-600:]


def test_arrays_that_would_be_copied_whole_are_refused_under_a_limit() -> None:
    x = np.random.default_rng(0).normal(size=(40_000, 8)).astype("float32")
    kinds = {"order of another machine": x.astype(">f4"), "steps backwards": x[::-1], "no uint64": x.astype("uint64")}
    for why, array in kinds.items():
        with pytest.raises(
            ArgumentError, match=rf"embedding cannot be used where it lies .*{why}.* MB would be copied"
        ):
            lw.select("kcenter", 3, embedding=array, max_memory="1GB")
        with pytest.raises(ArgumentError, match="labelled embedding cannot be used where it lies"):
            lw.select("kcenter", 3, embedding=x, labelled={"embedding": array}, max_memory="1GB")
        assert len(lw.select("kcenter", 3, embedding=array)) == 3
    assert len(lw.select("kcenter", 3, embedding=x[:100].astype(">f4"), max_memory="1GB")) == 3
