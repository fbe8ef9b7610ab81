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

from labelwise.errors import StoreError
from labelwise.pool import Ledger, Pool
from labelwise.selection import Selection, Strategy
from labelwise.signals.read import Reader
from labelwise.stats.estimate import FEWEST, factor_of, losses_of, pool_mean

VERSION = 1
# The fields of the file and those of the class; names in files stay as they were first written.
_FIELDS = {"round": "round", "answers": "answers", "free": "free", "law": "estimator", "history": "history"}


@dataclass(frozen=True)
class PendingBatch:
    """A batch that was asked for.

    Attributes:
        picks: the batch.
        round: the round of its answers.
        answers: how many answers there were before it, corrections counted.
        free: how many rows it was chosen from.
        estimator: how its weights give an estimate of the model: "replaced" for draws with replacement, "once" for
            draws without, "" for none.
        history: whether its strategy wants its notes back with the answers.
    """

    picks: Selection
    round: int
    answers: int
    free: int
    estimator: Literal["replaced", "once", ""]
    history: bool

    @staticmethod
    def of(strategy: Strategy, picks: Selection, round: int, answers: int, free: int, has_model: bool) -> PendingBatch:
        """The batch `picks` of `strategy`; `has_model` says whether a model chose it that can be estimated."""
        estimator: Literal["replaced", "once", ""] = ""
        drawn = not picks.notes.get("filled") and not picks.notes.get("warm_rows")
        if strategy.known_law and has_model and len(picks) >= FEWEST and drawn:
            estimator = "replaced" if strategy.weighted else "once"
        return PendingBatch(picks, round, answers, free, estimator, strategy.needs.history)

    def weights_of(self, rows: list[int]) -> list[float]:
        """The weight each row was drawn with; 1 for rows outside the batch."""
        weight = dict(zip(self.picks.ids.tolist(), self.picks.weights.tolist()))
        return [weight.get(row, 1.0) for row in rows]

    def notes_for(self, rows: list[int]) -> dict[str, Any]:
        """The notes that go into the ledger with answers for `rows`, and which of these rows were not asked for."""
        asked = set(self.picks.ids.tolist())
        unasked = [row for row in rows if row not in asked]
        if not self.history or not self.picks.notes or len(unasked) == len(rows):
            return {}
        return {**self.picks.notes, "unasked": unasked} if unasked else dict(self.picks.notes)

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
        factor = factor_of(self.picks.notes) if self.estimator == "replaced" else 1 - len(self.picks) / self.free
        found: dict[str, Any] = {"labels": len(self.picks), "pool": self.free}
        for name, values in losses_of(reader, pool, torch.from_numpy(self.picks.ids), labels).items():
            share = name == "accuracy"
            found[name] = pool_mean(values, self.picks.weights, share=share, factor=factor).to_json()
        return found

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        picks = {name: getattr(self.picks, name).tolist() for name in ("ids", "weights", "scores")}
        rest = {name: getattr(self, attribute) for name, attribute in _FIELDS.items()}
        return {"version": VERSION, **picks, "notes": plain(self.picks.notes), **rest}

    @staticmethod
    def from_json(stored: Any, where: str) -> PendingBatch:
        """The batch that `to_json` wrote; `where` names the file in an error."""
        version = stored.get("version") if isinstance(stored, dict) else None
        if version != VERSION:
            raise StoreError(
                f"{where} has version {version!r}; this Labelwise reads version {VERSION}. Remove it to go on without "
                "the weights of the batch that was asked for, and ask again"
            )
        for name in ("ids", "weights", "scores", "notes", *_FIELDS):
            if name not in stored:
                raise StoreError(f"{where}: the field {name!r} is missing; restore the file from a copy, or remove it")
        picks = Selection(stored["ids"], stored["weights"], stored["scores"], stored["notes"])
        return PendingBatch(picks, **{attribute: stored[name] for name, attribute in _FIELDS.items()})


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
