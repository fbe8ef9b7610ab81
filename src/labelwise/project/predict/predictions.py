"""Predictions: the class and its calibrated probability for every row of a project, or for other rows."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from labelwise.errors import ArgumentError, SourceError
from labelwise.project.data.source import Data, open_data, recognise
from labelwise.project.exchange.columns import csv_of
from labelwise.project.predict.accept import Accepted, accept
from labelwise.project.predict.trained import BLOCK, HeldOutRows, Trained, train
from labelwise.project.project import Project
from labelwise.project.settings import Settings

MAX_ERROR = 0.02  # by default
ROWS = {
    "image": "a folder of images, or a Parquet file with a column of images",
    "text": "a table with the column of texts",
    "table": "a table with the same columns",
}


@dataclass(frozen=True)
class Predictions:
    """A prediction for each row.

    Attributes:
        ids, refs: the rows: their numbers, and their paths or places in the file.
        labels: the agreed label of people; None for a row without one.
        predicted: the predicted class, or the predicted number as text; None for a row that cannot be read.
        probability: of the predicted class; None for numbers.
        take: whether the label can be taken from the model; None for a row that people have labelled.
        margin: numbers lie within this distance of their prediction, nine of ten; None if unknown, or for classes.
        accepted: what is known of the rows to take; None for numbers.
        faults: rows that could not be read.
    """

    ids: list[int]
    refs: list[str]
    labels: list[str | None]
    predicted: list[str | None]
    probability: list[float | None]
    take: list[bool | None]
    margin: float | None
    accepted: Accepted | None
    faults: tuple[str, ...] = ()

    def columns(self) -> dict[str, list[Any]]:
        """The predictions as columns of a table."""
        made: dict[str, list[Any]] = {"id": self.ids, "path": self.refs, "label": self.labels}
        if self.accepted is None:
            numbers = [None if one is None else float(one) for one in self.predicted]
            low, high = (
                [None if one is None or self.margin is None else one + sign * self.margin for one in numbers]
                for sign in (-1, 1)
            )
            return {**made, "prediction": numbers, "low": low, "high": high}
        words = {True: "yes", False: "no", None: ""}
        shares = [None if one is None else round(one, 6) for one in self.probability]
        take = [words[one] for one in self.take]
        return {**made, "prediction": self.predicted, "probability": shares, "accept": take}

    def csv(self) -> str:
        """The predictions as CSV."""
        return csv_of(self.columns())


def predict(
    project: Project, on: str | Path | None = None, max_error: float = MAX_ERROR, encoder: str | None = None
) -> Predictions:
    """Predict every row of the project, or the rows of another file or folder.

    Args:
        project: the project.
        on: a table with the same columns, or a folder of images.
        max_error: the share of accepted labels that may be wrong.
        encoder: the name of the encoder, where it is your own code and `on` needs it.

    Raises:
        LabelError: there are too few labels to train a model.
        SourceError: `on` cannot be read.
    """
    trained, held_out = train(project, encoder)
    if on is not None:
        return predict_other(trained, Path(on), max_error, held_out)
    ids = project.pool.ids.numpy()
    out_NC = np.concatenate(
        [trained.outputs(project.pool.inputs(some).numpy()) for some in np.array_split(ids, -(-len(ids) // BLOCK))]
    )
    labels = {row: one.value for row, one in project.store.answers().items() if one.value is not None}
    refs = {item.row: item.ref for item in project.store.items()}
    rows = ids.tolist()
    return _made(
        trained, held_out, rows, [refs[r] for r in rows], [labels.get(r) for r in rows], list(out_NC), max_error
    )


def predict_other(trained: Trained, path: Path, max_error: float, held_out: HeldOutRows) -> Predictions:
    """Predict the rows of a file or folder that is not the project's."""
    data = open_other(trained, path)
    out: list[Any] = [one for _, one in trained.outputs_of(data)]
    return _made(trained, held_out, data.ids.tolist(), data.refs, [None] * len(data), out, max_error, data.faults)


def open_other(trained: Trained, path: Path) -> Data:
    """The rows at `path`, read as those of the project."""
    if not path.exists():
        raise SourceError(f"{path} does not exist. Expected rows like those of the project: {ROWS[trained.kind]}")
    image = None
    if trained.kind == "image" and path.is_file():
        found = recognise(path)
        if found.image is None:
            raise SourceError(f"{path}: expected {ROWS['image']}")
        image = found.image
    elif trained.kind != "image" and not path.is_file():
        column = f"a column {trained.text!r}" if trained.text else f"the columns {', '.join(trained.columns)}"
        raise SourceError(f"{path}: expected a table with {column}; found a folder")
    settings = Settings(
        path.name, trained.kind, os.path.abspath(path), text=trained.text, image=image, columns=trained.columns
    )
    return open_data(settings, Path("/"))


def check_max_error(text: str) -> float:
    """A share from text such as "2 %" or "0.02".

    >>> check_max_error("2 %"), check_max_error("0.02")
    (0.02, 0.02)
    """
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise ArgumentError(f"--max-error is a share of wrong labels such as 2% or 0.02, found {text!r}")
    return share


def _made(
    trained: Trained,
    held_out: HeldOutRows,
    ids: list[int],
    refs: list[str],
    labels: list[str | None],
    out: list[Any],
    max_error: float,
    faults: tuple[str, ...] = (),
) -> Predictions:
    faults += tuple(str(one) for one in out if isinstance(one, SourceError))
    read = [i for i, one in enumerate(out) if not isinstance(one, SourceError)]
    predicted: list[str | None] = [None] * len(out)
    shares: list[float | None] = [None] * len(out)
    if not trained.classes:
        for i in read:
            predicted[i] = repr(float(out[i][0]))
        return Predictions(ids, refs, labels, predicted, shares, [None] * len(out), trained.margin, None, faults)
    values, p_N = trained.guess(np.stack([out[i] for i in read])) if read else ([], np.empty(0))
    for i, value, share in zip(read, values, p_N.tolist()):
        predicted[i], shares[i] = value, share
    free = [share for share, label in zip(shares, labels) if share is not None and label is None]
    accepted = _accepted(trained, held_out, np.array(free), max_error)
    take = [
        None if label is not None else share is not None and share >= accepted.bar
        for label, share in zip(labels, shares)
    ]
    return Predictions(ids, refs, labels, predicted, shares, take, None, accepted, faults)


def _accepted(trained: Trained, held_out: HeldOutRows, p_N: np.ndarray, max_error: float) -> Accepted:
    test, cross = (
        (trained.guess(out)[1], trained.is_right(out, label))
        for out, label in ((held_out.out_MC, held_out.label_M), (held_out.cross_NC, held_out.cross_label_N))
    )
    return accept(p_N, max_error, test, cross)
