"""Registry of strategies: `@register` makes one known by its name; installed packages add theirs by entry point.

The README's table, `labelwise strategies`, recipes and the labelling page read what they say about a strategy from its
class attributes, see `Strategy`. A package of your own announces its strategies in its `pyproject.toml`:

    [project.entry-points."labelwise.strategies"]
    mine = "my_package.my_module:Mine"
"""

from __future__ import annotations

import functools
import re
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from labelwise.errors import ArgumentError, warn
from labelwise.io.text import did_you_mean
from labelwise.selection import Strategy

GROUP = "labelwise.strategies"
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  # "+" joins two names to a recipe
StrategyClass = TypeVar("StrategyClass", bound=type[Strategy])


class Registry(Mapping[str, type[Strategy]]):
    """Strategy classes by name: the registered ones in order, then those of installed packages.

    The module of an installed package is imported when its strategy is first looked up, not when names are listed. An
    entry point under a name that is registered already is ignored. One that cannot be used stops only the look-up of
    its own name; `items`, `values` and `find` leave it out, with a warning.
    """

    def __init__(self) -> None:
        self._classes: dict[str, type[Strategy]] = {}

    def add(self, kind: type[Strategy]) -> None:
        """Add a class under its `name`, or under the names of its `variants`.

        Raises:
            ArgumentError: the class is no Strategy, or its name is missing, malformed or taken.
        """
        if not isinstance(kind, type) or not issubclass(kind, Strategy):
            raise ArgumentError(f"@register expects a subclass of labelwise.Strategy, found {kind!r}")
        for name in _names(kind):
            if not isinstance(name, str) or not NAME.fullmatch(name):
                raise ArgumentError(
                    f"{kind.__name__}.name is how users call the strategy: lower-case words joined by hyphens, such as "
                    f"'my-margin'; found {name!r}"
                )
            known = self._classes.get(name, kind)
            if (known.__module__, known.__qualname__) != (kind.__module__, kind.__qualname__):
                raise ArgumentError(
                    f"the strategy name {name!r} is taken by {known.__module__}.{known.__qualname__}; "
                    f"give {kind.__module__}.{kind.__qualname__} another name"
                )
            self._classes[name] = kind

    def __getitem__(self, name: str) -> type[Strategy]:
        if name not in self._classes:
            self._load(_installed()[name])
        return self._classes[name]

    def __contains__(self, name: object) -> bool:
        return name in self._classes or name in _installed()

    def find(self, name: str) -> type[Strategy] | None:
        """The class of a name; None for an unknown one and, with a warning, for one that cannot be used."""
        try:
            return self.get(name)
        except ArgumentError as error:
            warn(f"{error}. It is left out; mend or remove that package")
            return None

    def items(self) -> ItemsView[str, type[Strategy]]:
        """Names and classes of the strategies that can be used."""
        found = {name: self.find(name) for name in self}
        return {name: kind for name, kind in found.items() if kind is not None}.items()

    def values(self) -> ValuesView[type[Strategy]]:
        """Classes of the strategies that can be used."""
        return dict(self.items()).values()

    def __iter__(self) -> Iterator[str]:
        yield from self._classes
        yield from (name for name in _installed() if name not in self._classes)

    def __len__(self) -> int:
        return len({*self._classes, *_installed()})

    def _load(self, entry: EntryPoint) -> None:
        """Import the class of an entry point and add it."""
        try:
            kind = entry.load()
        except Exception as error:  # whatever the other package raises on import
            raise ArgumentError(
                f"the strategy {entry.name!r} of an installed package cannot be imported from {entry.value}: "
                f"{type(error).__name__}: {error}"
            ) from error
        self.add(kind)
        if entry.name not in _names(kind):
            raise ArgumentError(
                f"the entry point {entry.name!r} leads to {entry.value}, whose name is {kind.name!r}; make them equal"
            )


STRATEGIES = Registry()


def _names(kind: type[Strategy]) -> tuple[str, ...]:
    """The names of a class; a subclass does not inherit those of `variants`."""
    return tuple(vars(kind).get("variants", ())) or (kind.name,)


def register(kind: StrategyClass) -> StrategyClass:
    """Class decorator: make a strategy known by its `name` to `lw.select`, to recipes and to the command line.

    Raises:
        ArgumentError: the class is no Strategy, or its name is missing, malformed or taken.

    Example:

        @register
        class SmallestId(Scored):
            name = "smallest-id"

            def score(self, rows, key):
                return -rows.ids
    """
    STRATEGIES.add(kind)
    return kind


def get(strategy: str | Strategy, parameters: Mapping[str, Any] | None = None) -> Strategy:
    """The strategy of this name, with default parameters where none are given. A Strategy is returned unchanged.

    Args:
        strategy: its name, or a Strategy.
        parameters: of its class, by name.

    Raises:
        ArgumentError: there is no such strategy, or it refuses a value.
        TypeError: it has no such parameter.

    >>> from labelwise import strategies  # which registers those here
    >>> get("bait", {"oversample": 3.0}).oversample
    3.0
    """
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str) or strategy not in STRATEGIES:
        word = str(strategy).lower().replace("_", "-").replace(" ", "-")
        same = next((name for name, kind in STRATEGIES.items() if word in kind.also), None)
        if isinstance(strategy, str) and ("|" in strategy or "+" in strategy):
            last = strategy.partition("|")[0].rpartition("+")[2].strip()
            raise ArgumentError(
                f"the name of one strategy was expected, found {strategy!r}, which is a recipe. Pass {last!r} here; "
                "recipes are for lw.Session, lw.rounds, and labelwise label and simulate"
            )
        hint = f"; it is called {same!r} here;" if same else did_you_mean(str(strategy), STRATEGIES) or ";"
        raise ArgumentError(
            f"there is no strategy {strategy!r}{hint} there are: {', '.join(STRATEGIES)}. Commands find one of your "
            f"own in a package with an entry point {GROUP!r} (docs/how-to/add-a-strategy.md)"
        )
    kind = STRATEGIES[strategy]
    return kind(**{**kind.variants.get(strategy, {}), **(parameters or {})})


@functools.cache
def _installed() -> Mapping[str, EntryPoint]:
    """Entry points of installed packages by the name of their strategy."""
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        other = found.setdefault(entry.name, entry)
        if other.value != entry.value:
            raise ArgumentError(
                f"two installed packages have a strategy {entry.name!r}: {other.value} and {entry.value}; remove one"
            )
    return found
