"""A selection that can be stopped: with a folder, it goes on where it was when it is started again."""

from __future__ import annotations

from pathlib import Path

from labelwise.choose.selection import Selection
from labelwise.choose.strategy import Strategy
from labelwise.keys import Key
from labelwise.shards import Shards
from labelwise.shards.journal import FolderJournal


def select_kept(
    strategy: Strategy, pool: Shards, labelled: Shards, k: int, key: Key, folder: str | Path | None
) -> Selection:
    """`strategy.select`, with a journal in `folder` if one is given; the folder is gone once the picks are there."""
    if folder is None:
        return strategy.select(pool, labelled, k, key)
    about = {"strategy": repr(strategy), "k": int(k), "key": repr(key)}
    journal = FolderJournal(Path(folder), about, pool, labelled)
    picks = strategy.select(pool.kept(journal), labelled.kept(journal), k, key)
    journal.remove()
    return picks
