"""Slow references, written from the papers: float64, explicit matrices, one row or one pick at a time."""
