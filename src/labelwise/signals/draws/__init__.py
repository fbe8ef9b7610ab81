"""Posterior draws of a model."""
