"""The `labelwise` command. Slow imports such as torch are inside the commands, so that --help answers at once."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import typer

from labelwise.cli import (
    annotators,
    backup,
    bench,
    demo,
    doctor,
    export,
    import_,
    label,
    label_studio,
    labels_needed,
    predict,
    recommend,
    report,
    reproduce,
    select,
    simulate,
    status,
    strategies,
    verify,
)
from labelwise.cli.command import App
from labelwise.cli.interrupted import CODE, Stopped

app = App("Choose which rows of an unlabelled pool are worth labelling, and show what was saved.", "labelwise")
app.command("demo")(demo.demo)
app.command("label")(label.label)
app.command("status")(status.status)
app.command("resume")(label.resume)
app.add_typer(annotators.app, name="annotators")
app.command("doctor")(doctor.doctor)
app.command("backup")(backup.backup)
app.command("restore")(backup.restore)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("predict")(predict.predict)
app.command("model")(predict.model)
app.command("import")(import_.import_)
app.add_typer(label_studio.app, name="label-studio")
app.command("simulate")(simulate.simulate)
app.command("recommend")(recommend.recommend)
app.command("strategies")(strategies.strategies)
app.command("select")(select.select)
app.command("labels-needed")(labels_needed.labels_needed)
app.command("reproduce")(reproduce.reproduce)
app.command("verify")(verify.verify)
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def _version(version: bool = typer.Option(False, "--version", help="Print the version and exit.")) -> None:
    if version:
        from labelwise import __version__

        typer.echo(__version__)
        raise typer.Exit


def _show_warning(others: Callable[..., None], message: Warning | str, category: type[Warning], *where: Any) -> None:
    """Print a warning of Labelwise on one line, without its place in the code."""
    if category.__module__.startswith("labelwise."):
        typer.secho("warning: ", fg="yellow", bold=True, err=True, nl=False)
        typer.echo(str(message), err=True)
    else:
        others(message, category, *where)


def main() -> None:
    """Run the command line. An error of Labelwise is one message, not a traceback."""
    from labelwise.errors import LabelwiseError

    warnings.showwarning = functools.partial(_show_warning, warnings.showwarning)
    try:
        app()
    except LabelwiseError as error:
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(str(error), err=True)
        sys.exit(1)
    except OSError as error:
        typer.secho("error: ", fg="red", bold=True, err=True, nl=False)
        typer.echo(
            f"{error}. Check the disk space and the file, then run the command again; it continues if it can.",
            err=True,
        )
        sys.exit(1)
    except SystemExit as end:
        if end.code == CODE:
            if not isinstance(end, Stopped):  # typer ends like this on Ctrl-C, without a message
                typer.secho("Stopped.", fg="yellow", err=True)
            # A Ctrl-C while Python executes a string, as it does to make a dataclass, sets a flag that makes
            # `python -m` die of the signal, whatever the exit code. Executing another string clears it.
            exec("")
        raise
