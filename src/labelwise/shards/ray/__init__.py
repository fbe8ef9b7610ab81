"""Shards on a Ray cluster."""

from labelwise.shards.ray.engine import Ray, engine_of

__all__ = ["Ray", "engine_of"]
