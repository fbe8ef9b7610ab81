"""How long tables and figures of the papers take, and which sheets a setting runs.

Times are those of the runs on the pages, in paper_times.json.

`python benchmarks/paper_times.py` writes that file from the pages under docs/results; a test compares the two.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from labelwise.errors import ArgumentError, SourceError
from labelwise.reproduce.registry import Setting, device_of
from labelwise.reproduce.tables import PaperTable, Sheet, changed, sized
from labelwise.stats.record import Record, read_records

FILE = Path(__file__).with_name("paper_times.json")
WHERE = {"cuda": "one H200", "cpu": "one core"}
Times = dict[str, dict[str, dict[str, dict[str, list[float]]]]]  # name, scale, device, sheet: seconds, runs


def timed(
    name: str, smoke: float, small: float, paper: float, paper_device: str = "cuda"
) -> Callable[[Setting], tuple[float, str]]:
    """A function that estimates the seconds of a figure: as measured, or else the guesses given here."""
    guesses = {"smoke": (smoke, "cpu"), "small": (small, "cpu"), "paper": (paper, paper_device)}

    def seconds(setting: Setting) -> tuple[float, str]:
        found = measured_times().get(name, {}).get(setting.scale, {})
        device = device_of(setting)
        device = device if device in found else next(iter(found), "")
        if not device:
            guess, device = guesses[setting.scale]
            return guess, f"on {WHERE[device]}, a guess"
        whole, seeds = found[device][""]
        side_by_side = setting.processes if device == "cpu" else 1
        return whole * (setting.seeds or seeds) / seeds / side_by_side, f"on {cores(setting, device)}, as measured"

    return seconds


def cores(setting: Setting, device: str) -> str:
    """The device in words."""
    return WHERE[device] if device == "cuda" or setting.processes == 1 else f"{setting.processes} cores"


def of_run(name: str, scale: str, device: str, sheet: str) -> float | None:
    """The seconds of one run of a sheet of a table, where they were measured."""
    found = measured_times().get(name, {}).get(scale, {}).get(device, {}).get(sheet)
    return None if found is None else found[0] / found[1]


@functools.cache
def measured_times() -> Times:
    """The measured times."""
    found: Times = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def measure_times(folders: Iterable[Path]) -> Times:
    """The times of the pages in these folders, from their records, or their processor seconds if they have none."""
    times: Times = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if {"name", "scale", "command", "environment"} <= set(found) and "changes" not in found:
            device = "cpu" if "CPU" in found["environment"]["device"] or "--device cpu" in found["command"] else "cuda"
            times.setdefault(found["name"], {}).setdefault(found["scale"], {})[device] = _of(path, found)
    return times


def _of(path: Path, found: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds and runs of each sheet of a table; of a figure, under no name, seconds and seeds."""
    records = path.with_name(f"{path.stem}.jsonl.gz")
    if not records.is_file():
        rows = found["sheets"] if isinstance(found.get("sheets"), dict) else {"": None}  # those of sabal/table3
        seeds = len(found["seeds"]) if isinstance(found.get("seeds"), list) else 1
        return {row: [round(found["cpu_seconds"] / len(rows), 1), seeds] for row in rows}
    every = read_records(records)
    if "sheets" not in found:
        return {"": [_seconds(every), len({record.seed for record in every})]}
    parts = {one["name"]: [r for r in every if r.run.startswith(f"{one['name']}/")] for one in found["sheets"]}
    return {name: [_seconds(part), len({record.run for record in part})] for name, part in parts.items()}


def _seconds(records: Iterable[Record]) -> float:
    return round(sum(one.train_seconds + one.read_seconds + one.select_seconds for one in records), 1)


# Images a second in training, on one H200 with captured steps and on one CPU core: guesses of the right size, for what
# was not measured at its scale and on its device (paper_times.py).
RATES: dict[str, tuple[float, float]] = {
    "lenet5": (1e5, 4e3),
    "tutorial_cnn": (2e5, 3e3),
    "vgg11": (5e4, 60.0),
    "vgg16": (2.5e4, 30.0),
    "resnet18": (2e4, 20.0),
    "bayesian_resnet18": (1e4, 20.0),
    "mlp": (3e5, 2e4),
}
_WIDE = 64


def chosen(table: PaperTable, setting: Setting) -> tuple[list[Sheet], list[str]]:
    """The sheets to run at a setting, and sentences on those whose data are missing."""
    wanted = [name.lower() for name in setting.only]
    sheets = [one for one in table.sheets if not wanted or _names(one) & set(wanted)]
    if not sheets:
        names = dict.fromkeys(name for one in table.sheets for name in (one.row, one.column) if name)
        raise ArgumentError(
            f"{table.name} has no row {', '.join(setting.only)}; --only takes one of: {'; '.join(names)}"
        )
    found: list[Sheet] = []
    missing: list[str] = []
    for one in sheets:
        try:
            fitted = sized(table.compatible(one) if setting.paper_compat else one, setting.scale)
        except SourceError as error:
            missing.append(f"Not run: {error}.")
            continue
        fitted = changed(fitted, setting.changes)
        found.append(fitted if setting.seeds is None else replace(fitted, seeds=setting.seeds))
    if not found:
        raise SourceError(" ".join(missing))
    return found, missing


def seconds_of(table: PaperTable, setting: Setting) -> tuple[float, str]:
    """About how long a table takes, measured on such a device or guessed, and in words which of the two."""
    device = device_of(setting)
    total, guessed = 0.0, False
    for sheet in chosen(table, setting)[0]:
        known = of_run(table.name, setting.scale, device, sheet.name)
        guessed = guessed or known is None
        total += sheet.seeds * len(sheet.strategies) * (_guess(sheet, device) if known is None else known)
    where = f"on {cores(setting, device)}, {'a guess' if guessed else 'as measured'}"
    return total / (1 if device == "cuda" else setting.processes), where


def _guess(sheet: Sheet, device: str) -> float:
    """Seconds of one run: images to train on, at the most, by the rate of its network."""
    labels = sum(sheet.start + sheet.k * t for t in range(sheet.rounds + 1))
    rate = RATES[sheet.model.kind][0 if device == "cuda" else 1]
    width = sheet.model.parameters.get("width", _WIDE)
    rate *= (_WIDE / width) ** 1.5 if device == "cpu" else 1.0
    return float(labels * sheet.model.parameters["epochs"] / rate + 0.1 * (sheet.rounds + 1))


def _names(sheet: Sheet) -> set[str]:
    """The names of a sheet that --only accepts, in lower case."""
    return {name.lower() for name in (sheet.row, sheet.row.split(" (")[0], sheet.column, sheet.name)}
