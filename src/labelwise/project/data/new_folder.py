"""Place: the folder of a new project, which is gone again when the project is refused before anything is in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from labelwise.errors import StoreError


@contextlib.contextmanager
def new_place(folder: Path) -> Iterator[None]:
    """Make the folder; where what follows fails, take away what is still empty of it, and nothing else."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rounds").mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder}: a project cannot be kept there ({error}); name another by --project") from error
    try:
        yield
    except BaseException:
        for empty in (folder / "features", folder / "rounds", *missing):
            with contextlib.suppress(OSError):  # not there, or not empty: features that took hours stay
                empty.rmdir()
        raise
