"""The variational last layer: every weight is a Gaussian, learnt together with the network.

As in Pinsler et al., NeurIPS 2019, and in "Batch active learning from the perspective of sparse approximation": a fully
connected layer, ReLU, and a linear layer with weights N(mean, softplus(rho)^2) and a plain bias. In training the
outputs of each row are drawn (local reparametrisation, Kingma et al. 2015): N(W h + b, softplus(rho)^2 h^2). The
loss is the sum of the rows' losses plus the divergence of the weights from N(0, 2 / C): training adds `penalty()` of
every module that has it, divided by the number of rows, to the mean loss.

Outside training the layer predicts by local reparametrisation too: the log of the posterior predictive, the mean over
K draws of the outputs, N(W h + b, softplus(rho)^2 h^2), of their softmax. Their K x C normal numbers follow from `seed`
and are the same for all rows, so a row's prediction does not depend on its batch; it has the distribution of a
prediction with drawn weights. Signals concern several rows at once and use `weight_draws()`, draws of the weights.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import overload

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelwise.errors import ArgumentError, ModelError
from labelwise.io.arguments import check_whole
from labelwise.rng import Key
from labelwise.signals.draws.draws import HeadDraws, check_draws, log_mean

SPREAD = 0.05  # of the initial means and rho
RHO = -4.0  # softplus(-4) is a standard deviation of 0.018
FLOOR = 1e-6  # added to the variance of an output


class VariationalLinear(nn.Linear):
    """A linear layer with Gaussian weights: `weight` has their means, softplus(`rho`) their standard deviations."""

    rho: Tensor
    seed: Tensor
    part = 1 << 22  # numbers of one block of drawn outputs

    def __init__(self, in_features: int, out_features: int, draws: int = 100):
        check_draws(draws, in_features * out_features)
        nn.Linear.__init__(self, in_features, out_features)
        self.draws = draws
        self._noise: dict[str, tuple[int, Tensor]] = {}  # by purpose, with its seed
        self.rho = nn.Parameter(torch.empty(out_features, in_features))
        self.register_buffer("seed", torch.zeros((), dtype=torch.int64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.Linear.reset_parameters(self)  # sets the bias
        nn.init.normal_(self.weight, 0.0, SPREAD)
        if "rho" in self._parameters:  # missing during nn.Linear.__init__
            nn.init.normal_(self.rho, RHO, SPREAD)

    def forward(self, input: Tensor) -> Tensor:
        if self.training:
            return self.local(input)
        return self.predictive(input.flatten(1))

    def local(self, h_BD: Tensor) -> Tensor:
        """One draw of the outputs with independent noise for each row, for training."""
        mean_BC, deviation_BC = self._outputs(h_BD)
        return mean_BC + deviation_BC * torch.randn_like(mean_BC)

    def predictive(self, h_BD: Tensor) -> Tensor:
        """Log of the mean softmax (B, C) over `draws` draws of the outputs, determined by parameters and `seed`."""
        noise_KC = self._normal("outputs", (self.draws, self.out_features)).to(h_BD)
        mean_BC, deviation_BC = self._outputs(h_BD)
        parts = zip(*(x.split(max(1, self.part // noise_KC.numel())) for x in (mean_BC, deviation_BC)))
        return torch.cat([log_mean((m[:, None] + s[:, None] * noise_KC).log_softmax(2)) for m, s in parts])

    def _outputs(self, h_BD: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation (B, C) of the outputs, which are independent given the row."""
        variance_BC = F.linear(h_BD.square(), F.softplus(self.rho).square()) + FLOOR
        return F.linear(h_BD, self.weight, self.bias), variance_BC.sqrt()

    def _normal(self, purpose: str, shape: tuple[int, ...]) -> Tensor:
        """Normal numbers that follow from `seed`, cached until it changes."""
        seed = int(self.seed)
        if self._noise.get(purpose, (None,))[0] != seed:
            key = Key(seed) if purpose == "weights" else Key(seed).fold(purpose)
            self._noise[purpose] = seed, torch.randn(shape, generator=key.generator())
        return self._noise[purpose][1]

    def weight_draws(self) -> HeadDraws:
        """The draws of the weights, the same for all rows, determined by parameters and `seed`."""
        noise_KCD = self._normal("weights", (self.draws, *self.weight.shape))
        weight_KCD = self.weight + F.softplus(self.rho) * noise_KCD.to(self.weight)
        return HeadDraws(weight_KCD.detach(), None if self.bias is None else self.bias.detach()[None])

    def penalty(self) -> Tensor:
        """The Kullback-Leibler divergence of the weights from independent N(0, 2 / C)."""
        prior, variance_CD = 2.0 / self.out_features, F.softplus(self.rho).square()
        ratio_CD = variance_CD / prior
        return 0.5 * (ratio_CD + self.weight.square() / prior - 1 - ratio_CD.log()).sum()


