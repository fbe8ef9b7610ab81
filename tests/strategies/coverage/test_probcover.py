import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.shards import Shards, shards_of
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Features
from labelwise.strategies import ProbCover
from labelwise.strategies.coverage import kmeans as cluster
from labelwise.strategies.coverage.radius_index import Balls, RadiusIndex, build_index
from labelwise.strategies.coverage.reference import largest_pure_radius, probcover, purity
from labelwise.verify.problems import by_lot
from tuned import tuned

F = Features()
NONE = Shards([])


@pytest.mark.parametrize(
    ("columns", "listed", "list_pairs"), [(3, 1024, 1 << 18), (4096, 2, 1 << 18), (4096, 7, 9), (9, 1, 1)]
)
@pytest.mark.parametrize("seed", range(10))
def test_picks_are_those_on_the_explicit_graph(seed: int, columns: int, listed: int, list_pairs: int):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(50, 2))
    if seed % 3 == 0:
        x = np.round(2 * x)  # copies, and rows exactly at distance delta
    ids = by_lot(rng.permutation(300)[:50] - 100, seed)
    labelled = rng.normal(size=(4, 2)) if seed % 2 else np.empty((0, 2))
    delta, k = float(rng.choice([0.25, 0.5, 1.0, 2.0])), int(rng.integers(1, 51))
    slow = probcover(x, ids, labelled, delta, k)
    labelled_arrays = {"embedding": labelled} if len(labelled) else None
    strategy = tuned(ProbCover(delta=delta), columns=columns, listed=listed, list_pairs=list_pairs)
    got = lw.select(strategy, k, embedding=x, ids=ids, labelled=labelled_arrays, seed=seed)
    assert got.ids.tolist()[: len(slow)] == [i for i, _ in slow]
    assert got.scores.tolist() == [n for _, n in slow] + [0] * (k - len(slow))
    assert got.notes["delta"] == delta
    assert got.notes["at_random"] == k - len(slow)
    assert set(got.ids) <= set(ids)
    edge = ((x[:, None] - x[None]) ** 2).sum(2) <= delta**2
    place = {int(i): row for row, i in enumerate(ids)}
    covered = edge[[place[int(i)] for i in got.ids[: len(slow)]]].any(0)
    if len(labelled):
        covered |= (((x[:, None] - labelled[None]) ** 2).sum(2) <= delta**2).any(1)
    assert got.notes["covered"] == pytest.approx(covered.mean())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("seed", range(6))
def test_picks_along_a_few_directions_are_those_on_the_explicit_graph(seed: int, dtype: type):
    """Features of a falling spectrum, as those of a trained network are: few directions rule most pairs out."""
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(300, 80)) / np.arange(1, 81)) @ np.linalg.qr(rng.normal(size=(80, 80)))[0]
    x[50:60] = x[:10]
    x = (x + 3.0 * (seed % 2)).astype(dtype)
    far = np.sqrt(((x[:, None] - x[None]) ** 2).sum(2))
    delta = 1.000001 * float(np.quantile(far, 0.01 + 0.002 * seed))  # no pair lies at the radius but for rounding
    pool = shards_of(torch.arange(len(x)), {F: torch.as_tensor(x)}, 2)
    assert build_index(pool, F, delta, Key(seed), pair_cost=1).directions_DE is not None
    ids = by_lot(np.arange(300), seed)
    slow = probcover(x.astype(np.float64), ids, np.empty((0, 80)), delta, 40)
    got = lw.select(tuned(ProbCover(delta=delta), pair_cost=1), 40, embedding=x, ids=ids, seed=seed)
    assert got.ids.tolist()[: len(slow)] == [i for i, _ in slow]
    assert got.scores.tolist() == [n for _, n in slow] + [0] * (40 - len(slow))


