"""Quantities and bounds of the papers' theorems as functions: alignment, kernels, ratios, sample complexity."""

from labelwise.theory.generation import Generated, most_informative

__all__ = ["Generated", "most_informative"]
