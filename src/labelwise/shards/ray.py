"""Shards on Ray: each actor makes its own part of the pool and holds it; functions go out, small answers come back.

An actor that is lost, with its machine or alone, is made anew: it makes its part again, is given the last state that
was kept of it, and the functions it had run since are run again. Picks are those of one process, since the functions
are the same and the answers are put together in the same order.
"""

from __future__ import annotations

import logging
import math
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from labelwise.errors import ArgumentError, ClusterError, StoreError, extra
from labelwise.shards.devices import CPU, carried, in_full
from labelwise.shards.heap import TIGHT, keep_pieces_up_to
from labelwise.shards.shards import Shard, Shards

T = TypeVar("T")
Maker = Callable[[], Shard]

KEEP = 64  # functions an actor runs between two kept states


@dataclass(frozen=True)
class Ray:
    """How to use a Ray cluster.

    Attributes:
        workers: actors, each with a part of the rows; as many as the cluster has room for if None.
        cpus: CPUs of an actor, which are also its threads.
        gpus: GPUs of an actor; above 0 its rows are held on the GPU.
        address: of a running cluster; None starts one on this machine, or uses the one the process is connected to.
        losses: how often one part may be made anew before the selection gives up.
        wait: seconds to wait for others to make room, for all workers at once.
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
        workers = self.workers
        if workers is None:
            has = started(self.address).cluster_resources()
            workers = int(min(has.get(kind, 0) / number for kind, number in self.worker.items()))
        return max(1, min(workers, rows))

    @contextmanager
    def shards(self, makers: Sequence[Maker], sizes: Sequence[int]) -> Iterator[Shards]:
        """Shards that actors make, one for each maker; `sizes` are the rows that each makes.

        The actors are gone afterwards, whoever still holds an error of theirs: others wait for their place.
        """
        ray = started(self.address)
        parts = [(maker, size) for maker, size in zip(makers, sizes) if size]
        with ExitStack() as held:
            places = held.enter_context(_room(ray, self, len(parts)))
            remote = []
            for place, (maker, size) in zip(places, parts):
                remote.append(RemoteShard(ray, self, maker, size, place))
                held.callback(remote[-1].stop)
            for one in remote:
                one.wait()
            yield Shards(remote)


@contextmanager
def _room(ray: Any, engine: Ray, workers: int) -> Iterator[list[Any]]:
    """A place for each worker: all of them or, in time, a ClusterError. Ray itself would wait for ever."""
    from ray.util import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    asked = {kind: workers * number for kind, number in engine.worker.items()}
    has = ray.cluster_resources()
    if any(number > has.get(kind, 0) + 1e-9 for kind, number in asked.items()):
        raise ClusterError(
            f"{_words(asked)} were asked for ({workers} workers of {_words(engine.worker)}), and the cluster has "
            f"{_words({kind: has.get(kind, 0) for kind in asked})} in all; ask for fewer workers= or less of each, or "
            "add machines"
        )
    group = placement_group([engine.worker] * workers, strategy="SPREAD")
    try:
        if not group.wait(engine.wait):
            free = ray.available_resources()
            raise ClusterError(
                f"{workers} workers of {_words(engine.worker)} found no place within {engine.wait:g} seconds: "
                f"{_words({kind: free.get(kind, 0) for kind in asked})} are free of "
                f"{_words({kind: has.get(kind, 0) for kind in asked})}, and one worker has to fit on one machine; ask "
                "for fewer workers= or less of each, wait for what else runs there, or wait longer: Ray(wait=...)"
            )
        yield [PlacementGroupSchedulingStrategy(group, number) for number in range(workers)]
    finally:
        remove_placement_group(group)


def _words(resources: dict[str, float]) -> str:
    return " and ".join(f"{number:g} {kind}s" for kind, number in resources.items())


def engine_of(engine: Any) -> Ray | None:
    """What `engine=` of the public functions means: None is this process."""
    if engine is None or isinstance(engine, Ray):
        return engine
    if engine == "ray":
        return Ray()
    raise ArgumentError(f'engine is None, "ray" or labelwise.shards.ray.Ray(...), found {engine!r}')


def started(address: str | None) -> Any:
    """Ray, connected."""
    try:
        import ray
    except ImportError as error:
        raise extra("ray", "ray") from error
    if not ray.is_initialized():
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    return ray


class RemoteShard:
    """A shard held by an actor, see `shards.Part`."""

    def __init__(self, ray: Any, engine: Ray, maker: Maker, size: int, place: Any):
        self._ray, self._engine, self._size, self._place = ray, engine, size, place
        self._maker = _put(ray, maker)
        self._since: list[Any] = []  # functions run since the state was kept
        self._state: Any = None  # where it is kept
        self._losses, self._lost = 0, ""
        self._actor, self._made = self._begun()

    def __len__(self) -> int:
        return self._size

    def begin(self, fn: Callable[[Shard], T]) -> Callable[[], T]:
        """See `Part`."""
        sent = self._ray.put(fn)
        answer = self._actor.run.remote(sent)
        return lambda: self._answer(sent, answer)

    def wait(self) -> None:
        """Return when the part is made; what its maker raises is raised here."""
        while self._got(self._made) is None:
            self._anew()

    def stop(self) -> None:
        """Let the actor go."""
        self._ray.kill(self._actor)

    def _answer(self, sent: Any, waiting: Any) -> Any:
        answer = self._got(waiting)
        while answer is None:
            answer = self._again(sent)
        self._since.append(sent)
        if len(self._since) >= KEEP:
            self._keep()
        (value,) = answer
        return value

    def _got(self, waiting: Any) -> tuple[Any] | None:
        """The answer in a tuple, or None when the actor was lost; an error of the function is raised as it is."""
        try:
            return (self._ray.get(waiting),)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from error
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError) as error:
            self._lost = str(error)
            return None

    def _anew(self) -> None:
        """Begin to make the lost part anew."""
        self._losses += 1
        if self._losses > self._engine.losses:
            raise StoreError(
                f"a part of {self._size} rows was lost {self._losses} times (often memory: take more workers, or fewer "
                f"on one machine). Ray said, the last time: {self._lost}"
            )
        self._actor, self._made = self._begun()

    def _again(self, sent: Any) -> tuple[Any] | None:
        """Make the lost part anew, bring it to where it was, and run the function there."""
        self._anew()
        self.wait()
        if self._state is not None and self._got(self._actor.restore.remote(self._state)) is None:
            raise StoreError(
                "the kept state of a lost part is lost too (its machine went); start the selection again, with "
                "folder= so that it goes on from its journal"
            )
        for earlier in self._since:
            self._actor.rerun.remote(earlier)
        return self._got(self._actor.run.remote(sent))

    def _keep(self) -> None:
        """Keep the state in Ray's store, beside the actor; it does not come here."""
        state, done = self._actor.state.options(num_returns=2).remote()
        if self._got(done) is not None:  # else the actor is lost, which the next function will find
            self._state = state
            self._since.clear()

    def _begun(self) -> tuple[Any, Any]:
        """An actor, and what says that it has made its part."""
        wanted = {"num_cpus": self._engine.cpus, "num_gpus": self._engine.gpus, "scheduling_strategy": self._place}
        actor = self._ray.remote(_Holder).options(**wanted).remote(self._engine.cpus)
        return actor, actor.make.remote(self._maker)


