"""Keeper: keeps the worker process alive beside the page. A worker that dies is started again, and it is said."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from labelwise.project.loop.heartbeat import Working
from labelwise.server.context import write_log

LONG_ENOUGH = 60.0  # seconds a worker must have lived for its death to be a first one again
PATIENCE = 10.0  # seconds a worker gets to stop by itself


class Keeper:
    """The worker of the project in `folder`, watched from a thread."""

    def __init__(self, folder: Path, say: Callable[[str], None], command: Sequence[str] | None = None) -> None:
        self._folder = folder
        self._say = say
        self._command = list(
            command
            or (sys.executable, "-m", "labelwise.project.loop.worker", str(folder), "--parent", str(os.getpid()))
        )
        self._ending = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._watch, name="keeper", daemon=True)

    @property
    def pid(self) -> int | None:
        """The number of the worker's process, while there is one."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> None:
        """Start the worker and watch it."""
        self._process = self._begin()
        self._thread.start()

    def stop(self) -> None:
        """Stop the worker, in peace if it can be had."""
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _begin(self) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C in the terminal is for us alone, and we stop it.
        begun = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, start_new_session=True)
        # It takes seconds until it speaks for itself; the page must not call it dead meanwhile.
        now = time.time()
        with contextlib.suppress(OSError):  # a full disk must not end the watch
            Working("choosing", "starting", now, 0, begun.pid, now).write(self._folder)
        return begun

    def _watch(self) -> None:
        deaths, began = 0, time.monotonic()
        while not self._ending.wait(0.2):
            process = self._process
            assert process is not None, "started before it is watched"
            code = process.poll()
            if code is None:
                continue
            deaths = 1 if time.monotonic() - began > LONG_ENOUGH else deaths + 1
            pause = min(2.0 ** (deaths - 1) - 1, 30.0)  # at once, then more and more patiently
            again = "at once" if pause == 0 else f"in {pause:.0f} s"
            self._tell(f"The worker stopped ({_how(code)}); it is started again {again}. Labelling goes on.")
            if self._ending.wait(pause):
                return
            began = time.monotonic()
            self._process = self._begin()

    def _tell(self, text: str) -> None:
        with contextlib.suppress(OSError):
            write_log(self._folder, text)
        self._say(text)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
