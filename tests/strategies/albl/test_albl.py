"""ALBL: probabilities of the arms are those of the written rule, and a session goes on with the same bandit."""

import numpy as np
import pytest
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, NeedError
from labelwise.strategies import Albl
from labelwise.strategies.albl.reference import albl as slow_albl

RNG = np.random.default_rng(0)
P = RNG.dirichlet(np.ones(3), 40)
H = RNG.normal(size=(40, 4))


def labelled_arrays(ids: list[int], right: list[bool]) -> dict[str, np.ndarray]:
    """Labelled rows that the model has right, or not."""
    y = np.array(ids) % 3
    shown = np.where(right, y, (y + 1) % 3)
    probs = 0.7 * np.eye(3)[shown] + 0.1
    return {"ids": np.array(ids), "probs": probs, "y": y, "embedding": np.ones((len(ids), 4))}


def test_the_first_batch_of_an_equal_bandit():
    got = lw.select("albl", 5, probs=P, embedding=H, seed=1)
    assert got.notes["probabilities"] == {"confidence": 0.5, "kcenter": 0.5}
    assert got.notes["arm_weights"] == {"confidence": 1.0, "kcenter": 1.0}
    assert "reward" not in got.notes
    arms = [lw.select("albl", 1, probs=P, embedding=H, seed=seed).notes["arm"] for seed in range(300)]
    assert 0.4 < np.mean([arm == "kcenter" for arm in arms]) < 0.6


def test_the_arm_drawn_chooses_the_whole_batch():
    for seed in range(6):
        got = lw.select("albl", 5, probs=P, embedding=H, seed=seed)
        if got.notes["arm"] == "confidence":
            assert got == lw.select("confidence", 5, probs=P, embedding=H)


def test_probabilities_are_those_of_a_scripted_run():
    """Four rounds, scripted arms and scripted right answers; every number from the rule, written out."""
    arms, history, rewards = [1, 1, 0, 1], [], []
    ids, right = [100, 101, 102], [True, False, True]  # a first batch that no arm selected
    chance = dict.fromkeys(ids, 1.0)
    strategy = Albl()
    for number, arm in enumerate(arms):
        got = lw.select(
            Albl(history=tuple(history)), 2, probs=P, embedding=H, labelled=labelled_arrays(ids, right), seed=number
        )
        expected = slow_albl(rewards, arms[: len(rewards)])[-1]
        assert list(got.notes["probabilities"].values()) == pytest.approx(expected, rel=1e-12)
        new = [200 + 2 * number, 201 + 2 * number]
        # As if that arm had been drawn: only the rule is tested.
        history.append({**got.notes, "arm": strategy.arms[arm], "probability": expected[arm], "ids": new})
        ids, right = ids + new, [*right, True, number % 2 == 0]
        chance |= dict.fromkeys(new, expected[arm])
        rewards.append(float(np.mean([hit / chance[row] for row, hit in zip(ids, right)])))
    last = lw.select(Albl(history=tuple(history)), 2, probs=P, embedding=H, labelled=labelled_arrays(ids, right))
    assert list(last.notes["probabilities"].values()) == pytest.approx(slow_albl(rewards, arms)[-1], rel=1e-12)
    assert last.notes["reward"] == pytest.approx(rewards[-1])
    assert last.notes["probabilities"]["kcenter"] > 0.5


def test_a_history_needs_labelled_rows():
    first = lw.select("albl", 2, probs=P, embedding=H)
    again = Albl(history=({"ids": first.ids, **first.notes},))
    with pytest.raises(NeedError, match=r"labelled=dict\(probs="):
        lw.select(again, 2, probs=P, embedding=H)
    with pytest.raises(NeedError, match="Albl needs labelled y"):
        lw.select(again, 2, probs=P, embedding=H, labelled={"probs": P[:2], "embedding": H[:2]})


X = RNG.normal(size=(120, 5)).astype("float32")
Y = (X[:, 0] > 0).astype(int)


def learner() -> lw.TorchLearner:
    return lw.TorchLearner(lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2)), epochs=5)


def test_a_saved_session_goes_on_with_the_same_bandit(tmp_path):
    whole = lw.Session(X, learner(), "albl", classes=2, seed=3)
    stored = lw.Session(X, learner(), "albl", classes=2, seed=3, folder=tmp_path / "s")
    for number in range(5):
        a, b = whole.ask(6), stored.ask(6)
        assert a == b
        assert dict(a.notes) == dict(b.notes)
        if number > 1:
            assert "reward" in b.notes
            assert sum(weight > 1 for weight in b.notes["arm_weights"].values()) >= 1
        whole.tell(a.ids, Y[a.ids])
        stored.tell(b.ids, Y[b.ids])
        stored = lw.Session.load(tmp_path / "s", X, learner())
    entries = list(stored.ledger)
    assert set(entries[0].notes) == {"law"}  # the first batch is random
    assert {"arm", "probability", "arm_weights"} <= set(entries[1].notes)


def test_rows_nobody_asked_for_count_once():
    al = lw.Session(X, learner(), "albl", classes=2, seed=0)
    first = al.ask(5)
    al.tell(first.ids, Y[first.ids])
    picks = al.ask(4)
    other = [row for row in range(120) if row not in al.labelled and row not in picks.ids][:2]
    al.tell([*picks.ids, *other], Y[[*picks.ids, *other]])
    assert al.ledger.entries[-1].notes["unasked"] == other
    assert al.history()[-1]["ids"] == picks.ids.tolist()
    third = al.ask(2)
    p = picks.notes["probability"]
    right = al.fit().reader.logits(al.pool.inputs(al.labelled)).argmax(1).numpy() == Y[al.labelled]
    chance = np.array([p if row in picks.ids else 1.0 for row in al.labelled])
    assert third.notes["reward"] == pytest.approx(float((right / chance).mean()))


def test_other_strategies_write_no_notes():
    al = lw.Session(X, learner(), "margin", classes=2)
    for _ in range(2):
        picks = al.ask(3)
        al.tell(picks.ids, Y[picks.ids])
    assert all(set(entry.notes) <= {"law"} for entry in al.ledger)  # that of random first batches


def test_arguments():
    for bad in ({"arms": ("margin",)}, {"arms": ("margin", "margin")}, {"delta": 1.0}, {"arms": ("albl", "margin")}):
        with pytest.raises(ArgumentError, match="Albl"):
            Albl(**bad)
    with pytest.raises(ArgumentError, match="there is no strategy 'best'"):
        Albl(arms=("margin", "best"))
    three = Albl(arms=("entropy", "margin", "badge"))
    got = lw.select(three, 3, probs=P, embedding=H)
    assert sum(got.notes["probabilities"].values()) == pytest.approx(1)
