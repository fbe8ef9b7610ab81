"""People label while other clients hold connections with requests half sent, replies unread, or nothing at all.

    python benchmarks/slow_clients.py                 # writes its part of docs/results/reliability.md
    python benchmarks/slow_clients.py --slow 60 --seconds 3 --dry
    python benchmarks/slow_clients.py --postgres postgresql://user@/db      # a third table, on PostgreSQL
    chrt -r 1 python benchmarks/slow_clients.py       # on a machine that is busy with other things

It talks to a server of its own on 127.0.0.1 alone, with a fixed number of clients for a fixed time. Slow clients and
people have the same address, which is the harder case: an address of their own is limited by itself. A slow client that
is closed comes back after about a second. The process of the server may open `--files` files, as on many systems; the
row "without limits" shows what the same clients do to uvicorn as it comes.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import random
import socket
import tempfile
import threading
import time
from dataclasses import dataclass, field
from multiprocessing.queues import Queue
from pathlib import Path

import numpy as np

from annotators import LOST, Annotator, Server, free_port, make_project, task_in
from labelwise.server.connections import Limits
from labelwise.server.serve import DEFAULTS
from labelwise.stats.environment import environment
from reliability_page import write_part

KINDS = {
    "half a head": "the first line and half a header",
    "half a body": "a POST of 900 bytes with 6 of them",
    "drip": "a header, one byte each 0.2 s",
    "nothing": "a connection and no byte",
    "unread": "3 requests at once for a file of 52 kB, and no reply read",
}
ARRIVAL = 2.0  # seconds in which the slow clients come, before the people do
WITHOUT = "Without limits: uvicorn as it comes"
PEOPLE_TIMEOUT = 10.0  # seconds; a request that takes longer has failed


@dataclass
class Case:
    """What people saw; times in milliseconds."""

    name: str
    clients: int
    times: list[float] = field(default_factory=list)
    failures: int = 0
    opened: int = 0

    def row(self) -> str:
        """A row of the table."""
        p50, p95, worst = (f"{value:,.0f}" for value in np.percentile(self.times or [np.nan], [50, 95, 100]))
        cells = [self.name, self.clients, f"{self.opened:,}", f"{len(self.times):,}", p50, p95, worst, self.failures]
        return f"| {' | '.join(str(cell) for cell in cells)} |"


def slow_client(kind: str, port: int, delay: float, until: float, case: Case, lock: threading.Lock) -> None:
    """Hold a connection until the server closes it, and open the next one."""
    time.sleep(delay)
    chance = random.Random(str(delay))
    half = f"GET / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nX-Slow: ".encode()
    post = f"POST /answer HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 900\r\n\r\ntoken=".encode()
    get = f"GET /static/htmx-2.0.11.min.js HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode()
    first = {"half a head": half, "half a body": post, "drip": half, "unread": 3 * get}.get(kind, b"")
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.socket() as line:
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.settimeout(2.0)
            line.connect(("127.0.0.1", port))
            line.sendall(first)
            with lock:
                case.opened += 1
            line.settimeout(0.2)
            while time.monotonic() < until:
                if kind == "drip":
                    line.sendall(b"x")
                if kind == "unread":
                    time.sleep(0.2)
                    line.sendall(b"")
                    if line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] != 1:  # no longer established
                        break
                    continue
                try:
                    if not line.recv(4096):
                        break
                except TimeoutError:
                    continue
        time.sleep(min(0.5 + chance.random(), max(0.0, until - time.monotonic())))


def crowd(kind: str, port: int, clients: int, until: float, opened: Queue[int]) -> None:
    """Slow clients in a process of their own, behind everyone else: they would have machines of their own."""
    if hasattr(os, "sched_setscheduler"):
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    os.nice(10)
    case, lock = Case(kind, clients), threading.Lock()
    threads = [
        threading.Thread(target=slow_client, args=(kind, port, ARRIVAL * n / clients, until, case, lock))
        for n in range(clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    opened.put(case.opened)


def person(port: int, name: str, pause: float, until: float, case: Case) -> None:
    """Answer until the time is over; a request without a reply is a failure."""
    one, rng = Annotator(port, name, PEOPLE_TIMEOUT), np.random.Generator(np.random.PCG64(sum(name.encode())))
    begun, text = False, ""
    while time.monotonic() < until:
        began = time.perf_counter()
        for attempt in range(2):  # like a browser: once more if the connection was closed meanwhile
            try:
                if not begun:
                    one.begin()
                    begun = True
                task = task_in(text)
                if task is None:
                    status, text = one.request("GET", "/card")
                else:
                    value = ("left", "right")[task[1] % 2]
                    fields = {"token": task[0], "kind": "label", "value": value, "seconds": "1"}
                    status, text = one.request("POST", "/answer", fields)
            except LOST:
                case.failures += attempt
            else:
                case.failures += status >= 500
                case.times.append(1000 * (time.perf_counter() - began))
                break
        time.sleep(float(rng.uniform(0.5, 1.5)) * pause)
    one.hang_up()


def measure(port: int, name: str, kind: str, options: argparse.Namespace) -> Case:
    """People for a while, with slow clients of this kind; none for ""."""
    case = Case(name, options.slow if kind else 0)
    opened: Queue[int] = multiprocessing.Queue()
    until = time.monotonic() + options.seconds + (ARRIVAL if kind else 0.0)
    slow = multiprocessing.Process(target=crowd, args=(kind, port, case.clients, until, opened))
    if kind:
        slow.start()
        time.sleep(ARRIVAL)
    shares = [Case(name, 0) for _ in range(options.people)]
    people = [
        threading.Thread(target=person, args=(port, f"{name} {n}", options.pause, until, share))
        for n, share in enumerate(shares)
    ]
    for thread in people:
        thread.start()
    for thread in people:
        thread.join()
    if kind:
        case.opened = opened.get()
        slow.join()
    case.times = [value for share in shares for value in share.times]
    case.failures = sum(share.failures for share in shares)
    print(case.row(), flush=True)
    return case


def table(
    folder: Path, limits: Limits | None, kinds: list[str], options: argparse.Namespace, store: str = ""
) -> list[Case]:
    """All cases on one server, and first nobody slow."""
    project = make_project(folder, options.rows, options.rows, store)
    server = Server(project, free_port(), folder / "server.log", limits, options.files)
    try:
        server.wait()
        probe = Annotator(server.port, "probe")
        probe.begin()
        while task_in(probe.request("GET", "/card")[1]) is None:
            time.sleep(0.2)
        probe.hang_up()
        return [measure(server.port, kind or "nobody slow", kind, options) for kind in ["", *kinds]]
    finally:
        server.kill()


def text_of(tables: dict[str, list[Case]], options: argparse.Namespace) -> str:
    """The part of the page."""
    limited = [cases for title, cases in tables.items() if title != WITHOUT]
    calm = max(np.percentile(cases[0].times, 95) for cases in limited)
    worst = max(np.percentile(case.times, 95) for cases in limited for case in cases[1:])
    failed = sum(case.failures for cases in limited for case in cases)
    found = environment("cpu")
    lines = [
        "## Slow clients",
        "",
        f"{options.people} people label (a pause of {options.pause} s between answers) while {options.slow} clients of "
        f"the same address hold connections for {options.seconds:.0f} s; one that is closed comes back in about a "
        f"second. They come first, within {ARRIVAL:.0f} s. "
        f"The server may open {options.files} files. Default limits: {DEFAULTS.connections} connections (here "
        f"{DEFAULTS.within(options.files)}, because of the files), {DEFAULTS.of_one_peer} of one address, "
        f"{DEFAULTS.head_seconds:.0f} s for a head, "
        f"{DEFAULTS.body_seconds:.0f} s for a body. With them the largest p95 under slow clients is {worst:,.0f} ms "
        f"({calm:,.0f} ms without slow clients), and {failed} requests of people failed.",
        "",
        "| slow client sends | |",
        "|---|---|",
        *(f"| {kind} | {words} |" for kind, words in KINDS.items()),
    ]
    for title, cases in tables.items():
        lines += [
            "",
            f"### {title}",
            "",
            "| slow clients | at a time | opened | people's requests | p50 ms | p95 ms | worst ms | failed |",
            "|---|---|---|---|---|---|---|---|",
            *(case.row() for case in cases),
        ]
    first = "other programs"
    if hasattr(os, "sched_getscheduler") and os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO):
        first += ", behind which the server and the people never wait (`chrt -r 1`), and the slow clients do"
    machine = f"Python {found['python']}, {found['platform']}, {found['device']}"
    lines += [
        "",
        f"People, slow clients, server and worker share the cores of one machine with {first} ({machine}). "
        f"A request of people that takes more than {PEOPLE_TIMEOUT:.0f} s counts as failed. Opened: connections of "
        "slow clients in all.",
    ]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--slow", type=int, default=300, help="slow clients at a time; at most 1,000")
    parser.add_argument("--people", type=int, default=10)
    parser.add_argument("--pause", type=float, default=0.5, help="seconds between two answers of a person, on average")
    parser.add_argument("--seconds", type=float, default=12.0, help="length of each case; at most 120")
    parser.add_argument("--files", type=int, default=256, help="files that the process of the server may open")
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--postgres", metavar="URL", default="", help="measure on an empty schema there too")
    parser.add_argument("--dry", action="store_true", help="print the part, and leave the page as it is")
    options = parser.parse_args()
    options.slow, options.seconds = min(options.slow, 1000), min(options.seconds, 120.0)
    tables: dict[str, list[Case]] = {}
    plans = [
        ("With the default limits", DEFAULTS, list(KINDS), ""),
        (WITHOUT, None, ["half a head"], ""),
    ]
    if options.postgres:
        plans.append(("On PostgreSQL", DEFAULTS, list(KINDS), options.postgres))
    for title, limits, kinds, store in plans:
        print(title, flush=True)
        with tempfile.TemporaryDirectory() as folder:
            tables[title] = table(Path(folder), limits, kinds, options, store)
    text = text_of(tables, options)
    if options.dry:
        print(text)
    else:
        write_part("slow_clients", text)


if __name__ == "__main__":
    main()
