"""Write the tables of strategies in README.md and docs/strategies.md from the classes; --check only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from labelwise import strategies
from labelwise.cli.strategies import LEGEND, facts_of_all

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- strategies: written by scripts/make_strategy_table.py -->", "<!-- end of strategies -->"
README = ("name", "picks", "needs", "cost", "first batch", "paper")
DOCS = ("name", "reason", "weights", "objective", "training")


def table(columns: tuple[str, ...]) -> str:
    """A Markdown table of all strategies."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for facts in facts_of_all():
        cells = {**facts, "name": f"`{facts['name']}`", "first batch": facts["first batch"].replace("no", "")}
        lines.append("| " + " | ".join(cells[column] for column in columns) + " |")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """The text that each page should have."""
    weighted = ", ".join(f"`{name}`" for name in strategies.names() if strategies.get(name).weighted)
    found = {}
    for page, content in (
        ("README.md", f"{table(README)}\n{LEGEND}. These give weights: {weighted}.\n"),
        ("docs/strategies.md", table(DOCS)),
    ):
        text = (ROOT / page).read_text(encoding="utf-8")
        before, _, rest = text.partition(BEGIN + "\n")
        _, end, after = rest.partition(END)
        if not end:
            raise SystemExit(f"{page}: the lines {BEGIN!r} and {END!r} are missing")
        found[ROOT / page] = f"{before}{BEGIN}\n{content}{END}{after}"
    return found


def main() -> None:
    """Write the pages that differ, or with --check name them and fail."""
    stale = {page: text for page, text in pages().items() if page.read_text(encoding="utf-8") != text}
    if "--check" in sys.argv[1:]:
        if stale:
            names = ", ".join(page.name for page in stale)
            raise SystemExit(
                f"{names}: the table of strategies is out of date; run python scripts/make_strategy_table.py"
            )
        return
    for page, text in stale.items():
        page.write_text(text, encoding="utf-8")
        print(f"wrote {page}")


if __name__ == "__main__":
    main()
