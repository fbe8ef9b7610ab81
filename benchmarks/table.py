"""The page: measured answers as Markdown, each figure beside what it has to reach."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

from shapes import Case

Answer = dict[str, Any]
SCORED = ("random", "confidence", "margin", "entropy")


def page(results: list[Answer], rates: Answer, options: argparse.Namespace, missing: list[str], asked: int) -> str:
    """The page of the results there are, of so many asked for."""
    parts = [
        "# Selection: time and memory",
        "<!-- Written by benchmarks/selection.py; a change by hand is lost at the next run. -->",
        _header(rates, options, results),
        "## Against plain",
        _plain_table(results),
        "## Against a Greedy of your own",
        _greedy_table(results),
        "## Against peers",
        _peer_table(results) if any(result["peers"] for result in results) else "No peer was measured.",
        "## Where the time goes",
        _limit_table(results, rates),
    ]
    if missing:
        parts.append(f"Not measured, since benchmarks/shapes.py has no shape for them: {', '.join(missing)}.")
    if len(results) < asked:
        parts.append(f"**The run did not finish: {len(results)} of {asked} cases.**")
    return "\n\n".join(parts) + "\n"


def progress(result: Answer) -> str:
    """One line for a case that is done."""
    case, ours, plain = result["case"], result["ours"], result["plain"]
    others = [(name, answer) for name, answer in result["peers"].items()]
    if result.get("greedy"):
        others.insert(0, ("own Greedy", result["greedy"]))
    times = [f"{name} {seconds(answer)}" for name, answer in others]
    return f"{case.strategy} {case.shape} {case.data}: ours {seconds(ours)}, " + ", ".join(
        [f"plain {seconds(plain)}", *times]
    )


def verdict(case: Case, ours: Answer, plain: Answer) -> tuple[str, str]:
    """(what is asked, whether it is met) of a case."""
    target = case.target
    checks: list[tuple[str, bool, str]] = []
    if target.times_plain is not None:
        ratio = _ratio(plain, ours)
        checks.append((f"{target.times_plain:g} x plain", ratio >= target.times_plain, f"{ratio:.1f} x"))
    if target.reads is not None:
        reads = ours.get("reads", float("inf"))
        checks.append((f"{target.reads:g} read", reads <= target.reads, f"{reads:.2f} reads"))
    if target.extra_mb is not None:
        extra = ours.get("extra_mb", float("inf"))
        checks.append((f"extra < {target.extra_mb:g} MB", extra < target.extra_mb, f"{extra:.0f} MB"))
    if target.same_picks:
        checks.append(("same picks", same_picks(case, ours, plain) == "same", "picks differ"))
    if not checks:
        return "none", "-"
    missed = [found for _, fine, found in checks if not fine]
    return ", ".join(asked for asked, _, _ in checks), f"not met: {', '.join(missed)}" if missed else "met"


def same_picks(case: Case, ours: Answer, plain: Answer) -> str:
    """How ours and plain agree in what they picked; sampled methods agree in law only."""
    if case.strategy in ("random", "badge", "typiclust", "probcover"):
        return "own chance"
    if "picks" not in ours or "picks" not in plain:
        return "-"
    mine, theirs = ours["picks"][: len(plain["picks"])], plain["picks"]
    if mine == theirs:
        return "same"
    shared = len(set(mine) & set(theirs))
    if shared == len(theirs):
        return "same set"
    first = next(place for place, (a, b) in enumerate(zip(mine, theirs)) if a != b)
    return f"{shared} of {len(theirs)}, first other at pick {first + 1}"


def seconds(answer: Answer) -> str:
    """Median seconds as text, or what stopped it."""
    if "median" not in answer:
        return str(answer.get("stopped", "-"))
    return _short(answer["median"]) + (" (x10)" if answer.get("scale", 1) == 10 else "") + " s"


def _best(answer: Answer) -> str:
    return f" ({_short(answer['best'])})" if "best" in answer else ""


def _short(value: float) -> str:
    return f"{value:.4f}" if value < 0.1 else f"{value:.3f}" if value < 1 else f"{value:.1f}"


def _ratio(slow: Answer, fast: Answer) -> float:
    return slow["best"] / fast["best"] if "best" in slow and "best" in fast else float("nan")


def _header(rates: Answer, options: argparse.Namespace, results: list[Answer]) -> str:
    found = {n: a.get("version") for result in results for n, a in result["peers"].items() if a.get("version")}
    versions = [f"Python {platform.python_version()}"]
    versions += [f"{name} {importlib.metadata.version(name)}" for name in ("labelwise", "torch", "numpy")]
    versions += [f"{name} {version}" for name, version in sorted(found.items())]
    commands = list(dict.fromkeys(f"`{result['command']}`" for result in results))
    lines = [
        f"- Command: {', then '.join(commands)}",
        f"- Date: {datetime.date.today().isoformat()}",
        f"- Machine: {_cpu_model()}, {os.cpu_count()} cores ({rates['threads']} threads used), {_memory()}",
        f"- Measured in the last run: read {rates['read'] / 1e9:.1f} GB/s, matrix product "
        f"{rates['product'] / 1e9:.0f} GFLOP/s (float32, best of the start and the end)",
        f"- Versions: {', '.join(versions)}",
        "",
        "Each line was measured in processes of its own, ours and the others one after the other on the same float32",
        "inputs. Absolute times depend on the machine and on what else it does; the ratios, of the best times, are the",
        "result. Seconds are medians, with the best in brackets. Extra is the peak of memory above the loaded inputs.",
        "Plain is the straightforward factorised form in torch, one pass over the embeddings a pick; (x10) marks",
        f"a plain run of a tenth of the picks with its time multiplied. Peers may take {options.limit:g} s and 12 GiB.",
    ]
    if options.quick:
        lines.append("\n**Quick run on tiny shapes: the figures say nothing about the library.**")
    return "\n".join(lines)


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _memory() -> str:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return f"{pages / 2**30:.0f} GiB memory"


def _grid(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "/") for cell in line) + " |" for line in lines)


def _plain_table(results: list[Answer]) -> str:
    head = [
        "strategy",
        "N, D, C, k",
        "data",
        "ours (best)",
        "plain (best)",
        "faster than plain",
        "extra MB",
        "plain's extra MB",
        "picks against plain",
        "target",
        "met",
    ]
    rows = []
    for result in results:
        case, ours, plain = result["case"], result["ours"], result["plain"]
        row = [case.strategy, case.shape, case.data, *(seconds(who) + _best(who) for who in (ours, plain))]
        row += [f"{_ratio(plain, ours):.1f} x", _extra(ours), _extra(plain), same_picks(case, ours, plain)]
        rows.append(row + list(verdict(case, ours, plain)))
    return _grid(head, rows)


def _greedy_table(results: list[Answer]) -> str:
    rows = []
    for result in results:
        case, ours, greedy = result["case"], result["ours"], result.get("greedy")
        if greedy:
            cpus = [f"{who['cpu']:.3g}" if "cpu" in who else "-" for who in (ours, greedy)]
            row = [case.strategy, case.shape, case.data, *(seconds(who) + _best(who) for who in (ours, greedy))]
            rows.append([*row, *cpus, f"{_ratio(greedy, ours):.1f} x", _extra(ours), _extra(greedy)])
    head = ["strategy", "N, D, C, k", "data", "ours (best)", "own Greedy (best)", "ours, CPU s", "own Greedy, CPU s"]
    head += ["ours faster", "ours extra MB", "own Greedy's extra MB"]
    if not rows:
        return "None of these methods is in benchmarks/own_greedy.py."
    return _grid(head, rows) + (
        "\n\nOwn Greedy is the method as a few lines on top of `labelwise.Greedy` (`benchmarks/own_greedy.py`): a pass"
        "\nover all rows for each pick. Ours takes most picks from a short list (`strategies/distance/nearest.py`)."
    )


def _peer_table(results: list[Answer]) -> str:
    rows = []
    for result in results:
        case, ours = result["case"], result["ours"]
        for name, answer in result["peers"].items():
            slow = answer | ({"best": answer["at_least"]} if "at_least" in answer else {})
            ratio = _ratio(slow, ours)
            sign = "> " if "at_least" in answer else ""
            times = f"{sign}{ratio:.1f} x" if ratio == ratio else "-"
            rows.append([case.strategy, case.shape, name, seconds(answer), times, _extra(answer), _extra(ours)])
    head = ["strategy", "N, D, C, k", "peer", "peer s, or why not", "ours faster", "peer's extra MB", "ours extra MB"]
    return _grid(head, rows)


def _limit_table(results: list[Answer], rates: Answer) -> str:
    """CPU seconds, reads of the input, arithmetic, and the share of what the machine can do."""
    rows = []
    for result in results:
        case, ours = result["case"], result["ours"]
        if "median" not in ours or "reads" not in ours:
            continue
        plain = result["plain"]
        row = [case.strategy, case.shape, case.data, f"{ours['cpu']:.3f}"]
        row.append(f"{plain['cpu']:.3f}" if "cpu" in plain else "-")
        row.append(" / ".join(f"{who['others']:.1f}" if "others" in who else "-" for who in (ours, plain)))
        row.append(f"{ours['reads']:.2f}")
        row.append(f"{ours['flops'] / 1e9:.1f}" if ours["flops"] else "-")
        rows.append([*row, _share(case, ours, rates)])
    head = ["strategy", "N, D, C, k", "data", "CPU s", "plain's CPU s", "cores others used (ours / plain)"]
    head += ["reads of the input", "GFLOP in products", "share of the limit"]
    return _grid(head, rows) + (
        "\n\nThe limit is one read of the input at the measured rate for scored strategies, and the products done at"
        "\nthe measured rate for the others (best time). Reads count every row handed out, also the few of a list."
        "\nWhere others used the cores meanwhile, both times are longer than they should be and the ratio is less sure."
    )


def _share(case: Case, ours: Answer, rates: Answer) -> str:
    if case.strategy in SCORED:
        if not ours["reads"]:
            return "reads nothing"
        return f"{case.input_bytes / rates['read'] / ours['best']:.0%} of read"
    return f"{ours['flops'] / rates['product'] / ours['best']:.0%} of product"


def _extra(answer: Answer) -> str:
    return f"{answer['extra_mb']:.0f}" if "extra_mb" in answer else "-"
