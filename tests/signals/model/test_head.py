"""The last linear layer is found by what it does, in models of many forms, and the model is left as it was found."""

from collections import OrderedDict
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from labelwise.errors import ArgumentError, ModelError
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.spec import Embedding, LabelProbs, Probs

BOTH = (Probs(), Embedding())


class Net(nn.Module):
    """A small image net with an auxiliary linear layer that runs last and looks like a head."""

    def __init__(self, form: str = "tensor"):
        super().__init__()
        torch.manual_seed(0)
        self.form = form
        self.conv = nn.Conv2d(1, 2, 3)
        self.norm = nn.BatchNorm2d(2)
        self.fc = nn.Linear(8, 3)
        self.aux = nn.Linear(8, 3)
        self.drop = nn.Dropout(0.5)

    def features(self, x):
        return self.norm(self.conv(x)).relu().flatten(1)

    def forward(self, x):
        h = self.features(x)
        logits, aux = self.fc(self.drop(h)), self.aux(h.flip(1))
        match self.form:
            case "tensor":
                return logits
            case "tuple":
                return logits, aux
            case "nested":
                return "loss", None, logits
            case "dict":
                return {"aux": aux, "logits": logits}
            case "one":
                return {"scores": logits, "note": "hello"}
            case "ordered":
                return OrderedDict(logits=logits, hidden=h)
            case "object":
                return SimpleNamespace(logits=logits, hidden=h)
            case "double":
                return logits.double()
            case "two tensors":
                return {"a": logits, "b": aux}
            case "scaled":
                return 2 * logits
            case "text":
                return "no"


def images(n: int = 6) -> torch.Tensor:
    return torch.randn(n, 1, 4, 4, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("form", ["tensor", "tuple", "nested", "dict", "one", "ordered", "object", "double"])
def test_head_and_logits_are_found_in_every_form_of_output(form):
    net = Net(form)
    got = ModelReader(net).read(images(), BOTH)
    net.eval()
    h = net.features(images())
    torch.testing.assert_close(got[Embedding()], h)
    assert got[Probs()].shape == (6, 3)
    torch.testing.assert_close(got[Probs()].float(), net.fc(h).softmax(1))


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(inplace=True), nn.Linear(8, 3), nn.Identity()),
        nn.Sequential(nn.Sequential(nn.Flatten(), nn.Linear(16, 8)), nn.Sequential(nn.Linear(8, 3))),
    ],
)
def test_head_in_sequential(net):
    got = ModelReader(net).read(images(), BOTH)
    assert got[Embedding()].shape == (6, 8)


def test_a_linear_layer_alone_is_its_own_head():
    x = torch.randn(4, 5)
    assert torch.equal(ModelReader(nn.Linear(5, 2)).read(x, (Embedding(),))[Embedding()], x)


def test_layer_called_by_keyword():
    class ByName(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(5, 2)

        def forward(self, x):
            return self.fc(input=x)

    x = torch.randn(4, 5)
    assert torch.equal(ModelReader(ByName()).read(x, (Embedding(),))[Embedding()], x)


@pytest.mark.parametrize(
    ("net", "width"),
    [
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.ReLU(inplace=True)), 16),
        (nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.LogSoftmax(1)), 16),
        (nn.Sequential(nn.Conv2d(1, 5, 4), nn.Conv2d(5, 3, 1), nn.Flatten()), 5),
    ],
    ids=["changed in place", "log softmax", "1x1 convolution"],
)
def test_no_linear_head_says_so_and_can_be_named(net, width):
    net[1].weight.data.add_(0.1)
    with pytest.raises(ModelError, match=r'not the output of any nn.Linear.*head="module.name".*output='):
        ModelReader(net).read(images(), BOTH)
    assert ModelReader(net).read(images(), (Probs(),))[Probs()].shape == (6, 3)  # no head is needed for this
    named = ModelReader(net, head="1").read(images(), BOTH)
    assert named[Embedding()].shape == (6, width)


def test_output_can_be_named_by_key_place_or_function():
    for form, output in (("two tensors", "a"), ("tuple", 0), ("scaled", lambda out: out / 2), ("object", "logits")):
        got = ModelReader(Net(form), output=output, head="fc").read(images(), BOTH)
        torch.testing.assert_close(got[Probs()], ModelReader(Net()).read(images(), BOTH)[Probs()])


def test_what_cannot_be_read_is_described():
    with pytest.raises(ModelError, match=r"a mapping with keys 'a', 'b'.*output="):
        ModelReader(Net("two tensors")).read(images(), (Probs(),))
    with pytest.raises(ModelError, match="type str"):
        ModelReader(Net("text")).read(images(), (Probs(),))
    with pytest.raises(ModelError, match=r"output='c' was not found.*'a', 'b'"):
        ModelReader(Net("two tensors"), output="c").read(images(), (Probs(),))
    with pytest.raises(ModelError, match=r"head='nope' is not a module.*'fc', 'aux'"):
        ModelReader(Net(), head="nope").read(images(), BOTH)
    with pytest.raises(ModelError, match=r"\(6, classes\) were expected.*\(6, 4, 2\)"):
        ModelReader(nn.Linear(4, 2)).read(torch.randn(6, 4, 4), (Probs(),))
    with pytest.raises(ModelError, match="look like probabilities"):
        ModelReader(nn.Sequential(nn.Linear(4, 2), nn.Softmax(1))).read(torch.randn(6, 4), (Probs(),))
    with pytest.raises(ArgumentError, match="temperature"):
        ModelReader(Net(), temperature=0.0)


