"""Networks of the benchmark: a perceptron and convolutional networks for small images.

Each function returns a factory without arguments, which the learner calls once a round. Widths are parameters, so that
tests can run the same networks small.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from torch import Tensor, nn

from labelwise.errors import ArgumentError
from labelwise.signals.draws.variational import bayesian

Factory = Callable[[], nn.Module]
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh}


def mlp(inputs: int, outputs: int, hidden: tuple[int, ...] = (128, 64)) -> Factory:
    """A multi-layer perceptron with ReLU; inputs of any shape are flattened."""

    def make() -> nn.Module:
        widths = (inputs, *hidden)
        layers: list[nn.Module] = [nn.Flatten()]
        for a, b in pairwise(widths):
            layers += [nn.Linear(a, b), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))

    return make


def tutorial_cnn(outputs: int = 10, channels: int = 3, size: int = 32) -> Factory:
    """The CNN of PyTorch's CIFAR-10 tutorial: LeNet-5 on images as large as they are."""
    return lenet5(outputs, channels, size, padding=0)


def pooled_cnn(outputs: int = 10, channels: int = 3, widths: tuple[int, ...] = (32, 64, 128)) -> Factory:
    """3x3 convolutions with ReLU, global average pooling and a linear layer: the network of NTK studies."""

    def make() -> nn.Module:
        layers: list[nn.Module] = []
        before = channels
        for width in widths:
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))

    return make


def lenet5(outputs: int = 10, channels: int = 1, size: int = 28, padding: int = 2, activation: str = "relu") -> Factory:
    """LeNet-5 (LeCun et al. 1998) as it is run today: full connections, ReLU and max-pooling, images padded to 32.

    `padding` 0 leaves images as large as they are; `activation` is "relu" or "tanh".
    """
    if activation not in _ACTIVATIONS:
        raise ArgumentError(f"activation: expected one of {', '.join(_ACTIVATIONS)}, found {activation!r}")

    def make() -> nn.Module:
        side = ((size + 2 * padding - 4) // 2 - 4) // 2
        active = _ACTIVATIONS[activation]
        return nn.Sequential(
            *(nn.Conv2d(channels, 6, 5, padding=padding), active(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), active(), nn.MaxPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(16 * side * side, 120), active()),
            *(nn.Linear(120, 84), active()),
            nn.Linear(84, outputs),
        )

    return make


# Widths in units of the first, 0 is a pooling: configurations A and D of the paper.
_VGG11 = (1, 0, 2, 0, 4, 4, 0, 8, 8, 0, 8, 8, 0)
_VGG16 = (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0)


def vgg11(
    outputs: int = 10, channels: int = 3, width: int = 64, hidden: tuple[int, ...] = (), batch_norm: bool = False
) -> Factory:
    """VGG-11 (Simonyan and Zisserman 2015, configuration A) for 32x32 images, whose last map is one place.

    `hidden` are the dense layers before the last one, with dropout as in the paper; (4096, 4096) are the paper's.
    """
    return lambda: _vgg(_VGG11, outputs, channels, width, hidden, batch_norm)


def vgg16(
    outputs: int = 10, channels: int = 3, width: int = 64, hidden: tuple[int, ...] = (), batch_norm: bool = True
) -> Factory:
    """VGG-16 (configuration D) for 32x32 images, with batch norm; the rest is as in `vgg11`."""
    return lambda: _vgg(_VGG16, outputs, channels, width, hidden, batch_norm)


def _vgg(
    plan: tuple[int, ...], outputs: int, channels: int, width: int, hidden: tuple[int, ...], batch_norm: bool
) -> nn.Module:
    layers: list[nn.Module] = []
    before = channels
    for wide in plan:
        if not wide:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(before, wide * width, 3, padding=1))
        layers += [nn.BatchNorm2d(wide * width)] if batch_norm else []
        layers.append(nn.ReLU(inplace=True))
        before = wide * width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    for dense in hidden:
        layers += [nn.Linear(before, dense), nn.ReLU(inplace=True), nn.Dropout()]
        before = dense
    return nn.Sequential(*layers, nn.Linear(before, outputs))


def resnet18(outputs: int = 10, channels: int = 3, width: int = 64, identity: bool = True) -> Factory:
    """ResNet-18 (He et al. 2016) for 32x32 images: a 3x3 first convolution and no first pooling.

    With `identity` False, blocks that keep their shape have no shortcut, as in the programme of paper dynamicAL.
    """
    return lambda: ResNet18(outputs, channels, width, identity)


def bayesian_resnet18(
    outputs: int = 10, channels: int = 3, width: int = 64, hidden: int = 32, draws: int = 100
) -> Factory:
    """The Bayesian ResNet-18 of paper SABAL: ResNet-18, a dense layer of `hidden` ReLU units, a variational layer.

    Departs from the programme of Pinsler et al., on which the paper builds: a 3x3 first convolution without stride
    instead of a 5x5 one with stride 2.
    """
    return bayesian(resnet18(outputs, channels, width), draws, hidden)


class ResNet18(nn.Module):
    """Four stages of two blocks; see `resnet18`."""

    stackable = True  # `forward` calls children and adds: a Stack may replace them

    def __init__(self, outputs: int, channels: int, width: int, identity: bool):
        nn.Module.__init__(self)
        self.first = nn.Sequential(_conv(channels, width, 3, 1), nn.BatchNorm2d(width), nn.ReLU(inplace=True))
        blocks: list[nn.Module] = []
        before = width
        for stage in range(4):
            wide = width << stage
            blocks += [_Block(before, wide, 1 if stage == 0 else 2, identity), _Block(wide, wide, 1, identity)]
            before = wide
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, outputs))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.blocks(self.first(x)))


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    stackable = True

    def __init__(self, before: int, wide: int, stride: int, identity: bool):
        nn.Module.__init__(self)
        self.inner = nn.Sequential(
            *(_conv(before, wide, 3, stride), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)),
            *(_conv(wide, wide, 3, 1), nn.BatchNorm2d(wide)),
        )
        self.short: nn.Module | None = nn.Identity() if identity else None
        if before != wide or stride != 1:
            self.short = nn.Sequential(_conv(before, wide, 1, stride), nn.BatchNorm2d(wide))
        self.after = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.inner(x)
        return self.after(inner if self.short is None else inner + self.short(x))


def _conv(before: int, wide: int, kernel: int, stride: int) -> nn.Module:
    return nn.Conv2d(before, wide, kernel, stride, kernel // 2, bias=False)


NETWORKS: dict[str, Callable[..., Factory]] = {
    "linear": mlp,
    "mlp": mlp,
    "tutorial_cnn": tutorial_cnn,
    "pooled_cnn": pooled_cnn,
    "lenet5": lenet5,
    "vgg11": vgg11,
    "vgg16": vgg16,
    "resnet18": resnet18,
    "bayesian_resnet18": bayesian_resnet18,
}
