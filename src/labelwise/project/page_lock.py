"""The lock of a project's page: a second page of one project says so, and starts only when it is told to join.

Two pages are safe: answers and leases are transactions of the store, which each page reads again before each task, and
of two workers one waits. But people who start a second page rarely mean to. The system releases the lock when the
process ends in any way; `page.lock` then still names it, which means nothing.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, with_checksum
from labelwise.io.files import FileLockedError, open_locked

FILE = "page.lock"


@contextmanager
def page_lock(folder: Path, link: str, join: bool = False, say: Callable[[str], None] = print) -> Iterator[None]:
    """Hold the lock of the project's page.

    Args:
        folder: the project folder.
        link: the address of the page, without a token; others are told.
        join: start next to a page that runs already, without the lock.
        say: gets a line where another page runs.

    Raises:
        StoreError: another page of this project runs, and `join` is false.
    """
    with ExitStack() as stack:
        try:
            handle = stack.enter_context(open_locked(folder / FILE, timeout=0.0))
        except FileLockedError:
            if not join:
                raise StoreError(_refusal(folder)) from None
            say(f"Joining the page that runs already, {_holder(folder)}. Its worker trains and chooses for both.")
        else:
            os.ftruncate(handle, 0)
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "link": link}
            os.pwrite(handle, json.dumps(with_checksum(holder)).encode(), 0)
        yield


def check_page(folder: Path, join: bool) -> None:
    """Raise StoreError if a page of this project runs and `join` is false, before anything is changed."""
    if join or not (folder / FILE).exists():
        return
    try:
        with open_locked(folder / FILE, timeout=0.0):
            pass
    except FileLockedError:
        raise StoreError(_refusal(folder)) from None


def page_address(folder: Path) -> str:
    """The address of the project's page while it runs; "" otherwise, since anybody may have written the file."""
    if not (folder / FILE).exists():
        return ""
    try:
        with open_locked(folder / FILE, timeout=0.0):
            return ""
    except FileLockedError:
        pass
    try:
        return str(read_checked(folder / FILE, "", early=None)["link"])
    except (OSError, ValueError, KeyError, TypeError, StoreError):
        return ""


def _refusal(folder: Path) -> str:
    return (
        f"A page of {folder} runs already, {_holder(folder)}. Open that address; or serve a second page of the same "
        f"project, on another port or address, with: labelwise resume {folder} --join"
    )


def _holder(folder: Path) -> str:
    """The page that has the lock, in words."""
    try:
        found = read_checked(folder / FILE, "", early=None)
        where = "" if found["host"] == socket.gethostname() else f" on {found['host']}"
        return f"at {found['link']} (process {int(found['pid'])}{where})"
    except (OSError, ValueError, KeyError, TypeError, StoreError):  # it is just writing its name
        return "in another process"
