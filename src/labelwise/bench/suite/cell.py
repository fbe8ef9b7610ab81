"""Cell: one run of a suite. Its first batch is drawn from the seed, the same for every strategy, also for those that
could choose one themselves; its records are kept as kept_runs.py says.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from labelwise import recipes, strategies
from labelwise.bench.data.features import key_of, prepared
from labelwise.bench.models.registry import learner_for, why_not
from labelwise.bench.suite.checkpoint import kept_rounds
from labelwise.bench.suite.curve import Curve, first_batch
from labelwise.bench.suite.oracle_curve import ADVICE, CANDIDATES, SWAPS, Search, best_batch
from labelwise.bench.suite.suite import Cell
from labelwise.errors import MemoryLimitError
from labelwise.io.sizes import format_size, parse_size
from labelwise.session import Session
from labelwise.stats.record import Record
from labelwise.stats.verdict import ORACLE
from labelwise.strategies import Random

RECORDS, CACHE = "records", "cache"
ROWS = {"cpu": 256, "cuda": 1024}  # of a forward pass: fewer leave an accelerator idle
_MEASURED = ("select_seconds", "train_seconds", "read_seconds", "peak_mb")  # what two equal runs may differ in


def run_cell(cell: Cell, run: Path, told: Callable[[Record], None] = lambda record: None) -> None:
    """Run what is left of a cell; `told` is called after each record is on disk."""
    with repeatable(cell.device):
        for record in kept_rounds(records_file(cell, run), partial(curve_of, cell, run), cell.data.rounds, cell.name):
            told(record)


def records_file(cell: Cell, run: Path) -> Path:
    """Where the records of a cell are inside the folder of a run."""
    return run / RECORDS / f"{cell.file}.jsonl"


def curve_of(cell: Cell, run: Path) -> Curve:
    """The curve of a cell; what is computed of the data is kept inside the folder of the run."""
    spec, device = cell.strategy, cell.device if cell.model.is_torch else "cpu"
    data = prepared(key_of(cell.data), run / CACHE, device)
    oracle = spec.name == ORACLE
    strategy = Random() if oracle else spec.strategy()
    learner = learner_for(cell.model, data, strategy, spec.weights, device)
    recipe = replace(recipes.get(strategy), name=spec.label) if oracle else spec.recipe()
    session = Session(
        data.pool,
        learner,
        recipe,
        classes=data.classes,
        task=data.task,
        seed=cell.seed,
        batch=ROWS[device],
        max_memory=cell.max_memory,
    )
    return Curve(
        cell.name,
        session,
        data,
        first_batch(data, cell.data.start, cell.seed),
        cell.data.k,
        cell.data.rounds,
        device=cell.device,
        goes_on=cell.model.is_torch and (recipe.restart is False or cell.model.parameters.get("restart") is False),
        choose=partial(best_batch, session, data, cell.data.k, _search(cell)) if oracle else None,
    )


def comparable(record: Record) -> dict[str, Any]:
    """What has to be equal in two runs on the same machine: all but times and memory."""
    values = {name: value for name, value in vars(record).items() if name not in _MEASURED}
    return {**values, "notes": {name: value for name, value in record.notes.items() if name != "memory"}}


def _search(cell: Cell) -> Search:
    """How the oracle searches here: with the advice that applies and is not left out."""
    fit = [name for name in ADVICE if why_not(cell.model, strategies.ALL[name](), cell.data.task) is None]
    given = cell.strategy.parameters
    return Search(
        tuple(name for name in fit if name not in cell.data.without),
        int(given.get("candidates", CANDIDATES)),
        int(given.get("swaps", SWAPS)),
    )


# A workspace of its own for each handle of cuBLAS: read when the first handle is made.
_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def repeatable(device: str) -> Iterator[None]:
    """Within, cuDNN and cuBLAS take kernels that give the same bits each time; the CPU's do so anyway."""
    if device == "cpu":
        yield
        return
    os.environ.setdefault(*_CUBLAS)
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before


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
