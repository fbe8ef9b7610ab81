"""The verdict: decided by the paired test after Holm's correction, with labels saved as the size of it."""

import math

import numpy as np
import pytest

from labelwise.io.text import many, markdown_table
from labelwise.stats.curves import Curves
from labelwise.stats.metric import metric_named
from labelwise.stats.paired import Paired, least_p, seeds_needed
from labelwise.stats.record import Record
from labelwise.stats.savings import Saved
from labelwise.stats.summary import summarise
from labelwise.stats.verdict import LEVEL, Verdict, sentence, verdicts


def curves(name, areas, counts=3):
    """Flat curves, one for each seed."""
    values_ST = np.tile(np.array(areas, dtype=np.float64)[:, None], (1, counts))
    return Curves(name, metric_named("accuracy"), tuple(range(len(areas))), np.arange(counts) * 10.0 + 10, values_ST)


def saved(share=0.31, low=0.12, high=0.44, bound="exact"):
    return Saved("a", "random", 0.9, 69, 100, share, bound, low, high, 8)


def found(difference=1.0, p=0.01, seeds=8, compared=1):
    return Verdict(Paired(difference, p, seeds), p, least_p(seeds), compared)


@pytest.mark.parametrize(
    ("verdict", "size", "words"),
    [
        (found(), saved(), "better than random: it saves about 31 % of labels (12 % to 44 %)"),
        (found(), saved(0.1, -0.1, 0.4), "better than random: labels saved 10 % (−10 % to 40 %, which includes 0)"),
        (
            found(),
            saved(0.44, 0.44, 1.0, "at least"),
            "better than random: it saves at least 44 % of labels (44 % or more)",
        ),
        (
            found(),
            saved(-0.3, -0.5, -0.1),
            "better than random: over the whole curve, though at the level both reach it needs about 30 % more labels "
            "(10 % to 50 %)",
        ),
        (found(-1.0), saved(-0.3, -0.5, -0.1), "worse than random: it needs about 30 % more labels (10 % to 50 %)"),
        (
            found(-1.0),
            saved(-0.11, -math.inf, -0.11, "at most"),
            "worse than random: it needs at least 11 % more labels (11 % or more)",
        ),
        (found(-1.0), saved(0.1, -0.1, 0.4), "worse than random: labels saved 10 % (−10 % to 40 %, which includes 0)"),
        (found(p=0.2), saved(), "no measurable difference from random"),
        (found(0.0, p=0.01), saved(), "no measurable difference from random"),
        (found(seeds=5), saved(), "better than random: it saves about 31 % of labels (12 % to 44 %)"),
        (found(seeds=4, p=math.nan), saved(), "cannot be compared yet: 4 seeds, 5 or more are needed"),
        (found(seeds=1, p=math.nan, compared=3), saved(), "cannot be compared yet: 1 seed, 5 or more are needed"),
        (
            found(),
            saved(math.nan, -math.inf, 1.0, "unknown"),
            "better than random: neither it nor random reaches the level at which labels are counted",
        ),
    ],
)  # fmt: skip
def test_words_follow_the_test_and_never_the_interval(verdict, size, words):
    assert sentence(verdict, size) == words


def test_a_strategy_that_loses_is_never_said_to_save():
    said = sentence(found(-1.0), saved())
    assert said.startswith("worse than random: over the whole curve")
    assert "saves" not in said
    assert "needs about 31 % fewer labels" in said


def test_the_number_of_seeds_needed_is_the_first_that_can_pass():
    for compared in (1, 2, 3, 8, 20):
        needed = seeds_needed(compared, LEVEL)
        for seeds, passes in ((needed, True), (needed - 1, False)):
            ahead = {f"s{i}": curves(f"s{i}", np.full(seeds, 0.6)) for i in range(compared)}
            outcomes = {
                one.outcome for one in verdicts({"random": curves("random", np.full(seeds, 0.5)), **ahead}).values()
            }
            assert outcomes == ({"better"} if passes else {"open"}), (compared, seeds)


def test_each_strategy_compared_costs_and_the_oracle_does_not():
    random = curves("random", np.full(7, 0.5))
    good, same = (
        curves("good", 0.5 + np.array([4, 1, 3, -1, 2, 3, 1]) / 100),
        curves("same", 0.5 + np.array([1, -1, 1, -1, 1, -1, 1]) / 100),
    )
    few = {"random": random, "good": good}
    assert verdicts(few)["good"].outcome == "better"
    assert verdicts({**few, "oracle": good})["good"] == verdicts(few)["good"]
    assert "oracle" not in verdicts({**few, "oracle": good})
    more = verdicts({**few, "b": same, "c": same, "d": same})
    assert more["good"].p == pytest.approx(4 * more["good"].test.p)
    assert (more["good"].outcome, more["good"].single) == ("same", "better")


def test_many_strategies_at_ten_seeds_need_more_seeds():
    ahead = {f"s{i}": curves(f"s{i}", np.full(10, 0.6)) for i in range(30)}
    found = verdicts({"random": curves("random", np.full(10, 0.5)), **ahead})
    assert {one.outcome for one in found.values()} == {"open"}  # 30 x 2 / 2^10 is above 5 %
    assert found["s0"].needed == 11


def test_one_strategy_with_fewer_seeds_is_open_and_the_others_are_not():
    areas = {"random": np.full(8, 0.5), "good": np.full(8, 0.6), "young": np.full(4, 0.9)}
    got = verdicts({name: curves(name, values) for name, values in areas.items()})
    assert {name: one.outcome for name, one in got.items()} == {"good": "better", "young": "open"}


def test_the_table_says_what_the_test_says():
    """Better early and worse at the end: labels saved at the common level alone would say that it loses."""
    values = {"random": (0.3, 0.4, 0.5, 0.9), "early": (0.3, 0.8, 0.85, 0.87)}
    records = [
        Record(f"d/m/{name}/{seed}", name, seed, place, 10 + 10 * place, {"accuracy": value + 0.001 * seed})
        for name, curve in values.items()
        for seed in range(8)
        for place, value in enumerate(curve)
    ]
    row = summarise(records).rows[1]
    assert row.found.outcome == "better"
    assert row.saved.below_zero
    assert row.verdict.startswith("better than random: over the whole curve, though at the level both reach it needs")


def test_counts_and_cells():
    assert many(1, "data set") == "1 data set"
    assert many(0, "batch") == "0 batches"
    lines = markdown_table(["a", "b|c"], [["x|y", "1"]]).splitlines()
    assert lines == ["| a | b\\|c |", "| --- | ---: |", "| x\\|y | 1 |"]
