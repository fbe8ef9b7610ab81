"""Signals: the numbers a strategy may ask about a row, as frozen values. No torch here, no computing.

Two requests that are equal are one request, so the needs of several strategies merge by value and the pool is read
once for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from labelwise.errors import ArgumentError

BASIS_MAPS = ("last_layer", "random_features", "tangent", "polynomial")
ACTIVATIONS = ("relu", "sigmoid", "swish", "tanh", "sin", "cos", "square")


@dataclass(frozen=True)
class Signal:
    """A request for numbers about a row. Subclasses are final and hold the parameters of the request."""

    array: ClassVar[str] = ""  # the argument of `select` that gives it
    how: ClassVar[str] = ""  # how a user gets it, for the text of NeedError
    ways: ClassVar[str] = "Use a learner that gives it"  # what gives it where a model does not
    of_classes: ClassVar[bool] = False  # whether it is about class probabilities, which a regression model has none of

    def stored(self) -> tuple[Signal, ...]:
        """The signals whose columns are kept beside the row; this one is computed from them block by block."""
        return (self,)


@dataclass(frozen=True)
class Probs(Signal):
    """Class probabilities (C,) of the model: softmax of its logits."""

    array: ClassVar[str] = "probs"
    how: ClassVar[str] = "pass probs=, an (N, C) array of class probabilities, such as model.predict_proba(X)"
    of_classes: ClassVar[bool] = True


@dataclass(frozen=True)
class LabelProbs(Signal):
    """What the label is expected to be (C,): temperature-scaled class probabilities."""

    array: ClassVar[str] = "label_probs"
    how: ClassVar[str] = "pass label_probs=, an (N, C) array of calibrated class probabilities"
    of_classes: ClassVar[bool] = True


@dataclass(frozen=True)
class LogProbs(Signal):
    """Log class probabilities (K, C) under each of K draws of the model's weights; the same K draws for every row.

    `draws` is how many to draw where the model does not say it itself: an ensemble has as many as members, and
    `lw.bayesian(module, draws=...)` its own number. -inf stands for a probability of 0.
    """

    draws: int = 100
    array: ClassVar[str] = "log_probs"
    how: ClassVar[str] = (
        "pass log_probs=, an (N, K, C) array of log class probabilities under K draws of the weights, the same draws "
        "for every row"
    )
    ways: ClassVar[str] = (
        "It takes draws of the model's weights: wrap the network in lw.bayesian(module), or the model in "
        "lw.ensemble(model) or lw.laplace(model), put nn.Dropout layers into the network, or take a random forest"
    )
    of_classes: ClassVar[bool] = True


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
class Prediction(Signal):
    """The number () that a regression model predicts, in the units of the labels. A learner gives it, no array does."""

    array: ClassVar[str] = "prediction"
    how: ClassVar[str] = (
        "there is no array prediction= yet; use a session with a learner of numbers: TorchLearner(model, loss='mse') "
        "or a scikit-learn regressor"
    )


@dataclass(frozen=True)
class Label(Signal):
    """The answer () given for a labelled row: a class number, or a number. Sessions take it from their answers."""

    array: ClassVar[str] = "y"
    how: ClassVar[str] = "pass labelled=dict(y=...), the (L,) labels of the labelled rows"


@dataclass(frozen=True)
class Duals(Signal):
    """What the bound on the row's loss costs (): published by training for labelled rows, predicted for others."""

    array: ClassVar[str] = "duals"
    how: ClassVar[str] = (
        "train with the objective PrimalDual (the recipe 'ally' does), or pass duals=, an (N,) array of predicted "
        "duals, or labelled=dict(embedding=..., duals=...) to have them predicted"
    )


@dataclass(frozen=True)
class DualEmbedding(Signal):
    """The embedding (D,) times the dual of the row, kept as its two factors."""

    array: ClassVar[str] = "duals"
    how: ClassVar[str] = "pass both duals= (N,) and embedding= (N, D)"

    def stored(self) -> tuple[Signal, ...]:
        return (Duals(), Embedding())


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
class MeanGrad(Signal):
    """Expected gradient (C,) x (D,) of the loss by the last layer's weights: (p - q) h^T, kept as its two factors.

    The expectation is over labels from LabelProbs, q; it is zero where q is the model's own p.
    """

    array: ClassVar[str] = "label_probs"
    how: ClassVar[str] = "pass probs= (N, C), label_probs= (N, C) and embedding= (N, D)"
    of_classes: ClassVar[bool] = True

    def stored(self) -> tuple[Signal, ...]:
        return (Probs(), LabelProbs(), Embedding())


