"""How the papers train, where Labelwise does not train so by itself: crops and flips, when to stop, what to note."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.errors import ArgumentError
from labelwise.pool import Pool
from labelwise.signals.model.forward import device_and_dtype, eval_mode
from labelwise.train.objectives.objective import Mean

PAD = 4  # places around an image that a crop may reach into
_ROWS = 1024


# Papers name the weight decay and the schedule they use; where they name none, there is none.
PLAIN = {"weight_decay": 0.0, "schedule": None}


class Until(Mean):
    """Every row counts the same; training ends when `share` of the rows were right in `times` epochs, and keeps those
    last weights. dynamicAL's rule without its look at the test rows.
    """

    last = True

    def __init__(self, share: float, times: int = 1, least: int = 0):
        if not 0 < share <= 1 or times < 1 or least < 0:
            raise ArgumentError(f"until: expected a share, epochs, least epochs; found {(share, times, least)}")
        self.stop, self.stop_times, self.stop_from = share, times, least


class BestOnTest:
    """The accuracy on the test rows every few epochs. Training notes the highest: a leak, as in the paper."""

    def __init__(self, test: Pool, labels: Tensor, every: int):
        self.test, self.labels, self.every = test, labels, every
        self._inputs: Tensor | None = None

    def __call__(self, model: nn.Module, epoch: int) -> float | None:
        if (epoch + 1) % self.every:
            return None
        device = device_and_dtype(model)[0]
        if self._inputs is None or self._inputs.device != device:
            self._inputs = self.test.inputs(self.test.ids).to(device)
        with eval_mode(model):
            guess = [model(part).argmax(1) for part in self._inputs.split(_ROWS)]
        return float((torch.cat(guess).cpu() == self.labels).double().mean())


def augmentation(name: Any) -> Callable[[Any, torch.Generator], Any]:
    """An augmentation by its name."""
    if name != "crop-flip":
        raise ArgumentError(f"augment: expected crop-flip, found {name!r}")
    return crop_flip


def crop_flip(x_BCHW: Tensor, chance: torch.Generator) -> Tensor:
    """Each image moved by up to four places in each direction, the rim 0, and mirrored half of the time."""
    rows, _, high, wide = x_BCHW.shape
    padded = nn.functional.pad(x_BCHW, (PAD, PAD, PAD, PAD))
    down_B, right_B = (torch.randint(0, 2 * PAD + 1, (rows,), generator=chance) for _ in range(2))
    mirror_B = torch.rand(rows, generator=chance) < 0.5
    column_BW = torch.arange(wide).expand(rows, wide)
    column_BW = torch.where(mirror_B[:, None], column_BW.flip(1), column_BW) + right_B[:, None]
    line_BH = torch.arange(high) + down_B[:, None]
    at_B, line_BH, column_BW = (index.to(x_BCHW.device) for index in (torch.arange(rows), line_BH, column_BW))
    taken = padded.permute(0, 2, 3, 1)[at_B[:, None, None], line_BH[:, :, None], column_BW[:, None, :]]
    return taken.permute(0, 3, 1, 2).contiguous()
