"""Files with a checksum of their own: a change after they were written is found when they are read.

A JSON file has a field `checksum`: SHA-256 of its other fields, in a form that does not depend on spaces and order. A
binary file begins with a line that holds SHA-256 of the rest. A checksum finds damage and slips; who changes a file on
purpose can change its checksum as well.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from labelwise.errors import StoreError
from labelwise.io.files import atomic_file, write_text

CHECKSUM = "checksum"
_HEAD = b"labelwise sha256 "
_HEAD_SIZE = len(_HEAD) + 64 + 1


def digest_of(values: Any) -> str:
    """SHA-256 of values as JSON has them, in one form for equal values."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def write_checked(path: Path, values: Mapping[str, Any], indent: int | None = None) -> None:
    """Replace a JSON file by these fields and their checksum. See `atomic_file`."""
    write_text(path, json.dumps(with_checksum(values), indent=indent) + "\n")


def with_checksum(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as JSON has them, and their checksum."""
    plain = {name: value for name, value in json.loads(json.dumps(values)).items() if name != CHECKSUM}
    return {**plain, CHECKSUM: digest_of(plain)}


def without_checksum(values: Mapping[str, Any], path: Path, remedy: str, early: int | None = 0) -> dict[str, Any]:
    """The fields of a JSON file without their checksum, which must be right.

    Files up to version `early` had none; with None, files of early versions had no version either.

    Raises:
        StoreError: the file was changed after it was written.
    """
    plain = {name: value for name, value in values.items() if name != CHECKSUM}
    version = values.get("version", 0)
    if CHECKSUM not in values and (early is None or (isinstance(version, int) and 0 < version <= early)):
        return plain
    if values.get(CHECKSUM) != digest_of(plain):
        raise StoreError(f"{path} was changed after it was written: its checksum is not that of its content; {remedy}")
    return plain


def read_checked(path: Path, remedy: str, early: int | None = 0) -> dict[str, Any]:
    """The fields of a JSON file that `write_checked` wrote. See `without_checksum` for `early`.

    Raises:
        FileNotFoundError, NotADirectoryError: there is none.
        StoreError: the file cannot be read, or was changed.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {remedy}") from error
    if not isinstance(found, dict):
        raise StoreError(f"{path}: expected an object, found {type(found).__name__}; {remedy}")
    return without_checksum(found, path, remedy, early)


def write_sealed(path: Path, write: Callable[[Callable[[Any], object]], object]) -> None:
    """Replace a binary file by what `write` gives to its argument, after a line with its checksum."""
    sum_ = hashlib.sha256()
    with atomic_file(path) as file:
        file.write(bytes(_HEAD_SIZE))

        def add(data: Any) -> None:
            sum_.update(data)
            file.write(data)

        write(add)
        file.seek(0)
        file.write(_HEAD + sum_.hexdigest().encode() + b"\n")


def check_sealed(path: Path, remedy: str) -> int:
    """Check the checksum of a binary file. Returns where its content begins.

    Raises:
        StoreError: the file was changed, or is not one of `write_sealed`.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_SIZE)
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error}); {remedy}") from error
    if head != _HEAD + found.encode() + b"\n":
        raise StoreError(f"{path} was changed after it was written: its checksum is not that of its content; {remedy}")
    return _HEAD_SIZE


def read_sealed(path: Path, remedy: str, early: bool = False) -> bytes:
    """The content of a binary file that `write_sealed` wrote.

    Args:
        path: the file.
        remedy: what to do if it was changed.
        early: whether a file without a checksum, of an early version, is read as well.

    Raises:
        FileNotFoundError: there is none.
        StoreError: the file cannot be read, or was changed.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read ({error}); {remedy}") from error
    head, content = data[:_HEAD_SIZE], data[_HEAD_SIZE:]
    sum_ = hashlib.sha256(content).hexdigest().encode()
    if head == _HEAD + sum_ + b"\n":
        return content
    if early and _HEAD not in head and sum_ not in head and not _HEAD.startswith(data):
        return data
    raise StoreError(f"{path} was changed after it was written: its checksum is not that of its content; {remedy}")
