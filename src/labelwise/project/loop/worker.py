"""Worker: a process that trains and chooses while people label.

    python -m labelwise.project.loop.worker PROJECT

It communicates only through the store and the files of the project folder. It can be killed at any moment: a round is
in the store completely or not at all, and an interrupted measurement is done again.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from labelwise.errors import LabelwiseError, StoreError
from labelwise.io.files import FileLockedError, append_log, open_locked
from labelwise.project.create import complete
from labelwise.project.loop.heartbeat import HeartbeatWriter, read_heartbeat
from labelwise.project.loop.rounds import finish_round, make_round, read_notes
from labelwise.project.project import Project
from labelwise.project.suggest.update import Updater


@dataclass(frozen=True)
class Waits:
    """How long a worker waits, in seconds.

    Attributes:
        poll: between two looks at the store.
        retry: until a failed step is tried again.
        lock: for another worker of the same project to stop.
    """

    poll: float = 0.5
    retry: float = 30.0
    lock: float = 15.0


WAITS = Waits()


def step(project: Project, heartbeat: HeartbeatWriter, check: Callable[[], None] = lambda: None) -> bool:
    """Do the next piece of work, if there is one; whether something was done. `check` may end a long one."""
    if project.pending:
        _compute_features(project, heartbeat, check)
        return True
    store, settings = project.store, project.settings
    rounds, progress = store.rounds(), store.progress()
    number = rounds[-1].number if rounds else 0
    if rounds:
        if read_notes(project.folder, number) is None:
            heartbeat.set("training", f"measuring the model of round {number}", number)
            finish_round(project, number, rounds[-1].after)
            return True
        unanswered = progress.picks - progress.answered
        if unanswered > settings.lead * progress.picks and not rounds[-1].notes.get("early"):
            heartbeat.set(
                "waiting",
                f"waiting for answers to {unanswered} of the {progress.picks} items of round {number}",
                number,
            )
            return False
    if number and _all_picked(project):
        return _finish(project, heartbeat, number, progress.picks - progress.answered)
    heartbeat.set("training" if number else "choosing", f"preparing round {number + 1}", number)
    after = store.last_seq()
    if not make_round(project, number + 1, after):
        return _finish(project, heartbeat, number, progress.picks - progress.answered)
    heartbeat.set("training", f"measuring the model of round {number + 1}", number + 1)
    finish_round(project, number + 1, after)
    return True


def _compute_features(project: Project, heartbeat: HeartbeatWriter, check: Callable[[], None]) -> None:
    """Complete a project whose page opened before its features were there."""
    shown = 0.0

    def on_progress(text: str, done: int, total: int) -> None:
        nonlocal shown
        check()
        if time.monotonic() - shown > WAITS.poll or not total:
            shown = time.monotonic()
            rows = f": {done:,} of {total:,} items" if total else ""
            heartbeat.set("choosing", f"{text}{rows}. Until then, items drawn at random are labelled", 0)

    complete(project, on_progress)


def _all_picked(project: Project) -> bool:
    """Whether every row is picked or labelled."""
    answered = project.store.answers()
    picked = {pick.row for one in project.store.rounds() for pick in project.store.picks(one.number)}
    return all(row in picked or row in answered for row in project.pool.ids.tolist())


def _finish(project: Project, heartbeat: HeartbeatWriter, number: int, unanswered: int) -> bool:
    """With no row left to choose, train once more when the last answers are in."""
    notes = read_notes(project.folder, number)
    after = project.store.last_seq()
    if unanswered == 0 and notes is not None and notes.get("after") != after:
        heartbeat.set("training", "measuring the last model", number)
        finish_round(project, number, after)
        return True
    heartbeat.set("idle", "every row has been chosen", number)
    return False


def run(folder: Path, once: bool = False, parent: int | None = None, waits: Waits = WAITS) -> None:
    """Work on the project until stopped.

    Args:
        folder: the project folder.
        once: stop as soon as there is nothing to do.
        parent: stop when this process, which started the worker, is gone. It is passed in and not looked up, because
            it may have been killed while this process was still importing.
        waits: how long to wait, and for what.
    """

    def stop_without_parent() -> None:
        if parent is not None and os.getppid() != parent:
            raise SystemExit(0)

    with worker_lock(folder, parent, waits), contextlib.closing(Project.open(folder)) as project:
        heartbeat = HeartbeatWriter(folder)
        updater = Updater(project)
        message = "stopped"
        try:
            while parent is None or os.getppid() == parent:
                worked = _try_step(project, heartbeat, stop_without_parent, waits) or _try_suggest(updater, heartbeat)
                if once and not worked:
                    return
                if not worked:
                    time.sleep(waits.poll)
            message = "the page that started the worker is gone"
        except BaseException as error:
            message = (
                "stopped" if isinstance(error, KeyboardInterrupt | SystemExit) else f"stopped by an error: {error}"
            )
            raise
        finally:
            heartbeat.close(message)


def _try_step(
    project: Project, heartbeat: HeartbeatWriter, check: Callable[[], None] = lambda: None, waits: Waits = WAITS
) -> bool:
    """One step. An error is logged and shown; the step is tried again after the next answer, or after a while."""
    try:
        return step(project, heartbeat, check)
    except (LabelwiseError, OSError, ArithmeticError, RuntimeError) as error:
        with contextlib.suppress(OSError):  # a full disk must not end the worker, which tries again
            append_log(project.folder / "log.txt", f"worker: {traceback.format_exc()}")
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        rounds = project.store.rounds()
        heartbeat.set("failed", first, rounds[-1].number if rounds else 0)
        seen, until = project.store.last_seq(), time.monotonic() + waits.retry
        while time.monotonic() < until and project.store.last_seq() == seen:
            time.sleep(waits.poll)
        return True


def _try_suggest(updater: Updater, heartbeat: HeartbeatWriter) -> bool:
    """One step of the suggestions; whether something was done. An error is logged, and labelling continues without."""
    try:
        return updater.step(lambda text, done, total: heartbeat.set("choosing", f"suggestions: {text}", 0))
    except (LabelwiseError, OSError, ArithmeticError, RuntimeError):
        with contextlib.suppress(OSError):
            append_log(updater.folder / "log.txt", f"worker: {traceback.format_exc()}")
        return False


@contextlib.contextmanager
def worker_lock(folder: Path, parent: int | None = None, waits: Waits = WAITS) -> Iterator[None]:
    """Hold the lock of the project's worker; the system releases it when the process ends in any way.

    If another worker holds it, the worker of a page (with `parent`) waits until that one stops, because two pages may
    serve one project; any other gets a StoreError after a while.
    """
    if not folder.is_dir():
        raise StoreError(f"{folder} is not a project folder")

    def stop_without_parent() -> None:
        if parent is not None and os.getppid() != parent:
            raise SystemExit(0)

    timeout = waits.lock if parent is None else math.inf
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(open_locked(folder / "worker.lock", timeout=timeout, check=stop_without_parent))
        except FileLockedError:
            pid = read_heartbeat(folder).pid
            raise StoreError(
                f"A worker is already running for this project{f' (pid {pid})' if pid else ''}. Nothing to do."
            ) from None
        yield


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def main(arguments: list[str] | None = None) -> int:
    """The command line of the worker."""
    parser = argparse.ArgumentParser(
        prog="labelwise.project.loop.worker", description="Train and choose for a project."
    )
    parser.add_argument("project", type=Path)
    parser.add_argument("--once", action="store_true", help="stop when there is nothing to do")
    parser.add_argument("--parent", type=int, help="stop when this process, which started the worker, is gone")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))  # leave cores to the page and the browser
    try:
        run(given.project, given.once, given.parent)
    except LabelwiseError as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
