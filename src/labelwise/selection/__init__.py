"""Select: how rows are chosen, without knowing where they live or which model spoke about them."""

from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Greedy, Scored, Strategy

__all__ = ["Greedy", "Scored", "Selection", "Strategy"]
