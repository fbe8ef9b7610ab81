"""Run one job of a suite: a data set, a model, a strategy and a seed.

The first batch is drawn from the seed and is the same for every strategy, even for those that could choose one
themselves; with `first_batch: own` each strategy chooses its own. Records go to a file as described in checkpoint.py.
Also here: checking before a run starts that its memory limit is enough, and making CUDA kernels deterministic.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from labelwise import recipes, strategies
from labelwise.bench.data.features import prepare_data, spec_to_json
from labelwise.bench.models.registry import learner_for, why_not
from labelwise.bench.suite.checkpoint import continue_run
from labelwise.bench.suite.curve import Curve, first_batch
from labelwise.bench.suite.oracle_curve import ADVISERS, CANDIDATES, SWAPS, Search, best_batch
from labelwise.bench.suite.suite import Job
from labelwise.errors import MemoryLimitError, TrainingWarning
from labelwise.io.sizes import format_size, parse_size
from labelwise.session import Session
from labelwise.stats.record import Record
from labelwise.stats.verdict import ORACLE
from labelwise.strategies import Random

RECORDS, CACHE = "records", "cache"
ROWS = {"cpu": 256, "cuda": 4096}  # of a forward pass: fewer leave an accelerator idle
_MEASURED = ("select_seconds", "train_seconds", "read_seconds", "peak_mb")  # may differ between equal runs


def run_job(job: Job, run: Path, on_record: Callable[[Record], None] = lambda record: None) -> None:
    """Run the remaining rounds of a job; call `on_record` after each record is on disk."""
    warnings.simplefilter("ignore", TrainingWarning)  # the records have it, and the report counts it
    with repeatable(job.device):
        for record in continue_run(records_file(job, run), partial(make_curve, job, run), job.data.rounds, job.name):
            on_record(record)


def records_file(job: Job, run: Path) -> Path:
    """The file with the records of a job, inside the folder of a run."""
    return run / RECORDS / f"{job.file}.jsonl"


def make_curve(job: Job, run: Path) -> Curve:
    """The learning curve of a job; features are cached inside the folder of the run."""
    spec, device = job.strategy, job.device if job.model.is_torch else "cpu"
    data = prepare_data(spec_to_json(job.data), run / CACHE, device)
    oracle = spec.name == ORACLE
    strategy = Random() if oracle else spec.strategy()
    learner = learner_for(job.model, data, strategy, device)
    recipe = replace(recipes.get(strategy), name=spec.label) if oracle else spec.recipe(job.own_start, job.training)
    session = Session(
        data.pool,
        learner,
        recipe,
        classes=data.classes,
        task=data.task,
        weights=spec.weights,
        seed=job.seed,
        batch=ROWS[device],
        max_memory=job.max_memory,
    )
    return Curve(
        job.name,
        session,
        data,
        job.data.start if job.own_start else first_batch(data, job.data.start, job.seed),
        job.data.k,
        job.data.rounds,
        device=job.device,
        continues_training=job.model.is_torch
        and (recipe.restart is False or job.model.parameters.get("restart") is False),
        choose=partial(best_batch, session, data, job.data.k, _search(job)) if oracle else None,
    )


def comparable(record: Record) -> dict[str, Any]:
    """What two runs on the same machine must have equal: all but times and memory."""
    values = {name: value for name, value in vars(record).items() if name not in _MEASURED}
    return {**values, "notes": {name: value for name, value in record.notes.items() if name != "memory"}}


def _search(job: Job) -> Search:
    """The search of the oracle, with the advisers that work with this model and that the suite does not exclude."""
    fit = [name for name in ADVISERS if why_not(job.model, strategies.ALL[name](), job.data.task) is None]
    given = job.strategy.parameters
    return Search(
        tuple(name for name in fit if name not in job.data.without),
        int(given.get("candidates", CANDIDATES)),
        int(given.get("swaps", SWAPS)),
    )


# cuBLAS reads this when it makes its first handle: a workspace for each handle makes it deterministic.
_CUBLAS = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


@contextmanager
def repeatable(device: str) -> Iterator[None]:
    """Make cuDNN and cuBLAS use deterministic kernels inside this context. CPU kernels are deterministic already."""
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
    """Check that a memory limit is enough for every curve. Do not run the curves afterwards.

    Raises:
        MemoryLimitError: the limit is too small for some of them; it names the smallest that is enough for all.
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
            f"{', '.join(named[:_NAMED])}{more}. Allow {format_size(least)} or more, or remove those strategies",
            least,
        )


def check_jobs(jobs: Iterable[Job], run: Path) -> None:
    """Check the memory limit of jobs: one of each data set, model and strategy, with models trained for one epoch."""
    one_each = {(job.data.label, job.model.name, job.strategy.label): job for job in jobs if job.max_memory}
    limit = next((job.max_memory for job in one_each.values()), None)
    check_curves(limit, (make_curve(_one_epoch(job), run) for job in one_each.values()))


def _one_epoch(job: Job) -> Job:
    """The job with rows of the same size, but hardly any training."""
    model = job.model
    if model.is_torch:
        model = replace(model, parameters={**model.parameters, "epochs": 1})
    return replace(job, device="cpu", model=model)
