"""Together: several sessions in one process whose networks are trained at once.

`run_together` runs functions, such as the rounds of a learning curve, in threads of which one runs at a time, in turn:
nothing runs at the same time as anything else, so nothing has to be safe for threads. A TorchLearner inside hands its
training to the group and waits. When all functions wait or have ended, trainings that fit are run as one stack, the
others one by one, and those functions continue. What a function computes does not depend on the others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

import torch

from labelwise.errors import TrainingWarning, warn
from labelwise.signals.model.forward import device_and_dtype
from labelwise.train.torch.initialise import seeded
from labelwise.train.torch.stacked_training import Request, group_of, train_stacked, why_not_stacked
from labelwise.train.torch.training_loop import TrainResult, train

MOST = 80  # networks in a stack
WIDE = 1_000_000  # parameters: a larger network keeps a GPU busy alone

_member: ContextVar[_Member | None] = ContextVar("member of a group that trains together", default=None)


@dataclass
class Outcome:
    """What became of a function: its result, or what it raised."""

    number: int
    value: Any = None
    error: BaseException | None = None


@dataclass
class _Member:
    """A function of the group, in a thread of its own."""

    number: int
    turn: threading.Event = field(default_factory=threading.Event)
    paused: threading.Event = field(default_factory=threading.Event)
    request: Request | None = None
    answer: TrainResult | BaseException | None = None
    outcome: Outcome | None = None
    is_abandoned: bool = False

    def train(self, request: Request) -> TrainResult:
        """Called in the thread: wait for the group's training."""
        self.request = request
        self._pause()
        answer, self.answer = self.answer, None
        if isinstance(answer, BaseException):
            raise answer
        assert answer is not None
        return answer

    def _pause(self) -> None:
        self.paused.set()
        self.turn.wait()
        self.turn.clear()
        if self.is_abandoned:
            raise _Abandoned

    def resume(self) -> None:
        """Called by the group: let the thread run until it waits or ends."""
        self.paused.clear()
        self.turn.set()
        self.paused.wait()


class _Abandoned(BaseException):
    """The group was closed: its threads end."""


def train_in_group(request: Request) -> TrainResult:
    """Train as `train` does; inside `run_together` with the networks of the other functions."""
    member = _member.get()
    return train_alone(request) if member is None else member.train(request)


def run_together(functions: Sequence[Callable[[], Any]], slots: int = 0, most: int = MOST) -> Iterator[Outcome | None]:
    """Run functions side by side, trainings together; yield each outcome, and None after each turn of all.

    Args:
        functions: what to run. The result of each is the same in any group with as many slots, on a CPU except for the
            last bits of products.
        slots: how many functions the whole work has, of which these are the rest; stacks are filled up to it.
        most: networks in a stack.
    """
    members = [_Member(number) for number in range(len(functions))]
    for member, function in zip(members, functions):
        context = copy_context()  # callbacks and the like are those of the caller
        threading.Thread(target=context.run, args=(_run, member, function), daemon=True).start()
    active = members
    try:
        while active:
            for member in active:
                if member.request is None:
                    member.resume()
                    if member.outcome is not None:
                        yield member.outcome
            active = [member for member in active if member.outcome is None]
            if active:
                _train_next(active, slots or len(functions), most)
            yield None
    finally:
        for member in active:
            if member.outcome is None:
                member.is_abandoned = True
                member.turn.set()


def _run(member: _Member, function: Callable[[], Any]) -> None:
    _member.set(member)
    outcome = Outcome(member.number)
    try:
        member.turn.wait()
        member.turn.clear()
        if not member.is_abandoned:
            outcome.value = function()
    except BaseException as error:
        outcome.error = error
    member.outcome = outcome
    member.paused.set()


def _train_next(members: Sequence[_Member], slots: int, most: int) -> None:
    """Train one stack, or one network, of those that members wait for: the one with the fewest labels.

    So functions that are behind, as after a stop, catch up, and all are trained together from there on.
    """
    groups: dict[Any, list[_Member]] = {}
    for member in members:
        assert member.request is not None, "a member that has not ended waits"
        alone = why_not_stacked(member.request) is not None or _size(member.request) > WIDE
        groups.setdefault(member.number if alone else group_of(member.request), []).append(member)
    _train_group(min(groups.values(), key=_labels)[:most], min(most, slots))


def _labels(group: Sequence[_Member]) -> int:
    request = group[0].request
    assert request is not None
    return len(request.data.labels)


def _size(request: Request) -> int:
    return sum(value.numel() for value in request.model.parameters())


def _train_group(members: Sequence[_Member], slots: int) -> None:
    """Train the networks of these members as one stack, or one by one where that is not possible."""
    requests = [member.request for member in members if member.request is not None]
    answers: list[Any] = []
    if why_not_stacked(requests[0]) is None and _size(requests[0]) <= WIDE:
        try:
            answers = list(train_stacked(requests, slots))
        except Exception as error:
            warn(f"networks are trained one by one: {error}", TrainingWarning)
            _forget(requests[0])
    if not answers:
        for request in requests:
            try:
                answers.append(_timed(request))
            except Exception as error:
                answers.append(error)
    for member, answer in zip(members, answers):
        member.request, member.answer = None, answer


def _forget(request: Request) -> None:
    """Give the memory of a failed training back."""
    if device_and_dtype(request.model)[0].type == "cuda":
        torch.cuda.empty_cache()


def train_alone(request: Request) -> TrainResult:
    """Train one network by itself."""
    with seeded(request.key.fold("noise"), device_and_dtype(request.model)[0]):
        return train(request.model, request.data, request.options, request.weights, request.key)


def _timed(request: Request) -> TrainResult:
    """Train one network by itself, with a note of the seconds: for the member, they are not those it waited."""
    began = time.perf_counter()
    result = train_alone(request)
    return TrainResult(result.state, {**result.notes, "seconds": time.perf_counter() - began})
