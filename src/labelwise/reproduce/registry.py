"""Reproductions: experiments of the papers that can be run by name, `labelwise reproduce dynamical/figure1`.

To add some: a module with a tuple REPRODUCTIONS, and its name in MODULES.
"""

from __future__ import annotations

import gzip
import importlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from labelwise.bench.suite.suite import slug
from labelwise.errors import ArgumentError, StoreError
from labelwise.io.files import write_bytes, write_text
from labelwise.io.text import did_you_mean
from labelwise.reproduce.paper_pages import TITLES, write_paper_pages
from labelwise.reproduce.tables import WHOLE
from labelwise.stats.environment import environment
from labelwise.stats.record import Record, read_records

Scale = Literal["smoke", "small", "paper"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "paper")
MODULES = tuple(
    f"labelwise.reproduce.{name}"
    for name in ("sabal.timing", "run_tables", "dynamical.figures", "ally.figures", "bss.figures", "bss.network")
)
_SMOKE = "**Smoke scale: this shows that it runs. Nothing below says anything of a method.**\n\n"
WORK = "work"  # the folder of runs that can continue, inside the folder of the pages


@dataclass(frozen=True)
class Setting:
    """How an experiment is run.

    Attributes:
        scale: its size.
        data: the data set; None for its own choice.
        seed: the first seed.
        on_progress: called with a line of text now and then.
        only: rows of a table to run; all if empty.
        seeds: how many seeds; None for those of the scale.
        processes: how many processes run side by side.
        device: "cpu" or "cuda"; None for CUDA if available.
        paper_compat: do as the paper where Labelwise differs by default.
        page: run nothing, and write the page of what has been run.
        work: the folder in which a stopped run continues.
        saved_records: the records next to the page, for `page`.
        saved_numbers: the JSON next to the page, likewise.
        command: what was typed.
        together: whether the networks of all runs are trained at once; None for CUDA with one process.
        changes: what differs from the paper's protocol, as (name, value): parameters of the network and its training,
            or "centred" of the inputs. Such a run has a page of its own.
    """

    scale: Scale = "small"
    data: str | None = None
    seed: int = 0
    on_progress: Callable[[str], None] = lambda text: None
    only: tuple[str, ...] = ()
    seeds: int | None = None
    processes: int = 1
    device: str | None = None
    paper_compat: bool = False
    page: bool = False
    work: Path | None = None
    saved_records: tuple[Record, ...] = ()
    saved_numbers: dict[str, Any] = field(default_factory=dict, hash=False)
    command: str = ""
    together: bool | None = None
    changes: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Result:
    """The result of a reproduction.

    Attributes:
        numbers: for the JSON.
        picture: PNG.
        verdict: a few sentences.
        table: Markdown for the page.
        records: every round of every run, if there are any.
        differences: from the paper.
    """

    numbers: dict[str, Any]
    picture: bytes
    verdict: str
    table: str = ""
    records: tuple[Record, ...] = ()
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper; `why` tells why it cannot be run, if so."""

    name: str  # paper/figure
    paper: str
    what: str
    run: Callable[[Setting], Result] | None
    data: tuple[str, ...] = ()  # data sets of the paper's scale
    seconds: Callable[[Setting], tuple[float, str]] | None = None  # how long at a setting, about, and on what
    tables: bool = False  # whether it takes only, seeds, processes, device and page
    why: str = ""
    differences: tuple[str, ...] = ()  # from the paper, whatever the setting


def device_of(setting: Setting) -> str:
    """The device of a setting; CUDA by default if available."""
    import torch

    if setting.device not in (None, "cpu", "cuda"):
        raise ArgumentError(f"--device is cpu or cuda, not {setting.device!r}")
    return setting.device or ("cuda" if torch.cuda.is_available() else "cpu")


def trains_together(setting: Setting) -> bool:
    """Whether the networks of all runs are trained at once."""
    if setting.together is not None:
        return setting.together
    return setting.processes == 1 and device_of(setting) == "cuda"


def stem_of(name: str, setting: Setting) -> str:
    """The names of the files of a page without their endings."""
    return "-".join([name.replace("/", "-"), *(slug(f"{key}-{value}") for key, value in setting.changes)])


def read_changes(texts: Sequence[str]) -> tuple[tuple[str, Any], ...]:
    """The changes of `--set NAME=VALUE`: numbers, true, false, null or texts.

    >>> read_changes(["keep=accuracy", "padding=0"])
    (('keep', 'accuracy'), ('padding', 0))
    """
    found = []
    for text in texts:
        name, equals, value = text.partition("=")
        if not (name and equals and value):
            raise ArgumentError(f"--set: expected NAME=VALUE such as keep=accuracy, found {text!r}")
        try:
            found.append((name, json.loads(value)))
        except ValueError:
            found.append((name, value))
    return tuple(found)


def reproductions() -> dict[str, Reproduction]:
    """Every table and figure of the papers by name, including those that cannot be run."""
    found = [one for module in MODULES for one in importlib.import_module(module).REPRODUCTIONS]
    return {one.name: one for one in sorted(found, key=lambda one: one.name)}


def named(name: str) -> Reproduction:
    """The reproduction of this name.

    Raises:
        ArgumentError: there is none, or it cannot be run.
    """
    every = reproductions()
    if name not in every:
        hint = did_you_mean(name, every) or ";"
        raise ArgumentError(f"there is no reproduction {name!r}{hint} there are: {', '.join(every)}")
    if every[name].run is None:
        raise ArgumentError(f"{name} is not run: {every[name].why}")
    return every[name]


def describe_time(one: Reproduction, setting: Setting) -> str:
    """How long a reproduction takes, in words."""
    if one.seconds is None:
        return "not known"
    seconds, where = one.seconds(setting)
    if seconds < 90:
        return f"about {max(1, round(seconds))} s {where}"
    return f"about {seconds / 60:.0f} min {where}" if seconds < 5400 else f"about {seconds / 3600:.1f} h {where}"


def reproduce(name: str, setting: Setting, folder: Path, command: str = "") -> Result:
    """Run a reproduction and write its result into `folder`, with "-" for "/" in the file names.

    NAME.png, NAME.json (with the setting), NAME.md (the page), NAME.jsonl.gz (records, where there are any), and
    README.md, which puts the pages of all reproductions in the folder together. `command` is what the page says to run.
    """
    one = named(name)
    if setting.scale not in SCALES:
        raise ArgumentError(f"the scale is one of {', '.join(SCALES)}, not {setting.scale!r}")
    if not one.tables and setting.only:
        raise ArgumentError(f"{name} is one experiment: expected no row of a table (--only)")
    if not one.tables and setting.changes:
        raise ArgumentError(f"{name} is no table of learning curves: expected no --set")
    stem = stem_of(name, setting)
    command = command or ("" if setting.page else f"labelwise reproduce {name}")
    setting = _with_saved(replace(setting, command=command), one, folder, stem)
    began = time.process_time()
    assert one.run is not None, "named() has looked"
    result = one.run(setting)
    verdict = _SMOKE * (setting.scale == "smoke") + _substitution_note(one, result.numbers) + result.verdict
    result = replace(result, verdict=verdict, differences=(*one.differences, *result.differences))
    about = _about(one, setting, result, round(time.process_time() - began))
    text = json.dumps(
        {**about, "verdict": result.verdict, "differences": result.differences, **result.numbers},
        indent=1,
        allow_nan=False,
    )
    write_bytes(folder / f"{stem}.png", result.picture)
    write_text(folder / f"{stem}.json", text + "\n")
    if result.records:
        lines = "".join(record.to_json() + "\n" for record in result.records)
        write_bytes(folder / f"{stem}.jsonl.gz", gzip.compress(lines.encode(), mtime=0))
    write_text(folder / f"{stem}.md", _page(stem, about, result))
    write_paper_pages(folder)
    write_text(folder / "README.md", _index_page(folder))
    return result


def _with_saved(setting: Setting, one: Reproduction, folder: Path, stem: str) -> Setting:
    """The setting with the records and numbers next to the page, where they are wanted, and a folder to continue in."""
    if (one.tables and _is_of(folder, stem, setting)) or (setting.page and not one.tables):
        there = _numbers(folder, stem, setting)
        setting = replace(setting, saved_numbers=there, saved_records=tuple(read_records(folder / f"{stem}.jsonl.gz")))
    if setting.work is None:
        run = f"{stem}-{setting.scale}{'-compat' if setting.paper_compat else ''}"
        setting = replace(setting, work=folder / WORK / run)
    return setting


def _about(one: Reproduction, setting: Setting, result: Result, seconds: int) -> dict[str, Any]:
    """What was run, with command and environment; a page made again keeps those of its records."""
    about: dict[str, Any] = {"name": one.name, "what": one.what, "paper": one.paper, "scale": setting.scale}
    if setting.changes:
        about |= {"changes": dict(setting.changes), "what": f"{one.what}, with {_words(setting.changes)}"}
    about |= {"paper_compat": setting.paper_compat, "seed": setting.seed, "command": setting.command}
    about |= {"cpu_seconds": seconds, "environment": result.numbers.get("environment", environment())}
    if setting.page and setting.saved_numbers:
        stable = ("command", "cpu_seconds", "environment")  # of the run that made the records
        about |= {key: setting.saved_numbers[key] for key in stable if key in setting.saved_numbers}
    if result.records and result.records[0].environment:
        about["environment"] = {**result.records[0].environment, "seed": str(setting.seed)}
    if one.tables:
        about["command"] = _commands(result.numbers.get("sheets"), about["command"])
    again = setting.page and (setting.command or setting.saved_numbers.get("again", ""))
    return about | ({"again": again} if again and again != about["command"] else {})


def _words(changes: tuple[tuple[str, Any], ...]) -> str:
    return ", ".join(f"{name}={value}" for name, value in changes)


def _is_of(folder: Path, stem: str, setting: Setting) -> bool:
    """Whether the folder has numbers and records of a table with the same setting."""
    try:
        _numbers(folder, stem, setting)
    except (StoreError, ArgumentError):
        return False
    return True


def _commands(sheets: Any, command: str) -> str:
    """The commands that ran the rows of a table; rows without one were run by `command`."""
    if not isinstance(sheets, list):
        return command
    for sheet in sheets:
        sheet.setdefault("command", command)
    return "\n".join(dict.fromkeys(line for sheet in sheets for line in sheet["command"].splitlines()))


def _numbers(folder: Path, stem: str, setting: Setting) -> dict[str, Any]:
    """The numbers next to a page that has records; raise if they are of another setting."""
    path, records = folder / f"{stem}.json", folder / f"{stem}.jsonl.gz"
    if not path.is_file() or not records.is_file():
        raise StoreError(f"--page: {records.name} and {path.name} were expected in {folder}; run it without --page")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    wanted = {"scale": setting.scale, "paper_compat": setting.paper_compat, "seed": setting.seed}
    for key, value in wanted.items():
        there = found.get(key, False)  # pages older than --paper-compat do not name it
        if there != value:
            raise ArgumentError(f"--page: {path} is of {key} {there!r}; expected the same, found {value!r}")
    return found


def _substitution_note(one: Reproduction, numbers: dict[str, Any]) -> str:
    """A sentence if the data set is not that of the paper."""
    ran = numbers.get("data")
    if not isinstance(ran, str) or not one.data or ran in {*one.data, *(WHOLE.get(name, name) for name in one.data)}:
        return ""
    sizes = f", {numbers['start']} first labels, batches of {numbers['k']}" if {"start", "k"} <= set(numbers) else ""
    return f"**Run on {ran} instead of {', '.join(one.data)}{sizes}.**\n\n"


def _page(stem: str, about: dict[str, Any], result: Result) -> str:
    """The page of a reproduction as Markdown."""
    ran = ", ".join(f"{name} {value}" for name, value in about["environment"].items())
    compat = ", as the paper's programme does (--paper-compat)" if about["paper_compat"] else ""
    # Runs in processes of their own are not in it; their pages have the seconds of all runs from the records.
    spent = "" if result.records else f"{about['cpu_seconds']} seconds of the processor. "
    parts = [
        f"# {about['name']}: {about['what']}",
        f"{about['paper']}; {about['scale']} scale, seeds from {about['seed']} on{compat}. Written by\n\n"
        f"```\n{about['command']}\n```",
        f"The page was made again from the records by `{about['again']}`." if "again" in about else "",
        f"![{about['what']}]({stem}.png)",
        result.verdict,
        result.table.strip(),
        "\n".join(["Differences from the paper:\n", *(f"- {line}" for line in result.differences)])
        if result.differences
        else "",
        f"Numbers: [{stem}.json]({stem}.json)."
        + (f" Every round of every run: [{stem}.jsonl.gz]({stem}.jsonl.gz)." if result.records else ""),
        f"{spent}{ran[:1].upper()}{ran[1:]}.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _index_page(folder: Path) -> str:
    """A page for the folder: the verdict and command of each reproduction."""
    parts = ["# Reproductions", "", "Each section was written by its command.", ""]
    papers = [f"[{name}.md]({name}.md)" for name in TITLES if (folder / f"{name}.md").is_file()]
    if papers:
        parts += [f"All claims of a paper on one page: {', '.join(papers)}.", ""]
    for path in sorted(folder.glob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and {"name", "what", "verdict", "command"} <= set(found):
            parts += [f"## [{found['name']}]({path.stem}.md): {found['what']}", "", f"![{path.stem}]({path.stem}.png)"]
            commands = [f"`{line}`" for line in found["command"].splitlines()]
            parts += ["", found["verdict"], "", "\n".join(commands), ""]
    return "\n".join(parts)
