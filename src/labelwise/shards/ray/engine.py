"""Shards on Ray: each actor makes its own part of the pool and holds it; functions go out, small answers come back.

A lost actor, alone or with its machine, is restarted: it makes its part again, restores the last snapshot, and runs
the functions again that ran since. Picks equal those of one process, since the functions are the same and the answers
are combined in the same order.

A snapshot is taken every `Tuning.every` functions. One of at most `Tuning.local` bytes is copied to this machine
and is lost only with the selection itself; functions before it are forgotten. A larger one stays with its actor: all
of them together would be a share of every row. It survives the actor but not the machine, so all functions since the
last local snapshot, or since the beginning, are stored too, and run again after the loss of a machine. They are in
Ray's store on this machine, once for all parts, and on its disk when the store is full: a function carries selected
rows, or sums over rows, and never the pool. The loss of a machine then costs the time since the beginning for the
parts that it had; no second copy of the snapshots is made and moved while nothing is lost.
"""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

from labelwise.errors import ArgumentError, StoreError
from labelwise.io.arguments import check_fields, check_real, check_whole
from labelwise.shards.ray.actor import ShardActor
from labelwise.shards.ray.cluster import Reservation, capacity, connect, reserve
from labelwise.shards.ray.serialize import RemoteError, deserialize, serialize
from labelwise.shards.shard import Once, Shard, Shards

T = TypeVar("T")
ShardFactory = Callable[[], Shard]

LOST = (  # Ray's names for the loss of a process, a machine or a value
    *("RayActorError", "WorkerCrashedError", "OutOfMemoryError"),
    *("NodeDiedError", "LocalRayletDiedError", "ObjectLostError"),
)


@dataclass(frozen=True)
class Tuning:
    """How often an actor is saved, and where to.

    Attributes:
        every: functions that an actor runs between two snapshots.
        local: bytes of the largest snapshot that is copied to this machine.
    """

    every: int = 64
    local: int = 16 << 20


@dataclass(frozen=True)
class Ray:
    """How to use a Ray cluster.

    Attributes:
        workers: actors, each with a part of the rows; as many as fit on the cluster if None.
        cpus: CPUs of an actor, which are also its threads.
        gpus: GPUs of an actor; above 0 its rows are stored on the GPU.
        address: of a running cluster; "auto" is the one that runs on this machine. None is the cluster that this
            process is connected to; without one, that of RAY_ADDRESS, which is set in a Ray job; else a new one on
            this machine, for this process alone.
        losses: how often one part may be restarted before the selection fails.
        wait: seconds to wait until all workers fit at once, while others use the cluster or machines still join it,
            and to wait for resources after a machine is lost. A cluster that this process started is not waited for.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    address: str | None = None
    losses: int = 3
    wait: float = 60.0

    tuning: ClassVar[Tuning] = Tuning()

    def __post_init__(self) -> None:
        check_fields(self, check_whole, "workers", "cpus", least=1)
        check_fields(self, check_whole, "losses", least=0)
        check_fields(self, check_real, "gpus", "wait", least=0)

    @property
    def worker(self) -> dict[str, float]:
        """The resources of one worker."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def parts(self, rows: int) -> int:
        """The number of parts for this many rows."""
        workers = capacity(connect(self.address), self.worker) if self.workers is None else self.workers
        return max(1, min(workers, rows))

    @contextmanager
    def shards(self, factories: Sequence[ShardFactory], sizes: Sequence[int]) -> Iterator[Shards]:
        """Shards on actors, which end with the block, whoever still refers to an error of theirs.

        Args:
            factories: each makes one shard, in its actor.
            sizes: the number of rows that each makes.
        """
        ray = connect(self.address)
        parts = [(factory, size) for factory, size in zip(factories, sizes) if size]
        with ExitStack() as stack:
            reservation = stack.enter_context(reserve(ray, self.worker, len(parts), self.wait))
            outbox, remote = Outbox(ray), []
            for number, (factory, size) in enumerate(parts):
                remote.append(RemoteShard(ray, self, factory, size, reservation, number, outbox))
                stack.callback(remote[-1].stop)
            for one in remote:
                one.wait()
            yield Shards(remote)


def engine_of(engine: Any) -> Ray | None:
    """The engine that `engine=` of the public functions names; None is this process."""
    if engine is None or isinstance(engine, Ray):
        return engine
    if engine == "ray":
        return Ray()
    raise ArgumentError(f'engine is None, "ray" or labelwise.shards.ray.Ray(...), found {engine!r}')


class Outbox:
    """Stores each function in Ray once, though it goes to all parts."""

    def __init__(self, ray: Any):
        self._ray, self._fn, self._sent = ray, None, None
        self._had: set[int] = set()  # parts that have got this function

    def put(self, fn: Any, number: int) -> Any:
        """The reference of a function in Ray's store, for the part of this number."""
        if fn is not self._fn or number in self._had:  # sent again, what it refers to may have changed
            self._fn, self._sent, self._had = fn, self._ray.put(serialize(fn)), set()
        self._had.add(number)
        return self._sent


