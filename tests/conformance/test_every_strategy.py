"""One suite for all strategies: what is true of every one of them, whatever it computes."""

import subprocess
import sys
import tracemalloc
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import labelwise as lw
from labelwise.rng import Key
from labelwise.shards import Shards
from labelwise.signals.spec import Embedding, Probs, stored
from labelwise.verify import check_strategy, invariances
from labelwise.verify.chi_square import ALARM, chi_square_p
from labelwise.verify.problems import Problem, expect_same, labelled_arrays, random_arrays, shards_for, with_label_probs
from second_device import AWAY, second_device

NAMES = lw.strategies.names()
# What verify may leave out: draws by ids, strategies that ask nothing of labelled rows, or nothing of the pool.
BY_CHANCE = ("random", "badge", "typiclust", "probcover", "bss", "leverage", "volume", "batchbald", "ally")
NOT_APPLICABLE = {(name, "ids") for name in (*BY_CHANCE, "albl")}
NOT_APPLICABLE |= {(name, "labelled order") for name in NAMES if not lw.strategies.get(name).needs.labelled}
NOT_APPLICABLE |= {("random", "dtype"), ("random", "NaN")}


def _inputs(n: int, c: int = 4, d: int = 5, seed: int = 0, dtype: type = np.float64) -> dict[str, np.ndarray]:
    return random_arrays(n, seed, c, d, dtype=dtype)


def _shards(name: str, inputs: dict[str, np.ndarray], ids: np.ndarray, count: int) -> Shards:
    return shards_for(lw.strategies.get(name), Problem(inputs, ids, 1), count)[1]


def _labelled(name: str, rows: np.ndarray, classes: int = 4) -> dict[str, np.ndarray] | None:
    return labelled_arrays(lw.strategies.get(name), rows, classes)


def _same(a: lw.Selection, b: lw.Selection) -> None:
    expect_same(a, b, "here")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (2, 1), (2, 2), (3, 3), (40, 1), (40, 17), (40, 40), (300, 150)])
def test_k_distinct_rows_of_those_given(name: str, dtype: type, n: int, k: int):
    ids = np.random.default_rng(1).permutation(10 * n)[:n] - n
    invariances.exactly_k(lw.strategies.get(name), Problem(_inputs(n, dtype=dtype), ids, k))


def test_names_and_facts():
    assert {"random", "confidence", "margin", "entropy", "kcenter", "badge", "typiclust", "probcover"} <= set(NAMES)
    for name in NAMES:
        strategy = lw.strategies.get(name)
        assert strategy.cost
        assert strategy.paper
        assert lw.strategies.get(strategy) is strategy
        assert not strategy.cold or not any(isinstance(s, Probs | Embedding) for s in stored(strategy.needs.pool))


# --- the same picks, whatever the order and the place of the rows -----------------------------------------------------


@st.composite
def problems(draw: st.DrawFn) -> tuple[dict[str, np.ndarray], np.ndarray, int, int]:
    n = draw(st.integers(1, 40))
    d, c = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    seed = draw(st.integers(0, 2**32))
    rng = np.random.default_rng(seed)
    copies = draw(st.booleans())
    pool = max(1, n // 4) if copies else n
    pick = rng.integers(0, pool, n) if copies else np.arange(n)
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    inputs = {
        "probs": rng.dirichlet(np.ones(c), pool)[pick].astype(dtype),
        "embedding": rng.normal(size=(pool, d))[pick].astype(dtype),
        "log_probs": np.log(rng.dirichlet(np.ones(c), (pool, 6)))[pick].astype(dtype),
        "duals": rng.exponential(size=pool)[pick].astype(dtype),
        "grad_sqnorm": rng.exponential(size=pool)[pick].astype(dtype),
        "grad_dot": rng.normal(size=pool)[pick].astype(dtype),
    }
    ids = np.array(draw(st.lists(st.integers(-(2**62), 2**62), min_size=n, max_size=n, unique=True)), dtype=np.int64)
    return with_label_probs(inputs), ids, draw(st.integers(1, n)), draw(st.integers(0, 2**64))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(problem=problems())
def test_order_of_the_rows_does_not_matter(name: str, problem: tuple[dict[str, np.ndarray], np.ndarray, int, int]):
    inputs, ids, k, seed = problem
    invariances.row_order(lw.strategies.get(name), Problem(inputs, ids, k, seed))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=10, deadline=None, derandomize=True)
