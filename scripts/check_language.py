"""Find turns of phrase that read as translated, and name the plain words for them.

Reads what users read: README, docs, help texts, pages, errors and docstrings in the source. `make lint` runs it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TURNS = {  # a pattern, and what to write
    r"so many": "as many as, or the number",
    r"anew": "again",
    r"(?:is|are|was|were) said": "the report says, or the error names",
    r"the middle one": "the median",
    r"(?:that|what) is there": "available, or existing",
    r"goes on from": "continues from",
    r"beside": "next to",
    r"in earnest": "in practice",
    r"at hand": "available",
    r"can(?:not)? be told(?! (?:from|apart))": "can be estimated, or is known",
    r"near to": "near, or close to",
    r"where it is there": "where it exists",
    r"upon": "on",
    r"whilst": "while",
    r"amongst": "among",
    r"hence|thereby|whence": "so",
    r"in vain": "without success",
    r"goes on(?! that)|go on (?:with|until|in)": "continues",
    r"but for": "except for, or up to (rounding)",
    r"of before": "earlier",
    r"rightly": "correctly",
    r"told of": "called with",
}
PATTERN = re.compile(r"\b(?:" + "|".join(f"(?P<t{n}>{turn})" for n, turn in enumerate(TURNS)) + r")\b", re.IGNORECASE)
ROOTS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "ROADMAP.md", "SECURITY.md")
RESULTS = ROOT / "docs" / "results"  # written by programs, whose source is read


def sources() -> list[Path]:
    """The files that are read."""
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if RESULTS not in page.parents]
    code = [path for end in ("py", "html", "js") for path in sorted((ROOT / "src").rglob(f"*.{end}"))]
    packaged = [path for path in code if "htmx" not in path.name]
    return [*(ROOT / name for name in ROOTS), *pages, RESULTS / "README.md", *packaged]


def turns_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Line number, turn, and what to write, of each turn; a turn may run over the end of a line.

    >>> list(turns_in("These are the rows.\\nIt is computed\\nanew."))
    [(3, 'anew', 'again')]
    """
    for found in PATTERN.finditer(re.sub(r"\s", " ", text)):
        number = next(n for n in range(len(TURNS)) if found[f"t{n}"])
        yield text.count("\n", 0, found.start()) + 1, found[0], list(TURNS.values())[number]


def main() -> int:
    """Print every turn that is found."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {turn!r}: write {better}"
        for path in sources()
        for line, turn, better in turns_in(path.read_text(encoding="utf-8"))
    ]
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
