"""Workers: processes that run cells, one each at a time. One that dies fails its cell, and another takes its place.

A worker is a fresh process (spawn) of one thread; what it loads it keeps for its next cells. It ends by itself when the
process that started it is gone, however that was killed.
"""

from __future__ import annotations

import contextlib
import multiprocessing as mp
import os
import signal
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, Literal

from labelwise.bench.suite.suite import Cell
from labelwise.errors import StoreError

_END = 5.0  # seconds a worker has to end by itself
_STILLBORN = 3  # processes in a row that end before they say anything: it is not the cells
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class Event:
    """What a worker has to say of its cell."""

    kind: Literal["began", "round", "done", "failed"]
    cell: Cell
    round: int = -1
    seconds: float = 0.0  # of a round: training and selection
    text: str = ""  # why it failed


@dataclass
class _Worker:
    process: Any
    pipe: Any
    cell: Cell | None = None
    lived: bool = False  # whether anything was heard of it


class Workers:
    """`count` processes that run cells of one run; a context that leaves none behind."""

    def __init__(self, run: Path, count: int):
        self.run = run
        self.count = count
        self._context = mp.get_context("spawn")
        self._all: list[_Worker] = []
        self._stillborn = 0

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

    def events(self, cells: list[Cell], every: float) -> Iterator[Event | None]:
        """Run the cells and say what happens; None at least each `every` seconds in which nothing does."""
        left = cells[::-1]
        while left or any(worker.cell is not None for worker in self._all):
            while left and len(self._all) < self.count:
                self._all.append(self._started())
            for worker in self._all:
                if worker.cell is None and left:
                    worker.cell = left.pop()
                    with contextlib.suppress(OSError):  # one that died meanwhile is noticed below
                        worker.pipe.send(worker.cell)
                    yield Event("began", worker.cell)
            busy = {worker.pipe: worker for worker in self._all if worker.cell is not None}
            ready = connection.wait(list(busy), timeout=every)
            for pipe in ready:
                yield self._heard(busy[pipe])
            if not ready:
                yield None

    def _heard(self, worker: _Worker) -> Event:
        """The next event of a worker; a dead one fails its cell and is replaced with the next."""
        cell = worker.cell
        assert cell is not None
        try:
            event: Event = worker.pipe.recv()
        except (EOFError, OSError):
            return Event("failed", cell, text=f"its process ended with {self._buried(worker)}")
        worker.lived = True
        if event.kind in ("done", "failed"):
            worker.cell = None
        return event

    def _buried(self, worker: _Worker) -> str:
        """Take a dead worker away and say how it ended."""
        worker.process.join(_END)
        worker.pipe.close()
        self._all.remove(worker)
        ended = _exit(worker.process.exitcode)
        self._stillborn = 0 if worker.lived else self._stillborn + 1
        if self._stillborn == _STILLBORN:
            raise StoreError(
                f"{_STILLBORN} processes in a row ended with {ended} before they could run anything; what they wrote "
                "is above. Mend that and start again: every finished round is kept"
            )
        return ended

    def _started(self) -> _Worker:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, str(self.run)), daemon=True)
        with _inherited():
            process.start()
        theirs.close()
        return _Worker(process, ours)


class Here:
    """Runs cells in this process, one after another: for runs of seconds, which another process would outlast."""

    def __init__(self, run: Path):
        self.run = run

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def events(self, cells: list[Cell], every: float) -> Iterator[Event | None]:
        """Run the cells; what happened in each is said after it."""
        from labelwise.bench.suite.cell import run_cell

        for cell in cells:
            yield Event("began", cell)
            told: list[Event] = []
            try:
                run_cell(cell, self.run, lambda record, told=told, cell=cell: told.append(_of(record, cell)))  # type: ignore[misc]
            except Exception:
                told.append(Event("failed", cell, text=traceback.format_exc()))
            else:
                told.append(Event("done", cell))
            yield from told


@contextlib.contextmanager
def _inherited() -> Iterator[None]:
    """What a process started here is born with: one thread, and no ear for Ctrl-C, which is for the runner alone."""
    before = {name: os.environ.get(name) for name in _THREADS}
    main = threading.current_thread() is threading.main_thread()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.update(dict.fromkeys(_THREADS, "1"))  # libraries read it when they are loaded, before any code of ours
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
    """The life of a worker: a cell comes in, events go out."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    import torch

    torch.set_num_threads(1)
    # A runner that was killed is gone from one word to the next: there is nobody left to tell, so the worker ends too.
    with contextlib.suppress(EOFError, OSError):
        while True:
            cell: Cell = pipe.recv()
            pipe.send(_ran(cell, Path(run), pipe))


def _ran(cell: Cell, run: Path, pipe: Any) -> Event:
    """Run a cell, telling of its rounds; how it ended."""
    from labelwise.bench.suite.cell import run_cell

    try:
        run_cell(cell, run, lambda record: pipe.send(_of(record, cell)))
    except ConnectionError:
        raise  # of the pipe: the runner is gone
    except Exception:
        return Event("failed", cell, text=traceback.format_exc())
    return Event("done", cell)


def _of(record: Any, cell: Cell) -> Event:
    spent = record.train_seconds + record.select_seconds + record.read_seconds
    return Event("round", cell, record.round, spent)


def _end_with_parent() -> None:
    """Wait for the end of the runner, then end: nobody is there to be told, and another run may begin."""
    parent = mp.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _exit(code: int | None) -> str:
    if code is None or code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):
        return f"{signal.Signals(-code).name} (killed, often for want of memory)"
    return f"signal {-code}"
