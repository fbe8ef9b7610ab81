"""The maps of `Basis`: functions of a row whose span is the class of models to learn.

    last_layer        h, 1                                           h the embedding: what the last layer can learn
    random_features   phi(w_r . x),  r = 1..width                    w_r ~ N(0, I): a hidden layer at its first weights
    tangent           (g_p . [a_r phi'(w_r . x)]_r) (s_p . x) / sqrt(hidden width),  p = 1..width
    polynomial        monomials of x up to a degree, and 1

x is the row's features over `scale`, so that |x| <= 1, as the paper assumes. The gradient of a two-layer network by
its hidden weights, with output weights a_r = +-1, is the table a_r phi'(w_r . x) x_j / sqrt(hidden): hidden x D
numbers. It is reduced to `width` random products with tables g_p s_p^T of signs, which preserve inner products on
average; the table is never built. Random weights depend on the signal's seed and the width of x alone. All maps but
last_layer are computed in float64, so that they do not depend on the block a row is read in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from labelwise.errors import ArgumentError
from labelwise.rng import Key
from labelwise.signals.spec import Basis

MOST_MONOMIALS = 4096

Function = Callable[[Tensor], Tensor]


def _swish_slope(z: Tensor) -> Tensor:
    s = z.sigmoid()
    return s + z * s * (1 - s)


# Each activation and its derivative.
FUNCTIONS: dict[str, tuple[Function, Function]] = {
    "relu": (torch.relu, lambda z: (z > 0).to(z)),
    "sigmoid": (torch.sigmoid, lambda z: z.sigmoid() * (1 - z.sigmoid())),
    "swish": (lambda z: z * z.sigmoid(), _swish_slope),
    "tanh": (torch.tanh, lambda z: 1 - z.tanh() ** 2),
    "sin": (torch.sin, torch.cos),
    "cos": (torch.cos, lambda z: -z.sin()),
    "square": (torch.square, lambda z: 2 * z),
}


def basis_features(signal: Basis, x_ND: Tensor) -> Tensor:
    """The functions (N, P) of `signal` of rows with embedding or features `x_ND`; a `scale` of None counts as 1."""
    if signal.map == "last_layer":
        return torch.cat([x_ND, x_ND.new_ones(len(x_ND), 1)], 1)
    x_ND = x_ND.double() / (1.0 if signal.scale is None else signal.scale)
    if signal.map == "polynomial":
        return _monomials(x_ND, signal.degree)
    phi, slope = FUNCTIONS[signal.activation]
    if signal.map == "random_features":
        return phi(x_ND @ _normal(signal.seed, x_ND.shape[1], signal.width).to(x_ND.device))
    z_NM = x_ND @ _normal(signal.seed, x_ND.shape[1], signal.hidden).to(x_ND.device)
    # The signs a_r of the output weights are absorbed into the random signs.
    left_MP = _signs(signal.seed, "units", signal.hidden, signal.width).to(x_ND.device)
    right_DP = _signs(signal.seed, "inputs", x_ND.shape[1], signal.width).to(x_ND.device)
    return (slope(z_NM) @ left_MP).mul_(x_ND @ right_DP).mul_((signal.hidden * signal.width) ** -0.5)


@functools.lru_cache(maxsize=8)
def _normal(seed: int, inputs: int, units: int) -> Tensor:
    """Initial weights (D, M) of a hidden layer."""
    generator = Key(seed).fold("basis", "weights", inputs, units).generator()
    return torch.randn(inputs, units, dtype=torch.float64, generator=generator)


@functools.lru_cache(maxsize=8)
def _signs(seed: int, name: str, rows: int, columns: int) -> Tensor:
    generator = Key(seed).fold("basis", name, rows, columns).generator()
    return torch.randint(0, 2, (rows, columns), generator=generator).double().mul_(2).sub_(1)


def _monomials(x_ND: Tensor, degree: int) -> Tensor:
    """All monomials of degree 1 to `degree`, then the constant 1."""
    inputs = x_ND.shape[1]
    count = math.comb(inputs + degree, degree)
    if count > MOST_MONOMIALS:
        raise ArgumentError(
            f'Basis(map="polynomial", degree={degree}) of {inputs} columns has {count} monomials; at most '
            f'{MOST_MONOMIALS} are allowed. Use a lower degree, fewer columns, or map="random_features".'
        )
    parts, part_NQ = [x_ND], x_ND
    last = list(range(inputs))  # the largest variable of each monomial; the next factor is not smaller
    for _ in range(degree - 1):
        pairs = [(parent, j) for parent, top in enumerate(last) for j in range(top, inputs)]
        last = [j for _, j in pairs]
        part_NQ = part_NQ[:, [parent for parent, _ in pairs]] * x_ND[:, last]
        parts.append(part_NQ)
    return torch.cat([*parts, x_ND.new_ones(len(x_ND), 1)], 1)
