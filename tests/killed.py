"""Selections that die where their shards are asked for the n-th time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from labelwise.shards import Shards
from labelwise.shards.checkpoint.journal import FolderJournal
from tuned import AFTER_EVERY_ANSWER


class Killed(BaseException):
    """Stands for kill -9."""


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list of two numbers: how often shards were asked, and at which time to die, 0 for never. Write into it."""
    counts, run = [0, 0], Shards._run

    def counted(self: Shards, fn: Callable[..., Any]) -> Any:
        counts[0] += 1
        if counts[0] == counts[1]:
            raise Killed
        return run(self, fn)

    monkeypatch.setattr(Shards, "_run", counted)
    monkeypatch.setattr(FolderJournal, "tuning", AFTER_EVERY_ANSWER)
    return counts


def killed_at(count: int, select: Callable[[], Any]) -> None:
    """`select()`, which dies where the shards are asked for the time `count`, with every answer stored."""
    with pytest.MonkeyPatch.context() as patched:
        count_runs(patched)[1] = count
        with pytest.raises(Killed):
            select()
