"""Reproductions: experiments of the papers that can be run by name, `labelwise reproduce dynamical/figure1`.

To add some: a module with a tuple REPRODUCTIONS, and its name in MODULES.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from labelwise.errors import ArgumentError
from labelwise.report.atomic import write_pieces, write_text

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
    """What came out: numbers that go into JSON, a picture (PNG), and what they say in a sentence or two."""

    numbers: dict[str, Any]
    picture: bytes
    verdict: str


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


def reproduce(name: str, setting: Setting, folder: Path) -> Result:
    """Run one; writes NAME.png and NAME.json (with the setting) into `folder`, "/" in the name becoming "-"."""
    every = reproductions()
    if name not in every:
        raise ArgumentError(f"there is no reproduction {name!r}; there are: {', '.join(every)}")
    if setting.scale not in SCALES:
        raise ArgumentError(f"the scale is one of {', '.join(SCALES)}, not {setting.scale!r}")
    result = every[name].run(setting)
    stem = name.replace("/", "-")
    write_pieces(folder / f"{stem}.png", [result.picture])
    about = {"name": name, "paper": every[name].paper, "scale": setting.scale, "seed": setting.seed}
    text = json.dumps({**about, "verdict": result.verdict, **result.numbers}, indent=1, allow_nan=False)
    write_text(folder / f"{stem}.json", text + "\n")
    return result
