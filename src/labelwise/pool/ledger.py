"""Ledger: the append-only list of answers. What is labelled, with what and since when is computed from it."""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import LabelError, LabelwiseError, RowError, StoreError
from labelwise.io.files import append_at, open_locked, read_all, sync_folder

_FIELDS = {"round", "ids", "labels", "weights", "strategy", "notes"}


@dataclass(frozen=True)
class Entry:
    """Answers given together: a label and maybe a weight of each id, with the round and strategy of the picks."""

    round: int
    ids: list[int]
    labels: list[int | float]
    weights: list[float] | None = None
    strategy: str = ""
    notes: dict[str, Any] = field(default_factory=dict)  # anything JSON can hold

    def __post_init__(self) -> None:
        if not _is_int(self.round) or self.round < 0:
            raise RowError(f"round is a whole number from 0 on, not {self.round!r}.")
        _check_ids(self.ids)
        _check_values("labels", self.labels, self.ids)
        if self.weights is not None:
            _check_values("weights", self.weights, self.ids)
            for row, weight in zip(self.ids, self.weights):
                if weight < 0:
                    raise RowError(f"row {row}: its weight is {weight}; a number from 0 on was expected.")

    def to_json(self) -> str:
        """One line of JSON, without its end."""
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))

    @staticmethod
    def from_json(line: str) -> Entry:
        """The entry that `to_json` wrote."""
        data = json.loads(line)
        if not isinstance(data, dict) or not {"round", "ids", "labels"} <= set(data) <= _FIELDS:
            found = ", ".join(sorted(data)) if isinstance(data, dict) else type(data).__name__
            raise ValueError(f"the fields {', '.join(sorted(_FIELDS))} were expected, {found} was found")
        return Entry(**data)


