"""Fails when this environment holds packages that must not be there on a machine without a GPU."""

from __future__ import annotations

import importlib.metadata
import shutil
import sys

# torchvision from a general index breaks beside a CPU build of torch, and the others are gigabytes nobody can use here.
FORBIDDEN = ("torchvision", "torchaudio", "triton", "nvidia-", "pytorch-triton", "cuda-")


def found() -> list[str]:
    """Names of installed packages that should not be here."""
    names = {distribution.metadata["Name"].lower() for distribution in importlib.metadata.distributions()}
    return sorted(name for name in names if name.startswith(FORBIDDEN))


if __name__ == "__main__":
    if shutil.which("nvidia-smi"):
        sys.exit(0)
    bad = found()
    if bad:
        sys.exit(
            f"This machine has no GPU, but its environment holds {', '.join(bad)}. "
            "Remove .venv, and run make again with constraints.txt as it is (see TORCH_INDEX in the Makefile)."
        )
    print("environment: no torchvision, triton or CUDA packages")
