"""Weights of labelled rows that no law of the draws gives: SABAL's on a fixed support, and by estimated density.

The weights of random draws (`bss`, `leverage`, `volume`) come with the picks and are not made here.
"""

from labelwise.weigh.density import Density
from labelwise.weigh.weighed import WeighedLearner

__all__ = ["Density", "WeighedLearner"]