@overload
def bayesian(module: nn.Module, draws: int = 100, hidden: int | None = 32, head: str | None = None) -> nn.Module: ...


@overload
def bayesian(
    module: Callable[[], nn.Module], draws: int = 100, hidden: int | None = 32, head: str | None = None
) -> Callable[[], nn.Module]: ...


def bayesian(
    module: nn.Module | Callable[[], nn.Module], draws: int = 100, hidden: int | None = 32, head: str | None = None
) -> nn.Module | Callable[[], nn.Module]:
    """A copy of a network with a variational last layer; for a factory, a factory of such networks.

    Its last linear layer, from D features to C classes, is replaced by a layer from D to `hidden`, ReLU, and a
    variational layer to C.

    Args:
        module: any classifier, or a function without arguments that makes one.
        draws: how many draws of the weights represent the posterior, in predictions and in LogProbs.
        hidden: width of the layer in between; with None the variational layer takes D inputs.
        head: the name of the layer to replace; without it, the last nn.Linear in `module.named_modules()`.

    Returns:
        A new network, or a function that makes one; what was given is not changed.

    Raises:
        ArgumentError: a number is out of range, or no network was given.
        ModelError: there is no linear layer to replace.

    >>> bayesian(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)), hidden=None)[2]
    VariationalLinear(in_features=8, out_features=3, bias=True)
    """
    check_draws(draws)
    hidden = None if hidden is None else check_whole("hidden", hidden, 1)
    if not isinstance(module, nn.Module):
        if not callable(module):
            raise ArgumentError(f"expected an nn.Module or a function that makes one, found {module!r}")
        factory = module
        return lambda: bayesian(factory(), draws, hidden, head)
    network = copy.deepcopy(module)
    name, last = _last_linear(network, head)
    # One output means two classes, and the draws need a softmax over both.
    classes = max(2, last.out_features)
    layer: nn.Module = VariationalLinear(last.in_features if hidden is None else hidden, classes, draws)
    if hidden is not None:
        layer = nn.Sequential(nn.Linear(last.in_features, hidden), nn.ReLU(), layer)
    layer.to(last.weight.device, last.weight.dtype)
    if not name:
        return nn.Sequential(layer) if hidden is None else layer
    network.set_submodule(name, layer)
    return network


def reseed(model: nn.Module, key: Key) -> None:
    """Set the seed of every variational layer of a model from `key`."""
    for name, module in model.named_modules():
        if isinstance(module, VariationalLinear):
            module.seed.fill_(key.fold(name).seed >> 1)  # 63 bits fit into int64


def _last_linear(model: nn.Module, head: str | None) -> tuple[str, nn.Linear]:
    linear = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    name = next(reversed(linear), "") if head is None else head
    if name not in linear:
        found = ", ".join(repr(known) for known in linear) or "none"
        raise ModelError(
            f"bayesian() replaces the last nn.Linear of a network, or the one named by head=; "
            f"{'one' if head is None else repr(head)} was not found; its linear layers are: {found}"
        )
    last = linear[name]
    if isinstance(last.weight, nn.UninitializedParameter):
        raise ModelError(f"the layer {name!r} is lazy and has no size yet; run the network on one batch first")
    return name, last