def test_head_on_sequences_or_called_twice_is_refused():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(5, 2)

        def forward(self, x):
            return self.fc(x).mean(1)

    class Twice(Tokens):
        def forward(self, x):
            self.fc(x)
            return self.fc(x)

    with pytest.raises(ModelError, match=r"input has shape \(6, 7, 5\)"):
        ModelReader(Tokens(), head="fc").read(torch.randn(6, 7, 5), BOTH)
    with pytest.raises(ModelError, match="it ran 2 times"):
        ModelReader(Twice()).read(torch.randn(6, 5), BOTH)


@pytest.mark.parametrize("squeeze", [False, True])
def test_one_logit_is_a_model_of_two_classes(squeeze):
    class Binary(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.fc = nn.Linear(5, 1)

        def forward(self, x):
            return self.fc(x).squeeze() if squeeze else self.fc(x)

    net = Binary()
    for n in (1, 6):
        x = torch.randn(n, 5)
        got = ModelReader(net, temperature=2.0).read(x, (*BOTH, LabelProbs()))
        p = net.fc(x)[:, 0].sigmoid()
        torch.testing.assert_close(got[Probs()], torch.stack([1 - p, p], 1))
        torch.testing.assert_close(got[LabelProbs()][:, 1], (net.fc(x)[:, 0] / 2).sigmoid())
        assert torch.equal(got[Embedding()], x)


def test_label_probs_are_scaled_by_the_temperature():
    x = torch.randn(6, 5)
    net = nn.Linear(5, 3)
    got = ModelReader(net, temperature=3.0).read(x, (LabelProbs(), Probs()))
    torch.testing.assert_close(got[LabelProbs()], (net(x) / 3).softmax(1))
    torch.testing.assert_close(got[Probs()], net(x).softmax(1))


def test_a_mapping_goes_in_by_name_where_the_names_fit():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.fc = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, input_ids, attention_mask=None):
            return self.fc((self.embed(input_ids) * attention_mask[:, :, None]).mean(1))

    class Whole(Named):
        def forward(self, batch):
            return self.fc(self.embed(batch["input_ids"]).mean(1))

    batch = {"input_ids": torch.randint(9, (6, 3)), "attention_mask": torch.ones(6, 3)}
    for net in (Named(), Whole()):
        assert ModelReader(net).read(batch, BOTH)[Embedding()].shape == (6, 4)


def snapshot(net: nn.Module) -> dict:
    return {
        "modes": [module.training for module in net.modules()],
        "grads": [(p.requires_grad, p.grad) for p in net.parameters()],
        "hooks": [len(module._forward_hooks) + len(module._forward_pre_hooks) for module in net.modules()],
        "state": [value.clone() for value in net.state_dict().values()],
    }


def same(a: dict, b: dict) -> bool:
    tensors = all(torch.equal(x, y) for x, y in zip(a["state"], b["state"]))
    return tensors and all(a[name] == b[name] for name in ("modes", "grads", "hooks"))


@pytest.mark.parametrize("broken", [False, True])
def test_the_model_is_left_as_it_was_found(broken):
    net = Net("text" if broken else "tensor")
    net.train()
    net.norm.eval()  # a frozen part keeps its own mode
    net.conv.weight.requires_grad_(False)
    net.fc.register_forward_hook(lambda module, args, output: None)
    before = snapshot(net)
    if broken:
        with pytest.raises(ModelError):
            ModelReader(net).read(images(), BOTH)
        with pytest.raises(ModelError):
            ModelReader(net).read(torch.randn(6, 7, 4, 4), BOTH)
    else:
        ModelReader(net).read(images(), BOTH)
        ModelReader(net).logits(images())
    assert same(before, snapshot(net))
    assert torch.is_grad_enabled()


def test_a_model_in_training_mode_is_read_in_eval_mode():
    net = Net().train()
    reader = ModelReader(net)
    first, second = (reader.read(images(), BOTH)[Probs()] for _ in range(2))
    assert torch.equal(first, second)  # dropout is off
    assert torch.equal(reader.read(images(1), BOTH)[Probs()], reader.read(images(1), BOTH)[Probs()])


def test_inputs_follow_the_precision_of_the_model():
    x = torch.randn(6, 5, dtype=torch.float64)
    assert ModelReader(nn.Linear(5, 2)).read(x, BOTH)[Probs()].dtype == torch.float32
    assert ModelReader(nn.Linear(5, 2).double()).read(x.float(), BOTH)[Probs()].dtype == torch.float64


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(9, 2)), r"rows of shape \(1, 4, 4\).*size="),
        (lambda: nn.Sequential(nn.Conv2d(3, 2, 3), nn.Flatten(), nn.Linear(8, 2)), r"to have 3 channels.*size="),
        (lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), r"Expected 2D.*size="),
    ],
)
def test_a_model_for_rows_of_another_shape_is_named(model, text):
    with pytest.raises(ModelError, match=f"Sequential cannot be called with .*{text}"):
        ModelReader(model()).read(torch.zeros(2, 1, 4, 4), (Probs(),))
