"""Writes src/labelwise/bench/paper_times.json, which `labelwise reproduce` prints times from, out of the kept pages.

python benchmarks/paper_times.py
"""

from __future__ import annotations

import json
from pathlib import Path

from labelwise.io.files import write_text
from labelwise.reproduce.times import FILE, measured

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FOLDERS = tuple(RESULTS / name for name in ("ally", "papers-small", "papers"))

if __name__ == "__main__":
    write_text(FILE, json.dumps(measured(FOLDERS), indent=1) + "\n")
