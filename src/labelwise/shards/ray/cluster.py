"""The Ray cluster that workers run on: which one it is, how many it has room for, and their places on it."""

from __future__ import annotations

import logging
import math
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from labelwise.errors import ArgumentError, ClusterError, extra

LOOK = 0.5  # seconds between two looks at whether a worker has found its place
LITTLE = 1e-9  # what is added before a quotient is cut off: 0.3 / 0.1 is a little less than 3
ROOM = "ask for fewer workers= or less of each"
LATER = "the same call, where it had folder=, goes on from its journal once there is room"


def started(address: str | None) -> Any:
    """Ray, connected; an `address` other than that of the cluster this process is connected to is refused."""
    try:
        import ray
    except ImportError as error:
        raise extra("ray", "ray") from error
    if not ray.is_initialized():
        if address is None and not os.environ.get("RAY_ADDRESS"):  # which Ray sets for what runs as its job
            address = "local"  # None would join whatever cluster somebody has left running on this machine
        ray.init(address=address, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
    elif not _is_connected_to(ray, address):
        raise ArgumentError(
            f"Ray(address={address!r}) was asked for, and this process is connected to another cluster already, "
            f"{ray.get_runtime_context().gcs_address}; leave address= out to use that one, or call ray.shutdown() first"
        )
    return ray


def _is_connected_to(ray: Any, address: str | None) -> bool:
    if address is None or address == "auto":
        return True
    if address == "local":
        return _is_own(ray)
    if "://" in address:  # of a server that stands before the cluster: whether it is the same one cannot be seen
        return bool(ray.util.client.ray.is_connected())
    return _resolved(ray, address) == _resolved(ray, ray.get_runtime_context().gcs_address)


def _resolved(ray: Any, address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    with suppress(OSError):  # a name that is not known is no other's either
        host = socket.gethostbyname(host)
    return (ray.util.get_node_ip_address() if host.startswith("127.") else host), port


def _is_own(ray: Any) -> bool:
    """Whether this process started the cluster, for itself: no machine will join it."""
    node = getattr(ray._private.worker, "_global_node", None)
    return node is not None and bool(node.is_head())


def places(ray: Any, worker: Mapping[str, float]) -> int:
    """How many such workers the machines of the cluster have room for if nobody else is there."""
    return sum(_places(node["Resources"], worker) for node in ray.nodes() if node["Alive"])


def _places(has: Mapping[str, float], worker: Mapping[str, float]) -> int:
    return min(_times(has.get(kind, 0.0), number) for kind, number in worker.items())


def _times(has: float, number: float) -> int:
    if number >= 1:
        return int(has / number + LITTLE)
    return int(has + LITTLE) * int(1 / number + LITTLE)  # a part of a GPU is never on two of them


class Room:
    """A place for each of some workers; Ray gives it to them, and looks for another when a machine is lost."""

    def __init__(self, ray: Any, group: Any, worker: dict[str, float], workers: int, wait: float):
        self._ray, self._group, self._worker, self._workers, self._wait = ray, group, worker, workers, wait

    def place(self, number: int) -> Any:
        """Where the worker of this number goes."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, number)

    def wait_for(self, here: Any) -> None:
        """Return when a worker says that it is `here`, or is lost; ClusterError when it finds no place in time.

        Time counts while there is no place, not while its process starts.
        """
        until = time.monotonic() + self._wait
        while not self._ray.wait([here], timeout=LOOK)[0]:
            if self._is_there():
                until = time.monotonic() + self._wait
            elif time.monotonic() >= until:
                raise ClusterError(
                    f"a worker was lost with its machine, and {self._without_place()}; add a machine; {LATER}"
                )

    def _is_there(self) -> bool:
        from ray.util import placement_group_table

        return placement_group_table(self._group).get("state") == "CREATED"

    def refusal(self) -> ClusterError:
        """Why there was no place in time."""
        if places(self._ray, self._worker) < self._workers:
            return too_few(self._ray, self._worker, self._workers)
        return ClusterError(
            f"{self._without_place()}, and one worker has to fit on one machine; {ROOM}, wait for what else runs "
            "there, or wait longer: Ray(wait=...)"
        )

    def _without_place(self) -> str:
        free, has = self._ray.available_resources(), self._ray.cluster_resources()
        return (
            f"{self._workers} workers of {_words(self._worker)} found no place within {self._wait:g} seconds: "
            f"{_words({kind: free.get(kind, 0) for kind in self._worker})} are free of "
            f"{_words({kind: has.get(kind, 0) for kind in self._worker})}"
        )


@contextmanager
def room(ray: Any, worker: dict[str, float], workers: int, wait: float) -> Iterator[Room]:
    """A place for each worker: all of them or, in time, a ClusterError. Ray itself would wait for ever.

    What is asked for is asked for at once, whatever the cluster has at this moment: a cluster that grows when it has
    to (an autoscaler) only then hears of it, and machines may still be joining.
    """
    from ray.util import placement_group, remove_placement_group

    if _is_own(ray) and places(ray, worker) < workers:
        raise too_few(ray, worker, workers)
    group = placement_group([worker] * workers, strategy="SPREAD")
    try:
        found = Room(ray, group, worker, workers, wait)
        if not group.wait(max(1, math.ceil(wait))):  # whole seconds; 0 is always too short, even where all is free
            raise found.refusal()
        yield found
    finally:
        remove_placement_group(group)


def too_few(ray: Any, worker: dict[str, float], workers: int) -> ClusterError:
    """More was asked for than there is."""
    asked, has = {kind: workers * number for kind, number in worker.items()}, ray.cluster_resources()
    return ClusterError(
        f"{_words(asked)} were asked for ({workers} workers of {_words(worker)}), and the cluster has "
        f"{_words({kind: has.get(kind, 0) for kind in asked})}, room for {places(ray, worker)} such workers in all; "
        f"{ROOM}, add machines, or wait longer for those that are still to join: Ray(wait=...)"
    )


def _words(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{number:g} {kind}s" for kind, number in resources.items())
