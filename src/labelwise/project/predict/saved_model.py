"""A model in a folder, to be used without the project: numbers in `model.npz`, names in `model.json`, and a script.

Everything is data: no pickle, and no code is run when a model is opened. An encoder that is the user's own code is
stored by its name and must be named again.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from labelwise import __version__
from labelwise.errors import StoreError
from labelwise.io.checked import read_checked, with_checksum
from labelwise.io.files import write_bytes
from labelwise.project.data.encoders import Encoder, encoder_of, is_code
from labelwise.project.data.saved_encoders import LEARNT, restored, state_of
from labelwise.project.predict.predictions import MAX_ERROR, Predictions, predict_other
from labelwise.project.predict.trained import HeldOutRows, Trained

FORMAT = 3  # 2 has no sets of classes, 1 no checksums
_REMEDY = "write it again with `labelwise model`"
_ARRAYS = ("weight", "bias", "mean", "scale")
SCRIPT = '''"""Predict rows with this model:  python predict.py NEW > predictions.csv"""

import sys
from pathlib import Path

from labelwise.errors import LabelwiseError
from labelwise.project import SavedModel

if len(sys.argv) != 2:
    sys.exit("usage: python predict.py NEW > predictions.csv")
try:
    sys.stdout.write(SavedModel.load(Path(__file__).parent).predict(sys.argv[1]).csv())
except LabelwiseError as error:
    sys.exit(f"error: {error}")
'''
_README = """# {name}

A linear layer on the features of `{encoder}`, trained on {labels} labels by Labelwise {version}.
{quality}

    pip install labelwise
    python predict.py NEW > predictions.csv      # NEW: {rows}

`model.json` has the names, `model.npz` the numbers (read with `numpy.load`; there is no pickle). By hand, for the
output x of the encoder:

    {formula}