@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_balls_contain_the_rows_within_the_radius(few: bool, dtype: torch.dtype):
    rng = np.random.default_rng(7)
    x = torch.tensor(np.round(rng.normal(size=(200, 40)) * 2) / 2, dtype=dtype)  # many pairs exactly at the radius
    y = torch.cat([x[:20], torch.tensor(rng.normal(size=(10, 40)), dtype=dtype)])
    far = ((x[:, None].double() - y[None].double()) ** 2).sum(2)
    delta = float(np.sqrt(np.sort(far[:, :20].numpy().ravel())[600]))
    inside = far <= delta**2
    assert 0.05 < inside.double().mean() < 0.5
    along = torch.linalg.qr(torch.tensor(rng.normal(size=(40, 12)), dtype=torch.float64)).Q.to(dtype) if few else None
    balls = RadiusIndex(F, delta, along).balls(Rows(torch.arange(30), {F: y}))
    rows = Rows(torch.arange(200), {F: x})
    assert balls.count_balls(rows).tolist() == inside.sum(1).tolist()
    for who in (torch.arange(200) % 3 == 0, torch.ones(200, dtype=torch.bool), torch.zeros(200, dtype=torch.bool)):
        of_row, of_ball = balls.count_both(rows, who)
        assert of_row.tolist() == inside.sum(1).tolist()
        assert of_ball.tolist() == inside[who].sum(0).tolist()
    at, centre = balls.pairs(rows)
    assert set(zip(at.tolist(), centre.tolist())) == set(map(tuple, inside.nonzero().tolist()))
    assert len(at) == int(inside.sum())


def _radius(x: np.ndarray, number: np.ndarray, share: float, monkeypatch: pytest.MonkeyPatch) -> float:
    def kmeans(pool, signal, clusters, key):
        pool.map(lambda s: s.state.update(cluster=torch.as_tensor(number)[s.ids]))
        return torch.zeros(int(number.max()) + 1, 1)

    monkeypatch.setattr(cluster, "kmeans", kmeans)
    pool = shards_of(torch.arange(len(x)), {F: torch.as_tensor(x)}, 2)
    return ProbCover(purity=share).select(pool, NONE, 1, Key(0)).notes["delta"]


@pytest.mark.parametrize("share", [0.95, 0.9, 0.8, 0.5, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_delta_is_the_largest_pure_radius_by_brute_force(seed: int, share: float, monkeypatch: pytest.MonkeyPatch):
    """Between the last distance at which enough balls are pure and the next, at which they are not."""
    rng = np.random.default_rng(seed)
    x, number = rng.normal(size=(40, 2)), rng.integers(0, 3, 40)
    x[:, 0] += 3 * number
    delta = _radius(x, number, share, monkeypatch)
    enough, too_far = largest_pure_radius(x, number, share)
    assert purity(x, number, delta) + 1e-12 >= share
    assert delta < too_far
    # Up to the last of the gaps to another cluster below, since nothing changes between two of them.
    gaps = [np.sqrt(((x[number != c] - row) ** 2).sum(1).min()) for row, c in zip(x, number)]
    below = max([gap for gap in gaps if gap < too_far * (1 - 1e-9)], default=0.0)
    assert below <= delta * (1 + 1e-12)
    assert enough <= too_far


def test_radius_finds_the_blobs():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.array([c, 0.0]) + 0.3 * rng.normal(size=(30, 2)) for c in (0, 10, 20, 30)])
    blob = np.repeat(np.arange(4), 30)
    got = lw.select(ProbCover(classes=4), 4, embedding=x)
    assert sorted(blob[got.ids]) == [0, 1, 2, 3]
    assert 0.5 < got.notes["delta"] < 10
    # A ball around any labelled row covers its blob: it is not chosen again.
    again = lw.select(ProbCover(delta=3.0), 3, embedding=x, labelled={"embedding": [[20.0, 0.0]]})
    assert sorted(blob[again.ids]) == [0, 1, 3]


def test_fewer_probes_than_rows():
    rng = np.random.default_rng(0)
    x = np.concatenate([np.array([c, 0.0]) + rng.normal(size=(150, 2)) for c in (0, 20)])
    delta = lw.select(tuned(ProbCover(classes=2), probes=100, columns=32), 2, embedding=x).notes["delta"]
    assert 10 < delta < 20


