"""How long the papers' tables and figures took where their pages were made: paper_times.json, made from the records.

`python benchmarks/paper_times.py` writes that file from the pages under docs/results; a test compares the two.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from labelwise.reproduce.registry import Setting, device_of
from labelwise.stats.record import Record, read_records

FILE = Path(__file__).with_name("paper_times.json")
WHERE = {"cuda": "one H200", "cpu": "one core"}
Times = dict[str, dict[str, dict[str, dict[str, list[float]]]]]  # name, scale, device, sheet: seconds, runs


def timed(name: str, smoke: float, small: float, paper: float) -> Callable[[Setting], tuple[float, str]]:
    """The seconds of a figure at a setting and what they are of: as measured, or else the guesses given here."""
    guesses = {"smoke": (smoke, "cpu"), "small": (small, "cpu"), "paper": (paper, "cuda")}

    def seconds(setting: Setting) -> tuple[float, str]:
        found = kept().get(name, {}).get(setting.scale, {})
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
    """The device in words, as many cores as there are processes."""
    return WHERE[device] if device == "cuda" or setting.processes == 1 else f"{setting.processes} cores"


def of_run(name: str, scale: str, device: str, sheet: str) -> float | None:
    """The seconds of one run of a sheet of a table, where they were measured."""
    found = kept().get(name, {}).get(scale, {}).get(device, {}).get(sheet)
    return None if found is None else found[0] / found[1]


@functools.cache
def kept() -> Times:
    """The times that were measured."""
    found: Times = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def measured(folders: Iterable[Path]) -> Times:
    """The times of the pages in these folders, by their records; the processor's seconds where there are none."""
    times: Times = {}
    for path in sorted(path for folder in folders for path in folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if {"name", "scale", "command", "environment"} <= set(found):
            device = "cpu" if "CPU" in found["environment"]["device"] or "--device cpu" in found["command"] else "cuda"
            times.setdefault(found["name"], {}).setdefault(found["scale"], {})[device] = _of(path, found)
    return times


def _of(path: Path, found: dict[str, Any]) -> dict[str, list[float]]:
    """Seconds and runs of each sheet of a table; of a figure, under no name, seconds and seeds."""
    records = path.with_name(f"{path.stem}.jsonl.gz")
    if not records.is_file():
        rows = found["sheets"] if isinstance(found.get("sheets"), dict) else {"": None}  # those of sabal/table3
        return {row: [round(found["cpu_seconds"] / len(rows), 1), 1] for row in rows}
    every = read_records(records)
    if "sheets" not in found:
        return {"": [_seconds(every), len({record.seed for record in every})]}
    parts = {one["name"]: [r for r in every if r.run.startswith(f"{one['name']}/")] for one in found["sheets"]}
    return {name: [_seconds(part), len({record.run for record in part})] for name, part in parts.items()}


def _seconds(records: Iterable[Record]) -> float:
    return round(sum(one.train_seconds + one.read_seconds + one.select_seconds for one in records), 1)
