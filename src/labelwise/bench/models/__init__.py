"""Models of the benchmark."""
