"""Half an hour of everything at once: people, slow clients, a worker that retrains, and kills of it and of the server.

    python benchmarks/soak.py                         # 30 minutes; writes its part of docs/results/reliability.md
    python benchmarks/soak.py --minutes 2 --dry

Each person has a link of their own, answers, and takes one answer in ten back; what gets no reply is sent again, as the
page does. In the first half the server and the worker are killed (SIGKILL) at random moments, in the second the worker
alone, so that one server lives long enough to see whether its memory grows. At the end everything that was confirmed
must be in the history, once and as confirmed (`kill_page.py`), and the project must go on.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from annotators import Annotator, Server, free_port, make_project, task_in
from kill_page import Told, annotate, check
from labelwise.project.store import Store
from labelwise.server import Auth
from labelwise.stats.environment import environment
from reliability_page import write_part
from slow_clients import KINDS, Case, slow_client

EVERY = 5.0  # seconds between two looks at the memory
WARM = 60.0  # seconds of a process until its memory counts
MIB = 1024 * 1024
READ = """
import sys
from pathlib import Path
from labelwise.project.store import Store
def rss():
    return 1024 * int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0])
store = Store.open(sys.argv[1])
before = rss()
store.answers()
print(rss() - before)
"""


class Timed(Annotator):
    """A browser that notes how long its requests took, in milliseconds; those that a kill cut off are sent again."""

    def __init__(self, port: int, name: str, token: str) -> None:
        super().__init__(port, name, token=token)
        self.times: list[float] = []

    def request(self, method: str, path: str, fields: dict[str, str] | None = None) -> tuple[int, str]:
        """As in `Annotator`."""
        began = time.perf_counter()
        found = super().request(method, path, fields)
        self.times.append(1000 * (time.perf_counter() - began))
        return found


@dataclass
class Life:
    """The memory of one process: its age, its anonymous bytes (not mapped files), and answers confirmed by then."""

    pid: int
    began: float
    samples: list[tuple[float, int, int]] = field(default_factory=list)

    def grown(self) -> tuple[int, int, int, float]:
        """Bytes once it was warm, bytes at the end, answers meanwhile, and seconds meanwhile."""
        warm = [one for one in self.samples if one[0] >= WARM] or self.samples[-1:]
        return warm[0][1], warm[-1][1], warm[-1][2] - warm[0][2], warm[-1][0] - warm[0][0]


def look(lives: dict[int, Life], pid: int | None, answers: int) -> None:
    """Note the memory of a process, if there is one."""
    with contextlib.suppress(OSError, IndexError):
        if pid is None:
            return
        used = 1024 * int(Path(f"/proc/{pid}/status").read_text().split("RssAnon:")[1].split()[0])
        life = lives.setdefault(pid, Life(pid, time.monotonic()))
        life.samples.append((time.monotonic() - life.began, used, answers))


def worker_of(server: Server) -> int | None:
    """The worker's process; None while there is none."""
    try:
        return server.worker()
    except OSError:
        return None


