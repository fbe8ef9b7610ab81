"""One measurement in a process of its own: `python measure.py WHO TASK.json`, the answer is written beside the task.

WHO is `ours`, `plain`, `greedy` (the method as a user's own `Greedy`), `rates` or the name of a peer. A peer runs in
another environment, so nothing of Labelwise is imported here unless it is measured.
"""

from __future__ import annotations

import functools
import json
import os
import resource
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from shapes import Case, load_inputs

MB = 1e6
ENOUGH_SECONDS = 2.0  # a short case is repeated for so long
MOST_REPEATS = 9
PLAIN_SECONDS = 180.0  # a longer plain run is cut to a tenth of the picks, and says so
PEER_MEMORY = 12 << 30  # bytes of address space

Run = Callable[[int], Any]  # picks for a given k


def main(who: str, task_file: Path) -> None:
    """Measure and write the answer to `answer.json` beside the task."""
    task = json.loads(task_file.read_text())
    case = Case.from_json(task["case"]) if "case" in task else None
    if case is None:
        answer = rates(task["scale"])
    elif who == "ours":
        answer = measure_ours(case, task)
    elif who == "plain":
        answer = measure_plain(case, task)
    elif who == "greedy":
        answer = measure_greedy(case, task)
    else:
        answer = measure_peer(who, case, task)
    task_file.with_name("answer.json").write_text(json.dumps(answer))


def measure_ours(case: Case, task: dict[str, Any]) -> dict[str, Any]:
    """Time, memory, picks; then, untimed, how often the input is read and the arithmetic of the matrix products."""
    import labelwise as lw

    arrays: dict[str, Any] = {**load_inputs(Path(task["inputs"]))}
    answer = timed(lambda k: lw.select(case.strategy, k, **arrays).ids, case.k, task["repeats"])
    if task["count"]:
        answer |= _counted(functools.partial(lw.select, case.strategy, case.k, **arrays), case)
    return answer


def measure_plain(case: Case, task: dict[str, Any]) -> dict[str, Any]:
    """The yardstick."""
    import plain

    arrays = {name: torch.from_numpy(array) for name, array in load_inputs(Path(task["inputs"])).items()}
    return _cut_if_long(functools.partial(_plain, plain.ALL[case.strategy], task["first"], arrays), case, task)


def measure_greedy(case: Case, task: dict[str, Any]) -> dict[str, Any]:
    """The method as a user's own `Greedy`."""
    import labelwise as lw
    import own_greedy

    strategy = own_greedy.ALL[case.strategy]()
    arrays: dict[str, Any] = {**load_inputs(Path(task["inputs"]))}
    return _cut_if_long(lambda k: lw.select(strategy, k, **arrays).ids, case, task)


