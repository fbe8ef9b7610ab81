"""Put Labelwise and its peers through the same battery of user objects; write docs/results/battery.md.

    python benchmarks/peers.py setup                 # once: the peers, in an environment of their own
    python benchmarks/battery.py                     # some minutes on one core; --out FILE, --only frame,texts

Each program (battery_snippets.py) runs in a process of its own. It works where it ends, has asked for 60 distinct rows
by the user's own ids, and its model predicts the test rows no worse than the user's does with as many random labels.
"""

from __future__ import annotations

import argparse
import functools
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import battery_snippets as snippets
import peers

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = {"Labelwise": "", "scikit-activeml": "scikit-activeml", "small-text": "small-text", "modAL": "modAL-python"}
LIMIT = 240.0  # seconds a program may take
SAME = 1e-9
WORSE = "worse than random labels"
Result = tuple[float | None, str]  # the score of a program, and why it fails ("" where it works)
HEAD = """# Labelwise and other libraries on the objects people hold

Made by `python benchmarks/battery.py` (`python benchmarks/peers.py setup` installs the peers). Each cell is a
program from `benchmarks/battery_snippets.py` that was run: 60 labels in batches of 20, from none. **Works** means
that it ended, asked for 60 distinct rows by the user's own ids, and that its model predicts the test rows
(accuracy; R² for regression) no worse than the user's model with 60 random labels (mean of five draws), less 0.05
to 0.1; a program whose score is lower runs three times, and the median counts. Lines are all that the user
writes, imports too. Versions are the newest that all libraries run with: modAL needs scikit-learn before 1.8,
small-text transformers before 5. *By hand* is a second program, which turns the objects into arrays of numbers
first.
"""


@dataclass(frozen=True)
class Outcome:
    """What became of one program.

    Attributes:
        case, library, attempt: which one; attempt 0 hands the objects over as they are.
        lines: of the program.
        score: of its predictions, None where it failed.
        error: why it failed; empty where it works.
    """

    case: str
    library: str
    attempt: int
    lines: int
    score: float | None
    error: str


class Person:
    """Answers for the rows asked for, and remembers them."""

    def __init__(self, truth: dict[Any, Any]):
        self.truth, self.asked = truth, list[Any]()

    def __call__(self, ids: Any) -> list[Any]:
        named = [one.item() if hasattr(one, "item") else one for one in ids]
        for one in named:
            if one not in self.truth:
                raise KeyError(f"{one!r} is not an id of the user's, such as {next(iter(self.truth))!r}")
        self.asked += named
        return [self.truth[one] for one in named]


def judge(case: Any, program: str, level: float) -> Result:
    """Run a program here: its score, and why it fails ("" where it works)."""
    from battery_objects import BUDGET

    person = Person(case.truth)
    try:
        space = {**case.names, "answer": person}
        exec(compile(program, "<program>", "exec"), space)
        score = case.score(space["predicted"])
    except Exception as error:
        text = str(error).strip()
        return None, f"{type(error).__name__}: {' '.join(text.split())}"
    if len(set(person.asked)) != BUDGET or len(person.asked) != BUDGET:
        return score, f"asked for {len(set(person.asked))} distinct rows of {len(person.asked)}, not {BUDGET}"
    if score < level - case.slack - SAME:
        return score, f"{WORSE}: {score:.2f}, random {level:.2f}"
    return score, ""


def _child(case: Any, program: str, level: float, pipe: Any) -> None:
    """Run a program in an empty folder, quietly."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
        try:
            pipe.send(judge(case, program, level))
        except BaseException:
            pipe.send((None, traceback.format_exc().strip().splitlines()[-1]))
        os.chdir("/")


def _in_process(case: Any, program: str, level: float) -> Result:
    """Run a program in a process of its own."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(case, program, level, there))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(LIMIT) else (None, f"not done after {LIMIT:.0f} s")
    except EOFError:
        return None, "the process died"
    finally:
        process.kill()
        process.join()


def settled(run: Callable[[], Result]) -> Result:
    """What one run gives; where its score is too low, the median of three: few programs fix all chance."""
    first = run()
    if not first[1].startswith(WORSE):
        return first
    runs = [first, run(), run()]
    return sorted(runs, key=lambda one: -1.0 if one[0] is None else one[0])[1]