def run(folder: Path, options: argparse.Namespace) -> tuple[str, list[str]]:
    """The part of the page, and what is wrong."""
    project, log = make_project(folder, options.rows, options.k), folder / "server.log"
    auth, tokens = Auth.make(project), {}
    store = Store.open(f"sqlite:///{(project / 'store.db').resolve()}")
    for n in range(options.people):
        one = store.set_annotator(f"person {n}", "label" if n else "own", "soak")
        tokens[one.name] = auth.token_of(one.name, one.link)
    store.close()
    server = Server(project, free_port(), log)
    server.wait()
    people = [Timed(server.port, name, token) for name, token in tokens.items()]
    for browser in people:
        browser.begin()
    while task_in(people[0].request("GET", "/card")[1]) is None:  # the first round
        time.sleep(0.2)
    ended, told, lock = threading.Event(), [Told() for _ in people], threading.Lock()
    began = time.monotonic()
    until, half = began + 60 * options.minutes, began + 30 * options.minutes
    cases = [Case(kind, options.slow // len(KINDS)) for kind in KINDS]
    threads = [
        threading.Thread(target=slow_client, args=(case.name, server.port, n / 5, until, case, lock), daemon=True)
        for case in cases
        for n in range(case.clients)
    ]
    labellers = [
        threading.Thread(target=annotate, args=(one, options.pause, ended, own)) for one, own in zip(people, told)
    ]
    for thread in (*threads, *labellers):
        thread.start()
    chance, kills = np.random.Generator(np.random.PCG64(options.seed)), Counter[str]()
    servers: dict[int, Life] = {}
    workers: dict[int, Life] = {}
    next_look, next_kill = began, began + float(chance.exponential(options.between))
    while time.monotonic() < until:
        time.sleep(0.2)
        now, confirmed = time.monotonic(), sum(len(one.confirmed) for one in told)
        if now >= next_look:
            next_look += EVERY
            look(servers, server.process.pid, confirmed)
            look(workers, worker_of(server), confirmed)
        if now < next_kill:
            continue
        next_kill = now + float(chance.exponential(options.between))
        worker = worker_of(server)
        if now < half and chance.random() < 0.5:
            server.kill()
            kills["server"] += 1
            server = Server(project, server.port, log)
            server.wait()
        elif worker is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                kills["worker"] += 1
        if kills.total() % 10 == 0:
            print(f"{now - began:.0f} s, {dict(kills)}, {confirmed} confirmed", flush=True)
    ended.set()
    for thread in labellers:
        thread.join()
    lasted = (time.monotonic() - began) / 60
    code = server.stop()
    everything = Told()
    for own in told:
        everything.sent |= own.sent
        everything.confirmed |= own.confirmed
        everything.refused |= own.refused
        everything.again += own.again
        everything.waited += own.waited
    wrong = check(project, everything) + ([] if code == 0 else [f"the server stopped with {code}"])
    times = np.concatenate([np.array(one.times) for one in people])
    return text_of(project, options, lasted, everything, wrong, times, kills, servers, workers, cases), wrong


def text_of(
    project: Path,
    options: argparse.Namespace,
    lasted: float,
    told: Told,
    wrong: list[str],
    times: np.ndarray,
    kills: Counter[str],
    servers: dict[int, Life],
    workers: dict[int, Life],
    cases: list[Case],
) -> str:
    """The part of the page."""
    store = Store.open(f"sqlite:///{(project / 'store.db').resolve()}")
    rounds, events, labels = len(store.rounds()), store.last_seq(), store.progress().labels
    store.close()
    own = subprocess.run(
        [sys.executable, "-c", READ, f"sqlite:///{(project / 'store.db').resolve()}"],
        check=True,
        capture_output=True,
        text=True,
    )
    each = int(own.stdout) / max(1, events)
    last = max(servers.values(), key=lambda life: life.began)
    warm, end, answers, seconds = last.grown()
    series = ", ".join(f"{used / MIB:.1f}" for age, used, _ in last.samples[:: round(180 / EVERY)] if age >= WARM)
    peak = max(used for life in workers.values() for _, used, _ in life.samples)
    oldest = max(workers.values(), key=lambda life: life.samples[-1][0])
    worker_warm, worker_end, _, worker_seconds = oldest.grown()
    p50, p95, p99, worst = (f"{value:,.0f}" for value in np.percentile(times, [50, 95, 99, 100]))
    found = environment("cpu")
    names = ", ".join(f"{case.clients} {case.name}" for case in cases)
    command = f"python benchmarks/soak.py --minutes {options.minutes:g} --people {options.people} --slow {options.slow}"
    command += f" --between {options.between:g}"
    return f"""## A soak

`{command}`: {options.people} people with links of their own label (a pause of
{options.pause} s on average; one answer in ten is taken back) while {options.slow} slow clients hold connections
({names}), the worker retrains every round of {options.k} items,
and processes are killed (SIGKILL), on average every {options.between:.0f} s: the server or the worker in the first
half, the worker alone in the second.

| | |
|---|---|
| minutes from the first answer to the last | {lasted:.1f} |
| kills of the server, of the worker | {kills["server"]}, {kills["worker"]} |
| rounds chosen and models trained | {rounds} |
| answers and undos confirmed | {len(told.confirmed):,} |
| of them lost, doubled or changed, and anything else wrong | {len(wrong)} |
| requests sent again, as there was no reply | {told.again:,} |
| of the time of people, without an item | {told.waited / (60 * options.minutes * options.people):.1%} |
| connections of slow clients | {sum(case.opened for case in cases):,} |
| time of a request of people: median, 95 %, 99 %, worst | {p50}, {p95}, {p99}, {worst} ms |
| items with a label, events in the history at the end | {labels:,}, {events:,} |
| server, once {WARM:.0f} s old and {seconds / 60:.1f} minutes later | {warm / MIB:.1f} and {end / MIB:.1f} MiB |
| the same every three minutes | {series} MiB |
| answers confirmed meanwhile | {answers:,} |
| of its growth, what the answers take in a new process that reads them ({each:,.0f} bytes an event) | \
{answers * each / MIB:.1f} MiB |
| worker that lived longest, once {WARM:.0f} s old and {worker_seconds / 60:.1f} minutes later | \
{worker_warm / MIB:.1f} and {worker_end / MIB:.1f} MiB |
| most memory of any worker | {peak / MIB:.1f} MiB |

Everyone is on one machine of two cores, which did other work too: times are upper bounds ({found["platform"]}, Python
{found["python"]}, SQLite)."""


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0, help="at most 120")
    parser.add_argument("--people", type=int, default=20)
    parser.add_argument("--slow", type=int, default=100, help="slow clients at a time; at most 1,000")
    parser.add_argument("--pause", type=float, default=2.0, help="seconds between a card and its answer, on average")
    parser.add_argument("--between", type=float, default=40.0, help="seconds between kills, on average")
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--k", type=int, default=400, help="items of a round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dry", action="store_true", help="print the part, and leave the page as it is")
    options = parser.parse_args()
    options.slow, options.minutes = min(options.slow, 1000), min(options.minutes, 120.0)
    with tempfile.TemporaryDirectory() as folder:
        text, wrong = run(Path(folder), options)
        if wrong:
            print((Path(folder) / "server.log").read_text()[-3000:])
    print(text)
    if not options.dry:
        write_part("soak", text)
    if wrong:
        sys.exit("\n".join(wrong[:20]))


if __name__ == "__main__":
    main()
