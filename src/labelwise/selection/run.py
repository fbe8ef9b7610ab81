"""Run a selection: its options, a warning if it takes hours, and `Strategy.select` with progress and a checkpoint."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from labelwise.errors import ArgumentError, StoreError, warn
from labelwise.io.sizes import parse_size
from labelwise.rng import Key
from labelwise.selection.backends import BackendGone, forced_backend, recorded_backends
from labelwise.selection.progress import ProgressCallback, progress_to
from labelwise.selection.selection import Selection
from labelwise.selection.strategy import Size, Strategy
from labelwise.shards import Shard, Shards
from labelwise.shards.checkpoint.fingerprint import object_fingerprint
from labelwise.shards.checkpoint.journal import FolderJournal
from labelwise.shards.devices import full_precision, returned_memory
from labelwise.signals.spec import Signal

RATE = 5e10  # floating-point operations of one core in a second, in matrix products
HOUR = 3600 * RATE


class LongSelection(UserWarning):
    """A selection is estimated to take hours."""


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
    _warn_if_long(strategy, pool, labelled.n, k)
    pool, labelled = pool.with_ties(key), labelled.with_ties(key)
    limited = returned_memory(options.limit is not None)
    with recorded_backends() as names, full_precision(), limited, progress_to(options.progress):
        picks = _select(strategy, pool, labelled, k, key, options)
    picks = replace(picks, reason=strategy.reason or f"Chosen by {strategy.name or type(strategy).__name__}.")
    return replace(picks, notes={**picks.notes, "backend": ", ".join(names)}) if names else picks


def _select(strategy: Strategy, pool: Shards, labelled: Shards, k: int, key: Key, options: RunOptions) -> Selection:
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
        picks: Selection | None = None
        try:
            picks = strategy.select(pool.with_journal(journal), labelled.with_journal(journal), k, key)
        except BackendGone as error:
            if not options.is_private:
                raise StoreError(
                    f"{options.folder} holds a selection that began with Triton's kernels, which cannot be used "
                    f"now: {error}. Resume it where they can be used, or remove the folder and start the "
                    "selection again; the picks are the same"
                ) from error
        journal.remove()
    return picks if picks is not None else _select(strategy, pool, labelled, k, key, options)


def _warn_if_long(strategy: Strategy, pool: Shards, labelled: int, k: int) -> None:
    """Warn where `Strategy.work` comes to more than an hour of one core; rows on accelerators do not count."""
    shapes = [one for one in pool.map(_cpu_shapes) if one is not None]
    if not shapes:
        return
    work = strategy.work(Size(pool.n, k, shapes[0], labelled=labelled))
    if work > HOUR:
        warn(
            f"{type(strategy).__name__} needs about {work:.0e} floating-point operations to choose {k:,} of "
            f"{pool.n:,} rows, some {work / HOUR:.0f} hours of a core ({strategy.cost}). To choose from a random part "
            "of the pool, draw row numbers first, part = lw.select('random', 50_000, ids=np.arange(len(P))).ids, and "
            "pass P[part], H[part] and ids=part; or use another strategy (docs/scale.md).",
            LongSelection,
        )


def _cpu_shapes(shard: Shard) -> dict[Signal, tuple[int, ...]] | None:
    """The shape of one row in each column; None where the rows are on an accelerator."""
    if shard.device.type != "cpu":
        return None
    return {signal: tuple(column.shape[1:]) or (1,) for signal, column in shard.columns.items()}
