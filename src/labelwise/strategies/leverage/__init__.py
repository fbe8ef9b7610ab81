"""Leverage-based sampling: randomised BSS, leverage scores, volume sampling."""
