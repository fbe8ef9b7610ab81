"""Build the documentation site of every tag that has one, and of this tree, next to each other.

Each version is a folder of its own, which opens without a server; `versions.json` lets the pages of a served site offer
the others, and `index.html` lists them all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TAG = re.compile(r"v\d+\.\d+\.\d+")
NEXT = "next"  # this tree, not released yet


def tags(root: Path) -> list[str]:
    """The released versions whose tree has a site, the newest first."""
    found = [tag for tag in _git(root, "tag", "--sort=-version:refname").split() if TAG.fullmatch(tag)]
    return [tag for tag in found if "mkdocs.yml" in _git(root, "ls-tree", "--name-only", tag).split()]


def build(root: Path, to: Path) -> None:
    """Build the site of a tree with the tools of this environment and the source of that tree."""
    code = "import sys; sys.path.insert(0, 'src'); from mkdocs.__main__ import cli; cli()"
    command = [sys.executable, "-c", code, "build", "-q", "-d", str(to.resolve())]
    subprocess.run(command, cwd=root, check=True, env={**os.environ, "LABELWISE_SITE_VERSIONS": "1"})


def listed(released: list[str]) -> tuple[str, str]:
    """versions.json and index.html for these tags and this tree; the first tag is the latest."""
    names = [*released, NEXT]
    latest = released[0] if released else NEXT
    versions = [{"version": name, "title": name, "aliases": ["latest"] if name == latest else []} for name in names]
    lines = "\n".join(
        f'<li><a href="{name}/index.html">{name}</a>{" (latest)" if name == latest else ""}</li>' for name in names
    )
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Labelwise: versions</title>'
        f"<h1>Labelwise</h1><p>The documentation, by version:</p><ul>\n{lines}\n</ul></html>\n"
    )
    return json.dumps(versions, indent=1) + "\n", page


def main() -> int:
    """Build all versions into the folder of --out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "site-versions")
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    released = tags(ROOT)
    for tag in released:
        print(f"building {tag}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder) / "tree"
            _git(ROOT, "worktree", "add", "--detach", str(tree), tag)
            try:
                build(tree, out / tag)
            finally:
                _git(ROOT, "worktree", "remove", "--force", str(tree))
    print(f"building {NEXT}", flush=True)
    build(ROOT, out / NEXT)
    versions, page = listed(released)
    (out / "versions.json").write_text(versions, encoding="utf-8")
    (out / "index.html").write_text(page, encoding="utf-8")
    print(f"{out / 'index.html'}: {', '.join([*released, NEXT])}")
    return 0


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    sys.exit(main())
