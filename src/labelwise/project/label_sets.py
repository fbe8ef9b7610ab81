"""Labels that are sets of classes, in a project with several classes for an item.

A set is stored as the names of its classes in the order in which the classes were added, with "|" between them; the
empty set is "(none)".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from labelwise.errors import ArgumentError, LabelError

NONE = "(none)"
BETWEEN = "|"


def names_of(value: str) -> tuple[str, ...]:
    """The classes of a label.

    >>> names_of("cat|dog"), names_of("(none)")
    (('cat', 'dog'), ())
    """
    return () if value == NONE else tuple(name.strip() for name in value.split(BETWEEN) if name.strip())


def value_of(names: Iterable[str], classes: Sequence[str]) -> str:
    """The label of these classes. Unknown ones come last.

    >>> value_of(["dog", "cat"], ["cat", "dog"])
    'cat|dog'
    """
    place = {name: at for at, name in enumerate(classes)}
    found = sorted(set(names), key=lambda name: (place.get(name, len(place)), name))
    return BETWEEN.join(found) or NONE


def checked(value: str, classes: Sequence[str]) -> str:
    """A label as it is stored. LabelError if it names something that is no class."""
    names = names_of(value)
    unknown = [name for name in names if name not in classes]
    if unknown:
        raise LabelError(f"{unknown[0]!r} is not a class of this project, which has {list(classes)}. Add it first")
    return value_of(names, classes)


def check_name(name: str) -> None:
    """Raise ArgumentError for a class name that could not be told from a set."""
    if BETWEEN in name or name == NONE:
        raise ArgumentError(
            f"with several classes for an item, a class name must have no {BETWEEN!r} and not be {NONE!r}; found "
            f"{name!r}"
        )


def majority(counts: Counter[str | None], classes: Sequence[str]) -> Counter[str | None]:
    """Where people gave different sets: the classes that more than half of them gave.

    Nothing is changed where a class has exactly half of the votes: people disagree then.

    >>> majority(Counter({"a|b": 1, "a": 1, "a|c": 1}), ["a", "b", "c"])
    Counter({'a': 3})
    """
    labels = Counter({value: count for value, count in counts.items() if value is not None})
    total, of_class = labels.total(), Counter[str]()
    for value, count in labels.items():
        of_class.update(dict.fromkeys(names_of(value), count))
    if any(2 * count == total for count in of_class.values()) or not total:
        return counts
    found: dict[str | None, int] = {value_of((n for n, count in of_class.items() if 2 * count > total), classes): total}
    return Counter(found | ({None: counts[None]} if counts[None] else {}))
