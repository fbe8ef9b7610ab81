"""BAIT: Fisher information of the last layer."""
