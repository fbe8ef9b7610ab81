"""Backends: which implementation of its inner kernels a selection uses, and why it cannot use a faster one.

A method with several implementations describes each by a small class, lists them with the fastest first, and asks
`choose`, which takes the first that supports the problem. The last one supports every problem:

    class Triton:
        name = "triton"

        def supports(self, problem: Problem) -> str | None:
            return accelerator_refusal(problem.pool, triton=True)

        def solve(self, problem: Problem) -> Picked: ...

    class Torch:
        name = "torch"

        def supports(self, problem: Problem) -> str | None:
            return None

        def solve(self, problem: Problem) -> Picked: ...

    BACKENDS = (Triton(), Torch())
    picked = choose(BACKENDS, problem).solve(problem)

A problem is whatever the backends of a method need to know; for some that is the pool. `notes["backend"]` of a
selection names the backends that were chosen for it; it is absent where a strategy has one implementation only. The
logger `labelwise.selection.backends` says at level DEBUG why others were refused. The environment variable
LABELWISE_BACKEND forces the backend of that name: where it does not exist, or does not support the problem, the
selection fails. Nothing else in `selection` and `strategies` chooses by device, or asks for Triton.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import torch

from labelwise.errors import ArgumentError, StoreError, warn
from labelwise.shards import Shard, Shards

VARIABLE = "LABELWISE_BACKEND"
_log = logging.getLogger(__name__)
_chosen: ContextVar[list[str] | None] = ContextVar("chosen", default=None)


class Backend(Protocol):
    """One implementation of the inner kernels of a method."""

    @property
    def name(self) -> str:
        """What notes and LABELWISE_BACKEND call it: "torch", "triton", ..."""

    def supports(self, problem: Any, /) -> str | None:
        """None, or the reason why this backend cannot run the problem, such as "rows are on cpu"."""


B = TypeVar("B", bound=Backend)


class BackendGone(StoreError):
    """A stored selection began with a backend that cannot be used any more."""


def choose(backends: Sequence[B], problem: Any) -> B:
    """The first backend that supports the problem, or the one that LABELWISE_BACKEND names.

    Raises:
        ArgumentError: LABELWISE_BACKEND names a backend that does not exist or does not support the problem, or
            none supports it.
    """
    forced = forced_backend()
    known = ", ".join(dict.fromkeys(one.name for one in backends))
    considered = [one for one in backends if forced in (None, one.name)]
    if not considered:
        raise ArgumentError(
            f"{VARIABLE} is {forced!r}, but this selection has the backends {known}; set one, or unset it"
        )
    refused: list[str] = []
    for backend in considered:
        reason = backend.supports(problem)
        if reason is None:
            _log.debug("backend %s", "; ".join([f"{backend.name} chosen", *refused]))
            chosen = _chosen.get()
            if chosen is not None and backend.name not in chosen:
                chosen.append(backend.name)
            return backend
        refused.append(f"{backend.name} refused: {reason}")
    if forced:
        raise ArgumentError(
            f"{VARIABLE} is {forced!r}, which does not support this selection ({refused[0]}); "
            f"set one of {known} that does, or unset it"
        )
    raise ArgumentError(f"no backend supports this selection: {'; '.join(refused)}")


def forced_backend() -> str | None:
    """The name in LABELWISE_BACKEND, or None."""
    return os.environ.get(VARIABLE) or None


@contextmanager
def recorded_backends() -> Iterator[list[str]]:
    """Within, `choose` adds the names of the backends it returns to the list."""
    names: list[str] = []
    before = _chosen.set(names)
    try:
        yield names
    finally:
        _chosen.reset(before)


def accelerator_refusal(pool: Shards, *, triton: bool = False) -> str | None:
    """None if all rows are in one shard on an accelerator, or why not. The process that has the rows checks it.

    Args:
        pool: the rows.
        triton: whether Triton must compile kernels for that accelerator too.

    Raises:
        BackendGone: the selection is resumed; it began with Triton, which cannot be used now.
    """
    ask = functools.partial(_shard_refusal, triton)
    reasons = pool.map(ask)
    if triton and reasons == [None] and pool.has_journal:
        # The answer may be that of an earlier process, in another environment.
        (now,) = pool.with_journal(None).map(ask)
        if now is not None:
            raise BackendGone(now)
    return f"rows are in {len(reasons)} shards, expected 1" if len(reasons) > 1 else reasons[0]


def is_accelerator(device: torch.device) -> bool:
    """Whether the device is not the CPU: then waiting for it costs more than arithmetic on it."""
    return device.type != "cpu"


def _shard_refusal(triton: bool, shard: Shard) -> str | None:
    if not is_accelerator(shard.device):
        return f"rows are on {shard.device}"
    if triton and shard.device.type != "cuda":
        return f"rows are on {shard.device}, and Triton kernels are for CUDA"
    return triton_refusal() if triton else None


@functools.cache
def triton_refusal() -> str | None:
    """None if Triton is installed and, where there is a GPU, compiles for it; or why not."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if not torch.cuda.is_available():
        return None  # nothing to compile for; its interpreter runs on the CPU
    try:
        from labelwise.selection.probe_kernels import one

        out = torch.zeros(1, device="cuda")
        one[(1,)](out)
        return None if float(out) == 1 else "Triton compiled a kernel that gave a wrong answer"
    except Exception as error:  # of many kinds: no compiler, a driver that does not fit, a folder that is not writable
        what = str(error).strip().splitlines() or [type(error).__name__]
        warn(
            f"Triton is installed but cannot compile a kernel here ({what[0]}): selections on the GPU use PyTorch's "
            "own operations. The picks are the same, but take longer. Most often a C compiler such as gcc is missing."
        )
        return f"Triton cannot compile a kernel ({what[0]})"
