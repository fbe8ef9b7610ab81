"""Record: one round of one run, numbers only, one JSON line; and the files that hold them."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from labelwise.errors import StoreError
from labelwise.io.files import append_at, write_bytes

_CHECKSUM = re.compile(r',"crc":"([0-9a-f]{8})"\}$')  # at the end of a line; lines of early versions have none
_NOT_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class Record:
    """What one round cost and gained.

    Attributes:
        run: data set, model, strategy and seed, with slashes between them.
        strategy: its name.
        seed: the seed of the run.
        round: the number of the round, from 0.
        labels: rows labelled when the model was trained.
        metrics: accuracy, or rmse and others, on the test rows.
        select_seconds: time to choose the batch.
        train_seconds: time to train.
        read_seconds: time to read the signals.
        peak_mb: peak memory of the selection.
        picked: ids chosen after this model; empty in the last round.
        notes: facts about the fit and the selection.
        environment: versions, device, seeds by purpose.

    >>> Record("digits/mlp/random/0", "random", seed=0, round=0, labels=20, metrics={"accuracy": 0.5}).labels
    20
    """

    run: str
    strategy: str
    seed: int
    round: int
    labels: int
    metrics: dict[str, float]
    select_seconds: float = 0.0
    train_seconds: float = 0.0
    read_seconds: float = 0.0
    peak_mb: float = 0.0
    picked: list[Any] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """One line of strict JSON, without the line end. NaN and infinities become "nan", "inf", "-inf".

        Raises:
            StoreError: a field has a value of another type or range.

        >>> from_json(Record("digits/mlp/random/0", "random", 0, 0, 20, {"accuracy": 0.5}).to_json()).labels
        20
        """
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        _check(values)
        return json.dumps(_finite(values), allow_nan=False, separators=(",", ":"))


def from_json(line: str) -> Record:
    """The record of one line; a missing, unknown or wrong field is a StoreError that names it.

    Args:
        line: as `append` or `Record.to_json` writes it.

    Raises:
        StoreError: a field is missing, unknown or wrong, or the line has another checksum than its own.
    """
    if (checksum := _CHECKSUM.search(line)) is not None:
        line = line[: checksum.start()] + "}"
        if _crc(line) != checksum[1]:
            raise StoreError(f"A record was changed after it was written; found {_short(line)}.")
    try:
        values = json.loads(line, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"Expected a record as one line of JSON; found {_short(line)}: {error}.") from error
    if not isinstance(values, dict):
        raise StoreError(f"Expected a record as a JSON object; found {_short(line)}.")
    names = [f.name for f in fields(Record)]
    for name in names:
        if name not in values:
            raise StoreError(f"A record needs the field {name!r}; found the fields {', '.join(values) or 'none'}.")
    for name in values:
        if name not in names:
            raise StoreError(
                f"A record has no field {name!r}; its fields are {', '.join(names)}. "
                "If a newer Labelwise wrote this, read it with that version."
            )
    for name in ("select_seconds", "train_seconds", "read_seconds", "peak_mb"):
        values[name] = _number(values[name])
    if isinstance(values["metrics"], dict):
        values["metrics"] = {name: _number(value) for name, value in values["metrics"].items()}
    _check(values)
    return Record(**values)


def write(path: str | os.PathLike[str], records: Iterable[Record]) -> None:
    """Write the records to `path`, one line each, replacing the file atomically.

    Args:
        path: the file.
        records: in the order of its lines.
    """
    write_bytes(path, (_line(record) for record in records))


def append(path: str | os.PathLike[str], record: Record) -> None:
    """Add one line and return when it is on the disk. One writer at a time.

    A last line torn by a killed writer is taken away first, so that the new line does not grow out of it.

    Args:
        path: the file; made, with its folders, where it is missing.
        record: the numbers of one round.
    """
    line = _line(record)
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b") as file:
        end = file.seek(0, os.SEEK_END)
        start = _start_of_last_line(file, end)
        if start < end:  # the last line has no line end
            file.seek(start)
            if _torn(file.read()):
                end = start
            else:
                line = b"\n" + line
        append_at(file.fileno(), line, end)


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Every record of the file, in order; one whose name ends in .gz is unpacked.

    A last line that was torn when its writer was killed is left out; whatever else cannot be read is a
    StoreError that names the file and the line.

    Args:
        path: a file of `append` or `write`.

    Raises:
        StoreError: the file or one of its lines cannot be read.
    """
    try:
        content = Path(path).read_bytes()
        content = gzip.decompress(content) if Path(path).suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise StoreError(f"The records in {os.fspath(path)!r} cannot be read: {error}.") from error
    lines = content.split(b"\n")
    if not lines[-1] or _torn(lines[-1]):
        lines.pop()
    records = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(from_json(line.decode("utf-8")))
        except (StoreError, UnicodeDecodeError) as error:
            raise StoreError(f"{os.fspath(path)}, line {number}: {error}") from error
    return records


