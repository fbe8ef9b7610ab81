"""The actor of `ray/engine.py`: it makes its part of the rows, holds it, and runs functions on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labelwise.errors import ModelError
from labelwise.shards.devices import CPU, LIMITED_THRESHOLD, copied_to, full_precision, set_mmap_threshold
from labelwise.shards.ray.serialize import RemoteError, Serialized, byte_count, deserialize, serialize
from labelwise.shards.shard import Shard


class ShardActor:
    """Holds one shard. Arguments and answers of its methods are serialized; an error is returned as a `RemoteError`."""

    shard: Shard

    def __init__(self, threads: int):
        import torch

        torch.set_num_threads(threads)
        set_mmap_threshold(LIMITED_THRESHOLD)  # the process holds nothing but rows

    def ready(self) -> Serialized | RemoteError:
        """Returns when the process of the actor runs, before any work."""
        return _reply(bool)

    def make(self, sent: Serialized) -> Serialized | RemoteError:
        """Make the shard. Not in `__init__`, whose errors are lost with the actor."""
        return _reply(self._make, sent)

    def run(self, sent: Serialized) -> Serialized | RemoteError:
        return _reply(self._run, sent)

    def rerun(self, sent: Serialized) -> Serialized | RemoteError:
        """Run a function again, without its answer."""
        return _reply(self._rerun, sent)

    def snapshot(self) -> tuple[Serialized | None, Serialized | RemoteError]:
        """The snapshot of the shard, which stays here until it is fetched, and its size in bytes."""
        snapshots: list[Serialized] = []
        size_reply = _reply(self._snapshot, snapshots)
        return (snapshots[0] if snapshots else None), size_reply

    def restore(self, sent: Serialized) -> Serialized | RemoteError:
        """Continue from a snapshot."""
        return _reply(self._restore, sent)

    def _make(self, sent: Serialized) -> None:
        try:
            maker = deserialize(sent)
        except Exception as error:  # a class of the user's may raise anything
            raise ModelError(
                f"what a worker needs to make its part of the rows arrived there and cannot be unpickled "
                f"({type(error).__name__}: {error}); see that the classes of model and pool can be imported and made "
                "again on every machine, or select with engine=None"
            ) from error
        self.shard = maker()

    def _run(self, sent: Serialized) -> Any:
        answer = self._call(sent)
        return answer if self.shard.device == CPU else copied_to(answer, CPU)  # the caller may have no accelerator

    def _rerun(self, sent: Serialized) -> None:
        self._call(sent)

    def _call(self, sent: Serialized) -> Any:
        with full_precision():  # the model may have lowered the precision of this process
            return self.shard.begin(deserialize(sent))()

    def _snapshot(self, into: list[Serialized]) -> int:
        snapshots = {
            "shard": self.shard.snapshot(),
            "block": self.shard.block_bytes,
            "ties": self.shard.ties,
        }
        into.append(serialize(snapshots if self.shard.device == CPU else copied_to(snapshots, CPU)))
        return byte_count(into[0])

    def _restore(self, sent: Serialized) -> None:
        snapshots = deserialize(sent)
        if self.shard.device != CPU:
            snapshots = copied_to(snapshots, self.shard.device)
        self.shard.restore(snapshots["shard"])
        self.shard.block_bytes = snapshots["block"]
        self.shard.break_ties(snapshots["ties"])


def _reply(work: Callable[..., Any], *arguments: Any) -> Serialized | RemoteError:
    try:
        return serialize(work(*arguments))
    except (Exception, KeyboardInterrupt) as error:  # not SystemExit, by which Ray ends a worker
        return RemoteError.of(error)
