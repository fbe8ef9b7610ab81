"""`labelwise select`: choose rows from arrays in files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from labelwise.cli.interrupted import Stopped

if TYPE_CHECKING:
    from labelwise.io.progress_bar import DelayedBar
    from labelwise.selection import Selection

MAX_MEMORY = "Memory limit of a selection, such as 4GB or 512MB. If it is too small, the error names one that works."
_FILE = "FILE.npy, FILE.npz[:NAME] or FILE.parquet[:COLUMN]"


def select(
    strategy: str = typer.Option(..., "--strategy", "-s", help="The strategy; see `labelwise strategies`."),
    k: int = typer.Option(..., "-k", "--k", help="How many rows to choose."),
    probs: str = typer.Option(None, metavar="FILE", help=f"Class probabilities (N, C): {_FILE}."),
    label_probs: str = typer.Option(None, metavar="FILE", help="Calibrated class probabilities (N, C)."),
    embedding: str = typer.Option(None, metavar="FILE", help="Embeddings or features (N, D)."),
    log_probs: str = typer.Option(None, metavar="FILE", help="Log class probabilities under K draws (N, K, C)."),
    grad_sqnorm: str = typer.Option(None, metavar="FILE", help="Squared lengths of the rows' loss gradients (N,)."),
    grad_dot: str = typer.Option(None, metavar="FILE", help="Their inner products with the labelled rows' sum (N,)."),
    duals: str = typer.Option(None, metavar="FILE", help="Predicted duals of the rows (N,)."),
    basis: str = typer.Option(None, metavar="FILE", help="Functions of the rows (N, P), for bss, leverage, volume."),
    ids: str = typer.Option(None, metavar="FILE", help="Ids of the rows, distinct integers (N,); default 0..N-1."),
    labelled_probs: str = typer.Option(None, metavar="FILE", help="Class probabilities of the labelled rows."),
    labelled_embedding: str = typer.Option(None, metavar="FILE", help="Embeddings of the labelled rows."),
    labelled_duals: str = typer.Option(None, metavar="FILE", help="Duals of the labelled rows (L,)."),
    labelled_y: str = typer.Option(None, metavar="FILE", help="Labels of the labelled rows (L,)."),
    seed: int = typer.Option(0, help="Random seed."),
    max_memory: str = typer.Option(None, metavar="SIZE", help=MAX_MEMORY),
    folder: Path = typer.Option(
        None,
        metavar="DIR",
        help="Checkpoint folder of a long selection; after an interruption the same command continues.",
    ),
    engine: str = typer.Option(None, metavar="ray", help="Run on a Ray cluster instead of in this process."),
    out: Path = typer.Option(
        None,
        metavar="FILE",
        help="Write the picks to .csv, .json or .npy (ids only). [dim]\\[default: printed as CSV][/]",
    ),
    force: bool = typer.Option(False, "--force", help="With --out: replace an existing file."),
) -> None:
    """Choose the rows worth labelling next, from arrays in files. Files in .npy form are memory-mapped.

    [bold]labelwise select --strategy badge -k 100 --probs p.npy --embedding h.npy --out picks.csv[/]
    """
    from labelwise.cli.files import file_of, read_array
    from labelwise.errors import ArgumentError, StoreError

    if out is not None and out.suffix not in (".csv", ".json", ".npy"):
        raise ArgumentError(f"--out {out}: expected a name ending in .csv, .json or .npy")
    files = {"probs": probs, "label_probs": label_probs, "embedding": embedding, "ids": ids}
    files |= {"log_probs": log_probs, "grad_sqnorm": grad_sqnorm, "grad_dot": grad_dot, "duals": duals}
    files |= {"basis": basis}
    labelled_files = {
        "probs": labelled_probs,
        "embedding": labelled_embedding,
        "duals": labelled_duals,
        "y": labelled_y,
    }
    for file in (*files.values(), *labelled_files.values()):
        if out is not None and file and out.exists() and file_of(file).exists() and out.samefile(file_of(file)):
            raise ArgumentError(f"--out {out}: this file is also an input. Choose another name")
    if out is not None and out.exists() and not force:
        raise StoreError(f"{out} already exists. Choose another file with --out, or replace it with --force")
    arrays = {name: read_array(name.replace("_", "-"), file) for name, file in files.items() if file}
    labelled = {name: read_array(f"labelled-{name}", file) for name, file in labelled_files.items() if file}

    from labelwise.arrays import select as choose
    from labelwise.io.progress_bar import DelayedBar

    rows = max((len(array) for array in arrays.values() if array.ndim), default=0)
    with DelayedBar(f"choosing {k:,} of {rows:,} rows by {strategy}", k) as bar, _resumable(folder, bar):
        picks = choose(
            strategy,
            k,
            probs=arrays.get("probs"),
            label_probs=arrays.get("label_probs"),
            embedding=arrays.get("embedding"),
            log_probs=arrays.get("log_probs"),
            grad_sqnorm=arrays.get("grad_sqnorm"),
            grad_dot=arrays.get("grad_dot"),
            duals=arrays.get("duals"),
            basis=arrays.get("basis"),
            ids=arrays.get("ids"),
            labelled=labelled or None,
            seed=seed,
            engine=engine,
            folder=folder,
            max_memory=max_memory,
            progress=bar,
        )
    if out is None:
        typer.echo(_csv(picks), nl=False)
        return
    _write(out, picks)
    typer.echo(f"{len(picks)} rows chosen by {strategy} -> {out}", err=True)
    for name, value in picks.notes.items():
        typer.echo(f"  {name}: {value}", err=True)


@contextmanager
def _resumable(folder: Path | None, bar: DelayedBar) -> Iterator[None]:
    """After Ctrl-C, print how far the selection was and how to continue. A refusal leaves no folder."""
    from labelwise.io.files import no_new_parents

    try:
        with no_new_parents(folder) if folder is not None else nullcontext():
            yield
    except KeyboardInterrupt:
        typer.echo(f"Stopped at {bar.done:,} of {bar.total:,}.", err=True)
        if folder is not None and (folder / "progress.json").exists():
            typer.echo(f"The same command continues from {folder}.", err=True)
        elif folder is not None:
            typer.echo(f"{folder} has no checkpoint yet; the same command starts from the beginning.", err=True)
        else:
            typer.echo("With --folder DIR, an interrupted selection can continue.", err=True)
        raise Stopped from None


def _write(out: Path, picks: Selection) -> None:
    from labelwise.io.files import write_bytes

    if out.suffix == ".npy":
        import numpy as np

        buffer = io.BytesIO()
        np.save(buffer, picks.ids)
        write_bytes(out, buffer.getvalue())
    elif out.suffix == ".json":
        content = {
            "ids": picks.ids.tolist(),
            "weights": picks.weights.tolist(),
            "scores": picks.scores.tolist(),
            "notes": dict(picks.notes),
        }
        write_bytes(out, json.dumps(content, indent=1).encode())
    else:
        write_bytes(out, _csv(picks).encode())


def _csv(picks: Selection) -> str:
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["id", "score", "weight"])
    table.writerows(zip(picks.ids.tolist(), picks.scores.tolist(), picks.weights.tolist()))
    return text.getvalue()
