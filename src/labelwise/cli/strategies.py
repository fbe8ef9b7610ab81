"""`labelwise strategies`: what there is to choose from; the facts of each strategy as text, for the docs too."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from labelwise.selection import Strategy
    from labelwise.signals.spec import Signal

LEGEND = "N rows, D embedding, C classes, k picks, L labelled rows, K draws, P features"


def strategies() -> None:
    """List the strategies: what each needs, what it costs, whether it gives weights, and its paper."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    columns = ("name", "needs", "cost", "weights", "first batch", "paper")
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in columns:
        table.add_column(title, overflow="fold")
    for facts in facts_of_all():
        table.add_row(f"[bold]{facts['name']}[/]", *(facts[title] for title in columns[1:]))
    console = Console()
    console.print(table)
    console.print(
        f"{LEGEND}.\n"
        "[i]needs[/]: arguments of lw.select (labelled ones as labelled={...}) and options of labelwise select.\n"
        "[i]first batch[/]: can choose before any row is labelled. A strategy's docstring has its formula: "
        "python -c 'import labelwise.strategies.distance.badge as m; print(m.__doc__)'"
    )


def facts_of_all() -> list[dict[str, str]]:
    """The facts of every strategy as text, by the title of a column."""
    from labelwise.strategies import ALL, get

    return [_facts(name, get(name)) for name, _ in ALL.items()]


def _facts(name: str, strategy: Strategy) -> dict[str, str]:
    needs = [*_arrays(strategy.needs.pool), *(f"labelled {array}" for array in _arrays(strategy.needs.labelled))]
    objective, restart = strategy.objective, strategy.restart
    return {
        "name": name,
        "picks": strategy.picks,
        "needs": ", ".join(needs) or "nothing",
        "cost": strategy.cost,
        "weights": "yes" if strategy.weighted else "no",
        "first batch": "yes" if strategy.cold else "no",
        "paper": strategy.paper,
        "reason": strategy.reason,
        "objective": "" if objective is None else objective if isinstance(objective, str) else type(objective).__name__,
        "training": {None: "", True: "from fresh weights", False: "on from the last round's weights"}[restart],
    }


def _arrays(signals: Iterable[Signal]) -> list[str]:
    from labelwise.signals.spec import stored

    return list(dict.fromkeys(signal.array for signal in stored(tuple(signals))))
