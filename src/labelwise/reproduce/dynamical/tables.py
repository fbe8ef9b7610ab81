"""The tables of dynamicAL (Wang et al. 2022): accuracy by query round, and one budget in more or fewer rounds."""

from __future__ import annotations

from dataclasses import replace

from labelwise.bench.models.paper_training import PLAIN
from labelwise.bench.models.registry import ModelSpec
from labelwise.bench.suite.suite import StrategySpec
from labelwise.reproduce.tables import PaperTable, Sheet

PAPER = "Wang et al., NeurIPS 2022"
INTERVAL = 100  # epochs that a round takes at least, and twice as many at most
_METHODS = {
    "Random": "random",
    "Marg": "margin",
    "Entropy": "entropy",
    "Coreset": "kcenter",
    "Conf": "confidence",
    "ALBL": "albl",
    "BADGE": "badge",
    "dynamicAL": "dynamical",
}
_DIFFERENCES = (
    "The accuracy of the last epoch is reported; the authors' programme reports the best test accuracy seen in the "
    "round (--paper-compat).",
    f"A round ends when 97 % of the training rows were right in more than 10 epochs, after {INTERVAL} epochs at least "
    f"and {2 * INTERVAL} at most. The authors' rule also looks at the test accuracy, and its intervals fall from 140.",
    "Gradients of single rows are exact, also for the parameters of batch norm.",
    "Inputs have the mean 0 and deviation 1 of the rows that are there in each channel.",
    "Networks go on from the weights of the round before with a fresh Adam, for all methods, as in the paper.",
)
_CALTECH = "Images are of 64 x 64 places, without crops and jitter, and the first set is 500 rows at random."
_COMPAT = (
    "The best test accuracy of the round is reported, looked at after every fifth epoch: a leak, as in the paper.",
    "ResNet-18 has no shortcut around blocks that keep their shape, as in the authors' programme.",
)


def _model(kind: str) -> ModelSpec:
    how = {"epochs": 2 * INTERVAL, "batch": 128, "lr": 1e-3, "restart": False}
    return ModelSpec(kind, kind, {**PLAIN, **how, "until": (0.97, 11, INTERVAL)})


def _methods(badge: bool) -> tuple[StrategySpec, ...]:
    return tuple(StrategySpec(label, name) for label, name in _METHODS.items() if badge or label != "BADGE")


def compatible(sheet: Sheet) -> Sheet:
    """The sheet as the authors' programme runs it."""
    more = {"best_on_test": 5} | ({"identity": False} if sheet.model.kind == "resnet18" else {})
    return replace(sheet, model=replace(sheet.model, parameters={**sheet.model.parameters, **more}))


def _by_round(number: int, what: str, data: str, kind: str, k: int, rounds: int) -> PaperTable:
    sheet = Sheet(what, data, _model(kind), _methods(rounds == 9), 500, k, rounds, 5)
    title = f"accuracy by round, {what}, batches of {k}"
    more = (_CALTECH,) if data == "caltech101" else ()
    return PaperTable(
        f"dynamical/table{number}",
        PAPER,
        title,
        "round",
        (sheet,),
        (*_DIFFERENCES, *more),
        _COMPAT,
        compatible,
        own=("dynamicAL",),
    )


_COLUMNS = (
    ("CIFAR10+CNN", "cifar10", "tutorial_cnn"),
    ("CIFAR10+ResNet", "cifar10", "resnet18"),
    ("SVHN+VGG", "svhn", "vgg11"),
    ("Caltech101+ResNet", "caltech101", "resnet18"),
)
TABLE1 = PaperTable(
    "dynamical/table1",
    PAPER,
    "dynamicAL with a budget of 1000 in 10, 4, 2 and 1 rounds",
    "last",
    tuple(
        Sheet(
            f"R={rounds}, b={k}",
            data,
            _model(kind),
            (StrategySpec("dynamicAL", "dynamical"),),
            *(500, k, rounds, 5),
            column=column,
        )
        for column, data, kind in _COLUMNS
        for rounds, k in ((10, 100), (4, 250), (2, 500), (1, 1000))
    ),
    _DIFFERENCES,
    _COMPAT,
    compatible,
    own=("dynamicAL",),
)

TABLES = (
    TABLE1,
    _by_round(2, "CIFAR10+CNN", "cifar10", "tutorial_cnn", 250, 4),
    _by_round(3, "CIFAR10+CNN", "cifar10", "tutorial_cnn", 500, 4),
    _by_round(4, "CIFAR10+ResNet", "cifar10", "resnet18", 500, 9),
    _by_round(5, "CIFAR10+ResNet", "cifar10", "resnet18", 1000, 9),
    _by_round(6, "SVHN+VGG", "svhn", "vgg11", 500, 9),
    _by_round(7, "SVHN+VGG", "svhn", "vgg11", 1000, 9),
    _by_round(8, "Caltech101+ResNet", "caltech101", "resnet18", 500, 4),
    _by_round(9, "Caltech101+ResNet", "caltech101", "resnet18", 1000, 4),
)
