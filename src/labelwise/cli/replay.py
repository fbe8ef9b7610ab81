"""`labelwise bench replay`: the labelled rows of a project as a simulation."""

from __future__ import annotations

from pathlib import Path


def replay(
    project: Path,
    strategies: str | None,
    seeds: int | None,
    k: int | None,
    test: float,
    out: Path,
    max_memory: str | None,
) -> None:
    """Compare strategies on the labelled rows of a project and write the results; a stopped run continues."""
    from contextlib import closing

    import torch
    from rich.console import Console

    from labelwise.bench.suite.compare import ComparisonSetup, comparison_folder, continue_comparison
    from labelwise.bench.suite.job import check_curves
    from labelwise.bench.suite.replay import ONLY, replay_of
    from labelwise.cli.comparison import (
        Presentation,
        check_drawing,
        check_writable,
        parse_names,
        show_progress,
        write_results,
    )
    from labelwise.errors import ArgumentError
    from labelwise.io.text import many
    from labelwise.project import Project
    from labelwise.stats.paired import LEAST

    if not 0 < test < 1:
        raise ArgumentError(f"--test is a share above 0 and below 1, not {test}")
    check_drawing()
    with closing(Project.open(project)) as opened:
        found = replay_of(opened)
    names = parse_names(strategies or found.recipe)
    plan = found.plan(names, seeds or LEAST, k, test)
    check_writable(out)
    setup = ComparisonSetup(lambda seed: found.data(seed, test), found.learner, "linear", max_memory)
    check_curves(max_memory, (setup.curve(plan, name, 0, setup.data(0)) for name in plan.recipes))
    about = {"rows": found.digest, "test": test, "start": plan.start, "k": plan.k, "rounds": plan.n}
    torch.set_num_threads(1)  # products this small are faster on one thread
    console = Console()
    last = plan.start + plan.n * plan.k
    test_rows = len(found.data(0, test).test)
    console.print(
        f"[bold]Labelwise replay[/]: {len(found.rows)} labelled rows of {found.name}, {found.test_rows} of them from "
        f"the test slice; {test_rows} are test rows, others for each seed.",
        highlight=False,
    )
    console.print(f"[yellow]note[/] {ONLY}.", highlight=False)
    protocol = {
        "Data": f"{found.name}: {len(found.rows)} labelled rows, {found.test_rows} of them from the test slice; each "
        f"seed takes {test_rows} other test rows",
        "Read this with care": ONLY,
        "Model": "the project's: a linear layer on its features, trained to the optimum in each round",
    }
    presentation = Presentation(
        f"{found.name}: the labelled rows replayed",
        found.metric,
        protocol,
        ((f"labelwise bench replay {project} --seeds 20", "more seeds, narrower intervals"),),
        resumable=True,
    )
    with comparison_folder(out, about) as resumed:
        on = " Continuing the runs in the folder." if resumed else ""
        console.print(
            f"{', '.join(plan.recipes)}: {many(len(plan.seeds), 'seed')} each, {plan.start} to {last} labels.{on}",
            highlight=False,
        )
        records, stopped = show_progress(plan, continue_comparison(plan, setup, out), console, presentation)
        write_results(plan, records, out, console, stopped, presentation)
