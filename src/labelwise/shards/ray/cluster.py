"""The Ray cluster: connecting to it, how many workers fit on it, and reserving resources for them."""

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

POLL_SECONDS = 0.5  # seconds between two checks whether a worker runs
ROUNDING = 1e-9  # added before a quotient is rounded down: 0.3 / 0.1 is a little less than 3
ASK_FOR_LESS = "ask for fewer workers= or less of each"
RESUME_HINT = "the same call, where it had folder=, resumes from its journal once resources are free"


def connect(address: str | None) -> Any:
    """Connect to a cluster.

    Returns:
        The package `ray`.

    Raises:
        ArgumentError: this process is connected to another cluster than `address`.
    """
    try:
        import ray
    except ImportError as error:
        raise extra("ray", "ray") from error
    if not ray.is_initialized():
        if address is None and not os.environ.get("RAY_ADDRESS"):  # which Ray sets for what runs as its job
            address = "local"  # None would join any cluster that runs on this machine
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
    if "://" in address:  # a proxy: whether the cluster behind it is the same cannot be seen
        return bool(ray.util.client.ray.is_connected())
    return _resolved(ray, address) == _resolved(ray, ray.get_runtime_context().gcs_address)


def _resolved(ray: Any, address: str) -> tuple[str, str]:
    host, _, port = address.rpartition(":")
    with suppress(OSError):  # an unknown name stays as it is
        host = socket.gethostbyname(host)
    return (ray.util.get_node_ip_address() if host.startswith("127.") else host), port


def _is_own(ray: Any) -> bool:
    """Whether this process started the cluster for itself alone: no machine will join it."""
    node = getattr(ray._private.worker, "_global_node", None)
    return node is not None and bool(node.is_head())


def capacity(ray: Any, worker: Mapping[str, float]) -> int:
    """The number of such workers that fit on the machines of the cluster if nothing else runs there."""
    return sum(_capacity_of(node["Resources"], worker) for node in ray.nodes() if node["Alive"])


def _capacity_of(has: Mapping[str, float], worker: Mapping[str, float]) -> int:
    return min(_times(has.get(kind, 0.0), number) for kind, number in worker.items())


def _times(has: float, number: float) -> int:
    if number >= 1:
        return int(has / number + ROUNDING)
    return int(has + ROUNDING) * int(1 / number + ROUNDING)  # a share of a GPU is never on two of them


class Reservation:
    """Resources for some workers. Ray assigns them, and finds others when a machine is lost."""

    def __init__(self, ray: Any, group: Any, worker: dict[str, float], workers: int, wait: float):
        self._ray, self._group, self._worker, self._workers, self._wait = ray, group, worker, workers, wait

    def scheduling(self, number: int) -> Any:
        """The scheduling strategy of the worker of this number."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        return PlacementGroupSchedulingStrategy(self._group, number)

    def wait_for(self, ready: Any) -> None:
        """Wait until a worker is `ready` or lost.

        Raises:
            ClusterError: there were no resources for it for too long. The time its process takes to start does not
                count.
        """
        until = time.monotonic() + self._wait
        while not self._ray.wait([ready], timeout=POLL_SECONDS)[0]:
            if self._is_placed():
                until = time.monotonic() + self._wait
            elif time.monotonic() >= until:
                raise ClusterError(
                    f"a worker was lost with its machine, and {self._shortage()}; add a machine; {RESUME_HINT}"
                )

    def _is_placed(self) -> bool:
        from ray.util import placement_group_table

        return placement_group_table(self._group).get("state") == "CREATED"

    def timeout_error(self) -> ClusterError:
        """The error that says why the resources were not there in time."""
        if capacity(self._ray, self._worker) < self._workers:
            return too_few_resources(self._ray, self._worker, self._workers)
        return ClusterError(
            f"{self._shortage()}, and one worker has to fit on one machine; {ASK_FOR_LESS}, wait for what else runs "
            "there, or wait longer: Ray(wait=...)"
        )

    def _shortage(self) -> str:
        free, has = self._ray.available_resources(), self._ray.cluster_resources()
        return (
            f"{self._workers} workers of {_listed(self._worker)} found no place within {self._wait:g} seconds: "
            f"{_listed({kind: free.get(kind, 0) for kind in self._worker})} are free of "
            f"{_listed({kind: has.get(kind, 0) for kind in self._worker})}"
        )


@contextmanager
def reserve(ray: Any, worker: dict[str, float], workers: int, wait: float) -> Iterator[Reservation]:
    """Reserve resources for all workers at once, or raise a ClusterError after `wait` seconds. Ray would wait for ever.

    The request is made whatever the cluster has at this moment: an autoscaler only then hears of it, and machines may
    still be joining.
    """
    from ray.util import placement_group, remove_placement_group

    if _is_own(ray) and capacity(ray, worker) < workers:
        raise too_few_resources(ray, worker, workers)
    group = placement_group([worker] * workers, strategy="SPREAD")
    try:
        found = Reservation(ray, group, worker, workers, wait)
        if not group.wait(max(1, math.ceil(wait))):  # whole seconds; 0 is too short even where all is free
            raise found.timeout_error()
        yield found
    finally:
        remove_placement_group(group)


def too_few_resources(ray: Any, worker: dict[str, float], workers: int) -> ClusterError:
    """The error for more workers than fit on the cluster."""
    total, has = {kind: workers * number for kind, number in worker.items()}, ray.cluster_resources()
    return ClusterError(
        f"{_listed(total)} were asked for ({workers} workers of {_listed(worker)}), and the cluster has "
        f"{_listed({kind: has.get(kind, 0) for kind in total})}, room for {capacity(ray, worker)} such workers in all; "
        f"{ASK_FOR_LESS}, add machines, or wait longer for those that are still to join: Ray(wait=...)"
    )


def _listed(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{number:g} {kind}s" for kind, number in resources.items())
