"""dynamicAL: picks against the slow reference, its arguments and notes, its signals in a session, its recipe."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import labelwise as lw
from labelwise.errors import ArgumentError, NeedError
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.model.forward import GRADIENT_ROWS
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import Labelled, read
from labelwise.signals.spec import Embedding, GradNorm, GradSketch, LossJvp, Probs
from labelwise.strategies import Dynamical
from labelwise.strategies.dynamical.reference import delta, greedy_batch, row_gradients
from labelwise.strategies.uncertainty.reference import top_k
from labelwise.verify.problems import Problem, shards_for

GAMMAS = [0, 1, 2, 0.5, math.inf]


def arrays(seed: int, n: int, width: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    g = rng.normal(size=(n, width))
    return {"grad_sqnorm": (g * g).sum(1), "grad_dot": g @ rng.normal(size=width) * 3, "grad_sketch": g}


@settings(max_examples=25, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), n=st.integers(1, 30), gamma=st.sampled_from(GAMMAS))
def test_picks_are_those_of_the_reference(seed, n, gamma):
    given_arrays = arrays(seed, n)
    ids = np.random.default_rng(seed).permutation(1000)[:n]
    k = 1 + seed % n
    got = lw.select(Dynamical(gamma=gamma), k, **given_arrays, ids=ids)
    scores = delta(given_arrays["grad_sqnorm"], given_arrays["grad_dot"], gamma)
    assert got.ids.tolist() == top_k(ids, scores, k)
    assert np.allclose(got.scores, np.sort(scores)[::-1][:k])


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), n=st.integers(2, 14), gamma=st.sampled_from([0, 1, 2]))
def test_diverse_picks_are_those_of_the_reference(seed, n, gamma):
    given_arrays = arrays(seed, n)
    ids = np.random.default_rng(seed).permutation(1000)[:n]
    k = 1 + seed % min(n, 6)
    got = lw.select(Dynamical(gamma=gamma, diverse=True), k, **given_arrays, ids=ids)
    scores = delta(given_arrays["grad_sqnorm"], given_arrays["grad_dot"], gamma)
    assert got.ids.tolist() == greedy_batch(scores, given_arrays["grad_sketch"], ids, k)
    rows = [list(ids).index(i) for i in got.ids]
    g_Q = given_arrays["grad_sketch"][rows].sum(0)
    own = given_arrays["grad_sqnorm"][rows].sum()
    assert got.scores.sum() == pytest.approx(scores[rows].sum() + g_Q @ g_Q - own)  # the whole change, eq. 13


def test_terms_between_picks_change_the_picks():
    given_arrays = arrays(0, 60)
    plain, whole = (lw.select(Dynamical(diverse=diverse), 10, **given_arrays) for diverse in (False, True))
    assert set(plain.ids) != set(whole.ids)

    def change(rows: np.ndarray) -> float:
        scores = delta(given_arrays["grad_sqnorm"], given_arrays["grad_dot"], 2)[rows].sum()
        g_Q = given_arrays["grad_sketch"][rows].sum(0)
        return scores + g_Q @ g_Q - given_arrays["grad_sqnorm"][rows].sum()

    assert change(whole.ids) > change(plain.ids)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_diverse_picks_do_not_depend_on_order_or_blocks(dtype):
    given_arrays = {key: np.tile(value, (3, 1) if value.ndim > 1 else 3) for key, value in arrays(1, 40).items()}
    given_arrays = {key: value.astype(dtype) for key, value in given_arrays.items()}
    ids, order = np.arange(120), np.random.default_rng(0).permutation(120)
    expected = lw.select(Dynamical(diverse=True), 20, **given_arrays, ids=ids)
    mixed = {key: value[order] for key, value in given_arrays.items()}
    dynamical, pool, labelled = shards_for(Dynamical(diverse=True), Problem(mixed, ids[order], 20))
    assert dynamical.select(pool.in_blocks(1), labelled, 20, Key(0)).ids.tolist() == expected.ids.tolist()


def test_arguments_and_needs():
    assert Dynamical(gamma=0).needs.pool == (GradNorm(),)
    assert Dynamical(gamma=math.inf).needs.pool == (LossJvp(),)
    assert Dynamical(diverse=True).needs.pool == (GradNorm(), LossJvp(), GradSketch())
    assert Dynamical.needs == Dynamical().needs
    assert Dynamical() == Dynamical(gamma=2.0)
    for gamma in (-1, math.nan, "2", True):
        with pytest.raises(ArgumentError, match="gamma"):
            Dynamical(gamma=gamma)
    with pytest.raises(ArgumentError, match="infinite gamma"):
        Dynamical(gamma=math.inf, diverse=True)
    with pytest.raises(NeedError, match="grad_dot"):
        lw.select("dynamical", 1, grad_sqnorm=np.ones(3))
    assert lw.select(Dynamical(gamma=0), 1, grad_sqnorm=[1.0, 3.0, 2.0]).ids.tolist() == [1]


def test_notes_say_how_the_terms_compare():
    got = lw.select("dynamical", 2, grad_sqnorm=[1.0, 2.0, 3.0, 6.0], grad_dot=[4.0, 0.0, 0.0, -1.0])
    assert got.ids.tolist() == [0, 3]
    assert dict(got.notes) == {"mean_grad_sqnorm": 3.0, "mean_grad_dot": 0.75, "share_also_longest": 0.5}
    json.dumps(dict(got.notes))


# --- signals of a model -----------------------------------------------------------------------------------------------


def model_and_pool(n: int = 40) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(n, 5, generator=draw, dtype=torch.float64)
    return model, x, torch.randint(0, 3, (n,), generator=draw)


def test_signals_of_a_reader():
    model, x, y = model_and_pool()
    pool, behind = Pool.of(x), Labelled(torch.arange(10), y[:10])
    asked = (GradNorm(), LossJvp(), GradSketch(width=16), Probs(), Embedding())
    rows = list(read(ModelReader(model), pool, torch.arange(10, 40), asked, 7, behind))
    g, g_S = row_gradients(model, x[10:]), row_gradients(model, x[:10], y[:10]).sum(0)
    column = {signal: torch.cat([part.tensor(signal) for part in rows]) for signal in asked}
    torch.testing.assert_close(column[GradNorm()], g.square().sum(1))
    torch.testing.assert_close(column[LossJvp()], g @ g_S)
    torch.testing.assert_close(column[Probs()], model(x[10:]).softmax(1).detach())
    torch.testing.assert_close(column[Embedding()], model[:2](x[10:]).detach())
    assert column[GradSketch(width=16)].shape == (30, 16)


def test_one_forward_pass_gives_all():
    model, x, _ = model_and_pool()
    passes = []
    reader = ModelReader(model)
    list(read(reader, Pool.of(x), torch.arange(20), (GradNorm(),), 20))  # with the check of the rules
    model.register_forward_hook(lambda *_: passes.append(1))
    list(read(reader, Pool.of(x), torch.arange(20), (GradNorm(), GradSketch(), Probs(), Embedding()), 10))
    assert len(passes) == 2


def test_a_large_batch_is_differentiated_in_small_parts():
    """The same columns, and no layer ever sees more rows than a part has."""
    model, x, y = model_and_pool(200)
    pool, behind = Pool.of(x), Labelled(torch.arange(10), y[:10])
    asked = (GradNorm(), LossJvp(), GradSketch(width=16), Probs(), Embedding())
    found, seen = [], []
    for batch in (10, 190):
        blocks = list(read(ModelReader(model), pool, torch.arange(10, 200), asked, batch, behind))
        found.append({signal: torch.cat([rows.tensor(signal) for rows in blocks]) for signal in asked})
        model.register_forward_hook(lambda module, given, output: seen.append(len(given[0])))
    assert len(blocks) == 1
    for signal in asked:
        torch.testing.assert_close(found[0][signal], found[1][signal])
    assert max(seen) == GRADIENT_ROWS < 190
    assert sum(seen) >= 190


def test_the_gradient_of_labelled_rows_is_computed_once_for_a_fit(monkeypatch):
    model, x, y = model_and_pool()
    reader = ModelReader(model)
    counted = []
    columns = reader._gradient_columns()
    training = columns.gradients.sum_over
    monkeypatch.setattr(columns.gradients, "sum_over", lambda *a: counted.append(1) or training(*a))
    for labels in (y[:10], y[:10].clone(), (y[:10] + 1) % 3):
        list(read(reader, Pool.of(x), torch.arange(10, 20), (LossJvp(),), 5, Labelled(torch.arange(10), labels)))
    assert len(counted) == 2


def test_without_labelled_rows_there_is_no_inner_product():
    model, x, _ = model_and_pool()
    with pytest.raises(NeedError, match="labelled"):
        list(read(ModelReader(model), Pool.of(x), torch.arange(5), (LossJvp(),), 5))


def test_a_float32_model_gives_float32_columns():
    model, x, _ = model_and_pool()
    (rows,) = read(ModelReader(model.float()), Pool.of(x.float()), torch.arange(5), (GradNorm(), GradSketch()), 5)
    assert all(column.dtype == torch.float32 for column in rows.columns.values())


# --- sessions and the recipe ------------------------------------------------------------------------------------------


def test_a_session_picks_what_the_reference_picks():
    _, x, y = model_and_pool(60)
    al = lw.Session(x, lw.TorchLearner(lambda: model_and_pool()[0], epochs=20), "dynamical", classes=3, seed=1)
    al.tell(range(12), y[:12])
    picks = al.ask(8)
    model = al.fit().reader.model
    g, g_S = row_gradients(model, x[12:]), row_gradients(model, x[:12], y[:12]).sum(0)
    scores = delta(g.square().sum(1).numpy(), (g @ g_S).numpy(), 2)
    assert picks.ids.tolist() == top_k(np.arange(12, 60), scores, 8)
    assert picks.notes["training_gradient_length"] == pytest.approx(float(g_S.norm()), rel=1e-6)


def test_the_recipe_goes_on_from_the_last_weights_and_after_loading(tmp_path):
    _, x, y = model_and_pool(60)
    made = []

    def make() -> nn.Module:
        made.append(1)
        return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).double()

    learner = lw.TorchLearner(make, epochs=3)
    al = lw.Session(x, learner, "dynamical", classes=3, seed=1, folder=tmp_path / "s")
    for _ in range(3):
        picks = al.ask(6)
        al.tell(picks.ids, y[picks.ids])
    al.fit()
    assert len(made) == 1
    assert learner.warm_start is False  # the user's own learner is not changed
    again = lw.Session.load(tmp_path / "s", x, learner)
    assert again.recipe.settings() == al.recipe.settings()
    assert again.recipe.restart is False
    assert again.ask(6).ids.tolist() == al.ask(6).ids.tolist()
    assert lw.recipes.get("typiclust+dynamical").restart is False
    assert lw.recipes.get(Dynamical(gamma=0)).restart is False
    assert lw.recipes.get("margin").restart is None


def test_an_infinite_gamma_is_kept_in_a_stored_session(tmp_path):
    _, x, y = model_and_pool(60)
    learner = lw.TorchLearner(lambda: model_and_pool()[0], epochs=2)
    al = lw.Session(x, learner, Dynamical(gamma=math.inf), classes=3, folder=tmp_path / "s")
    al.tell(range(6), y[:6])
    again = lw.Session.load(tmp_path / "s", x, learner)
    assert again.recipe.strategy == Dynamical(gamma=math.inf)
    assert again.ask(4).ids.tolist() == al.ask(4).ids.tolist()


def test_layers_without_a_rule_are_noted():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(5))

        def reset_parameters(self) -> None:
            nn.init.ones_(self.scale)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.scale.exp()

    _, x, y = model_and_pool(30)
    learner = lw.TorchLearner(nn.Sequential(Own(), nn.Linear(5, 3)).double(), epochs=2)
    al = lw.Session(x, learner, "dynamical", classes=3)
    al.tell(range(6), y[:6])
    notes = al.ask(3).notes
    assert notes["gradients_without_a_rule"] == {"no rule for Own": "0.scale"}
    json.dumps(dict(notes))


def test_a_regression_pool_is_chosen_gradient_columnss_of_the_prediction():
    _, x, _ = model_and_pool(40)
    y = x[:, 0] * 2 + 1
    learner = lw.TorchLearner(
        lambda: nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 1)).double(), epochs=5, loss="mse"
    )
    al = lw.Session(x, learner, "dynamical", task="regress")
    al.tell(range(10), y[:10].tolist())
    picks = al.ask(5)
    model = al.fit().reader.model
    unit = row_gradients(model, x[10:], model(x[10:]).detach()[:, 0] - 1, squared=True)
    assert picks.ids.tolist() == top_k(np.arange(10, 40), unit.square().sum(1).numpy(), 5)


# --- the benchmark ----------------------------------------------------------------------------------------------------


def test_the_ways_of_the_benchmark_agree(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[3] / "benchmarks"))
    import dynamical as bench

    model = bench.network("tutorial_cnn")
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(3, 3, 32, 32, generator=draw)
    along = [torch.randn(p.shape, generator=draw) for p in model.parameters()]
    ours, func = (bench.WAYS[way](model, along)(x) for way in ("ours", "torch.func"))
    torch.testing.assert_close(ours.float(), func, rtol=1e-4, atol=1e-5)
    row = {"seconds": 2.0, "forward": 0.5, "extra": [10.0, 11.0], "scores": [1.0]}
    assert bench.line("net", 8, "ours", row, {"scores": [2.0]}) == "| net | 8 | ours | 4.0 | 500 | 10 | 11 | 5e-01 |"
    assert "not installed" in bench.line("net", 8, "BackPACK", {"stopped": "not installed"}, row)
