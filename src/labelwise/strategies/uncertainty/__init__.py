"""Strategies that score rows by their class probabilities: confidence, margin, entropy."""