@dataclass(frozen=True)
class Basis(Signal):
    """Functions of a row (P,) whose span is what a model of the row may be; basis.py has the maps.

    An array `basis` given to `select` takes the place of the map.

    Args:
        map: "last_layer" (embedding and a constant), "random_features" (a hidden layer at its first weights),
            "tangent" (gradients of a two-layer network at its first weights), "polynomial" (monomials).
        activation: of the two networks.
        width: how many random or tangent features.
        hidden: hidden units of the network whose gradients are taken.
        degree: of the monomials.
        scale: inputs of all maps but the first are divided by it; None is the longest row of the pool.
        seed: of the random weights.
    """

    map: Literal["last_layer", "random_features", "tangent", "polynomial"] = "last_layer"
    activation: Literal["relu", "sigmoid", "swish", "tanh", "sin", "cos", "square"] = "relu"
    width: int = 256
    hidden: int = 1024
    degree: int = 2
    scale: float | None = None
    seed: int = 0
    array: ClassVar[str] = "basis"
    how: ClassVar[str] = (
        "pass basis=, an (N, P) array of features, or embedding=, an (N, D) array from which they are made"
    )

    def __post_init__(self) -> None:
        for name, known in (("map", BASIS_MAPS), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise ArgumentError(f"Basis({name}=...) is one of {', '.join(known)}; found {getattr(self, name)!r}")
        for name in ("width", "hidden", "degree"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ArgumentError(f"Basis({name}=...) must be a whole number of at least 1, found {value!r}")
        if self.scale is not None and not (isinstance(self.scale, int | float) and 0 < self.scale < float("inf")):
            raise ArgumentError(f"Basis(scale=...) must be a number above 0, found {self.scale!r}")

    @property
    def constant(self) -> bool:
        """Whether the last of its functions is the constant 1."""
        return self.map in ("last_layer", "polynomial")

    def stored(self) -> tuple[Signal, ...]:
        return (Embedding(),) if self.map == "last_layer" else (Features(),)


@dataclass(frozen=True)
class GradNorm(Signal):
    """Squared length () of the gradient of the row's loss by all trained parameters of the model.

    `label` says at which label: "argmax" is the most probable class. A regression model has none: the label is then
    taken at distance one from the prediction.
    """

    label: Literal["argmax"] = "argmax"
    array: ClassVar[str] = "grad_sqnorm"
    how: ClassVar[str] = "pass grad_sqnorm=, an (N,) array of squared lengths of each row's loss gradient"


@dataclass(frozen=True)
class LossJvp(Signal):
    """Inner product () of the row's loss gradient with one direction: how the row's loss changes along it.

    `along` is the sum of the loss gradients of the labelled rows at the current parameters, with their true labels.
    """

    along: Literal["training gradient"] = "training gradient"
    label: Literal["argmax"] = "argmax"
    array: ClassVar[str] = "grad_dot"
    how: ClassVar[str] = (
        "pass grad_dot=, an (N,) array of inner products of each row's loss gradient with the summed gradient of the "
        "labelled rows"
    )


@dataclass(frozen=True)
class GradSketch(Signal):
    """A sketch (width,) of the row's loss gradient: inner products of sketches are those of gradients on average."""

    width: int = 512
    seed: int = 0
    label: Literal["argmax"] = "argmax"
    array: ClassVar[str] = "grad_sketch"
    how: ClassVar[str] = (
        "pass grad_sketch=, an (N, W) array of random projections of each row's loss gradient, the same projection "
        "for every row"
    )


@dataclass(frozen=True)
class Needs:
    """What a strategy asks: signals of the rows it chooses from, and of the rows already labelled.

    `instead` are signals of the pool that a caller of `select` may give instead of anything about labelled rows.
    With `history`, a session hands the strategy the notes of its earlier selections, see `Strategy.with_history`.
    """

    pool: tuple[Signal, ...] = ()
    labelled: tuple[Signal, ...] = ()
    instead: tuple[Signal, ...] = ()
    history: bool = False


def stored(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    """The columns to keep so that every one of `signals` can be given, each once, in order of first use."""
    return tuple(dict.fromkeys(base for signal in signals for base in signal.stored()))
