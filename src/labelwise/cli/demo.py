"""`labelwise demo`: the main job on the handwritten digits that come with scikit-learn. No download."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from labelwise.bench.data.load import Data
    from labelwise.bench.suite.compare import Comparison
    from labelwise.stats.record import Record
    from labelwise.train import TorchLearner

RECIPES = "recommended"
RUNS = 28  # shared by the recipes: about a minute
PROTOCOL = {
    "Data": "handwritten digits of scikit-learn, 8 x 8 pixels, 10 classes: 1,438 rows to choose from, 359 test rows",
    "Model": "multi-layer perceptron 64-128-64-10, trained from new weights in each round (Adam, all labels, "
    "a learning rate that falls to zero)",
}
NEXT = (
    ("labelwise recommend --classes 10", "why this recipe, and what the others saved on other data"),
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
    seeds: int = typer.Option(
        None,
        min=1,
        help="Runs of each recipe, each with its own first labels. "
        "[dim]\\[default: 14 for one recipe and random, fewer for more, 5 at least][/]",
    ),
    recipes: str = typer.Option(RECIPES, help="Recipes to compare with random, separated by commas."),
    k: int = typer.Option(10, "-k", "--k", min=1, help="Labels of each round."),
    rounds: int = typer.Option(12, min=1, help="Rounds after the first labels."),
    label: bool = typer.Option(False, "--label", help="Label the digits yourself, in the browser."),
    port: int = typer.Option(8765, help="With --label: port of the page."),
    no_open: bool = typer.Option(False, "--no-open", help="With --label: do not open a browser."),
) -> None:
    """Compare the recommended recipe with random on 1,797 handwritten digits: a live display and a page of results.

    With --label you label the digits yourself, in a project as `labelwise label` makes one.
    """
    if label:
        _label(out, k, port, not no_open)
        return
    from rich.console import Console

    from labelwise.bench.data.load import load
    from labelwise.bench.suite.compare import Comparison
    from labelwise.cli.comparison import (
        Presentation,
        check_drawing,
        check_writable,
        parse_names,
        recommendation_for,
        recommended_for,
        show_progress,
        write_results,
    )
    from labelwise.errors import ArgumentError
    from labelwise.io.text import many
    from labelwise.stats.paired import LEAST

    check_drawing()
    data = load("digits")
    names = parse_names(recipes, lambda: recommended_for(data, _learner(), k))
    count = seeds or max(LEAST, RUNS // len(names))
    plan = Comparison(names, tuple(range(count)), start=10, k=k, n=rounds)
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
    if RECIPES in recipes:
        named = recommendation_for(data, _learner(), k).recipe
        chosen = recommended_for(data, _learner(), k)
        rather = "" if chosen == named else f"; {chosen} saved most in its records"
        console.print(f"[dim]{named} is what `labelwise recommend` names for this model and data{rather}.[/]")
    about = Presentation("Handwritten digits, small network", "accuracy", PROTOCOL, NEXT, resumable=False)
    records, stopped = show_progress(plan, _records(plan, data), console, about)
    write_results(plan, records, out, console, stopped, about)


def _records(plan: Comparison, data: Data) -> Iterator[Record]:
    import torch

    from labelwise.bench.suite.compare import compare

    torch.set_num_threads(1)  # products this small are faster on one thread
    return compare(plan, data, _learner, "mlp", "restart")


def _learner() -> TorchLearner:
    from labelwise.bench.models.networks import mlp
    from labelwise.train import TorchLearner

    return TorchLearner(mlp(64, 10))


def _label(out: Path, k: int, port: int, browser: bool) -> None:
    """The digits as image files, and the page to label them on."""
    from labelwise.cli.label import Page, check_page, create_project, open_project, serve_project, settings_of
    from labelwise.project.settings import default_folder, is_project

    folder, page = out / "digits", Page(port=port, browser=browser)
    where = default_folder(folder)
    check_page(page)
    if is_project(where):
        typer.echo(f"Opening the existing project {where}.")
        with closing(open_project(where)) as opened:
            serve_project(opened, page)
        return
    write_digits(folder)
    settings = settings_of(
        folder, where, ",".join("0123456789"), False, None, None, "pixels", max(k, 2), None, 1, 0.15, "", 0
    )
    with closing(create_project(where, settings)) as made:
        serve_project(made, page)


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
