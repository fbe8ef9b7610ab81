"""Labels: checks of answers, and oracles that give them.

Sessions, the loop and the benchmark ask oracles in one way: ids in, labels out. Everything that is not a label of the
task is refused here, with the row.
"""

from labelwise.labels.oracle import KnownLabels, Oracle, make_oracle

__all__ = ["KnownLabels", "Oracle", "make_oracle"]
