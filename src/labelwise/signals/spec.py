"""Signals: the numbers that a strategy may read about a row, as frozen values. No torch here, no computing.

Equal requests are one request, so the needs of several strategies merge by value and the pool is read once for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from labelwise.errors import ArgumentError
from labelwise.io.arguments import check_fields, check_whole

BASIS_MAPS = ("last_layer", "random_features", "tangent", "polynomial")
ACTIVATIONS = ("relu", "sigmoid", "swish", "tanh", "sin", "cos", "square")


@dataclass(frozen=True)
class Signal:
    """A request for numbers about a row. Subclasses are final; their fields are the parameters of the request.

    Attributes:
        array: the argument of `select` that provides it.
        hint: how a caller of `select` provides it, for the text of NeedError.
        model_hint: which models provide it, for the text of NeedError.
        of_classes: whether it needs class probabilities, which a regression model does not have.
        parts: the signals that it is computed from block by block; none if it is a column of its own.
    """

    array: ClassVar[str] = ""
    hint: ClassVar[str] = ""
    model_hint: ClassVar[str] = "Use a learner that gives it"
    of_classes: ClassVar[bool] = False
    parts: ClassVar[tuple[Signal, ...]] = ()

    def stored(self) -> tuple[Signal, ...]:
        """The signals whose columns are stored for it: its parts, or itself."""
        return self.parts or (self,)


@dataclass(frozen=True)
class Probs(Signal):
    """Class probabilities (C,) of the model: softmax of its logits."""

    array = "probs"
    hint = "pass probs=, an (N, C) array of class probabilities, such as model.predict_proba(X)"
    of_classes = True


@dataclass(frozen=True)
class LabelProbs(Signal):
    """Calibrated class probabilities (C,): softmax of the logits over a temperature."""

    array = "label_probs"
    hint = "pass label_probs=, an (N, C) array of calibrated class probabilities"
    of_classes = True


@dataclass(frozen=True)
class LogProbs(Signal):
    """Log class probabilities (K, C) under each of K draws of the model's weights; the same K draws for every row.

    `draws` is K where the model does not fix it: an ensemble has one draw for each member, and
    `lw.bayesian(module, draws=...)` its own number. -inf stands for a probability of 0.
    """

    draws: int = 100
    array = "log_probs"
    hint = (
        "pass log_probs=, an (N, K, C) array of log class probabilities under K draws of the weights, the same draws "
        "for every row"
    )
    model_hint = (
        "It takes draws of the model's weights: wrap the network in lw.bayesian(module), or the model in "
        "lw.ensemble(model) or lw.laplace(model), put nn.Dropout layers into the network, or take a random forest"
    )
    of_classes = True


@dataclass(frozen=True)
class Embedding(Signal):
    """The input of the model's last linear layer (D,)."""

    array = "embedding"
    hint = "pass embedding=, an (N, D) array, such as the input of the model's last linear layer"


@dataclass(frozen=True)
class Features(Signal):
    """Features of the row itself (D,), which need no model: a given embedding, else the flattened input."""

    array = "embedding"
    hint = "pass embedding=, an (N, D) array of features of the rows, such as a pretrained encoder's"


@dataclass(frozen=True)
class Prediction(Signal):
    """The number () that a regression model predicts, in the units of the labels. Only a learner gives it."""

    array = "prediction"
    hint = (
        "use a session instead, with a learner of numbers: TorchLearner(model, loss='mse') or a scikit-learn regressor"
        "; there is no array prediction= yet"
    )


@dataclass(frozen=True)
class Label(Signal):
    """The label () of a labelled row: a class number, or a real number. Sessions take it from their answers."""

    array = "y"
    hint = "pass labelled=dict(y=...), the (L,) labels of the labelled rows"


@dataclass(frozen=True)
class Weight(Signal):
    """The weight () that a labelled row has in training, about 1 on average; see `Ledger.joint_weights`."""

    array = "weights"
    hint = "pass labelled=dict(weights=...), the (L,) weights of the labelled rows; without it all are 1"


@dataclass(frozen=True)
class Duals(Signal):
    """The dual variable () of the bound on the row's loss: from training for labelled rows, predicted for others."""

    array = "duals"
    hint = (
        "train with the objective PrimalDual (the recipe 'ally' does), or pass duals=, an (N,) array of predicted "
        "duals, or labelled=dict(embedding=..., duals=...) to have them predicted"
    )


@dataclass(frozen=True)
class DualEmbedding(Signal):
    """The embedding (D,) times the dual of the row, stored as two factors."""

    array = "duals"
    hint = "pass both duals= (N,) and embedding= (N, D)"
    parts = (Duals(), Embedding())


