"""`labelwise labels-needed`: the number of labels and rows that the theorem requires for an accuracy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from labelwise.strategies.leverage.whiten import Whitened
    from labelwise.theory.sample_complexity import Need


def labels_needed(
    embedding: str = typer.Option(
        ..., metavar="FILE", help="Embeddings or features (N, D): FILE.npy, .npz or .parquet."
    ),
    epsilon: float = typer.Option(0.1, help="Accuracy, above 0 and at most 1; the guarantee is relative to it."),
    rank: int = typer.Option(None, min=1, help="Largest number of functions. [dim]\\[default: all directions][/]"),
    tol: float = typer.Option(None, help="Ignore eigenvalues below this share of the largest."),
    inputs: int = typer.Option(
        None, min=2, help="Number of inputs of a two-layer network; also evaluates theorem 4.1."
    ),
    epsilon0: float = typer.Option(0.01, help="Error of the network's expansion, for theorem 4.1: below 1/10."),
    seed: int = typer.Option(0, help="Selects the rows on which rho is measured."),
) -> None:
    """How many labels are needed? The theorem's numbers for the measured dimension and condition number.

    [bold]labelwise labels-needed --embedding h.npy --epsilon 0.1[/]
    """
    from labelwise.cli.files import read_array
    from labelwise.theory import sample_complexity as theory

    array = read_array("embedding", embedding)
    basis = theory.measured(array, rank=rank, tol=tol, seed=seed)
    rho = basis.rho_holdout or 0.0
    found = theory.need(basis.rank, max(basis.condition_number, float(basis.rank)), epsilon, rho)
    for line in (*_measured(basis, len(array)), *_counts(found, len(array)), *_assumptions(found)):
        typer.echo(line)
    if inputs is not None:
        typer.echo("")
        for line in _network(inputs, found, epsilon0):
            typer.echo(line)
    typer.echo("")
    typer.echo(theory.advice(found, len(array)))


def _measured(basis: Whitened, rows: int) -> list[str]:
    fresh = "not measured (too few rows)" if basis.rho_holdout is None else f"{basis.rho_holdout:.3g}"
    return [
        "Measured",
        f"  rows                          {rows:,}",
        f"  functions (dimension d)       {basis.rank:,} of {basis.available:,} directions, a constant among them",
        f"  condition number K            {basis.condition_number:,.4g}  (the largest |v|^2; at least d)",
        f"  rho on rows held out          {fresh}",
        "",
    ]


def _counts(found: Need, rows: int) -> list[str]:
    good = "certain" if found.always_good else "not certain: it is for epsilon up to 0.122"
    return [
        f"Asked for by epsilon = {found.epsilon:g}",
        f"  labels                        {found.labels:,}  = 1.57 d (1 - g^2)/g^2",
        f"                                with g = sqrt(epsilon)/3 = {found.gamma:.4g}",
        f"  rows, order of the theorem    {found.pool_order:,}  = (1 + rho d)(K log d + K/epsilon)",
        "                                its constant is unknown, here 1",
        f"  rows, enough for certain      {found.pool_enough:,}  (independent rows, rho = 0); found {rows:,}",
        f"  a good output                 {good}",
        "",
    ]


def _assumptions(found: Need) -> list[str]:
    return [
        "Constants and assumptions",
        "  1.57 draws for d (1 - g^2)/g^2 is measured, the theorem says O(d/epsilon); C0 = 3 (Chen & Price 2019).",
        "  The fit is weighted least squares in the span of the d functions, compared with the best fit of the span.",
        "  Promise: the expected squared distance of the two is at most epsilon (1 + rho d) times the error of the",
        f"  best, here {found.excess:.3g}, if the output is good.",
        "  Rows enough for certain: the larger of K log(20 d)/0.0289 (matrix Chernoff, eigenvalues in [3/4, 5/4] with",
        "  probability 0.9) and 2 K/epsilon (definition 5.5).",
    ]


def _network(inputs: int, found: Need, epsilon0: float) -> list[str]:
    from labelwise.theory import sample_complexity as theory

    order = theory.smoothness(inputs, epsilon0)
    lines = [
        f"Theorem 4.1, a two-layer network of {inputs} inputs, |x| <= 1, epsilon0 = {epsilon0:g}",
        f"  The activation needs a continuous derivative of order C = {order:.4g}, at most",
        "  1: polynomials of lower degree, sin and cos have one; ReLU has none, and those of sigmoid, tanh and swish",
        "  exceed 1. epsilon has to be of the order of 1/log^3 d~ at most. K is taken from the rows above, rho as 0.",
    ]
    for one in theory.theorem_4_1(inputs, found.condition_number, found.epsilon, epsilon0):
        lines.append(f"  {one.reading}: d~ = {_large(one.dimension)}")
        lines.append(f"    labels {_large(one.labels)}, rows of the order of {_large(one.pool_order)}")
    return lines


def _large(number: int) -> str:
    return f"{number:,}" if number < 10**12 else f"10^{math.log10(number):.1f}"
