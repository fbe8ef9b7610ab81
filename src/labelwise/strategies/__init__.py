"""Strategies: one method, one file. `names()` lists them, `get(name)` makes one with its default parameters."""

from labelwise.choose import Strategy
from labelwise.errors import ArgumentError
from labelwise.strategies.acs_fw import AcsFw
from labelwise.strategies.albl import Albl
from labelwise.strategies.ally import Ally
from labelwise.strategies.badge import Badge
from labelwise.strategies.bait import Bait
from labelwise.strategies.bald import Bald
from labelwise.strategies.batchbald import BatchBald
from labelwise.strategies.bss import Bss
from labelwise.strategies.dynamical import Dynamical
from labelwise.strategies.kcenter import KCenter
from labelwise.strategies.leverage import Leverage
from labelwise.strategies.probcover import ProbCover
from labelwise.strategies.sabal import Sabal
from labelwise.strategies.typiclust import TypiClust
from labelwise.strategies.uncertainty import Confidence, Entropy, Margin
from labelwise.strategies.uniform import Random
from labelwise.strategies.volume import Volume

# To add a method: its file, its line here, a slow reference in verify/references and its check in verify/against.
ALL: dict[str, type[Strategy]] = {
    "random": Random,
    "confidence": Confidence,
    "margin": Margin,
    "entropy": Entropy,
    "kcenter": KCenter,
    "badge": Badge,
    "typiclust": TypiClust,
    "probcover": ProbCover,
    "dynamical": Dynamical,
    "bss": Bss,
    "leverage": Leverage,
    "volume": Volume,
    "bald": Bald,
    "batchbald": BatchBald,
    "acs-fw": AcsFw,
    "sabal-greedy": Sabal,
    "sabal-iht": Sabal,
    "ally": Ally,
    "bait": Bait,
    "albl": Albl,
}

# Parameters that a name stands for, where several names are one class.
FIXED: dict[str, dict[str, str]] = {"sabal-greedy": {"solver": "greedy"}, "sabal-iht": {"solver": "iht"}}


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
    return ALL[strategy](**FIXED.get(strategy, {}))


def name_of(strategy: Strategy) -> str:
    """The name of a strategy, whatever its other parameters; that of its class where it has none."""
    for name, kind in ALL.items():
        fixed = FIXED.get(name, {}).items()
        if type(strategy) is kind and all(getattr(strategy, parameter) == value for parameter, value in fixed):
            return name
    return type(strategy).__name__


__all__ = [
    "ALL",
    "AcsFw",
    "Albl",
    "Ally",
    "Badge",
    "Bait",
    "Bald",
    "BatchBald",
    "Bss",
    "Confidence",
    "Dynamical",
    "Entropy",
    "KCenter",
    "Leverage",
    "Margin",
    "ProbCover",
    "Random",
    "Sabal",
    "TypiClust",
    "Volume",
    "get",
    "name_of",
    "names",
]
