"""Row gradients of whole networks: known ones, awkward ones, and how the model is left."""

import copy

import pytest
import torch
import torch.nn.functional as F
from test_ghost_rules import check, direction, inputs, wide, words
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from labelwise.bench.models.networks import pooled_cnn, resnet18, tutorial_cnn, vgg11
from labelwise.errors import LabelError, ModelError
from labelwise.signals.gradients import fallback
from labelwise.signals.gradients.collect import GradientRequest
from labelwise.signals.gradients.read_gradients import RowGradients
from labelwise.strategies.dynamical.reference import row_gradients

NETWORKS = {
    "tutorial": tutorial_cnn(),
    "pooled": pooled_cnn(),
    "vgg11": vgg11(width=8, hidden=(32,)),
    "vgg11 with batch norm": vgg11(width=8, batch_norm=True),
    "resnet18": resnet18(width=8),
    "resnet18 without identity": resnet18(width=8, identity=False),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name):
    torch.manual_seed(0)
    check(wide(NETWORKS[name]()), inputs(3, 32, 32)[:3])


@pytest.mark.slow
@pytest.mark.parametrize("make", [vgg11(), resnet18()], ids=["vgg11", "resnet18"])
def test_networks_of_full_width(make):
    torch.manual_seed(0)
    model = make().double().eval()
    x = inputs(3, 32, 32)[:2]
    g_BP, along = row_gradients(model, x), direction(model)
    found = RowGradients(model).compute(x, GradientRequest(norm=True, along=along))
    torch.testing.assert_close(found.sq_norm, g_BP.square().sum(1), rtol=1e-6, atol=0.0)
    torch.testing.assert_close(found.dot, g_BP @ torch.cat([v.flatten() for v in along.values()]), rtol=1e-6, atol=1e-6)


def test_single_precision():
    torch.manual_seed(0)
    model = tutorial_cnn()().eval()
    x = inputs(3, 32, 32).float()
    expected = row_gradients(copy.deepcopy(model).double(), x.double()).square().sum(1)
    torch.testing.assert_close(
        RowGradients(model).compute(x, GradientRequest(norm=True)).sq_norm, expected, rtol=1e-4, atol=1e-8
    )


# --- losses and labels -----------------------------------------------------------------------------------------------


def small() -> nn.Module:
    torch.manual_seed(0)
    return wide(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))


@pytest.mark.parametrize("loss", ["cross-entropy", "squared"])
@pytest.mark.parametrize("given", [True, False])
def test_labels_and_losses(loss, given):
    model, x = small(), inputs(4)
    y = torch.tensor([0, 1, 2, 1, 0]) if given else None
    g_BP = row_gradients(model, x, y, squared=loss == "squared")
    found = RowGradients(model).compute(x, GradientRequest(norm=True), loss, "argmax" if y is None else y)
    torch.testing.assert_close(found.sq_norm, g_BP.square().sum(1))


def test_regression():
    torch.manual_seed(0)
    model, x, y = wide(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))), inputs(4), inputs(1)[:, 0]
    found = RowGradients(model).compute(x, GradientRequest(norm=True), "squared", y)
    torch.testing.assert_close(found.sq_norm, row_gradients(model, x, y, squared=True).square().sum(1))
    unit = row_gradients(model, x, model(x).detach()[:, 0] - 1, squared=True)
    spread = RowGradients(model).compute(x, GradientRequest(norm=True, along=direction(model)), "squared", "spread")
    torch.testing.assert_close(spread.sq_norm, unit.square().sum(1))
    assert spread.dot.eq(0).all()
    with pytest.raises(LabelError, match="spread"):
        RowGradients(model).compute(x, GradientRequest(norm=True), "squared")


def test_spread_labels_sum_over_the_outputs():
    model, x = small(), inputs(4)
    outputs = model(x).detach()
    each = [row_gradients(model, x, outputs - e, squared=True).square().sum(1) for e in torch.eye(3).double()]
    found = RowGradients(model).compute(x, GradientRequest(norm=True), "squared", "spread").sq_norm
    torch.testing.assert_close(found, torch.stack(each).sum(0))


def test_a_gradient_of_a_sure_row_keeps_its_digits():
    model = nn.Linear(1, 2, bias=False)
    model.weight.data = torch.tensor([[20.0], [0.0]])
    found = RowGradients(model).compute(torch.ones(2, 1), GradientRequest(norm=True)).sq_norm
    p = float(torch.tensor([0.0, 20.0], dtype=torch.float64).softmax(0)[0])
    torch.testing.assert_close(found, torch.full((2,), 2 * p * p, dtype=torch.float64), rtol=1e-5, atol=0.0)


