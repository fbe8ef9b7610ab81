"""Signals: the numbers a strategy may ask about a row, as frozen values. No torch here, no computing.

Two requests that are equal are one request, so the needs of several strategies merge by value and the pool is read
once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Signal:
    """A request for numbers about a row. Subclasses are final and hold the parameters of the request."""

    array: ClassVar[str] = ""  # the argument of `select` that gives it
    how: ClassVar[str] = ""  # how a user gets it, for the text of NeedError

    def stored(self) -> tuple[Signal, ...]:
        """The signals whose columns are kept beside the row; this one is computed from them block by block."""
        return (self,)


@dataclass(frozen=True)
class Probs(Signal):
    """Class probabilities (C,) of the model: softmax of its logits."""

    array: ClassVar[str] = "probs"
    how: ClassVar[str] = "pass probs=, an (N, C) array of class probabilities, such as model.predict_proba(X)"


@dataclass(frozen=True)
class LabelProbs(Signal):
    """What the label is expected to be (C,): temperature-scaled class probabilities."""

    array: ClassVar[str] = "label_probs"
    how: ClassVar[str] = "pass label_probs=, an (N, C) array of calibrated class probabilities"


@dataclass(frozen=True)
class Embedding(Signal):
    """The input of the model's last linear layer (D,)."""

    array: ClassVar[str] = "embedding"
    how: ClassVar[str] = "pass embedding=, an (N, D) array, such as the input of the model's last linear layer"


@dataclass(frozen=True)
class Features(Signal):
    """Numbers of the row itself (D,), known before any label: a given embedding, else the raw input, flattened."""

    array: ClassVar[str] = "embedding"
    how: ClassVar[str] = "pass embedding=, an (N, D) array of features of the rows, such as a pretrained encoder's"


@dataclass(frozen=True)
class HeadGrad(Signal):
    """Gradient (C,) x (D,) of the loss by the last layer's weights: (p - e_y) h^T, kept as its two factors.

    `label` says which y: "argmax" is the most probable class. The layer's bias is left out, as in BADGE.
    """

    label: Literal["argmax"] = "argmax"
    array: ClassVar[str] = "probs"
    how: ClassVar[str] = "pass both probs= (N, C) and embedding= (N, D)"

    def stored(self) -> tuple[Signal, ...]:
        return (Probs(), Embedding())


@dataclass(frozen=True)
class Needs:
    """What a strategy asks: signals of the rows it chooses from, and of the rows already labelled."""

    pool: tuple[Signal, ...] = ()
    labelled: tuple[Signal, ...] = ()


def stored(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    """The columns to keep so that every one of `signals` can be given, each once, in order of first use."""
    return tuple(dict.fromkeys(base for signal in signals for base in signal.stored()))
