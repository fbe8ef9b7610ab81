"""The variational last layer, dropout masks and the Laplace approximation, each against what it is on paper."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Normal, kl_divergence

import labelwise as lw
from labelwise.pool import Pool
from labelwise.rng import Key
from labelwise.signals.draws.dropout import MaskDraws, dropout_layers, masked
from labelwise.signals.draws.laplace import Curvature
from labelwise.signals.draws.variational import VariationalLinear, reseed
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import read
from labelwise.signals.spec import LogProbs, Probs

GEN = torch.Generator().manual_seed(0)
H = torch.randn(6, 4, generator=GEN)


def layer(draws: int = 100, outputs: int = 3) -> VariationalLinear:
    torch.manual_seed(1)
    made = VariationalLinear(4, outputs, draws)
    with torch.no_grad():
        made.rho += 3.0  # standard deviations of about 0.3, so that there is something to see
    return made


# --- the variational layer -------------------------------------------------------------------------------------------


def test_the_penalty_is_the_divergence_from_the_prior():
    made = layer()
    posterior = Normal(made.weight, F.softplus(made.rho))
    expected = kl_divergence(posterior, Normal(0.0, math.sqrt(2 / 3))).sum()
    torch.testing.assert_close(made.penalty(), expected)
    with torch.no_grad():  # by chance: the mean of log posterior - log prior over draws of the weights
        drawn = posterior.sample((20_000,))
        gap = (posterior.log_prob(drawn) - Normal(0.0, math.sqrt(2 / 3)).log_prob(drawn)).sum((1, 2))
    assert float(gap.mean()) == pytest.approx(float(expected.detach()), abs=5 * float(gap.std()) / math.sqrt(20_000))


def test_how_it_starts():
    torch.manual_seed(0)
    made = VariationalLinear(400, 50)
    weight, rho = made.weight.detach(), made.rho.detach()
    assert float(weight.std()) == pytest.approx(0.05, rel=0.02)
    assert float(rho.mean()) == pytest.approx(-4, abs=1e-3)
    assert float(rho.std()) == pytest.approx(0.05, rel=0.02)


def test_local_noise_has_mean_and_variance_of_drawn_weights():
    made, count = layer(draws=40_000), 40_000
    mean = F.linear(H, made.weight, made.bias)
    variance = F.linear(H.square(), F.softplus(made.rho).square())
    with torch.no_grad():
        local = torch.stack([made.local(H) for _ in range(4000)])
        shared = torch.einsum("bd,kcd->kbc", H, made.weight_draws().weight_KOD) + made.bias
    for drawn, n in ((local, 4000), (shared, count)):
        error = (variance.max() / n).sqrt()
        assert float((drawn.mean(0) - mean).detach().abs().max()) < 5 * error
        assert torch.allclose(drawn.var(0), variance.detach(), rtol=6 * math.sqrt(2 / n))


def test_local_noise_is_of_each_row_and_drawn_weights_are_of_all():
    made, twice = layer(), H[:1].repeat(2, 1)
    local = made.train()(twice)
    assert not torch.equal(local[0], local[1])
    found = made.weight_draws().of_embedding(twice)
    assert torch.equal(found[0], found[1])
    made.eval()
    assert torch.equal(made(twice)[0], made(twice)[1])


def test_the_prediction_is_the_mean_softmax_over_draws_of_the_outputs():
    """In law that of the draws of the weights: means over many of both agree within their errors."""
    made = layer(draws=20_000).eval()
    with torch.no_grad():
        found = made(H).exp()
        drawn = made.weight_draws().of_embedding(H).exp()
        fresh = torch.stack([made.local(H).softmax(1) for _ in range(4000)])  # noise of its own for each row
        plain = F.linear(H, made.weight, made.bias).softmax(1)
    error = (drawn.var(1) / 20_000).sqrt()
    assert float(((found - drawn.mean(1)).abs() / error).max()) < 5 * math.sqrt(2)
    assert float(((found - fresh.mean(0)).abs() / (drawn.var(1) / 4000).sqrt()).max()) < 5 * math.sqrt(1.2)
    assert float(((found - plain).abs() / error).max()) > 10  # the spread of the weights counts


def test_a_prediction_depends_on_seed_and_row_alone():
    made = layer(draws=8).eval()
    reseed(made, Key(1))
    torch.manual_seed(0)
    first = made(H).detach()
    torch.manual_seed(9)
    torch.testing.assert_close(torch.cat([made(H[i : i + 1]) for i in (3, 1)]).detach(), first[[3, 1]])
    assert torch.equal(copy.deepcopy(made)(H).detach(), first)
    made.part = 1  # row by row inside, to keep its table small
    torch.testing.assert_close(made(H).detach(), first)
    reseed(made, Key(2))
    assert not torch.allclose(made(H).detach(), first, atol=1e-4)


def test_the_output_gradient_reaches_means_and_deviations_outside_training():
    made = layer(draws=8).eval()
    made(H)[:, 0].sum().backward()
    assert float(made.weight.grad.abs().max()) > 0
    assert float(made.rho.grad.abs().max()) > 0


def test_draws_follow_from_the_seed():
    made = layer()
    reseed(made, Key(1))
    first = made.weight_draws().weight_KOD
    assert torch.equal(copy.deepcopy(made).weight_draws().weight_KOD, first)
    reseed(made, Key(2))
    assert not torch.equal(made.weight_draws().weight_KOD, first)
    saved = made.state_dict()
    other = layer()
    other.load_state_dict(saved)
    assert torch.equal(other.weight_draws().weight_KOD, made.weight_draws().weight_KOD)


class Named(nn.Module):
    """A network that returns a mapping, with a layer beside the head that is not the last one."""

    def __init__(self):
        nn.Module.__init__(self)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.classifier = nn.Linear(8, 3)

    def forward(self, x):
        return {"logits": self.classifier(self.body(x))}


def test_the_last_layer_of_any_network_is_replaced():
    given = Named()
    made = lw.bayesian(given, draws=7, hidden=5)
    assert isinstance(given.classifier, nn.Linear)  # the network given is left alone
    assert isinstance(made, Named)
    wide, _, last = made.classifier
    assert (wide.in_features, wide.out_features, last.in_features, last.out_features) == (8, 5, 5, 3)
    assert made(H)["logits"].shape == (6, 3)
    assert torch.equal(made.body[0].weight, given.body[0].weight)
    assert isinstance(lw.bayesian(given, hidden=None).classifier, VariationalLinear)
    assert isinstance(lw.bayesian(nn.Linear(4, 3))(H), torch.Tensor)
    assert isinstance(lw.bayesian(nn.Linear(4, 3), hidden=None)[0], VariationalLinear)
    assert isinstance(lw.bayesian(Named)().classifier[2], VariationalLinear)
    assert lw.bayesian(given, head="body.0").body[0][2].out_features == 8
    assert lw.bayesian(Named().double()).classifier[2].weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("module", "options", "says"),
    [
        (nn.Conv2d(1, 1, 1), {}, "was not found; its linear layers are: none"),
        (Named(), {"head": "nothing"}, "'body.0', 'classifier'"),
        (nn.Sequential(nn.LazyLinear(3)), {}, "lazy"),
        (Named(), {"hidden": 0}, "hidden"),
        (3, {}, "nn.Module"),
    ],
)
def test_what_cannot_be_wrapped_says_why(module, options: dict, says: str):
    with pytest.raises(lw.errors.LabelwiseError, match=says):
        lw.bayesian(module, **options)


class Leaning(nn.Linear):
    """A linear layer that says what its weights cost."""

    def penalty(self):
        return 1e4 * self.weight.square().sum()


def test_training_adds_the_penalty_over_the_number_of_rows():
    x = torch.randn(40, 4, generator=GEN)
    y = (x[:, 0] > 0).long()
    fits = [
        lw.TorchLearner(kind(4, 2), epochs=30, lr=0.05).fit(Pool.of(x), torch.arange(40), y, classes=2, key=Key(0))
        for kind in (nn.Linear, Leaning)
    ]
    plain, leaning = (fit.reader.model.weight.detach() for fit in fits)
    assert leaning.norm() < plain.norm() / 20
    penalty = float(1e4 * leaning.square().sum()) / 40
    assert fits[1].notes["loss"] >= penalty  # the loss it watches is with the penalty
    assert not hasattr(fits[0].reader.model, "penalty")


def test_a_bayesian_network_learns_and_its_weights_stay_uncertain():
    x = torch.randn(200, 4, generator=GEN)
    y = (x[:, 0] + x[:, 1] > 0).long()
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    learner = lw.TorchLearner(lw.bayesian(net, draws=20), epochs=150, lr=1e-2, holdout=0)
    fit = learner.fit(Pool.of(x), torch.arange(200), y, classes=2, key=Key(0))
    assert lw.train.evaluate(fit.reader, Pool.of(x), torch.arange(200), y)["accuracy"] > 0.9
    spread = F.softplus(fit.reader.model[2][2].rho.detach())
    assert float(spread.mean()) > 0.05  # it started at 0.018, and the prior's is 1


# --- dropout ---------------------------------------------------------------------------------------------------------


def net_with_dropout() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 10), nn.BatchNorm1d(10), nn.ReLU(), nn.Dropout(0.5), nn.Linear(10, 3)).eval()


def test_a_draw_is_the_network_with_one_mask_for_all_rows():
    model = net_with_dropout()
    before = copy.deepcopy(model.state_dict())
    found = MaskDraws(Key(0)).of_model(model, lambda: model(H), 8)
    assert found.shape == (6, 8, 3)
    hidden = model[:3](H)
    for k in range(8):
        mask = torch.rand(10, generator=Key(0).fold(k).fold("3", 1).generator()) >= 0.5
        torch.testing.assert_close(found[:, k], model[4](hidden * mask * 2).log_softmax(1))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model(H), model(H))  # the hooks are gone


def test_masks_drop_by_their_rate_and_keep_the_mean():
    model = nn.Sequential(nn.Dropout(0.25))
    with masked(dropout_layers(model.eval()), Key(0)):
        out = model(torch.ones(2, 100_000))
    assert torch.equal(out[0], out[1])
    assert out.unique().tolist() == pytest.approx([0, 4 / 3])
    assert float(out.mean()) == pytest.approx(1, abs=0.01)


def test_a_layer_that_runs_twice_has_two_masks_and_channels_share_theirs():
    once = nn.Dropout(0.5)
    model = nn.Sequential(once, once).eval()
    with masked(dropout_layers(model), Key(0)):
        out = model(torch.ones(1, 1000))
    assert float((out > 0).double().mean()) == pytest.approx(0.25, abs=0.05)
    channels = nn.Sequential(nn.Dropout2d(0.5)).eval()
    with masked(dropout_layers(channels), Key(0)):
        out = channels(torch.ones(2, 50, 3, 3))
    assert torch.equal(out, out[:1, :, :1, :1].expand_as(out))
    assert 10 < int((out[0, :, 0, 0] > 0).sum()) < 40


def test_a_longer_sequence_begins_with_the_mask_of_a_shorter_one():
    """Texts of two batches are padded to different lengths; what they share must be read the same."""
    model = nn.Sequential(nn.Dropout(0.5)).eval()
    with masked(dropout_layers(model), Key(0)):
        short = model(torch.ones(1, 7, 16))
    with masked(dropout_layers(model), Key(0)):
        long = model(torch.ones(1, 12, 16))
    assert torch.equal(long[:, :7], short)


def test_only_layers_that_drop_something_count():
    assert [*dropout_layers(nn.Sequential(nn.Dropout(0.0), nn.ReLU(), nn.Dropout2d(0.1)))] == ["2"]
    reader = ModelReader(nn.Linear(4, 3))
    assert not reader.gives(LogProbs())
    drawn = ModelReader(net_with_dropout(), draws=MaskDraws(Key(0)))
    assert drawn.gives(LogProbs())
    (rows,) = read(drawn, Pool.of(H), torch.arange(6), (Probs(), LogProbs(3)), 6)
    assert rows.tensor(LogProbs(3)).shape == (6, 3, 3)


# --- Laplace ---------------------------------------------------------------------------------------------------------


def _nll(flat: torch.Tensor, h: torch.Tensor, y: torch.Tensor, outputs: int) -> torch.Tensor:
    z = h @ flat.view(outputs, -1).T
    z = torch.cat([torch.zeros_like(z), z], 1) if outputs == 1 else z
    return F.cross_entropy(z, y, reduction="sum")


@pytest.mark.parametrize("outputs", [1, 3])
def test_the_covariance_of_the_draws_is_the_inverse_hessian(outputs: int):
    gen = torch.Generator().manual_seed(5)
    h = torch.randn(30, 4, generator=gen, dtype=torch.float64)
    y = torch.randint(0, max(2, outputs), (30,), generator=gen)
    weight = torch.randn(outputs, 4, generator=gen, dtype=torch.float64)
    hessian = torch.autograd.functional.hessian(lambda w: _nll(w, h, y, outputs), weight.reshape(-1))
    z = h @ weight.T
    p = (torch.cat([torch.zeros_like(z), z], 1) if outputs == 1 else z).softmax(1)
    curvature = Curvature(outputs, 4)
    for part in (slice(0, 11), slice(11, 30)):
        curvature.add(p[part], h[part])
    torch.testing.assert_close(curvature.matrix.reshape(outputs * 4, -1), hessian)
    drawn = curvature.spectrum().draws(weight, 0.5, 200_000, Key(0)).reshape(200_000, -1)
    expected = torch.linalg.inv(hessian + 0.5 * torch.eye(outputs * 4, dtype=torch.float64))
    torch.testing.assert_close(drawn.mean(0), weight.reshape(-1), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.T.cov(), expected, rtol=0, atol=0.02)


def test_factors_are_exact_where_all_rows_are_alike_and_chosen_by_size():
    gen = torch.Generator().manual_seed(6)
    h = torch.randn(40, 5, generator=gen, dtype=torch.float64)
    p = torch.tensor([[0.2, 0.5, 0.3]], dtype=torch.float64).expand(40, 3)
    whole, factors = Curvature(3, 5), Curvature(3, 5, full=10)
    whole.add(p, h)
    factors.add(p, h)
    assert whole.is_full
    assert not factors.is_full
    a, b = whole.spectrum(), factors.spectrum()
    torch.testing.assert_close(a.values_OD.reshape(-1).sort().values, b.values_OD.reshape(-1).sort().values)
    covariance = [s.draws(torch.zeros(3, 5), 1.0, 100_000, Key(0)).reshape(100_000, -1).T.cov() for s in (a, b)]
    torch.testing.assert_close(*covariance, rtol=0, atol=0.02)


def test_the_precision_is_where_the_evidence_is_highest():
    gen = torch.Generator().manual_seed(7)
    h = torch.randn(50, 4, generator=gen, dtype=torch.float64)
    weight = torch.randn(3, 4, generator=gen, dtype=torch.float64)
    curvature = Curvature(3, 4)
    curvature.add((h @ weight.T).softmax(1), h)
    spectrum = curvature.spectrum()
    found = spectrum.precision(weight)
    hessian = curvature.matrix.reshape(12, 12)

    def evidence(precision: float) -> float:
        inner = hessian + precision * torch.eye(12, dtype=torch.float64)
        return float(6 * math.log(precision) - precision / 2 * weight.square().sum() - torch.logdet(inner) / 2)

    assert all(evidence(found) >= evidence(found * factor) for factor in (0.5, 0.75, 1.33, 2))
    assert spectrum.precision(weight * 10) < found / 10  # long weights: a weak prior


def test_laplace_reads_the_labelled_rows_in_batches_and_notes_the_precision():
    x = torch.randn(300, 4, generator=GEN)
    y = (x[:, 0] > 0).long() + (x[:, 1] > 0.7)
    learner = lw.laplace(lw.TorchLearner(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), epochs=5), draws=4)
    fit = learner.fit(Pool.of(x), torch.arange(300), y, classes=3, key=Key(0))
    assert 1e-4 <= fit.notes["precision"] <= 1e4
    assert fit.notes["draws"] == 4
    fixed = lw.laplace(learner.learner, draws=4, precision=1e8).fit(
        Pool.of(x), torch.arange(300), y, classes=3, key=Key(0)
    )
    (rows,) = read(fixed.reader, Pool.of(x), torch.arange(300), (Probs(), LogProbs()), 300)
    torch.testing.assert_close(rows.tensor(LogProbs()).exp().mean(1), rows.tensor(Probs()), rtol=1e-2, atol=1e-3)


def test_laplace_takes_torch_models_with_a_linear_head():
    from sklearn.linear_model import LogisticRegression

    x = torch.randn(20, 4, generator=GEN)
    y = (x[:, 0] > 0).long()
    with pytest.raises(lw.errors.ArgumentError, match="takes a torch model"):
        lw.laplace(LogisticRegression()).fit(Pool.of(x), torch.arange(20), y, classes=2, key=Key(0))
    for precision in (-1, float("inf")):
        with pytest.raises(lw.errors.ArgumentError, match="finite number above 0"):
            lw.laplace(nn.Linear(4, 2), precision=precision)


# --- calibration -----------------------------------------------------------------------------------------------------


def test_the_calibration_error_before_and_after_is_noted():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6)).astype("float32")
    y = ((x[:, 0] + rng.normal(size=600) * 1.5) > 0).astype(int)  # noisy labels: a long training is overconfident
    net = nn.Sequential(nn.Linear(6, 64), nn.ReLU(), nn.Linear(64, 2))
    learner = lw.TorchLearner(net, epochs=60, lr=1e-2, patience=None, holdout=0.3)
    fit = learner.fit(Pool.of(x[:300]), torch.arange(300), torch.tensor(y[:300]), classes=2, key=Key(0))
    assert 0 <= fit.notes["ece_after"] <= 1
    assert 0 <= fit.notes["ece_before"] <= 1
    assert fit.notes["temperature"] > 1
    assert fit.notes["ece_after"] < fit.notes["ece_before"]
    few = learner.fit(Pool.of(x), torch.arange(50), torch.tensor(y[:50]), classes=2, key=Key(0))
    assert "ece_before" not in few.notes  # nothing was held out


# --- what other code does, with numbers for the pages ----------------------------------------------------------------


def test_the_mean_of_softmaxes_is_not_the_softmax_of_a_mean():
    rng = np.random.default_rng(0)
    z = torch.tensor(rng.normal(size=(2000, 1, 10)) * 2 + rng.normal(size=(2000, 100, 10)) * 2)
    right, other = z.softmax(2).mean(1), z.logsumexp(1).softmax(1)
    assert float((right - other).abs().sum(1).mean()) / 2 == pytest.approx(0.204, abs=0.001)


def test_noise_for_each_row_makes_copies_of_a_row_look_unrelated():
    made, copies = layer(draws=2000), H[:1].repeat(2, 1)
    with torch.no_grad():
        local = torch.stack([made.local(copies) for _ in range(2000)], 1).log_softmax(2)
        shared = made.weight_draws().of_embedding(copies)
    similar = [float(torch.corrcoef(losses[:, :, 0])[0, 1]) for losses in (local, shared)]
    assert similar[0] == pytest.approx(0, abs=0.08)
    assert similar[1] == pytest.approx(1)
