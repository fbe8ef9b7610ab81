"""Kill test of the labelling page: the server or the worker is killed (SIGKILL) at random moments while people label.

    python benchmarks/kill_page.py                    # 200 kills; its part of docs/results/reliability.md
    python benchmarks/kill_page.py --postgres postgresql://user@/db      # and an empty schema there
    python benchmarks/kill_page.py --kills 5 --annotators 4 --dry

Annotators work as the page does: an answer without a reply is sent again with the same token until there is one, and
one answer in ten is taken back. What the server confirmed is noted. At the end the history must hold every confirmed
answer and undo exactly once and as confirmed, nothing that was never sent, no row with two live answers, and numbers
without a gap; the database must be whole, and the project must open and go on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from annotators import LOST, Annotator, Server, free_port, make_project, task_in
from labelwise.project import Project
from reliability_page import write_part

Deed = tuple[str, str, str | None]  # person, kind, value


@dataclass
class Told:
    """What was sent, what was confirmed, what was refused; by token."""

    sent: dict[str, Deed] = field(default_factory=dict)
    confirmed: dict[str, Deed] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    again: int = 0
    waited: float = 0.0  # seconds without an item


def annotate(person: Annotator, pause: float, ended: threading.Event, told: Told) -> None:
    """Label until the end; what was sent at the end is sent until it is settled."""
    rng, name = np.random.Generator(np.random.PCG64(sum(person.name.encode()))), person.name
    text, number = "", 0
    while not ended.is_set():
        task = task_in(text)
        if task is None:
            text = _persist(lambda: person.request("GET", "/card"), told)[1]
            if task_in(text) is None:
                ended.wait(0.2)
                told.waited += 0.2
            continue
        time.sleep(float(rng.exponential(pause)))
        value = ("left", "right")[int(rng.integers(2))]
        fields = {"token": task[0], "kind": "label", "value": value, "seconds": "1.0"}
        text = _do(person, "/answer", fields, (name, "label", value), told)
        if rng.random() < 0.1:
            number += 1
            text = _do(person, "/undo", {"token": f"undo {name} {number:06d}"}, (name, "undo", None), told)
    person.hang_up()


def _do(person: Annotator, path: str, fields: dict[str, str], deed: Deed, told: Told) -> str:
    token = fields["token"]
    if token in told.confirmed:  # a row that was taken back has a token of its own
        raise RuntimeError(f"the token {token} was given for a second answer")
    told.sent[token] = deed
    status, text = _persist(lambda: person.request("POST", path, fields), told)
    if status == 200:
        told.confirmed[token] = deed
    else:
        told.refused[token] = f"{status}: {text[:200]}"
        text = ""
    return text


def _persist(call: Callable[[], Any], told: Told) -> Any:
    """Call until there is a reply, as the page does."""
    while True:
        try:
            found = call()
        except LOST:
            found = None
        if found is not None and found[0] < 500:
            return found
        told.again += 1
        time.sleep(0.1)


# --- killing ---------------------------------------------------------------------------------------------------------


def run(folder: Path, options: argparse.Namespace, store: str = "") -> tuple[list[str], dict[str, Any]]:
    """Label and kill; what is wrong at the end, and what was counted."""
    rng, kills, annotators = np.random.Generator(np.random.PCG64(options.seed)), options.kills, options.annotators
    project, log, pause = make_project(folder, options.rows, options.k, store), folder / "server.log", options.pause
    server = Server(project, free_port(), log)
    server.wait()
    ended, told = threading.Event(), [Told() for _ in range(annotators)]
    browsers = [Annotator(server.port, f"person {n}") for n in range(annotators)]
    for browser in browsers:
        browser.begin()
    while task_in(browsers[0].request("GET", "/card")[1]) is None:  # the first round
        time.sleep(0.2)
    people = [
        threading.Thread(target=annotate, args=(browser, pause, ended, one)) for browser, one in zip(browsers, told)
    ]
    for person in people:
        person.start()
    done: Counter[str] = Counter()
    began = time.monotonic()
    while sum(done.values()) < kills:
        # Mostly soon after the last one, so that starting is hit as well; sometimes late, so that training is.
        time.sleep(float(rng.uniform(0.05, 1.5) if rng.random() < 0.85 else rng.uniform(3, 12)))
        worker = _worker(server) if rng.random() < 0.5 else None
        if worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                done["worker"] += 1
        else:
            server.kill()
            done["server"] += 1
            server = Server(project, server.port, log)
            server.wait()
        if sum(done.values()) % 20 == 0:
            confirmed = sum(len(one.confirmed) for one in told)
            took = time.monotonic() - began
            print(f"{sum(done.values())} kills in {took:.0f} s, {confirmed} confirmed", flush=True)
    ended.set()
    for person in people:
        person.join()
    code = server.stop()
    all_told = Told()
    for one in told:
        all_told.sent |= one.sent
        all_told.confirmed |= one.confirmed
        all_told.refused |= one.refused
        all_told.again += one.again
    wrong = check(project, all_told)
    if code != 0:
        wrong.append(f"the server stopped with {code}")
    print(
        f"{done['server']} kills of the server and {done['worker']} of the worker under {annotators} annotators in "
        f"{time.monotonic() - began:.0f} s: {len(all_told.confirmed)} answers and undos confirmed, {all_told.again} "
        f"requests sent again, {len(all_told.refused)} refused; {len(wrong)} things wrong"
    )
    return wrong, {
        "kills of the server": done["server"],
        "kills of the worker": done["worker"],
        "answers and undos confirmed": f"{len(all_told.confirmed):,}",
        "of them lost, doubled or changed, and anything else wrong": len(wrong),
        "requests sent again, as there was no reply": f"{all_told.again:,}",
        "seconds": f"{time.monotonic() - began:.0f}",
    }


def _worker(server: Server) -> int | None:
    try:
        return server.worker()
    except OSError:  # it went while we looked
        return None


# --- checking --------------------------------------------------------------------------------------------------------


def check(folder: Path, told: Told) -> list[str]:
    """What is wrong with the project after all kills; nothing, when all is well."""
    wrong = [f"refused: {token}: {why}" for token, why in told.refused.items()]
    if (folder / "store.db").exists():
        with contextlib.closing(sqlite3.connect(folder / "store.db")) as database:
            said = database.execute("PRAGMA integrity_check").fetchone()[0]
        if said != "ok":
            wrong.append(f"the database is damaged: {said}")
    project = Project.open(folder)
    try:
        wrong += _check_history(project, told)
        before = len(project.store.rounds())
    finally:
        project.close()
    code = _goes_on(folder)
    if code != 0 or before < 1:
        wrong.append(f"the worker does not go on: it ended with {code}, and there are {before} rounds")
    return wrong


def _goes_on(folder: Path, tries: int = 10) -> int:
    """How a worker ends that does what there is to do now; one of a killed server may still be at its last step."""
    command = [sys.executable, "-m", "labelwise.project.loop.worker", str(folder), "--once"]
    for _ in range(tries):
        found = subprocess.run(command, timeout=600, capture_output=True, text=True)
        if "another worker is at work" not in found.stderr:
            break
    return found.returncode


def _check_history(project: Project, told: Told) -> list[str]:
    events = project.store.events()
    ours = [event for event in events if event.kind in ("label", "undo")]
    by_token = {event.token: (event.who, event.kind, event.value) for event in ours}
    wrong = [f"twice: {token}" for token, count in Counter(event.token for event in ours).items() if count > 1]
    for token, deed in told.confirmed.items():
        if token not in by_token:
            nothing_to_undo = deed[1] == "undo"  # confirmed, and nothing was there to take back
            wrong += [] if nothing_to_undo else [f"lost: {token} {deed}"]
        elif by_token[token] != deed:
            wrong.append(f"changed: {token} {deed} is {by_token[token]}")
    wrong += [f"never sent: {token}" for token, deed in by_token.items() if told.sent.get(token) != deed]
    answers = project.store.answers()
    wrong += [f"two answers to row {row}: {one.votes}" for row, one in answers.items() if len(one.votes) > 1]
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        wrong.append("the numbers of the events have gaps")
    taken_back = {event.undoes for event in ours if event.kind == "undo"}
    live = {event.row for event in ours if event.kind == "label" and event.seq not in taken_back}
    if live != {row for row, one in answers.items() if one.kind == "label"}:
        wrong.append("the answers are not what the events say")
    return wrong


def text_of(counts: dict[str, dict[str, Any]], options: argparse.Namespace) -> str:
    """The part of the page."""
    first = next(iter(counts.values()))
    lines = [f"| | {' | '.join(counts)} |", "|---|" + "---|" * len(counts)]
    lines += [f"| {name} | {' | '.join(str(one[name]) for one in counts.values())} |" for name in first]
    return (
        "## Kills of the page and its worker\n\n"
        f"`python benchmarks/kill_page.py`: {options.annotators} people label over HTTP (a pause of {options.pause} s "
        "on average), and the server or the worker is killed (SIGKILL) at random moments, also while it starts or "
        "trains. At the end the history is compared with what was confirmed, the database is checked, and the project "
        "goes on.\n\n" + "\n".join(lines)
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--postgres", metavar="URL", default="", help="an empty schema, for a second column")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--annotators", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between a card and its answer, on average")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--k", type=int, default=3000, help="items of a round")
    parser.add_argument("--dry", action="store_true", help="print the part, and leave the page as it is")
    options = parser.parse_args()
    counts: dict[str, dict[str, Any]] = {}
    for name, store in {"SQLite": "", "PostgreSQL": options.postgres}.items():
        if name == "PostgreSQL" and not store:
            continue
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            wrong, counts[name] = run(place, options, store)
            if wrong:
                print((place / "server.log").read_text()[-3000:])
                sys.exit("\n".join(wrong[:20]))
    print("nothing lost, nothing twice, the project opens and goes on")
    if options.dry:
        print(text_of(counts, options))
    else:
        write_part("kill_page", text_of(counts, options))


if __name__ == "__main__":
    main()
