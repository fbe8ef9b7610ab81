"""Signals: what the model says about a row."""
