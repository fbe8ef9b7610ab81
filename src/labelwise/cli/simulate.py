"""`labelwise simulate`: compare strategies with random on data whose labels are known."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from labelwise.cli.comparison import CALLBACK, ENOUGH
from labelwise.cli.select import MAX_MEMORY

if TYPE_CHECKING:
    from rich.console import Console

    from labelwise.bench.data.load import Data
    from labelwise.bench.data.own_table import OwnData
    from labelwise.bench.suite.compare import Comparison
    from labelwise.stats.record import Record
    from labelwise.train import TorchLearner

TASKS: dict[str, Literal["classify", "regress"] | None] = {
    "auto": None,
    "regression": "regress",
    "classification": "classify",
}
HIDDEN = (64, 64)
STRENGTH = 30.0  # C of the logistic regression, as in a labelling project
MODELS = ("project", "logistic", "boosting", "mlp")
# Of the perceptron for numbers: with 100 epochs and a weight decay of 0.005 it learns the noise of few labels, and its
# error can rise with more of them. Chosen by random picks alone, on three data sets: docs/simulate.md.
NUMBER_EPOCHS, NUMBER_DECAY = 40, 0.05
NEXT = (
    (
        "the same command with --seeds 20",
        "more seeds, narrower intervals; finished runs are not repeated",
    ),
    ("labelwise recommend", "why this recipe, and what others saved on other data"),
    ("labelwise strategies", "other strategies to compare"),
)


def simulate(
    data: Path = typer.Argument(
        ...,
        metavar="DATA",
        help="A .csv, .tsv or .parquet file with names of columns; a folder with a folder of images for each class; or "
        "embeddings (.npy, .npz, .parquet).",
    ),
    target: str = typer.Option(
        None,
        metavar="COLUMN",
        help="The column to predict: classes or numbers. For .npz the array, for .npy another .npy file.",
    ),
    text: str = typer.Option(None, metavar="COLUMN", help="The column with the texts to learn from."),
    task: str = typer.Option("auto", help="regression, classification, or auto: by what the target looks like."),
    features: str = typer.Option(None, metavar="a,b,c", help="Columns to learn from; all usable ones by default."),
    group: str = typer.Option(
        None, metavar="COLUMN", help="Rows with the same value here stay together, such as those of one person."
    ),
    strategies: str = typer.Option(
        None,
        help="Strategies to compare, separated by commas; random is always included. "
        "[dim]\\[default: recommended, what `labelwise recommend` names for this table][/]",
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
    model: str = typer.Option(
        None,
        help="project (the linear model of a labelling project), logistic, boosting or mlp (a small network). "
        "[dim]\\[default: mlp for tables, project for texts, images and embeddings][/]",
    ),
    encoder: str = typer.Option("auto", help="What turns texts and images into features, as for `labelwise label`."),
    training: str = typer.Option(
        "restart", help="restart: new weights in each round; warm: those of the round before. For every strategy."
    ),
    max_memory: str = typer.Option(None, metavar="SIZE", help=MAX_MEMORY),
    callback: list[str] = typer.Option(None, metavar="MODULE:NAME", help=CALLBACK),
    out: Path = typer.Option(
        Path("labelwise-simulate"), help="Folder for page, picture and records; a stopped run continues there."
    ),
) -> None:
    """Find out on your own labelled data whether choosing labels beats random, and by how much.

    [bold]labelwise simulate houses.csv --target price --strategies kcenter,ally --rounds 10 -k 20[/]
    [bold]labelwise simulate reviews.csv --text body --target stars[/]
    [bold]labelwise simulate photos[/]  (photos/cat, photos/dog ...)
    [bold]labelwise simulate embeddings.npz --target labels[/]

    The known labels are hidden and revealed batch by batch, as if people gave them. After each batch a model is
    trained and measured on test rows. The page shows what each strategy saved, with a 95 % interval.
    If you stop it with Ctrl-C, the same command continues from the last finished round.
    """
    import torch
    from rich.console import Console

    from labelwise.bench.data.own_rows import kind_of
    from labelwise.bench.suite.compare import Comparison, ComparisonSetup, comparison_folder, continue_comparison
    from labelwise.bench.suite.job import check_curves
    from labelwise.callbacks import callbacks_named
    from labelwise.cli.comparison import (
        Presentation,
        check_drawing,
        check_writable,
        parse_names,
        recommended_for,
        show_progress,
        write_results,
    )
    from labelwise.errors import ArgumentError
    from labelwise.recipes import TRAININGS, get
    from labelwise.recommend import RECOMMENDED
    from labelwise.stats.paired import LEAST

    if training not in TRAININGS:
        raise ArgumentError(f"--training is {' or '.join(TRAININGS)}, not {training!r}")
    if task not in TASKS:
        raise ArgumentError(f"--task is {', '.join(TASKS)}, not {task!r}")
    if not 0 < test < 1:
        raise ArgumentError(f"--test is a share above 0 and below 1, not {test}")
    if model is not None and model not in MODELS:
        raise ArgumentError(f"--model is {', '.join(MODELS)}, not {model!r}")
    check_drawing()
    callbacks = callbacks_named(callback or ())
    wanted = [one.strip() for one in features.split(",") if one.strip()] if features else None
    what = kind_of(data, text, wanted)
    for name in parse_names(strategies or "random", lambda: "random"):
        get(name)  # a wrong name is named before features are computed
    own = _read(data, what, target, TASKS[task], wanted, text, group, encoder, out)
    model = model or ("mlp" if what == "table" else "project")
    rows = own.data(0, test)
    learner = functools.partial(learner_for, model=model)
    names = parse_names(strategies or RECOMMENDED, lambda: recommended_for(rows, learner(rows, "random"), k))
    plan = Comparison(names, tuple(range(seeds or LEAST)), start=start or k, k=k, n=rounds)
    _check_plan(plan, rows, learner, min(int((~own.test_rows(seed, test)).sum()) for seed in plan.seeds))
    check_writable(out)
    setup = ComparisonSetup(lambda seed: own.data(seed, test), learner, model, max_memory, training)
    check_curves(max_memory, (setup.curve(plan, name, 0, rows) for name in plan.recipes))
    console = Console()
    others = ("r2",) if own.task == "regress" else ()
    protocol = _protocol(own, rows, group, training, model)
    about = Presentation(
        f"{data.name}: learning {own.target}", own.metric, protocol, NEXT, resumable=True, others=others
    )
    torch.set_num_threads(1)  # products this small are faster on one thread
    with comparison_folder(out, _settings(data, own, plan, test, group, training, model)) as resumed:
        _introduce(console, own, rows, plan, resumed)
        records, stopped = show_progress(plan, continue_comparison(plan, setup, out, callbacks), console, about)
        _warn(console, own, plan, records)
        write_results(plan, records, out, console, stopped, about)


def _read(
    data: Path,
    what: str,
    target: str | None,
    task: Literal["classify", "regress"] | None,
    columns: list[str] | None,
    text: str | None,
    group: str | None,
    encoder: str,
    out: Path,
) -> OwnData:
    """The rows with their answers; features of texts and images are computed into `out`."""
    from labelwise.bench.data.own_rows import read_rows, read_vectors
    from labelwise.bench.data.own_table import read_own
    from labelwise.cli.comparison import check_writable
    from labelwise.cli.label import progress_bar
    from labelwise.errors import ArgumentError

    if what not in ("text", "image") and encoder != "auto":
        raise ArgumentError(f"--encoder {encoder}: encoders are for texts (--text COLUMN) and images")
    if what == "table":
        if target is None:
            raise ArgumentError(f"{data}: --target is missing; name the column to predict")
        return read_own(data, target, task=task, features=columns, group=group)
    if what == "vector":
        return read_vectors(data, target, task=task, group=group)
    check_writable(out)
    kind: Any = what
    with progress_bar() as on_progress:
        return read_rows(
            data, target, kind, text=text, task=task, group=group, encoder=encoder, cache=out / "features",
            on_progress=on_progress,
        )  # fmt: skip


def learner_for(data: Data, recipe: str, model: str = "mlp") -> Any:
    """The model for these rows, with draws of its last layer for strategies that need them.

    Raises:
        ArgumentError: the model does not fit the task.
        ExtraError: scikit-learn is needed and not installed.
    """
    from labelwise.recipes import get
    from labelwise.signals.spec import LogProbs
    from labelwise.train.laplace import laplace

    if model in ("logistic", "boosting"):
        return _estimator(data, model)
    inputs = int(data.pool.inputs(data.pool.ids[:1]).shape[1])
    number = data.task == "regress"
    learner = _network(inputs, data) if model == "mlp" else _head(inputs, data)
    needs_draws = any(isinstance(signal, LogProbs) for signal in get(recipe).strategy.needs.pool)
    return laplace(learner) if needs_draws and not number else learner


def _network(inputs: int, data: Data) -> TorchLearner:
    from labelwise.bench.models.networks import mlp
    from labelwise.train import TorchLearner

    if data.task == "regress":
        return TorchLearner(
            mlp(inputs, 1, HIDDEN), lr=3e-3, loss="mse", epochs=NUMBER_EPOCHS, weight_decay=NUMBER_DECAY
        )
    return TorchLearner(mlp(inputs, len(data.classes or ()), HIDDEN))


def _head(inputs: int, data: Data) -> TorchLearner:
    from labelwise.project.loop.model import head_learner

    return head_learner(inputs, len(data.classes or ()), data.task)


def _estimator(data: Data, model: str) -> Any:
    from labelwise.errors import ArgumentError, extra
    from labelwise.train import SklearnLearner

    number = data.task == "regress"
    if model == "logistic" and number:
        raise ArgumentError("--model logistic predicts classes, and the target holds numbers; take project or boosting")
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from sklearn.linear_model import LogisticRegression
    except ImportError:
        raise extra("sklearn", "bench") from None
    if model == "logistic":
        return SklearnLearner(LogisticRegression(C=STRENGTH, max_iter=500))
    kind = HistGradientBoostingRegressor if number else HistGradientBoostingClassifier
    return SklearnLearner(kind(min_samples_leaf=3, max_iter=50, early_stopping=False))


def _check_plan(plan: Comparison, data: Data, learner: Callable[[Data, str], Any], free: int) -> None:
    """Raise before the first run if a later one cannot run."""
    from labelwise.errors import BudgetError
    from labelwise.recipes import get

    for name in plan.recipes:
        recipe = get(name)
        recipe = recipe.for_regression() if data.task == "regress" else recipe
        recipe.learner(learner(data, name))
    needed = plan.start + plan.n * plan.k
    if needed > free:
        most = max(0, (free - plan.start) // plan.k)
        raise BudgetError(
            f"{plan.start} first labels and {plan.n} rounds of {plan.k} need {needed} labels, but there are only "
            f"{free} rows to choose from; use {f'at most --rounds {most}, or ' if most else ''}a smaller -k"
        )


def _settings(
    data: Path, own: OwnData, plan: Comparison, test: float, group: str | None, training: str, model: str
) -> dict[str, Any]:
    """The settings that must be the same to continue a stopped run; seeds and strategies may change."""
    import hashlib

    import numpy as np

    content = own.features(np.arange(len(own.rows))).tobytes() + own.answers.tobytes() + own.rows.tobytes()
    return {
        "table": data.name,
        "content": hashlib.sha256(content).hexdigest()[:16],
        "target": own.target,
        "task": own.task,
        **own.encoding,  # as in a labelling project; runs with other features are not mixed with these
        "training": f"all labels, cosine, {training}",  # likewise
        "model": _described(own, 0, model),
        "group": group,
        "test": test,
        "start": plan.start,
        "k": plan.k,
        "rounds": plan.n,
    }


def _introduce(console: Console, own: OwnData, data: Data, plan: Comparison, resumed: bool) -> None:
    from labelwise.io.text import many

    what = f"{len(own.classes)} classes" if own.classes else "numbers"
    console.print(
        f"[bold]Labelwise simulate[/]: {_plain(own.target)} ({what}) from {_plain(own.inputs)}; "
        f"{len(data.pool)} rows to choose from, {len(data.test)} to test on.",
        highlight=False,
    )
    for note in own.notes:
        console.print(f"  [yellow]note:[/] {_plain(note)}", highlight=False, soft_wrap=True)
    last = plan.start + plan.n * plan.k
    on = " Continuing the runs in the folder." if resumed else ""
    seeds = many(len(plan.seeds), "seed")
    console.print(f"{', '.join(plan.recipes)}: {seeds} each, {plan.start} to {last} labels.{on}", highlight=False)


def _warn(console: Console, own: OwnData, plan: Comparison, records: list[Record]) -> None:
    """Print a note if no model learns anything, because labels saved then mean nothing."""
    import numpy as np

    from labelwise.stats.summary import no_learning_warning

    last = [record for record in records if record.round == plan.n]
    if not last:
        return
    if own.task == "regress":
        note = no_learning_warning(last)
    else:
        common = float(np.bincount(own.answers).max() / len(own.answers))
        best = max(float(np.mean([r.metrics["accuracy"] for r in last if r.strategy == s])) for s in _of(last))
        note = (
            f"No model here predicts better than the most common class ({common:.1%} right), even at the last "
            "label count, so the results below mean little."
        )
        note = note if best <= common else ""
    if note:
        more = "More labels or other features may change that."
        console.print(f"[yellow]note:[/] {note} {more}", highlight=False)


def _of(records: list[Record]) -> set[str]:
    return {record.strategy for record in records}


def _plain(text: str) -> str:
    from rich.markup import escape

    return escape(text)


def _described(own: OwnData, inputs: int, model: str) -> str:
    """The model in words, with the width of its input where it is known."""
    if model == "logistic":
        return f"logistic regression of scikit-learn, C = {STRENGTH:g}"
    if model == "boosting":
        return "gradient boosting of scikit-learn (histograms, 50 trees, 3 rows in a leaf at least)"
    if model == "project":
        return "the linear layer of a labelling project, trained to its optimum"
    widths = "-".join(map(str, (*((inputs,) if inputs else ()), *HIDDEN, len(own.classes) if own.classes else 1)))
    if own.task == "regress":
        return f"multi-layer perceptron {widths}, {NUMBER_EPOCHS} epochs with weight decay {NUMBER_DECAY}"
    return f"multi-layer perceptron {widths}"


def _protocol(own: OwnData, data: Data, group: str | None, training: str, model: str) -> dict[str, str]:
    inputs = int(data.pool.inputs(data.pool.ids[:1]).shape[1])
    weights = "new weights" if training == "restart" else "the weights of the round before"
    how = f", trained in each round from {weights}, for every recipe (Adam, all labels, a rate that falls to zero)"
    test_unit = "rows" if group is None else f"values of {group}, so that no {group} is in both parts"
    return {
        "Data": f"{own.name}: {len(own.rows)} rows; {len(data.pool)} to choose from and {len(data.test)} to test on in "
        f"the first seed. Each seed takes other {test_unit} as test rows",
        "Target": f"{own.target}: " + (f"classes {', '.join(own.classes[:20])}" if own.classes else "numbers"),
        "Features": own.inputs,
        "Notes": "; ".join(own.notes) or "nothing was left out or missing",
        "Model": f"{_described(own, inputs, model)}{how if model == 'mlp' else ''}. ally has its own objective",
    }
