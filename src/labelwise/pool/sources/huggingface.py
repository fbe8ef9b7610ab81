"""Rows of a Hugging Face `datasets.Dataset`, known by its interface: the package itself is never imported."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.errors import ArgumentError, SourceError
from labelwise.io.text import shortened
from labelwise.pool.source import Source, content
from labelwise.pool.sources.collated import LABEL_KEYS, CollatedSource, RowSource, Stack, with_collate
from labelwise.pool.sources.images import Decoder
from labelwise.pool.sources.table import Columns

# The columns of tokenised, encoded or processed rows that models of transformers take.
MODEL_INPUTS = (
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "inputs_embeds",
    "pixel_values",
    "pixel_mask",
    "bbox",
    "input_values",
    "input_features",
)
_FIRST = ("input_ids", "inputs_embeds", "pixel_values", "input_values", "input_features")


def is_hugging(source: Any) -> bool:
    """Whether `source` comes from the package `datasets`; which of its kinds it is, `read_hugging` checks."""
    modules = {kind.__module__.split(".")[0] for kind in type(source).__mro__}
    return "datasets" in modules and hasattr(source, "column_names")


@dataclass(frozen=True)
class Reading:
    """How a dataset is read, for new rows of its kind; arguments as for `read_hugging`."""

    wanted: Columns
    decoder: Decoder
    dtype: torch.dtype
    collate: Any
    tokenizer: Any

    def __call__(self, dataset: Any) -> tuple[Source, Any, tuple[str, ...] | None]:
        """The rows of another dataset, which needs no labels."""
        label = self.wanted.label if self.wanted.label in dataset.column_names else None
        wanted, decoder = replace(self.wanted, label=label), copy.copy(self.decoder)
        return read_hugging(dataset, wanted, decoder, self.dtype, self.collate, self.tokenizer)


def read_hugging(
    dataset: Any, wanted: Columns, decoder: Decoder, dtype: torch.dtype, collate: Any = None, tokenizer: Any = None
) -> tuple[Source, Any, tuple[str, ...] | None]:
    """The source of a dataset's rows, the label column or None, and its class names or None.

    Args:
        dataset: one split.
        wanted: the columns to take; what is not named is found.
        decoder: of images.
        dtype: of real numbers.
        collate: makes a batch of a list of rows.
        tokenizer: pads tokenised rows, or tokenises texts.
    """
    if isinstance(dataset.column_names, dict):
        splits = ", ".join(dataset.column_names)
        raise ArgumentError(f"a pool is one split of a DatasetDict; choose one of {splits}, such as data['train'].")
    if not hasattr(dataset, "__len__"):
        raise ArgumentError(
            "a pool needs a datasets.Dataset with a length; this one is a stream. Load it without streaming=True."
        )
    reading = Reading(wanted, decoder, dtype, collate, tokenizer)
    named = any(way is not None for way in (wanted.text, wanted.image, wanted.columns))
    by_rows = collate is not None or tokenizer is not None
    if not named and len(dataset) and _format(dataset).get("type") == "custom":
        source: RowSource = TransformedSource(dataset)
        label = _label(dataset, wanted)
        made: CollatedSource | HuggingSource = (
            CollatedSource(source, Stack(dtype)) if not by_rows else with_collate(source, collate, tokenizer)
        )
    else:
        wanted = _completed(dataset, wanted, collate is not None)
        label = wanted.label
        is_dict = wanted.columns is not None and (by_rows or any(name in _FIRST for name in wanted.columns))
        if is_dict:
            source = NamedColumns(dataset, wanted.columns or (), wanted.text)
            made = with_collate(source, collate, tokenizer) if by_rows else CollatedSource(source, Stack(dtype))
        else:
            plain = HuggingSource(dataset, wanted, decoder, dtype)
            made = with_collate(plain, collate, tokenizer) if by_rows else plain
    labels = None if label is None else list(_only(dataset, [label])[label])
    names = getattr(dict(dataset.features or {}).get(label), "names", None)
    made.reading = reading
    return made, labels, tuple(names) if names else None


class HuggingSource:
    """One column of texts or images, or several of numbers that are concatenated, read in batches by row."""

    kind = "hugging"
    reading: Reading | None = None

    def __init__(self, dataset: Any, wanted: Columns, decoder: Decoder, dtype: torch.dtype):
        self.wanted = wanted
        self.dataset = _only(dataset, Columns(wanted.text, wanted.image, wanted.columns).names())
        self.is_text = wanted.text is not None
        self.decoder = decoder
        self.dtype = dtype
        if wanted.image is not None and len(dataset):
            decoder.check(self._opened(self.dataset[[0]][wanted.image][0]))

    def __len__(self) -> int:
        return len(self.dataset)

    def inputs(self, positions: np.ndarray) -> Any:
        batch = self.dataset[positions.tolist()]
        if self.wanted.text is not None:
            return [self._text(value, row) for value, row in zip(batch[self.wanted.text], positions.tolist())]
        if self.wanted.image is not None:
            return self._pixels(batch[self.wanted.image], positions)
        columns = [self._numbers(batch[name], name) for name in self.wanted.columns or ()]
        return torch.cat(columns, dim=1).to(self.dtype)

    def rows(self, positions: np.ndarray) -> list[Any]:
        return list(self.inputs(positions))

    def as_texts(self, positions: np.ndarray) -> list[str] | None:
        return self.rows(positions) if self.is_text else None

    def name(self, position: int) -> str | None:
        if self.wanted.text is None:
            return None
        return shortened(self.inputs(np.array([position]))[0])

    def sample(self, positions: np.ndarray) -> bytes:
        # Pixels are left out: decoders may differ in the last bit from version to version.
        which = repr((self.wanted.names(), *self.decoder.settings)).encode()
        if self.wanted.image is not None:
            return which
        values = self.inputs(positions)
        return which + content(values.numpy() if isinstance(values, Tensor) else values)

    def _text(self, value: Any, row: int) -> str:
        if not isinstance(value, str):
            raise SourceError(f"row {row}: column {self.wanted.text!r} holds {value!r:.60}; a text was expected.")
        return value

    def _numbers(self, values: Any, name: str) -> Tensor:
        try:
            column = torch.from_numpy(np.array(values, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise SourceError(
                f"column {name!r} does not hold numbers, or not the same count in every row ({error}); name others "
                "with columns=, or pass collate=, a function of a list of rows that makes a batch."
            ) from error
        return column.flatten(1) if column.ndim > 1 else column[:, None]

    def _pixels(self, values: Sequence[Any], positions: np.ndarray) -> Tensor:
        def read(place: int) -> Any:
            try:
                return self.decoder(self._opened(values[place]))
            except ArgumentError:
                raise
            except Exception as error:
                raise SourceError(
                    f"row {int(positions[place])}: the image in {self.wanted.image!r} cannot be read ({error})."
                ) from error

        return self.decoder.batch(read, len(positions))

    @staticmethod
    def _opened(value: Any) -> Any:
        """An image, the bytes of a file, or its path."""
        return (value.get("bytes") or Path(value["path"])) if isinstance(value, dict) else value


class NamedColumns:
    """Rows as dicts of the columns that a model takes by name; lists may have another length in each row."""

    def __init__(self, dataset: Any, columns: Sequence[str], text: str | None):
        self.columns = tuple(columns)
        self.kind = f"rows of {', '.join(self.columns)}"
        self.dataset = _only(dataset, list(columns))
        self.texts = None if text is None else _only(dataset, [text])
        self.text = text

    def __len__(self) -> int:
        return len(self.dataset)

    def rows(self, positions: np.ndarray) -> list[dict[str, Any]]:
        found = self.dataset[positions.tolist()]
        return [{name: found[name][place] for name in self.columns} for place in range(len(positions))]

    inputs = rows

    def as_texts(self, positions: np.ndarray) -> list[str] | None:
        """The texts of rows where the dataset has them, else their token ids as words."""
        if self.texts is not None:
            return [str(text) for text in self.texts[positions.tolist()][self.text]]
        return [_as_words(row) for row in self.rows(positions)] if "input_ids" in self.columns else None

    def name(self, position: int) -> str | None:
        found = None if self.texts is None else self.as_texts(np.array([position]))
        return None if found is None else shortened(found[0])

    def sample(self, positions: np.ndarray) -> bytes:
        return content([list(row.values()) for row in self.rows(positions)])


class TransformedSource:
    """Rows of a dataset with a transform (`set_transform`), without the labels among them."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        self.columns = tuple(self.rows(np.zeros(1, np.int64))[0])
        self.kind = f"rows of {', '.join(self.columns)}"

    def __len__(self) -> int:
        return len(self.dataset)

    def rows(self, positions: np.ndarray) -> list[dict[str, Any]]:
        found = self.dataset[positions.tolist()]
        if not isinstance(found, Mapping) or not set(found) - set(LABEL_KEYS):
            raise SourceError("the transform of the dataset must return a dict with the model's inputs by name.")
        names = [name for name in found if name not in LABEL_KEYS]
        return [{name: found[name][place] for name in names} for place in range(len(positions))]

    inputs = rows

    def name(self, position: int) -> str | None:
        return None

    def sample(self, positions: np.ndarray) -> bytes:
        return repr(self.columns).encode()  # what a transform returns may differ in the last bit between versions


