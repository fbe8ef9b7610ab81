"""Labels: checks of answers, and oracles that give them."""

from labelwise.labels.oracle import KnownLabels, Oracle, make_oracle

__all__ = ["KnownLabels", "Oracle", "make_oracle"]