@pytest.mark.parametrize("x", [np.zeros((12, 2)), np.ones((1, 3)), np.repeat(np.eye(2), 6, 0)])
def test_copies_only(x: np.ndarray):
    got = lw.select("probcover", len(x), embedding=x)
    assert sorted(got.ids) == list(range(len(x)))
    assert got.notes["covered"] == 1
    assert got.scores[0] == len(x) / len(np.unique(x, axis=0))


@pytest.mark.parametrize("blobs", [1, 3])
def test_a_pool_that_is_soon_covered(blobs: int):
    """More rows are requested than cover it: the rest is drawn from the rows that are not selected."""
    rng = np.random.default_rng(0)
    x = np.repeat(30.0 * np.arange(blobs), 1200 // blobs)[:, None] + 0.1 * rng.random((1200, 2))
    got = lw.select(ProbCover(delta=1.0), 1100, embedding=x)
    assert len(set(got.ids)) == 1100
    assert got.notes["at_random"] == 1100 - blobs
    assert got.notes["covered"] == 1
    assert len(set(lw.select(ProbCover(delta=1.0), 600, embedding=np.zeros((600, 3), "float32")).ids)) == 600


def test_shards_without_rows_after_the_centres():
    strategy = tuned(ProbCover(delta=0.6), columns=50)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(400, 3)))
    one, many = (shards_of(torch.arange(400), {F: x}, count) for count in (1, 7))
    expected = strategy.select(one, NONE, 60, Key(0))
    got = strategy.select(many, NONE, 60, Key(0))
    assert got.ids.tolist() == expected.ids.tolist()


def test_one_long_row_leaves_the_others_alone(monkeypatch: pytest.MonkeyPatch):
    """The rounding bound is for each row: one far row does not force all pairs to be measured one by one."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 80)).astype("float32")
    rows = Rows(torch.arange(500), {F: torch.from_numpy(x)})
    measured = []
    monkeypatch.setattr(Balls, "_measure", lambda self, x, at, centre: measured.append(len(at)) or at > -1)
    for along in (None, torch.linalg.qr(torch.from_numpy(rng.normal(size=(80, 16)))).Q.float()):
        for scale in (1.0, 1e5):
            rows.columns[F][7] *= scale
            RadiusIndex(F, 5.0, along).balls(rows).count_balls(rows)
    assert measured[0] <= measured[1] <= measured[0] + 1000  # the long row with each of the others
    assert measured[3] <= measured[2] + 1000


def test_the_rest_is_drawn_by_seed():
    x = np.zeros((50, 2))
    a, b, c = (lw.select(ProbCover(delta=1.0), 10, embedding=x, seed=s).ids.tolist() for s in (1, 1, 2))
    assert a == b
    assert a[1:] != c[1:]
    assert [a[0], c[0]] == [by_lot(np.arange(50), s)[0] for s in (1, 2)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delta", 0),
        ("delta", -1.0),
        ("delta", float("nan")),
        ("purity", 0),
        ("purity", 1.1),
        ("purity", float("nan")),
        ("classes", 1),
        ("classes", 2.5),
        ("delta", "wide"),
    ],
)
def test_bad_parameters(name: str, value: object):
    with pytest.raises(ArgumentError, match=name):
        ProbCover(**{name: value})  # type: ignore[arg-type]


def test_bad_numbers_in_the_labelled_rows_are_found():
    x = np.random.default_rng(0).normal(size=(20, 2))
    for strategy in (ProbCover(), ProbCover(delta=0.5)):
        with pytest.raises(lw.errors.NumericsError, match="nan"):
            lw.select(strategy, 3, embedding=x, labelled={"embedding": [[0.0, 0.0], [np.nan, 1.0]]})


def test_state_is_gone_afterwards():
    pool = shards_of(torch.arange(20), {F: torch.randn(20, 3, generator=torch.Generator().manual_seed(0))}, 3)
    ProbCover().select(pool, NONE, 5, Key(0))
    assert all(set(keys) <= {"by_id"} for keys in pool.map(lambda shard: list(shard.state)))