def run_case(name: str) -> dict[str, Any]:
    """All programs of a case, in the environment of the peers: title, random score and outcomes."""
    from battery_objects import CASES

    case = CASES[name]()
    level = case.random()
    outcomes = []
    for library, programs in snippets.PROGRAMS[name].items():
        for attempt, program in enumerate(programs):
            score, error = settled(functools.partial(_in_process, case, program, level))
            outcomes.append(Outcome(name, library, attempt, len(snippets.lines(program)), score, error))
            if not error:
                break
    return {"title": case.title, "holds": case.holds, "random": level, "outcomes": [asdict(one) for one in outcomes]}


def page(found: dict[str, dict[str, Any]], versions: dict[str, str]) -> str:
    """The results in Markdown."""
    libraries = list(LIBRARIES)
    text = [
        *HEAD.splitlines(),
        "",
        f"| what the user holds | random | {' | '.join(libraries)} |",
        f"|---|---{'|---' * len(libraries)}|",
    ]
    faults = []
    for name, case in found.items():
        cells = []
        for library in libraries:
            own = [one for one in case["outcomes"] if one["library"] == library]
            cells.append(_cell(name, library, own))
            faults += [(case["title"], library, one["attempt"], one["error"]) for one in own if one["error"]]
        text.append(f"| **{case['title']}** | {case['random']:.2f} | {' | '.join(cells)} |")
    text += ["", "## The objects", ""]
    text += [f"- **{case['title']}**: {case['holds']}." for case in found.values()]
    text += ["", "## What failed, in the libraries' own words", ""]
    for title, library, attempt, error in faults:
        text.append(f"- {title}, {library}{', by hand' if attempt else ''}: `{_short(error)}`")
    text += ["", "## Versions", "", ", ".join(f"{name} {version}" for name, version in versions.items()) + ".", ""]
    return "\n".join(text)


def _cell(name: str, library: str, own: list[dict[str, Any]]) -> str:
    """One cell of the table."""
    if not own:
        return snippets.ABSENT[name, library]
    parts = []
    for one in own:
        hand = "by hand " if one["attempt"] else ""
        score = "" if one["score"] is None else f", {one['score']:.2f}"
        parts.append(f"**fails**{score}" if one["error"] else f"works {hand}in {one['lines']} lines{score}")
    return "; ".join(parts)


def _short(error: str) -> str:
    text = error.replace("`", "'").replace("|", "/")
    return text if len(text) <= 300 else f"{text[:297]}..."


def versions_of(python: str) -> dict[str, str]:
    """The versions of the peers and of what the users hold, in their environment."""
    code = (
        "import importlib.metadata as m, json, platform, sys\n"
        "print(json.dumps({'Python': platform.python_version(), **{n: m.version(n) for n in sys.argv[1:]}}))"
    )
    names = [*(one for one in LIBRARIES.values() if one), "scikit-learn", "numpy", "torch", "pandas", "lightgbm"]
    names += ["transformers", "datasets", "skorch"]
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def main(argv: list[str]) -> int:
    """Run the cases in the environment of the peers and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=Path, default=peers.DEFAULT, help="environment of the peers (peers.py setup)")
    parser.add_argument("--only", default=",".join(snippets.PROGRAMS), help="cases, separated by commas")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results" / "battery.md")
    parser.add_argument("--processes", type=int, default=2, help="cases at a time")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # in the environment of the peers
    given = parser.parse_args(argv)
    if given.case is not None:
        warnings.simplefilter("ignore")
        told = json.dumps(run_case(given.case))
        print(f"\n{told}")
        return 0
    python, found = peers.python_of(given.peers / peers.BATTERY), {}
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    environment |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}

    def run(name: str) -> subprocess.CompletedProcess[str]:
        words = [python, "-W", "ignore", str(Path(__file__).resolve()), "--case", name]
        return subprocess.run(words, capture_output=True, text=True, env=environment)

    names = given.only.split(",")
    for name, done in zip(names, ThreadPoolExecutor(given.processes).map(run, names)):
        if done.returncode:
            print(done.stderr)
            return 1
        found[name] = json.loads(done.stdout.strip().splitlines()[-1])
        for one in found[name]["outcomes"]:
            print(
                f"{name}: {one['library']} {one['attempt']}: {one['lines']} lines, {one['score']}, {one['error'][:99]}",
                flush=True,
            )
    from importlib.metadata import version

    given.out.write_text(page(found, {"Labelwise": version("labelwise"), **versions_of(python)}), encoding="utf-8")
    print(f"written: {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
