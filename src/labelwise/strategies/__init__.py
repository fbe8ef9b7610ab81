"""Strategies: how to choose rows. `names()` lists them, `get(name)` makes one with its default parameters.

Each family has a folder with everything that belongs to it: the strategy, its maths, its fast kernels and its slow
reference, which is written from the paper.
"""

from labelwise.registry import STRATEGIES, get
from labelwise.selection import Strategy

# The order of these lines is that of `names()`.
# isort: off
from labelwise.strategies.random import Random
from labelwise.strategies.uncertainty.uncertainty import Confidence, Entropy, Margin
from labelwise.strategies.distance.kcenter import KCenter
from labelwise.strategies.distance.badge import Badge
from labelwise.strategies.coverage.typiclust import TypiClust
from labelwise.strategies.coverage.probcover import ProbCover
from labelwise.strategies.dynamical.dynamical import Dynamical
from labelwise.strategies.leverage.bss import Bss
from labelwise.strategies.leverage.leverage import Leverage
from labelwise.strategies.leverage.volume import Volume
from labelwise.strategies.bayesian.bald import Bald
from labelwise.strategies.bayesian.batchbald import BatchBald
from labelwise.strategies.bayesian.acs_fw import AcsFw
from labelwise.strategies.sabal.sabal import Sabal
from labelwise.strategies.ally.ally import Ally
from labelwise.strategies.bait.bait import Bait
from labelwise.strategies.albl.albl import Albl
# isort: on

ALL = STRATEGIES


def names() -> list[str]:
    """The names of all strategies, those of installed packages last.

    >>> "badge" in names()
    True
    """
    return list(ALL)


def name_of(strategy: Strategy) -> str:
    """The name of a strategy, whatever its other parameters; that of its class where it is not registered.

    Args:
        strategy: any instance.
    """
    name = strategy.name
    return name if ALL.find(name) is type(strategy) else type(strategy).__name__


def reason_of(name: str) -> str:
    """Why the strategy of this name picked an item, as one sentence for people who label.

    Args:
        name: of the strategy.
    """
    kind = ALL.find(name)
    return ("" if kind is None else kind.reason) or f"Chosen by {name}."


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
    "reason_of",
]
