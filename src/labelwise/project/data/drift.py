"""Changes: whether the data of a project is still what it was when the project was made."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from labelwise.errors import SourceError, StoreError
from labelwise.io.files import write_text
from labelwise.project.data.features import About
from labelwise.project.data.source import Data, Images, fingerprint
from labelwise.project.settings import Settings


def check_file(path: Path, data: Data, before: str) -> None:
    """Raise where a file is not the one that has the fingerprint `before`."""
    if fingerprint(path, data) != before:
        raise SourceError(
            f"{path} has changed since the project was made: its rows may not be the ones that were labelled. Put "
            f"the old file back, or start a new project (--project) and bring the labels over by export and import"
        )


def changes(folder: Path, settings: Settings, data: Data, about: About) -> tuple[str, ...]:
    """What is not as it was when the project was made; SourceError where rows cannot be told apart any more."""
    path = settings.path(folder)
    if not path.is_dir():
        check_file(path, data, settings.fingerprint or about.fingerprint)
        return ()
    assert isinstance(data, Images)
    before = marks(folder, data)
    now = data.marks()
    gone = [data.refs[place] for place in np.flatnonzero(now < 0).tolist()]
    other = [data.refs[place] for place in np.flatnonzero((now >= 0) & (now != before)).tolist()]
    if len(gone) > len(data) / 2:
        raise SourceError(
            f"{path}: {len(gone)} of {len(data)} images of the project are not there any more, {gone[0]} for one; put "
            "them back, or mount the disk they are on"
        )
    said = [("are not there any more and cannot be shown", gone), ("are not what they were; their features are", other)]
    return tuple(f"{len(names)} images {what}, {names[0]} for one" for what, names in said if names)


def marks(folder: Path, data: Images) -> np.ndarray:
    """Sizes of the files when they were first seen."""
    path = folder / "features" / "sizes.json"
    try:
        sizes = json.loads(path.read_text(encoding="utf-8"))
        return np.array([sizes[ref] for ref in data.refs], np.int64)
    except FileNotFoundError:
        now = data.marks()
        write_text(path, json.dumps({ref: int(size) for ref, size in zip(data.refs, now) if size >= 0}))
        return now
    except (OSError, ValueError, KeyError) as error:
        raise StoreError(f"{path} cannot be read ({error}); remove it to take the images as they are now") from error
