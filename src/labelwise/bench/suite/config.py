"""Reading a mapping of YAML key by key: every error names the key, what was expected there and what was found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from labelwise.errors import ArgumentError
from labelwise.io.sizes import parse_size
from labelwise.io.text import did_you_mean
from labelwise.io.yaml_text import load_yaml

MISSING = object()


class Section:
    """A mapping and its place in the file. Call `only` with the keys it may have, then read each key."""

    def __init__(self, values: Any, where: str):
        if not isinstance(values, Mapping) or not all(isinstance(key, str) for key in values):
            raise ArgumentError(f"{where}: expected keys with values (key: value), found {_short(values)}")
        self.where = where
        self._left = dict(values)

    def whole(self, key: str, least: int, default: Any = MISSING) -> Any:
        """A whole number of at least `least`."""
        return self._take(key, f"a whole number of at least {least}", lambda v: _is_whole(v) and v >= least, default)

    def text(self, key: str, default: Any = MISSING) -> Any:
        """A text that is not empty."""
        return self._take(key, "a text", lambda v: isinstance(v, str) and v != "", default)

    def flag(self, key: str, default: bool) -> bool:
        """true or false."""
        return bool(self._take(key, "true or false", lambda v: isinstance(v, bool), default))

    def one_of(self, key: str, names: Iterable[str], default: Any = MISSING) -> Any:
        """One of several names."""
        known = list(names)
        return self._take(key, f"one of {', '.join(known)}", lambda v: v in known, default)

    def texts(self, key: str, default: Any = MISSING) -> Any:
        """A list of texts; one text is a list of one."""
        value = self._take(key, "a list of names", _is_texts, default)
        return (value,) if isinstance(value, str) else tuple(value) if value is not None else None

    def share(self, key: str, default: float) -> float:
        """A number above 0 and at most 1."""
        return float(self._take(key, "a number above 0 and at most 1", lambda v: _is_real(v) and 0 < v <= 1, default))

    def size(self, key: str, default: Any = MISSING) -> Any:
        """A size of memory: a text such as 4GB, or a whole number of bytes."""
        return self._take(key, "a size such as 4GB, 512MB or 2GiB, or a whole number of bytes", _is_size, default)

    def any(self, key: str, default: Any = MISSING) -> Any:
        """Any value."""
        return self._take(key, "a value", lambda v: True, default)

    def entries(self, key: str, default: Any = MISSING) -> list[Any]:
        """A list of entries, not empty; one entry is a list of one."""
        value = self.any(key, default)
        listed = value if isinstance(value, list | tuple) else [value]
        if not listed:
            raise self.error(key, "at least one entry", value)
        return list(listed)

    def rest(self) -> dict[str, Any]:
        """All keys not read so far: the parameters of what the entry names."""
        left, self._left = self._left, {}
        return {key: frozen(value) for key, value in left.items()}

    def only(self, keys: Iterable[str]) -> None:
        """Raise if the mapping has another key. Called first: a misspelt key is not taken for a missing one."""
        known = list(keys)
        for key in self._left:
            if key not in known:
                hint = did_you_mean(key, known) or "."
                raise ArgumentError(f"{self.where}: there is no key {key!r}{hint} Keys here: {', '.join(known)}")

    def error(self, key: str, expected: str, found: Any) -> ArgumentError:
        """The error for a value of `key` that cannot be used."""
        return ArgumentError(f"{self.where}: {key}: expected {expected}, found {_short(found)}")

    def _take(self, key: str, expected: str, fits: Callable[[Any], bool], default: Any) -> Any:
        value = self._left.pop(key, default)
        if value is MISSING:
            found = f"; found {', '.join(self._left)}" if self._left else ""
            raise ArgumentError(f"{self.where}: the key {key!r} is missing; expected {expected}{found}")
        if value is not default and not fits(value):
            raise self.error(key, expected, value)
        return value


def read_yaml(path: Path) -> Section:
    """The mapping of a YAML file."""
    import yaml

    try:
        values = load_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"{path}: the configuration cannot be read ({error}); name a YAML file") from error
    except (yaml.YAMLError, ValueError) as error:
        raise ArgumentError(f"{path}: expected YAML, found something else: {' '.join(str(error).split())}") from error
    return Section(values, str(path))


def named(entry: Any, where: str) -> Section:
    """An entry of a list: a mapping, or a name alone, which is the mapping {name: it}."""
    values = {"name": entry} if isinstance(entry, str) else entry
    name = values.get("name") if isinstance(values, Mapping) else None
    return Section(values, f"{where}: {name}" if isinstance(name, str) else where)


def frozen(value: Any) -> Any:
    """A value of YAML with tuples for lists, as frozen dataclasses hold it."""
    if isinstance(value, list | tuple):
        return tuple(frozen(part) for part in value)
    return {key: frozen(part) for key, part in value.items()} if isinstance(value, dict) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_size(value: Any) -> bool:
    try:
        return parse_size(value) is not None
    except ArgumentError:
        return False


def _is_texts(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(part, str) for part in value))


def _short(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
