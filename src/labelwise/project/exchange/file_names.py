"""Names of files and folders made from classes and paths that can be anything: safe on every system, each once."""

from __future__ import annotations

import re
import unicodedata
from itertools import chain, count

_UNSAFE = re.compile(r'[/\\:*?"<>|\x00-\x1f\x7f]')
_DEVICES = {"con", "prn", "aux", "nul", *(f"{port}{n}" for port in ("com", "lpt") for n in range(1, 10))}
_LONGEST = 120  # bytes of a stem; file systems take 255 for a name


def safe_name(text: str) -> str:
    """A name for one folder or file: no separators, no signs other systems refuse, never hidden, empty or too long.

    >>> [safe_name(text) for text in ("cat", "../../etc", "a/b", "", "con", "x. ")]
    ['cat', '_.._etc', 'a_b', '_', 'con_', 'x']
    """
    plain = "".join(c for c in _UNSAFE.sub("_", text) if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
    name = plain.encode("utf-8")[:_LONGEST].decode("utf-8", "ignore").strip().rstrip(". ")
    name = name.lstrip(".") if name.strip(".") else ""
    if not name:
        return "_"
    return f"{name}_" if name.split(".")[0].lower() in _DEVICES else name


class Names:
    """Gives each text a name of its own; systems that do not tell case apart are allowed for."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def give(self, stem: str, ending: str = "", tell: str = "") -> str:
        """A safe name for `stem` that nobody has; `tell` is what tells it from another of that name."""
        safe = safe_name(stem)
        endless = (f"{safe}-{number}" for number in count(2))
        for name in chain([safe], [f"{safe}-{tell}"] if tell else [], endless):
            known = unicodedata.normalize("NFC", name + ending).casefold()
            if known not in self._taken:
                break
        self._taken.add(known)
        return name + ending
