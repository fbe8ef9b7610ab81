"""Load test of the labelling page: many simulated annotators over HTTP, each answer durable before the next card.

    python benchmarks/load_page.py                    # 50 annotators, first as people work, then as fast as they can
    python benchmarks/load_page.py --annotators 20 --seconds 10
    python benchmarks/load_page.py --shown 200        # and the time to the next item on the screen, in chromium
    python benchmarks/load_page.py --photos 300 --shown 100 --seconds 0     # the same for photos, and no crowd

An answer's time is from sending it to having the next card, which the page shows at once. Two ways of working: with a
pause between answers (a person), and without (the most the server can do; each then waits for all others). The worker
trains and chooses beside it. Annotators and server share the cores of this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from annotators import LOST, Annotator, Server, free_port, make_photos, make_project, task_in
from labelwise.stats.environment import environment


@dataclass(frozen=True)
class Load:
    """What was measured; times in milliseconds."""

    annotators: int
    pause: float  # seconds between a card and its answer, on average
    seconds: float
    answers: int
    per_second: float
    p50: float
    p95: float
    p99: float
    worst: float
    failures: int
    empty: int  # times somebody had to wait for an item


def annotate(port: int, name: str, pause: float, until: float, found: list[float], counts: dict[str, int]) -> None:
    """Answer until the time is over."""
    person, rng = Annotator(port, name), np.random.Generator(np.random.PCG64(abs(hash(name)) % 2**32))
    person.begin()
    time.sleep(float(rng.random()) * pause)  # people do not start together
    text = person.request("GET", "/card")[1]
    while time.monotonic() < until:
        task = task_in(text)
        if task is None:
            counts["empty"] += 1
            time.sleep(0.5)
            text = person.request("GET", "/card")[1]
            continue
        time.sleep(float(rng.uniform(0.5, 1.5)) * pause)
        fields = {"token": task[0], "kind": "label", "value": ("left", "right")[task[1] % 2], "seconds": f"{pause:.2f}"}
        began = time.perf_counter()
        try:
            status, text = person.request("POST", "/answer", fields)
        except LOST:
            counts["failures"] += 1
            continue
        found.append(1000 * (time.perf_counter() - began))
        counts["failures"] += status != 200
    person.hang_up()


def measure(port: int, annotators: int, pause: float, seconds: float, tag: str) -> Load:
    """Let people work for a while."""
    times: list[list[float]] = [[] for _ in range(annotators)]
    counts = [{"failures": 0, "empty": 0} for _ in range(annotators)]
    began = time.monotonic()
    people = [
        threading.Thread(target=annotate, args=(port, f"{tag} {n}", pause, began + seconds, times[n], counts[n]))
        for n in range(annotators)
    ]
    for person in people:
        person.start()
    for person in people:
        person.join()
    took = time.monotonic() - began
    all_times = np.concatenate([np.array(one) for one in times])
    p50, p95, p99 = np.percentile(all_times, [50, 95, 99]).round(1).tolist()
    return Load(
        annotators,
        pause,
        round(took, 1),
        len(all_times),
        round(len(all_times) / took, 1),
        p50,
        p95,
        p99,
        round(float(all_times.max()), 1),
        sum(one["failures"] for one in counts),
        sum(one["empty"] for one in counts),
    )


def shown(port: int, answers: int) -> list[float]:
    """Milliseconds from the key to the next item on the screen, of one person in a headless chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        options = ["--no-sandbox"] if os.getuid() == 0 else []
        browser = play.chromium.launch(executable_path=shutil.which("chromium"), args=options)
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}/")
        page.fill("input[name=name]", "browser")
        page.keyboard.press("Enter")
        found = []
        for number in range(answers):
            page.wait_for_selector("#card[data-token][data-ready]")
            token = page.get_attribute("#card", "data-token")
            page.keyboard.press("12"[number % 2])
            page.wait_for_selector(f'#card[data-took]:not([data-token="{token}"])')
            found.append(float(page.get_attribute("#card", "data-took") or "nan"))
        browser.close()
    return found


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--annotators", type=int, default=50)
    parser.add_argument("--pause", type=float, default=2.0, help="seconds a person looks at an item, on average")
    parser.add_argument("--seconds", type=float, default=30.0, help="length of each of the two parts")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--k", type=int, default=4000, help="items of a round")
    parser.add_argument("--shown", type=int, default=0, help="answers to give in a browser, before the others come")
    parser.add_argument("--photos", type=int, default=0, help="photos of 1200 x 900 pixels to label, instead of --rows")
    parser.add_argument("--out", type=Path, help="write the numbers there as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.photos:
            project = make_photos(Path(folder), options.photos, options.photos // 2)
        else:
            project = make_project(Path(folder), options.rows, options.k)
        server = Server(project, free_port(), Path(folder) / "server.log")
        try:
            server.wait()
            while task_in(_card(server.port)) is None:
                time.sleep(0.5)
            measured, seen = [], shown(server.port, options.shown) if options.shown else []
            if seen:
                p50, p95 = np.percentile(seen, [50, 95]).round().tolist()
                print(f"next item on the screen, {len(seen)} answers: p50 {p50} ms, p95 {p95} ms", flush=True)
            for tag, pause in (("people", options.pause), ("flat out", 0.0)) if options.seconds else ():
                load = measure(server.port, options.annotators, pause, options.seconds, tag)
                measured.append(load)
                print(
                    f"{load.annotators} annotators, pause {load.pause} s: {load.answers} answers in {load.seconds} s, "
                    f"{load.per_second} a second; p50 {load.p50} ms, p95 {load.p95} ms, p99 {load.p99} ms, "
                    f"worst {load.worst} ms; {load.failures} failures, {load.empty} waits for an item",
                    flush=True,
                )
        finally:
            server.stop()
    if options.out:
        text = json.dumps(
            {"load": [asdict(one) for one in measured], "shown_ms": seen, "environment": environment()}, indent=1
        )
        options.out.write_text(text + "\n")


def _card(port: int) -> str:
    person = Annotator(port, "probe")
    person.begin()
    text = person.request("GET", "/card")[1]
    person.hang_up()
    return text


if __name__ == "__main__":
    main()
