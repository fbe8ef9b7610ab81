"""What the page of a paper's table says of what was run: sizes and seeds of each sheet, where, and the seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from labelwise.io.text import many
from labelwise.reproduce.records import Ran
from labelwise.reproduce.tables import pool_rows, valid_rows


def sizes(ran: Sequence[Ran]) -> str:
    """What was run, a line for each sheet."""
    return "\n".join(
        f"- {one.sheet.name}: {one.sheet.data}, {pool_rows(one.sheet)} rows"
        + (f" ({valid_rows(one.sheet)} of them set aside)" if one.sheet.valid else "")
        + f", {one.sheet.start} first labels, {many(one.sheet.rounds, 'batch')} of {one.sheet.k}, {_seeds(one)}; "
        + f"{one.sheet.model.kind}: "
        + ", ".join(f"{name} {value}" for name, value in one.sheet.model.parameters.items() if value is not None)
        + _elsewhere(one, ran[0])
        for one in ran
    )


def fewer_seeds(ran: Sequence[Ran], papers: Mapping[str, int]) -> list[str]:
    """Sheets of which fewer seeds are shown than the paper has, in words; `papers` has its seeds by sheet."""
    return [
        f"{one.sheet.name}: {many(shown, 'seed')} where the paper has {papers[one.sheet.name]}."
        for one in ran
        if (shown := len({record.seed for record in one.records})) < papers[one.sheet.name]
    ]


def spent(seconds: Mapping[str, Any]) -> str:
    """The seconds of all runs."""
    return (
        f"All runs together: {seconds['train_seconds']} s of training, {seconds['read_seconds']} s of reading the "
        f"pool, {seconds['select_seconds']} s of choosing."
    )


def _seeds(one: Ran) -> str:
    """The seeds that are shown, by the records, and how many were asked for where that is more."""
    shown = len({record.seed for record in one.records})
    return many(shown, "seed") + (f" of {one.sheet.seeds}" if shown < one.sheet.seeds else "")


def _elsewhere(one: Ran, first: Ran) -> str:
    """In what a sheet was run otherwise than the first one, whose surroundings are at the end of the page."""
    usual, own = first.records[0].environment, one.records[0].environment
    changed = [f"{name} {value}" for name, value in own.items() if usual.get(name) != value and name != "seed"]
    return f"; with {', '.join(changed)}" if changed else ""
