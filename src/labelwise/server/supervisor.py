"""Supervisor: keeps the worker process running next to the page, and restarts it when it dies."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from labelwise.project.loop.heartbeat import Heartbeat, read_heartbeat
from labelwise.server.context import write_log

STABLE_SECONDS = 60.0  # a worker that lived this long, or made a round, resets the count of failures


class Supervisor:
    """Runs and watches the worker of the project in `folder`. `notify` gets a line when the worker is restarted.

    At the end the worker gets `stop_seconds` to stop by itself.
    """

    def __init__(
        self,
        folder: Path,
        notify: Callable[[str], None],
        command: Sequence[str] | None = None,
        stop_seconds: float = 10.0,
    ) -> None:
        self._folder = folder
        self._notify = notify
        worker = (sys.executable, "-m", "labelwise.project.loop.worker", str(folder), "--parent", str(os.getpid()))
        self._command = list(command or worker)
        self._stop_seconds = stop_seconds
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, name="supervisor", daemon=True)

    @property
    def pid(self) -> int | None:
        """The process id of the worker; None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the worker and watch it."""
        self._process = self._spawn()
        self._thread.start()

    def stop(self) -> None:
        """Terminate the worker; kill it if it does not stop in time."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(self._stop_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _spawn(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal reaches the page only, which then stops the worker.
        process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)
        # The worker needs seconds until its first heartbeat; the page must not call it dead meanwhile.
        now = time.time()
        with contextlib.suppress(OSError):  # a full disk must not end the supervisor
            Heartbeat("choosing", "starting", now, 0, process.pid, now).write(self._folder)
        return process

    def _watch(self) -> None:
        failures, started, rounds = 0, time.monotonic(), read_heartbeat(self._folder).round
        while not self._stopping.wait(0.2):
            process = self._process
            assert process is not None, "started before it is watched"
            code = process.poll()
            if code is None:
                continue
            now = read_heartbeat(self._folder).round
            failures = 1 if time.monotonic() - started > STABLE_SECONDS or now > rounds else failures + 1
            rounds = max(rounds, now)
            delay = min(2.0 ** (failures - 1) - 1, 30.0)
            when = "now" if delay == 0 else f"in {delay:.0f} s"
            cause = f"signal {-code}" if code < 0 else f"exit code {code}"
            self._report(f"The worker stopped ({cause}) and restarts {when}. Labelling continues.")
            if self._stopping.wait(delay):
                return
            started = time.monotonic()
            self._process = self._spawn()

    def _report(self, text: str) -> None:
        with contextlib.suppress(OSError):
            write_log(self._folder, text)
        self._notify(text)
