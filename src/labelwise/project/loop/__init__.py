"""The loop of a project: train, choose, explain."""
