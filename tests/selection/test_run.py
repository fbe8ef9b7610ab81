"""A selection that is estimated to take hours warns before it begins."""

import warnings

import numpy as np
import pytest

import labelwise as lw
from labelwise.selection.run import HOUR, LongSelection
from labelwise.selection.strategy import Size
from labelwise.signals.spec import Embedding, Features, LabelProbs, Probs

rng = np.random.default_rng(0)
INPUTS = {
    "probs": rng.dirichlet(np.ones(3), 60),
    "label_probs": rng.dirichlet(np.ones(3), 60),
    "embedding": rng.normal(size=(60, 4)),
}
LONG = {
    "probcover": ("embedding",),
    "bait": ("probs", "embedding"),
    "ally": ("embedding", "duals"),
    "sabal-iht": ("probs", "label_probs", "embedding"),
    "sabal-greedy": ("probs", "label_probs", "embedding"),
}


@pytest.mark.parametrize("name", LONG)
def test_hours_are_warned_of_at_the_start_and_the_picks_stay(name: str, monkeypatch: pytest.MonkeyPatch):
    arrays = {one: (INPUTS | {"duals": rng.uniform(size=60)})[one] for one in LONG[name]}
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a small pool is nothing to speak of
        expected = lw.select(name, 5, **arrays)
    monkeypatch.setattr(type(lw.strategies.get(name)), "work", lambda strategy, size: 3 * HOUR)
    with pytest.warns(LongSelection, match=r"needs about .* 5 of 60 rows, some 3 hours .* random part"):
        got = lw.select(name, 5, **arrays)
    assert got.ids.tolist() == expected.ids.tolist()


def test_the_advice_works():
    part = lw.select("random", 20, ids=np.arange(60)).ids
    got = lw.select("probcover", 5, embedding=INPUTS["embedding"][part], ids=part)
    assert set(got.ids.tolist()) <= set(part.tolist())


def test_what_takes_hours_at_a_million_rows():
    columns = {Probs(): (1000,), LabelProbs(): (1000,), Embedding(): (512,), Features(): (512,)}
    long = set()
    for name in lw.strategies.names():
        strategy = lw.strategies.get(name)
        asked = {part for signal in strategy.needs.pool for part in signal.stored()}
        size = Size(1_000_000, 10_000, {signal: shape for signal, shape in columns.items() if signal in asked})
        if strategy.work(size) > HOUR:
            long.add(name)
    assert long == set(LONG)
