"""`labelwise recommend`: the recipe for a situation, with the numbers behind it."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from labelwise.cli.select import MAX_MEMORY

if TYPE_CHECKING:
    from rich.console import Console

    from labelwise.recommend import Choice, Findings, Recommendation, Situation

MODELS = {"network": "network", "linear": "network", "trees": "trees", "none": "none"}
TABLE_ROWS = 8  # strategies of the table, and more where more can be recommended
TASKS = {"classification": "classify", "regression": "regress"}


def recommend(
    data: Path = typer.Argument(
        None, metavar="DATA", help="A labelling project, a table (with --label) or a folder of images."
    ),
    label: str = typer.Option(
        None, metavar="COLUMN", help="The column of the table with the labels; it may have gaps."
    ),
    model: str = typer.Option("network", help="What is trained: network, linear, trees (forests, boosting) or none."),
    task: str = typer.Option(None, help="classification or regression. [dim]\\[default: by the data][/]"),
    classes: int = typer.Option(None, min=2, help="Number of classes."),
    labels: int = typer.Option(None, min=0, help="Rows labelled so far."),
    rows: int = typer.Option(None, min=1, help="Rows to choose from; decides what takes too long."),
    width: int = typer.Option(None, min=1, help="Numbers of an embedding. [dim]\\[default: 512][/]"),
    k: int = typer.Option(100, "-k", "--k", min=1, help="Rows of a batch."),
    max_memory: str = typer.Option(None, metavar="SIZE", help=MAX_MEMORY),
    as_json: bool = typer.Option(False, "--json", help="Print JSON for other programs."),
) -> None:
    """Name the recipe for a situation: the one that recipe="recommended" takes, why, and the alternatives.

    [bold]labelwise recommend --model trees --classes 7[/]
    [bold]labelwise recommend reviews.csv --label stars[/]
    [bold]labelwise recommend photos-labelwise[/]

    What you give replaces what is read from the data. The rule and the records: docs/recommend.md.
    """
    from labelwise.errors import ArgumentError
    from labelwise.io.sizes import parse_size
    from labelwise.recommend import Situation
    from labelwise.recommend import recommend as find

    for what, value, known in (("--model", model, MODELS), ("--task", task, TASKS)):
        if value is not None and value not in known:
            raise ArgumentError(f"{what} is one of {', '.join(known)}, not {value!r}")
    found, name = Situation(), ""
    if data is not None:
        found, name = _situation_of(data, label)
    elif label is not None:
        raise ArgumentError("--label names a column of a table: labelwise recommend TABLE --label COLUMN")
    given: dict[str, Any] = {"classes": classes, "labels": labels, "rows": rows, "width": width}
    given |= {"task": None if task is None else TASKS[task], "max_memory": parse_size(max_memory)}
    chosen = {key: value for key, value in given.items() if value is not None}
    kind: Any = MODELS[model]
    found = replace(found, model=kind, k=k, **chosen)
    if found.task == "regress":
        found = replace(found, classes=None)
    recommendation = find(found)
    if as_json:
        typer.echo(json.dumps(_values(recommendation), indent=1, ensure_ascii=False))
        return
    _show(recommendation, name)


def _situation_of(data: Path, label: str | None) -> tuple[Situation, str]:
    """What a project, a table or a folder of images says, and how to call it."""
    from labelwise.errors import ArgumentError
    from labelwise.io.tables import is_table
    from labelwise.pool.sources.images import image_names
    from labelwise.project.settings import is_project
    from labelwise.recommend import Situation

    if not data.exists():
        raise ArgumentError(f"{data}: a project, a table or a folder of images was expected, nothing was found there")
    if is_project(data):
        return _of_project(data), f"project {data}"
    if data.is_dir():
        count = len(image_names(data))
        if not count:
            raise ArgumentError(f"{data}: a project, a table or a folder of images was expected, found no image")
        return Situation(rows=count), str(data)
    if not is_table(data):
        raise ArgumentError(f"{data}: a project, a .csv, .tsv or .parquet file or a folder of images was expected")
    if label is None:
        raise ArgumentError(f"{data}: name the column with the labels: --label COLUMN")
    return _of_table(data, label), data.name


def _of_project(folder: Path) -> Situation:
    from contextlib import closing

    from labelwise.project import Project
    from labelwise.recommend import Situation

    with closing(Project.open(folder)) as project:
        project.require_one_label("labelwise recommend")
        settings, done = project.settings, project.store.progress()
        return Situation(
            task="regress" if settings.task == "regress" else "classify",
            classes=len(project.store.classes()) or None,
            labels=done.labels,
            rows=max(1, len(project.pool) - done.labels),
            width=project.feature_info.width,
        )


def _of_table(path: Path, label: str) -> Situation:
    from labelwise.bench.data.own_table import read_own
    from labelwise.io.tables import check_columns, column_names, read_table, texts
    from labelwise.recommend import Situation

    check_columns(path, [label], column_names(path))
    table = read_table(path)
    if not any(texts(table.columns[label])):
        return Situation(rows=len(table), width=max(1, len(table.columns) - 1))
    own = read_own(path, label)
    pool = own.data(0, 0.2).pool
    return Situation(
        task=own.task,
        classes=len(own.classes) if own.classes else None,
        labels=len(own.answers),
        rows=max(1, len(table) - len(own.answers)),
        width=int(pool.inputs(pool.ids[:1]).shape[1]),
    )


def _values(found: Recommendation) -> dict[str, Any]:
    from labelwise.recommend import read_findings

    def of(choice: Choice) -> dict[str, Any]:
        findings = read_findings().get(choice.situation)
        return {
            "strategy": choice.strategy,
            "why": choice.why,
            "passed_over": dict(choice.passed_over),
            "findings": None if findings is None else asdict(findings),
        }

    situation = {key: value for key, value in asdict(found.situation).items() if key not in ("signals", "labelled")}
    return {
        "recipe": found.recipe,
        "situation": {"name": found.situation.name, **situation},
        "start": of(found.start),
        "then": of(found.then),
    }


def _show(found: Recommendation, name: str) -> None:
    from rich.console import Console

    from labelwise.io.text import many
    from labelwise.recommend import read_findings
    from labelwise.recommend.situation import SITUATIONS, confirmation

    console, here = Console(), found.situation
    facts = [
        many(here.classes, "class") if here.classes else "",
        f"{many(here.rows, 'row')} to choose from" if here.rows else "",
        f"{here.labels:,} labelled" if here.labels else "nothing labelled yet",
    ]
    console.print(f"[bold]{found.recipe}[/]  is recommended for {SITUATIONS[here.name]}.", highlight=False)
    console.print(f"[dim]{name + ': ' if name else ''}{', '.join(fact for fact in facts if fact)}[/]", highlight=False)
    console.print()
    if not here.labels:
        console.print(f"[bold]First batch[/]  {found.start.why}", highlight=False)
    console.print(f"[bold]{'Then' if not here.labels else 'Next batch'}[/]  {found.then.why}", highlight=False)
    for choice in ((found.start,) if not here.labels else ()) + (found.then,):
        for strategy, reason in choice.passed_over:
            console.print(f"  not {strategy}: {reason}", highlight=False)
    findings = read_findings().get(found.then.situation)
    again = None if findings is None else findings.confirmed
    if again is not None and again.tried.strategy == found.recipe:
        console.print(f"[bold]Confirmed[/]  {confirmation(again)}.", highlight=False)
    if findings is not None:
        _alternatives(console, findings, found.then)
    console.print(f'Use it: lw.Session(pool, model, "recommended"), or by name: "{found.recipe}"', highlight=False)


def _alternatives(console: Console, findings: Findings, choice: Choice) -> None:
    """The table of all strategies in the records that decided."""
    from rich import box
    from rich.table import Table

    from labelwise.io.text import many, percent
    from labelwise.recommend.findings import why_not

    sets = len(findings.sets)
    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    for title in ("strategy", "saved", "range", "better", "below", "lower", "why not"):
        table.add_column(title, justify="left" if title in ("strategy", "why not") else "right")
    passed = dict(choice.passed_over)
    eligible = [one for one in findings.tried if not why_not(one, sets)]
    listed = findings.tried[: max(TABLE_ROWS, *(1 + findings.tried.index(one) for one in eligible), 0)]
    for one in listed:
        reason = passed.get(one.strategy) or why_not(one, sets)
        table.add_row(
            f"[bold]{one.strategy}[/]" if one.strategy == choice.strategy else one.strategy,
            percent(one.saved),
            f"{percent(one.low)} to {percent(one.high)}",
            str(one.better),
            str(one.below),
            str(one.lower),
            "" if one.strategy == choice.strategy else reason or "saves less",
        )
    console.print(table)
    if len(listed) < len(findings.tried):
        rest = ", ".join(one.strategy for one in findings.tried[len(listed) :])
        console.print(f"[dim]{rest}: less; --json has them all.[/]", highlight=False)
    console.print(
        f"[dim]saved, range[/] labels saved against random: median and range over {many(sets, findings.unit)}\n"
        "[dim]better[/]       on how many better than random after Holm's correction\n"
        "[dim]below[/]        on how many worse by the single test; must be 0\n"
        "[dim]lower[/]        on how many the mean area is lower, also within the noise\n"
        f"{many(findings.seeds, 'seed')} each; records: {', '.join(findings.records)}",
        highlight=False,
    )
    for model, rule in findings.training.items():
        console.print(f"Trained: {model} ({rule})", highlight=False)
    console.print()
