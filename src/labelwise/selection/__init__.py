"""Selection: what all strategies share, without knowing where the rows are or which model computed the signals.

It has the classes to derive from (`Strategy`, `Scored`, `Greedy`), the `Selection` they return, limits on memory,
progress, checks of arrays, and the choice of a backend by device.
"""

from labelwise.selection.greedy import Greedy
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Scored, Strategy

__all__ = ["Greedy", "Scored", "Selection", "Strategy"]
