"""`labelwise verify`: our strategies pass, planted bugs are caught, and what failed can be looked at again."""

import importlib
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import labelwise as lw
from labelwise.cli import app
from labelwise.errors import ArgumentError, NeedError
from labelwise.rng import Key
from labelwise.selection import Scored, Selection, Strategy
from labelwise.selection.selection import equal_weights
from labelwise.shards import Shard, Shards
from labelwise.signals.rows import Rows
from labelwise.signals.spec import Embedding, GradSketch, Needs, Prediction, Probs
from labelwise.strategies.sabal import reference as slow_sabal
from labelwise.strategies.uncertainty.reference import margin, top_k
from labelwise.verify import INVARIANCES, CheckFailed, NotApplicable, check_strategy, invariances
from labelwise.verify.case import CHECKS, Case
from labelwise.verify.chi_square import chi_square_p
from labelwise.verify.problems import problem_for
from labelwise.verify.result import Outcome, Report, save_case
from labelwise.verify.run import plan_one, run

NAMES = lw.strategies.names()


# --- our own strategies ----------------------------------------------------------------------------------------------


def test_every_strategy_has_a_reference():
    assert set(CHECKS) == set(NAMES)
    assert all("reference" in checks for checks in CHECKS.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_references_laws_and_theorems(name: str, seed: int):
    """The invariances are in test_every_strategy.py."""
    checks = list(CHECKS[name])
    got = check_strategy(name, seed=seed, checks=checks)
    assert got.ok, str(got)
    assert {one.status for one in got.outcomes} == {"passed"}
    assert [one.check for one in got.outcomes] == checks


# --- planted bugs ----------------------------------------------------------------------------------------------------


class Mine(Scored):
    """Margin, as somebody else would write it."""

    needs = Needs(pool=(Probs(),))

    def score(self, rows: Rows, key: Key) -> Tensor:
        top = rows.tensor(Probs()).topk(2).values
        return top[:, 1] - top[:, 0]


class ByPlace(Mine):
    """Row order: the score hangs on where in its block a row is."""

    def score(self, rows: Rows, key: Key) -> Tensor:
        return Mine.score(self, rows, key) + 0.01 * torch.arange(len(rows), dtype=torch.float64)


class SmallestId(Mine):
    """Ties go to the smaller id."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        parts = pool.map(lambda shard: (shard.ids.cpu(), shard.each(lambda rows: self.score(rows, key)).cpu()))
        ids, scores = (torch.cat(column) for column in zip(*parts))
        by_id = ids.argsort()
        best = by_id[scores[by_id].argsort(descending=True, stable=True)][:k]
        return equal_weights(ids[best], scores[best])


class LargestId(SmallestId):
    """Ties of a greedy choice go to the larger id."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        best = pool.best(lambda shard: self._ranked(shard, key), k)
        return equal_weights(best.ids, best.values)

    def _ranked(self, shard: Shard, key: Key) -> Tensor:
        return shard.each(lambda rows: self.score(rows, key)) + 1e-12 * shard.ids


class ByBlock(Mine):
    """Blocks: what is normalised over a block depends on the block."""

    def score(self, rows: Rows, key: Key) -> Tensor:
        score = Mine.score(self, rows, key)
        return (score - score.mean()) / score.std()


class Twice(Mine):
    """The best row k times."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        best = pool.best(lambda shard: shard.each(lambda rows: self.score(rows, key)), 1)
        return equal_weights(best.ids.repeat(k), best.values.repeat(k))


class TooFew(Mine):
    """One row less than was asked for."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        best = pool.best(lambda shard: shard.each(lambda rows: self.score(rows, key)), max(1, k - 1))
        return equal_weights(best.ids, best.values)


class Leaves(Mine):
    """State stays beside the rows."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        def score(shard: Shard) -> Tensor:
            shard.state["seen"] = shard.each(lambda rows: self.score(rows, key))
            return shard.state["seen"]

        best = pool.best(score, k)
        return equal_weights(best.ids, best.values)


class LeavesOnError(Mine):
    """State is removed at the end, but not when a row is refused."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        pool.map(lambda shard: shard.state.update(mine=shard.ids))
        best = pool.best(lambda shard: shard.each(lambda rows: self.score(rows, key)), k)
        pool.map(lambda shard: shard.state.pop("mine") is None)
        return equal_weights(best.ids, best.values)


class Remembers(Mine):
    """The strategy itself has a memory."""

    def __init__(self) -> None:
        self.rounds = 0

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        self.rounds += 1
        return Mine.select(self, pool, labelled, k, key)


class WrongScore(Mine):
    """The sign is wrong: the surest rows."""

    def score(self, rows: Rows, key: Key) -> Tensor:
        top = rows.tensor(Probs()).topk(2).values
        return top[:, 0] - top[:, 1]


class OwnChance(Mine):
    """Draws from torch's own generator."""

    def score(self, rows: Rows, key: Key) -> Tensor:
        return torch.rand(len(rows), dtype=torch.float64)


class NotChecked(Mine):
    """Reads columns behind the back of the shard, which would have looked for NaN."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        best = pool.best(lambda shard: shard.columns[Probs()].double().nan_to_num(0.0).amin(1), k)
        return equal_weights(best.ids, best.values)


class Writes(Mine):
    """Works in the user's memory."""

    def score(self, rows: Rows, key: Key) -> Tensor:
        return -rows.tensor(Probs()).neg_()[:, 0]


class ByShard(Mine):
    """The best rows of the first shard, then of the second."""

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        ids = [i for part in pool.map(lambda shard: shard.ids.sort().values.tolist()) for i in part]
        pool.map(lambda shard: sum(1 for _ in shard.blocks()))
        return equal_weights(ids[:k], np.zeros(k))


class BySize(Mine):
    """The size of the id counts."""

    def score(self, rows: Rows, key: Key) -> Tensor:
        return Mine.score(self, rows, key) + 1e-3 * rows.ids.remainder(7).double()


class Rounds(Mine):
    """float32 whatever came in, and differences that float32 does not hold."""

    def score(self, rows: Rows, key: Key) -> Tensor:
        p = rows.tensor(Probs())
        lost = p.float() if p.dtype == torch.float32 else p
        return -((lost[:, 0] + 1e7) - 1e7).double()


class OrderOfLabelled(Mine):
    """Measures against the first of the labelled rows."""

    needs = Needs(pool=(Embedding(),), labelled=(Embedding(),))

    def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
        first = [part[0] for part in labelled.map(lambda shard: shard.rows(slice(0, 1)).tensor(Embedding()))]
        to = first[0] if first else torch.zeros(1)
        best = pool.best(lambda s: s.each(lambda rows: (rows.tensor(Embedding()) - to).square().sum(1)), k)
        return equal_weights(best.ids, best.values)


BUGS = [
    (ByPlace, "row order"),
    (SmallestId, "ties"),
    (LargestId, "ties"),
    (ByPlace, "blocks"),
    (ByPlace, "shards"),
    (ByBlock, "blocks"),
    (ByBlock, "shards"),
    (Twice, "k rows"),
    (TooFew, "k rows"),
    (Leaves, "state"),
    (LeavesOnError, "NaN"),
    (Remembers, "state"),
    (WrongScore, "reference"),
    (OwnChance, "chance"),
    (NotChecked, "NaN"),
    (Writes, "inputs"),
    (ByShard, "shards"),
    (BySize, "ids"),
    (Rounds, "dtype"),
    (OrderOfLabelled, "labelled order"),
]


@pytest.mark.parametrize(("kind", "check"), BUGS, ids=lambda value: getattr(value, "__name__", value))
def test_planted_bugs_are_caught(kind: type[Strategy], check: str):
    got = check_strategy(kind(), reference="margin" if kind is WrongScore else None, checks=[check])
    (outcome,) = got.outcomes
    assert outcome.status == "failed", str(got)
    assert not got.ok
    assert outcome.why
    assert "ids" in outcome.arrays


def test_a_sound_strategy_of_somebody_else_passes_all():
    got = check_strategy(Mine(), reference="margin")
    assert got.ok, str(got)
    passed = {one.check for one in got.outcomes if one.status == "passed"}
    assert passed >= set(INVARIANCES) - {"device", "labelled order"}
    assert "reference" in passed


def test_a_wrong_weight_is_caught_by_a_reference_of_ours():
    @dataclass(frozen=True)
    class Heavy(lw.strategies.Leverage):
        def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
            got = lw.strategies.Leverage.select(self, pool, labelled, k, key)
            return replace(got, weights=got.weights * 1.001)

    (outcome,) = check_strategy(Heavy(), reference="leverage", checks=["reference"]).outcomes
    assert outcome.status == "failed"
    assert "weights" in outcome.why


def test_a_wrong_law_is_caught():
    class Lopsided(lw.strategies.Random):
        def score(self, rows: Rows, key: Key) -> Tensor:
            return key.uniform(rows.ids) + 0.2 * (rows.ids == 7)

    (outcome,) = check_strategy(Lopsided(), reference="random", checks=["law"]).outcomes
    assert outcome.status == "failed"
    assert "equally likely" in outcome.why


def test_a_wrong_rule_of_line_6_is_caught_by_its_theorem():
    @dataclass(frozen=True)
    class Printed(lw.strategies.Sabal):
        def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
            own = {one.name: getattr(self, one.name) for one in fields(self)}
            return lw.strategies.Sabal(**{**own, "prox": "paper"}).select(pool, labelled, k, key)

    strategy = Printed(solver="iht", alpha=1.0, beta=0.1)
    (outcome,) = check_strategy(strategy, reference="sabal-iht", checks=["prox by brute force"]).outcomes
    assert outcome.status == "failed"
    assert "the best one" in outcome.why


# --- strategies of others --------------------------------------------------------------------------------------------


def slow_margin(arrays: Mapping[str, np.ndarray], ids: np.ndarray, k: int, seed: int) -> list[int]:
    return top_k(ids, margin(arrays["probs"]), k)


def test_a_reference_of_ones_own():
    good = check_strategy(Mine(), reference=slow_margin, checks=["reference"])
    assert good.ok
    bad = check_strategy(WrongScore(), reference=slow_margin, checks=["reference"])
    assert "expected rows" in bad.failures[0].why
    weighted = check_strategy(
        Mine(), reference=lambda a, i, k, s: (slow_margin(a, i, k, s), np.full(k, 2.0)), checks=["reference"]
    )
    assert "weights" in weighted.failures[0].why


def test_arrays_of_ones_own():
    p = np.random.default_rng(0).dirichlet(np.ones(5), 200)
    got = check_strategy(Mine(), {"probs": p}, reference=slow_margin, k=20, ids=np.arange(200) * 3)
    assert got.ok, str(got)
    assert not check_strategy(ByBlock(), {"probs": p}).ok
    few = check_strategy(Mine(), {"probs": p[:50]}, checks=["blocks"])
    assert few.status("Mine", "blocks") == "not applicable"
    assert "more than 64" in few.outcomes[0].why
    assert not few.ok  # nothing was checked
    with pytest.raises(ArgumentError, match="all of the same length"):
        check_strategy(Mine(), {"probs": p, "embedding": p[:3]})


def test_without_a_reference_it_says_so():
    (outcome,) = check_strategy(Mine(), checks=["reference"]).outcomes
    assert outcome.status == "not applicable"
    assert "there is no reference" in outcome.why


def test_a_reference_module_next_to_the_strategy_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "family").mkdir()
    (tmp_path / "family/__init__.py").write_text("")
    (tmp_path / "family/mine.py").write_text("from test_verify import Mine, WrongScore\nclass Bad(WrongScore): ...\n")
    (tmp_path / "family/good.py").write_text("from test_verify import Mine\nclass Good(Mine): ...\n")
    (tmp_path / "family/reference.py").write_text("from test_verify import slow_margin as select\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    for module, name, status in (("good", "Good", "passed"), ("mine", "Bad", "failed")):
        strategy = getattr(importlib.import_module(f"family.{module}"), name)()
        (outcome,) = check_strategy(strategy, checks=["reference"]).outcomes
        assert outcome.status == status


def test_what_a_random_problem_cannot_hold():
    class Numbers(Mine):
        needs = Needs(pool=(Prediction(),))

    assert {one.status for one in check_strategy(Numbers()).outcomes} == {"not applicable"}

    class Sketched(Mine):
        needs = Needs(pool=(GradSketch(),))

        def score(self, rows: Rows, key: Key) -> Tensor:
            return rows.tensor(GradSketch()).square().sum(1)

    assert check_strategy(Sketched()).ok


def test_bad_arguments():
    for bad, text in (
        ({"checks": ["colour"]}, "no check 'colour' of margin"),
        ({"reference": "nothing"}, "no reference 'nothing'"),
        ({"device": "tpu"}, "cpu or cuda"),
    ):
        with pytest.raises(ArgumentError, match=text):
            check_strategy("margin", **bad)
    with pytest.raises(ArgumentError, match="there is no strategy"):
        check_strategy("best")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_device_that_is_not_there_is_said():
    with pytest.raises(ArgumentError, match="no CUDA device"):
        check_strategy("margin", device="cuda")
    assert check_strategy("margin", checks=["device"]).outcomes[0].why == "torch finds no CUDA device"


def test_an_error_inside_a_check_is_its_outcome():
    class Breaks(Mine):
        def score(self, rows: Rows, key: Key) -> Tensor:
            raise ZeroDivisionError("planted")

    got = check_strategy(Breaks(), checks=["k rows", "row order"])
    assert [one.status for one in got.outcomes] == ["failed", "failed"]
    assert "ZeroDivisionError: planted" in got.outcomes[0].why
    assert "test_verify.py" in got.outcomes[0].why


def test_threads_are_put_back():
    before = torch.get_num_threads()
    check_strategy(ByBlock(), checks=["blocks"])
    assert before == torch.get_num_threads()


def test_a_strategy_that_cannot_begin_without_labels_is_checked_with_some():
    class Later(OrderOfLabelled):
        def select(self, pool: Shards, labelled: Shards, k: int, key: Key) -> Selection:
            if not labelled.n:
                raise NeedError("Later needs labelled rows")
            return OrderOfLabelled.select(self, pool, labelled, k, key)

    got = check_strategy(Later(), checks=["k rows", "row order", "labelled order"])
    assert [one.status for one in got.outcomes] == ["passed", "passed", "failed"]


def test_problems_depend_on_the_seed_alone():
    a, b, c = (problem_for(lw.strategies.get("badge"), seed) for seed in (1, 1, 2))
    assert all(np.array_equal(a.arrays[name], b.arrays[name]) for name in a.arrays)
    assert not np.array_equal(a.arrays["probs"], c.arrays["probs"])
    assert set(a.arrays) == {"probs", "embedding"}


# --- what is reported ------------------------------------------------------------------------------------------------


def test_a_failing_case_is_saved_and_fails_again(tmp_path: Path):
    (job,) = [one for one in plan_one(ByPlace(), seed=5) if one.check == "row order"]
    path = save_case(run(job), tmp_path / "cases")
    found = np.load(path)
    about = json.loads(str(found["about"]))
    assert (about["strategy"], about["check"], about["seed"]) == ("ByPlace", "row order", 5)
    problem = invariances.Problem(
        {"probs": found["probs"]}, found["ids"], int(found["k"]), int(found["selection_seed"])
    )
    with pytest.raises(CheckFailed, match="rows in another order"):
        invariances.row_order(ByPlace(), problem)
    invariances.row_order(Mine(), problem)


def test_a_report():
    got = Report((Outcome("a", "x", "passed"), Outcome("a", "yy", "failed", "because")))
    assert not got.ok
    assert str(got).splitlines() == ["a  x   ok", "a  yy  FAILED  because"]
    assert got.status("a", "x") == "passed"
    assert got.status("a", "z") == "not applicable"


def test_parameters_a_strategy_does_not_have():
    with pytest.raises(NotApplicable, match="no parameters"):
        Case(Mine()).with_parameters({"gamma": 1})
    with pytest.raises(NotApplicable, match="no parameter delta"):
        Case(lw.strategies.Dynamical()).with_parameters({"delta": 1.0})


@pytest.mark.parametrize("seed", range(6))
def test_the_tail_of_chi_square_is_that_of_scipy(seed: int):
    from scipy.stats import chisquare

    rng = np.random.default_rng(seed)
    law = rng.dirichlet(np.ones(4 + seed) * 5)
    counts = rng.multinomial(1000, law)
    assert chi_square_p(counts, law) == pytest.approx(chisquare(counts, 1000 * law).pvalue, rel=1e-9)
    skewed = rng.multinomial(1000, np.roll(law, 1))
    assert chi_square_p(skewed, law) == pytest.approx(chisquare(skewed, 1000 * law).pvalue, rel=1e-7, abs=1e-300)


def test_the_printed_rule_of_line_6_is_not_optimal():
    """Otherwise the check of the theorem could not fail."""
    missed = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        problem = slow_sabal.Problem(np.zeros(1), np.zeros((1, 8)), rng.random(8), 1.0, 0.0)
        s = rng.normal(size=8)
        support, _, _ = slow_sabal.prox(problem, s, 3, "paper")
        best = slow_sabal.prox_by_brute_force(problem, s, 3)
        missed += slow_sabal.prox_value(problem, s, support) > best + 1e-12
    assert missed > 30


# --- the command -----------------------------------------------------------------------------------------------------

MODULE = """
from test_verify import ByPlace, Mine, slow_margin

class Needy(Mine):
    def __init__(self, size):
        self.size = size

mine = Mine()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "others.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.delitem(sys.modules, "others", raising=False)
    return tmp_path


def test_the_command_on_ours(folder: Path):
    done = CliRunner().invoke(app, ["verify", "margin", "kcenter", "--json", "v.json", "--seed", "3"])
    assert done.exit_code == 0, done.output
    assert "of 2 strategies passed, 0 failed" in done.output
    found = json.loads((folder / "v.json").read_text())
    assert found["ok"]
    assert found["seed"] == 3
    assert found["environment"]["torch"] == importlib.metadata.version("torch")
    assert {(one["strategy"], one["check"]) for one in found["checks"]} >= {
        ("margin", "reference"),
        ("kcenter", "cover within twice the best"),
        ("kcenter", "labelled order"),
    }
    assert not (folder / "labelwise-verify").exists()


def test_the_command_on_one_of_somebody_else(folder: Path):
    done = CliRunner().invoke(app, ["verify", "others:Mine", "--reference", "others:slow_margin"])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, ["verify", "others:mine", "--reference", "margin"]).exit_code == 0
    done = CliRunner().invoke(app, ["verify", "others:ByPlace", "--json", "v.json", "--out", "cases"])
    assert done.exit_code == 1
    assert "FAILED  ByPlace, row order" in done.output
    failed = [one for one in json.loads((folder / "v.json").read_text())["checks"] if one["status"] == "failed"]
    assert {one["check"] for one in failed} >= {"row order", "blocks", "shards"}
    assert all(Path(one["saved"]).exists() for one in failed)
    assert "probs" in np.load(failed[0]["saved"])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["best"], "no strategy 'best'"),
        (["nowhere:Mine"], "cannot be imported"),
        (["others:Nobody"], "has no 'Nobody'"),
        (["others:Needy"], "without arguments"),
        (["others:slow_margin"], "must be a labelwise Strategy"),
        (["margin", "badge", "--reference", "margin"], "about one strategy"),
    ],
)
def test_what_cannot_be_verified_is_said(folder: Path, arguments: list[str], text: str):
    done = CliRunner().invoke(app, ["verify", *arguments])
    assert isinstance(done.exception, ArgumentError)
    assert text in str(done.exception)


def test_a_narrow_terminal_shows_every_column(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    shown = CliRunner().invoke(app, ["verify", "sabal-greedy"]).output
    assert "strategy     ref law thm k  row ids tie blk shd lab typ dev NaN sta cha inp" in shown
    assert "…" not in shown
    monkeypatch.setenv("COLUMNS", "150")
    shown = CliRunner().invoke(app, ["verify", "margin"]).output
    assert "labelled order" in next(line for line in shown.splitlines() if "strategy" in line and "law" in line)


@pytest.mark.slow
def test_importing_labelwise_does_not_import_verify():
    code = "import sys, labelwise, labelwise.cli; labelwise.select; print('labelwise.verify' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
    assert lw.verify.check_strategy is check_strategy
