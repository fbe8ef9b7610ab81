"""Features of an existing project: compute them again if they are missing, or with another encoder."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np

from labelwise.errors import SourceError, StoreError
from labelwise.project.create import complete
from labelwise.project.data.drift import check_fingerprint
from labelwise.project.data.embeddings import encoder_for
from labelwise.project.data.encoders import check_code
from labelwise.project.data.features import FeatureInfo, OnProgress, compute, read_feature_info
from labelwise.project.data.source import Data, fingerprint, open_data
from labelwise.project.loop.rounds import retrain_rounds
from labelwise.project.loop.stored_model import read_model
from labelwise.project.project import Project, store_address
from labelwise.project.settings import Settings, read_settings
from labelwise.project.store import Item, Store


def restore_features(folder: Path, on_progress: OnProgress, named: str | None = None) -> bool:
    """Compute the features of a project if they are not complete.

    Args:
        folder: the project folder.
        on_progress: called with a text, the rows done and the rows in total.
        named: the encoder, if the user has named it. Another one than that of the project has no effect here.

    Returns:
        Whether features were computed.

    Raises:
        ArgumentError: the encoder of the project is code, and the caller has not named it.
        SourceError: the data does not have the rows that are in the store.
        StoreError: the models of earlier rounds have another number of features.
    """
    settings, target = read_settings(folder), folder / "features"
    if settings.pending or _is_complete(target):  # the worker of the page computes pending ones
        return False
    check_code(settings.encoder, named == settings.encoder)
    items, data = _data(folder, settings)
    encoder, rows = encoder_for(settings.encoder, settings.kind, folder, data)
    info = compute(target, rows, encoder, fingerprint(settings.path(folder), data), on_progress)
    try:
        _check_rows(settings.path(folder), items, data, info)
        _check_models(folder, info)
    except (SourceError, StoreError):
        (target / "about.json").unlink()  # these features do not belong to the project
        raise
    return True


def change_encoder(folder: Path, name: str, on_progress: OnProgress) -> bool:
    """Compute the features of a project with another encoder. Every answer and every round stays.

    The models of earlier rounds are trained again, each on the answers it had, so that the learning curve is that of
    the new features. If this is interrupted, the same call continues.

    Args:
        folder: the project folder, which no page and no worker uses.
        name: the encoder.
        on_progress: called with a text, the rows done and the rows in total.

    Returns:
        False if the project has this encoder already.
    """
    settings, target, new = read_settings(folder), folder / "features", folder / "features-new"
    if settings.pending:
        replace(settings, encoder=name).write(folder)
        with closing(Project.open(folder)) as project:
            complete(project, on_progress, trusted=True)
        return True
    if _is_complete(target) and settings.encoder == name and name != "auto":
        return False
    items, data = _data(folder, settings)
    encoder, rows = encoder_for(name, settings.kind, folder, data)
    if _is_complete(target) and read_feature_info(target).encoder == encoder.name:
        return False
    info = compute(new, rows, encoder, fingerprint(settings.path(folder), data), on_progress)
    _check_rows(settings.path(folder), items, data, info)
    if (target / "sizes.json").is_file():
        shutil.copy2(target / "sizes.json", new)
    old = folder / "features-old"
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    replace(settings, encoder=name).write(folder)
    new.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    on_progress("training the models of earlier rounds again", 0, 0)
    with closing(Project.open(folder)) as project:
        retrain_rounds(project)
    return True


def _data(folder: Path, settings: Settings) -> tuple[list[Item], Data]:
    """The rows in the store and the data they belong to. SourceError if the data has changed."""
    with closing(Store.open(store_address(folder, settings))) as store:
        items = store.items()
    known = np.array([item.row for item in items], np.int64), [item.ref for item in items]
    data = open_data(settings, folder, known)
    if settings.fingerprint and not settings.path(folder).is_dir():  # changes in a folder are found when it is opened
        check_fingerprint(settings.path(folder), data, settings.fingerprint)
    return items, data


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
