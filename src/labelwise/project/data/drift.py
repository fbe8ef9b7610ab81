"""Drift: whether the data of a project is still what it was when the project was made."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from labelwise.errors import SourceError, StoreError
from labelwise.io.checked import read_checked, write_checked
from labelwise.project.data.features import FeatureInfo
from labelwise.project.data.source import Data, Images, fingerprint
from labelwise.project.settings import Settings


def check_fingerprint(path: Path, data: Data, expected: str) -> None:
    """Raise SourceError if a file does not have the expected fingerprint."""
    if fingerprint(path, data) != expected:
        raise SourceError(
            f"{path} has changed since the project was made: its rows may not be the ones that were labelled. Put "
            f"the old file back, or start a new project (--project) and move the labels with export and import"
        )


def find_changes(folder: Path, settings: Settings, data: Data, info: FeatureInfo) -> tuple[str, ...]:
    """What has changed since the project was made. SourceError if rows cannot be matched any more."""
    path = settings.path(folder)
    if not path.is_dir():
        check_fingerprint(path, data, settings.fingerprint or info.fingerprint)
        return ()
    assert isinstance(data, Images)
    before, now = recorded_sizes(folder, data), data.checksums()
    missing = [data.refs[i] for i in np.flatnonzero(now < 0).tolist()]
    changed = [data.refs[i] for i in np.flatnonzero((now >= 0) & (now != before)).tolist()]
    if len(missing) > len(data) / 2:
        raise SourceError(
            f"{path}: {len(missing)} of the {len(data)} images of the project are missing, such as {missing[0]}. "
            "Put them back, or mount the disk they are on"
        )
    warnings = []
    if missing:
        warnings.append(f"{len(missing)} images are missing and cannot be shown, such as {missing[0]}")
    if changed:
        warnings.append(
            f"{len(changed)} images have changed, such as {changed[0]}; their features are those of the earlier images"
        )
    return tuple(warnings)


def recorded_sizes(folder: Path, data: Images) -> np.ndarray:
    """Sizes of the image files when the project was made (n,); written now if that was not done."""
    path, remedy = folder / "features" / "sizes.json", "remove it to accept the images as they are now"
    try:
        found = read_checked(path, remedy, early=None)
        sizes = found["sizes"] if isinstance(found.get("sizes"), dict) else found  # of an early version
        return np.array([sizes[ref] for ref in data.refs], np.int64)
    except FileNotFoundError:
        now = data.checksums()
        write_checked(path, {"sizes": {ref: int(size) for ref, size in zip(data.refs, now) if size >= 0}})
        return now
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise StoreError(f"{path} cannot be read ({error}); {remedy}") from error
