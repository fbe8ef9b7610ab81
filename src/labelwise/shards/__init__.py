"""Shards: where rows and their signals are during a selection, and the four verbs to use them: map, sum, best, take.

A function travels to the rows and a small answer comes back. So one selection runs on a device, in memory, on
mapped files or on the workers of a Ray cluster (`ray/`), with the same picks; `checkpoint/` lets a killed one
continue.
"""

from labelwise.shards.placement import place
from labelwise.shards.shard import Best, Shard, Shards, computed_in, shards_of

__all__ = ["Best", "Shard", "Shards", "computed_in", "place", "shards_of"]
