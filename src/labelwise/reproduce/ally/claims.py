"""What the paper claims of ALLY's figures, tested by seed like the tables of the other papers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from labelwise.reproduce.verdicts import (
    Claim,
    Rows,
    above,
    among_two,
    best,
    claims_text,
    not_below,
    rising,
    stat_of,
)
from labelwise.stats.curves import learning_curves
from labelwise.stats.record import Record


def areas(row: str, records: list[Record], metric: str = "accuracy") -> Rows:
    """The mean over the rounds of each seed's curve, in per cent, by name."""
    curves = learning_curves(records, metric)
    return {row: {name: stat_of(100 * lines.values_ST.mean(1), lines.seeds) for name, lines in curves.items()}}


def baselines(data: str, batch: int, row: str, records: list[Record]) -> str:
    """Figure 2: who is ahead. The paper's words speak of some panels; of the others the least is asked.

    `row` is the data set that was run, which may stand in for the panel's.
    """
    if data == "mnist":
        claims = [above(row, name, "ally") for name in ("badge", "bait")]
    elif (data, batch) in (("svhn", 1000), ("cifar10", 200)):
        claims = [among_two(row, "ally")]
    else:
        claims = [above(row, "ally", "random")]
    return _judged(claims, areas(row, records), "mean accuracy over the rounds in per cent")


def regression(split: str, records: list[Record]) -> str:
    """Figure 3: ALLY ahead of random and core-set."""
    row = f"the split by {split}"
    claims = [above(row, "ally", name) for name in ("random", "kcenter")]
    return _judged(claims, areas(row, records, "r2"), "mean R² over the rounds in per cent")


def tightness(data: str, records: list[Record]) -> str:
    """Figure 4: a bound at about the loss without bounds works well, one that no loss reaches tells nothing."""
    rows, auto = areas(data, records), "epsilon=auto"
    claims = [above(data, auto, "epsilon=20.0"), best(data, (auto,), "all bounds on ")]
    return _judged(
        claims, rows, "mean accuracy over the rounds in per cent; auto is 1.15 times the loss without bounds"
    )


def clusters(data: str, names: Sequence[str], records: list[Record]) -> str:
    """Figure 6: the more clusters the better."""
    claim = rising("the more clusters the better", data, names)
    return _judged([claim], areas(data, records), "mean accuracy over the rounds in per cent")


def redundancy(ends: Rows, few: str, many: str) -> str:
    """Figure 5: copies cost entropy and ALLY with few clusters accuracy, and ALLY none; `ends` by name and copies."""
    claims = [not_below(name, (many,), few) if name == "ally" else above(name, few, many) for name in ends]
    return _judged(claims, ends, "accuracy at the last label count in per cent")


def labels_to_97(numbers: dict[str, Any]) -> str:
    """The labels to 97 % of the best last accuracy, which is the paper's measure; by name."""
    to = {name: curve["labels_to_97"] for name, curve in numbers.items()}
    listed = ", ".join(f"{name} {count:.0f}" for name, count in sorted(to.items(), key=_count) if count is not None)
    never = ", ".join(name for name, count in to.items() if count is None)
    level = 97 * max(curve["mean"][-1] for curve in numbers.values())
    text = f"Labels to 97 % of the best last accuracy, that is to {level:.1f} %, by the mean curves: {listed or 'none'}"
    return text + (f"; not reached by {never}." if never else ".")


def _count(item: tuple[str, float | None]) -> float:
    return float("inf") if item[1] is None else item[1]


def _judged(claims: Sequence[Claim], rows: Rows, what: str) -> str:
    text = claims_text(claims, rows, {})
    return f"The claims of the paper, tested by seed ({what}):\n\n{text}"
