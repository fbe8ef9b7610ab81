"""The empirical neural tangent kernel of any module: inner products of the gradients of its outputs.

Theta(x, x') = (1 / C) sum_k <grad f^k(x), grad f^k(x')>, the mean over the C outputs. It equals Theta if the kernel of
all outputs is Theta times an identity, as for very wide networks (Jacot et al. 2018; eq. 2 of Wang et al. 2022).
Gradients are built for a block of rows and one output at a time, so memory does not grow with the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from labelwise.signals.gradients.read_gradients import RowGradients
from labelwise.signals.model.forward import count_rows, take_rows
from labelwise.signals.model.head import Output

NUMBERS = 1 << 26  # of gradients in memory at a time: 256 MB in float32


def empirical_ntk(
    model: nn.Module,
    inputs: Any,
    others: Any = None,
    *,
    output: Output | None = None,
    numbers: int = NUMBERS,
    batch: int = 64,
) -> Tensor:
    """The kernel (n, m) between the rows of `inputs` and those of `others`, in float64 on the CPU.

    Costs C backward passes for each pair of blocks of rows.

    Args:
        model: any module.
        inputs: n rows.
        others: m rows; None for `inputs` itself.
        output: where the outputs are in what the model returns, as for ModelReader.
        numbers: of gradients in memory; a block has `numbers` / 2P rows, P the number of trained parameters.
        batch: rows of one forward pass.
    """
    gradients = RowGradients(model, output)
    size = sum(model.get_parameter(name).numel() for name in gradients.capture.trained)
    block = max(1, numbers // (2 * size))
    n = count_rows(inputs)
    m = n if others is None else count_rows(others)
    kernel_nm = torch.zeros(n, m, dtype=torch.float64)
    classes, k = 1, 0
    while k < classes:
        for i in range(0, n, block):
            left_BP, classes = _block(gradients, inputs, i, block, k, batch)
            for j in range(i if others is None else 0, m, block):
                if others is None and j == i:
                    right_BP = left_BP
                else:
                    right_BP, _ = _block(gradients, inputs if others is None else others, j, block, k, batch)
                part = (left_BP @ right_BP.T).double().cpu()
                kernel_nm[i : i + block, j : j + block] += part
                if others is None and j != i:
                    kernel_nm[j : j + block, i : i + block] += part.T
        k += 1
    return kernel_nm / classes


def _block(gradients: RowGradients, inputs: Any, start: int, block: int, k: int, batch: int) -> tuple[Tensor, int]:
    """Gradients (b, P) of output k of some rows, and the number of outputs."""
    outputs = 0

    def cotangent(outputs_BC: Tensor) -> Tensor:
        nonlocal outputs
        outputs = outputs_BC.shape[1]
        d_BC = torch.zeros_like(outputs_BC)
        d_BC[:, k] = 1
        return d_BC

    parts = []
    stop = min(start + block, count_rows(inputs))
    for first in range(start, stop, batch):
        part = take_rows(inputs, slice(first, min(first + batch, stop)))
        parts.append(gradients.rows(part, cotangent, "squared"))  # "squared" does not double a single output
    return torch.cat(parts), outputs
