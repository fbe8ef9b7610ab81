"""The model a round was chosen with, as a file in the folder of the round."""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from labelwise.errors import StoreError
from labelwise.io.checked import read_sealed, write_sealed


@dataclass(frozen=True)
class Model:
    """The linear layer a round was chosen with. `labels` is the number of labels it was trained on."""

    weight_CD: np.ndarray
    bias_C: np.ndarray
    classes: tuple[str, ...]
    labels: int

    @property
    def name(self) -> str:
        """`linear/` and eight hex digits of a hash of the weights."""
        digest = hashlib.blake2b(self.weight_CD.tobytes() + self.bias_C.tobytes(), digest_size=4)
        return f"linear/{digest.hexdigest()}"


def round_folder(folder: Path, number: int) -> Path:
    """The folder of a round inside the project folder."""
    return folder / "rounds" / f"{number:03d}"


def write_model(folder: Path, model: Model) -> None:
    """Write the model of a round to its folder."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        weight=model.weight_CD,
        bias=model.bias_C,
        classes=np.array(json.dumps(list(model.classes))),
        labels=np.array(model.labels),
        round=np.array(int(folder.name)),
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_sealed(folder / "model.npz", lambda write: write(buffer.getvalue()))


def read_model(folder: Path) -> Model | None:
    """The model in the folder of a round; None if the round had none."""
    path = folder / "model.npz"
    if not path.is_file():
        return None
    remedy = "remove it; the meter then leaves that round out"
    content = read_sealed(path, remedy, early=True)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            classes = tuple(json.loads(str(found["classes"])))
            if "round" in found and int(found["round"]) != int(folder.name):  # earlier versions wrote no round
                raise ValueError(f"it is the model of round {found['round']}")
            return Model(found["weight"], found["bias"], classes, int(found["labels"]))
    except Exception as error:  # what numpy and zipfile raise for a damaged file of an early version has no end
        raise StoreError(f"{path} cannot be read ({error}); {remedy}") from error