"""


_NOTHING = np.empty(0, object)
_EXPECTED: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "kind": ("image, text or table", lambda v: v in ("image", "text", "table")),
    "task": ("classify, multi or regress", lambda v: v in ("classify", "multi", "regress")),
    "classes": ("a list of different texts", lambda v: _names(v) and len(set(v)) == len(v)),
    "columns": ("a list of texts", lambda v: _names(v)),
    "text": ("a text or null", lambda v: v is None or isinstance(v, str)),
    "labels": ("a whole number", lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0),
    "score": ("an object", lambda v: isinstance(v, dict)),
    "temperature": ("a number above 0", lambda v: _real(v) and v > 0),
    "margin": ("a number or null", lambda v: v is None or (_real(v) and v >= 0)),
    "encoder": ("a text", lambda v: isinstance(v, str)),
    "encoder_state": ("an object", lambda v: isinstance(v, dict)),
}


def _names(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


@dataclass(frozen=True)
class SavedModel:
    """A model that was written by `labelwise model`. Open one with `SavedModel.load(folder)`."""

    trained: Trained
    held_out: HeldOutRows

    @staticmethod
    def load(folder: str | Path, encoder: str | None = None) -> SavedModel:
        """Open a model.

        Args:
            folder: the folder that `labelwise model` wrote.
            encoder: the name of the encoder, where it is your own code, which is not run unless you name it.

        Raises:
            StoreError: the folder has no model, or a file of it is damaged.
        """
        about, arrays = _read(Path(folder))
        _check(Path(folder), about, arrays)
        name, kind = about["encoder"], about["kind"]
        learnt = {key.removeprefix("encoder_"): value for key, value in arrays.items() if key.startswith("encoder_")}

        def make() -> Encoder:
            if is_code(name) and encoder == name:
                return encoder_of(name, kind, None)
            return restored(name, kind, about["encoder_state"], learnt)

        weight, bias, mean, scale = (arrays[part] for part in _ARRAYS)
        trained = Trained(
            weight, bias, mean, scale, tuple(about["classes"]), float(about["temperature"]),
            about["margin"], int(about["labels"]), about["score"], kind,
            name, make, tuple(about["columns"]), about["text"], sets=about["task"] == "multi",
        )  # fmt: skip
        return SavedModel(trained, HeldOutRows(*(arrays[f"held_out_{field.name}"] for field in fields(HeldOutRows))))

    def predict(self, on: str | Path, max_error: float = MAX_ERROR) -> Predictions:
        """Predict the rows of a table with the columns of the project, or the images of a folder.

        Args:
            on: the table or the folder.
            max_error: the share of accepted labels that may be wrong.

        Raises:
            SourceError: `on` cannot be read.
            ArgumentError: the encoder is your own code and was not named.
        """
        return predict_other(self.trained, Path(on), max_error, self.held_out)


def model_files(name: str, trained: Trained, held_out: HeldOutRows) -> dict[str, bytes]:
    """The files of a model by name.

    Args:
        name: what the README calls the model.
        trained: the model.
        held_out: labelled rows, with which predictions for other rows are accepted.
    """
    state, learnt = state_of(trained.make_encoder()) if trained.encoder in LEARNT else ({}, {})
    about: dict[str, Any] = {
        "format": FORMAT if trained.sets else 2,  # an earlier Labelwise would take sets of classes for single ones
        "labelwise": __version__,
        "kind": trained.kind,
        "task": "multi" if trained.sets else "classify" if trained.classes else "regress",
        "classes": list(trained.classes),
        "columns": list(trained.columns),
        "text": trained.text,
        "labels": trained.labels,
        "score": trained.score,
        "temperature": trained.temperature,
        "margin": trained.margin,
        "encoder": trained.encoder,
        "encoder_state": state,
    }
    layer = (trained.weight_CD, trained.bias_C, trained.mean_D, trained.scale_D)
    arrays = dict(zip(_ARRAYS, layer)) | {f"encoder_{key}": value for key, value in learnt.items()}
    arrays |= {f"held_out_{name}": value for name, value in asdict(held_out).items()}
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]  # keywords are arrays
    about["arrays"] = hashlib.sha256(buffer.getvalue()).hexdigest()
    text = json.dumps(with_checksum(about), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    return {
        "model.json": text.encode("utf-8"),
        "model.npz": buffer.getvalue(),
        "predict.py": SCRIPT.encode("utf-8"),
        "README.md": _readme(name, trained).encode("utf-8"),
    }


def write_model_folder(folder: Path, files: dict[str, bytes], force: bool = False) -> None:
    """Write a model to a folder. StoreError if the folder has other files, or has a model and `force` is False."""
    present = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file. Name a folder with --to")
    if present - set(files) - {"__pycache__"}:
        raise StoreError(f"{folder} has other files, such as {sorted(present - set(files))[0]}. Name a new folder")
    if present and not force:
        raise StoreError(f"{folder} already has a model. Name another folder with --to, or replace it with --force")
    for name, content in files.items():
        write_bytes(folder / name, content)


def _read(folder: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    path = folder / "model.json"
    try:
        about = read_checked(path, _REMEDY, early=None)
        if about["format"] not in range(1, FORMAT + 1):
            raise StoreError(f"{path} has format {about['format']!r}; this Labelwise reads 1 to {FORMAT}. Update it")
        data = (folder / "model.npz").read_bytes()
        if about["format"] > 1 and hashlib.sha256(data).hexdigest() != about["arrays"]:
            raise StoreError(f"{folder / 'model.npz'} was changed after it was written; {_REMEDY}")
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            return about, {name: found[name] for name in found.files}
    except FileNotFoundError as error:
        raise StoreError(
            f"{folder} is not a model: {error.filename} is missing. Write one with `labelwise model`"
        ) from None
    except StoreError:
        raise
    except Exception as error:  # what numpy and zipfile raise for a damaged file has no end
        raise StoreError(f"the model in {folder} cannot be read ({error}); {_REMEDY}") from error


def _check(folder: Path, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Raise StoreError where a field or an array of a model does not hold what was written there."""
    for name, (expected, fits) in _EXPECTED.items():
        if name not in about or not fits(about[name]):
            found = f"{about[name]!r:.80}" if name in about else "nothing"
            raise StoreError(f"{folder / 'model.json'}: {name!r} is {expected}; found {found}. {_REMEDY}")
    outputs, width = max(1, len(about["classes"])), arrays["mean"].size if "mean" in arrays else 0
    test = [
        arrays.get(f"held_out_{name}", _NOTHING) for name in ("rows", "out_MC", "label_M", "cross_NC", "cross_label_N")
    ]
    wanted: dict[str, tuple[int, ...]] = {
        "weight": (outputs, width),
        "bias": (outputs,),
        "mean": (width,),
        "scale": (width,),
    }
    label = (outputs,) if about["task"] == "multi" else ()  # of a row
    crossed = len(np.atleast_1d(test[4]))
    wanted |= {"held_out_rows": (test[0].size,), "held_out_label_M": (test[0].size, *label)}
    wanted |= {"held_out_out_MC": (test[0].size, outputs), "held_out_cross_label_N": (crossed, *label)}
    for name, shape in wanted.items():
        array = arrays.get(name, _NOTHING)
        if array.shape != shape or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
            raise StoreError(
                f"{folder / 'model.npz'}: {name!r} has finite numbers of shape {shape}, not "
                f"{array.dtype} {array.shape}. {_REMEDY}"
            )
    if len(test[3]) != crossed or test[3].dtype.kind not in "fiu":
        raise StoreError(f"{folder / 'model.npz'}: the rows of cross-validation do not fit together. {_REMEDY}")


def _real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300


def _readme(name: str, trained: Trained) -> str:
    rows = {
        "image": "a folder of images, or a Parquet file with a column of images",
        "text": f"a table with a column {trained.text!r}",
        "table": f"a table with the columns {', '.join(trained.columns)}",
    }[trained.kind]
    formula = "output = weight @ ((x - mean) / scale) + bias"
    if trained.classes:
        function = "1 / (1 + exp(-output / temperature))" if trained.sets else "softmax(output / temperature)"
        formula += f"\n    probabilities = {function}      # of the classes in model.json, in order"
    if trained.sets:
        formula += "\n    predicted = every class whose probability is above one half"
    score = trained.score
    quality = "It was not tested: no random test row has a label."
    if score["test_rows"]:
        value, low = score["value"], score["low"]
        if trained.classes:
            shown = f"{100 * value:.1f} % (95 % interval {100 * low:.1f} to {100 * score['high']:.1f} %)"
        else:
            high = "no upper end yet" if score["high"] is None else f"{score['high']:.3g}"
            shown = f"{value:.3g} (95 % interval {low:.3g} to {high})"
        quality = f"{score['metric']} on {score['test_rows']} random test rows that it was not trained on: {shown}."
    return _README.format(
        name=name, encoder=trained.encoder, labels=trained.labels, version=__version__, quality=quality,
        rows=rows, formula=formula,
    )  # fmt: skip
