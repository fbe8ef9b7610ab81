"""What the reproductions of dynamicAL run on: sizes, data, networks and learners."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.bench.data.catalogue import availability
from labelwise.bench.data.load import Data, load
from labelwise.bench.models.networks import Factory, mlp, pooled_cnn, resnet18, tutorial_cnn
from labelwise.bench.models.paper_training import PLAIN
from labelwise.reproduce.registry import Setting, device_of
from labelwise.rng import Key
from labelwise.signals.model.reader import ModelReader
from labelwise.train import TorchLearner
from labelwise.train.learner import Fit


@dataclass(frozen=True)
class Sizes:
    """How large the experiments are."""

    labelled: int
    queries: tuple[int, ...]  # sizes of Q
    pool: int  # rows that random queries are drawn from, for figures 2 and 4
    draws: int  # random queries
    epochs: tuple[int, ...]  # at which the ratio is measured
    widths: tuple[int, ...]  # of the pooled CNN
    rounds: int  # of figure 5
    seeds: int
    training: int = 200  # epochs, at the most
    batch: int = 128
    steps: int = 400  # of gradient descent by the squared error


SIZES = {
    "smoke": Sizes(20, (4, 8), 20, 3, (0, 2), (4, 6), 1, 1, training=3, batch=16),
    "small": Sizes(100, (50, 100, 200), 300, 30, (0, 5, 10, 20, 50, 100, 200), (8, 16, 32), 5, 3, batch=32),
    "paper": Sizes(500, (250, 500, 1000), 1500, 150, (0, 5, 10, 20, 40, 80, 120), (32, 64, 128), 9, 5),
}


@dataclass(frozen=True)
class Bench:
    """Data, sizes and the network of one run."""

    data: Data
    sizes: Sizes
    setting: Setting
    key: Key = field(default=Key(0))

    def pooled(self) -> Factory:
        """The network of the kernel experiments."""
        return self.on_device(pooled_cnn(self.classes, self.image[0], self.sizes.widths))

    def deep(self) -> Factory:
        """The network of figures 4 and 5: ResNet-18 or the tutorial CNN; a perceptron for images too small for them."""
        if self.setting.scale == "paper":
            return self.on_device(resnet18(self.classes, self.image[0], identity=not self.setting.paper_compat))
        channels, side = self.image
        small = mlp(channels * side * side, self.classes) if side < 20 else tutorial_cnn(self.classes, channels, side)
        return self.on_device(small)

    def on_device(self, make: Factory) -> Factory:
        """The networks of a factory on the device of the setting."""
        device = torch.device(device_of(self.setting))
        return lambda: make().to(device)

    def learner(self, factory: Factory, epochs: int | None = None) -> TorchLearner:
        """Adam at 0.001 without rows held out, as in the paper; on from the last weights where `epochs` are given."""
        most = self.sizes.training if epochs is None else epochs
        how: dict[str, Any] = {**PLAIN, "epochs": most, "batch": self.sizes.batch, "lr": 1e-3}
        return TorchLearner(factory, restart=epochs is None, **how)

    def some(self, count: int, purpose: str, among: Tensor) -> Tensor:
        """`count` of these ids, drawn for a purpose."""
        return among[self.key.fold(purpose).uniform(among).argsort()[:count]].sort().values

    def rows(self, ids: Tensor) -> tuple[Any, Tensor]:
        """Inputs and true labels of these rows."""
        places = torch.searchsorted(self.data.pool.ids, ids)
        return self.data.pool.inputs(ids), self.data.labels[places]

    def trained(self, factory: Factory, ids: Tensor, previous: Fit | None = None, epochs: int | None = None) -> Fit:
        """The network trained on these rows."""
        labels, learner = self.rows(ids)[1], self.learner(factory, epochs)
        return learner.fit(
            self.data.pool, ids, labels, classes=self.classes, key=self.key.fold("train"), previous=previous
        )

    @property
    def classes(self) -> int:
        return len(self.data.classes or ())

    @property
    def image(self) -> tuple[int, int]:
        """Channels and side of an image."""
        one = self.data.pool.inputs(self.data.pool.ids[:1])
        return int(one.shape[1]), int(one.shape[2])


def prepare_bench(setting: Setting, sizes: Sizes | None = None) -> Bench:
    """The data set and sizes of a setting; CIFAR-10 for the paper's scale, whole where it is found."""
    whole = any(one.present for one in availability() if one.name == "cifar10-full")
    name = setting.data or ("digits" if setting.scale != "paper" else "cifar10-full" if whole else "cifar10")
    data = load(name, seed=setting.seed)
    setting.on_progress(f"{name}: {len(data.pool)} rows to choose from, {len(data.test)} to test on")
    sizes = sizes or SIZES[setting.scale]
    sizes = sizes if setting.seeds is None else replace(sizes, seeds=setting.seeds)
    return Bench(data, sizes, setting, Key(setting.seed).fold("dynamical"))


def model_of(fit: Fit) -> nn.Module:
    """The trained network."""
    assert isinstance(fit.reader, ModelReader)
    return fit.reader.model
