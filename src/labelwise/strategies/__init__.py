"""Strategies: one method, one file. `names()` lists them, `get(name)` makes one with its default parameters."""

from labelwise.errors import ArgumentError
from labelwise.selection import Strategy
from labelwise.strategies.albl.albl import Albl
from labelwise.strategies.ally.ally import Ally
from labelwise.strategies.bait.bait import Bait
from labelwise.strategies.bayesian.acs_fw import AcsFw
from labelwise.strategies.bayesian.bald import Bald
from labelwise.strategies.bayesian.batchbald import BatchBald
from labelwise.strategies.coverage.probcover import ProbCover
from labelwise.strategies.coverage.typiclust import TypiClust
from labelwise.strategies.distance.badge import Badge
from labelwise.strategies.distance.kcenter import KCenter
from labelwise.strategies.dynamical.dynamical import Dynamical
from labelwise.strategies.leverage.bss import Bss
from labelwise.strategies.leverage.leverage import Leverage
from labelwise.strategies.leverage.volume import Volume
from labelwise.strategies.random import Random
from labelwise.strategies.sabal.sabal import Sabal
from labelwise.strategies.uncertainty.uncertainty import Confidence, Entropy, Margin

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
