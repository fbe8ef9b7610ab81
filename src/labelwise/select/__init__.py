"""Select: how rows are chosen, without knowing where they live or which model spoke about them."""

from labelwise.select.selection import Selection
from labelwise.select.strategy import Greedy, Scored, Strategy

__all__ = ["Greedy", "Scored", "Selection", "Strategy"]
