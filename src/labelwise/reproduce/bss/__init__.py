"""Experiments on RandBSS, whose paper has none."""