def _as_words(row: Mapping[str, Any]) -> str:
    """The token ids of a row, without padding, as words."""
    tokens = row["input_ids"]
    mask = row.get("attention_mask") or [1] * len(tokens)
    return " ".join(str(token) for token, seen in zip(tokens, mask) if seen)


def _completed(dataset: Any, wanted: Columns, collated: bool) -> Columns:
    """Check the columns named; where none makes the row take the model's inputs, the image, the text or the numbers.

    The columns of a dataset with a format, as `set_format(columns=...)` sets it, are the ones to choose from.
    """
    names, features = list(dataset.column_names), dict(dataset.features or {})
    for name in wanted.names():
        if name not in names:
            raise SourceError(f"there is no column {name!r} in the dataset; its columns are {', '.join(names)}.")
    label = _label(dataset, wanted)
    if label is not None and label in (wanted.columns or ()):
        raise ArgumentError(f"columns= holds the label column {label!r}: a model would be shown the answer.")
    texts = [name for name in names if getattr(features.get(name), "dtype", None) in ("string", "large_string")]
    text = "text" if "text" in texts else texts[0] if len(texts) == 1 else None
    if any(way is not None for way in (wanted.text, wanted.image)):
        return replace(wanted, label=label)
    if wanted.columns is not None:
        return replace(wanted, label=label, text=text if set(wanted.columns) & set(_FIRST) else None)
    formatted = _format(dataset).get("columns") or names
    rest = [name for name in names if name in formatted and name != label and name not in LABEL_KEYS]
    if any(name in _FIRST for name in rest):
        chosen = len(formatted) < len(names)  # set_format named them
        inputs = tuple(name for name in rest if (chosen and name not in texts) or name in MODEL_INPUTS)
        return Columns(text=text, columns=inputs, label=label)
    images = [name for name in rest if type(features.get(name)).__name__ == "Image"]
    texts = [name for name in rest if name in texts]
    if collated and rest:
        return Columns(columns=tuple(rest), label=label)
    if len(images) == 1:
        return Columns(image=images[0], label=label)
    if "text" in texts or len(texts) == 1:
        return Columns(text="text" if "text" in texts else texts[0], label=label)
    if rest and not texts and not images:
        return Columns(columns=tuple(rest), label=label)
    raise SourceError(
        f"which column makes a row? The dataset has {', '.join(names)}; use Pool.hugging(dataset, text=...), "
        "image=... or columns=[...]."
    )


def _label(dataset: Any, wanted: Columns) -> str | None:
    return wanted.label or next((name for name in LABEL_KEYS if name in dataset.column_names), None)


def _format(dataset: Any) -> Mapping[str, Any]:
    found = getattr(dataset, "format", None)
    return found if isinstance(found, Mapping) else {}


def _only(dataset: Any, columns: list[str]) -> Any:
    """The dataset with these columns alone, so that others (images) are not decoded to be thrown away."""
    plain = dataset.with_format(None) if hasattr(dataset, "with_format") else dataset
    return plain.select_columns(columns) if hasattr(plain, "select_columns") else plain