@given(problem=problems(), count=st.integers(2, 7))
def test_number_of_shards_does_not_matter(
    name: str, problem: tuple[dict[str, np.ndarray], np.ndarray, int, int], count: int
):
    inputs, ids, k, seed = problem
    invariances.shard_count(lw.strategies.get(name), Problem(inputs, ids, k, seed), (count,))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("copies", [1, 5])
def test_block_size_and_shards_and_order_at_once(name: str, dtype: type, copies: int):
    """Enough rows for many blocks, with copies of rows in different blocks; embeddings of the size networks give."""
    n, k = 300, 60
    small = _inputs(n // copies, d=32, dtype=dtype, seed=copies)
    inputs = {key: np.concatenate([value] * copies) for key, value in small.items()}
    inputs["embedding"] = np.maximum(inputs["embedding"] + dtype(0.5), 0)  # like the output of a ReLU
    ids = np.random.default_rng(2).permutation(5000)[:n]
    problem = Problem(inputs, ids, k, 3)
    for sizes, count in (((1, 20_000), 1), ((1, 8 << 20), 2), ((50_000,), 5)):
        invariances.block_size(lw.strategies.get(name), problem, sizes, count)


@pytest.mark.parametrize("name", NAMES)
def test_labelled_rows_in_any_order_and_shard(name: str):
    inputs = _inputs(60)
    past = np.random.default_rng(5).normal(size=(9, 5))
    a = lw.select(name, 12, **inputs, labelled=_labelled(name, past))
    b = lw.select(name, 12, **inputs, labelled=_labelled(name, past[::-1].copy()))
    if name != "typiclust":  # its k-means draws seeds among labelled rows too, by ids that follow their order
        _same(a, b)
    assert len(set(b.ids.tolist())) == 12


# --- ties ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_copies_of_a_row_are_equally_likely_however_ids_were_given_out(name: str):
    """Ids that rise class by class, and ids that are anything: which copy is picked does not depend on them."""
    size, copies, seeds = 48, 8, 20
    inputs = {key: np.concatenate([value] * copies) for key, value in _inputs(size // copies).items()}
    for ids in (np.arange(size), np.random.default_rng(0).integers(-(2**62), 2**62, size)):
        row = {int(i): place for place, i in enumerate(ids)}
        picks = [row[int(i)] for seed in range(seeds) for i in lw.select(name, 4, **inputs, ids=ids, seed=seed).ids]
        counts = np.bincount(np.array(picks) * copies // size, minlength=copies)
        assert chi_square_p(counts, np.full(copies, 1 / copies)) > ALARM, counts


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("distinct", [1, 10])
def test_ties_do_not_depend_on_order_blocks_shards_or_device(name: str, distinct: int):
    inputs = {key: value[np.arange(150) % distinct] for key, value in _inputs(distinct).items()}
    problem = Problem(inputs, np.random.default_rng(2).permutation(900)[:150], 9, 5)
    invariances.row_order(lw.strategies.get(name), problem)
    invariances.block_size(lw.strategies.get(name), problem, (1,), 3)
    expected = lw.select(name, 9, **inputs, ids=problem.ids, seed=5)
    with second_device():
        away = {key: torch.from_numpy(value).to(AWAY) for key, value in {**inputs, "ids": problem.ids}.items()}
        assert lw.select(name, 9, **away, seed=5).ids.tolist() == expected.ids.tolist()


# --- forms of the input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_torch_and_numpy_give_the_same(name: str, dtype: type):
    inputs = _inputs(50, dtype=dtype)
    a = lw.select(name, 10, **inputs)
    b = lw.select(name, 10, **{key: torch.from_numpy(value) for key, value in inputs.items()}, ids=torch.arange(50))
    _same(a, b)
    assert isinstance(b.ids, np.ndarray)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_inputs_are_not_modified_and_may_be_read_only(name: str):
    inputs = _inputs(80, dtype=np.float32)
    before = {key: value.copy() for key, value in inputs.items()}
    ids = np.arange(80)
    first = lw.select(name, 20, **inputs, ids=ids)
    assert all(np.array_equal(inputs[key], before[key]) for key in inputs)
    assert np.array_equal(ids, np.arange(80))
    for value in (*inputs.values(), ids):
        value.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _same(first, lw.select(name, 20, **inputs, ids=ids))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_layout_of_the_memory_does_not_matter(name: str):
    inputs = _inputs(50)
    expected = lw.select(name, 10, **inputs)
    steps = {key: (slice(None, None, 2),) * min(value.ndim, 2) for key, value in inputs.items()}
    big = {key: np.zeros((*(2 * size for size in value.shape[:2]), *value.shape[2:])) for key, value in inputs.items()}
    for key, value in inputs.items():
        big[key][steps[key]] = value
    _same(expected, lw.select(name, 10, **{key: np.asfortranarray(value) for key, value in inputs.items()}))
    _same(expected, lw.select(name, 10, **{key: value[steps[key]] for key, value in big.items()}))
    _same(expected, lw.select(name, 10, **{key: value[::-1].copy()[::-1] for key, value in inputs.items()}))
    _same(expected, lw.select(name, 10, **{key: value.astype(">f8") for key, value in inputs.items()}))
    _same(expected, lw.select(name, 10, **{key: value.tolist() for key, value in inputs.items()}))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_mapped_files_are_read_without_a_copy_of_the_whole(name: str, tmp_path: Path):
    n, d = 2000, 512
    rng = np.random.default_rng(0)
    inputs = {"probs": rng.dirichlet(np.ones(4), n), "embedding": rng.normal(size=(n, d))}
    inputs["log_probs"] = np.log(rng.dirichlet(np.ones(4), (n, 6)))
    inputs["duals"] = rng.exponential(size=n)
    inputs |= {"grad_sqnorm": rng.exponential(size=n), "grad_dot": rng.normal(size=n)}
    inputs = with_label_probs(inputs)
    for key, value in inputs.items():
        np.save(tmp_path / f"{key}.npy", value.astype(np.float32))
    whole = {key: np.load(tmp_path / f"{key}.npy") for key in inputs}
    mapped = {key: np.load(tmp_path / f"{key}.npy", mmap_mode="r") for key in inputs}
    tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            got = lw.select(name, 5, **mapped)
        peak = tracemalloc.get_traced_memory()[1]  # NumPy reports its arrays here, torch does not
    finally:
        tracemalloc.stop()
    assert peak < n * d  # a quarter of the file
    _same(got, lw.select(name, 5, **whole))


def test_columns_lie_in_the_memory_of_the_user(monkeypatch: pytest.MonkeyPatch):
    inputs = _inputs(30, dtype=np.float32)
    seen = []

    class Look(lw.strategies.KCenter):
        def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> lw.Selection:
            seen.extend(pool.map(lambda shard: shard.columns[Embedding()].data_ptr()))
            seen.extend(pool.map(lambda shard: shard.rows(slice(0, 5)).tensor(Embedding()).data_ptr()))
            return lw.strategies.KCenter().select(pool, labelled, k, key)

    lw.select(Look(), 3, **inputs)
    assert seen == [inputs["embedding"].ctypes.data] * 2


# --- chance, state, degenerate pools ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_the_same_seed_gives_the_same_picks_and_no_state_is_kept(name: str):
    inputs = _inputs(60)
    strategy = lw.strategies.get(name)
    before = dict(vars(strategy))
    torch.manual_seed(1)
    a = lw.select(strategy, 20, **inputs, seed=4)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    lw.select(strategy, 3, **_inputs(30, seed=9), seed=7)
    b = lw.select(strategy, 20, **inputs, seed=4)
    assert a.ids.tolist() == b.ids.tolist()
    assert a.scores.tolist() == b.scores.tolist()
    assert vars(strategy) == before
    assert type(strategy)() is not strategy


@pytest.mark.parametrize("name", ["random", "badge", "kcenter", "typiclust"])
def test_another_seed_gives_other_picks(name: str):
    inputs = _inputs(200)
    assert len({tuple(lw.select(name, 10, **inputs, seed=seed).ids) for seed in range(5)}) > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("check", invariances.INVARIANCES)
def test_the_invariances_of_verify(name: str, check: str):
    """Those above on other problems, and ids, precision, device, NaN, state, chance, inputs."""
    got = check_strategy(name, checks=[check])
    (outcome,) = got.outcomes
    assert outcome.status != "failed", outcome.why
    if outcome.status == "not applicable":
        assert (name, check) in NOT_APPLICABLE or check == "device", outcome.why


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["one row", "three rows", "zeros", "one class", "certain", "one column"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_degenerate_pools_fill_the_batch(name: str, kind: str, dtype: type):
    n = 90
    inputs = _inputs(n, dtype=dtype)
    if kind == "one row":
        inputs = {key: value[[7] * n] for key, value in inputs.items()}
    elif kind == "three rows":
        inputs = {key: value[np.arange(n) % 3] for key, value in inputs.items()}
    elif kind == "zeros":
        inputs["embedding"] = np.zeros((n, 3), dtype)
    elif kind == "one class":
        inputs["probs"] = inputs["label_probs"] = np.ones((n, 1), dtype)
        inputs["log_probs"] = np.zeros((n, 6, 1), dtype)
    elif kind == "certain":
        inputs["probs"] = inputs["label_probs"] = np.eye(4, dtype=dtype)[np.arange(n) % 4]
        inputs["log_probs"] = np.where(inputs["probs"] > 0, dtype(0), dtype(-np.inf))[:, None].repeat(6, 1)
    elif kind == "one column":
        inputs["embedding"] = inputs["embedding"][:, :1].copy()
    for k in (1, 5, n - 1, n):
        got = lw.select(name, k, **inputs, labelled=_labelled(name, inputs["embedding"][:4], inputs["probs"].shape[1]))
        assert len(set(got.ids.tolist())) == k
        assert np.isfinite(got.scores).all()


@pytest.mark.parametrize("name", ["kcenter", "badge", "probcover", "typiclust"])
def test_distinct_rows_come_before_copies(name: str):
    inputs = {key: np.repeat(value, 8, 0) for key, value in _inputs(6).items()}
    place = np.repeat(np.arange(6), 8)
    strategy = lw.strategies.ProbCover(delta=1e-6) if name == "probcover" else name
    got = lw.select(strategy, 6, **inputs)
    assert sorted(place[got.ids]) == list(range(6))


# --- memory ----------------------------------------------------------------------------------------------------------

MEASURE = """
import resource, sys
import numpy as np, torch
import labelwise as lw
torch.set_num_threads(1)
n, k = 20000, 300
rng = np.random.default_rng(0)
inputs = dict(probs=rng.dirichlet(np.ones(10), n).astype("f4"), embedding=rng.standard_normal((n, 16), dtype="f4"))
inputs["label_probs"] = rng.dirichlet(np.ones(10), n).astype("f4")
inputs["log_probs"] = np.log(rng.dirichlet(np.ones(10), (n, 6))).astype("f4")
inputs["duals"] = rng.exponential(size=n).astype("f4")
inputs |= dict(grad_sqnorm=rng.exponential(size=n).astype("f4"), grad_dot=rng.standard_normal(n, dtype="f4"))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
made = {name: lw.strategies.get(name) for name in lw.strategies.names()}
made["probcover"] = lw.strategies.ProbCover(delta=3.0)
for strategy in made.values():
    lw.select(strategy, 20, **{key: value[:300] for key, value in inputs.items()})
before = peak()
for name, strategy in made.items():
    lw.select(strategy, 20 if name == "bait" else k, **inputs)  # it sweeps the pool for each pick
    print(name, peak() - before)
"""


@pytest.mark.slow
def test_memory_stays_far_below_a_table_of_rows_by_rows():
    """20,000 rows: a float32 table of N x N takes 1,526 MB; the peak over all strategies stays under 64 MB."""
    run = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, timeout=280)
    assert run.returncode == 0, run.stderr
    grown = {line.split()[0]: float(line.split()[1]) for line in run.stdout.splitlines()}
    assert set(grown) == set(NAMES)
    assert max(grown.values()) < 64, grown
