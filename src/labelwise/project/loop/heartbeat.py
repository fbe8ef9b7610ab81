"""Heartbeat: what the worker of a project is doing, in `worker.json`. The worker writes it, the page reads it."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, with_checksum
from labelwise.io.files import atomic_file

FILE = "worker.json"
BEAT_SECONDS = 2.0  # between two heartbeats
DEAD_SECONDS = 20.0  # without a heartbeat, after which a worker counts as dead

State = Literal["idle", "waiting", "training", "choosing", "failed", "dead"]


@dataclass(frozen=True)
class Heartbeat:
    """The state of the worker.

    waiting: for answers. idle: no row is left to choose. failed: `message` has the reason, and the worker will try
    again. dead: no worker runs.
    """

    state: State
    message: str
    since: float
    round: int
    pid: int = 0
    beat: float = 0.0

    def write(self, folder: Path) -> None:
        """Write `worker.json`. Without fsync: a heartbeat is worth nothing after a power cut."""
        with atomic_file(folder / FILE, durable=False) as file:
            file.write(json.dumps(with_checksum(asdict(self))).encode())


def read_heartbeat(folder: Path) -> Heartbeat:
    """The last heartbeat; state "dead" when there is none, or it is too old."""
    try:
        found = Heartbeat(**read_checked(folder / FILE, "the worker writes it again", early=None))
    except FileNotFoundError:
        return Heartbeat("dead", "no worker has been started for this project", 0.0, 0)
    except (OSError, StoreError, TypeError) as error:
        return Heartbeat("dead", f"{FILE} cannot be read: {error}", 0.0, 0)
    numbers = (found.beat, found.round, found.pid or 0)
    if not all(type(one) in (int, float) for one in numbers) or not isinstance(found.message, str):
        return Heartbeat("dead", f"{FILE} does not hold what is written there; the worker writes it again", 0.0, 0)
    age = time.time() - found.beat
    if found.state == "dead" or abs(age) < DEAD_SECONDS:
        return found
    when = f"for {age:.0f} seconds" if age > 0 else "since the clock of this machine was set back"
    message = f"no heartbeat from the worker {when}; its last state was {found.state}"
    return Heartbeat("dead", message, found.beat, found.round, found.pid, found.beat)


class HeartbeatWriter:
    """Writes `worker.json` whenever the state changes and every two seconds, until it is closed."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._lock = threading.Lock()
        self._now = Heartbeat("choosing", "starting", time.time(), 0, os.getpid(), time.time())
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def set(self, state: State, message: str, round: int) -> None:
        """Write the state if it differs from the last one."""
        with self._lock:
            if (self._now.state, self._now.message, self._now.round) != (state, message, round):
                self._now = Heartbeat(state, message, time.time(), round, os.getpid(), time.time())
                self._write()

    def close(self, message: str) -> None:
        """Write that the worker has stopped, and why."""
        self._stop.set()
        self._thread.join()
        self.set("dead", message, self._now.round)

    def _run(self) -> None:
        while True:
            with self._lock:
                self._now = replace(self._now, beat=time.time())
                self._write()
            if self._stop.wait(BEAT_SECONDS):
                return

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the worker; the page reports missing heartbeats
            self._now.write(self._folder)
