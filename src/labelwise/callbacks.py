"""Callbacks: what a session or a run calls while it works, for progress and for records."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from labelwise.errors import ArgumentError, warn
from labelwise.io.progress_bar import WAIT, DelayedBar
from labelwise.io.text import did_you_mean
from labelwise.selection import Selection
from labelwise.stats.record import Record
from labelwise.train import Fit

_TEXTS = {"read": "reading rows", "train": "training", "select": "choosing rows", "rounds": "rounds"}


class CallbackFailed(UserWarning):
    """A callback raised an exception; the run continues."""


class Callback:
    """Base class of callbacks: override the methods that you want. Any object with some of them is a callback.

    Callbacks are called after the answers, the picks and the fit are stored. An exception in one becomes a warning
    (`CallbackFailed`), and the run continues; Ctrl-C ends it as always.

    >>> import numpy as np, labelwise as lw
    >>> from sklearn.linear_model import LogisticRegression
    >>> class Printer(lw.Callback):
    ...     def on_round(self, record):
    ...         print(record.round, record.labels)
    >>> X = np.random.default_rng(0).normal(size=(60, 4))
    >>> runs = lw.rounds(X, X[:, 0] > 0, LogisticRegression(), "margin", k=5, n=1, callbacks=Printer())
    >>> _ = list(runs)
    0 5
    1 10
    """

    def on_progress(self, step: str, done: int, total: int) -> None:
        """Part of a step is done: "read" rows, "train" epochs, "select" picks, "rounds" of a run or a benchmark.

        Args:
            step: "read", "train", "select" or "rounds".
            done: parts of the step that are done.
            total: all parts of it; 0 if that is not known yet.
        """

    def on_epoch(self, epoch: int, metrics: Mapping[str, float]) -> None:
        """A `TorchLearner` has trained an epoch, counted from 1: "loss" and "accuracy", and "held_out_loss" if any.

        Args:
            epoch: counted from 1.
            metrics: "loss" and "accuracy" on the training rows, and "held_out_loss" if rows are held out.
        """

    def on_fit(self, fit: Fit) -> None:
        """A session has trained a model; `fit.notes` say how, `fit.ids` on which rows.

        Args:
            fit: the trained model: `fit.predict`, `fit.notes`, `fit.ids`.
        """

    def on_selection(self, picks: Selection) -> None:
        """A session has chosen a batch.

        Args:
            picks: the batch: ids, weights, scores, notes.
        """

    def on_round(self, record: Record) -> None:
        """A round of `rounds`, `bench run` or `simulate` is over.

        Args:
            record: the round as numbers.
        """


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


@dataclass(frozen=True)
class Callbacks:
    """The callbacks of a session or a run; each method calls that of all of them."""

    each: tuple[Any, ...] = ()

    @staticmethod
    def of(given: Any) -> Callbacks:
        """Callbacks of None, one, or several; ArgumentError if an object has none of the methods."""
        if isinstance(given, Callbacks):
            return given
        each = () if given is None else tuple(given) if isinstance(given, list | tuple) else (given,)
        for callback in each:
            _check(callback)
        return Callbacks(each)

    def __bool__(self) -> bool:
        return bool(self.each)

    def hears(self, event: str) -> bool:
        """Whether one of them has a method of its own for an event."""
        return any(_method(callback, event) is not None for callback in self.each)

    def call(self, event: str, *values: Any) -> None:
        """Call a method of all callbacks that have it; an exception becomes a warning."""
        for callback in self.each:
            method = _method(callback, event)
            if method is None:
                continue
            try:
                method(*values)
            except Exception as error:
                warn(
                    f"{type(callback).__name__}.{event} raised {type(error).__name__}: {error}. The run continues; "
                    "answers, picks and records are complete",
                    CallbackFailed,
                )

    def progress(self, step: str, also: Callable[[int, int], None] | None = None) -> Callable[[int, int], None] | None:
        """A function of (done, total) that calls `also` and on_progress; None if nobody hears it."""
        if not self.hears("on_progress"):
            return also

        def report(done: int, total: int) -> None:
            if also is not None:
                also(done, total)
            self.call("on_progress", step, done, total)

        return report

    def epoch(self, epoch: int, total: int, metrics: Mapping[str, float]) -> None:
        """Report an epoch of a training."""
        self.call("on_epoch", epoch, metrics)
        self.call("on_progress", "train", epoch, total)


NO_CALLBACKS = Callbacks()


class ProgressBar(Callback):
    """A progress bar for each step that takes longer than two seconds, on a terminal or in a notebook.

    >>> import torch, labelwise as lw
    >>> al = lw.Session(torch.eye(8), recipe="kcenter", callbacks=lw.ProgressBar())
    >>> len(al.ask(3))
    3
    """

    def __init__(self, wait: float = WAIT):
        """Make a bar that appears late.

        Args:
            wait: seconds before it is shown.
        """
        self.wait = wait
        self._step = ""
        self._bar: DelayedBar | None = None

    def on_progress(self, step: str, done: int, total: int) -> None:
        """Show how far the step is; its bar is removed when all is done.

        Args:
            step: what the bar is of.
            done: parts that are done.
            total: all parts.
        """
        if self._bar is None or step != self._step or done < self._bar.done:
            self.close()
            self._step, self._bar = step, DelayedBar(_TEXTS.get(step, step), total, self.wait)
            self._bar.start()
        self._bar(done, total)
        if done >= total:
            self.close()

    def on_selection(self, picks: Selection) -> None:
        """Remove the bar.

        Args:
            picks: the batch.
        """
        self.close()

    def on_fit(self, fit: Fit) -> None:
        """Remove the bar: training may end before its last epoch.

        Args:
            fit: the trained model.
        """
        self.close()

    def close(self) -> None:
        """Remove the bar."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def callbacks_named(paths: Sequence[str]) -> Callbacks:
    """The callbacks of the option --callback: each the dotted path of a callback, or of what makes one when called."""
    return Callbacks.of([_imported(path) for path in paths])


