"""Repair a ledger: what is good stays, the damaged file is set aside, and nothing is thrown away."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

from labelwise.errors import LabelwiseError, StoreError
from labelwise.io.chain import Link, head_file, own_link, read_head, read_link, write_head
from labelwise.io.files import create_file, open_locked, write_bytes
from labelwise.pool.ledger import Entry


@dataclass(frozen=True)
class Salvage:
    """What a damaged ledger still holds: good entries as JSON without their links, and what is wrong."""

    entries: tuple[bytes, ...]
    faults: tuple[str, ...]


def salvage(path: Path) -> Salvage:
    """Read all of a ledger that can be trusted. A line is good if it fits the digests of the line before and itself."""
    good: list[bytes] = []
    faults: list[str] = []
    data = path.read_bytes() if path.exists() else b""
    lines = data.split(b"\n")
    candidates, chained, number, vouched = {Link()}, False, 0, True
    for place, line in enumerate(lines[:-1] if lines[-1] == b"" else lines, start=1):
        content, fault, link = _judge(line, candidates, chained, number, vouched)
        if fault:
            faults.append(f"{path} line {place}: {fault}")
        if content is not None:
            good.append(content)
        stored = own_link(line)
        vouched = content is not None or stored is not None  # the digest that the next line counts on is known
        chained = chained or stored is not None
        number = max(number + 1, 0 if stored is None else stored.number)
        # The next line may be vouched for by the digest that stands here, or by that of the content.
        inside = line if stored is None else line[: line.rindex(b',"n":')] + b"}"
        candidates = {one for one in (stored, link) if one is not None} | {one.after(inside) for one in candidates}
    try:
        head = read_head(path, "")
        if head is not None and head.number > number:
            faults.append(f"{path}: the last {head.number - number} entries are missing")
        if head is None and chained:
            faults.append(f"{head_file(path)} is missing")
        if head is not None and not faults and head.number == number and head not in candidates:
            faults.append(f"{path}: one of its entries was changed before it had digests; which one cannot be said")
    except StoreError as error:
        faults.append(str(error).rstrip("; "))
    return Salvage(tuple(good), tuple(faults))


def _judge(
    line: bytes, before: set[Link], chained: bool, number: int, vouched: bool
) -> tuple[bytes | None, str, Link | None]:
    """The content of a line if it is good, what is wrong, and its link."""
    fault = "it is no entry"
    for one in before:
        try:
            content, link, _ = read_link(line, one, chained)
            Entry.from_json(content.decode())
            return content, "", link
        except (LabelwiseError, TypeError, ValueError, RecursionError) as error:
            fault = str(error)
    stored = own_link(line)
    if stored is None or (stored.number <= number + 1 and vouched):
        return None, f"{fault}; it is set aside", None
    try:  # entries before it are missing or damaged: nothing vouches for this one, nothing speaks against it
        content = line[: line.rindex(b',"n":')] + b"}"
        Entry.from_json(content.decode())
    except (LabelwiseError, TypeError, ValueError, RecursionError) as error:
        return None, f"{error}; it is set aside", None
    missing = stored.number - number - 1
    return (
        content,
        f"{missing} entries before it are missing" if missing else "nothing vouches for it; it stays",
        stored,
    )


def repair_ledger(path: Path) -> Path | None:
    """Write a ledger of the good entries. Returns where the damaged file was set aside; None if it was whole."""
    # A process that adds an entry at this moment waits, and sees then that the file was replaced.
    with open_locked(path, os.O_RDONLY) if path.exists() else contextlib.nullcontext():
        found = salvage(path)
        if not found.faults:
            return None
        moved = damaged_name(path)
        if path.exists():
            create_file(moved, path.read_bytes())
        link, lines = Link(), []
        for content in found.entries:
            link = link.after(content)
            lines.append(link.write(content) + b"\n")
        write_bytes(path, b"".join(lines))
        write_head(path, link)
        return moved


def damaged_name(path: Path) -> Path:
    """A name next to a file under which it is set aside."""
    stem = f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}"
    number, found = 1, path.with_name(stem)
    while found.exists():
        number += 1
        found = path.with_name(f"{stem}-{number}")
    return found
