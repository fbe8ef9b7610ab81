"""PendingBatch: the batch that a session asked for last, until its answers are there.

It holds what the answers alone do not tell: the weight each row was drawn with, the notes that the strategy wants
back, and which answers the model that chose it was trained on. It is stored, so that a new process continues with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from labelwise.errors import LabelwiseError, StoreError
from labelwise.pool import Ledger, Pool
from labelwise.selection import Selection, Strategy
from labelwise.signals.read import Reader
from labelwise.stats.estimate import FEWEST, LAW, factor_of, losses_of, pool_mean

VERSION = 2  # up to 1, the file had no checksum
DESIGN = ("labels", "rank", "rank_available", "eigenvalues", "barriers", "good", "effective_sample_size", "warning")
# The fields of the file and those of the class; names in files stay as they were first written.
_FIELDS = {"round": "round", "answers": "answers", "free": "free", "law": "estimator", "history": "history"}
_LATER = ("has_model", "pool")  # fields that files of earlier versions lack


@dataclass(frozen=True)
class PendingBatch:
    """A batch that was asked for.

    Attributes:
        picks: the batch.
        round: the round of its answers.
        answers: how many answers there were before it, corrections counted.
        free: how many rows it was chosen from.
        estimator: the law by which it was drawn: "replaced" for draws with replacement, "once" for draws without, ""
            for none.
        history: whether its strategy wants its notes back with the answers.
        has_model: whether a model chose it that its answers can estimate.
        pool: how many rows the pool had.
    """

    picks: Selection
    round: int
    answers: int
    free: int
    estimator: Literal["replaced", "once", ""]
    history: bool
    has_model: bool = True  # as in files of earlier versions, where batches without a model have no law
    pool: int = 0

    @staticmethod
    def of(
        strategy: Strategy, picks: Selection, round: int, answers: int, free: int, has_model: bool, pool: int
    ) -> PendingBatch:
        """The batch `picks` of `strategy`; `has_model` says whether a model chose it that can be estimated."""
        estimator: Literal["replaced", "once", ""] = ""
        if strategy.known_law and not picks.notes.get("filled"):
            estimator = "replaced" if strategy.weighted else "once"
        return PendingBatch(picks, round, answers, free, estimator, strategy.needs.history, has_model, pool)

    @property
    def can_estimate(self) -> bool:
        """Whether its answers say how good the model is that chose it."""
        return bool(self.estimator) and self.has_model and len(self.picks) >= FEWEST

    @property
    def factor(self) -> float:
        """c of its draws, see `stats/estimate.py`."""
        return factor_of(self.picks.notes) if self.estimator == "replaced" else 1 - len(self.picks) / self.free

    @property
    def law(self) -> dict[str, Any]:
        """The note `LAW` of its answers; empty without a known law."""
        found = {"rows": len(self.picks), "free": self.free, "pool": self.pool, "factor": self.factor}
        return found if self.estimator else {}

    @property
    def design(self) -> dict[str, Any]:
        """The notes on the joint design of all labels, this batch included; empty for a batch drawn without weights."""
        notes = self.picks.notes
        return {name: plain(notes[name]) for name in DESIGN if name in notes} if "weight_scale" in notes else {}

    def weights_of(self, rows: list[int]) -> list[float]:
        """The weight each row was drawn with; 1 for rows outside the batch."""
        weight = dict(zip(self.picks.ids.tolist(), self.picks.weights.tolist()))
        return [weight.get(row, 1.0) for row in rows]

    def notes_for(self, rows: list[int]) -> dict[str, Any]:
        """The notes that go into the ledger with answers for `rows`, and which of these rows were not asked for."""
        wanted = set(self.picks.ids.tolist())
        unwanted = [row for row in rows if row not in wanted]
        if len(unwanted) == len(rows):
            return {}
        notes = dict(self.picks.notes) if self.history else self.design
        if self.law:
            notes[LAW] = self.law
        return {**notes, "unasked": unwanted} if unwanted and notes else notes

    def is_complete(self, ledger: Ledger) -> bool:
        """Whether every row of the batch has its answer."""
        return bool(torch.isin(torch.from_numpy(self.picks.ids), ledger.labelled).all())

    def ledger_before(self, ledger: Ledger) -> Ledger | None:
        """The answers there were before the batch; None if they are not the first ones of `ledger`."""
        before, count = Ledger(), 0
        for entry in ledger:
            if count == self.answers:
                break
            before.append(entry)
            count += len(entry.ids)
        return before if count == self.answers else None

    def estimate(self, reader: Reader, pool: Pool, ledger: Ledger) -> dict[str, Any]:
        """Loss and accuracy on the pool of the model `reader`, which chose the batch, from the batch's answers."""
        answer = dict(zip(ledger.labelled.tolist(), ledger.labels.tolist()))
        labels = torch.tensor([answer[row] for row in self.picks.ids.tolist()])
        found: dict[str, Any] = {"labels": len(self.picks), "pool": self.free}
        for name, values in losses_of(reader, pool, torch.from_numpy(self.picks.ids), labels).items():
            share = name == "accuracy"
            found[name] = pool_mean(values, self.picks.weights, share=share, factor=self.factor).to_json()
        return found

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        picks = {name: getattr(self.picks, name).tolist() for name in ("ids", "weights", "scores")}
        rest = {name: getattr(self, attribute) for name, attribute in _FIELDS.items()}
        rest |= {name: getattr(self, name) for name in _LATER}
        return {"version": VERSION, **picks, "notes": plain(self.picks.notes), **rest}

    @staticmethod
    def from_json(stored: Any, where: str) -> PendingBatch:
        """The batch that `to_json` wrote; `where` names the file in an error."""
        version = stored.get("version") if isinstance(stored, dict) else None
        if version not in (1, VERSION):
            raise StoreError(
                f"{where} has version {version!r}; this Labelwise reads versions up to {VERSION}. Remove it to go on "
                "without the weights of the batch that was asked for, and ask again"
            )
        for name in ("ids", "weights", "scores", "notes", *_FIELDS):
            if name not in stored:
                raise StoreError(f"{where}: the field {name!r} is missing; restore the file from a copy, or remove it")
        whole = [stored[name] for name in ("round", "answers", "free")] + [stored.get("pool", 0)]
        lists = [stored[name] for name in ("ids", "weights", "scores")]
        fine = all(isinstance(one, int) and not isinstance(one, bool) and one >= 0 for one in whole)
        fine = fine and all(
            isinstance(one, list) and all(isinstance(part, int | float) for part in one) for one in lists
        )
        fine = fine and isinstance(stored["notes"], dict) and isinstance(stored["history"], bool)
        fine = fine and isinstance(stored.get("has_model", True), bool)
        fine = fine and all(type(one) is int and abs(one) < 2**63 for one in stored["ids"])
        if not fine or stored["law"] not in ("replaced", "once", ""):
            raise StoreError(
                f"{where}: a field does not hold what is written there; restore it from a copy, or remove it"
            )
        try:
            picks = Selection(stored["ids"], stored["weights"], stored["scores"], stored["notes"])
        except (LabelwiseError, OverflowError) as error:
            raise StoreError(f"{where}: {error}; restore the file from a copy, or remove it") from error
        rest = {attribute: stored[name] for name, attribute in _FIELDS.items()}
        return PendingBatch(picks, **rest, **{name: stored[name] for name in _LATER if name in stored})


def plain(value: Any) -> Any:
    """Notes as JSON can hold them: tensors and arrays as lists, other objects and non-finite numbers as text."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return repr(value)
