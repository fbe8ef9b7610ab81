"""Selection: choose rows by their signals, without knowing where the rows are or which model computed the signals."""

from labelwise.selection.greedy import Greedy
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Scored, Strategy

__all__ = ["Greedy", "Scored", "Selection", "Strategy"]
