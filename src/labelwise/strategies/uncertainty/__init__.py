"""Strategies on single predictions: confidence, margin, entropy."""
