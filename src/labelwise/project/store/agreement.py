"""Agreement of people who labelled the same rows: share of equal pairs, and Krippendorff's alpha.

    alpha = 1 - (n - 1) Σ_rows D(row) / (m - 1)  /  D(all)

with m labels on a row, over rows with m >= 2, n labels in all, and D(labels) the difference of its ordered pairs: for
names the number of unequal pairs, m² - Σ_c m_c²; for numbers the sum of squared differences, 2 m Σ x² - 2 (Σ x)².

Klaus Krippendorff, "Content Analysis: An Introduction to Its Methodology", Sage, 2004, chapter 11 (nominal and interval
data).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from labelwise.project.store.records import Agreement


def agreement(votes: Iterable[Iterable[str]], numbers: bool = False) -> Agreement:
    """The agreement of people, from the labels given to each row, which are names or `numbers`.

    >>> agreement([["cat", "cat"], ["dog", "dog"], ["cat", "dog"], ["cat"]])
    Agreement(rows=3, pairs=3, share=0.6666666666666666, alpha=0.4444444444444444)
    >>> agreement([["1", "1"], ["3", "3.0"], ["2", "4"]], numbers=True).alpha
    0.5454545454545454
    """
    labels = [row for one in votes if len(row := [float(value) if numbers else value for value in one]) > 1]
    pairs = sum(len(row) * (len(row) - 1) // 2 for row in labels)
    if not labels:
        return Agreement(0, 0, None, None)
    equal = sum(sum(count * count for count in Counter(row).values()) - len(row) for row in labels) // 2
    apart = math.fsum(_difference(row, numbers) / (len(row) - 1) for row in labels)
    everything = [value for row in labels for value in row]
    expected = _difference(everything, numbers)
    alpha = 1 - (len(everything) - 1) * apart / expected if expected else None
    return Agreement(len(labels), pairs, equal / pairs, alpha)


def _difference(labels: Sequence[str | float], numbers: bool) -> float:
    """How far all ordered pairs of these labels are apart, together."""
    if not numbers:
        return len(labels) ** 2 - sum(count * count for count in Counter(labels).values())
    middle = math.fsum(map(float, labels)) / len(labels)  # so that large numbers close together stay exact
    return 2 * len(labels) * math.fsum((float(one) - middle) ** 2 for one in labels)
