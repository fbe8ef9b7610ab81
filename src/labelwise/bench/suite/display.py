"""Display: what runs, what is done and left, and when it ends. Live on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import datetime, timedelta

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from labelwise.bench.suite.runner import Progress
from labelwise.bench.suite.suite import Cell

EVERY = 10.0  # seconds between lines where there is no terminal
LONG = 10.0  # seconds of a round after which they are shown
BAR = 40  # columns of the bar at the most


def shown(steps: Iterable[Progress], console: Console, every: float = EVERY) -> Progress | None:
    """Go through the steps of a run and show them; the progress at the end."""
    progress: Progress | None = None
    if not console.is_terminal:
        last = -every
        for progress in steps:
            if time.monotonic() - last >= every:
                last = time.monotonic()
                console.print(line(progress), highlight=False, soft_wrap=True, markup=False)
        return progress
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        for progress in steps:
            live.update(picture(progress))
    return progress


def line(progress: Progress) -> str:
    """One line of plain text."""
    ended = sum(progress.finished(cell) for cell in progress.cells)
    running = ", ".join(progress.running) or "nothing yet"
    failed = f", {len(progress.failed)} failed" if progress.failed else ""
    return (
        f"{datetime.now():%H:%M:%S} {progress.done}/{progress.total} rounds, "
        f"{ended}/{len(progress.cells)} runs{failed}; {_end(progress)}; now {running}"
    )


def picture(progress: Progress) -> RenderableType:
    """The live display."""
    head = Table.grid(padding=(0, 1))
    head.add_column(ratio=1)  # the bar takes what room there is beside the words, up to its width
    head.add_column(no_wrap=True)
    head.add_column(no_wrap=True)
    bar = ProgressBar(total=max(1, progress.total), completed=progress.done, width=BAR)
    so_far = f"{_long(time.monotonic() - progress.began)} so far, {_end(progress)}"
    head.add_row(bar, f"{progress.done}/{progress.total} rounds", Text(so_far, style="dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("data", "runs done", "left", "now"):
        table.add_column(title, justify="right" if title in ("runs done", "left") else "left", no_wrap=title != "now")
    for label in dict.fromkeys(cell.data.label for cell in progress.cells):
        own = [cell for cell in progress.cells if cell.data.label == label]
        ended = sum(progress.finished(cell) for cell in own)
        now = [_now(progress, cell) for cell in own if cell.name in progress.running]
        table.add_row(label, str(ended), str(len(own) - ended), Text("; ".join(now), style="cyan"))
    parts: list[RenderableType] = [head, table]
    if progress.failed:
        parts.append(Text(f"{len(progress.failed)} failed: {', '.join(list(progress.failed)[:3])}", style="red"))
    return Group(*parts)


def _now(progress: Progress, cell: Cell) -> str:
    """What a run is at; with the seconds where its round takes long, as a sign of life."""
    seconds = time.monotonic() - progress.running[cell.name]
    long = f" ({_long(seconds)})" if seconds >= LONG else ""
    return f"{cell.strategy.label} seed {cell.seed}, round {progress.rounds[cell.name]}/{cell.data.rounds}{long}"


def _end(progress: Progress) -> str:
    left = progress.seconds_left()
    if progress.doing or left is None:
        return progress.doing or "when it ends is not known yet"
    at = datetime.now() + timedelta(seconds=left)
    return f"about {_long(left)} left, until {at:%H:%M}" if left < 86400 else f"about {_long(left)} left"


def _long(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
