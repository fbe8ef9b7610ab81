"""ALBL: a bandit over strategies."""
