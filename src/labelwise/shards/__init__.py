"""Shards: where rows live, and the four verbs a selection may use on them."""

from labelwise.shards.placement import place, shards_of
from labelwise.shards.shard import Best, Shard, Shards, computed_in

__all__ = ["Best", "Shard", "Shards", "computed_in", "place", "shards_of"]
