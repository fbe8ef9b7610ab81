"""What the records of a run say of the certificate of its labels, and the error on the pool that it might predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from labelwise.bench.suite.curve import ON_POOL
from labelwise.stats.record import Record

Note = Callable[[Record], float | None]


def certificate_notes() -> dict[str, Note]:
    """The notes that might predict the error, by name; of the approximation ratio its distance from 1 on a log scale.

    A round has the certificate of its own fit. The ratio is that of the batch which this fit was trained on last, so it
    is looked up in the round before, see `with_ratio`.
    """
    return {
        "seen": lambda record: _certificate(record, "seen"),
        "unseen": lambda record: _certificate(record, "unseen"),
        "least eigenvalue": lambda record: _certificate(record, "eigenvalues", 0),
        "largest eigenvalue": lambda record: _certificate(record, "eigenvalues", 1),
        "effective sample size": lambda record: _certificate(record, "effective_sample_size"),
        "approximation ratio": lambda record: record.notes.get("ratio_before"),
        "distance of the ratio from 1": lambda record: _distance(record.notes.get("ratio_before")),
    }


def with_ratio(records: Sequence[Record]) -> list[Record]:
    """The records, each with the approximation ratio of the batch that was chosen in the round before."""
    ratio = {(one.run, one.round): one.notes.get("selection", {}).get("approximation_ratio") for one in records}
    return [
        Record(**{**vars(one), "notes": {**one.notes, "ratio_before": ratio.get((one.run, one.round - 1))}})
        for one in records
    ]


def _certificate(record: Record, name: str, place: int | None = None) -> float | None:
    found = record.notes.get("training", {}).get("certificate", {}).get(name)
    return found if found is None or place is None else found[place]


def pool_error(record: Record) -> float | None:
    """The error on all rows of the pool; None in a record that does not have it."""
    found = record.notes.get(ON_POOL, {})
    return 1 - found["accuracy"] if "accuracy" in found else found.get("rmse")


def _distance(ratio: float | None) -> float | None:
    return abs(math.log(ratio)) if ratio is not None and ratio > 0 else None
