"""Write the tables of strategies in docs/strategies.md from the classes; --check only compares."""

from __future__ import annotations

import sys
from pathlib import Path

from labelwise import strategies
from labelwise.cli.strategies import LEGEND, facts_of_all

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- strategies: written by scripts/make_strategy_table.py -->", "<!-- end of strategies -->"
PAGE = Path("docs") / "strategies.md"
CHOICE = ("name", "picks", "needs", "cost", "first batch", "paper")
TRAINING = ("name", "reason", "weights", "objective", "training")
WHAT = """The sentence that the labelling page shows next to a pick, whether picks come with weights, what a recipe of
that name trains by, and from which weights; empty cells leave it to the learner."""


def table(columns: tuple[str, ...]) -> str:
    """A Markdown table of all strategies."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for facts in facts_of_all():
        cells = {**facts, "name": f"`{facts['name']}`", "first batch": facts["first batch"].replace("no", "")}
        lines.append("| " + " | ".join(cells[column] for column in columns) + " |")
    return "\n".join(lines) + "\n"


def page() -> str:
    """The text that the page should have."""
    weighted = ", ".join(f"`{name}`" for name in strategies.names() if strategies.get(name).weighted)
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{PAGE}: the lines {BEGIN!r} and {END!r} are missing")
    content = f"{table(CHOICE)}\n{LEGEND}. These give weights: {weighted}.\n\n{WHAT}\n\n{table(TRAINING)}"
    return f"{before}{BEGIN}\n{content}{END}{after}"


def main() -> None:
    """Write the page if it differs, or with --check name it and fail."""
    text = page()
    if text == (ROOT / PAGE).read_text(encoding="utf-8"):
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"{PAGE}: the tables are out of date; run python scripts/make_strategy_table.py")
    (ROOT / PAGE).write_text(text, encoding="utf-8")
    print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
