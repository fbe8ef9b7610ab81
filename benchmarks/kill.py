"""Kill -9 the benchmark runner at random moments, start it again, and compare with a run that was left alone.

    python benchmarks/kill.py --kills 50 --out docs/results/kill.md

A moment is drawn between the start of the process and some rounds into its work; the runner alone or the whole group of
processes is killed. After each kill every complete line on disk must stay as it is, times included: that is how a
round that ran twice would show. At the end every cell has each round once, equal to that of the run left alone in all
but times and memory.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from labelwise.bench.suite.job import comparable
from labelwise.bench.suite.runner import read_run
from labelwise.stats.environment import environment
from labelwise.stats.record import Record

CONFIG = """
name: kill
datasets:
  - {name: digits, limit: 150}
  - {name: digits, limit: 150, hard: duplicates}
models:
  - {name: mlp, hidden: [16], epochs: 20}
strategies:
  - margin
  - badge
  - dynamical
  - albl
  - ally
  - bald
  - {name: bss, weights: true}
  - {name: oracle, candidates: 2}
seeds: SEEDS
start: 10
k: 5
rounds: 5
processes: 2
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=6, help="seeds of the suite: how long a run is")
    parser.add_argument("--draw", type=int, default=0, help="seed of the moments")
    parser.add_argument("--out", type=Path, help="a page to keep what came out on")
    options = parser.parse_args()
    moments = np.random.Generator(np.random.PCG64(options.draw))
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "kill.yaml"
        config.write_text(CONFIG.replace("SEEDS", str(options.seeds)))
        left_alone = Path(folder) / "left-alone"
        began = time.monotonic()
        if _started(config, left_alone).wait() != 0:
            sys.exit("the run that is left alone failed")
        expected = _by_round(read_run(left_alone))
        print(f"left alone: {len(expected)} rounds in {time.monotonic() - began:.0f} s", flush=True)
        kills, runs, inside = 0, 0, 0
        said = [f"A run that was left alone: {len(expected)} rounds."]
        while kills < options.kills:
            run = Path(folder) / f"killed-{runs}"
            more, at_work = _killed_run(config, run, options.kills - kills, moments)
            kills, runs, inside = kills + more, runs + 1, inside + at_work
            found = _by_round(read_run(run))
            wrong = [name for name in expected if found.get(name) != expected[name]]
            if wrong or len(found) != len(expected):
                sys.exit(f"run {runs}: {len(found)} rounds, {len(wrong)} differ, such as {wrong[:3]}")
            said.append(f"Run {runs}: {more} kills, all {len(found)} rounds as in the run left alone.")
            print(f"\n{said[-1]}", flush=True)
    said.append(
        f"{kills} kills ({inside} while rounds were being run) in {runs} runs: no round lost, repeated or changed."
    )
    print(said[-1])
    if options.out is not None:
        options.out.write_text(_page(options, said))


def _page(options: argparse.Namespace, said: list[str]) -> str:
    command = f"python benchmarks/kill.py --kills {options.kills} --seeds {options.seeds} --draw {options.draw}"
    ran = ", ".join(f"{name} {value}" for name, value in environment().items())
    about = "Written by the command below, whose docstring says what is killed when, and what is compared."
    lines = "\n".join(f"- {line}" for line in said)
    return f"# Kill -9 at random moments\n\n{about}\n\n```\n{command}\n```\n\n{lines}\n\n{ran}.\n"


def _killed_run(config: Path, run: Path, most: int, moments: np.random.Generator) -> tuple[int, int]:
    """Kill and start again until the run ends or `most` kills were made; kills, and those after a new record."""
    kills = inside = 0
    lines: dict[str, bytes] = {}
    while True:
        process = _started(config, run)
        if kills == most:
            if process.wait() != 0:
                sys.exit("the last start failed")
            _check_saved(lines, run)
            return kills, inside
        before = _count(_lines(run))
        # One in five anywhere from the start on, the others after the first new record.
        anywhere = moments.random() < 0.2
        until = time.monotonic() + (moments.random() * 4 if anywhere else 60)
        while time.monotonic() < until and process.poll() is None:
            if not anywhere and _count(_lines(run)) > before:
                time.sleep(moments.random() * 0.5)
                break
            time.sleep(0.01)
        if process.poll() is not None:
            if process.returncode != 0:
                sys.exit(f"the runner ended by itself with {process.returncode}")
            _check_saved(lines, run)
            return kills, inside
        if moments.random() < 0.5:
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
        print(".", end="", flush=True)
        _check_saved(lines, run)
        lines = _lines(run)
        inside += _count(lines) > before


def _started(config: Path, run: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "labelwise", "bench", "run", str(config), "--out", str(run)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)


def _lines(run: Path) -> dict[str, bytes]:
    """The complete lines of each file of records."""
    found = {path.name: path.read_bytes() for path in (run / "records").glob("*.jsonl")}
    return {name: text[: text.rfind(b"\n") + 1] for name, text in found.items()}


def _count(lines: dict[str, bytes]) -> int:
    return sum(text.count(b"\n") for text in lines.values())


def _check_saved(before: dict[str, bytes], run: Path) -> None:
    now = _lines(run)
    for name, text in before.items():
        if not now.get(name, b"").startswith(text):
            sys.exit(f"{name}: a round that was on disk has changed")


def _by_round(records: list[Record]) -> dict[tuple[str, int], object]:
    found: dict[tuple[str, int], object] = {(one.run, one.round): comparable(one) for one in records}
    if len(found) != len(records):
        sys.exit("a round is on disk twice")
    return found


if __name__ == "__main__":
    main()
