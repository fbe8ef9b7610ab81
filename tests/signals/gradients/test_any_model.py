"""Gradients of any torch model: shared modules, precisions, odd parameters; and every model is left as found."""

import copy

import pytest
import torch
import torch.nn.functional as F
from test_ghost_rules import direction, inputs, wide, words
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from labelwise.errors import ModelError
from labelwise.signals.gradients.collect import GradientRequest
from labelwise.signals.gradients.read_gradients import RowGradients
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import Labelled
from labelwise.signals.spec import GradNorm, GradSketch, LossJvp, Probs


class Shared(nn.Module):
    """One layer under two names; `calls` says how often it is used in a forward pass."""

    def __init__(self, calls: int = 1):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.head = nn.Linear(4, 3)
        self.calls = calls

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second)[: self.calls]:
            x = layer(x).tanh()
        return self.head(x)


class Tied(nn.Module):
    """The embedding's weight is the last layer's, with a bias and a second name for the whole table."""

    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(7, 5), nn.Linear(5, 7)
        self.head.weight = self.words.weight
        self.decoder = self.head

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.words(x).mean(1).tanh())


class Clip(nn.Module):
    """A zero-dimensional parameter that scales the logits, as in CLIP, and another that is a bias."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 5), nn.Linear(5, 3, bias=False)
        self.logit_scale, self.logit_bias = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor(0.1))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x).tanh()) * self.logit_scale.exp() * self.logit_bias.cos()


class Unused(nn.Module):
    """Parameters with and without a rule that take no part in the output, one of them empty."""

    def __init__(self):
        super().__init__()
        self.inner, self.spare, self.head = nn.Linear(4, 4), nn.Linear(4, 9), nn.Linear(4, 3)
        self.extra, self.empty = nn.Parameter(torch.ones(2, 3)), nn.Parameter(torch.ones(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(x).tanh())


class Outputs(nn.Module):
    """The logits inside a mapping or a tuple."""

    def __init__(self, form: str):
        super().__init__()
        self.inner, self.head, self.form = nn.Linear(4, 4), nn.Linear(4, 3), form

    def forward(self, x: Tensor):
        h = self.inner(x).tanh()
        logits = self.head(h)
        return {"scores": logits, "hidden": h} if self.form == "mapping" else (h, logits)


class Remembers(nn.Module):
    """Its forward pass sets an attribute, adds to a list, counts in a buffer and replaces another."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Parameter(torch.ones(4)), nn.Linear(4, 3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(4))
        self.seen = []

    def forward(self, x: Tensor) -> Tensor:
        h = x * self.scale.exp()
        self.hidden, self.last = h, h.mean(0)
        self.seen.append(h)
        with torch.no_grad():
            self.count += 1
        return self.head(h.tanh())


class Hidden(nn.Module):
    """A tensor that requires a gradient and is no parameter of the model."""

    def __init__(self):
        super().__init__()
        self.parts = [torch.ones(4, dtype=torch.float64, requires_grad=True)]
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x * self.parts[0])


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    return model


def parametrised(method) -> nn.Module:
    model = nn.Sequential(method(nn.Linear(4, 4)), nn.Tanh(), nn.Linear(4, 3))
    with torch.no_grad():  # copies of the old weight norm need a weight without a graph
        model(torch.ones(1, 4))
    return model


def materialised() -> nn.Module:
    model = nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyLinear(3))
    model(torch.ones(1, 4))
    return model


def compiled(in_place: bool) -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).double()
    if not in_place:
        return torch.compile(model, backend="eager")
    model[0].compile(backend="eager")
    return model


def made_in_inference_mode() -> nn.Module:
    with torch.inference_mode():
        return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)).double()


def in_inference_mode(*shape: int) -> Tensor:
    with torch.inference_mode():
        return inputs(*shape).clone()


def recurrent() -> nn.Module:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.GRU(4, 3, batch_first=True), nn.Linear(3, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.inner(x)[0][:, -1])

    return Model()


