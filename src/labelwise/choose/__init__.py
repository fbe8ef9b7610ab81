"""Select: how rows are chosen, without knowing where they live or which model spoke about them."""

from labelwise.choose.selection import Selection
from labelwise.choose.strategy import Greedy, Scored, Strategy

__all__ = ["Greedy", "Scored", "Selection", "Strategy"]
