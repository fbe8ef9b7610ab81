"""Strategies by distance to the nearest labelled or picked row: k-center and BADGE."""