class RemoteShard:
    """A shard in an actor, see `shard.Part`."""

    def __init__(
        self,
        ray: Any,
        engine: Ray,
        factory: ShardFactory,
        size: int,
        reservation: Reservation,
        number: int,
        outbox: Outbox,
    ):
        self._ray, self._engine, self._size = ray, engine, size
        self._reservation, self._number, self._outbox = reservation, number, outbox
        self._factory = _store_factory(ray, factory)
        self._local_snapshot: Any = None  # lost only with this process; None: the part as it is made
        self._calls: list[Any] = []  # functions that ran since
        self._remote_snapshot: Any = None  # a later one, with the actor
        self._calls_in_snapshot = 0  # how many of the functions ran before it
        self._losses = 0
        self._loss: Exception | None = None  # what Ray raised, the last time
        self._fatal: BaseException | None = None  # why the part cannot be used any more
        self._actor, self._ready, self._made = self._start_actor()

    def __len__(self) -> int:
        return self._size

    def begin(self, fn: Callable[[Shard], T]) -> Callable[[], T]:
        """See `Part`."""
        sent = self._outbox.put(fn, self._number)
        return functools.partial(self._answer, sent, isinstance(fn, Once), self._actor.run.remote(sent))

    def wait(self) -> None:
        """Wait until the part is made; an error of its factory is raised here."""
        while not self._is_made():
            self._restart()

    def stop(self) -> None:
        """End the actor."""
        self._ray.kill(self._actor)

    def _answer(self, sent: Any, once: bool, reply: Any) -> Any:
        if self._fatal is not None:  # a strategy that was stopped cleans up, and might wait for ever
            raise self._fatal
        answer = self._result(reply)
        while answer is None:
            answer = self._retry(sent)
        if not once:
            self._calls.append(sent)
        if len(self._calls) - self._calls_in_snapshot >= self._engine.tuning.every:
            self._save_snapshot()
        (value,) = answer
        return value

    def _result(self, reply: Any) -> tuple[Any] | None:
        """The answer in a tuple; None when the actor was lost. An error of the function is raised."""
        fetched = self._fetch(reply)
        if fetched is None:
            return None
        (value,) = fetched
        if isinstance(value, RemoteError):
            raise value.error()
        return (deserialize(value),)

    def _fetch(self, reply: Any) -> tuple[Any] | None:
        try:
            return (self._ray.get(reply),)
        except self._ray.exceptions.RayError as error:
            self._loss = _loss_of(self._ray, error)
            if self._loss is None:
                raise
            return None

    def _restart(self) -> None:
        """Start another actor in the place of the lost one."""
        self._losses += 1
        if self._losses > self._engine.losses:
            raise StoreError(
                f"a part of {self._size} rows was lost {self._losses} times (often memory: take more workers, or fewer "
                f"on one machine). Ray's last error: {self._loss}"
            )
        self.stop()  # one that only could not be reached would keep its resources
        self._actor, self._ready, self._made = self._start_actor()

    def _retry(self, sent: Any) -> tuple[Any] | None:
        """Restart the part, restore it and run the function on it; None when it is lost again."""
        try:
            self._restart()
            if not (self._is_made() and self._is_restored()):
                return None
        except BaseException as error:  # the part is not restored: its answers would be wrong
            self._fatal = error
            raise
        return self._result(self._actor.run.remote(sent))

    def _is_made(self) -> bool:
        self._reservation.wait_for(self._ready)
        return self._result(self._ready) is not None and self._result(self._made) is not None

    def _is_restored(self) -> bool:
        """Bring a new part to the state of the lost one; False when it is lost too."""
        if self._remote_snapshot is not None and not self._restores(self._remote_snapshot):
            if not isinstance(self._loss, self._ray.exceptions.ObjectLostError):
                return False
            self._remote_snapshot, self._calls_in_snapshot = None, 0  # it went with its machine
        if (
            self._remote_snapshot is None
            and self._local_snapshot is not None
            and not self._restores(self._local_snapshot)
        ):
            return False
        again = (self._actor.rerun.remote(sent) for sent in self._calls[self._calls_in_snapshot :])
        return all(self._result(reply) is not None for reply in again)

    def _restores(self, snapshot: Any) -> bool:
        return self._result(self._actor.restore.remote(snapshot)) is not None

    def _save_snapshot(self) -> None:
        """Take a snapshot, see the top of this file. A loss is noticed and handled at the next function."""
        snapshot, size_reply = self._actor.snapshot.options(num_returns=2).remote()
        size = self._result(size_reply)
        if size is None:
            return
        if size[0] > self._engine.tuning.local:
            self._remote_snapshot, self._calls_in_snapshot = snapshot, len(self._calls)
            return
        fetched = self._fetch(snapshot)
        if fetched is not None:
            self._local_snapshot, self._remote_snapshot, self._calls_in_snapshot = self._ray.put(fetched[0]), None, 0
            self._calls.clear()

    def _start_actor(self) -> tuple[Any, Any, Any]:
        """An actor, a reference that resolves when it runs, and one that resolves when it has made its part."""
        wanted = {"num_cpus": self._engine.cpus, "num_gpus": self._engine.gpus}
        place = {"scheduling_strategy": self._reservation.scheduling(self._number)}
        actor = self._ray.remote(ShardActor).options(**wanted, **place).remote(self._engine.cpus)
        return actor, actor.ready.remote(), actor.make.remote(self._factory)


def _loss_of(ray: Any, error: Any) -> Any:
    """The loss behind an error of Ray; None if it is another error."""
    while isinstance(error, ray.exceptions.RayTaskError):  # a function did not run, since its arguments are lost
        error = error.cause
    return error if isinstance(error, tuple(getattr(ray.exceptions, name) for name in LOST)) else None


def _store_factory(ray: Any, factory: ShardFactory) -> Any:
    """Put a factory into Ray's store."""
    try:
        return ray.put(serialize(factory))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ArgumentError(
            f"what a worker needs to make its part of the rows cannot be pickled ({error}); take out of the pool what "
            "cannot travel (open files, locks), or select with engine=None"
        ) from error
