"""Measure every strategy next to its plain form, a user's own `Greedy` and peers; write a table.

    python benchmarks/selection.py [--quick] [--only badge,kcenter] [--again] [--no-peers] [--limit 60] [--out FILE]

Each measurement is a process. Ours, plain, own `Greedy` and peers of a case run one after the other on the same
inputs, ours again after each of them, so that a ratio compares what the machine did in the same minutes. See
benchmarks/README.md for what each column means.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import measure
import own_greedy
import peers
import table
from labelwise import strategies
from shapes import Case, full_cases, quick_cases, write_inputs

HERE = Path(__file__).resolve().parent
RESULTS = HERE.parent / "docs" / "results" / "selection.md"
PLAIN_TWICE = 5.0  # a plain run shorter than this is made twice, around ours
QUIET, PAUSE = 0.2, 0.3  # cores used by others, over so many seconds, that count as none
GRACE = 60.0  # seconds a process may use besides what is measured: imports, loading, its last step
LONGEST = 900.0

Answer = dict[str, Any]


def main(arguments: list[str] | None = None) -> int:
    """Measure the cases asked for and write the table; 1 when ours or plain failed somewhere."""
    options = _options(arguments)
    order = quick_cases() if options.quick else full_cases()
    cases = order
    if options.only:
        unknown = set(options.only) - set(strategies.names())
        if unknown:
            print(f"there is no strategy {', '.join(sorted(unknown))}; there are: {', '.join(strategies.names())}")
            return 2
        cases = [case for case in cases if case.strategy in options.only]
    missing = [name for name in strategies.names() if name not in {case.strategy for case in order}]
    if options.quick:
        options.patience = 0.0
    rates = [_rates(options)]
    out = options.out or (None if options.quick or (options.only and not options.again) else RESULTS)
    earlier = _earlier(out) if options.again else []
    results = [result for result in earlier if result["case"] not in cases]
    asked = len(results) + len(cases)
    for case in cases:
        results.append({**_measure(case, options), "command": _command(arguments)})
        if case == cases[-1] and not options.quick:
            rates.append(_rates(options))
        fastest = {name: max(rate[name] for rate in rates) for name in rates[0]}
        results.sort(key=lambda result: order.index(result["case"]))
        text = table.page(results, fastest, options, [] if options.only and not options.again else missing, asked)
        if out is not None:  # after each case, so that an interrupted run keeps what it measured, and says so
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(text)
            listed = [{**result, "case": result["case"].to_json()} for result in results]
            out.with_suffix(".json").write_text("\n".join(["[", ",\n".join(map(json.dumps, listed)), "]\n"]))
    print(text)
    return 1 if any("stopped" in result[who] for result in results for who in ("ours", "plain")) else 0


def _earlier(out: Path | None) -> list[Answer]:
    """What an earlier run measured."""
    file = None if out is None else out.with_suffix(".json")
    if file is None or not file.exists():
        return []
    return [{**result, "case": Case.from_json(result["case"])} for result in json.loads(file.read_text())]


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Time and memory of every strategy, next to plain, own Greedy and peers."
    )
    parser.add_argument("--quick", action="store_true", help="tiny shapes, for a look at the machinery")
    parser.add_argument("--only", type=lambda text: text.split(","), help="strategies, separated by commas")
    parser.add_argument("--again", action="store_true", help="keep what an earlier run measured of the other cases")
    parser.add_argument("--peers", type=Path, default=peers.DEFAULT, help="environment of the peers (peers.py setup)")
    parser.add_argument("--no-peers", action="store_true", help="measure no peers")
    parser.add_argument("--patience", type=float, default=20.0, help="seconds to wait for a quiet machine, each time")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds a peer may take")
    parser.add_argument("--out", type=Path, help="Markdown file; docs/results/selection.md for a full run")
    return parser.parse_args(arguments)


def _command(arguments: list[str] | None) -> str:
    return " ".join(["python benchmarks/selection.py", *(sys.argv[1:] if arguments is None else arguments)])


def _rates(options: argparse.Namespace) -> Answer:
    if options.quick:
        return measure.rates(0.1)
    task = {"scale": 1.0, "patience": options.patience}
    with tempfile.TemporaryDirectory() as folder:
        return _process(sys.executable, "rates", task, Path(folder), LONGEST)


def _measure(case: Case, options: argparse.Namespace) -> Answer:
    """Ours, plain, ours, (plain,) own Greedy, each peer with ours after it."""
    repeats = 1 if options.quick else 3
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_inputs(case, folder)
        common = {"case": case.to_json(), "inputs": name, "repeats": repeats}
        common |= {"limit": options.limit, "patience": options.patience}

        def ours(count: bool = False) -> Answer:
            return _process(sys.executable, "ours", {**common, "count": count}, folder, LONGEST)

        def plain() -> Answer:
            return _process(sys.executable, "plain", {**common, "first": first, "repeats": 1}, folder, LONGEST)

        mine = [ours(count=True)]
        first = mine[0].get("picks", [0])[0]
        theirs = [plain()]
        if not options.quick:
            mine.append(ours())
            if theirs[0].get("best", PLAIN_TWICE) < PLAIN_TWICE:
                theirs.append(plain())
        greedy = {}
        if case.strategy in own_greedy.ALL:
            greedy = _merge([_process(sys.executable, "greedy", {**common, "repeats": 1}, folder, LONGEST)])
        found = {}
        for peer in () if options.no_peers else case.peers:
            found[peer] = _peer(peer, common, folder, options)
            if "walls" in found[peer] and not options.quick:
                mine.append(ours())
    result = {"case": case, "ours": _merge(mine), "plain": _merge(theirs), "greedy": greedy, "peers": found}
    print(table.progress(result), file=sys.stderr, flush=True)
    return result


def _peer(name: str, common: Answer, folder: Path, options: argparse.Namespace) -> Answer:
    python = peers.python_of(options.peers)
    if not Path(python).exists():
        return {"stopped": "not installed: run `python benchmarks/peers.py setup`", "version": ""}
    return _process(python, name, common, folder, options.limit + GRACE)


def _merge(answers: list[Answer]) -> Answer:
    """Several processes that measured the same thing, as one answer; the first one's picks and counts."""
    stopped = [answer for answer in answers if "stopped" in answer]
    if stopped:
        return stopped[0]
    scale = answers[0].get("scale", 1)
    walls = [wall * scale for answer in answers for wall in answer["walls"]]
    return answers[0] | {
        "best": min(walls),
        "median": statistics.median(walls),
        "cpu": statistics.median(answer["cpu"] for answer in answers),
        "others": statistics.mean(answer["others"] for answer in answers),
        "extra_mb": max(answer["extra_mb"] for answer in answers),
        "runs": len(walls),
    }


def _wait(patience: float) -> None:
    """Until the machine is quiet, or patience ends; what others used while measuring is in the table either way."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before = measure.busy_seconds()
        time.sleep(PAUSE)
        if (measure.busy_seconds() - before) / PAUSE < QUIET:
            return


def _process(python: str, who: str, task: Answer, folder: Path, seconds: float) -> Answer:
    """The answer of measure.py in a process of its own; a process that fails says why in `stopped`."""
    _wait(task["patience"])
    file, answer = folder / "task.json", folder / "answer.json"
    file.write_text(json.dumps(task))
    answer.unlink(missing_ok=True)
    command = [python, str(HERE / "measure.py"), who, str(file)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return {"stopped": f"> {seconds:g} s", "at_least": seconds}
    if done.returncode == 0 and answer.exists():
        found: Answer = json.loads(answer.read_text())
        return found
    last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
    return {"stopped": f"{how}: {last}"}


def _stop(signum: int, frame: Any) -> None:
    sys.exit(128 + signum)  # as an exception, so that the process being measured is ended as well


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _stop)
    sys.exit(main())
