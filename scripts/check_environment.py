"""Fails when this environment holds packages that must not be there on a machine without a GPU.

Says as well which tests cannot run here.
"""

from __future__ import annotations

import importlib.metadata
import shutil
import sys
from pathlib import Path

# torchvision from a general index breaks beside a CPU build of torch, and the others are gigabytes nobody can use here.
FORBIDDEN = ("torchvision", "torchaudio", "triton", "nvidia-", "pytorch-triton", "cuda-")


def found() -> list[str]:
    """Names of installed packages that should not be here."""
    names = {distribution.metadata["Name"].lower() for distribution in importlib.metadata.distributions()}
    return sorted(name for name in names if name.startswith(FORBIDDEN))


def missing_parts() -> list[str]:
    """What the tests will leave out on this machine, each with what brings it in."""
    missing = []
    if not any(shutil.which(name) for name in ("chromium", "chromium-browser", "google-chrome")):
        missing.append("the labelling page in a browser (apt-get install chromium)")
    if not shutil.which("initdb") and not list(Path("/usr/lib/postgresql").glob("*/bin/initdb")):
        missing.append("the store on PostgreSQL (apt-get install postgresql)")
    return missing


if __name__ == "__main__":
    for part in missing_parts():
        print(f"left out of the tests on this machine: {part}")
    if shutil.which("nvidia-smi"):
        sys.exit(0)
    bad = found()
    if bad:
        sys.exit(
            f"This machine has no GPU, but its environment holds {', '.join(bad)}. "
            "Remove .venv, and run make again with constraints.txt as it is (see TORCH_INDEX in the Makefile)."
        )
    print("environment: no torchvision, triton or CUDA packages")
