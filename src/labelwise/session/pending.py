"""Asked: the last batch a session asked for, until its answers are there; also on disk, so that a new process goes on.

What a row's weight was when it was drawn, what its strategy wants to be told again, and which answers the model that
drew it was trained on: none of it can be found from the answers alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from labelwise.errors import StoreError
from labelwise.pool import Ledger, Pool
from labelwise.selection import Selection, Strategy
from labelwise.signals.read import Reader
from labelwise.stats.estimate import FEWEST, factor_of, losses_of, pool_mean

VERSION = 1
_FIELDS = ("ids", "weights", "scores", "notes", "round", "answers", "free", "law", "history")


@dataclass(frozen=True)
class Asked:
    """A batch that was asked for."""

    picks: Selection
    round: int  # the answers' round
    answers: int  # given before it was asked for, corrections counted
    free: int  # rows it was chosen from
    law: str  # how the law of its draws gives an estimate of the model: "replaced", "once" or, where there is none, ""
    history: bool  # whether its strategy wants its notes back with the answers

    @staticmethod
    def of(strategy: Strategy, picks: Selection, round: int, answers: int, free: int, model: bool) -> Asked:
        """The batch `picks` of `strategy`; `model` says whether one was there that the batch can say something of."""
        able = strategy.known_law and model and len(picks) >= FEWEST
        able = able and not picks.notes.get("filled") and not picks.notes.get("warm_rows")
        law = ("replaced" if strategy.weighted else "once") if able else ""
        return Asked(picks, round, answers, free, law, strategy.needs.history)

    def weights_of(self, rows: list[int]) -> list[float]:
        """The weight each row was drawn with; 1 for rows that were not asked for."""
        weight = dict(zip(self.picks.ids.tolist(), self.picks.weights.tolist()))
        return [weight.get(row, 1.0) for row in rows]

    def notes_for(self, rows: list[int]) -> dict[str, Any]:
        """What goes into the ledger with answers for `rows`: the notes, and which rows had not been asked for."""
        asked = set(self.picks.ids.tolist())
        unasked = [row for row in rows if row not in asked]
        if not self.history or not self.picks.notes or len(unasked) == len(rows):
            return {}
        return {**self.picks.notes, "unasked": unasked} if unasked else dict(self.picks.notes)

    def complete(self, ledger: Ledger) -> bool:
        """Whether every row of the batch has its answer."""
        return bool(torch.isin(torch.from_numpy(self.picks.ids), ledger.labelled).all())

    def before(self, ledger: Ledger) -> Ledger | None:
        """The answers that were there when it was asked for; None where they are not the first ones of `ledger`."""
        found, count = Ledger(), 0
        for entry in ledger:
            if count == self.answers:
                break
            found.append(entry)
            count += len(entry.ids)
        return found if count == self.answers else None

    def estimate(self, reader: Reader, pool: Pool, ledger: Ledger) -> dict[str, Any]:
        """Pool loss and accuracy of the model behind `reader`, which chose the batch, from the batch's answers."""
        answer = dict(zip(ledger.labelled.tolist(), ledger.labels.tolist()))
        labels = torch.tensor([answer[row] for row in self.picks.ids.tolist()])
        factor = factor_of(self.picks.notes) if self.law == "replaced" else 1 - len(self.picks) / self.free
        found: dict[str, Any] = {"labels": len(self.picks), "pool": self.free}
        for name, values in losses_of(reader, pool, torch.from_numpy(self.picks.ids), labels).items():
            share = name == "accuracy"
            found[name] = pool_mean(values, self.picks.weights, share=share, factor=factor).to_json()
        return found

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        picks = {name: getattr(self.picks, name).tolist() for name in ("ids", "weights", "scores")}
        rest = {name: getattr(self, name) for name in ("round", "answers", "free", "law", "history")}
        return {"version": VERSION, **picks, "notes": plain(self.picks.notes), **rest}

    @staticmethod
    def from_json(found: Any, where: str) -> Asked:
        """The batch that `to_json` wrote; `where` names the file in an error."""
        version = found.get("version") if isinstance(found, dict) else None
        if version != VERSION:
            raise StoreError(
                f"{where} has version {version!r}; this Labelwise reads version {VERSION}. Remove it to go on without "
                "the weights of the batch that was asked for, and ask again"
            )
        for name in _FIELDS:
            if name not in found:
                raise StoreError(f"{where}: the field {name!r} is missing; restore the file from a copy, or remove it")
        picks = Selection(found["ids"], found["weights"], found["scores"], found["notes"])
        return Asked(picks, found["round"], found["answers"], found["free"], found["law"], found["history"])


def plain(value: Any) -> Any:
    """Notes as JSON can hold them: tensors and arrays as lists, what is not finite or not known as text."""
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return repr(value)
