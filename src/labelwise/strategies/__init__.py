"""Strategies: one method, one file. `names()` lists them, `get(name)` makes one with its default parameters."""

from labelwise.choose import Strategy
from labelwise.errors import ArgumentError
from labelwise.strategies.badge import Badge
from labelwise.strategies.kcenter import KCenter
from labelwise.strategies.probcover import ProbCover
from labelwise.strategies.typiclust import TypiClust
from labelwise.strategies.uncertainty import Confidence, Entropy, Margin
from labelwise.strategies.uniform import Random

# To add a method: its file, its line here, and a slow reference in its test.
ALL: dict[str, type[Strategy]] = {
    "random": Random,
    "confidence": Confidence,
    "margin": Margin,
    "entropy": Entropy,
    "kcenter": KCenter,
    "badge": Badge,
    "typiclust": TypiClust,
    "probcover": ProbCover,
}


def names() -> list[str]:
    """The names of all strategies.

    >>> "badge" in names()
    True
    """
    return list(ALL)


def get(strategy: str | Strategy) -> Strategy:
    """The strategy of this name with its default parameters; a Strategy is given back as it is."""
    if isinstance(strategy, Strategy):
        return strategy
    if not isinstance(strategy, str) or strategy not in ALL:
        raise ArgumentError(f"there is no strategy {strategy!r}; there are: {', '.join(ALL)}")
    return ALL[strategy]()


__all__ = [
    "ALL",
    "Badge",
    "Confidence",
    "Entropy",
    "KCenter",
    "Margin",
    "ProbCover",
    "Random",
    "TypiClust",
    "get",
    "names",
]
