"""Spilled files of a part: they outlive the worker that wrote them, so that its successor on the machine maps them.

They are in a folder of their own among the temporary files (TMPDIR). A worker that takes a folder over renames it in
one step, so that it belongs to one worker at a time. The process of the selection removes the folders on its own
machine at the end. On other machines, and when that process was killed, a small process for each worker does that: it
waits for the worker to end, then for another one to take the folder over, and removes the folder if none did.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

WAIT = 120.0  # seconds that a folder without a worker stays

# Forked from a process that ends at once: Ray ends the children of a worker with it. The folder is renamed first, so
# that another worker finds all of it or nothing.
_WATCH = """
import os, shutil, sys, time
folder, gone, wait = sys.argv[1:]
if os.fork():
    os._exit(0)
sys.stdin.buffer.read()
end = time.monotonic() + float(wait)
while os.path.isdir(folder) and time.monotonic() < end:
    time.sleep(0.5)
try:
    os.rename(folder, gone)
except OSError:
    os._exit(0)
shutil.rmtree(gone, ignore_errors=True)
"""


def claim_folder(name: str, made: str, wait: float = WAIT) -> Path:
    """A folder for the part of this name, removed some time after this process has ended if no other takes it over.

    Args:
        name: of the part.
        made: the file that marks a folder as complete.
        wait: seconds that a folder without a worker stays.

    Returns:
        The complete folder of a worker that is gone; else the path of a new one, which does not exist yet.
    """
    fresh = Path(tempfile.gettempdir()) / f"{_prefix(name)}{uuid.uuid4().hex}"
    for found in fresh.parent.glob(f"{_prefix(name)}*/{made}"):
        try:
            found.parent.rename(fresh)
            break
        except OSError:  # taken by another, or removed
            continue
    _watch(fresh, wait)
    return fresh


def remove(name: str) -> None:
    """Remove the folders of all parts whose names start with `name`, on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(name, '')}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(name: str, end: str = "-") -> str:
    return f"labelwise-part-{name}{end}"


def _watch(folder: Path, wait: float) -> None:
    """Start the process that removes the folder when this one has ended, which ends its standard input."""
    if not hasattr(os, "fork"):
        return
    gone = folder.with_name(f"labelwise-gone-{uuid.uuid4().hex}")
    command = [sys.executable, "-I", "-S", "-c", _WATCH, str(folder), str(gone), str(wait)]
    theirs, _ours = os.pipe()  # ours stays open until this process ends, however it does
    quiet = subprocess.DEVNULL
    subprocess.run(command, stdin=theirs, stdout=quiet, stderr=quiet, start_new_session=True, check=True)
    os.close(theirs)
