"""Labelwise: choose which rows of an unlabelled pool are worth labelling, train on the answers, show what was saved.

Three ways to use it, from the one that does least for you to the one that does most:

    lw.select(strategy, k, probs=..., embedding=...)     arrays in, batch out
    lw.Session(pool, learner, recipe)                     ask and tell: you own the loop
    lw.rounds(pool, oracle, learner, recipe, k, n)        the whole loop, one record for each round
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from labelwise import errors as errors
    from labelwise import recipes as recipes
    from labelwise import report as report
    from labelwise import strategies as strategies
    from labelwise import train as train
    from labelwise import verify as verify
    from labelwise.arrays import select as select
    from labelwise.callbacks import Callback as Callback
    from labelwise.callbacks import ProgressBar as ProgressBar
    from labelwise.loop import rounds as rounds
    from labelwise.pool import Ledger as Ledger
    from labelwise.pool import Pool as Pool
    from labelwise.recipes import Recipe as Recipe
    from labelwise.rng import Key as Key
    from labelwise.selection import Greedy as Greedy
    from labelwise.selection import Scored as Scored
    from labelwise.selection import Selection as Selection
    from labelwise.selection import Strategy as Strategy
    from labelwise.session import Session as Session
    from labelwise.signals.draws.variational import bayesian as bayesian
    from labelwise.stats.record import Record as Record
    from labelwise.theory.certificate import certificate as certificate
    from labelwise.train import Mean as Mean
    from labelwise.train import PrimalDual as PrimalDual
    from labelwise.train import SklearnLearner as SklearnLearner
    from labelwise.train import TorchLearner as TorchLearner
    from labelwise.train import Weighted as Weighted
    from labelwise.train.ensemble import ensemble as ensemble
    from labelwise.train.laplace import laplace as laplace

__version__ = "0.2.0.dev0"

# Looked up on first use, in the order of the road: importing torch takes longer than `labelwise --help` may.
_HOME = {
    "errors": "labelwise.errors",
    "Key": "labelwise.rng",
    "Pool": "labelwise.pool",
    "Ledger": "labelwise.pool",
    "Selection": "labelwise.selection",
    "Strategy": "labelwise.selection",
    "Scored": "labelwise.selection",
    "Greedy": "labelwise.selection",
    "strategies": "labelwise.strategies",
    "select": "labelwise.arrays",
    "certificate": "labelwise.theory.certificate",
    "bayesian": "labelwise.signals.draws.variational",
    "train": "labelwise.train",
    "Mean": "labelwise.train",
    "Weighted": "labelwise.train",
    "PrimalDual": "labelwise.train",
    "TorchLearner": "labelwise.train",
    "SklearnLearner": "labelwise.train",
    "ensemble": "labelwise.train.ensemble",
    "laplace": "labelwise.train.laplace",
    "report": "labelwise.report",
    "Record": "labelwise.report",
    "recipes": "labelwise.recipes",
    "Recipe": "labelwise.recipes",
    "Callback": "labelwise.callbacks",
    "ProgressBar": "labelwise.callbacks",
    "Session": "labelwise.session",
    "rounds": "labelwise.loop",
    "verify": "labelwise.verify",
}
__all__ = [*_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'labelwise' has no attribute {name!r}")
    home = importlib.import_module(_HOME[name])
    return home if home.__name__ == f"labelwise.{name}" else getattr(home, name)


def __dir__() -> list[str]:
    return sorted([*_HOME, "__version__"])