# A model, its inputs, where its logits are, and the reason in the notes (None where every parameter has a rule).
MODELS = {
    "a module under two names": (Shared, inputs(4), None, None),
    "a module used twice": (lambda: Shared(2), inputs(4), None, "called more than once"),
    "tied weights": (Tied, words(3), None, "used twice"),
    "parameters without an axis": (Clip, inputs(4), None, "no rule for Clip"),
    "unused parameters": (Unused, inputs(4), None, "no rule for Unused"),
    "frozen parameters": (frozen, inputs(4), None, None),
    "weight norm": (lambda: parametrised(parametrizations.weight_norm), inputs(4), None, "no rule"),
    "weight norm by a hook": (lambda: parametrised(nn.utils.weight_norm), inputs(4), None, "no rule"),
    "spectral norm": (lambda: parametrised(parametrizations.spectral_norm), inputs(4), None, "no rule"),
    "lazy modules after their first batch": (materialised, inputs(4), None, None),
    "logits in a mapping": (lambda: Outputs("mapping"), inputs(4), "scores", None),
    "logits in a tuple": (lambda: Outputs("tuple"), inputs(4), 1, None),
    "compiled": (lambda: compiled(False), inputs(4), None, None),
    "compiled in place": (lambda: compiled(True), inputs(4), None, None),
    "parameters made in inference mode": (made_in_inference_mode, inputs(4), None, None),
    "inputs made in inference mode": (lambda: nn.Linear(4, 3), in_inference_mode(4), None, None),
    "inputs that require gradients": (lambda: nn.Linear(4, 3), inputs(4).requires_grad_(), None, None),
    "state set by the forward pass": (Remembers, inputs(4), None, "no rule for Remembers"),
    "a tensor that is no parameter": (Hidden, inputs(4), None, None),
    "recurrent": (recurrent, inputs(5, 4), None, "no rule for GRU"),
}


def logits(model: nn.Module, x: Tensor, where: str | int | None) -> Tensor:
    out = model(x)
    return out if where is None else out[where]


def explicit(model: nn.Module, x: Tensor, where: str | int | None) -> tuple[Tensor, Tensor, list[str]]:
    """The gradients (B, P) of the rows' losses at their most probable classes, these classes, and parameters' names.

    By a loop over the rows, in float64, with a copy of the model that has ordinary tensors.
    """
    model = getattr(model, "_orig_mod", model)
    with torch.inference_mode(False):
        double = copy.deepcopy(model)
        for module in double.modules():
            module._compiled_call_impl = None
            for name, buffer in module._buffers.items():
                module._buffers[name] = buffer.clone().double() if buffer.is_floating_point() else buffer.clone()
        memo: dict[int, nn.Parameter] = {}
        for module in double.modules():
            for name, p in module._parameters.items():
                memo.setdefault(
                    id(p), nn.Parameter(p.detach().clone().double(), p.requires_grad) if p is not None else p
                )
                module._parameters[name] = memo[id(p)]
        leaves = [p for p in double.parameters() if p.requires_grad]
        x = x.detach().clone()
        rows, labels = [], []
        for row in x.double() if x.is_floating_point() else x:
            out = logits(double.eval(), row[None], where)
            labels.append(int(out.argmax(1)))
            loss = F.cross_entropy(out.double(), out.argmax(1))
            found = torch.autograd.grad(loss, leaves, allow_unused=True)
            rows.append(
                torch.cat([torch.zeros(p.numel()) if g is None else g.flatten() for p, g in zip(leaves, found)])
            )
    return (
        torch.stack(rows).double(),
        torch.tensor(labels),
        [name for name, q in double.named_parameters() if q.requires_grad],
    )


def state(model: nn.Module) -> list:
    """What must be the same after reading; objects are compared by identity."""
    attributes = {}
    for where, module in model.named_modules(remove_duplicate=False):
        for name, value in vars(module).items():
            attributes[where, name] = (id(value), [id(item) for item in value] if isinstance(value, list) else None)
            if isinstance(value, dict):
                attributes[where, name] += tuple((key, id(item)) for key, item in value.items())
    tensors = [*model.parameters(), *model.buffers()]
    return [
        attributes,
        [(name, id(p), type(p), p.requires_grad, p.dtype, p.is_leaf) for name, p in model.named_parameters()],
        [None if p.grad is None else (id(p.grad), p.grad.tolist()) for p in model.parameters()],
        [(t.tolist(), t.dtype, None if t.is_inference() else t._version) for t in tensors],
        [(name, module.training) for name, module in model.named_modules()],
        torch.is_grad_enabled(),
    ]


