"""The environment of a run: versions, device and threads, as written to its records."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import sys

import torch


@functools.cache
def environment(device: str | None = None) -> dict[str, str]:
    """Versions of what computes, the device and the number of threads.

    `device` is what was used, "cpu" or "cuda"; None stands for what there is.
    """
    found = {"python": platform.python_version(), "platform": platform.platform(terse=True)}
    for package in ("labelwise", "torch", "numpy", "scikit-learn"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    cuda = torch.cuda.is_available() and device != "cpu"
    found["device"] = torch.cuda.get_device_name() if cuda else platform.machine() + " CPU"
    found["threads"] = str(torch.get_num_threads())
    return found


def peak_mb() -> float:
    """The peak memory of this process so far, in MB; 0 if the system does not report it (Windows)."""
    try:
        import resource
    except ImportError:
        return 0.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