def _imported(path: str) -> Any:
    module, _, name = path.replace(":", ".").rpartition(".")
    with _folder_on_path():
        try:
            found = getattr(importlib.import_module(module), name) if module else None
        except (ImportError, AttributeError) as error:
            raise ArgumentError(f"--callback {path}: it cannot be imported ({error})") from error
    if found is None:
        raise ArgumentError(f"--callback {path}: expected MODULE:NAME, such as mylogs:Printer for a class in mylogs.py")
    return found() if isinstance(found, type) or not _events(found) else found


@contextmanager
def _folder_on_path() -> Iterator[None]:
    """Within, modules in the current folder can be imported, as by `python -m`."""
    sys.path.insert(0, os.getcwd())
    try:
        yield
    finally:
        sys.path.remove(os.getcwd())


def _events(callback: Any) -> list[str]:
    """The methods of an object that are called."""
    return [name for name in EVENTS if callable(getattr(callback, name, None))]


def _method(callback: Any, event: str) -> Any:
    """The method of a callback for an event; None if it has none of its own."""
    method = getattr(callback, event, None)
    is_base = getattr(method, "__func__", None) is vars(Callback)[event]
    return method if callable(method) and not is_base else None


def _check(callback: Any) -> None:
    if isinstance(callback, type):
        raise ArgumentError(f"callbacks: an object was expected, not the class; write {callback.__name__}().")
    known = ", ".join(EVENTS)
    for name in dir(callback):
        if name.startswith("on_") and name not in EVENTS and isinstance(callback, Callback):
            raise ArgumentError(
                f"callbacks: {type(callback).__name__} has the method {name}, which is none of {known}"
                f"{did_you_mean(name, EVENTS)}"
            )
    if not _events(callback):
        raise ArgumentError(
            f"callbacks: expected an lw.Callback, or an object with one of the methods {known}; found {callback!r:.60}"
        )
