"""Kept runs: the records of a comparison in a folder, one file for each recipe and seed, so that it can go on later.

FOLDER/plan.json                 what was asked for; a folder goes on with the same question only
FOLDER/runs/RECIPE-SEED.jsonl    a line for each round, on disk as soon as the round is over
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelwise.bench.compare import Comparison, compare
from labelwise.bench.data import Data
from labelwise.errors import StoreError
from labelwise.report.atomic import write_text
from labelwise.report.record import Record, append, read_records


@dataclass(frozen=True)
class KeptRuns:
    """A folder for the runs of a comparison; `about` is what has to be the same when it goes on."""

    folder: Path
    about: dict[str, Any]

    def open(self) -> bool:
        """Begin or go on; whether there is something to go on with. StoreError where the folder is of another run."""
        path = self.folder / "plan.json"
        if not path.exists():
            write_text(path, json.dumps(self.about, indent=1) + "\n")
            return False
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise StoreError(f"{path} cannot be read ({error}); name another folder") from error
        for name, wanted in self.about.items():
            before = found.get(name) if isinstance(found, dict) else None
            if before != json.loads(json.dumps(wanted)):
                raise StoreError(
                    f"{self.folder} holds a run with {name} {before!r}, this one has {wanted!r}; name another folder, "
                    "or ask for the same as before to go on"
                )
        return any((self.folder / "runs").glob("*.jsonl"))

    def records(
        self, plan: Comparison, data: Callable[[int], Data], learner: Callable[[Data, str], Any], model: str
    ) -> Iterator[Record]:
        """The records of every recipe and seed: those of finished runs are read, the others are run now.

        `data` gives the rows for a seed, `learner` a fresh learner of them for a recipe.
        """
        for seed in plan.seeds:
            rows: Data | None = None
            for recipe in plan.recipes:
                path = self._path(recipe, seed)
                done = self._finished(path, plan)
                if done:
                    yield from done
                    continue
                rows = data(seed) if rows is None else rows
                path.unlink(missing_ok=True)  # a run that was broken off begins again
                one = replace(plan, recipes=(recipe,), seeds=(seed,))
                for record in compare(one, rows, _of(learner, rows, recipe), model):
                    append(path, record)
                    yield record

    def _finished(self, path: Path, plan: Comparison) -> list[Record]:
        """The records of a run that came to its end; none of one that did not."""
        if not path.exists():
            return []
        found = read_records(path)
        return found if [record.round for record in found] == list(range(plan.n + 1)) else []

    def _path(self, recipe: str, seed: int) -> Path:
        return self.folder / "runs" / f"{re.sub(r'[^A-Za-z0-9.+-]+', '-', recipe)}-{seed}.jsonl"


def _of(learner: Callable[[Data, str], Any], rows: Data, recipe: str) -> Callable[[], Any]:
    return lambda: learner(rows, recipe)