def test_the_gradient_of_the_labelled_rows_is_a_sum():
    model, x, y = small(), inputs(4), torch.tensor([2, 1, 0, 0, 1])
    batches = [(x[:2], y[:2]), (x[2:], y[2:])]
    found = RowGradients(model).sum_over(batches)
    expected = row_gradients(model, x, y).sum(0)
    torch.testing.assert_close(torch.cat([g.flatten() for g in found.values()]), expected)
    with pytest.raises(LabelError, match="from 0 to 2"):
        RowGradients(model).sum_over([(x, y + 1)])


# --- what has no rule -------------------------------------------------------------------------------------------------


class Own(nn.Module):
    """A layer of the user's own."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.exp()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(7, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.words(x).mean(1).tanh())


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.inner(x).tanh()).tanh())


class Borrowed(Twice):
    """The weight of a layer is used outside the layer too."""

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.linear(self.inner(x).tanh(), self.inner.weight).tanh())


class Odd(nn.Linear):
    """A subclass that computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.square(), self.bias)


class Sideways(nn.Module):
    """The axis of the rows is not the first inside."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x.transpose(0, 1)).tanh().mean(0))


AWKWARD = {
    "own": (lambda: nn.Sequential(Own(), nn.Linear(4, 3)), inputs(4), "no rule for Own"),
    "tied": (Tied, words(3), "used twice"),
    "twice": (Twice, inputs(4), "called more than once"),
    "borrowed": (Borrowed, inputs(4), "autograd"),
    "odd": (lambda: nn.Sequential(Odd(4, 4), nn.Linear(4, 3)), inputs(4), "no rule for Odd"),
    "sideways": (Sideways, inputs(6, 4), "rows as its first axis"),
    "sideways, two places": (Sideways, inputs(2, 4), "autograd"),
    "recurrent": (
        lambda: nn.Sequential(nn.LSTM(4, 3, batch_first=True), Last(), nn.Linear(3, 3)),
        inputs(5, 4),
        "no rule for LSTM",
    ),
    "weight norm": (
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3)),
        inputs(4),
        "no rule",
    ),
    "transposed": (
        lambda: nn.Sequential(nn.ConvTranspose2d(2, 3, 3), nn.Flatten(), nn.Linear(75, 3)),
        inputs(2, 3, 3),
        "no rule for ConvTranspose2d",
    ),
    "bag": (lambda: nn.Sequential(nn.EmbeddingBag(7, 4), nn.Linear(4, 3)), words(3), "no rule for EmbeddingBag"),
}


class Last(nn.Module):
    def forward(self, output) -> Tensor:
        return output[0][:, -1]


@pytest.mark.parametrize("name", AWKWARD)
def test_what_has_no_rule_falls_back_and_is_named(name):
    make, x, reason = AWKWARD[name]
    torch.manual_seed(0)
    reader = check(wide(make()), x, falls_back=True)
    assert any(reason in why for why in reader.notes()), reader.notes()


class Branching(nn.Module):
    """A control flow on values, which vmap cannot follow."""

    def __init__(self):
        super().__init__()
        self.one, self.head = Own(), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = [self.one(row) if float(row.sum()) > 0 else row.sin() * self.one.scale for row in x]
        return self.head(torch.stack(rows))


def test_a_model_that_vmap_cannot_follow_is_read_row_by_row():
    torch.manual_seed(0)
    check(wide(Branching()), inputs(4), falls_back=True)


def test_without_forward_mode_a_central_difference_serves(monkeypatch):
    def refuse(*_):
        raise RuntimeError("no forward mode")

    torch.manual_seed(0)
    model, x = wide(Twice()), inputs(4)
    along = direction(model)
    expected = RowGradients(model).compute(x, GradientRequest(along=along)).dot
    monkeypatch.setattr(fallback.torch.func, "jvp", refuse)
    found = RowGradients(model).compute(x, GradientRequest(along=along)).dot
    assert not torch.equal(found, expected)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    assert fallback.difference(lambda p, _: p["a"], {"a": torch.ones(2, 1)}, {"a": torch.zeros(2, 1)}, None).eq(0).all()


def test_layers_that_the_model_runs_without_gradients_count_nothing():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                h = self.inner(x)
            return self.head(h)

    check(wide(Frozen()), inputs(4))


def test_rows_that_depend_on_each_other_are_refused():
    model = wide(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)))
    with pytest.raises(ModelError, match="other rows of the batch"):
        RowGradients(model).compute(inputs(4), GradientRequest(norm=True))


def test_a_frozen_model_is_refused():
    with pytest.raises(ModelError, match="frozen"):
        RowGradients(nn.Linear(2, 2).requires_grad_(False))


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [NETWORKS["resnet18"], Twice], ids=["ruled", "with a fallback"])
def test_a_row_does_not_depend_on_its_batch(make):
    torch.manual_seed(0)
    model = wide(make())
    x = inputs(4) if make is Twice else inputs(3, 32, 32)
    along = direction(model)
    request = GradientRequest(norm=True, along=along, sketch=(16, 0))
    whole = RowGradients(model).compute(x, request)
    order = torch.tensor([3, 0, 4, 1, 2])
    shuffled, reader = RowGradients(model).compute(x[order], request), RowGradients(model)
    alone = [reader.compute(x[i : i + 1], request) for i in range(len(x))]
    for what in ("sq_norm", "dot", "sketch"):
        torch.testing.assert_close(getattr(shuffled, what), getattr(whole, what)[order], rtol=1e-9, atol=1e-9)
        one = torch.cat([getattr(result, what) for result in alone])
        torch.testing.assert_close(one, getattr(whole, what), rtol=1e-9, atol=1e-9)


# --- manners ----------------------------------------------------------------------------------------------------------


def fingerprint(model: nn.Module) -> list:
    return [
        [(name, module.training) for name, module in model.named_modules()],
        [(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()],
        [(p.requires_grad, None if p.grad is None else p.grad.tolist()) for p in model.parameters()],
        [value.tolist() for value in model.state_dict().values()],
        [sorted(vars(module)) for module in model.modules()],
        torch.is_grad_enabled(),
        torch.backends.mha.get_fastpath_enabled(),
    ]


class Fails(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if len(x) > 3:
            raise OSError("a fault of the model")
        return x * self.scale


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was_found(fails):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(), Fails() if fails else Own(), nn.Linear(4, 3)
    )
    model.double().train()
    model[2].eval()
    model[0].bias.requires_grad_(False)
    model(inputs(4)[:3]).sum().backward()
    before = fingerprint(model)
    reader = RowGradients(model)
    request = GradientRequest(norm=True, along=direction(model), sketch=(8, 0))
    if fails:
        with pytest.raises(OSError, match="a fault of the model"):
            reader.compute(inputs(4), request)
    else:
        reader.compute(inputs(4), request)
        reader.rows(inputs(4), torch.ones_like)
        reader.sum_over([(inputs(4), torch.zeros(5, dtype=torch.int64))])
    assert fingerprint(model) == before


def test_nothing_is_drawn_from_the_generators_of_torch():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Linear(4, 3)).double()
    before = torch.get_rng_state()
    RowGradients(model).compute(inputs(4), GradientRequest(norm=True, sketch=(8, 0)))
    assert torch.equal(torch.get_rng_state(), before)


def test_inputs_by_name_and_logits_in_a_mapping():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.own, self.head = nn.Embedding(7, 4), Own(), nn.Linear(4, 3)

        def forward(self, tokens: Tensor, scale: Tensor) -> dict[str, Tensor]:
            return {"logits": self.head(self.own(self.words(tokens).mean(1) * scale[:, None]))}

    torch.manual_seed(0)
    model = wide(Named())
    tokens, scale = words(3), inputs(1)[:, 0]

    class Positional(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x[:, :3].long(), x[:, 3])["logits"]

    expected = row_gradients(Positional(), torch.cat([tokens.double(), scale[:, None]], 1)).square().sum(1)
    found = RowGradients(model).compute({"tokens": tokens, "scale": scale}, GradientRequest(norm=True)).sq_norm
    torch.testing.assert_close(found, expected)


def test_in_mixed_precision_norms_are_close():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 3)).eval()
    x = inputs(3, 8, 8).float()
    exact = RowGradients(model).compute(x, GradientRequest(norm=True)).sq_norm
    mixed = RowGradients(model, autocast=torch.bfloat16).compute(x, GradientRequest(norm=True)).sq_norm
    torch.testing.assert_close(mixed, exact, rtol=0.1, atol=0.0)
