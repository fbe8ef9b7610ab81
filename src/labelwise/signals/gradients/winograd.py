"""Gradients of convolution kernels three rows high at stride 1, by four products in place of six.

Winograd's minimal filtering (Lavin and Gray, CVPR 2016), down the height of an image and for the gradient of the
kernel: of two rows d of output gradients and four rows x of inputs, g_k = d_0 x_k + d_1 x_{k+1} for k = 0, 1, 2 is

    g_0 = m_0 + m_1 + m_2     g_1 = m_1 - m_2     g_2 = m_1 + m_2 + m_3     m_0 = d_0 (x_0 - x_2)
    m_1 = (d_0 + d_1) (x_1 + x_2) / 2     m_2 = (d_0 - d_1) (x_2 - x_1) / 2     m_3 = d_1 (x_3 - x_1)

Each m is a matrix product over all pairs of rows and all positions in them. It is exact, up to the rounding of a few
more additions.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_PAIRS = ((0, 2, -1), (1, 2, 1), (2, 1, -1), (3, 1, -1))  # rows of inputs, and the sign of the second


def fits(module: nn.Module) -> bool:
    """Whether the kernel is three rows high at stride 1."""
    if not isinstance(module, nn.Conv2d):
        return False
    return module.kernel_size[0] == 3 and module.stride[0] == 1 and module.dilation[0] == 1


def kernel_gradients(x_NCHW: Tensor, d_NOHW: Tensor, module: nn.Conv2d) -> Tensor:
    """Gradients (N, O, C, 3, kernel's width) of rows with padded inputs x and output gradients d; a view."""
    (count, channels), (outputs, height, width) = x_NCHW.shape[:2], d_NOHW.shape[1:]
    wide, step, apart = module.kernel_size[1], module.stride[1], module.dilation[1]
    if height % 2:
        x_NCHW, d_NOHW, height = F.pad(x_NCHW, (0, 0, 0, 1)), F.pad(d_NOHW, (0, 0, 0, 1)), height + 1
    rows = [x_NCHW[:, :, first : first + height : 2] for first in (0, 1)]
    rows += [x_NCHW[:, :, first : first + height - 1 : 2] for first in (2, 3)]
    x_NPCT = x_NCHW.new_empty(count, 4, channels, wide, height // 2, width)
    for point, (first, second, sign) in enumerate(_PAIRS):
        mixed = torch.add(rows[first], rows[second], alpha=sign)
        for column in range(wide):
            start = column * apart
            x_NPCT[:, point, :, column] = mixed[..., start : start + (width - 1) * step + 1 : step]
    d_NPOT = d_NOHW.new_empty(count, 4, outputs, height // 2, width)
    top, low = d_NOHW[:, :, 0::2], d_NOHW[:, :, 1::2]
    d_NPOT[:, 0], d_NPOT[:, 3] = top, low
    torch.add(top, low, out=d_NPOT[:, 1]).div_(2)
    torch.sub(top, low, out=d_NPOT[:, 2]).div_(2)
    m_NPOX = d_NPOT.flatten(3) @ x_NPCT.view(count, 4, channels * wide, -1).mT
    sum_NOX, gap_NOX = m_NPOX[:, 1] + m_NPOX[:, 2], m_NPOX[:, 1] - m_NPOX[:, 2]
    g_N3OX = torch.stack([m_NPOX[:, 0] + sum_NOX, gap_NOX, sum_NOX + m_NPOX[:, 3]], 1)
    return g_N3OX.view(count, 3, outputs, channels, wide)
