"""`labelwise strategies`: what there is to choose from, what each needs, costs and cites."""

from __future__ import annotations


def strategies() -> None:
    """List the strategies: what each needs, what it costs, whether it gives weights, and its paper."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from labelwise.strategies import ALL

    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("name", "needs", "cost", "weights", "first batch", "paper"):
        table.add_column(title, overflow="fold")
    for name, kind in ALL.items():
        needs = _arrays(kind.needs.pool) + [f"labelled {one}" for one in _arrays(kind.needs.labelled)]
        table.add_row(
            f"[bold]{name}[/]",
            ", ".join(needs) or "nothing",
            kind.cost,
            "yes" if kind.weighted else "no",
            "yes" if kind.cold else "no",
            kind.paper,
        )
    console = Console()
    console.print(table)
    console.print(
        "N rows, D embedding, C classes, k picks, L labelled rows, K draws, P features.\n"
        "[i]needs[/]: arguments of lw.select (labelled ones as labelled={...}) and options of labelwise select.\n"
        "[i]first batch[/]: can choose before any row is labelled. A strategy's docstring has its formula: "
        "python -c 'import labelwise.strategies.distance.badge as m; print(m.__doc__)'"
    )


def _arrays(signals: tuple[object, ...]) -> list[str]:
    from labelwise.signals.spec import Signal, stored

    asked = tuple(signal for signal in signals if isinstance(signal, Signal))
    return list(dict.fromkeys(signal.array for signal in stored(asked)))
