"""What runs in a worker of `ray.py`: it makes its part of the rows, holds it, and runs functions on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labelwise.errors import ModelError
from labelwise.shards.devices import CPU, LIMITED_THRESHOLD, copied_to, full_precision, set_mmap_threshold
from labelwise.shards.ray.serialize import Packed, Raised, packed, size_of, unpacked
from labelwise.shards.shard import Shard


class Holder:
    """An actor. What its methods are sent is packed, and what they give back is, or is an error that was `Raised`."""

    shard: Shard

    def __init__(self, threads: int):
        import torch

        torch.set_num_threads(threads)
        set_mmap_threshold(LIMITED_THRESHOLD)  # the process holds rows and nothing else

    def here(self) -> Packed | Raised:
        """Answered once the actor has a place and its process runs, before any work."""
        return _told(bool)

    def make(self, sent: Packed) -> Packed | Raised:
        """Not when it is created: what is raised then is lost with the actor."""
        return _told(self._make, sent)

    def run(self, sent: Packed) -> Packed | Raised:
        return _told(self._run, sent)

    def rerun(self, sent: Packed) -> Packed | Raised:
        """Run a function whose answer is known."""
        return _told(self._rerun, sent)

    def state(self) -> tuple[Packed | None, Packed | Raised]:
        """All that a selection has changed, which stays where it is until it is asked for; and its size in bytes."""
        kept: list[Packed] = []
        told = _told(self._state, kept)
        return (kept[0] if kept else None), told

    def restore(self, sent: Packed) -> Packed | Raised:
        """Go on from such a state."""
        return _told(self._restore, sent)

    def _make(self, sent: Packed) -> None:
        try:
            maker = unpacked(sent)
        except Exception as error:  # what a class of the user's does when it is made again
            raise ModelError(
                f"what a worker needs to make its part of the rows arrived there and cannot be unpickled "
                f"({type(error).__name__}: {error}); see that the classes of model and pool can be imported and made "
                "again on every machine, or select with engine=None"
            ) from error
        self.shard = maker()

    def _run(self, sent: Packed) -> Any:
        answer = self._asked(sent)
        return answer if self.shard.device == CPU else copied_to(answer, CPU)  # who asked may have no accelerator

    def _rerun(self, sent: Packed) -> None:
        self._asked(sent)

    def _asked(self, sent: Packed) -> Any:
        with full_precision():  # the model that made the part may have lowered the precision of this process
            return self.shard.begin(unpacked(sent))()

    def _state(self, into: list[Packed]) -> int:
        kept = {"kept": self.shard.snapshot(), "block": self.shard.block_bytes}
        into.append(packed(kept if self.shard.device == CPU else copied_to(kept, CPU)))
        return size_of(into[0])

    def _restore(self, sent: Packed) -> None:
        kept = unpacked(sent)
        if self.shard.device != CPU:
            kept = copied_to(kept, self.shard.device)
        self.shard.restore(kept["kept"])
        self.shard.block_bytes = kept["block"]


def _told(work: Callable[..., Any], *arguments: Any) -> Packed | Raised:
    try:
        return packed(work(*arguments))
    except (Exception, KeyboardInterrupt) as error:  # not SystemExit, by which Ray ends a worker: that is a loss
        return Raised.of(error)
