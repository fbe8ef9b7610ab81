"""Shards on Ray: each actor makes its own part of the pool and holds it; functions go out, small answers come back.

An actor that is lost, with its machine or alone, is made anew: it reads its part again, is given the last state that
was kept of it, and the functions it had run since are run again. Picks are those of one process, since the functions
are the same and the answers are put together in the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from labelwise.errors import ArgumentError, StoreError, extra
from labelwise.shards.devices import CPU, carried
from labelwise.shards.heap import TIGHT, keep_pieces_up_to
from labelwise.shards.shards import Shard, Shards

T = TypeVar("T")
Maker = Callable[[], Shard]

KEEP = 64  # functions an actor runs between two kept states


@dataclass(frozen=True)
class Ray:
    """How to use a Ray cluster.

    Attributes:
        workers: actors, each with a part of the rows; as many as the cluster has CPUs if None.
        cpus: CPUs of an actor, which are also its threads.
        gpus: GPUs of an actor; above 0 its rows are held on the GPU.
        address: of a running cluster; None starts one on this machine, or uses the one the process is connected to.
        losses: how often one part may be made anew before the selection gives up.
    """

    workers: int | None = None
    cpus: int = 1
    gpus: float = 0.0
    address: str | None = None
    losses: int = 3

    def __post_init__(self) -> None:
        for name, value, least in (("workers", self.workers, 1), ("cpus", self.cpus, 1), ("losses", self.losses, 0)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
                raise ArgumentError(f"Ray({name}=...) is a whole number of at least {least}, found {value!r}")

    def parts(self, rows: int) -> int:
        """How many parts to make of so many rows."""
        ray = started(self.address)
        workers = self.workers if self.workers is not None else max(1, int(ray.cluster_resources().get("CPU", 1)))
        return max(1, min(workers, rows))

    def shards(self, makers: Sequence[Maker], sizes: Sequence[int]) -> Shards:
        """Shards that actors make, one for each maker; `sizes` are the rows that each makes."""
        ray = started(self.address)
        remote = [RemoteShard(ray, self, maker, size) for maker, size in zip(makers, sizes) if size]
        return Shards(remote)


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

    def __init__(self, ray: Any, engine: Ray, maker: Maker, size: int):
        self._ray, self._engine, self._maker, self._size = ray, engine, maker, size
        self._since: list[Any] = []  # functions run since the state was kept
        self._state: Any = None  # where it is kept
        self._losses = 0
        self._actor = self._made()

    def __len__(self) -> int:
        return self._size

    def begin(self, fn: Callable[[Shard], T]) -> Callable[[], T]:
        """See `Part`."""
        sent = self._ray.put(fn)
        answer = self._actor.run.remote(sent)
        return lambda: self._answer(sent, answer)

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
            raise error.as_instanceof_cause() from None
        except (self._ray.exceptions.RayActorError, self._ray.exceptions.ObjectLostError):
            return None

    def _again(self, sent: Any) -> tuple[Any] | None:
        """Make the lost part anew, bring it to where it was, and run the function there."""
        self._losses += 1
        if self._losses > self._engine.losses:
            raise StoreError(
                f"a part of {self._size} rows was lost {self._losses} times; look at Ray's log for the reason (often "
                "memory: take more workers, or fewer on one machine)"
            )
        self._actor = self._made()
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

    def _made(self) -> Any:
        holder = self._ray.remote(_Holder).options(num_cpus=self._engine.cpus, num_gpus=self._engine.gpus)
        return holder.remote(self._maker, self._engine.cpus)


class _Holder:
    """What runs in an actor."""

    def __init__(self, maker: Maker, threads: int):
        import torch

        torch.set_num_threads(threads)
        keep_pieces_up_to(TIGHT)  # the process holds rows and nothing else
        self.shard = maker()

    def run(self, fn: Callable[[Shard], Any]) -> Any:
        answer = fn(self.shard)
        return answer if self.shard.device == CPU else carried(answer, CPU)  # who asked may have no accelerator

    def rerun(self, fn: Callable[[Shard], Any]) -> None:
        """Run a function whose answer is known."""
        fn(self.shard)

    def state(self) -> tuple[dict[str, Any], bool]:
        kept = {"state": dict(self.shard.state), "shift": dict(self.shard.shift), "block": self.shard.block_bytes}
        return (kept if self.shard.device == CPU else carried(kept, CPU)), True

    def restore(self, kept: dict[str, Any]) -> None:
        if self.shard.device != CPU:
            kept = carried(kept, self.shard.device)
        self.shard.state.update(kept["state"])
        self.shard.shift.update(kept["shift"])
        self.shard.block_bytes = kept["block"]
