"""`labelwise labels-needed`: the theorem's number of labels, a typical number next to it, and what they rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from labelwise.io.text import many

if TYPE_CHECKING:
    from torch import Tensor

    from labelwise.strategies.leverage.whiten import Whitened
    from labelwise.theory.measured_complexity import Procedure, Typical
    from labelwise.theory.sample_complexity import Need

MADE_UP_ROWS = 4000
SIMULATED_ROWS = 20_000  # at most: a larger pool is simulated on this number of its rows
NETWORKS = 20


def labels_needed(
    embedding: str = typer.Option(
        None,
        metavar="FILE",
        help="Embeddings or features (N, D): FILE.npy, .npz or .parquet. [dim]\\[default: made-up rows][/]",
    ),
    epsilon: float = typer.Option(0.1, help="Accuracy, above 0 and at most 1; the guarantee is relative to it."),
    rank: int = typer.Option(None, min=1, help="Largest number of functions. [dim]\\[default: all directions][/]"),
    tol: float = typer.Option(None, help="Ignore eigenvalues below this share of the largest."),
    basis: str = typer.Option("last_layer", help="last_layer, polynomial, random_features or tangent."),
    dimension: int = typer.Option(20, min=2, help="Number of functions of made-up rows; only without --embedding."),
    outputs: str = typer.Option(
        None, metavar="FILE", help="Outputs (N,) or (N, C) of your network on the same rows: how far is the basis?"
    ),
    activation: str = typer.Option(
        "relu", help="Of the two-layer networks that the basis is compared with, and of random_features and tangent."
    ),
    inputs: int = typer.Option(
        None, min=2, help="Number of inputs of a two-layer network; also evaluates theorem 4.1."
    ),
    epsilon0: float = typer.Option(0.01, help="Error of the network's expansion, for theorem 4.1: below 1/10."),
    runs: int = typer.Option(20, min=1, help="Number of simulated selections at each number of labels."),
    seconds: float = typer.Option(30.0, min=0.0, help="Time for simulations; 0 simulates nothing."),
    seed: int = typer.Option(0, help="Of the simulations, and of the rows on which rho is measured."),
) -> None:
    """How many labels are needed? The theorem's bound, and a typical number simulated on your rows.

    [bold]labelwise labels-needed --embedding h.npy --epsilon 0.1[/]
    """
    from labelwise.cli.files import read_array
    from labelwise.errors import ArgumentError
    from labelwise.signals.spec import Basis
    from labelwise.theory import sample_complexity as theory

    array = _made_up(dimension, seed) if embedding is None else read_array("embedding", embedding)
    given = None if outputs is None else read_array("outputs", outputs)
    if given is not None and (embedding is None or len(given) != len(array)):
        found_rows = "there is no --embedding" if embedding is None else f"--embedding has {len(array):,} rows"
        raise ArgumentError(f"--outputs: {len(given):,} rows were found, and {found_rows}; both need the same rows")
    signal = Basis(map=basis, activation=activation)  # type: ignore[arg-type]
    measured = theory.measured(array, basis=signal, rank=rank, tol=tol, seed=seed)
    found = theory.need(
        measured.rank,
        max(measured.condition_number, float(measured.rank)),
        epsilon,
        measured.rho_holdout or 0.0,
    )
    name = f"made up: {many(dimension - 1, 'column')} of Student's t(2.5)" if embedding is None else ""
    for line in (*_measured(measured, len(array), name), *_counts(found, len(array))):
        typer.echo(line)
    if seconds > 0:
        limits = (runs, seconds, seed)
        for line in _simulated(array, given, signal, rank, tol, found, activation, limits):
            typer.echo(line)
    for line in _assumptions(found):
        typer.echo(line)
    if inputs is not None:
        typer.echo("")
        for line in _network(inputs, found, epsilon0):
            typer.echo(line)
    typer.echo("")
    typer.echo(theory.advice(found, len(array)))


def _made_up(dimension: int, seed: int) -> Any:
    """Heavy-tailed rows, so that some of them decide a direction; with the constant they span `dimension` functions."""
    from labelwise.rng import key_of

    return key_of(seed).fold("made-up rows").numpy().standard_t(2.5, size=(MADE_UP_ROWS, dimension - 1))


def _measured(basis: Whitened, rows: int, name: str) -> list[str]:
    fresh = "not measured (too few rows)" if basis.rho_holdout is None else f"{basis.rho_holdout:.3g}"
    constant = ", a constant among them" if basis.signal.constant else ""
    return [
        "Measured",
        f"  rows                          {rows:,}{f'  ({name})' if name else ''}",
        f"  functions (dimension d)       {basis.rank:,} of {basis.available:,} directions{constant}",
        f"  condition number K            {basis.condition_number:,.4g}  (the largest |v|^2; at least d)",
        f"  rho on rows held out          {fresh}",
        "",
    ]


def _counts(found: Need, rows: int) -> list[str]:
    good = "certain" if found.always_good else "not certain: it is for epsilon up to 0.122"
    return [
        f"The bound for epsilon = {found.epsilon:g}",
        f"  labels                        {found.labels:,}  = 1.57 d (1 - g^2)/g^2",
        f"                                with g = sqrt(epsilon)/3 = {found.gamma:.4g}",
        f"  rows, order of the theorem    {found.pool_order:,}  = (1 + rho d)(K log d + K/epsilon)",
        "                                its constant is unknown, here 1",
        f"  rows, enough for certain      {found.pool_enough:,}  (independent rows, rho = 0); found {rows:,}",
        f"  a good output                 {good}",
        "",
    ]


def _simulated(
    array: Any,
    given: Any,
    signal: Any,
    rank: int | None,
    tol: float | None,
    found: Need,
    activation: str,
    limits: tuple[int, float, int],
) -> Iterator[str]:
    """Lines on what is simulated and measured on the rows, or on some of them."""
    import numpy as np
    import torch

    from labelwise.errors import ArgumentError
    from labelwise.rng import key_of
    from labelwise.theory import measured_complexity as measure
    from labelwise.theory import sample_complexity as theory

    runs, seconds, seed = limits
    rows = torch.arange(len(array))
    if len(rows) > SIMULATED_ROWS:
        rows = key_of(seed).fold("simulated rows").uniform(rows).argsort()[:SIMULATED_ROWS].sort().values
    x_ND = np.asarray(array[rows.numpy()])
    v_ND = theory.functions(x_ND, basis=signal, rank=rank, tol=tol, seed=seed)
    of = "" if len(rows) == len(array) else f" on {len(rows):,} of the rows, at random"
    yield f"Simulated{of}"
    try:
        with _progress("simulating selections") as progress:
            simulated = measure.typical_labels(
                v_ND, found.epsilon, runs=runs, seconds=0.75 * seconds, seed=seed, progress=progress
            )
        yield from _typical(simulated, found, len(rows))
    except ArgumentError as error:
        yield _line("typical labels", f"not simulated: {error}")
    with _progress("checking the draws") as progress:
        ran = measure.run_procedure(v_ND, found.epsilon, seconds=0.25 * seconds, seed=seed, progress=progress)
    yield from _conditions(ran, v_ND)
    outputs = measure.two_layer_outputs(torch.from_numpy(x_ND), activation, count=NETWORKS, seed=seed)
    yield _line("epsilon0 of claim 5.3", _distance(v_ND, outputs))
    yield _line("", f"({NETWORKS} two-layer networks of 256 units, {activation}, at first weights, these rows as")
    yield _line("", "inputs; the claim is of all weights)")
    if given is not None:
        own = torch.from_numpy(np.asarray(given[rows.numpy()], np.float64)).reshape(len(rows), -1)
        yield _line("the same of your network", _distance(v_ND, own))
    yield ""


def _typical(simulated: Typical, found: Need, rows: int) -> Iterator[str]:
    """Lines on the typical number, for both kinds of noise."""
    first, last = simulated.labels_T[0], simulated.labels_T[-1]
    for noise, title, words in (
        ("even", "typical labels", "noise alike everywhere"),
        ("growing", "", "noise grows with |v|"),
    ):
        labels = simulated.labels(noise)
        if math.isinf(labels):
            excess = float(simulated.excess[noise].mean(0)[-1])
            yield _line(title, f"more than {last:,}, where the excess is {excess:.3g}  ({words})")
            continue
        if labels == first:
            yield _line(title, f"at most {first:,}, from where on bss uses all functions  ({words})")
            continue
        yield _line(title, f"about {round(labels):,}, the bound is {found.labels / labels:.0f} times that")
        each = [simulated.labels(noise, run) for run in range(simulated.runs)]
        high = f"{max(each):,.0f}" if math.isfinite(max(each)) else f"more than {last:,}"
        yield _line("", f"({words}; single runs {min(each):,.0f} to {high})")
    cut = "; the time was over, --seconds gives more" if simulated.is_cut else ""
    yield _line("", f"{many(simulated.runs, 'run')} of bss at {first:,} to {last:,} of {rows:,} rows{cut}")


def _conditions(ran: Procedure, v_ND: Tensor) -> Iterator[str]:
    """Lines on definitions 5.4 and 5.5."""
    from labelwise.signals.rows import sq_norm
    from labelwise.theory.measured_complexity import alpha_condition_number

    norm_N = sq_norm(v_ND)
    by_leverage = alpha_condition_number(v_ND, norm_N / norm_N.sum())
    low, high = ran.condition_numbers
    laws = f"uniform {float(norm_N.max()):,.4g}, leverage {by_leverage:,.4g}, bss {low:,.4g} to {high:,.4g}"
    yield _line("K of alpha, D'", laws)
    verb, part = "holds" if ran.holds else "does not hold", "" if ran.eigenvalues else "first "
    draws = f"at the {part}{len(ran.rows):,} draws"
    yield _line("beta K <= epsilon/2", f"{verb}: at most {ran.worst:.3g}, epsilon/2 is {ran.limit:g}, {draws}")
    yield _line("sum of beta <= 5/4", f"{ran.sum_beta:.3f}{'' if ran.eigenvalues else ' so far'}")
    if ran.eigenvalues:
        low, high = ran.eigenvalues
        rows = f"{len(set(ran.rows)):,} different rows"
        yield _line("a good output", f"{'yes' if ran.good else 'no'}: eigenvalues {low:.3g} to {high:.3g}, {rows}")


def _line(title: str, text: str) -> str:
    return f"  {title:<30}{text}"


def _distance(v_ND: Tensor, outputs_NR: Tensor) -> str:
    from labelwise.theory.measured_complexity import basis_distance

    away_R = basis_distance(v_ND, outputs_NR)
    share_R = away_R / outputs_NR.square().mean(0).clamp(min=1e-300)
    return f"E |h - f|^2 is {float(away_R.max()):.3g} at most, {100 * float(share_R.max()):.3g} % of E f^2"


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; elsewhere a line, so that nobody wonders."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"{what} ...", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total or None)


def _assumptions(found: Need) -> list[str]:
    return [
        "Constants and assumptions",
        "  1.57 draws for d (1 - g^2)/g^2 is measured, the theorem says O(d/epsilon); C0 = 3 (Chen & Price 2019).",
        "  The fit is weighted least squares in the span of the d functions, compared with the best fit of the span.",
        "  Promise: the expected squared distance of the two is at most epsilon (1 + rho d) times the error of the",
        f"  best, here {found.excess:.3g}, if the output is good. Typical labels: the same distance is epsilon times",
        "  that error on average over simulated draws, for noise of mean 0 around the best fit.",
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
