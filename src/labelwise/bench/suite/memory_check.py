"""Limits: whether `max_memory` is enough for every run, told before the first of them begins."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from labelwise.bench.suite.cell import curve_of
from labelwise.bench.suite.curve import Curve
from labelwise.bench.suite.suite import Cell
from labelwise.errors import MemoryLimitError
from labelwise.io.sizes import format_size, parse_size

_NAMED = 5  # runs that an error names


def check_curves(limit: int | str | None, curves: Iterable[Curve]) -> None:
    """Raise where the limit is too small for one of these curves, with the smallest that works for all of them.

    The curves are not to be walked after that.
    """
    allowed = parse_size(limit)
    if allowed is None:
        return
    short: dict[str, int] = {}
    enough = 0
    for curve in curves:
        try:
            curve.check_memory()
            enough += 1
        except MemoryLimitError as error:
            short[curve.name.rpartition("/")[0]] = error.smallest
    if short:
        least = max(short.values())
        named = [f"{name} needs {format_size(size)}" for name, size in sorted(short.items(), key=lambda one: -one[1])]
        more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
        raise MemoryLimitError(
            f"max_memory is {format_size(allowed)}, too small for {len(short)} of {len(short) + enough} runs: "
            f"{', '.join(named[:_NAMED])}{more}. Allow {format_size(least)} or more, or leave those out",
            least,
        )


def check_cells(cells: Iterable[Cell], run: Path) -> None:
    """`check_curves` for cells, one of each data set, model and strategy, with models trained for one epoch alone."""
    one_each = {(cell.data.label, cell.model.name, cell.strategy.label): cell for cell in cells if cell.max_memory}
    limit = next((cell.max_memory for cell in one_each.values()), None)
    check_curves(limit, (curve_of(_quick(cell), run) for cell in one_each.values()))


def _quick(cell: Cell) -> Cell:
    """A cell whose rows are as large as those of this one, and whose training takes no time."""
    model = cell.model
    if model.is_torch:
        model = replace(model, parameters={**model.parameters, "epochs": 1})
    return replace(cell, device="cpu", model=model)
