"""What a script was called with, for the page it writes."""

from __future__ import annotations

import shlex
import sys


def called(script: str, given: list[str] | None) -> str:
    """The command that makes a page, without where the page goes; `given` is None where the shell gave the words."""
    words = list(sys.argv[1:] if given is None else given)
    if "--out" in words:
        del words[words.index("--out") : words.index("--out") + 2]
    return shlex.join(["python", f"benchmarks/{script}.py", *words])
