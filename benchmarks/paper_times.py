"""Write src/labelwise/reproduce/paper_times.json, the times that `labelwise reproduce` prints, from docs/results.

python benchmarks/paper_times.py
"""

from __future__ import annotations

import json
from pathlib import Path

from labelwise.io.files import write_text
from labelwise.reproduce.times import FILE, measure_times

RESULTS = Path(__file__).parent.parent / "docs" / "results"
FOLDERS = tuple(RESULTS / name for name in ("ally", "papers-small", "papers"))

if __name__ == "__main__":
    write_text(FILE, json.dumps(measure_times(FOLDERS), indent=1) + "\n")
