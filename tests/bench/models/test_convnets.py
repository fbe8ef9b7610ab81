"""The convolutional networks: shapes, sizes and the blocks that make them what they are called."""

import pytest
import torch
from torch import nn

from labelwise.bench.models.networks import (
    bayesian_resnet18,
    lenet5,
    mlp,
    pooled_cnn,
    resnet18,
    tutorial_cnn,
    vgg11,
    vgg16,
)
from labelwise.rng import Key
from labelwise.train.torch.initialise import reinitialise


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def kinds(model: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(module, kind) for module in model.modules())


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (tutorial_cnn(), 62_006),  # of PyTorch's tutorial
        (pooled_cnn(), 94_538),
        (vgg11(), 9_225_610),
        (resnet18(), 11_173_962),  # of the usual CIFAR form
        (lenet5(), 61_706),
        (vgg16(), 14_728_266),
        (mlp(784, 10, (256, 256)), 269_322),
        (bayesian_resnet18(), 11_173_962 - 5_130 + 512 * 32 + 32 + 2 * 320 + 10),  # another head
    ],
    ids=["tutorial", "pooled", "vgg11", "resnet18", "lenet5", "vgg16", "mlp", "bayesian"],
)
def test_sizes_are_the_published_ones(make, parameters):
    assert size(make()) == parameters


def test_depths_are_what_the_names_say():
    assert kinds(vgg11()(), nn.Conv2d) + kinds(vgg11(hidden=(8, 8))(), nn.Linear) == 11
    assert kinds(vgg16()(), nn.Conv2d) + kinds(vgg16(hidden=(8, 8))(), nn.Linear) == 16
    assert kinds(lenet5()(), nn.Conv2d) + kinds(lenet5()(), nn.Linear) == 5
    resnet = resnet18()()
    short = sum(module.kernel_size == (1, 1) for module in resnet.modules() if isinstance(module, nn.Conv2d))
    assert kinds(resnet, nn.Conv2d) - short + kinds(resnet, nn.Linear) == 18
    assert short == 3
    assert size(vgg11(hidden=(4096, 4096))()) == 28_144_010


@pytest.mark.parametrize("shape", [(3, 32), (1, 32)])
@pytest.mark.parametrize(
    "make",
    [
        lambda c: tutorial_cnn(7, c),
        lambda c: pooled_cnn(7, c, (4, 4)),
        lambda c: vgg11(7, c, 4, (8,), True),
        lambda c: lenet5(7, c, 32),
        lambda c: vgg16(7, c, 4),
        lambda c: bayesian_resnet18(7, c, 4, 8, 3),
        lambda c: resnet18(7, c, 4),
        lambda c: resnet18(7, c, 4, identity=False),
    ],
)
def test_outputs(make, shape):
    channels, side = shape
    model = make(channels)()
    assert model(torch.randn(2, channels, side, side)).shape == (2, 7)
    assert size(reinitialise(model, Key(0))) == size(model)  # every layer can be initialised again


def test_small_images():
    assert tutorial_cnn(10, 1, 28)()(torch.randn(2, 1, 28, 28)).shape == (2, 10)
    assert pooled_cnn(10, 1, (4,))()(torch.randn(2, 1, 8, 8)).shape == (2, 10)


def test_the_shortcut_is_there_unless_it_is_left_out():
    torch.manual_seed(0)
    with_it, without = resnet18(width=4)(), resnet18(width=4, identity=False)()
    without.load_state_dict(with_it.state_dict())
    x = torch.randn(2, 3, 32, 32)
    block, other = with_it.blocks[1].eval(), without.blocks[1].eval()
    h = with_it.first.eval()(x)
    assert torch.equal(block(h), (block.inner(h) + h).relu())
    assert torch.equal(other(h), other.inner(h).relu())


@pytest.mark.parametrize(
    "make", [lenet5(), tutorial_cnn(), vgg16(width=8), vgg11(width=8), resnet18(width=8), mlp(784, 10)]
)
def test_initial_weights_are_those_of_torch(make):
    """Uniform within 1 / sqrt(fan in) for each layer; batch norm starts as the identity."""
    for module in make().modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            edge = (module.weight.numel() / len(module.weight)) ** -0.5
            assert float(module.weight.detach().abs().max()) <= edge * (1 + 1e-6)
            assert float(module.weight.detach().std()) == pytest.approx(edge / 3**0.5, rel=0.15)
        elif isinstance(module, nn.BatchNorm2d):
            assert bool((module.weight == 1).all())
            assert bool((module.bias == 0).all())