def _cut_if_long(run: Run, case: Case, task: dict[str, Any]) -> dict[str, Any]:
    """Time and memory; of a tenth of the picks where all of them would take more than three minutes."""
    scale = 1
    if case.k >= 500:
        probe = timed(run, case.k // 50, 1)
        scale = 10 if 50 * probe["best"] > PLAIN_SECONDS else 1
    answer = timed(run, case.k // scale, task["repeats"])
    for name in ("best", "median", "cpu"):
        answer[name] *= scale
    return answer | {"scale": scale}


def _plain(strategy: Callable[..., torch.Tensor], first: int, arrays: dict[str, torch.Tensor], k: int) -> Any:
    return strategy(k, first, **arrays).numpy()


def measure_peer(name: str, case: Case, task: dict[str, Any]) -> dict[str, Any]:
    """A peer under a limit of time and memory; what stopped it is part of the answer."""
    import peers

    resource.setrlimit(resource.RLIMIT_AS, (PEER_MEMORY, PEER_MEMORY))
    version = ""
    base = 0.0
    try:
        version = peers.version(name)
        make = peers.ADAPTERS[name, case.strategy]
        run = make(case, load_inputs(Path(task["inputs"])))
        signal.signal(signal.SIGALRM, _out_of_time)
        signal.setitimer(signal.ITIMER_REAL, task["limit"])
        base = forget_peak()
        answer = timed(run, case.k, 1)
        if answer["best"] < task["limit"] / 10:
            answer = _faster(answer, timed(run, case.k, 2))
    except OutOfTime:
        answer = {"stopped": f"> {task['limit']:g} s", "extra_mb": (peak() - base) / MB, "at_least": task["limit"]}
    except MemoryError as error:
        answer = {"stopped": f"out of memory ({PEER_MEMORY >> 30} GiB allowed): {error}"}
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        answer = {"stopped": f"out of memory ({PEER_MEMORY >> 30} GiB allowed): {error}"}
    except Exception as error:  # whatever a peer raises goes into the table, never silently
        answer = {"stopped": f"{type(error).__name__}: {error}"}
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return answer | {"version": version}


class OutOfTime(BaseException):
    """The peer's time is up; not an Exception, so that no peer catches it."""


def _out_of_time(signum: int, frame: Any) -> None:
    raise OutOfTime


def _faster(first: dict[str, Any], again: dict[str, Any]) -> dict[str, Any]:
    return again | {"extra_mb": max(first["extra_mb"], again["extra_mb"])}


def timed(run: Run, k: int, repeats: int) -> dict[str, Any]:
    """Best and median seconds, CPU seconds, and the peak of memory above what was held before (the inputs)."""
    base = forget_peak()
    walls: list[float] = []
    cpus: list[float] = []
    others: list[float] = []
    picks: Any = None
    while len(walls) < repeats or (repeats > 1 and sum(walls) < ENOUGH_SECONDS and len(walls) < MOST_REPEATS):
        busy, cpu, wall = busy_seconds(), _cpu(), time.perf_counter()
        picks = run(k)
        walls.append(time.perf_counter() - wall)
        cpus.append(_cpu() - cpu)
        others.append(max(0.0, busy_seconds() - busy - cpus[-1]))
    return {
        "best": min(walls),
        "median": statistics.median(walls),
        "walls": walls,
        "cpu": statistics.median(cpus),
        "others": sum(others) / sum(walls),  # cores that other processes used meanwhile
        "extra_mb": (peak() - base) / MB,
        "picks": [int(pick) for pick in np.asarray(picks)],
    }


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def busy_seconds() -> float:
    """CPU seconds all processes of this machine have used; 0 where it cannot be read."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in stat.read_text().split()[1:9])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def forget_peak() -> float:
    """Start a new peak of memory from what is held now; bytes held now."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:  # not Linux: the peak since the start of the process, which only hides growth below it
        return peak()
    return _status("VmRSS")


def peak() -> float:
    """Bytes of the peak since `forget_peak`."""
    if Path("/proc/self/status").exists():
        return _status("VmHWM")
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status(field: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return float(line.split()[1]) * 1024
    raise KeyError(field)


def _counted(run: Callable[[], Any], case: Case) -> dict[str, Any]:
    """Reads of the whole input, and floating-point operations in matrix products."""
    from torch.utils.flop_counter import FlopCounterMode

    from labelwise.shards import Shard

    read = [0]
    rows_of = Shard.rows

    def counting(self: Shard, where: Any) -> Any:
        rows = rows_of(self, where)
        read[0] += len(rows) if rows.columns else 0
        return rows

    Shard.rows = counting  # type: ignore[method-assign]
    try:
        with FlopCounterMode(display=False) as flops:
            run()
    finally:
        Shard.rows = rows_of  # type: ignore[method-assign]
    return {"reads": read[0] / case.n, "flops": flops.get_total_flops()}


def rates(scale: float) -> dict[str, Any]:
    """Bytes a second of a plain read, operations a second of a matrix product, on this machine now."""
    size = max(64, int(2048 * scale))
    a, b = torch.randn(size, size), torch.randn(size, size)
    x = torch.ones(int((64 << 20) * scale))
    return {
        "read": x.numel() * 4 / _best(lambda: x.sum()),
        "product": 2 * size**3 / _best(lambda: a @ b),
        "threads": torch.get_num_threads(),
    }


def _best(run: Callable[[], Any]) -> float:
    return min(timed(lambda k: [run()][:0], 0, 5)["walls"])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
