"""The page docs/results/reliability.md: each script writes its own part, between two markers, and keeps the others."""

from __future__ import annotations

from pathlib import Path

from labelwise.io.files import write_text

PAGE = Path(__file__).resolve().parents[1] / "docs" / "results" / "reliability.md"
HEAD = """# Reliability

What Labelwise was put through, and what came of it. Each part is written by the script in `benchmarks/` that its first
line names; a change by hand is lost at the next run.
"""


def write_part(script: str, text: str, page: Path = PAGE) -> None:
    """Write the part of `benchmarks/{script}.py`, with its heading; parts of other scripts stay as they are."""
    begin, end = f"<!-- {script}: written by benchmarks/{script}.py -->", f"<!-- end of {script} -->"
    old = page.read_text(encoding="utf-8") if page.exists() else HEAD
    part = f"{begin}\n{text.strip()}\n{end}"
    before, found, rest = old.partition(begin)
    if found:
        _, closed, after = rest.partition(end)
        if not closed:
            raise SystemExit(f"{page.name}: the line {end!r} is missing")
        write_text(page, before + part + after)
    else:
        write_text(page, f"{old.rstrip()}\n\n{part}\n")
