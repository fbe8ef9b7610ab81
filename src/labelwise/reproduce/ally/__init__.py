"""ALLY (Elenter et al. 2022)."""