class Ledger:
    """Entries, in memory or in a file of JSON lines.

    With a path, `append` returns only when the entry is on disk. Of two processes that append to one file the later
    gets a StoreError and has to open it again; no entry is lost. A process killed in the middle of a write leaves part
    of a line: it was never acknowledged, is left out on opening with a warning, and is overwritten by the next append.
    Anything else that is broken is a StoreError which names the file and line.

    >>> ledger = Ledger()
    >>> entry = ledger.add(0, ids=[4, 2], labels=[1, 0])
    >>> entry = ledger.add(1, ids=[2], labels=[1])
    >>> ledger.labelled, ledger.labels, ledger.free(torch.arange(5))
    (tensor([4, 2]), tensor([1, 1]), tensor([0, 1, 3]))
    """

    def __init__(self, path: str | Path | None = None):
        self.path = None if path is None else Path(path)
        self._entries: list[Entry] = []
        self._end = 0  # bytes of the file that hold whole entries
        self._open = False  # whether the last of them lacks its line end
        self._torn = b""  # what follows them: an entry cut off while being written
        if self.path is not None and self.path.exists():
            self._load(self.path)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, the oldest first."""
        return tuple(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    def add(
        self,
        round: int,
        ids: Any,
        labels: Any,
        weights: Any = None,
        strategy: str = "",
        notes: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Append an entry made of lists, numpy arrays or tensors."""
        given = None if weights is None else [float(weight) for weight in _listed(weights)]
        return self.append(Entry(round, _listed(ids), _listed(labels), given, strategy, dict(notes or {})))

    def append(self, entry: Entry) -> Entry:
        """Write the entry, wait until it is on disk, and only then count it."""
        if self.path is not None:
            try:
                line = entry.to_json().encode() + b"\n"
            except (TypeError, ValueError) as error:
                raise StoreError(f"an entry of round {entry.round} cannot be written as JSON: {error}.") from error
            self._write(self.path, line)
        self._entries.append(entry)
        return entry

    @property
    def labelled(self) -> Tensor:
        """Ids that have an answer (n,), in the order of their first one."""
        return torch.tensor(list(self._answers()), dtype=torch.int64)

    @property
    def labels(self) -> Tensor:
        """The last answer for each id of `labelled`: int64 if all are whole numbers, else float64."""
        values = list(self._answers().values())
        whole = all(isinstance(value, int) for value in values)
        return torch.tensor(values, dtype=torch.int64 if whole else torch.float64)

    @property
    def weights(self) -> Tensor:
        """The last weight given to each id of `labelled` (float64), 1 where none ever was."""
        answers = dict.fromkeys(self._answers(), 1.0)
        for entry in self._entries:
            # A later correction of the label says nothing about the weight it was picked with.
            answers.update(zip(entry.ids, entry.weights) if entry.weights is not None else ())
        return torch.tensor(list(answers.values()), dtype=torch.float64)

    @property
    def round_of(self) -> dict[int, int]:
        """The round in which each id was first answered."""
        rounds: dict[int, int] = {}
        for entry in self._entries:
            for row in entry.ids:
                rounds.setdefault(row, entry.round)
        return rounds

    def free(self, ids: Tensor) -> Tensor:
        """Those of `ids` that have no answer, in their order."""
        return ids[torch.isin(ids, self.labelled.to(ids.device), invert=True)]

    def _answers(self) -> dict[int, int | float]:
        answers: dict[int, int | float] = {}
        for entry in self._entries:
            answers.update(zip(entry.ids, entry.labels))
        return answers

    def _load(self, path: Path) -> None:
        try:
            with open_locked(path, os.O_RDONLY) as handle:
                data = read_all(handle)
        except OSError as error:
            raise StoreError(f"{path}: a ledger that can be read was expected ({error}); see to its rights.") from error
        self._end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._end].split(b"\n")[:-1], start=1):
            try:
                self._entries.append(Entry.from_json(line.decode()))
            except (LabelwiseError, TypeError, ValueError) as error:
                raise StoreError(
                    f"{path} line {number}: not an entry of a ledger ({error}). The line was changed or damaged after "
                    "it was written; restore the file from a copy, or remove that line to lose its answers alone."
                ) from error
        self._take_rest(path, data[self._end :])

    def _take_rest(self, path: Path, rest: bytes) -> None:
        """Read what follows the last line end: an entry that lacks only its line end counts, a part of one does not."""
        if not rest:
            return
        try:
            self._entries.append(Entry.from_json(rest.decode()))
        except (LabelwiseError, TypeError, ValueError):
            self._torn = rest
            warnings.warn(
                f"{path}: its last {len(rest)} bytes are an entry that was cut off while being written; it is left "
                "out and the next entry overwrites it. Give its answers again, or restore the file from a copy.",
                UserWarning,
                stacklevel=4,
            )
        else:
            self._end += len(rest)
            self._open = True

    def _write(self, path: Path, line: bytes) -> None:
        line = b"\n" + line if self._open else line
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file with entries that is gone is not made again: its answers would be lost in silence.
            with open_locked(path, os.O_RDWR | (0 if self._end else os.O_CREAT)) as handle:
                self._check_unchanged(path, handle)
                self._put(path, handle, line)
        except OSError as error:
            raise StoreError(f"{path}: the entry could not be written ({error}); it was not added.") from error
        self._end += len(line)
        self._open = False

    def _check_unchanged(self, path: Path, handle: int) -> None:
        """Raise if another process has changed the file. The caller has the lock."""
        found, expected = os.fstat(handle).st_size, self._end + len(self._torn)
        if found != expected or os.pread(handle, len(self._torn), self._end) != self._torn:
            raise StoreError(
                f"{path} has {found} bytes, {expected} were expected: another process writes to it. The entry was not "
                "added. Let one process own a ledger; open it again to see what the other wrote."
            )

    def _put(self, path: Path, handle: int, line: bytes) -> None:
        """Write and sync the line; after an error the file ends with its last whole entry."""
        try:
            append_at(handle, line, self._end)
            self._torn = b""
            if self._end == 0:
                sync_folder(path.parent)
        except OSError:
            self._torn = os.pread(handle, len(line), self._end)
            raise


def _listed(values: Any) -> list[Any]:
    """A plain list of plain numbers; bools are 0 and 1."""
    plain = values.tolist() if hasattr(values, "tolist") else list(values)
    items = [value.item() if hasattr(value, "item") else value for value in plain]
    return [int(value) if isinstance(value, bool) else value for value in items]


def _check_ids(ids: list[int]) -> None:
    if not isinstance(ids, list) or not ids:
        raise RowError(f"ids: a list of at least one id was expected, {ids!r} was found.")
    seen: set[int] = set()
    for row in ids:
        if not _is_int(row):
            raise RowError(f"ids are whole numbers, not {row!r}.")
        if row in seen:
            raise RowError(f"id {row} occurs more than once in one entry; give each row one label.")
        seen.add(row)


def _check_values(what: str, values: Any, ids: list[int]) -> None:
    if not isinstance(values, list) or len(values) != len(ids):
        found = len(values) if isinstance(values, list) else type(values).__name__
        raise RowError(f"{what}: one for each of the {len(ids)} ids was expected, {found} was found.")
    for row, value in zip(ids, values):
        if not _is_int(value) and not (isinstance(value, float) and math.isfinite(value)):
            raise LabelError(f"row {row}: {value!r} in {what}; a finite number was expected.")


def _is_int(value: Any) -> bool:
    """A whole number that fits 64 bits, as tensors hold them."""
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63
