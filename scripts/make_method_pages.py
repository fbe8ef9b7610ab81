"""Write the facts on the pages of methods, and the decision tree, from classes and records; --check only compares.

A page of docs/methods asks for the facts of its strategies by a line `<!-- facts of NAME ...: ... -->`.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from labelwise.cli.strategies import facts_of_all
from labelwise.io.text import percent
from labelwise.recommend import Findings, Tried, read_findings
from labelwise.recommend.situation import SITUATIONS

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BY = "written by scripts/make_method_pages.py"
FACTS = re.compile(rf"<!-- facts of ([a-z -]+): {BY} -->\n.*?<!-- end of facts -->", flags=re.DOTALL)
TREE = re.compile(rf"<!-- tree: {BY} -->\n.*?<!-- end of tree -->", flags=re.DOTALL)
TREE_PAGE = DOCS / "how-to" / "choose-a-strategy.md"
PICTURE = (
    "Crosses: labelled rows. Shades: what a small network trained on them predicts. Orange: the picks, larger with a "
    "larger weight ([all strategies](../gallery.md))."
)
ROWS = ("picks", "needs", "cost", "weights", "first batch", "paper")


def facts(names: list[str]) -> str:
    """What each strategy picks, needs and costs, a picture of its picks, and what the records say about it."""
    known = {one["name"]: one for one in facts_of_all()}
    pictures = [f"![{name}: 12 picks on the toy data of the gallery](../pictures/toy/{name}.png)" for name in names]
    head = "| | " + " | ".join(f"`{name}`" for name in names) + " |"
    lines = [*pictures, "", PICTURE, "", head, "|---" * (len(names) + 1) + "|"]
    lines += [f"| {row} | " + " | ".join(known[name][row] for name in names) + " |" for row in ROWS]
    return "\n".join([*lines, "", *evidence(names)])


def evidence(names: list[str]) -> list[str]:
    """A row for each strategy and situation in the records."""
    findings = read_findings()
    found = [
        f"| {f'`{name}` | ' if len(names) > 1 else ''}{SITUATIONS[situation]} | {_numbers(one)} |"
        for situation, of in findings.items()
        for name in names
        for one in of.tried
        if one.strategy == name
    ]
    if not found:
        return ["The benchmarks compare every other strategy with it."]
    titles = ["strategy"] * (len(names) > 1) + ["where", "labels saved, median (range)", "better", "below"]
    return ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|", *found, "", _legend(findings)]


def _numbers(one: Tried) -> str:
    span = f"{percent(one.saved)} ({percent(one.low)} to {percent(one.high)})"
    return f"{span} | {one.better} of {one.sets} | {one.below} of {one.sets}"


def _legend(findings: dict[str, Findings]) -> str:
    seeds = min(found.seeds for found in findings.values())
    return (
        f"Labels saved against random at the best accuracy that both reach, {seeds} seeds. *Better* than random "
        "after Holm's correction for all strategies compared; *below* by the single test "
        "([the rule](../recommend.md#the-rule))."
    )


def tree() -> str:
    """The questions that lead to a recipe, with what the records say about it."""
    findings = read_findings()

    def leaf(situation: str) -> str:
        found = findings.get(situation)
        tried = None if found is None else next((one for one in found.tried if one.strategy == found.choice), None)
        if found is None or tried is None:
            return "**`random`**: the records have nothing better"
        said = f"**`{tried.strategy}`**: saves {percent(tried.saved)} at the median ({percent(tried.low)} to "
        return f"{said}{percent(tried.high)}), better than random on {tried.better} of {tried.sets} {found.unit}s"

    return "\n".join(
        [
            "1. **Nothing is labelled yet.**",
            f"    - Classes: {leaf('cold-start')}. Write it before a plus: `typiclust+margin`.",
            f"    - Numbers: {leaf('cold-start-regression')}.",
            "2. **There are labels. What do you have?**",
            f"    - Embeddings alone, no model: {leaf('embeddings')}.",
            "    - A model that predicts numbers: " + leaf("regression") + ".",
            "    - A model that predicts classes. Which one?",
            f"        - A network, or a linear model: {leaf('network')}.",
            f"        - The same, with 50 classes or more: {leaf('many-classes')}.",
            f"        - Trees, boosting or neighbours: {leaf('trees')}.",
        ]
    )


def pages() -> dict[Path, str]:
    """The text that each page should have."""
    found = {}
    for page in [*sorted((DOCS / "methods").glob("*.md")), TREE_PAGE]:
        text = page.read_text(encoding="utf-8")
        text = FACTS.sub(lambda block: _block(f"facts of {block[1]}", facts(block[1].split()), "facts"), text)
        found[page] = TREE.sub(lambda _: _block("tree", tree(), "tree"), text)
    return found


def _block(title: str, content: str, end: str) -> str:
    return f"<!-- {title}: {BY} -->\n{content}\n<!-- end of {end} -->"


def main() -> None:
    """Write the pages that differ, or with --check name them and fail."""
    differ = {page: text for page, text in pages().items() if text != page.read_text(encoding="utf-8")}
    names = ", ".join(str(page.relative_to(ROOT)) for page in differ)
    if differ and "--check" in sys.argv[1:]:
        raise SystemExit(f"{names}: out of date; run python scripts/make_method_pages.py")
    for page, text in differ.items():
        page.write_text(text, encoding="utf-8")
    print(f"wrote {names}" if differ else "nothing to write")


if __name__ == "__main__":
    main()
