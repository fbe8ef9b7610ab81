"""Reproductions: experiments of the papers that can be run by name, `labelwise reproduce dynamical/figure1`.

To add some: a module with a tuple REPRODUCTIONS, and its name in MODULES.
"""

from __future__ import annotations

import gzip
import importlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labelwise.errors import ArgumentError
from labelwise.report.atomic import write_pieces, write_text
from labelwise.report.environment import environment
from labelwise.report.record import Record

Scale = Literal["small", "paper"]
SCALES: tuple[Scale, ...] = ("small", "paper")
MODULES = ("labelwise.bench.reproduce_dynamical", "labelwise.bench.reproduce_ally")


@dataclass(frozen=True)
class Setting:
    """How an experiment is run: its size, the data set (None: its own choice), the seed, and who hears of progress."""

    scale: Scale = "small"
    data: str | None = None
    seed: int = 0
    say: Callable[[str], None] = lambda text: None


@dataclass(frozen=True)
class Result:
    """What came out: numbers that go into JSON, a picture (PNG), and what they say in a few sentences.

    `table` is Markdown for the page, `records` every round of every run, where there are any.
    """

    numbers: dict[str, Any]
    picture: bytes
    verdict: str
    table: str = ""
    records: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """An experiment of a paper."""

    name: str  # paper/figure
    paper: str
    what: str
    run: Callable[[Setting], Result]


def reproductions() -> dict[str, Reproduction]:
    """All of them, by name."""
    found = [one for module in MODULES for one in importlib.import_module(module).REPRODUCTIONS]
    return {one.name: one for one in found}


def reproduce(name: str, setting: Setting, folder: Path, command: str = "") -> Result:
    """Run one and write what came out into `folder`, "/" in the name becoming "-".

    NAME.png, NAME.json (with the setting), NAME.md (the page), NAME.jsonl.gz (records, where there are any), and
    README.md, which puts the pages of all reproductions in the folder together. `command` is what the page says to run.
    """
    every = reproductions()
    if name not in every:
        raise ArgumentError(f"there is no reproduction {name!r}; there are: {', '.join(every)}")
    if setting.scale not in SCALES:
        raise ArgumentError(f"the scale is one of {', '.join(SCALES)}, not {setting.scale!r}")
    began = time.process_time()
    result = every[name].run(setting)
    stem = name.replace("/", "-")
    write_pieces(folder / f"{stem}.png", [result.picture])
    about: dict[str, Any] = {"name": name, "what": every[name].what, "paper": every[name].paper, "scale": setting.scale}
    about |= {"seed": setting.seed, "command": command or f"labelwise reproduce {name}"}
    about |= {"cpu_seconds": round(time.process_time() - began), "environment": environment()}
    text = json.dumps({**about, "verdict": result.verdict, **result.numbers}, indent=1, allow_nan=False)
    write_text(folder / f"{stem}.json", text + "\n")
    if result.records:
        lines = "".join(record.to_json() + "\n" for record in result.records)
        write_pieces(folder / f"{stem}.jsonl.gz", [gzip.compress(lines.encode(), mtime=0)])
    write_text(folder / f"{stem}.md", _page(stem, about, result))
    write_text(folder / "README.md", _together(folder))
    return result


def _page(stem: str, about: dict[str, Any], result: Result) -> str:
    """What one reproduction gave, as Markdown."""
    ran = ", ".join(f"{name} {value}" for name, value in about["environment"].items())
    parts = [
        f"# {about['name']}: {about['what']}",
        f"{about['paper']}; {about['scale']} scale, seed {about['seed']}. Written by\n\n```\n{about['command']}\n```",
        f"![{about['what']}]({stem}.png)",
        result.verdict,
        result.table.strip(),
        f"Numbers: [{stem}.json]({stem}.json)."
        + (f" Every round of every run: [{stem}.jsonl.gz]({stem}.jsonl.gz)." if result.records else ""),
        f"{about['cpu_seconds']} seconds of the processor. {ran}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _together(folder: Path) -> str:
    """The pages of a folder on one: what each reproduction says, and its command."""
    parts = ["# Reproductions", "", "Each section was written by its command.", ""]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and {"name", "what", "verdict", "command"} <= set(found):
            parts += [f"## [{found['name']}]({path.stem}.md): {found['what']}", "", f"![{path.stem}]({path.stem}.png)"]
            parts += ["", found["verdict"], "", f"`{found['command']}`", ""]
    return "\n".join(parts)
