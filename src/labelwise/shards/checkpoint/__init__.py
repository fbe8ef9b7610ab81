"""Checkpoints of a selection: a journal of answers and the state of each shard."""