def _put(ray: Any, maker: Maker) -> Any:
    """The maker in Ray's store, once, whoever asks for it."""
    try:
        return ray.put(maker)
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ArgumentError(
            f"what a worker needs to make its part of the rows cannot be pickled ({error}); take out of the pool what "
            "cannot travel (open files, locks), or select with engine=None"
        ) from error


class _Holder:
    """What runs in an actor."""

    shard: Shard

    def __init__(self, threads: int):
        import torch

        torch.set_num_threads(threads)
        keep_pieces_up_to(TIGHT)  # the process holds rows and nothing else

    def make(self, maker: Maker) -> None:
        """Not when it is created: what is raised then is lost with the actor."""
        self.shard = maker()

    def run(self, fn: Callable[[Shard], Any]) -> Any:
        answer = self._asked(fn)
        return answer if self.shard.device == CPU else carried(answer, CPU)  # who asked may have no accelerator

    def rerun(self, fn: Callable[[Shard], Any]) -> None:
        """Run a function whose answer is known."""
        self._asked(fn)

    def _asked(self, fn: Callable[[Shard], Any]) -> Any:
        with in_full():  # the model that made the part may have lowered the precision of this process
            return self.shard.begin(fn)()

    def state(self) -> tuple[dict[str, Any], bool]:
        kept = {"kept": self.shard.kept(), "block": self.shard.block_bytes}
        return (kept if self.shard.device == CPU else carried(kept, CPU)), True

    def restore(self, kept: dict[str, Any]) -> None:
        if self.shard.device != CPU:
            kept = carried(kept, self.shard.device)
        self.shard.put_back(kept["kept"])
        self.shard.block_bytes = kept["block"]
