"""The tables of SABAL: the printed rule of IHT next to the exact one, and an ablation in which the variance acts."""

from __future__ import annotations

import numpy as np
import pytest

import labelwise as lw
from labelwise.reproduce.run_tables import TABLES, claims_of, compared
from labelwise.reproduce.sabal.timing import TABLE as TABLE3
from labelwise.reproduce.verdicts import Stat

BY_NAME = {table.name: table for table in (*TABLES, TABLE3)}


@pytest.mark.parametrize("table", ["sabal/table1", "sabal/table2", "sabal/table3", "sabal/figure4"])
def test_the_printed_rule_is_next_to_the_exact_one(table):
    for sheet in BY_NAME[table].sheets:
        by_label = {spec.label: spec.strategy() for spec in sheet.strategies}
        assert by_label["IHT"].prox == "exact"
        assert by_label["IHT, printed rule"].prox == "paper"
        assert by_label["IHT, printed rule"].beta == by_label["IHT"].beta
    paper = {"MNIST": {"IHT": Stat(1.0, 0.1)}}
    both = {"IHT": Stat(2.0, 0.1), "IHT, printed rule": Stat(3.0, 0.1)}
    assert compared(paper, BY_NAME[table], {"MNIST": both})["MNIST"]["IHT, printed rule"] == Stat(1.0, 0.1)
    assert compared(paper, BY_NAME[table], {"MNIST": {"IHT": Stat(2.0, 0.1)}}) == paper


def test_the_variance_acts_in_the_ablation_of_iht():
    """Before, the paper's alpha left it out, and IHT picked as with bias only."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(300, 1, 4)) * 2 + rng.normal(size=(300, 20, 4))
    log_probs = z - np.log(np.exp(z).sum(2, keepdims=True))
    for sheet in BY_NAME["sabal/figure4"].sheets:
        picks = {spec.label: lw.select(spec.strategy(), 40, log_probs=log_probs) for spec in sheet.strategies[:-1]}
        iht, bias = picks["IHT"], picks["IHT, bias only"]
        assert iht.notes["share"] == pytest.approx(0.5, rel=1e-5)
        assert set(iht.ids.tolist()) != set(bias.ids.tolist())
        assert bias.notes["share"] == 0


def test_claims_are_about_the_methods_that_were_run():
    """Pages of earlier runs have no printed rule."""
    both = {name: Stat(90.0, 1.0) for name in ("BADGE", "Greedy", "IHT", "IHT, printed rule", "Random")}
    named = [claim.text for claim in claims_of(BY_NAME["sabal/table2"], {"MNIST": both})]
    assert [text for text in named if "printed" in text] == ["IHT lies above IHT, printed rule on MNIST"]
    del both["IHT, printed rule"]
    named = [claim.text for claim in claims_of(BY_NAME["sabal/table2"], {"MNIST": both})]
    assert not any("printed" in text for text in named)


def test_a_weak_printed_rule_refutes_no_claim():
    """A claim of the paper is about the method, not about an error in print."""
    means = {"BADGE": 91.0, "Greedy": 90.0, "IHT": 90.0, "IHT, printed rule": 80.0, "Random": 87.0}
    row = {name: Stat(mean, 1.0, 10, {seed: mean + seed / 100 for seed in range(10)}) for name, mean in means.items()}
    claims = {claim.text: claim.ask({"MNIST": row})[0] for claim in claims_of(BY_NAME["sabal/table2"], {"MNIST": row})}
    assert claims["Random lies below every informed method on MNIST"] is True
    assert claims["IHT lies above IHT, printed rule on MNIST"] is True
