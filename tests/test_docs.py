"""The examples in the README and the docs run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import check_language
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples() -> list[tuple[str, str]]:
    """Python blocks, each with its page and line. A page's blocks are run in order, in one process."""
    found = []
    for page in PAGES:
        blocks = re.findall(r"```python run\n(.*?)```", page.read_text(), flags=re.DOTALL)
        if blocks:
            found.append((str(page.relative_to(ROOT)), "\n".join(blocks)))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("page", "code"), examples())
def test_examples_run(page: str, code: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, f"{page}\n{done.stderr}"


def test_the_readme_has_an_example_for_each_way_to_use_it() -> None:
    code = dict(examples())["README.md"]
    for call in ("lw.select(", "lw.Session(", "lw.rounds("):
        assert call in code


def test_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith(("http://", "https://")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_places_in_the_architecture_page_exist() -> None:
    table = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("| question |")[1].split("## ")[0]
    for place in re.findall(r"`([a-z_/]+(?:\.py|/))`", table):
        assert (ROOT / "src" / "labelwise" / place).exists(), place
    for place, name in re.findall(r"`([a-z_/]+\.py)` \(`([A-Za-z_.]+)`", table):
        defined = re.search(rf"(def|class) {name.split('.')[-1]}\b", (ROOT / "src/labelwise" / place).read_text())
        assert defined, f"{place} has no {name}"


def test_no_turns_that_read_as_translated() -> None:
    found = [
        f"{path.name}:{line}: {turn}"
        for path in check_language.sources()
        for line, turn, _ in check_language.turns_in(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("turn", ["so many", "anew", "is said", "beside", "the middle one", "goes on", "but for"])
def test_a_banned_turn_is_found(turn: str) -> None:
    assert [found for _, found, _ in check_language.turns_in(f"One row\nis {turn} here.")] == [turn]


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) < 150
