"""Strategies that cover the pool: TypiClust and ProbCover."""
