"""Worker: a process of its own that trains and chooses while people label.

    python -m labelwise.project.loop.worker PROJECT

It talks to others only through the store and the files of the folder. It may be killed at any moment: a round is in
the store as a whole or not at all, and what is measured after it is measured again where it was broken off.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from labelwise.errors import LabelwiseError, StoreError
from labelwise.io.files import FileLockedError, append_log, open_locked
from labelwise.project.loop.heartbeat import State, Working
from labelwise.project.loop.rounds import finish_round, make_round, notes_of
from labelwise.project.loop.snapshot import last_seq
from labelwise.project.project import Project

PAUSE = 0.5  # seconds between two looks at the store
BEAT = 2.0  # seconds between two signs of life
AGAIN = 30.0  # seconds after which something that failed is tried again
PATIENCE = 15.0  # seconds to wait for another worker of the same project to go


class Signs:
    """Signs of life: writes `worker.json` whenever something changes and every two seconds."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._lock = threading.Lock()
        self._now = Working("choosing", "starting", time.time(), 0, os.getpid(), time.time())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, daemon=True)
        self._thread.start()

    def say(self, state: State, message: str, round: int) -> None:
        """Write the state down."""
        with self._lock:
            same = (self._now.state, self._now.message, self._now.round) == (state, message, round)
            since = self._now.since if same else time.time()
            self._now = Working(state, message, since, round, os.getpid(), time.time())
            if not same:
                self._write()

    def close(self, message: str) -> None:
        """Say that the worker has gone."""
        self._stop.set()
        self._thread.join()
        with self._lock:
            self._now = Working("dead", message, time.time(), self._now.round, os.getpid(), time.time())
            self._write()

    def _beat(self) -> None:
        while True:
            with self._lock:
                now = self._now
                self._now = Working(now.state, now.message, now.since, now.round, now.pid, time.time())
                self._write()
            if self._stop.wait(BEAT):
                return

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the worker; the page will say that it is silent
            self._now.write(self._folder)


def step(project: Project, signs: Signs) -> bool:
    """Do what there is to do now, if anything; whether something was done."""
    store, settings = project.store, project.settings
    rounds, progress = store.rounds(), store.progress()
    number = rounds[-1].number if rounds else 0
    if rounds:
        done = notes_of(project.folder, number)
        if done is None:
            signs.say("training", f"measuring the model of round {number}", number)
            finish_round(project, number, rounds[-1].after)
            return True
        unanswered = progress.picks - progress.answered
        if unanswered > settings.lead * progress.picks:
            signs.say("waiting", f"{unanswered} of {progress.picks} picks of round {number} are not answered", number)
            return False
    if number and _spent(project):
        return _close(project, signs, number, progress.picks - progress.answered)
    signs.say("training" if number else "choosing", f"preparing round {number + 1}", number)
    after = last_seq(store)
    if not make_round(project, number + 1, after):
        return _close(project, signs, number, progress.picks - progress.answered)
    signs.say("training", f"measuring the model of round {number + 1}", number + 1)
    finish_round(project, number + 1, after)
    return True


def _spent(project: Project) -> bool:
    """Whether every row was picked or has a label."""
    answered = project.store.answers()
    picked = {pick.row for one in project.store.rounds() for pick in project.store.picks(one.number)}
    return all(row in picked or row in answered for row in project.pool.ids.tolist())


def _close(project: Project, signs: Signs, number: int, unanswered: int) -> bool:
    """There is nothing left to choose: train once more when the last answers are in."""
    done = notes_of(project.folder, number)
    after = last_seq(project.store)
    if unanswered == 0 and done is not None and done.get("after") != after:
        signs.say("training", "measuring the last model", number)
        finish_round(project, number, after)
        return True
    signs.say("idle", "every row has been picked", number)
    return False


def run(folder: Path, once: bool = False, parent: int | None = None) -> None:
    """Work on the project until stopped; `once`: until there is nothing to do right now.

    `parent`: until that process, which started this one, is gone. It is named and not looked up here: it may have
    been killed while this one was still importing.
    """
    with only_one(folder, parent), contextlib.closing(Project.open(folder)) as project:
        signs = Signs(folder)
        message = "stopped"
        try:
            while parent is None or os.getppid() == parent:
                worked = _guarded(project, signs)
                if once and not worked:
                    return
                if not worked:
                    time.sleep(PAUSE)
            message = "the page that started the worker has gone"
        except BaseException as error:
            message = (
                "stopped" if isinstance(error, KeyboardInterrupt | SystemExit) else f"stopped by an error: {error}"
            )
            raise
        finally:
            signs.close(message)


def _guarded(project: Project, signs: Signs) -> bool:
    """One step; an error is said and logged, and tried again when an answer has come or after a while."""
    try:
        return step(project, signs)
    except (LabelwiseError, OSError, ArithmeticError, RuntimeError) as error:
        with contextlib.suppress(OSError):  # a full disk must not end the worker, which tries again
            append_log(project.folder / "log.txt", f"worker: {traceback.format_exc()}")
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        rounds = project.store.rounds()
        signs.say("failed", first, rounds[-1].number if rounds else 0)
        seen, until = last_seq(project.store), time.monotonic() + AGAIN
        while time.monotonic() < until and last_seq(project.store) == seen:
            time.sleep(PAUSE)
        return True


@contextlib.contextmanager
def only_one(folder: Path, parent: int | None = None) -> Iterator[None]:
    """Hold the lock of the project's worker; the system lets go of it when the process ends, however it does.

    Where another worker has it: an error after a while, or, for the worker of a page (`parent`), its turn when that
    one goes. Two pages may serve one project, and either may be stopped.
    """
    if not folder.is_dir():
        raise StoreError(f"{folder} holds no project")

    def stop_without_parent() -> None:
        if parent is not None and os.getppid() != parent:
            raise SystemExit(0)

    timeout = PATIENCE if parent is None else math.inf
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(open_locked(folder / "worker.lock", timeout=timeout, check=stop_without_parent))
        except FileLockedError:
            raise StoreError(f"{folder}: another worker is already running for this project; nothing to do") from None
        yield


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def main(arguments: list[str] | None = None) -> int:
    """The command line of the worker."""
    parser = argparse.ArgumentParser(
        prog="labelwise.project.loop.worker", description="Train and choose for a project."
    )
    parser.add_argument("project", type=Path)
    parser.add_argument("--once", action="store_true", help="stop when there is nothing to do right now")
    parser.add_argument("--parent", type=int, help="stop when this process, which started it, has gone")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    import torch

    torch.set_num_threads(max(1, (os.cpu_count() or 2) // 2))  # the page and the browser want to live too
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
