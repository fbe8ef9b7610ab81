"""`labelwise simulate`: compare strategies with random on a table whose labels are known."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from labelwise.cli.comparison import ENOUGH
from labelwise.cli.select import MAX_MEMORY

if TYPE_CHECKING:
    from rich.console import Console

    from labelwise.bench.data.load import Data
    from labelwise.bench.data.own_table import OwnTable
    from labelwise.bench.suite.compare import Comparison
    from labelwise.stats.record import Record

TASKS: dict[str, Literal["classify", "regress"] | None] = {
    "auto": None,
    "regression": "regress",
    "classification": "classify",
}
DEFAULTS = {"classify": "random,margin,badge,typiclust", "regress": "random,kcenter,typiclust,bait"}
HIDDEN = (64, 64)
NEXT = (
    (
        "the same command with --seeds 20",
        "more seeds, narrower intervals; finished runs are not repeated",
    ),
    ("labelwise strategies", "other strategies to compare"),
)


def simulate(
    table: Path = typer.Argument(..., metavar="TABLE", help="A .csv, .tsv or .parquet file with names of columns."),
    target: str = typer.Option(..., metavar="COLUMN", help="The column to predict: classes or numbers."),
    task: str = typer.Option("auto", help="regression, classification, or auto: by what the target looks like."),
    features: str = typer.Option(None, metavar="a,b,c", help="Columns to learn from; all usable ones by default."),
    group: str = typer.Option(
        None, metavar="COLUMN", help="Rows with the same value here stay together, such as those of one person."
    ),
    strategies: str = typer.Option(
        None,
        help="Strategies to compare, separated by commas; random is always included. "
        "[dim]\\[default: margin,badge,typiclust for classes, kcenter,typiclust,bait for numbers][/]",
    ),
    rounds: int = typer.Option(10, min=1, help="Rounds after the first labels."),
    k: int = typer.Option(20, "-k", "--k", min=1, help="Labels of each round."),
    start: int = typer.Option(
        None,
        min=2,
        help="Labels of the first batch; as many as -k by default. Random, unless the strategy (typiclust) chooses it.",
    ),
    seeds: int = typer.Option(
        None, min=1, help=f"Runs of each strategy, each with its own split and first labels. {ENOUGH}"
    ),
    test: float = typer.Option(0.2, help="Share of the rows (of the groups) to test on."),
    max_memory: str = typer.Option(None, metavar="SIZE", help=MAX_MEMORY),
    out: Path = typer.Option(
        Path("labelwise-simulate"), help="Folder for page, picture and records; a stopped run continues there."
    ),
) -> None:
    """Find out on your own labelled table whether choosing labels beats random, and by how much.

    [bold]labelwise simulate houses.csv --target price --strategies kcenter,ally --rounds 10 -k 20[/]

    The known labels are hidden and revealed batch by batch, as if people gave them. After each batch a small network is
    trained from new weights and measured on test rows. The page shows what each strategy saved, with a 95 % interval.
    If you stop it with Ctrl-C, the same command continues from the last finished round.
    """
    import torch
    from rich.console import Console

    from labelwise.bench.data.own_table import read_own
    from labelwise.bench.suite.compare import Comparison, ComparisonSetup, comparison_folder, continue_comparison
    from labelwise.bench.suite.job import check_curves
    from labelwise.cli.comparison import (
        Presentation,
        check_drawing,
        check_writable,
        default_seeds,
        parse_names,
        show_progress,
        write_results,
    )
    from labelwise.errors import ArgumentError

    if task not in TASKS:
        raise ArgumentError(f"--task is {', '.join(TASKS)}, not {task!r}")
    if not 0 < test < 1:
        raise ArgumentError(f"--test is a share above 0 and below 1, not {test}")
    check_drawing()
    wanted = [one.strip() for one in features.split(",") if one.strip()] if features else None
    own = read_own(table, target, task=TASKS[task], features=wanted, group=group)
    names = parse_names(strategies or DEFAULTS[own.task])
    plan = Comparison(names, tuple(range(seeds or default_seeds(names))), start=start or k, k=k, n=rounds)
    rows = own.data(0, test)
    _check_plan(plan, rows, min(int((~own.test_rows(seed, test)).sum()) for seed in plan.seeds))
    check_writable(out)
    setup = ComparisonSetup(lambda seed: own.data(seed, test), learner_for, "mlp", max_memory)
    check_curves(max_memory, (setup.curve(plan, name, 0, rows) for name in plan.recipes))
    console = Console()
    others = ("r2",) if own.task == "regress" else ()
    protocol = _protocol(own, rows, group)
    about = Presentation(f"{table.name}: learning {target}", own.metric, protocol, NEXT, resumable=True, others=others)
    torch.set_num_threads(1)  # products this small are faster on one thread
    with comparison_folder(out, _settings(table, own, plan, test, group)) as resumed:
        _introduce(console, own, rows, plan, resumed)
        records, stopped = show_progress(plan, continue_comparison(plan, setup, out), console, about)
        _warn(console, own, plan, records)
        write_results(plan, records, out, console, stopped, about)


def learner_for(data: Data, recipe: str) -> Any:
    """A small perceptron for these rows, with draws of its last layer for strategies that need them."""
    from labelwise.bench.models.networks import mlp
    from labelwise.recipes import get
    from labelwise.signals.spec import LogProbs
    from labelwise.train import TorchLearner
    from labelwise.train.laplace import laplace

    inputs = int(data.pool.inputs(data.pool.ids[:1]).shape[1])
    number = data.task == "regress"
    learner = TorchLearner(
        mlp(inputs, 1 if number else len(data.classes or ()), HIDDEN),
        lr=3e-3,
        holdout=0.15,
        holdout_from=60,
        loss="mse" if number else "cross_entropy",
    )
    drawn = any(isinstance(signal, LogProbs) for signal in get(recipe).strategy.needs.pool)
    return laplace(learner) if drawn and not number else learner


def _check_plan(plan: Comparison, data: Data, free: int) -> None:
    """Raise before the first run if a later one cannot run."""
    from labelwise.errors import BudgetError
    from labelwise.recipes import get

    for name in plan.recipes:
        recipe = get(name)
        recipe = recipe.for_regression() if data.task == "regress" else recipe
        recipe.learner(learner_for(data, name))
    needed = plan.start + plan.n * plan.k
    if needed > free:
        most = max(0, (free - plan.start) // plan.k)
        raise BudgetError(
            f"{plan.start} first labels and {plan.n} rounds of {plan.k} need {needed} labels, but there are only "
            f"{free} rows to choose from; use {f'at most --rounds {most}, or ' if most else ''}a smaller -k"
        )


def _settings(table: Path, own: OwnTable, plan: Comparison, test: float, group: str | None) -> dict[str, Any]:
    """The settings that must be the same to continue a stopped run; seeds and strategies may change."""
    import hashlib

    return {
        "table": table.name,
        "content": hashlib.sha256(table.read_bytes()).hexdigest()[:16],
        "target": own.target,
        "task": own.task,
        "features": [*own.numeric, *own.categories],
        "encoder": "columns",  # as in a labelling project; runs with other features are not mixed with these
        "group": group,
        "test": test,
        "start": plan.start,
        "k": plan.k,
        "rounds": plan.n,
    }


def _introduce(console: Console, own: OwnTable, data: Data, plan: Comparison, resumed: bool) -> None:
    from labelwise.io.text import many

    what = f"{len(own.classes)} classes" if own.classes else "numbers"
    kinds = ((own.numeric, "numeric column"), (own.categories, "categorical column"))
    columns = " and ".join(many(len(names), kind) for names, kind in kinds if names)
    console.print(
        f"[bold]Labelwise simulate[/]: {_plain(own.target)} ({what}) from {columns}; {len(data.pool)} rows to "
        f"choose from, {len(data.test)} to test on.",
        highlight=False,
    )
    for note in own.notes:
        console.print(f"  [yellow]note:[/] {_plain(note)}", highlight=False, soft_wrap=True)
    last = plan.start + plan.n * plan.k
    on = " Continuing the runs in the folder." if resumed else ""
    seeds = many(len(plan.seeds), "seed")
    console.print(f"{', '.join(plan.recipes)}: {seeds} each, {plan.start} to {last} labels.{on}", highlight=False)


def _warn(console: Console, own: OwnTable, plan: Comparison, records: list[Record]) -> None:
    """Print a note if no model learns anything, because labels saved then mean nothing."""
    import numpy as np

    from labelwise.stats.summary import no_learning_warning

    last = [record for record in records if record.round == plan.n]
    if not last:
        return
    if own.task == "regress":
        said = no_learning_warning(last)
    else:
        common = float(np.bincount(own.answers).max() / len(own.answers))
        best = max(float(np.mean([r.metrics["accuracy"] for r in last if r.strategy == s])) for s in _of(last))
        said = (
            f"No model here predicts better than the most common class ({common:.1%} right), even at the last "
            "label count, so the results below mean little."
        )
        said = said if best <= common else ""
    if said:
        more = "More labels or other features may change that."
        console.print(f"[yellow]note:[/] {said} {more}", highlight=False)


def _of(records: list[Record]) -> set[str]:
    return {record.strategy for record in records}


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _protocol(own: OwnTable, data: Data, group: str | None) -> dict[str, str]:
    inputs = int(data.pool.inputs(data.pool.ids[:1]).shape[1])
    widths = "-".join(map(str, (inputs, *HIDDEN, len(own.classes) if own.classes else 1)))
    aside = "rows" if group is None else f"values of {group}, so that no {group} is in both parts"
    return {
        "Data": f"{own.name}: {len(own.rows)} rows; {len(data.pool)} to choose from and {len(data.test)} to test on in "
        f"the first seed. Each seed takes other {aside} as test rows",
        "Target": f"{own.target}: " + (f"classes {', '.join(own.classes[:20])}" if own.classes else "numbers"),
        "Features": ", ".join([*own.numeric, *own.categories]),
        "Notes": "; ".join(own.notes) or "nothing was left out or missing",
        "Model": f"multi-layer perceptron {widths}, trained from new weights in each round (Adam; from 60 labels on, "
        "15 % held out for early stopping). A recipe that trains differently (ally) holds out no rows",
    }
