"""Restore features: compute the features of a project again if their folder is missing or incomplete."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np

from labelwise.errors import SourceError, StoreError
from labelwise.project.data.drift import check_fingerprint
from labelwise.project.data.encoders import encoder_of
from labelwise.project.data.features import FeatureInfo, OnProgress, compute, read_feature_info
from labelwise.project.data.source import Data, fingerprint, open_data
from labelwise.project.loop.rounds import read_model
from labelwise.project.project import store_address
from labelwise.project.settings import read_settings
from labelwise.project.store import Item, Store


def restore_features(folder: Path, on_progress: OnProgress) -> bool:
    """Compute the features of a project if they are not complete.

    Returns:
        Whether features were computed.

    Raises:
        SourceError: the data does not have the rows that are in the store.
        StoreError: the models of earlier rounds have another number of features.
    """
    settings, target = read_settings(folder), folder / "features"
    if _is_complete(target):
        return False
    with closing(Store.open(store_address(folder, settings))) as store:
        items = store.items()
    known = np.array([item.row for item in items], np.int64), [item.ref for item in items]
    data = open_data(settings, folder, known)
    if settings.fingerprint and not settings.path(folder).is_dir():  # changes in a folder are found when it is opened
        check_fingerprint(settings.path(folder), data, settings.fingerprint)
    encoder = encoder_of(settings.encoder, settings.kind, data)
    info = compute(target, data, encoder, fingerprint(settings.path(folder), data), on_progress)
    try:
        _check_rows(settings.path(folder), items, data, info)
        _check_models(folder, info)
    except (SourceError, StoreError):
        (target / "about.json").unlink()  # these features do not belong to the project
        raise
    return True


def _is_complete(features: Path) -> bool:
    if not (features / "about.json").is_file():
        return False
    info = read_feature_info(features)
    return info.done == info.rows and (features / "scale.npy").is_file()


def _check_rows(path: Path, items: list[Item], data: Data, info: FeatureInfo) -> None:
    broken = dict(info.broken)
    lost = next((broken[item.row] for item in items if item.row in broken), None)
    if lost is not None:
        raise SourceError(f"{path}: a row of the project can no longer be read ({lost}). Put it back")
    found = {(row, ref) for row, ref in zip(data.ids.tolist(), data.refs) if row not in broken}
    if found != {(item.row, item.ref) for item in items}:
        raise SourceError(f"{path} does not have the {len(items)} rows of the project. Put the original back")


def _check_models(folder: Path, info: FeatureInfo) -> None:
    for path in sorted((folder / "rounds").glob("*/model.npz")):
        model = read_model(path.parent)
        if model is not None and model.weight_CD.shape[-1] != info.width:
            raise StoreError(
                f"{folder}: its models were trained on {model.weight_CD.shape[-1]} features, but {info.encoder} gives "
                f"{info.width}. Install the encoder the project was made with, or name it in project.yaml"
            )
