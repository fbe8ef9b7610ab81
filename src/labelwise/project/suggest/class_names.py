"""Guesses from the names of the classes: rows and names are embedded by the same encoder, and compared.

The score of row x for class c is  20 (cos(x, t_c) - mean over the pool of cos(x', t_c)),  where t_c is the embedding
of a sentence with the name, or of the description. Without the mean, a class whose name is close to everything would
take all rows.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.errors import ArgumentError
from labelwise.io.checked import read_sealed, write_sealed
from labelwise.pool import Pool
from labelwise.project.data import features
from labelwise.project.data.embeddings import encoder_for
from labelwise.project.data.encoders import Encoder
from labelwise.project.data.features import OnProgress
from labelwise.project.data.source import fingerprint
from labelwise.project.project import Project
from labelwise.project.settings import Kind
from labelwise.project.suggest.settings import AUTO
from labelwise.rng import Key

FILE = "class-names.npz"
SENTENCE = {"text": "This text is about {}.", "image": "a photo of {}"}
SHARPNESS = 20.0
_ROWS = 4000  # of the pool, for the means
_REMEDY = "remove it; the worker writes it again"


@dataclass(frozen=True)
class ClassNames:
    """Embeddings of the names of classes, by the encoder of that name."""

    encoder: str
    names: tuple[str, ...]
    texts: tuple[str, ...]
    unit_CD: np.ndarray
    mean_C: np.ndarray

    def scores(self, project: Project, rows: Sequence[int]) -> np.ndarray:
        """Logits (n, C) of these rows."""
        x_ND = raw_features(project, self.encoder, rows)
        return np.asarray(SHARPNESS * (_unit(x_ND) @ self.unit_CD.T - self.mean_C), np.float64)

    def write(self, folder: Path) -> None:
        """Write `class-names.npz`."""
        buffer, known = io.BytesIO(), json.dumps([self.encoder, list(self.names), list(self.texts)])
        np.savez(buffer, unit=self.unit_CD, mean=self.mean_C, known=np.array(known))
        write_sealed(folder / FILE, lambda write: write(buffer.getvalue()))

    @staticmethod
    def read(folder: Path) -> ClassNames | None:
        """What `write` wrote; None if there is nothing."""
        if not (folder / FILE).is_file():
            return None
        with np.load(io.BytesIO(read_sealed(folder / FILE, _REMEDY)), allow_pickle=False) as found:
            encoder, names, texts = json.loads(str(found["known"]))
            return ClassNames(encoder, tuple(names), tuple(texts), found["unit"], found["mean"])


def sentences(kind: Kind, classes: Sequence[str], descriptions: dict[str, str]) -> tuple[str, ...]:
    """What is embedded for each class: its description, or a sentence with its name."""
    form = SENTENCE.get(kind, "{}")
    return tuple(descriptions.get(name) or form.format(name.replace("_", " ")) for name in classes)


def embed(
    project: Project, by: str, texts: Sequence[str], on_progress: OnProgress, trusted: bool = False
) -> ClassNames:
    """Embed the classes of a project, and its rows if the encoder is not that of its features.

    Args:
        project: a project with features.
        by: "auto", or the name of an encoder.
        texts: a text for each class.
        on_progress: called with a text, the rows done and the rows in total.
        trusted: whether the user has just named the encoder, which may be code.

    Raises:
        ArgumentError: the encoder cannot read names.
    """
    own = project.feature_info.encoder
    encoder, rows = encoder_for(own if by == AUTO else by, project.settings.kind, project.folder, project.data, trusted)
    read = reader_of(encoder, project.settings.kind)
    if encoder.name != own:
        mark = fingerprint(project.settings.path(project.folder), project.data)
        features.compute(_folder(project), rows, encoder, mark, on_progress)
    unit_CD = _unit(np.asarray(read(list(texts)), np.float32))
    ids = project.pool.ids.numpy()
    some = ids[Key(project.settings.seed).fold("class names").numpy().permutation(len(ids))[:_ROWS]]
    mean_C = (_unit(raw_features(project, encoder.name, some.tolist())) @ unit_CD.T).mean(0)
    return ClassNames(encoder.name, tuple(project.store.classes()), tuple(texts), unit_CD, mean_C)


def reader_of(encoder: Encoder, kind: Kind) -> Callable[[list[str]], np.ndarray]:
    """What embeds names where the encoder embeds rows. ArgumentError for an encoder that has no such thing."""
    found = getattr(encoder, "encode_names", None)
    if found is None and kind == "text":
        found = encoder.encode
    if found is None:
        raise ArgumentError(
            f"the encoder {encoder.name} cannot read class names. For suggestions from names, texts need an encoder of "
            "texts; images need one with a text tower, such as CLIP or SigLIP, or a function of your own with an "
            "attribute `names`, a function of a list of texts"
        )
    return found


def raw_features(project: Project, encoder: str, rows: Sequence[int]) -> np.ndarray:
    """The output of the encoder for rows of the project."""
    if encoder == project.feature_info.encoder:
        pool, (mean_D, scale_D) = project.pool, project.scale()
    else:
        pool, (mean_D, scale_D) = _pool(project), features.read_scale(_folder(project))
    return np.asarray(pool.inputs(list(rows)).numpy() * scale_D + mean_D)


def _folder(project: Project) -> Path:
    return project.folder / "features" / "class-names"


def _pool(project: Project) -> Pool:
    return features.pool_of(_folder(project), {})


def _unit(x_ND: np.ndarray) -> np.ndarray:
    length_N1 = np.linalg.norm(x_ND, axis=1, keepdims=True)
    return np.asarray(x_ND / np.where(length_N1 > 0, length_N1, 1), np.float32)
