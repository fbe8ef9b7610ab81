"""What a check says: passed, failed or not applicable; and the file a failing case is saved to."""

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
    """A strategy does not do what the check asks; the text says what was expected and what was found."""


class NotApplicable(LabelwiseError):
    """The check has nothing to say about this strategy or on this machine; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """One check of one strategy.

    Attributes:
        strategy: its name.
        check: the name of the check.
        status: "passed", "failed" or "not applicable".
        why: what was found where it failed, or why it does not apply.
        seconds: how long it took on the clock.
        seed: of the random problems; `labelwise verify NAME --seed` makes them again.
        saved: the file with the arrays of the failing problem.
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
        """Everything but the arrays, which are in the file `saved`."""
        return {key: value for key, value in asdict(self).items() if key != "arrays"}


@dataclass(frozen=True)
class Report:
    """The outcomes of all checks that ran."""

    outcomes: tuple[Outcome, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing failed, and something was checked."""
        return not self.failures and any(one.status == "passed" for one in self.outcomes)

    @property
    def failures(self) -> tuple[Outcome, ...]:
        return tuple(one for one in self.outcomes if one.status == "failed")

    def status(self, strategy: str, check: str) -> Status:
        """The status of one check of one strategy; "not applicable" where it was not run."""
        found = [one.status for one in self.outcomes if (one.strategy, one.check) == (strategy, check)]
        return found[0] if found else "not applicable"

    def __str__(self) -> str:
        """One line for each check; lines that failed say what was found."""
        width = max((len(one.check) for one in self.outcomes), default=0)
        return "\n".join(
            f"{one.strategy}  {one.check:{width}}  {SIGNS[one.status]}{f'  {one.why}' if one.why else ''}"
            for one in self.outcomes
        )


def save_case(outcome: Outcome, folder: Path) -> Path:
    """The arrays, the seed and the text of a failing check, as one .npz file: np.load(path) reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", f"{outcome.strategy}-{outcome.check}-{outcome.seed}")
    path = folder / f"{stem}.npz"
    about = json.dumps({**outcome.as_json(), "saved": str(path)})
    arrays = {re.sub(r"\W+", "_", name): np.asarray(array) for name, array in outcome.arrays.items()}
    with atomic_file(path) as file:
        np.savez_compressed(file, **{**arrays, "about": np.array(about)})  # type: ignore[arg-type]
    return path
