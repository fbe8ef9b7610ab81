"""Renew: the features of a project again, where their folder is gone or half done; the answers are in the store."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from labelwise.errors import SourceError, StoreError
from labelwise.project.data.drift import check_file
from labelwise.project.data.encoders import encoder_of
from labelwise.project.data.features import About, Say, compute, read_about
from labelwise.project.data.source import Data, fingerprint, open_data
from labelwise.project.loop.rounds import read_model
from labelwise.project.project import address
from labelwise.project.settings import read_settings
from labelwise.project.store import Item, Store


def renew(folder: Path, say: Say) -> bool:
    """Compute the features of the project in `folder` unless they are there; whether that was needed.

    The rows must be the ones that the store knows, and the models of earlier rounds must fit: otherwise an error says
    what to put back, and the features stay away.
    """
    settings, place = read_settings(folder), folder / "features"
    if _whole(place):
        return False
    with closing(Store.open(address(folder, settings))) as store:
        items = store.items()
    known = np.array([item.row for item in items], np.int64), [item.ref for item in items]
    data = open_data(settings, folder, known)
    if settings.fingerprint and not settings.path(folder).is_dir():  # a folder that changed is said when it is opened
        check_file(settings.path(folder), data, settings.fingerprint)
    encoder = encoder_of(settings.encoder, settings.kind, data)
    about = compute(place, data, encoder, fingerprint(settings.path(folder), data), say)
    try:
        _check_rows(settings.path(folder), items, data, about)
        _check_models(folder, about)
    except (SourceError, StoreError):
        (place / "about.json").unlink()  # what was computed is not of this project
        raise
    return True


def _whole(place: Path) -> bool:
    if not (place / "about.json").is_file():
        return False
    about = read_about(place)
    return about.done == about.rows and (place / "scale.npy").is_file()


def _check_rows(path: Path, items: list[Item], data: Data, about: About) -> None:
    broken = dict(about.broken)
    lost = next((broken[item.row] for item in items if item.row in broken), None)
    if lost is not None:
        raise SourceError(f"{path}: a row of the project cannot be read any more ({lost}); put it back")
    there = {(row, ref) for row, ref in zip(data.ids.tolist(), data.refs) if row not in broken}
    if there != {(item.row, item.ref) for item in items}:
        raise SourceError(f"{path} has other rows than the project, which was made of {len(items)}; put it back")


def _check_models(folder: Path, about: About) -> None:
    for path in sorted((folder / "rounds").glob("*/model.npz")):
        model = read_model(path.parent)
        if model is not None and model.weight_CD.shape[-1] != about.width:
            raise StoreError(
                f"{folder}: its models were trained on {model.weight_CD.shape[-1]} columns of features, and "
                f"{about.encoder} gives {about.width}; install the encoder it was made with, or name it in project.yaml"
            )
