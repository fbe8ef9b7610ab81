"""Remove records that cannot go on from the state of papers_device.sh: `python benchmarks/papers_state.py FOLDER`.

Records travel from machine to machine, models do not. A run that trains on from the weights of the round before needs
its model; where that is missing, its unfinished records are removed, and the run starts again.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(folder: Path) -> None:
    """Look at every run in the folder."""
    for settings in sorted(folder.glob("work/*/*/suite.json")):
        suite = json.loads(settings.read_text(encoding="utf-8"))
        if not any(model["parameters"].get("restart") is False for model in suite["models"]):
            continue
        rounds = suite["datasets"][0]["rounds"]
        for records in sorted(settings.parent.glob("records/*.jsonl")):
            done = sum(1 for line in records.open(encoding="utf-8") if line.endswith("\n"))
            if 0 < done <= rounds and not list(settings.parent.glob(f"models/{records.stem}--*.pt")):
                records.unlink()
                print(f"starts again: {records.relative_to(folder)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
