"""The chain of a log: each entry holds its number and a digest of itself and of the entry before.

    {"round":0,"ids":[4],"labels":[1],...,"n":3,"chain":"5d41..."}

A changed entry does not fit its own digest, a missing one leaves a gap in the numbers, and what is missing at the end
is told by the head: a small file next to the log with the number and digest of its last entry. The head is written
after the entry, so it may be one behind after a kill, and never ahead. Entries of early versions have no digest; those
after them, and the head, vouch for them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, with_checksum
from labelwise.io.files import write_bytes

_LINK = re.compile(rb',"n":(\d{1,15}),"chain":"([0-9a-f]{32})"\}$')

_HEAD_BYTES = 384  # of a head; a disk writes them at once
_TRIES = 5  # to read a head that another process is writing


@dataclass(frozen=True)
class Link:
    """The place of an entry in the chain: its number, from 1 on, and its digest. The first link has 0 and ""."""

    number: int = 0
    digest: str = ""

    def after(self, content: bytes) -> Link:
        """The link of the next entry, whose JSON without a link is `content`."""
        return Link(self.number + 1, hashlib.sha256(self.digest.encode() + content).hexdigest()[:32])

    def write(self, content: bytes) -> bytes:
        """The entry `content` with this link."""
        return content[:-1] + f',"n":{self.number},"chain":"{self.digest}"}}'.encode()


def read_link(line: bytes, before: Link, chained: bool) -> tuple[bytes, Link, bool]:
    """Read the link of a line.

    Args:
        line: an entry, without its line end.
        before: the link of the entry before.
        chained: whether the entry before has a link of its own.

    Returns:
        The entry without its link, the link, and whether it stood in the line.

    Raises:
        ValueError: the link does not fit, with the reason.
    """
    found = _LINK.search(line)
    if found is None:
        if chained:
            raise ValueError("its number and digest are missing")
        return line, before.after(line), False
    content, number, digest = line[: found.start()] + b"}", int(found[1]), found[2].decode()
    link = before.after(content)
    if number > link.number:
        raise ValueError(f"it is entry {number}, so {number - link.number} before it are missing")
    if (number, digest) != (link.number, link.digest):
        raise ValueError("its digest is not that of its content and of the entry before")
    return content, link, True


def own_link(line: bytes) -> Link | None:
    """The link that stands in a line, right or wrong; None if there is none."""
    found = _LINK.search(line)
    return None if found is None else Link(int(found[1]), found[2].decode())


def head_file(log: Path) -> Path:
    """The file of a log's head."""
    return log.with_name(f"{log.name}.head")


def write_head(log: Path, last: Link) -> None:
    """Note the last entry of a ledger. See `write_heads`."""
    write_heads(log, {"entries": last.number, "chain": last.digest})


def write_heads(log: Path, values: Mapping[str, Any]) -> None:
    """Note what a log ends with.

    The note is a line of fixed length that is written over the one before, without waiting for the disk: it is there
    or that before it is, and one that is behind is no error.
    """
    content = (json.dumps(with_checksum(values)).ljust(_HEAD_BYTES - 1) + "\n").encode()
    path = head_file(log)
    try:
        handle = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        write_bytes(path, content)
        return
    try:
        os.pwrite(handle, content, 0)
        if os.fstat(handle).st_size != len(content):
            os.ftruncate(handle, len(content))
    finally:
        os.close(handle)


def read_head(log: Path, remedy: str) -> Link | None:
    """The last entry of a ledger as it was noted; None if there is no note. StoreError if the note is damaged."""
    found = read_heads(log, remedy)
    if found is None:
        return None
    number, digest = found.get("entries"), found.get("chain")
    if not isinstance(number, int) or not isinstance(digest, str):
        raise StoreError(f"{head_file(log)}: the number and digest of an entry were expected, found {found}; {remedy}")
    return Link(number, digest)


def read_heads(log: Path, remedy: str) -> dict[str, Any] | None:
    """What `write_heads` noted; None if there is no note. StoreError if the note is damaged."""
    for _ in range(_TRIES - 1):
        try:
            return read_checked(head_file(log), remedy)
        except FileNotFoundError:
            return None
        except StoreError:  # perhaps another process writes it at this moment
            time.sleep(0.01)
    return read_checked(head_file(log), remedy)