def _line(record: Record) -> bytes:
    """A line with a checksum of its own."""
    text = record.to_json()
    return f'{text[:-1]},"crc":"{_crc(text)}"}}\n'.encode("ascii")


def _crc(text: str) -> str:
    return f"{zlib.crc32(text.encode()):08x}"


def _start_of_last_line(file: Any, end: int, step: int = 65536) -> int:
    """The position after the last line end, read backwards: records files grow, their last line does not."""
    position = end
    while position > 0:
        begin = max(0, position - step)
        file.seek(begin)
        found = file.read(position - begin).rfind(b"\n")
        if found >= 0:
            return int(begin + found + 1)
        position = begin
    return 0


def _torn(last: bytes) -> bool:
    """Whether a last line without line end is the beginning of one: a cut JSON object is never valid JSON."""
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return True
    return False


def _check(values: dict[str, Any]) -> None:
    for name in ("run", "strategy"):
        _expect(
            isinstance(values[name], str) and values[name] != "",
            name,
            "a text that is not empty",
            values[name],
        )
    _expect(_whole(values["seed"]), "seed", "a whole number", values["seed"])
    for name in ("round", "labels"):
        _expect(_whole(values[name]) and values[name] >= 0, name, "a whole number, 0 or more", values[name])
    for name in ("select_seconds", "train_seconds", "read_seconds", "peak_mb"):
        _expect(_real(values[name]) and not values[name] < 0, name, "a number, 0 or more", values[name])
    for name in ("metrics", "notes", "environment"):
        _expect(isinstance(values[name], dict), name, "an object of names and values", values[name])
        for key in values[name]:
            _expect(isinstance(key, str), name, "names that are texts", key)
    for key, value in values["metrics"].items():
        _expect(_real(value), f"metrics[{key!r}]", "a number", value)
    for key, value in values["environment"].items():
        _expect(isinstance(value, str), f"environment[{key!r}]", "a text", value)
    _expect(isinstance(values["picked"], list), "picked", "a list of ids", values["picked"])
    for position, value in enumerate(values["picked"]):
        known = _whole(value) or isinstance(value, str | list)
        _expect(known, f"picked[{position}]", "a row id: a whole number, a text or a list of them", value)
    _check_note(values["notes"], "notes")


def _check_note(value: Any, name: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _expect(isinstance(key, str), name, "names that are texts", key)
            _check_note(inner, f"{name}[{key!r}]")
    elif isinstance(value, list | tuple):
        for position, inner in enumerate(value):
            _check_note(inner, f"{name}[{position}]")
    else:
        known = value is None or isinstance(value, str | bool | int | float)
        _expect(known, name, "a value JSON can hold (text, number, true, false, null, list, object)", value)


def _expect(is_fine: bool, name: str, expected: str, found: Any) -> None:
    if not is_fine:
        raise StoreError(f"The field {name} of a record: expected {expected}, found {_short(found)}.")


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number(value: Any) -> Any:
    """A number field read back: whole numbers become floats, "nan" and "inf" what they stand for."""
    if isinstance(value, str):
        return _NOT_FINITE.get(value, value)
    if isinstance(value, int) and abs(value) > 2**1000:  # beyond every float
        raise StoreError(f"A number of a record is at most 2**1000; found {_short(value)}.")
    return float(value) if _real(value) else value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def _constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON; write it as a text")


def _short(value: Any) -> str:
    text = repr(value)
    short = text if len(text) <= 80 else text[:77] + "..."
    return f"{short} ({type(value).__name__})"