@dataclass(frozen=True)
class HeadGrad(Signal):
    """Gradient (C,) x (D,) of the loss by the last layer's weights: (p - e_y) h^T, stored as two factors.

    `label` is y: "argmax" is the most probable class. The layer's bias is not included, as in BADGE.
    """

    label: Literal["argmax"] = "argmax"
    array = "probs"
    hint = "pass both probs= (N, C) and embedding= (N, D)"
    parts = (Probs(), Embedding())


@dataclass(frozen=True)
class MeanGrad(Signal):
    """Expected gradient (C,) x (D,) of the loss by the last layer's weights: (p - q) h^T, stored as two factors.

    The expectation is over labels from LabelProbs, q; it is zero where q is the model's own p.
    """

    array = "label_probs"
    hint = "pass probs= (N, C), label_probs= (N, C) and embedding= (N, D)"
    of_classes = True
    parts = (Probs(), LabelProbs(), Embedding())


@dataclass(frozen=True)
class Basis(Signal):
    """Functions of a row (P,) whose span is the class of models to learn; see basis.py for the maps.

    An array `basis` given to `select` replaces the map.

    Args:
        map: "last_layer" (embedding and a constant), "random_features" (a hidden layer at its first weights),
            "tangent" (gradients of a two-layer network at its first weights), "polynomial" (monomials).
        activation: of the networks of "random_features" and "tangent".
        width: how many random or tangent features.
        hidden: hidden units of the "tangent" network.
        degree: of the monomials.
        scale: divisor of the inputs of all maps but the first; None is the length of the longest row of the pool.
        seed: of the random weights.

    Raises:
        ArgumentError: an unknown map or activation, a number that is not a whole one of at least 1, or a scale not
            above 0.
    """

    map: Literal["last_layer", "random_features", "tangent", "polynomial"] = "last_layer"
    activation: Literal["relu", "sigmoid", "swish", "tanh", "sin", "cos", "square"] = "relu"
    width: int = 256
    hidden: int = 1024
    degree: int = 2
    scale: float | None = None
    seed: int = 0
    array = "basis"
    hint = "pass basis=, an (N, P) array of features, or embedding=, an (N, D) array from which they are made"

    def __post_init__(self) -> None:
        for name, known in (("map", BASIS_MAPS), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise ArgumentError(f"Basis({name}=...) is one of {', '.join(known)}; found {getattr(self, name)!r}")
        check_fields(self, check_whole, "width", "hidden", "degree", least=1)
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

    `label` is the label of the loss: "argmax" is the most probable class. For a regression model it is a label at
    distance one from the prediction.
    """

    label: Literal["argmax"] = "argmax"
    array = "grad_sqnorm"
    model_hint = "Use a torch model, whose gradients are known"
    hint = "pass grad_sqnorm=, an (N,) array of squared lengths of each row's loss gradient"


@dataclass(frozen=True)
class LossJvp(Signal):
    """Inner product () of the row's loss gradient with a direction: the change of the row's loss along it.

    `along` is the sum of the loss gradients of the labelled rows at the current parameters, with their true labels.
    """

    along: Literal["training gradient"] = "training gradient"
    label: Literal["argmax"] = "argmax"
    array = "grad_dot"
    model_hint = "Use a torch model, whose gradients are known"
    hint = (
        "pass grad_dot=, an (N,) array of inner products of each row's loss gradient with the summed gradient of the "
        "labelled rows"
    )


@dataclass(frozen=True)
class GradSketch(Signal):
    """A sketch (width,) of the row's loss gradient: inner products of sketches are those of gradients on average."""

    width: int = 512
    seed: int = 0
    label: Literal["argmax"] = "argmax"
    array = "grad_sketch"
    model_hint = "Use a torch model, whose gradients are known"
    hint = (
        "pass grad_sketch=, an (N, W) array of random projections of each row's loss gradient, the same projection "
        "for every row"
    )


@dataclass(frozen=True)
class Needs:
    """What a strategy reads: signals of the rows it chooses from, and of the labelled rows.

    `instead` are signals of the pool that a caller of `select` may pass in place of all signals of labelled rows. With
    `history`, a session passes the notes of earlier selections to the strategy, see `Strategy.with_history`. With
    `optional`, signals of labelled rows that are not available are no reason against the strategy.
    """

    pool: tuple[Signal, ...] = ()
    labelled: tuple[Signal, ...] = ()
    instead: tuple[Signal, ...] = ()
    history: bool = False
    optional: bool = False


def stored(signals: tuple[Signal, ...]) -> tuple[Signal, ...]:
    """The signals whose columns are stored for `signals`, each once, in order of first use."""
    return tuple(dict.fromkeys(base for signal in signals for base in signal.stored()))
