"""`labelwise demo`: the main job on the handwritten digits that come with scikit-learn. No download."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labelwise.cli.comparison import ENOUGH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from labelwise.bench.suite.compare import Comparison
    from labelwise.stats.record import Record

RECIPES = "random,margin,badge,typiclust"
PROTOCOL = {
    "Data": "handwritten digits of scikit-learn, 8 x 8 pixels, 10 classes: 1,438 rows to choose from, 359 test rows",
    "Model": "multi-layer perceptron 64-128-64-10, trained from new weights in each round (Adam, early stopping)",
}
NEXT = (
    ("labelwise strategies", "what each needs, costs and cites"),
    ("labelwise demo --recipes entropy,kcenter,probcover+badge --seeds 10", "another comparison"),
    ("labelwise simulate TABLE.csv --target COLUMN", "the same on your own table"),
    ("labelwise select --help", "choose rows from your own probabilities and embeddings"),
)
POOL = 1438  # rows of the digits to choose from


def demo(
    out: Path = typer.Option(
        Path("labelwise-demo"), help="Folder for page, picture and records; a full run replaces them."
    ),
    seeds: int = typer.Option(None, min=1, help=f"Runs of each recipe, each with its own first labels. {ENOUGH}"),
    recipes: str = typer.Option(RECIPES, help="Recipes to compare, separated by commas; random is always included."),
    k: int = typer.Option(10, "-k", min=1, help="Labels of each round."),
    rounds: int = typer.Option(12, min=1, help="Rounds after the first labels."),
    label: bool = typer.Option(False, "--label", help="Label the digits yourself, in the browser."),
    port: int = typer.Option(8765, help="With --label: port of the page."),
    no_open: bool = typer.Option(False, "--no-open", help="With --label: do not open a browser."),
) -> None:
    """Compare recipes on 1,797 handwritten digits, with a live display and a page of results.

    With --label you label the digits yourself, in a project as `labelwise label` makes one.
    """
    if label:
        _label(out, k, port, not no_open)
        return
    from rich.console import Console

    from labelwise.bench.suite.compare import Comparison
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
    from labelwise.io.text import many

    check_drawing()
    names = parse_names(recipes)
    plan = Comparison(names, tuple(range(seeds or default_seeds(names))), start=10, k=k, n=rounds)
    check_writable(out)
    if plan.start + plan.n * plan.k > POOL:
        raise ArgumentError(
            f"{plan.start} first labels and {plan.n} rounds of {plan.k} need more labels than the {POOL} rows to "
            "choose from"
        )
    console = Console()
    each = many(len(plan.seeds), "seed")
    console.print(
        f"[bold]Labelwise demo[/]: {', '.join(plan.recipes)} on handwritten digits, {each} each, "
        f"{plan.start} to {plan.start + plan.n * plan.k} labels."
    )
    about = Presentation("Handwritten digits, small network", "accuracy", PROTOCOL, NEXT, resumable=False)
    records, stopped = show_progress(plan, _records(plan), console, about)
    write_results(plan, records, out, console, stopped, about)


def _records(plan: Comparison) -> Iterator[Record]:
    import torch

    from labelwise.bench.data.load import load
    from labelwise.bench.models.networks import mlp
    from labelwise.bench.suite.compare import compare
    from labelwise.train import TorchLearner

    torch.set_num_threads(1)  # products this small are faster on one thread
    data = load("digits")
    return compare(plan, data, lambda: TorchLearner(mlp(64, 10)), "mlp")


def _label(out: Path, k: int, port: int, browser: bool) -> None:
    """The digits as image files, and the page to label them on."""
    from labelwise.cli.label import create_project, default_folder, serve_project, settings_of
    from labelwise.project.settings import is_project

    folder = out / "digits"
    where = default_folder(folder)
    if is_project(where):
        typer.echo(f"Opening the existing project {where}.")
        serve_project(where, "127.0.0.1", port, None, browser, [])
        return
    write_digits(folder)
    settings = settings_of(
        folder, where, ",".join("0123456789"), False, None, None, "pixels", max(k, 2), None, 1, 0.15, "", 0
    )
    serve_project(create_project(where, settings), "127.0.0.1", port, None, browser, [])


def write_digits(folder: Path) -> None:
    """Write the digits of scikit-learn as PNG files, except those that exist."""
    from labelwise.errors import extra

    try:
        import numpy as np
        from PIL import Image
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise extra(str(error.name), "app") from None
    folder.mkdir(parents=True, exist_ok=True)
    for number, image in enumerate(load_digits().images):
        path = folder / f"{number:04d}.png"
        if not path.is_file():
            Image.fromarray(np.round(image * 255 / 16).astype(np.uint8)).save(path)
