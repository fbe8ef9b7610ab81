"""Agreement of people who labelled the same rows: share of equal pairs, and Krippendorff's alpha for names.

    alpha = 1 - (n - 1) Σ_rows (m² - Σ_c n_c²) / (m - 1)  /  (N² - Σ_c N_c²)

with m labels on a row, n_c of them of class c, over rows with m >= 2; N_c and N = n are the sums over those rows.

Klaus Krippendorff, "Content Analysis: An Introduction to Its Methodology", Sage, 2004, chapter 11 (nominal data).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from labelwise.project.store.records import Agreement


def agreement(votes: Iterable[Iterable[str]]) -> Agreement:
    """The agreement of people, from the labels given to each row.

    >>> agreement([["cat", "cat"], ["dog", "dog"], ["cat", "dog"], ["cat"]])
    Agreement(rows=3, pairs=3, share=0.6666666666666666, alpha=0.4444444444444444)
    """
    rows = pairs = equal = 0
    apart = 0.0
    totals: Counter[str] = Counter()
    for row in votes:
        labels = list(row)
        given = len(labels)
        if given < 2:
            continue
        rows += 1
        counts = Counter(labels)
        same = sum(count * count for count in counts.values())
        pairs += given * (given - 1) // 2
        equal += (same - given) // 2
        apart += (given * given - same) / (given - 1)
        totals.update(counts)
    if not rows:
        return Agreement(0, 0, None, None)
    everything = totals.total()
    expected = everything * everything - sum(count * count for count in totals.values())
    alpha = 1 - (everything - 1) * apart / expected if expected else None
    return Agreement(rows, pairs, equal / pairs, alpha)
