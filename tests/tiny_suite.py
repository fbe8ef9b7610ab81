"""A suite that runs in a second, for tests of the runner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from labelwise.bench.suite.suite import Suite, read_suite

TINY = {
    "name": "tiny",
    "datasets": [{"name": "digits", "limit": 80}],
    "models": [{"name": "mlp", "hidden": [8], "epochs": 6}],
    "strategies": ["margin", "dynamical", "albl", {"name": "bss", "weights": True}],
    "seeds": 2,
    "start": 8,
    "k": 4,
    "rounds": 3,
}


def suite_of(folder: Path, **changes: Any) -> Suite:
    """The suite with these changes, by way of its file in the folder."""
    path = folder / "suite.yaml"
    path.write_text(yaml.safe_dump({**TINY, **changes}, sort_keys=False))
    return read_suite(path)
