"""A progress bar that is shown only for what takes longer than two seconds."""

from __future__ import annotations

import threading
from types import TracebackType

WAIT = 2.0  # seconds before anything is shown


class DelayedBar:
    """A bar on a terminal or in a notebook, which begins to show `wait` seconds after `start`."""

    def __init__(self, text: str, total: int, wait: float = WAIT):
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self.done, self.total = 0, total
        console = Console(stderr=True)
        console = Console() if console.is_jupyter else console  # a notebook has a place for output, not for errors
        self._is_seen = console.is_terminal or console.is_jupyter
        columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
        self._task = self._bar.add_task(text, total=total)
        self._timer = threading.Timer(wait, self._bar.start)
        self._timer.daemon = True

    def start(self) -> None:
        """Begin to count the seconds."""
        if self._is_seen:
            self._timer.start()

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` are done."""
        self.done, self.total = done, total
        self._bar.update(self._task, completed=done, total=total)

    def close(self) -> None:
        """Remove the bar."""
        self._timer.cancel()
        if self._timer.is_alive():
            self._timer.join()
        if self._bar.live.is_started:
            self._bar.stop()

    def __enter__(self) -> DelayedBar:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
