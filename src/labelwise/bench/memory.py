"""Peak memory of one selection, apart from all that ran before it in the same process."""

from __future__ import annotations

from pathlib import Path

import torch

from labelwise.report.environment import peak_mb

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Begins when it is made. On Linux the peak of the process is reset then; elsewhere it is its whole life's."""

    def __init__(self, device: str):
        self.cuda = device.startswith("cuda")
        self.most = 0.0
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
            self.before = torch.cuda.memory_allocated() / 2**20
            return
        try:
            _CLEAR.write_text("5")  # resets the peak (VmHWM) to what is held now
            self.before = _held("VmRSS")
        except (OSError, ValueError):
            self.before = peak_mb()

    def read(self) -> dict[str, float]:
        """The most that was held since, and how much that is above the beginning, in MB."""
        if self.cuda:
            self.most = torch.cuda.max_memory_allocated() / 2**20
        else:
            try:
                self.most = _held("VmHWM")
            except (OSError, ValueError):
                self.most = peak_mb()
        return {"peak_mb": round(self.most, 1), "above_mb": round(max(0.0, self.most - self.before), 1)}


def _held(name: str) -> float:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 2**10
    raise ValueError(f"{_STATUS} does not say {name}")
