"""Running a benchmark suite."""
