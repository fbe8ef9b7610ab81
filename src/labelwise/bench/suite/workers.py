"""Workers: processes that run jobs, one at a time each. If one dies, its job fails and a new worker replaces it.

A worker is a spawned process with one thread; it keeps loaded data for its next jobs. It ends by itself when the
process that started it is gone, however that ended.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

from labelwise.bench.suite.suite import Job
from labelwise.errors import StoreError

_END = 5.0  # seconds a worker has to end by itself
_EARLY_DEATHS = 3  # workers in a row that die before their first event: the jobs are not the cause
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Event:
    """What happened to a job."""

    kind: Literal["began", "round", "done", "failed"]
    job: Job
    round: int = -1
    seconds: float = 0.0  # of a round: training and selection
    text: str = ""  # of the failure


@dataclass
class _Worker:
    process: Any
    pipe: Any
    job: Job | None = None
    has_reported: bool = False


class Workers:
    """A pool of `count` processes for the jobs of one run; a context that ends them all."""

    def __init__(self, run: Path, count: int):
        self.run = run
        self.count = count
        self._context = mp.get_context("spawn")
        self._all: list[_Worker] = []
        self._early_deaths = 0

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._all:
            worker.process.terminate()
        for worker in self._all:
            worker.process.join(_END)
            if worker.process.is_alive():
                worker.process.kill()
            worker.pipe.close()

    def events(self, jobs: Sequence[Job], every: float) -> Iterator[Event | None]:
        """Run the jobs and yield what happens; yield None after `every` seconds without an event."""
        left = list(jobs[::-1])
        while left or any(worker.job is not None for worker in self._all):
            while left and len(self._all) < self.count:
                self._all.append(self._start())
            for worker in self._all:
                if worker.job is None and left:
                    worker.job = left.pop()
                    with contextlib.suppress(OSError):  # a worker that died is noticed below
                        worker.pipe.send(worker.job)
                    yield Event("began", worker.job)
            busy = {worker.pipe: worker for worker in self._all if worker.job is not None}
            ready = connection.wait(list(busy), timeout=every)
            for pipe in ready:
                yield self._receive(busy[pipe])
            if not ready:
                yield None

    def _receive(self, worker: _Worker) -> Event:
        """The next event of a worker; if it died, the failure of its job."""
        job = worker.job
        assert job is not None
        try:
            event: Event = worker.pipe.recv()
        except (EOFError, OSError):
            return Event("failed", job, text=f"its process ended with {self._remove(worker)}")
        worker.has_reported = True
        if event.kind in ("done", "failed"):
            worker.job = None
        return event

    def _remove(self, worker: _Worker) -> str:
        """Remove a dead worker and return how it ended."""
        worker.process.join(_END)
        worker.pipe.close()
        self._all.remove(worker)
        ended = _exit_reason(worker.process.exitcode)
        self._early_deaths = 0 if worker.has_reported else self._early_deaths + 1
        if self._early_deaths == _EARLY_DEATHS:
            raise StoreError(
                f"{_EARLY_DEATHS} processes in a row ended with {ended} before they could run anything; see their "
                "output above. Fix the cause and start again: every finished round stays"
            )
        return ended

    def _start(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, str(self.run)), daemon=True)
        with theirs, _worker_environment():
            process.start()
        return _Worker(process, ours)


def in_process(run: Path, jobs: Sequence[Job]) -> Iterator[Event]:
    """Run jobs in this process, one after another: for runs so short that starting a process takes longer.

    The events of each come after it ended.
    """
    from labelwise.bench.suite.job import run_job

    for job in jobs:
        yield Event("began", job)
        events: list[Event] = []
        try:
            run_job(job, run, lambda record, events=events, job=job: events.append(_round_event(record, job)))  # type: ignore[misc]
        except Exception:
            events.append(Event("failed", job, text=traceback.format_exc()))
        else:
            events.append(Event("done", job))
        yield from events


def in_groups(run: Path, jobs: Sequence[Job], rest: Sequence[Job], most: int | None = None) -> Iterator[Event | None]:
    """Run jobs in this process side by side, and train their networks at once (train/torch/together.py).

    Args:
        run: the folder of the run.
        jobs: all jobs of the suite. They run in groups of `most`; a job is in the same group in every start.
        rest: those that are left of it.
        most: networks in a stack; None for what suits a GPU.
    """
    from labelwise.train.torch.together import MOST

    most = MOST if most is None else most
    for start in range(0, len(jobs), most):
        group = {job.name for job in jobs[start : start + most]}
        yield from _run_group(run, [job for job in rest if job.name in group], len(group))


def _run_group(run: Path, jobs: Sequence[Job], slots: int) -> Iterator[Event | None]:
    """Run the rest of a group of `slots` jobs."""
    from labelwise.bench.suite.job import repeatable, run_job
    from labelwise.train.torch.together import run_together

    events: list[Event] = [Event("began", job) for job in jobs]

    def run_one(job: Job) -> None:
        run_job(job, run, lambda record: events.append(_round_event(record, job)))

    with repeatable(jobs[0].device if jobs else "cpu"):  # outside of all, as each restores what it found
        for outcome in run_together([partial(run_one, job) for job in jobs], slots):
            if outcome is not None:
                job, error = jobs[outcome.number], outcome.error
                text = "" if error is None else "".join(traceback.format_exception(error))
                events.append(Event("failed" if text else "done", job, text=text))
            yield from events
            events.clear()
            yield None


@contextlib.contextmanager
def _worker_environment() -> Iterator[None]:
    """Processes started inside have one thread and ignore Ctrl-C, which the runner handles."""
    before = {name: os.environ.get(name) for name in _THREADS}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # libraries read it when they are loaded
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGINT, handler)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(pipe: Any, run: str) -> None:
    """The loop of a worker: receive a job, send its events."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    # If the runner was killed, the pipe is closed and the worker ends too.
    with contextlib.suppress(EOFError, OSError):
        while True:
            job: Job = pipe.recv()
            pipe.send(_run(job, Path(run), pipe))


def _run(job: Job, run: Path, pipe: Any) -> Event:
    """Run a job, send an event for each round, and return how it ended."""
    from labelwise.bench.suite.job import run_job

    try:
        run_job(job, run, lambda record: pipe.send(_round_event(record, job)))
    except ConnectionError:
        raise  # the runner is gone
    except Exception:
        return Event("failed", job, text=traceback.format_exc())
    return Event("done", job)


def _round_event(record: Any, job: Job) -> Event:
    spent = record.train_seconds + record.select_seconds + record.read_seconds
    return Event("round", job, record.round, spent)


def _end_with_parent() -> None:
    """End this process when the runner has ended, so that another run can start."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _exit_reason(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"{signal.Signals(-code).name} (killed, often because memory ran out)"
    return f"signal {-code}"
