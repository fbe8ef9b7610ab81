"""Theory: what the papers prove, as functions to run: alignment, kernels, ratios, bounds."""

from labelwise.theory.generation import Generated, most_informative

__all__ = ["Generated", "most_informative"]
