"""Records and statistics: numbers, no drawing.

A `Record` is one round of one run. From records follow learning curves, paired tests with Holm's correction, labels
saved with their intervals, and verdicts.
"""
