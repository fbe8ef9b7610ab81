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
    """Compare strategies on the labelled rows of a project and write what came out; stopped, it goes on."""
    from contextlib import closing

    import torch
    from rich.console import Console

    from labelwise.bench.suite.compare import ComparisonSetup, comparison_folder, continue_comparison
    from labelwise.bench.suite.job import check_curves
    from labelwise.bench.suite.replay import ONLY, replay_of
    from labelwise.cli.comparison import About, check_drawing, check_place, enough, finish, names_of, watch
    from labelwise.errors import ArgumentError
    from labelwise.io.text import many
    from labelwise.project import Project

    if not 0 < test < 1:
        raise ArgumentError(f"--test is a share above 0 and below 1, not {test}")
    check_drawing()
    with closing(Project.open(project)) as opened:
        found = replay_of(opened)
    names = names_of(strategies or found.recipe)
    plan = found.plan(names, seeds or enough(names), k, test)
    check_place(out)
    setup = ComparisonSetup(lambda seed: found.data(seed, test), found.learner, "linear", max_memory)
    check_curves(max_memory, (setup.curve(plan, name, 0, setup.data(0)) for name in plan.recipes))
    about = {"rows": found.digest, "test": test, "start": plan.start, "k": plan.k, "rounds": plan.n}
    torch.set_num_threads(1)  # products this small are faster on one thread
    console = Console()
    last = plan.start + plan.n * plan.k
    aside = len(found.data(0, test).test)
    console.print(
        f"[bold]Labelwise replay[/]: {len(found.rows)} labelled rows of {found.name}, {found.test_rows} of them from "
        f"the test slice; {aside} set aside to test on, others for each seed.",
        highlight=False,
    )
    console.print(f"[yellow]note[/] {ONLY}.", highlight=False)
    protocol = {
        "Data": f"{found.name}: {len(found.rows)} labelled rows, {found.test_rows} of them from the test slice; each "
        f"seed sets {aside} others aside to test on",
        "Read this with care": ONLY,
        "Model": "the project's: a linear layer on its features, trained to the optimum in each round",
    }
    told = About(
        f"{found.name}: the labelled rows replayed",
        found.metric,
        protocol,
        ((f"labelwise bench replay {project} --seeds 20", "more seeds, narrower intervals"),),
        resumable=True,
    )
    with comparison_folder(out, about) as resumed:
        on = " Going on with the runs that are there." if resumed else ""
        console.print(
            f"{', '.join(plan.recipes)}: {many(len(plan.seeds), 'seed')} each, {plan.start} to {last} labels.{on}",
            highlight=False,
        )
        taken, stopped = watch(plan, continue_comparison(plan, setup, out), console, told)
        finish(plan, taken, out, console, stopped, told)
