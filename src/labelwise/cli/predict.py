"""`labelwise predict`: what the model of a project says about every row; `labelwise model`: the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labelwise.cli.command import echo_faults

if TYPE_CHECKING:
    from labelwise.project.predict.predictions import Predictions


def predict(
    project: Path = typer.Argument(..., help="The project folder."),
    to: Path = typer.Option(..., "--to", metavar="FILE", help="The .csv or .parquet file to write."),
    on: Path = typer.Option(
        None, metavar="PATH", help="Predict these rows instead: a table with the same columns, or a folder of images."
    ),
    max_error: str = typer.Option("2%", metavar="SHARE", help="Share of wrong labels among those accepted."),
    encoder: str = typer.Option(None, help="Name the encoder again, where it is your own code and --on needs it."),
    force: bool = typer.Option(False, "--force", help="Replace an existing file."),
) -> None:
    """Predict a class and its calibrated probability, or a number, for every row.

    [bold]labelwise predict photos-labelwise --to predictions.csv --max-error 2%[/]
    [bold]labelwise predict reviews-labelwise --on new.csv --to new-predictions.csv[/]

    The column "accept" says "yes" where the label can be taken from the model at this share of errors, "no" where a
    person should look, and nothing where a person has answered.
    """
    from contextlib import closing

    from labelwise.io.files import write_bytes
    from labelwise.project import Project
    from labelwise.project.exchange.columns import csv_of, parquet_of
    from labelwise.project.exchange.export import check_file
    from labelwise.project.exchange.tables import predictions_columns
    from labelwise.project.predict.predictions import check_max_error
    from labelwise.project.predict.predictions import predict as found_by

    share = check_max_error(max_error)
    _check_ending(to)
    with closing(Project.open(project)) as opened:
        check_file(opened, to, force)
        found = found_by(opened, on, share, encoder)
        columns = found.columns() if on is not None else predictions_columns(opened, found)
    numbers = ("label", "prediction") if found.accepted is None else ()
    columns["label"] = (
        [None if one is None else float(one) for one in columns["label"]] if numbers else columns["label"]
    )
    content = csv_of(columns).encode("utf-8") if to.suffix.lower() == ".csv" else parquet_of(columns, numbers)
    write_bytes(to, content)
    typer.echo(f"{len(found.ids):,} predictions written to {to}.")
    for line in summary(found, share):
        typer.echo(f"  {line}")
    echo_faults("not predicted", found.faults)


def model(
    project: Path = typer.Argument(..., help="The project folder."),
    to: Path = typer.Option(..., "--to", metavar="DIR", help="The folder to write."),
    force: bool = typer.Option(False, "--force", help="Replace a model in that folder."),
) -> None:
    """Write the model of a project to a folder, with a script that predicts new rows.

    [bold]labelwise model photos-labelwise --to photos-model[/]
    [bold]python photos-model/predict.py new-photos > predictions.csv[/]

    The folder has numbers (model.npz), names (model.json) and a script of ten lines; no pickle.
    """
    import os
    from contextlib import closing

    from labelwise.errors import ArgumentError
    from labelwise.project import Project
    from labelwise.project.predict.saved_model import model_files, write_model_folder
    from labelwise.project.predict.trained import train

    if (os.path.realpath(to) + os.sep).startswith(os.path.realpath(project) + os.sep):
        raise ArgumentError(f"--to {to}: the files in {project} belong to the project. Choose another folder")
    with closing(Project.open(project)) as opened:
        trained, held_out = train(opened)
        write_model_folder(to, model_files(opened.settings.name, trained, held_out), force)
    typer.echo(f"Model: {to}, trained on {trained.labels:,} labels. Use it: python {to / 'predict.py'} NEW")


def summary(found: Predictions, share: float) -> list[str]:
    """What is known of the predictions, in words."""
    from labelwise.project.predict.sentences import accepted_sentences, margin_sentence

    return [margin_sentence(found)] if found.accepted is None else accepted_sentences(found, share)


def _check_ending(to: Path) -> None:
    from labelwise.errors import ArgumentError

    if to.suffix.lower() not in (".csv", ".parquet", ".pq"):
        raise ArgumentError(f"--to {to}: expected a file that ends in .csv or .parquet, found {to.suffix!r}")
