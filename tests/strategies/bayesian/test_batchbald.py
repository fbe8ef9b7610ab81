import math
from pathlib import Path

import numpy as np
import pytest
import torch

import labelwise as lw
from labelwise.rng import Key
from labelwise.strategies import BatchBald
from labelwise.strategies.bayesian import batchbald
from labelwise.strategies.bayesian import reference as slow
from labelwise.strategies.bayesian.joint_entropy import Joint, probabilities
from labelwise.verify.problems import by_lot
from tuned import tuned


def _problem(seed: int, n: int = 12, draws: int = 6, classes: int = 3, scale: float = 2.0) -> np.ndarray:
    return slow.random_log_probs(np.random.default_rng(seed), n, draws, classes, scale)


@pytest.mark.parametrize("seed", range(8))
def test_exact_mode_is_the_enumeration(seed: int):
    log_probs = _problem(seed, n=9, draws=int(np.random.default_rng(seed).integers(2, 7)), classes=2 + seed % 2)
    ids, gains = slow.batchbald(log_probs, 4)
    got = lw.select(BatchBald(strict=True), 4, log_probs=log_probs)
    assert got.ids.tolist() == ids
    assert got.scores == pytest.approx(gains, abs=1e-10)
    assert got.notes["exact"] == got.notes["greedy"] == 4
    assert got.notes["information"] == pytest.approx(slow.batch_information(np.exp(log_probs[ids])), abs=1e-10)


def test_joint_entropies_are_those_of_the_enumeration():
    probs = np.exp(_problem(0, n=5))
    joint = Joint.empty(6, torch.device("cpu"))
    for t in range(4):
        value = slow.batch_information(probs[:t]) if t else 0.0
        gains = joint.gain(torch.tensor(probs))
        expected = [slow.batch_information(probs[[*range(t), i]]) - value for i in range(5)]
        assert gains.tolist() == pytest.approx(expected, abs=1e-10)
        assert float(joint.q_M.sum()) == pytest.approx(1)
        assert len(joint.q_M) == 3**t
        joint = joint.with_row(torch.tensor(probs[t]), 1000, Key(0))


def _plain(log_probs: np.ndarray, k: int, configurations: int, key: Key) -> list[int]:
    """Greedy that looks at every row for every pick, with the same configurations."""
    p = probabilities(torch.tensor(log_probs))
    joint = Joint.empty(p.shape[1], p.device)
    taken: list[int] = []
    for _ in range(k):
        gain = joint.gain(p)
        gain[taken] = -math.inf
        best = int((gain >= gain.max() - batchbald.TIED).nonzero()[0])
        taken.append(best)
        joint = joint.with_row(p[best], configurations, key.fold("pick", len(taken)))
    return taken


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("configurations", [100_000, 300])
def test_lazy_is_plain_greedy(seed: int, configurations: int):
    strategy = tuned(BatchBald(configurations, strict=True), groups=8, first=2, together=2)
    log_probs = _problem(seed, n=60, draws=9, classes=3)
    log_probs = np.concatenate([log_probs, log_probs[:20]])  # with copies: ties
    k, ids = 8, by_lot(np.arange(80), seed)
    got = lw.select(strategy, k, log_probs=log_probs, ids=ids, seed=seed)
    if configurations == 300:  # stale gains are bounds up to the noise of the sample
        assert set(got.ids[:5]) == set(ids[_plain(log_probs, 5, configurations, Key(seed))])
    else:
        assert got.ids.tolist() == ids[_plain(log_probs, k, configurations, Key(seed))].tolist()
    assert got.notes["evaluated"] < 80 * (k - 1)


def test_few_rows_are_evaluated_again():
    got = lw.select("batchbald", 5, log_probs=_problem(0, n=2000, draws=20, classes=3, scale=0.7))
    assert got.notes["evaluated"] < 1000


def test_a_coarse_joint_bounds_the_gain():
    p = probabilities(torch.tensor(_problem(1, n=30, draws=5)))
    joint = Joint.empty(5, p.device)
    for t in range(4):
        joint = joint.with_row(p[t], 40, Key(t))
        coarse = joint.coarse(4)
        assert len(coarse.q_M) <= 9
        assert coarse is joint or len(coarse.q_M) < len(joint.q_M)
        assert float(coarse.q_M.sum()) == pytest.approx(1)
        assert bool((coarse.gain(p) >= joint.gain(p) - 1e-12).all())


def test_sampled_configurations_come_close_to_all_of_them():
    p = probabilities(torch.tensor(_problem(2, n=40, draws=8, classes=3)))
    exact = sampled = Joint.empty(8, p.device)
    for t in range(6):
        sampled = sampled._sampled(1000, Key(9)) if t == 3 else sampled
        exact, sampled = exact.with_row(p[t], 10**6, Key(t)), sampled.with_row(p[t], 10**6, Key(t))
    assert exact.is_exact
    assert not sampled.is_exact
    assert len(sampled.q_M) == 8000
    # 8,000 samples of an entropy of at most log 3: 0.004 is one standard error.
    assert float((exact.gain(p) - sampled.gain(p)).abs().max()) < 0.02
    assert sampled.draw_MK.sum(1) == pytest.approx(torch.ones(8000))


