"""Data sets of the benchmark."""
