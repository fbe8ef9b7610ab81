"""Kill test of the store: simulated annotators in several processes, each killed (SIGKILL) at random moments.

    python benchmarks/kill_store.py      # 200 kills, 20 annotators, SQLite; its part of docs/results/reliability.md
    python benchmarks/kill_store.py --postgres postgresql://user@/db     # and an empty schema there
    python benchmarks/kill_store.py --kills 5 --dry

An annotator says on a pipe what it is about to do ("try") and, once the store has returned, that it is done ("ack"). A
process that was killed is started again and first sends again what had not been acknowledged, as a page does. At the
end the history must hold every acknowledged event as it was acknowledged, no token twice, nothing that was never tried,
no row with two live answers, and numbers without a gap; and the store must open.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from labelwise.project.store import Event, Item, Pick, Round, Store
from reliability_page import write_part

CONTEXT = multiprocessing.get_context("forkserver")  # quick to start again, and no threads are forked
Act = dict[str, Any]  # what an annotator does: who, token, do, row, value


@dataclass(frozen=True)
class Outcome:
    """What came of it. All of `lost`, `twice`, `unknown`, `wrong`, `double`, `gaps`, `failures` must be empty or 0."""

    kills: int
    annotators: int
    processes: int
    seconds: float
    acknowledged: int
    answers_per_second: float
    unacknowledged: int  # tried, killed before the answer came, and never sent again
    sent_again: int
    lost: list[str]
    twice: list[str]
    unknown: list[str]
    wrong: list[str]
    double: list[int]
    gaps: int
    failures: list[str]

    def is_good(self) -> bool:
        """Whether nothing was lost or duplicated."""
        found = (self.lost, self.twice, self.unknown, self.wrong, self.double, self.failures)
        return self.gaps == 0 and not any(found)


# --- an annotator process --------------------------------------------------------------------------------------------


def annotate(url: str, names: list[str], pending: list[Act], life: int, pipe: Connection) -> None:
    """Open the store and answer in one thread for each name until the pipe says stop."""
    store = Store.open(url)
    speak, stop = threading.Lock(), threading.Event()

    def say(word: str, act: Act) -> None:
        with speak:
            pipe.send_bytes(json.dumps([word, act]).encode())

    def work(name: str) -> None:
        chance = random.Random(f"{name} {life}")
        try:
            for act in pending:
                if act["who"] == name:
                    say("again", act)
                    say("ack", act | _do(store, act))
            number = 0
            while not stop.is_set():
                number += 1
                chosen = _choose(store, name, f"{name}-{life}-{number}", chance)
                if chosen is not None:
                    say("try", chosen)
                    say("ack", chosen | _do(store, chosen))
        except Exception as error:
            say("failure", {"who": name, "text": f"{type(error).__name__}: {error}"})

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    pipe.recv_bytes()
    stop.set()
    for thread in threads:
        thread.join()
    store.close()
    say("end", {})


def _choose(store: Store, name: str, mark: str, chance: random.Random) -> Act | None:
    """Mostly the next task; now and then an undo or a change. Values are never the same twice."""
    dice = chance.random()
    if dice < 0.05:
        return {"who": name, "token": f"undo {mark}", "do": "undo"}
    task = store.next_task(name)
    if task is None:
        time.sleep(0.05)
        return None
    if dice < 0.10:
        return {"who": name, "token": f"change {mark}", "do": "change", "row": task.row, "value": mark}
    return {"who": name, "token": task.token, "do": "answer", "row": task.row, "value": mark}


def _do(store: Store, act: Act) -> Act:
    event: Event | None
    if act["do"] == "undo":
        event = store.undo(act["who"], token=act["token"])
    elif act["do"] == "change":
        event = store.change(act["who"], act["row"], "label", act["value"], act["token"])
    else:
        event = store.answer(act["token"], act["who"], "label", act["value"], 0.1)
    return {"event": None if event is None else asdict(event)}


# --- the one who kills -----------------------------------------------------------------------------------------------


@dataclass
class Log:
    """What all processes said."""

    tried: dict[str, Act] = field(default_factory=dict)
    acked: dict[str, Act] = field(default_factory=dict)
    sent_again: int = 0
    failures: list[str] = field(default_factory=list)

    def hear(self, word: str, act: Act) -> None:
        """Take down one message."""
        if word in ("try", "again"):
            self.tried[act["token"]] = act
            self.sent_again += word == "again"
        elif word == "ack":
            self.acked[act["token"]] = act
        elif word == "failure":
            self.failures.append(f"{act['who']}: {act['text']}")


class Labelling:
    """A process with some of the annotators, started again after each kill."""

    def __init__(self, url: str, names: list[str], log: Log) -> None:
        self._url, self._names, self._log, self._life = url, names, log, 0
        self.start()

    def start(self) -> None:
        """A new process, which first sends again what was not acknowledged."""
        self._life += 1
        left = [act for token, act in self._log.tried.items() if token not in self._log.acked]
        pending = [act for act in left if act["who"] in self._names]
        self._pipe, far = CONTEXT.Pipe()
        arguments = (self._url, self._names, pending, self._life, far)
        self._process = CONTEXT.Process(target=annotate, args=arguments, daemon=True)
        self._process.start()
        far.close()

    def listen(self) -> None:
        """Take in what it has said so far."""
        try:
            while self._pipe.poll():
                word, act = json.loads(self._pipe.recv_bytes())
                self._log.hear(word, act)
        except (EOFError, ConnectionResetError):
            pass

    def kill(self) -> None:
        """SIGKILL, then hear what it had still said."""
        self._process.kill()
        self._process.join()
        self.listen()
        self._pipe.close()
        self._process.close()

    def finish(self, seconds: float) -> None:
        """Ask it to stop and wait until it has."""
        self._pipe.send_bytes(b"stop")
        end = time.monotonic() + seconds
        while self._process.is_alive():
            self.listen()
            if time.monotonic() > end:
                self._log.failures.append(f"the process of {self._names} did not stop")
                break
            time.sleep(0.01)
        self.kill()


def run(url: str, annotators: int, processes: int, kills: int, seed: int, gap: float, picks: int) -> Outcome:
    """Make a store at `url`, let people work on it, kill, and look."""
    CONTEXT.set_forkserver_preload(["labelwise.project.store"])
    store = Store.create(url)
    store.add_items(Item(row, str(row)) for row in range(picks))
    store.add_round(Round(1, "random", "", 0, 0, {}), [Pick(row, "chosen", 0.0, {}) for row in range(picks)])
    store.close()
    chance, log, start = random.Random(seed), Log(), time.perf_counter()
    names = [f"p{number}" for number in range(annotators)]
    services = [Labelling(url, names[number::processes], log) for number in range(processes)]
    for _ in range(kills):
        now, before = time.perf_counter(), len(log.acked)
        moment = now + chance.uniform(0, 2 * gap)
        # On a slow machine they would be killed before they have done anything.
        while time.perf_counter() < moment or (len(log.acked) == before and time.perf_counter() < now + 30):
            for one in services:
                one.listen()
            time.sleep(0.002)
        one = chance.choice(services)
        one.kill()
        one.start()
    for one in services:
        one.finish(60)
    return _look(url, log, kills, annotators, processes, time.perf_counter() - start)


def _look(url: str, log: Log, kills: int, annotators: int, processes: int, seconds: float) -> Outcome:
    store = Store.open(url)
    events, answers = store.events(), store.answers()
    store.close()
    by_token = {event.token: event for event in events}
    acked = {token: act for token, act in log.acked.items() if act["event"] is not None}
    wrong = [token for token, act in acked.items() if token in by_token and asdict(by_token[token]) != act["event"]]
    wrong += [
        event.token
        for event in events
        if event.kind == "label" and event.token in log.tried and event.value != log.tried[event.token]["value"]
    ]
    counts = Counter(event.token for event in events)
    return Outcome(
        kills=kills,
        annotators=annotators,
        processes=processes,
        seconds=round(seconds, 1),
        acknowledged=len(acked),
        answers_per_second=round(len(acked) / seconds, 1),
        unacknowledged=len(log.tried.keys() - log.acked.keys()),
        sent_again=log.sent_again,
        lost=sorted(acked.keys() - by_token.keys()),
        twice=[token for token, count in counts.items() if count > 1],
        unknown=sorted(by_token.keys() - log.tried.keys()),
        wrong=wrong,
        double=[row for row, answer in answers.items() if len(answer.votes) > 1],
        gaps=sum(event.seq != number for number, event in enumerate(events, start=1)),
        failures=log.failures,
    )


def text_of(outcomes: dict[str, Outcome]) -> str:
    """The part of the page."""
    rows: list[tuple[str, Callable[[Outcome], Any]]] = [
        ("kills", lambda one: one.kills),
        ("answers and undos acknowledged", lambda one: f"{one.acknowledged:,}"),
        ("of them lost", lambda one: len(one.lost)),
        ("in the history twice", lambda one: len(one.twice)),
        ("changed", lambda one: len(one.wrong)),
        ("in the history and never tried", lambda one: len(one.unknown)),
        ("rows with two answers", lambda one: len(one.double)),
        ("gaps in the numbers, errors of people", lambda one: f"{one.gaps}, {len(one.failures)}"),
        ("sent again after a kill", lambda one: one.sent_again),
    ]
    first = next(iter(outcomes.values()))
    lines = [f"| | {' | '.join(outcomes)} |", "|---|" + "---|" * len(outcomes)]
    lines += [f"| {name} | {' | '.join(str(value(one)) for one in outcomes.values())} |" for name, value in rows]
    return (
        "## Kills of the store's processes\n\n"
        f"`python benchmarks/kill_store.py`: {first.annotators} people in {first.processes} processes answer, change "
        "and take back as fast as they can, and a process is killed (SIGKILL) at random moments. What was acknowledged "
        "is compared with the history.\n\n" + "\n".join(lines)
    )


def main() -> None:
    """Read the command line, run, write the page, and fail where anything was lost or duplicated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--postgres", metavar="URL", default="", help="an empty schema, for a second column")
    parser.add_argument("--annotators", type=int, default=20)
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--gap", type=float, default=0.5, help="mean seconds between kills")
    parser.add_argument("--picks", type=int, default=5_000)
    parser.add_argument("--dry", action="store_true", help="print the part, and leave the page as it is")
    args = parser.parse_args()
    outcomes = {}
    with tempfile.TemporaryDirectory() as folder:
        urls = {"SQLite": f"sqlite:///{Path(folder).resolve()}/store.db", "PostgreSQL": args.postgres}
        for name, url in urls.items():
            if url:
                outcomes[name] = run(url, args.annotators, args.processes, args.kills, args.seed, args.gap, args.picks)
                print(name, json.dumps(asdict(outcomes[name]), indent=2), flush=True)
    if args.dry:
        print(text_of(outcomes))
    else:
        write_part("kill_store", text_of(outcomes))
    if not all(one.is_good() for one in outcomes.values()):
        raise SystemExit("answers were lost or duplicated")


if __name__ == "__main__":
    main()
