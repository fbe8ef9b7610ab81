"""YAML as plain data of a bounded size: with aliases, a few lines can stand for more values than memory holds."""

from __future__ import annotations

from typing import Any

MOST = 1_000_000  # values of a file


def load_yaml(text: str) -> Any:
    """The content of a YAML text.

    Raises:
        ValueError: it has more than `MOST` values when its aliases are written out, or holds itself.
        yaml.YAMLError: it is not YAML.

    >>> load_yaml("a: [1, 2]")
    {'a': [1, 2]}
    """
    import yaml  # not everybody who imports this reads a file

    found = yaml.safe_load(text)
    pending, count = [found], 0
    while pending:
        one = pending.pop()
        inside: list[Any] = []
        if isinstance(one, dict):
            inside = [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set):
            inside = list(one)
        count += len(inside)
        if count > MOST:
            raise ValueError(f"its aliases stand for more than {MOST:,} values")
        pending += inside
    return found
