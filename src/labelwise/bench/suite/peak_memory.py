"""Peak memory of one selection, apart from all that ran before it in the same process.

What training has let go of stays in the heap, and a selection that fits into it raises no peak. So that memory is given
back to the system first: whatever the selection takes shows above the beginning. It costs the selection the moment in
which the system hands pages out again.
"""

from __future__ import annotations

import ctypes
import gc
from pathlib import Path
from typing import Any

import torch

from labelwise.stats.environment import peak_mb
from labelwise.stats.memory import FRESH

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Begins when it is made. On Linux the peak of the process is reset then; elsewhere it is its whole life's."""

    def __init__(self, device: str):
        self.cuda = device.startswith("cuda")
        self.fresh = True  # whether memory that was let go of before cannot hide what is taken now
        self.most = 0.0
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20
            return
        self.fresh = given_back()
        try:
            _CLEAR.write_text("5")  # resets the peak (VmHWM) to what is held now
            self.before, self.files = _held("VmRSS"), _held("RssFile")
        except (OSError, ValueError):
            self.before, self.files, self.fresh = peak_mb(), 0.0, False

    def read(self) -> dict[str, Any]:
        """The most that was held since, and how much that is above the beginning, in MB.

        Pages of files that were mapped since, such as a pool's or a library's, are not counted above it: the system
        takes them back when it needs room.
        """
        files = 0.0
        if self.cuda:
            self.most = torch.cuda.max_memory_allocated() / 2**20
        else:
            try:
                self.most, files = _held("VmHWM"), max(0.0, _held("RssFile") - self.files)
            except (OSError, ValueError):
                self.most, self.fresh = peak_mb(), False
        above = round(max(0.0, self.most - self.before - files), 1)
        return {"peak_mb": round(self.most, 1), "above_mb": above, FRESH: self.fresh}


def given_back() -> bool:
    """Give memory that is free inside this process back to the system; whether the allocator is one that can."""
    gc.collect(1)  # not all there is: that takes longer than many a selection
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # another system, another allocator
        return False
    trim(0)
    return True


def _held(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 2**10
    raise ValueError(f"{_STATUS} does not say {name}")
