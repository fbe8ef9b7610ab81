"""The report over benchmark runs."""
