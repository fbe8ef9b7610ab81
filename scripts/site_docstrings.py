"""An extension of griffe for the documentation site: examples of docstrings become blocks of code."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^(>>> .*(?:\n(?!\n)[^\n]+)*)", flags=re.MULTILINE)  # up to an empty line


class Doctests(griffe.Extension):
    """Fences every example, so that its output is not read as Markdown."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            text = re.sub(r"\n\s*\n(?=>>> )", "\n\n", obj.docstring.value)
            obj.docstring.value = EXAMPLE.sub(r"```pycon\n\1\n```", text)
