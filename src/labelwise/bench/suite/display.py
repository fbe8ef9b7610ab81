"""Display of a benchmark run: live on a terminal, a line every few seconds elsewhere."""

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
from labelwise.bench.suite.suite import Job

EVERY = 10.0  # seconds between lines where there is no terminal
LONG = 10.0  # seconds: longer rounds show their time
BAR = 40  # columns of the bar at the most


def show_progress(steps: Iterable[Progress], console: Console, every: float = EVERY) -> Progress | None:
    """Run the steps and show their progress; return the progress at the end."""
    progress: Progress | None = None
    if not console.is_terminal:
        last = -every
        for progress in steps:
            if time.monotonic() - last >= every:
                last = time.monotonic()
                console.print(status_line(progress), highlight=False, soft_wrap=True, markup=False)
        return progress
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        for progress in steps:
            live.update(live_view(progress))
    return progress


def status_line(progress: Progress) -> str:
    """One line of plain text."""
    ended = sum(progress.finished(job) for job in progress.jobs)
    running = f"; now {', '.join(progress.running)}" if progress.running else ""
    failed = f", {len(progress.failed)} failed" if progress.failed else ""
    return (
        f"{datetime.now():%H:%M:%S} {progress.done}/{progress.total} rounds, "
        f"{ended}/{len(progress.jobs)} runs{failed}; {_end(progress)}{running}"
    )


def live_view(progress: Progress) -> RenderableType:
    """The live display."""
    head = Table.grid(padding=(0, 1))
    head.add_column(ratio=1)  # the bar takes the width that the words leave
    head.add_column(no_wrap=True)
    head.add_column(no_wrap=True)
    bar = ProgressBar(total=max(1, progress.total), completed=progress.done, width=BAR)
    so_far = f"{_duration(time.monotonic() - progress.started_at)} so far, {_end(progress)}"
    head.add_row(bar, f"{progress.done}/{progress.total} rounds", Text(so_far, style="dim"))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("data", "runs done", "left", "now"):
        table.add_column(title, justify="right" if title in ("runs done", "left") else "left", no_wrap=title != "now")
    for label in dict.fromkeys(job.data.label for job in progress.jobs):
        own = [job for job in progress.jobs if job.data.label == label]
        ended = sum(progress.finished(job) for job in own)
        now = [_now(progress, job) for job in own if job.name in progress.running]
        table.add_row(label, str(ended), str(len(own) - ended), Text("; ".join(now), style="cyan"))
    parts: list[RenderableType] = [head, table]
    if progress.failed:
        parts.append(Text(f"{len(progress.failed)} failed: {', '.join(list(progress.failed)[:3])}", style="red"))
    return Group(*parts)


def _now(progress: Progress, job: Job) -> str:
    """The current round of a run, with its seconds when it takes long."""
    seconds = time.monotonic() - progress.running[job.name]
    long = f" ({_duration(seconds)})" if seconds >= LONG else ""
    return f"{job.strategy.label} seed {job.seed}, round {progress.rounds[job.name]}/{job.data.rounds}{long}"


def _end(progress: Progress) -> str:
    left = progress.seconds_left()
    if progress.activity or left is None:
        return progress.activity or "time left not known yet"
    at = datetime.now() + timedelta(seconds=left)
    return f"about {_duration(left)} left, until {at:%H:%M}" if left < 86400 else f"about {_duration(left)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
