"""Progress bar of a long selection, shown after two seconds."""

from __future__ import annotations

import threading
from types import TracebackType

WAIT = 2.0  # seconds before anything is shown


class ProgressBar:
    """Shows the number of picks; a function of (done, total), for `progress=` of `lw.select`."""

    def __init__(self, text: str, total: int):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.done, self.total = 0, total
        self._console = Console(stderr=True)
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TimeElapsedColumn(), console=self._console, transient=True)
        self._task = self._bar.add_task(text, total=total)
        self._timer = threading.Timer(WAIT, self._bar.start)
        self._timer.daemon = True

    def __call__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        self._bar.update(self._task, completed=done, total=total)

    def __enter__(self) -> ProgressBar:
        if self._console.is_terminal:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._bar.live.is_started:
            self._bar.stop()
