"""Outcomes of checks (passed, failed, not applicable), and the file that a failing case is saved to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from labelwise.errors import LabelwiseError
from labelwise.io.files import atomic_file

Status = Literal["passed", "failed", "not applicable"]
SIGNS: dict[Status, str] = {"passed": "ok", "failed": "FAILED", "not applicable": "-"}


class CheckFailed(LabelwiseError):
    """A strategy fails a check; the message says what was expected and what was found."""


class NotApplicable(LabelwiseError):
    """A check does not apply to this strategy or this machine; the message says why."""


@dataclass(frozen=True)
class Outcome:
    """One check of one strategy.

    Attributes:
        strategy: its name.
        check: the name of the check.
        status: "passed", "failed" or "not applicable".
        why: what was found where it failed, or why it does not apply.
        seconds: wall-clock time.
        seed: of the random problems; `labelwise verify NAME --seed SEED` repeats them.
        saved: the file with the arrays of the failing problem; None where no file was written.
        arrays: those arrays by name; empty unless the check failed.
    """

    strategy: str
    check: str
    status: Status
    why: str = ""
    seconds: float = 0.0
    seed: int = 0
    saved: str | None = None
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict, repr=False, compare=False)

    def as_json(self) -> dict[str, object]:
        """All fields but the arrays, which are in the file `saved`."""
        return {key: value for key, value in asdict(self).items() if key != "arrays"}


@dataclass(frozen=True)
class Report:
    """The outcomes of the checks that ran.

    Attributes:
        outcomes: one for each strategy and check.
    """

    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed and at least one passed."""
        return not self.failures and any(one.status == "passed" for one in self.outcomes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.outcomes if one.status == "failed")

    def status(self, strategy: str, check: str) -> Status:
        """The status of one check of one strategy; "not applicable" where it was not run.

        Args:
            strategy: its name.
            check: as `labelwise verify` lists it.
        """
        found = [one.status for one in self.outcomes if (one.strategy, one.check) == (strategy, check)]
        return found[0] if found else "not applicable"

    def __str__(self) -> str:
        """One line for each check, with what was found where it failed."""
        width = max((len(one.check) for one in self.outcomes), default=0)
        return "\n".join(
            f"{one.strategy}  {one.check:{width}}  {SIGNS[one.status]}{f'  {one.why}' if one.why else ''}"
            for one in self.outcomes
        )


def save_case(outcome: Outcome, folder: Path) -> Path:
    """Write the arrays, seed and message of a failing check to an .npz file, which `np.load` reads."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{outcome.strategy}-{outcome.check}-{outcome.seed}")
    path = folder / f"{stem}.npz"
    about = json.dumps({**outcome.as_json(), "saved": str(path)})
    arrays = {re.sub(r"\W+", "_", name): np.asarray(array) for name, array in outcome.arrays.items()}
    with atomic_file(path) as file:
        np.savez_compressed(file, **{**arrays, "about": np.array(about)})  # type: ignore[arg-type]
    return path
