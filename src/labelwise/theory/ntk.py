"""The empirical neural tangent kernel of any module: inner products of the gradients of its outputs.

Theta(x, x') = (1 / C) sum_k <grad f^k(x), grad f^k(x')>, the mean over the C outputs, which is what Theta is when the
kernel of all outputs is Theta times an identity, as it is for very wide networks (Jacot et al. 2018; eq. 2 of Wang et
al. 2022). Gradients of some rows by one output are built at a time, so memory is bounded whatever the number of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from labelwise.signals.gradients.read_gradients import RowGradients
from labelwise.signals.model.forward import count_rows, take_rows
from labelwise.signals.model.head import Output

NUMBERS = 1 << 26  # of gradients held at a time: 256 MB in float32
BATCH = 64  # rows of one forward pass


def empirical_ntk(
    model: nn.Module, inputs: Any, others: Any = None, *, output: Output | None = None, numbers: int = NUMBERS
) -> Tensor:
    """The kernel (n, m) between the rows of `inputs` and of `others` (or of themselves), in float64 on the CPU.

    Costs C backward passes for each pair of blocks of rows; a block holds `numbers` / P rows, P the number of trained
    parameters.
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
            left_BP, classes = _block(gradients, inputs, i, block, k)
            for j in range(i if others is None else 0, m, block):
                if others is None and j == i:
                    right_BP = left_BP
                else:
                    right_BP, _ = _block(gradients, inputs if others is None else others, j, block, k)
                part = (left_BP @ right_BP.T).double().cpu()
                kernel_nm[i : i + block, j : j + block] += part
                if others is None and j != i:
                    kernel_nm[j : j + block, i : i + block] += part.T
        k += 1
    return kernel_nm / classes


def _block(gradients: RowGradients, inputs: Any, start: int, block: int, k: int) -> tuple[Tensor, int]:
    """Gradients (b, P) of output k of some rows, and how many outputs there are."""
    seen = [0]

    def towards(outputs_BC: Tensor) -> Tensor:
        seen[0] = outputs_BC.shape[1]
        d_BC = torch.zeros_like(outputs_BC)
        d_BC[:, k] = 1
        return d_BC

    parts = []
    stop = min(start + block, count_rows(inputs))
    for first in range(start, stop, BATCH):
        part = take_rows(inputs, slice(first, min(first + BATCH, stop)))
        parts.append(gradients.rows(part, towards, "squared"))  # outputs as they are, also a single one
    return torch.cat(parts), seen[0]
