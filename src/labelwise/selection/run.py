"""Run a selection: its options, and `Strategy.select` with a memory limit, progress and a checkpoint."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelwise.errors import ArgumentError
from labelwise.io.sizes import parse_size
from labelwise.rng import Key
from labelwise.selection.backends import forced_backend, recorded_backends
from labelwise.selection.cost_warning import warn_if_long
from labelwise.selection.progress import ProgressCallback, progress_to
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Strategy
from labelwise.shards import Shards
from labelwise.shards.checkpoint.fingerprint import object_fingerprint
from labelwise.shards.checkpoint.journal import FolderJournal
from labelwise.shards.devices import full_precision, returned_memory


@dataclass(frozen=True)
class RunOptions:
    """Run options: memory limit, progress callback, checkpoint folder.

    Attributes:
        limit: bytes, or None for no limit.
        folder: where the selection keeps its checkpoint, or None.
        progress: called with (done, total).
        is_private: whether the folder is used for checkpoints alone; then that of another selection is removed, and a
            strategy that cannot be checkpointed runs without.
    """

    limit: int | None = None
    folder: Path | None = None
    progress: ProgressCallback | None = None
    is_private: bool = False

    @staticmethod
    def of(max_memory: Any = None, folder: str | Path | None = None, progress: Any = None) -> RunOptions:
        """Check and convert the arguments of the public functions."""
        path = None if folder is None else Path(folder).absolute()
        return RunOptions(parse_size(max_memory), path).with_progress(progress)

    def with_progress(self, progress: Any) -> RunOptions:
        """The same options with this progress callback, or None for none."""
        if progress is not None and not callable(progress):
            raise ArgumentError(f"progress is a function of (done, total), found {progress!r}")
        return replace(self, progress=progress)

    def with_checkpoint_in(self, session: Path | None) -> RunOptions:
        """The same options with a checkpoint in the folder of a session, if it has a folder."""
        return self if session is None else replace(self, folder=session / "selection", is_private=True)


DEFAULT_OPTIONS = RunOptions()


def run_selection(
    strategy: Strategy, pool: Shards, labelled: Shards, k: int, key: Key, options: RunOptions = DEFAULT_OPTIONS
) -> Selection:
    """`strategy.select`, with a checkpoint if `options` name a folder; it is removed when the selection is done.

    The limit is enforced by the size of the shards' blocks, which whoever placed the rows has set.
    `notes["backend"]` names the backends that were chosen.
    """
    warn_if_long(strategy, pool, labelled.n, k)
    with recorded_backends() as names:
        picks = _run(strategy, pool, labelled, k, key, options)
    return replace(picks, notes={**picks.notes, "backend": ", ".join(names)}) if names else picks


def _run(strategy: Strategy, pool: Shards, labelled: Shards, k: int, key: Key, options: RunOptions) -> Selection:
    with full_precision(), returned_memory(options.limit is not None), progress_to(options.progress):
        if options.folder is None:
            return strategy.select(pool, labelled, k, key)
        try:
            parameters = object_fingerprint(strategy)
        except ArgumentError:
            if not options.is_private:
                raise
            return strategy.select(pool, labelled, k, key)
        about = {"strategy": repr(strategy), "parameters": parameters, "k": k, "key": repr(key)}
        about["backend"] = forced_backend()  # other backends ask the shards other questions
        with closing(FolderJournal(options.folder, about, pool, labelled, is_private=options.is_private)) as journal:
            picks = strategy.select(pool.with_journal(journal), labelled.with_journal(journal), k, key)
            journal.remove()
        return picks