def test_sampled_configurations_follow_their_probabilities():
    p_KC = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.0, 0.9]], dtype=torch.float64)
    joint = Joint.empty(2, p_KC.device)._sampled(5000, Key(1))._extended(p_KC, Key(2))
    # Given label 0 the first draw has probability 0.7 / 0.8, given 1 it is certain, given 2 it is 0.1 / 1.0.
    first = joint.draw_MK[:, 0]
    for value, share in ((0.875, 0.4), (1.0, 0.1), (0.1, 0.5)):
        assert float((first - value).abs().lt(1e-12).double().mean()) == pytest.approx(share, abs=1e-3)


@pytest.mark.parametrize("draws", [1, 2, 5, 30])
def test_information_never_passes_log_k(draws: int):
    log_probs = _problem(3, n=40, draws=draws, classes=4, scale=8.0)
    got = lw.select(BatchBald(configurations=4**6, strict=True), 6, log_probs=log_probs)
    assert got.notes["exact"] == 6
    assert got.notes["information"] <= math.log(draws) + 1e-9
    assert got.notes["ceiling"] == pytest.approx(math.log(draws))


def test_a_saturated_batch_is_filled_by_bald():
    log_probs = _problem(4, n=100, draws=5, classes=4, scale=8.0)
    got = lw.select("batchbald", 40, log_probs=log_probs)
    greedy = got.notes["greedy"]
    assert 1 < greedy < 20
    assert got.notes["filled_by_bald"] == 40 - greedy
    assert got.notes["stopped"].startswith("information saturated")
    assert len(set(got.ids.tolist())) == 40
    by_bald = [i for i in lw.select("bald", 100, log_probs=log_probs).ids if i not in set(got.ids[:greedy].tolist())]
    assert got.ids[greedy:].tolist() == by_bald[: 40 - greedy]
    strict = lw.select(BatchBald(strict=True), 40, log_probs=log_probs)
    assert strict.notes["greedy"] == 40
    assert strict.ids[:greedy].tolist() == got.ids[:greedy].tolist()


def test_with_a_prefilter_candidates_are_the_rows_of_highest_bald():
    log_probs = _problem(5, n=200)
    got = lw.select(BatchBald(prefilter=3), 4, log_probs=log_probs)
    assert got.notes["rows"] == 12
    top = set(lw.select("bald", 12, log_probs=log_probs).ids.tolist())
    assert set(got.ids.tolist()) <= top
    assert lw.select(BatchBald(prefilter=3, strict=True), 4, log_probs=log_probs).notes["rows"] == 200
    assert lw.select(BatchBald(prefilter=0), 4, log_probs=log_probs).notes["rows"] == 200


def test_the_prefilter_is_on_by_itself_in_large_pools():
    log_probs = _problem(5, n=200)
    assert lw.select(tuned(BatchBald(), large_pool=100), 4, log_probs=log_probs).notes["rows"] == 40


def test_copies_of_a_row_tell_less_than_other_rows():
    sure, other = np.array([0.99, 0.01]), np.array([0.9, 0.1])
    one = np.array([[sure, sure, sure[::-1], sure[::-1]]])  # which half of the draws
    others = np.array([[other, other[::-1], other, other[::-1]], [other, other[::-1], other[::-1], other]])
    log_probs = np.log(np.concatenate([np.repeat(one, 10, 0), others]))
    ids = by_lot(np.arange(12))
    assert lw.select("bald", 3, log_probs=log_probs, ids=ids).ids.tolist() == ids[:3].tolist()
    got = lw.select("batchbald", 3, log_probs=log_probs, ids=ids)
    assert got.ids.tolist() == ids[slow.batchbald(log_probs, 3)[0]].tolist()
    assert set(got.ids) - set(ids[:10])


@pytest.mark.parametrize(
    "kwargs", [{"configurations": 0}, {"configurations": 1.5}, {"prefilter": -1}, {"strict": "no"}]
)
def test_parameters_are_checked(kwargs: dict):
    with pytest.raises(lw.errors.ArgumentError, match="BatchBald"):
        BatchBald(**kwargs)
    assert BatchBald(configurations=np.int64(50), prefilter=np.int32(2)) == BatchBald(50, 2)


def test_a_peer_measured_at_smaller_sizes_is_extrapolated_by_its_power(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    import bayes

    def quadratic(case: str, peer: str, size: list[str], folder: Path) -> dict:
        rows = bayes.FULL[case][0] // int(size[1])
        return {
            "seconds": 1.0 if peer == "ours" else rows**2 / 1e4,
            "picks": [1, 2, 3] if peer == "ours" else [1, 2, 4],
        }

    monkeypatch.setattr(bayes, "in_process", quadratic)
    found = bayes.from_smaller("batchbald", "baal", [20, 10], tmp_path)
    assert found["seconds"] == pytest.approx(10_000**2 / 1e4)
    assert "25.0 s at 500 rows and 100.0 s at 1,000, where ours took 1.0 s: rows^2.00" in found["remark"]
    ours = {"seconds": 10.0, "picks": [7, 8, 9]}
    assert "| baal | 10000.0† | 1000.0 x | 2 of 3 |" in "\n".join(
        bayes.table("batchbald", bayes.FULL["batchbald"], {"ours": ours, "baal": found})
    )
    monkeypatch.setattr(bayes, "in_process", lambda *args: {"stopped": "not installed"})
    assert bayes.from_smaller("batchbald", "baal", [20, 10], tmp_path) == {"stopped": "not installed"}
