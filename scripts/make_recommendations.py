"""Write src/labelwise/recommend/findings.json from the records in docs/results; --check only compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from labelwise.bench.report.recommendations import findings_from

ROOT = Path(__file__).parents[1]
FILE = ROOT / "src" / "labelwise" / "recommend" / "findings.json"


def main() -> None:
    """Write the file if it differs, or with --check say so and fail."""
    text = json.dumps(findings_from(ROOT / "docs" / "results"), indent=1, ensure_ascii=False) + "\n"
    if FILE.is_file() and FILE.read_text(encoding="utf-8") == text:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"{FILE.name} is not what the records give; run python scripts/make_recommendations.py")
    FILE.write_text(text, encoding="utf-8")
    print(f"wrote {FILE}")


if __name__ == "__main__":
    main()
