"""Quantities and bounds of the papers' theorems as functions: alignment, kernels, ratios, sample complexity.

Nothing here chooses rows or trains; strategies, tests and `reproduce` use it.
"""

from labelwise.theory.generation import Generated, most_informative

__all__ = ["Generated", "most_informative"]
