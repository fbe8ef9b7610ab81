"""Files of a part that outlive the worker that wrote them, so that one made anew on the same machine maps them.

They are in a folder where temporary files go (TMPDIR), of a name of its own. A worker that takes it over gives it a new
name, in one step, so that it belongs to one worker at a time. Who made the selection removes the folders on its own
machine at the end. On other machines, and when it was killed itself, a small process beside each worker does that: it
waits for the worker to end, then for another one to take the folder over, and removes what nobody took.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

WAIT = 120.0  # seconds that a folder without a worker is kept

# Forked from a process that ends at once: Ray ends the children of a worker with it. Renamed first: whoever comes to
# take the folder over finds all of it or nothing.
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


def own_folder(name: str, made: str) -> Path:
    """A folder for the part of this name: that of a worker that is gone if the file `made` is there, else a new one.

    A new one is not there yet. Either is removed some time after this process has ended, if no other takes it over.
    """
    fresh = Path(tempfile.gettempdir()) / f"{_prefix(name)}{uuid.uuid4().hex}"
    for found in fresh.parent.glob(f"{_prefix(name)}*/{made}"):
        try:
            found.parent.rename(fresh)
            break
        except OSError:  # taken by another, or removed
            continue
    _watch(fresh)
    return fresh


def remove(name: str) -> None:
    """Remove the folders of parts whose names begin like this, on this machine."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_prefix(name, '')}*"):
        shutil.rmtree(folder, ignore_errors=True)


def _prefix(name: str, end: str = "-") -> str:
    return f"labelwise-part-{name}{end}"


def _watch(folder: Path) -> None:
    """Start what removes the folder once this process has ended: only then does its standard input end."""
    if not hasattr(os, "fork"):
        return
    gone = folder.with_name(f"labelwise-gone-{uuid.uuid4().hex}")
    asked = [sys.executable, "-I", "-S", "-c", _WATCH, str(folder), str(gone), str(WAIT)]
    theirs, _ours = os.pipe()  # ours is left open: it closes with this process, however that ends
    quiet = subprocess.DEVNULL
    subprocess.run(asked, stdin=theirs, stdout=quiet, stderr=quiet, start_new_session=True, check=True)
    os.close(theirs)
