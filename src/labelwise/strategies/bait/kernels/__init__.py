"""Kernels of BAIT: what runs next to the rows."""
