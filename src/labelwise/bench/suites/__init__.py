"""The packaged suites: configurations of the benchmark by name, one YAML file each in this folder."""

from __future__ import annotations

from pathlib import Path

from labelwise.errors import ArgumentError
from labelwise.io.text import did_you_mean

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """The names of the packaged suites.

    >>> "smoke" in names()
    True
    """
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def summary(name: str) -> str:
    """What a packaged suite is for: the first line of its file."""
    with (FOLDER / f"{name}.yaml").open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("#").strip()


def find_suite(name: str) -> Path:
    """The file of a packaged suite, or the path of a YAML file of your own.

    Raises:
        ArgumentError: there is neither a suite nor a file of this name.
    """
    if name in names():
        return FOLDER / f"{name}.yaml"
    path = Path(name)
    if not path.is_file():
        hint = did_you_mean(path.stem, names()) or ";"
        raise ArgumentError(
            f"there is no file and no packaged suite {name!r}{hint} suites: {', '.join(names())}. Or name a YAML file"
        )
    return path
