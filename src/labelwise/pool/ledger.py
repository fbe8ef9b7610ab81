"""Ledger: the append-only list of answers. What is labelled, with what and since when is computed from it."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from labelwise.errors import LabelError, LabelwiseError, RowError, StoreError, warn
from labelwise.io.chain import Link, head_file, read_head, read_link, write_head
from labelwise.io.files import LOCK_TIMEOUT, append_at, open_locked, read_all, sync_folder

_FIELDS = {"round", "ids", "labels", "weights", "strategy", "notes", "keys"}


@dataclass(frozen=True)
class Entry:
    """Answers given together: a label and maybe a weight of each id, with the round and strategy of the picks.

    Where all labels are None, the answers to these rows are taken back.
    """

    round: int
    ids: list[int]
    labels: list[int | float] | list[None]
    weights: list[float] | None = None
    strategy: str = ""
    notes: dict[str, Any] = field(default_factory=dict)  # anything JSON can hold
    keys: list[Any] | None = None  # what the user calls the rows, where that is not their ids

    def __post_init__(self) -> None:
        if not _is_int(self.round) or self.round < 0:
            raise RowError(f"round is a whole number from 0 on, not {self.round!r}.")
        _check_ids(self.ids)
        if not self.is_retraction:
            _check_values("labels", self.labels, self.ids)
        if self.weights is not None:
            _check_values("weights", self.weights, self.ids)
            for row, weight in zip(self.ids, self.weights):
                if weight < 0:
                    raise RowError(f"row {row}: its weight is {weight}; a number from 0 on was expected.")

    @property
    def is_retraction(self) -> bool:
        """Whether the answers to these rows are taken back."""
        return isinstance(self.labels, list) and self.labels == [None] * len(self.ids)

    def to_json(self) -> str:
        """One line of JSON, without its end."""
        fields = asdict(self)
        if self.keys is None:
            del fields["keys"]
        return json.dumps(fields, allow_nan=False, separators=(",", ":"))

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
    Anything else that is broken, changed or missing is a StoreError which names the file and line; see `chain.py`.

    Args:
        path: the file of JSON lines; None keeps the entries in memory.
        lock_timeout: seconds to wait for a process that has the file locked.

    Raises:
        StoreError: the file cannot be read, or is broken, changed or cut.

    >>> ledger = Ledger()
    >>> entry = ledger.add(0, ids=[4, 2], labels=[1, 0])
    >>> entry = ledger.add(1, ids=[2], labels=[1])
    >>> ledger.labelled, ledger.labels, ledger.free(torch.arange(5))
    (tensor([4, 2]), tensor([1, 1]), tensor([0, 1, 3]))
    """

    def __init__(self, path: str | Path | None = None, lock_timeout: float = LOCK_TIMEOUT):
        self._lock_timeout = lock_timeout
        self.path = None if path is None else Path(path)
        self._entries: list[Entry] = []
        self._end = 0  # bytes of the file that hold whole entries
        self._open = False  # whether the last of them lacks its line end
        self._torn = b""  # what follows them: an entry cut off while being written
        self._links = [Link()]  # of each entry, see `chain.py`
        self._chained = False  # whether the last entry in the file has its link written
        if self.path is not None:
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
        keys: list[Any] | None = None,
    ) -> Entry:
        """Append an entry made of lists, numpy arrays or tensors.

        Args:
            round: the round of the answers, from 0.
            ids: (n,) of the rows.
            labels: (n,) class numbers, or numbers in regression.
            weights: (n,) at least 0; None for equal ones.
            strategy: the name of the strategy that asked.
            notes: facts that JSON can hold.
            keys: (n,) what the user calls the rows, where those are not their ids.

        Returns:
            The entry.

        Raises:
            RowError: the arrays do not fit each other, or a weight is below 0.
            StoreError: the file was changed by another process.
            LabelError: a label is not a finite number.
        """
        rows, answers = _listed(ids), _listed(labels)
        _check_values("labels", answers, rows)  # None in all places would take answers back
        given = None if weights is None else [float(weight) for weight in _listed(weights)]
        return self.append(Entry(round, rows, answers, given, strategy, dict(notes or {}), keys))

    def retract(self, round: int, ids: Any, keys: list[Any] | None = None) -> Entry:
        """Append an entry that takes the answers to these rows back.

        Args:
            round: the round in which they are taken back.
            ids: (n,) of the rows.
            keys: (n,) what the user calls the rows.

        Returns:
            The entry.

        Raises:
            RowError: an id is not a whole number, or is given twice.
            StoreError: the file was changed by another process.
        """
        rows = _listed(ids)
        return self.append(Entry(round, rows, [None] * len(rows), keys=keys))

    def append(self, entry: Entry) -> Entry:
        """Write the entry, wait until it is on disk, and only then count it.

        Args:
            entry: answers, or answers taken back.

        Returns:
            The entry.

        Raises:
            StoreError: the file was changed by another process.
        """
        if self.path is not None:
            try:
                content = entry.to_json().encode()
            except (TypeError, ValueError) as error:
                raise StoreError(f"an entry of round {entry.round} cannot be written as JSON: {error}.") from error
            link = self._links[-1].after(content)
            self._write(self.path, link.write(content) + b"\n", link)
            self._links.append(link)
            self._chained = True
        self._entries.append(entry)
        return entry

    @property
    def labelled(self) -> Tensor:
        """Ids that have an answer (n,), in the order of their first one since they were last without."""
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
        weights: dict[int, float] = {}
        for entry in self._entries:
            if entry.is_retraction:
                _remove(entry.ids, weights)
                continue
            for place, row in enumerate(entry.ids):
                # A later correction of the label says nothing about the weight it was picked with.
                weights[row] = weights.get(row, 1.0) if entry.weights is None else entry.weights[place]
        return torch.tensor(list(weights.values()), dtype=torch.float64)

    def joint_weights(self, rows: int) -> Tensor:
        """The weight (float64) of each id of `labelled` in the design of all rounds together, about 1 on average.

        A batch's weights w describe the rows that were free when it was drawn. In the estimate of one round, earlier
        rows are known and stand for themselves, and the batch for all others. The estimates of the rounds are
        combined so that uniform draws would weigh the same in every round (levelled, Farquhar et al. 2021):

            1 + (w - 1) (rows free now) / (rows free after the round)

        Weighted means of labelled rows are then unbiased for the pool, and no row that stands for itself counts twice.

        Args:
            rows: how many rows the pool has, labelled ones included.

        Returns:
            A tensor (L,) in the order of `labelled`.

        >>> ledger = Ledger()
        >>> entry = ledger.add(0, ids=[0, 1], labels=[0, 1], weights=[0.5, 1.5])
        >>> entry = ledger.add(1, ids=[2, 3], labels=[1, 1], weights=[0.8, 1.2])
        >>> ledger.joint_weights(10).tolist()
        [0.625, 1.375, 0.8, 1.2]
        """
        weights = self.weights
        count: dict[int, int] = {}
        rounds = self.round_of
        for number in rounds.values():
            count[number] = count.get(number, 0) + 1
        left, free = rows, {}
        for number in sorted(count):
            left -= count[number]
            free[number] = left
        ratio = [max(left, 0) / free[rounds[row]] if free[rounds[row]] > 0 else 0.0 for row in self._answers()]
        return 1 + (weights - 1) * torch.tensor(ratio, dtype=torch.float64)

    @property
    def round_of(self) -> dict[int, int]:
        """The round in which each id was first answered since it was last without an answer."""
        rounds: dict[int, int] = {}
        for entry in self._entries:
            if entry.is_retraction:
                _remove(entry.ids, rounds)
                continue
            for row in entry.ids:
                rounds.setdefault(row, entry.round)
        return rounds

    def digest_after(self, answers: int) -> str | None:
        """The digest of the entry that ended with this many answers, corrections counted; None if there is none.

        Args:
            answers: how many, from the first one on.

        Returns:
            The digest, which says which answers these were; "" for none, and in memory.
        """
        count = 0
        for number, entry in enumerate((None, *self._entries)):
            count += 0 if entry is None else len(entry.ids)
            if count == answers:
                return self._links[number].digest if self.path is not None else ""
        return None

    def free(self, ids: Tensor) -> Tensor:
        """Those of `ids` that have no answer, in their order.

        Args:
            ids: (n,) int64, such as all of a pool.

        Returns:
            A tensor of at most n ids.
        """
        return ids[torch.isin(ids, self.labelled.to(ids.device), invert=True)]

    def _answers(self) -> dict[int, int | float]:
        answers: dict[int, int | float] = {}
        for entry in self._entries:
            if entry.is_retraction:
                _remove(entry.ids, answers)
            else:
                answers.update((row, label) for row, label in zip(entry.ids, entry.labels) if label is not None)
        return answers

    def _load(self, path: Path) -> None:
        try:
            with open_locked(path, os.O_RDONLY, self._lock_timeout) as handle:
                data, head = read_all(handle), read_head(path, repair(path))
        except FileNotFoundError:
            head = read_head(path, repair(path))
            if head is not None and head.number:
                raise StoreError(
                    f"{path} is missing; {head.number} entries were written to it. Restore it from a copy"
                ) from None
            return
        except OSError as error:
            raise StoreError(f"{path}: a ledger that can be read was expected ({error}); see to its rights.") from error
        self._end = data.rfind(b"\n") + 1
        for number, line in enumerate(data[: self._end].split(b"\n")[:-1], start=1):
            try:
                self._read(line)
            except (LabelwiseError, TypeError, ValueError, RecursionError) as error:
                raise StoreError(
                    f"{path} line {number}: not an entry of a ledger ({error}). The line, or one before it, was "
                    f"changed, damaged or removed after it was written; {repair(path)}"
                ) from error
        self._take_rest(path, data[self._end :])
        self._check_head(path, head)

    def _read(self, line: bytes) -> None:
        content, link, self._chained = read_link(line, self._links[-1], self._chained)
        self._entries.append(Entry.from_json(content.decode()))
        self._links.append(link)

    def _take_rest(self, path: Path, rest: bytes) -> None:
        """Read what follows the last line end: an entry that lacks only its line end counts, a part of one does not."""
        if not rest:
            return
        try:
            self._read(rest)
        except (LabelwiseError, TypeError, ValueError, RecursionError):
            self._torn = rest
        else:
            self._end += len(rest)
            self._open = True

    def _check_head(self, path: Path, head: Link | None) -> None:
        """Compare the entries with the head, which knows how many were acknowledged."""
        if head is None:
            if self._chained:
                raise StoreError(f"{head_file(path)} is missing, so entries may be too; {repair(path)}")
            with contextlib.suppress(OSError):  # a folder that cannot be written to
                write_head(path, self._links[-1])  # a ledger of an early version
        elif head.number > len(self._entries):
            raise StoreError(
                f"{path} was cut off: it has {len(self._entries)} entries, {head.number} were written; {repair(path)}"
            )
        elif self._links[head.number] != head:
            raise StoreError(
                f"{path}: its first {head.number} entries are not those that were written; one of them was changed; "
                f"{repair(path)}"
            )
        if self._torn:
            warn(
                f"{path}: its last {len(self._torn)} bytes are an entry that was cut off while being written; it is "
                "left out and the next entry overwrites it. Give its answers again, or restore the file from a copy.",
            )

    def _write(self, path: Path, line: bytes, link: Link) -> None:
        line = b"\n" + line if self._open else line
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # A file with entries that is gone is not made again: its answers would be lost in silence.
            flags = os.O_RDWR | (0 if self._end else os.O_CREAT)
            with open_locked(path, flags, self._lock_timeout) as handle:
                self._check_unchanged(path, handle)
                self._put(path, handle, line)
                with contextlib.suppress(OSError):  # the entry is on disk; a head that is behind vouches for the others
                    write_head(path, link)
        except OSError as error:
            raise StoreError(f"{path}: the entry could not be written ({error}); it was not added.") from error
        self._end += len(line)
        self._open = False

    def _check_unchanged(self, path: Path, handle: int) -> None:
        """Raise if another process has changed the file. The caller has the lock."""
        if not os.path.samestat(os.fstat(handle), path.stat()):  # replaced while this process waited for the lock
            raise StoreError(f"{path} was replaced by another process. The entry was not added; open the ledger again.")
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


def repair(path: Path) -> str:
    """What to do about a damaged ledger."""
    return (
        f"restore it from a copy, or run `labelwise doctor {path.parent} --repair`, which sets it aside and keeps what "
        "is good"
    )


def _remove(ids: list[int], found: dict[int, Any]) -> None:
    for row in ids:
        found.pop(row, None)


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
