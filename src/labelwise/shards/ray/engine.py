"""Shards on Ray: each actor makes its own part of the pool and holds it; functions go out, small answers come back.

An actor that is lost, with its machine or alone, is made anew: it makes its part again, is given the last state that
was kept of it, and the functions it had run since are run again. Picks are those of one process, since the functions
are the same and the answers are put together in the same order.

A state is kept every `KEEP` functions. One of at most `HELD` bytes is brought to this machine, and is lost only with
the selection itself; what came before it is forgotten. A larger one stays beside its actor: to bring all of them here
would bring here a share of every row. It outlives the actor but not the machine, so all functions since the last state
that is held here, or since the beginning, are kept too, and after the loss of a machine they are run again. They are
in Ray's store on this machine, once for all parts, and on its disk when the store is full: a function carries the rows
that were picked, or sums over rows, and never the rows. Losing a machine then costs the time since the beginning,
for the parts that it had; no second copy of the states has to be kept and moved for it while nothing is lost.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from labelwise.errors import ArgumentError, StoreError
from labelwise.shards.ray.actor import Holder
from labelwise.shards.ray.cluster import Room, places, room, started
from labelwise.shards.ray.serialize import Raised, packed, unpacked
from labelwise.shards.shard import Once, Shard, Shards

T = TypeVar("T")
Maker = Callable[[], Shard]

KEEP = 64  # functions an actor runs between two kept states
HELD = 16 << 20  # bytes of a state that is held on this machine
LOST = (  # Ray's names for a process, a machine or a value that is no longer there
    *("RayActorError", "WorkerCrashedError", "OutOfMemoryError"),
    *("NodeDiedError", "LocalRayletDiedError", "ObjectLostError"),
)


@dataclass(frozen=True)
class Ray:
    """How to use a Ray cluster.

    Attributes:
        workers: actors, each with a part of the rows; as many as the cluster has room for if None.
        cpus: CPUs of an actor, which are also its threads.
        gpus: GPUs of an actor; above 0 its rows are held on the GPU.
        address: of a running cluster, "auto" for the one that runs on this machine. None is the cluster that this
            process is connected to; where it is connected to none, that of the environment's RAY_ADDRESS, which is set
            in a Ray job; else one is started on this machine, for this process alone.
        losses: how often one part may be made anew before the selection gives up.
        wait: seconds to wait for room for all workers at once, while others use the cluster or machines still join it;
            and for another place when a machine is lost. A cluster that this process started is not waited for.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    address: str | None = None
    losses: int = 3
    wait: float = 60.0

    def __post_init__(self) -> None:
        for name, value, least in (("workers", self.workers, 1), ("cpus", self.cpus, 1), ("losses", self.losses, 0)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ArgumentError(f"Ray({name}=...) is a whole number of at least {least}, found {value!r}")

        for name, number in (("gpus", self.gpus), ("wait", self.wait)):
            fine = isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < math.inf
            if not fine:
                raise ArgumentError(f"Ray({name}=...) is a number of at least 0, found {number!r}")

    @property
    def worker(self) -> dict[str, float]:
        """What one worker takes of a cluster."""
        return {"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})}

    def parts(self, rows: int) -> int:
        """How many parts to make of so many rows."""
        workers = places(started(self.address), self.worker) if self.workers is None else self.workers
        return max(1, min(workers, rows))

    @contextmanager
    def shards(self, makers: Sequence[Maker], sizes: Sequence[int]) -> Iterator[Shards]:
        """Shards that actors make, one for each maker; `sizes` are the rows that each makes.

        The actors are gone afterwards, whoever still holds an error of theirs: others wait for their place.
        """
        ray = started(self.address)
        parts = [(maker, size) for maker, size in zip(makers, sizes) if size]
        with ExitStack() as held:
            found = held.enter_context(room(ray, self.worker, len(parts), self.wait))
            outbox, remote = Outbox(ray), []
            for number, (maker, size) in enumerate(parts):
                remote.append(RemoteShard(ray, self, maker, size, found, number, outbox))
                held.callback(remote[-1].stop)
            for one in remote:
                one.wait()
            yield Shards(remote)


def engine_of(engine: Any) -> Ray | None:
    """What `engine=` of the public functions means: None is this process."""
    if engine is None or isinstance(engine, Ray):
        return engine
    if engine == "ray":
        return Ray()
    raise ArgumentError(f'engine is None, "ray" or labelwise.shards.ray.Ray(...), found {engine!r}')


class Outbox:
    """Puts each function into Ray's store once, though it goes to all parts."""

    def __init__(self, ray: Any):
        self._ray, self._fn, self._sent = ray, None, None
        self._had: set[int] = set()  # parts that this function went to

    def put(self, fn: Any, number: int) -> Any:
        """Where the function lies, for the part of this number."""
        if fn is not self._fn or number in self._had:  # asked again, what it holds may have changed
            self._fn, self._sent, self._had = fn, self._ray.put(packed(fn)), set()
        self._had.add(number)
        return self._sent


class RemoteShard:
    """A shard held by an actor, see `shards.Part`."""

    def __init__(self, ray: Any, engine: Ray, maker: Maker, size: int, found: Room, number: int, outbox: Outbox):
        self._ray, self._engine, self._size = ray, engine, size
        self._room, self._number, self._outbox = found, number, outbox
        self._maker = _put(ray, maker)
        self._safe: Any = None  # a state that is lost only with this process; None is the part as it is made
        self._ran: list[Any] = []  # functions run since
        self._state: Any = None  # a later state, beside the actor
        self._kept = 0  # how many of the functions it has behind it
        self._losses = 0
        self._lost: Exception | None = None  # what Ray said, the last time
        self._over: BaseException | None = None  # why there is no part any more, or not the one there was
        self._actor, self._here, self._making = self._begun()

    def __len__(self) -> int:
        return self._size

    def begin(self, fn: Callable[[Shard], T]) -> Callable[[], T]:
        """See `Part`."""
        sent = self._outbox.put(fn, self._number)
        return functools.partial(self._answer, sent, isinstance(fn, Once), self._actor.run.remote(sent))

    def wait(self) -> None:
        """Return when the part is made; what its maker raises is raised here."""
        while not self._is_made():
            self._anew()

    def stop(self) -> None:
        """Let the actor go."""
        self._ray.kill(self._actor)

    def _answer(self, sent: Any, once: bool, waiting: Any) -> Any:
        if self._over is not None:  # a strategy that was stopped puts its rows in order; it might wait for ever
            raise self._over
        answer = self._got(waiting)
        while answer is None:
            answer = self._again(sent)
        if not once:
            self._ran.append(sent)
        if len(self._ran) - self._kept >= KEEP:
            self._keep()
        (value,) = answer
        return value

    def _got(self, waiting: Any) -> tuple[Any] | None:
        """The answer in a tuple, or None when the actor was lost; an error of the function is raised as it is."""
        fetched = self._fetched(waiting)
        if fetched is None:
            return None
        (value,) = fetched
        if isinstance(value, Raised):
            raise value.error()
        return (unpacked(value),)

    def _fetched(self, waiting: Any) -> tuple[Any] | None:
        try:
            return (self._ray.get(waiting),)
        except self._ray.exceptions.RayError as error:
            self._lost = _loss(self._ray, error)
            if self._lost is None:
                raise
            return None

    def _anew(self) -> None:
        """Begin to make the lost part anew."""
        self._losses += 1
        if self._losses > self._engine.losses:
            raise StoreError(
                f"a part of {self._size} rows was lost {self._losses} times (often memory: take more workers, or fewer "
                f"on one machine). Ray said, the last time: {self._lost}"
            )
        self.stop()  # one that only could not be reached would keep its place from the next
        self._actor, self._here, self._making = self._begun()

    def _again(self, sent: Any) -> tuple[Any] | None:
        """Make the lost part anew, bring it to where it was, and run the function there; None when it is lost again."""
        try:
            self._anew()
            if not (self._is_made() and self._is_where_it_was()):
                return None
        except BaseException as error:  # the part is not where it was: what it would answer now is wrong
            self._over = error
            raise
        return self._got(self._actor.run.remote(sent))

    def _is_made(self) -> bool:
        self._room.wait_for(self._here)
        return self._got(self._here) is not None and self._got(self._making) is not None

    def _is_where_it_was(self) -> bool:
        """Bring a part that was just made to where the lost one was; False when this one is lost too."""
        if self._state is not None and not self._is_at(self._state):
            if not isinstance(self._lost, self._ray.exceptions.ObjectLostError):
                return False
            self._state, self._kept = None, 0  # it went with its machine
        if self._state is None and self._safe is not None and not self._is_at(self._safe):
            return False
        again = (self._actor.rerun.remote(sent) for sent in self._ran[self._kept :])
        return all(self._got(waiting) is not None for waiting in again)

    def _is_at(self, state: Any) -> bool:
        return self._got(self._actor.restore.remote(state)) is not None

    def _keep(self) -> None:
        """Keep the state, see the top of this file. A loss is left to the next function, which will find it."""
        state, told = self._actor.state.options(num_returns=2).remote()
        size = self._got(told)
        if size is None:
            return
        if size[0] > HELD:
            self._state, self._kept = state, len(self._ran)
            return
        fetched = self._fetched(state)
        if fetched is not None:
            self._safe, self._state, self._kept = self._ray.put(fetched[0]), None, 0
            self._ran.clear()

    def _begun(self) -> tuple[Any, Any, Any]:
        """An actor, what says that it has its place, and what says that it has made its part."""
        wanted = {"num_cpus": self._engine.cpus, "num_gpus": self._engine.gpus}
        place = {"scheduling_strategy": self._room.place(self._number)}
        actor = self._ray.remote(Holder).options(**wanted, **place).remote(self._engine.cpus)
        return actor, actor.here.remote(), actor.make.remote(self._maker)


def _loss(ray: Any, error: Any) -> Any:
    """What an error of Ray says was lost; None where it says something else."""
    while isinstance(error, ray.exceptions.RayTaskError):  # a function was not run, for want of what it was sent
        error = error.cause
    return error if isinstance(error, tuple(getattr(ray.exceptions, name) for name in LOST)) else None


def _put(ray: Any, maker: Maker) -> Any:
    """The maker in Ray's store, once, whoever asks for it."""
    try:
        return ray.put(packed(maker))
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ArgumentError(
            f"what a worker needs to make its part of the rows cannot be pickled ({error}); take out of the pool what "
            "cannot travel (open files, locks), or select with engine=None"
        ) from error
