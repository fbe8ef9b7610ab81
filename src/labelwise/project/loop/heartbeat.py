"""Working: what the worker of a project is doing, as `worker.json` says. Written by the worker, read by the page."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from labelwise.io.files import atomic_file

FILE = "worker.json"
SILENT = 20.0  # seconds without a sign after which a worker counts as dead

State = Literal["idle", "waiting", "training", "choosing", "failed", "dead"]


@dataclass(frozen=True)
class Working:
    """State of the worker.

    waiting: for answers. idle: there is nothing left to choose. failed: `message` says why, it will try again. dead:
    no worker runs.
    """

    state: State
    message: str
    since: float
    round: int
    pid: int = 0
    beat: float = 0.0

    def write(self, folder: Path) -> None:
        """Put this into `worker.json`; no sync, since a sign of life is worth nothing after a power cut."""
        with atomic_file(folder / FILE, durable=False) as file:
            file.write(json.dumps(asdict(self)).encode())


def read_working(folder: Path) -> Working:
    """What the worker said last; dead when it has been silent for too long or its process is gone."""
    try:
        found = Working(**json.loads((folder / FILE).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return Working("dead", "no worker has been started for this project", 0.0, 0)
    except (OSError, ValueError, TypeError) as error:
        return Working("dead", f"{FILE} cannot be read: {error}", 0.0, 0)
    if found.state == "dead" or time.time() - found.beat < SILENT:
        return found
    said = f"the worker has given no sign for {time.time() - found.beat:.0f} seconds; it was {found.state}"
    return Working("dead", said, found.beat, found.round, found.pid, found.beat)
