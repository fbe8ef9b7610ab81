"""Every layer rule against explicit gradients of single rows, in float64."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from labelwise.signals.gradients import RULES, register, winograd
from labelwise.signals.gradients.collect import GradientRequest
from labelwise.signals.gradients.convolution import Patches
from labelwise.signals.gradients.linear import added
from labelwise.signals.gradients.pieces import Piece, Tuning
from labelwise.signals.gradients.read_gradients import RowGradients
from labelwise.strategies.dynamical.reference import row_gradients, trained_parameters

B = 5


def wide(model: nn.Module) -> nn.Module:
    """In float64, with every scale, shift and statistic away from its special first value."""
    draw = torch.Generator().manual_seed(1)
    model = model.double().eval()
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.is_floating_point() and tensor.ndim < 2:
            tensor.data.add_(0.3 * torch.rand(tensor.shape, generator=draw, dtype=torch.float64))
    return model


def inputs(*shape: int) -> Tensor:
    return torch.randn(B, *shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def words(*shape: int, vocabulary: int = 7) -> Tensor:
    return torch.randint(0, vocabulary, (B, *shape), generator=torch.Generator().manual_seed(3))


def direction(model: nn.Module) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(4)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return {name: torch.randn(p.shape, generator=draw, dtype=p.dtype) for name, p in named}


def check(model: nn.Module, x: Tensor, falls_back: bool = False) -> RowGradients:
    g_BP = row_gradients(model, x)
    along = direction(model)
    along_P = torch.cat([along[name].flatten() for name, p in model.named_parameters() if p.requires_grad])
    reader = RowGradients(model)
    both = reader.compute(x, GradientRequest(norm=True, along=along))
    norm, dot = reader.compute(x, GradientRequest(norm=True)), reader.compute(x, GradientRequest(along=along))
    assert both.sq_norm is not None
    assert both.dot is not None
    assert float(g_BP.square().sum(1).min()) > 0
    for found in (both, norm):
        torch.testing.assert_close(found.sq_norm, g_BP.square().sum(1), rtol=1e-9, atol=1e-12)
    for found in (both, dot):
        torch.testing.assert_close(found.dot, g_BP @ along_P, rtol=1e-9, atol=1e-10)
    assert bool(reader.notes()) == falls_back, reader.notes()
    return reader


def ends(layer: nn.Module, x: Tensor, before: nn.Module | None = None) -> nn.Module:
    """The layer between whatever comes before it and a linear head, with a bend after it."""
    first = [] if before is None else [before]
    with torch.no_grad():
        width = nn.Sequential(*first, layer).double().eval()(x).flatten(1).shape[1]
    return wide(nn.Sequential(*first, layer, nn.Tanh(), nn.Flatten(), nn.Linear(width, 3)))


# --- linear -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(4,), (6, 4), (2, 3, 4), (40, 4)])
def test_linear(shape, bias):
    x = inputs(*shape)
    check(ends(nn.Linear(4, 5, bias=bias), x), x)


@pytest.mark.parametrize("product", [True, False])
def test_both_ways_to_a_norm_agree(product, monkeypatch):
    write = -math.inf if product else math.inf
    monkeypatch.setattr(Piece, "tuning", Tuning(cpu_scratch=300, write=write))  # many parts of a batch
    x = inputs(6, 4)
    check(ends(nn.Linear(4, 5), x), x)
    x = inputs(4, 7, 7)
    check(ends(nn.Conv2d(4, 6, 3, 2, 1, groups=2), x), x)


def test_only_some_parameters_are_trained():
    x = inputs(6, 4)
    model = ends(nn.Linear(4, 5), x)
    model[0].weight.requires_grad_(False)
    check(model, x)
    model = ends(nn.Conv2d(2, 4, 3), inputs(2, 5, 5))
    model[0].bias.requires_grad_(False)
    model[3].requires_grad_(False)
    check(model, inputs(2, 5, 5))
    assert [p.requires_grad for p in model.parameters()] == [True, False, False, False]


class Shift(nn.Module):
    def __init__(self, *shape: int):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


@pytest.mark.parametrize("shape", [(4,), (6, 4), (1, 6, 4), (6, 1), (1, 1, 1)])
def test_a_parameter_that_is_only_added(shape):
    x = inputs(6, 4)
    check(ends(Shift(*shape), x), x, falls_back=True)
    register(Shift, rule=added("bias"))
    try:
        check(ends(Shift(*shape), x), x)
        check(ends(nn.Sequential(nn.Linear(4, 4), Shift(*shape)), x), x)
    finally:
        del RULES[Shift]


# --- convolutions -----------------------------------------------------------------------------------------------------

SETTINGS = [
    {},
    {"stride": 2},
    {"padding": 1},
    {"padding": "same"},
    {"padding": "valid", "bias": False},
    {"dilation": 2},
    {"groups": 2},
    {"groups": 4},
    {"stride": 2, "padding": 1, "dilation": 2, "groups": 2},
    {"padding": 1, "padding_mode": "circular"},
    {"padding": 1, "padding_mode": "reflect", "stride": 2},
    {"padding": "same", "padding_mode": "replicate", "dilation": 2},
]


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("kernel", [1, 2, 3])
def test_convolution_in_two_dimensions(settings, kernel):
    x = inputs(4, 8, 7)
    check(ends(nn.Conv2d(4, 8, kernel, **settings), x), x)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_convolution_in_one_dimension(settings):
    x = inputs(4, 11)
    check(ends(nn.Conv1d(4, 8, 3, **settings), x), x)


@pytest.mark.filterwarnings("ignore:Using padding='same'")  # torch 2.11 says so of even kernels; the result is right
@pytest.mark.parametrize("settings", [s for s in SETTINGS if s.get("padding_mode") != "reflect"], ids=str)
def test_convolution_in_three_dimensions(settings):
    x = inputs(4, 5, 6, 5)
    check(ends(nn.Conv3d(4, 4, (2, 3, 2), **settings), x), x)


FORMS = {  # product form, tiles from so many places on, costs of the tables by the input and by patches
    "patches": (True, 10**9, (1, 1)),
    "winograd": (True, 1, (1, 1)),
    "table of the input": (False, 1, (1, 2)),
    "table of patches": (False, 1, (2, 1)),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:Using padding='same'")
def test_every_form_of_a_convolution_gives_the_same(form, monkeypatch):
    product, least, costs = FORMS[form]
    write = -math.inf if product else math.inf
    monkeypatch.setattr(Piece, "tuning", Tuning(cpu_scratch=3000, write=write, tiled_places=least))
    monkeypatch.setattr(Patches, "_table_costs", lambda piece: costs)
    tiled = []
    plain = winograd.kernel_gradients
    monkeypatch.setattr(winograd, "kernel_gradients", lambda *given: tiled.append(given[1].shape[2:]) or plain(*given))
    for settings in SETTINGS:
        x = inputs(4, 6, 7)
        check(ends(nn.Conv2d(4, 4, 3, **settings), x), x)
    assert bool(tiled) == (form == "winograd")
    if form == "winograd":  # also of an odd height, and of a kernel that is wider than high
        x = inputs(3, 7, 9)
        check(ends(nn.Conv2d(3, 5, (3, 4), stride=(1, 2), dilation=(1, 2), padding=(1, 2)), x), x)
        assert tiled[-1][0] == 7
    else:
        x = inputs(4, 9)
        check(ends(nn.Conv1d(4, 4, 3, padding=1, groups=2), x), x)
        x = inputs(2, 4, 5, 4)
        check(ends(nn.Conv3d(2, 3, 2, stride=2, padding=1), x), x)


def test_unequal_kernels_steps_and_margins():
    x = inputs(3, 9, 12)
    layer = nn.Conv2d(3, 6, (3, 2), stride=(1, 3), padding=(2, 1), dilation=(2, 1), groups=3)
    check(ends(layer, x), x)
    check(ends(nn.Conv2d(3, 4, (1, 5)), x.to(memory_format=torch.channels_last)), x)


# --- normalisation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.BatchNorm1d(4), (4,)),
        (nn.BatchNorm1d(4), (4, 6)),
        (nn.BatchNorm2d(4), (4, 5, 5)),
        (nn.BatchNorm3d(4), (4, 2, 3, 2)),
        (nn.LayerNorm(4), (4,)),
        (nn.LayerNorm(4), (3, 4)),
        (nn.LayerNorm((3, 4)), (2, 3, 4)),
        (nn.LayerNorm(4, bias=False), (3, 4)),
        (nn.RMSNorm(4), (3, 4)),
        (nn.RMSNorm(4, eps=1e-3), (4,)),
        (nn.GroupNorm(2, 4), (4,)),
        (nn.GroupNorm(2, 4), (4, 3, 3)),
        (nn.InstanceNorm1d(4, affine=True), (4, 6)),
        (nn.InstanceNorm2d(4, affine=True), (4, 3, 5)),
        (nn.InstanceNorm2d(4, affine=True, track_running_stats=True), (4, 3, 5)),
        (nn.InstanceNorm3d(4, affine=True), (4, 2, 3, 2)),
    ],
    ids=str,
)
def test_normalisation(layer, shape):
    x = inputs(*shape)
    check(ends(layer, x), x)
    check(ends(layer, x, nn.Tanh()), x)


# --- embedding --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1,), (6,), (2, 3)])
@pytest.mark.parametrize("padding", [None, 0])
def test_embedding(shape, padding):
    x = words(*shape)
    check(ends(nn.Embedding(7, 4, padding_idx=padding), x), x)


# --- attention --------------------------------------------------------------------------------------------------------


class Attend(nn.Module):
    """Attention in one of its many forms, then a head."""

    def __init__(self, rows_first: bool, form: str, **settings):
        super().__init__()
        self.form = form
        self.rows_first = rows_first
        self.before = nn.Linear(6, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=rows_first, **settings)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.before(x)
        other = torch.sin(x) if self.form == "cross" else h
        if not self.rows_first:
            h, other = h.transpose(0, 1), other.transpose(0, 1)
        given = {}
        if self.form == "causal":
            given["attn_mask"] = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        if self.form == "added":
            given["attn_mask"] = torch.arange(x.shape[1] ** 2, dtype=x.dtype).view(x.shape[1], -1).cos()
        if self.form == "padded":
            given["key_padding_mask"] = torch.arange(x.shape[1])[None] > 1 + (x[:, :1, 0] > 0)
        out = self.attention(h, other, other, need_weights=self.form == "weights", **given)[0]
        return self.head((out if self.rows_first else out.transpose(0, 1)).mean(1))


@pytest.mark.parametrize("form", ["self", "cross", "causal", "added", "padded", "weights"])
@pytest.mark.parametrize("rows_first", [True, False])
def test_attention(form, rows_first):
    x = inputs(4, 6)
    check(wide(Attend(rows_first, form)), x)


def test_attention_without_bias_and_with_keys_of_another_width():
    x = inputs(4, 6)
    check(wide(Attend(True, "self", bias=False)), x)

    class Other(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(6, 3, kdim=4, vdim=5, batch_first=True)
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attention(x, x[..., :4], x[..., 1:])[0].mean(1))

    check(wide(Other()), x)


def test_attention_that_is_not_covered_falls_back():
    check(wide(Attend(True, "self", add_bias_kv=True)), inputs(4, 6), falls_back=True)


@pytest.mark.parametrize("first", [True, False])
def test_a_transformer_has_no_layer_without_a_rule(first):
    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(7, 6)
            layer = nn.TransformerEncoderLayer(6, 2, 12, norm_first=first, batch_first=True, dropout=0.1)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layers(self.words(x)).mean(1))

    check(wide(Encoder()), words(5))


def test_every_rule_is_tried_here():
    text = Path(__file__).read_text(encoding="utf-8")
    for kind in RULES:
        assert f"nn.{kind.__name__}(" in text, kind


def test_all_parameters_are_counted():
    x = inputs(4)
    model = wide(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)))
    reader = check(model, x)
    assert len(reader.capture.trained) == len(trained_parameters(model)) == 6
    assert not reader.capture.without_rule