def ready(make, x: Tensor) -> nn.Module:
    """The model in float64 and in training mode, with hooks of the user's and gradients where it allows them."""
    torch.manual_seed(0)
    model = make()
    if not any(p.is_inference() for p in model.parameters()):
        wide(model)
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.5) if p.requires_grad else None
    model.register_forward_hook(lambda *_: None)
    return model.train()


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0:RuntimeWarning")  # of torch.compile
@pytest.mark.parametrize("name", MODELS)
def test_any_model_is_read_exactly_and_left_as_found(name):
    make, x, where, reason = MODELS[name]
    model = ready(make, x)
    expected_BP, labels_B, names = explicit(model, x, where)
    if name.startswith("compiled"):
        logits(model, x, where)
    along = direction(model)
    along_P = torch.cat([v.double().flatten() for v in along.values()])
    before, hidden = state(model), [t.grad for t in getattr(model, "parts", [])]
    reader = RowGradients(model, where)
    sketch = (64, 0)
    both = reader.compute(x, GradientRequest(norm=True, along=along, sketch=sketch))
    dot = reader.compute(x, GradientRequest(along=along)).dot
    summed = reader.sum_over([(x, labels_B)])
    assert state(model) == before
    assert [t.grad for t in getattr(model, "parts", [])] == hidden
    assert x.grad is None
    torch.testing.assert_close(both.sq_norm, expected_BP.square().sum(1), rtol=1e-9, atol=1e-12)
    for found in (both.dot, dot):
        torch.testing.assert_close(found, expected_BP @ along_P, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(torch.cat([g.flatten() for g in summed.values()]), expected_BP.sum(0))
    assert [n.removeprefix("_orig_mod.") for n in summed] == names
    parts = expected_BP.split([v.numel() for v in along.values()], 1)
    sketches = [reader._tables(sketch, name, x.device).whole(part) for name, part in zip(along, parts)]
    torch.testing.assert_close(both.sketch, torch.stack(sketches).sum(0), rtol=1e-6, atol=1e-9)
    notes = reader.notes()
    assert any(reason in why for why in notes) if reason else not notes, notes


class Stops(nn.Module):
    """Raises an error in the forward pass, or in the backward pass, after some calls."""

    def __init__(self, error: BaseException, when: str):
        super().__init__()
        self.scale, self.error, self.when = nn.Parameter(torch.ones(4)), error, when

    def forward(self, x: Tensor) -> Tensor:
        def stop(*_):
            raise self.error

        self.x = x
        if len(x) == 5 and self.when == "forward":
            stop()
        y = x * self.scale
        if len(x) == 5 and self.when == "backward" and y.requires_grad:
            y.register_hook(stop)
        elif len(x) == 1 and self.when == "fallback":
            stop()
        return y


@pytest.mark.parametrize("when", ["forward", "backward", "fallback"])
@pytest.mark.parametrize("error", [OSError("a fault"), KeyboardInterrupt("stop")], ids=["error", "interrupt"])
def test_the_model_is_left_as_found_after_an_error(error, when):
    shared = Shared(2)
    model = nn.Sequential(shared, nn.Linear(3, 4), Stops(error, when), nn.Dropout(), nn.Linear(4, 3))
    model.add_module("again", model[4])
    model.forward = lambda x: model[4](model[2](model[1](model[0](x))))
    model[0].head.requires_grad_(False)
    model = ready(lambda: model, inputs(4))
    model[3].eval()
    before = state(model)
    with pytest.raises(type(error), match=str(error)):
        RowGradients(model).compute(inputs(4), GradientRequest(norm=True))
    assert state(model) == before
    with pytest.raises(type(error), match=str(error)) if when != "fallback" else pytest.MonkeyPatch.context():
        RowGradients(model).sum_over([(inputs(4), torch.zeros(5, dtype=torch.int64))])
    assert state(model) == before


# --- precisions -------------------------------------------------------------------------------------------------------


class Mixed(nn.Module):
    """Convolution, norms, attention, an own layer, a scale without an axis, shared weights."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.instance = nn.InstanceNorm1d(8, affine=True, track_running_stats=True)
        self.attend, self.layer_norm = nn.MultiheadAttention(8, 2, batch_first=True), nn.LayerNorm(8)
        self.inner, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.same, self.logit_scale = self.inner, nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        h = self.instance(self.norm(self.conv(x))).mT
        h = self.layer_norm(h + self.attend(h, h, h, need_weights=False)[0]).mean(1)
        return self.head(self.same(self.inner(h).tanh()).tanh()) * self.logit_scale.exp()


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 8e-2), (torch.float16, 1e-2), (torch.float32, 1e-4)])
@pytest.mark.parametrize("make", [Mixed, Clip, Shared], ids=["mixed", "clip", "shared"])
def test_every_precision(make, dtype, tolerance):
    torch.manual_seed(0)
    model = make().to(dtype).train()
    x = (inputs(4, 6) if make is Mixed else inputs(4)).to(dtype)
    expected_BP, _, _ = explicit(model, x, None)
    before = state(model)
    reader = ModelReader(model)
    y = torch.tensor([0, 1, 2, 1, 0])
    reader.read_labelled(Labelled(torch.arange(5), y), lambda: [(x, y)])
    columns = reader.read(x, (GradNorm(label="argmax"), LossJvp(along="training gradient"), GradSketch(), Probs()))
    only_dot = reader.read(x, (LossJvp(along="training gradient"),))
    assert state(model) == before
    assert all(column.dtype == torch.float32 for column in columns.values())
    norm_B, dot_B, sketch_BW = list(columns.values())[:3]
    torch.testing.assert_close(norm_B.double(), expected_BP.square().sum(1), rtol=2 * tolerance, atol=0.0)
    labelled_P = torch.cat([g.flatten() for g in reader._gradients._labelled_gradient.values()])
    assert labelled_P.dtype == torch.float32
    size_B = expected_BP.norm(dim=1) * float(labelled_P.norm())
    for found_B in (dot_B, *only_dot.values()):
        assert float(((found_B - expected_BP @ labelled_P.double()) / size_B).abs().max()) < 2 * tolerance
    sizes = [p.numel() for p in model.parameters()]
    columns_of = reader._gradients.gradients
    sketch = (sketch_BW.shape[1], GradSketch().seed)
    exact_BW = sum(
        columns_of._tables(sketch, name, x.device).whole(part)
        for (name, _), part in zip(model.named_parameters(), expected_BP.split(sizes, 1))
    )
    assert float(((sketch_BW - exact_BW).norm(dim=1) / exact_BW.norm(dim=1)).max()) < 2 * tolerance


def test_sure_rows_in_half_precision():
    """Cotangents near 1e-6 are below the normal numbers of float16, and their products with weights vanish."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3)).half()
    with torch.no_grad():
        model[2].bias.copy_(torch.tensor([13.0, 0.0, 0.0]))
        model[2].weight.mul_(0.02)
    x = inputs(4).half()
    expected_B = explicit(model, x, None)[0].square().sum(1)
    assert float(expected_B.max()) < 1e-9
    found_B = RowGradients(model).compute(x, GradientRequest(norm=True)).sq_norm
    torch.testing.assert_close(found_B, expected_B, rtol=2e-2, atol=0.0)


# --- refusals ---------------------------------------------------------------------------------------------------------


class NoGrad(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.phase = nn.Parameter(torch.ones(3, dtype=torch.complex64))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return (self.head(x) * self.phase).real


REFUSED = {
    "lazy modules": (lambda: nn.Sequential(nn.LazyLinear(3)), "Run the model once on a batch"),
    "TorchScript": (lambda: torch.jit.trace(nn.Linear(4, 3), torch.ones(1, 4)), "Pass the nn.Module that it was made"),
    "no gradient": (lambda: NoGrad(4, 3), "Let its forward keep gradients"),
    "complex parameters": (Complex, "Freeze it"),
    "everything frozen": (lambda: nn.Linear(4, 3).requires_grad_(False), "Set requires_grad=True"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_gradients_is_refused_with_what_to_do(name):
    make, message = REFUSED[name]
    model = make().train()
    with pytest.raises(ModelError, match=message):
        ModelReader(model).read(torch.ones(5, 4), (GradNorm(),))
    assert all(module.training for module in model.modules())


def test_reading_inside_inference_mode():
    torch.manual_seed(0)
    model, x = Shared(2).double(), inputs(4)
    request = GradientRequest(norm=True)
    expected = RowGradients(model).compute(x, request).sq_norm
    with torch.inference_mode():
        found = RowGradients(model).compute(x, request).sq_norm
    torch.testing.assert_close(found, expected)
