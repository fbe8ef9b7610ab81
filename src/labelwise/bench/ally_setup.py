"""What the experiments of ALLY (Elenter et al. 2022) share: sizes, data, networks, contenders, and runs of them.

Small by default: handwritten digits, or Parkinsons by the hundred, and a small perceptron, minutes on one core;
--scale paper runs the paper's sizes: 200 first labels, batches of 200, five seeds; a 256-256 perceptron, or a ResNet-18
with an embedding of 128 for colour images; on a GPU where there is one.
All methods train with Adam from fresh weights. Classes: until 99 % of the labelled rows are right, as the authors'
programme does, with no rows held out, where the paper takes free validation labels from the pool. Numbers: until the
loss of a validation set stops falling; it is the same for all methods, apart from the pool, and free for all alike.
Baselines train by the same loop with a bound that no loss reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from labelwise.bench.catalogue import found, known, locate
from labelwise.bench.columns import read_csv_columns
from labelwise.bench.convnets import resnet18
from labelwise.bench.data import Data, load
from labelwise.bench.networks import mlp
from labelwise.bench.reproductions import Setting
from labelwise.keys import Key
from labelwise.loop import rounds
from labelwise.pool import Pool
from labelwise.recipes import Recipe
from labelwise.report import Record
from labelwise.signals.forward import ModelReader
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, Signal
from labelwise.strategies import Ally, Random
from labelwise.train import PrimalDual, TorchLearner

UNBOUNDED = PrimalDual(epsilon=1e9)
CLASS_BOUND, NUMBER_BOUND = 0.2, 0.1  # epsilon, in nats and in variances of the target
VALID = 0.1  # share of the rows to choose from, or of the persons, that regression is validated on


@dataclass(frozen=True)
class Sizes:
    """How large the experiments are."""

    start: int
    batch: int
    rounds: int
    seeds: int
    hidden: tuple[int, ...]
    lr: float
    epochs: int
    epsilons: tuple[float | str, ...] = (0.05, 0.2, "auto", 2.0, 20.0)
    copies: tuple[int, ...] = (1, 2, 5)
    images: int = 8
    limit: int | None = None  # rows of the pool, at the most
    patience: int = 10  # epochs without a lower validation loss, in regression


SIZES = {
    "small": Sizes(40, 20, 6, 6, (64, 64), 5e-3, 200),
    "paper": Sizes(200, 200, 10, 5, (256, 256), 5e-3, 200, copies=(1, 2, 5, 10), limit=15000),
}
NUMBERS = {"small": replace(SIZES["small"], start=100, batch=50), "paper": SIZES["paper"]}
Contender = tuple[str, Recipe, PrimalDual]  # a name, how it chooses, how it trains


@dataclass(frozen=True)
class Split:
    """Rows to choose from, to test on and, in regression, to stop training by."""

    name: str
    pool: Pool
    test: Pool
    valid: Pool | None = None


@dataclass(frozen=True)
class Study:
    """Data, sizes and model of one run."""

    data: Data
    sizes: Sizes
    setting: Setting

    @property
    def whole(self) -> Split:
        """The data set as it was loaded."""
        return Split("", self.data.pool, self.data.test)

    def factory(self) -> Callable[[], nn.Module]:
        """A perceptron; at the paper's scale ResNet-18 for colour images, and on a GPU where there is one."""
        one = self.data.pool.inputs(self.data.pool.ids[:1])
        outputs = len(self.data.classes) if self.data.classes else 1
        if self.setting.scale == "small":
            return mlp(one[0].numel(), outputs, self.sizes.hidden)
        colour = one.ndim == 4 and one.shape[1] == 3
        make = resnet18(outputs, 3, width=16) if colour else mlp(one[0].numel(), outputs, self.sizes.hidden)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return lambda: make().to(device)

    def learner(self, objective: PrimalDual, valid: Pool | None = None) -> TorchLearner:
        """Adam from fresh weights by this objective."""
        number = self.data.task == "regress"
        return TorchLearner(
            self.factory(),
            lr=self.sizes.lr,
            epochs=self.sizes.epochs,
            holdout=0,
            valid=None if valid is None else (valid, valid.labels),
            patience=20 if valid is None else self.sizes.patience,
            objective=objective,
            loss="mse" if number else "cross_entropy",
        )

    def curves(self, contenders: list[Contender], split: Split | None = None) -> list[Record]:
        """Records of all contenders, seed by seed, on the same first batch and first weights."""
        part = split or self.whole
        records: list[Record] = []
        for seed in range(self.setting.seed, self.setting.seed + self.sizes.seeds):
            for name, recipe, objective in contenders:
                records += rounds(
                    *(part.pool, None, self.learner(objective, part.valid), replace(recipe, name=name)),
                    *(self.sizes.batch, self.sizes.rounds),
                    start=self.sizes.start,
                    test=(part.test, part.test.labels),
                    seed=seed,
                    name=f"{self.data.name}{part.name and ' by ' + part.name}/network/{name}/{seed}",
                )
                shown = ", ".join(f"{what} {value:.3f}" for what, value in records[-1].metrics.items())
                self.setting.say(f"seed {seed}, {name}: {records[-1].labels} labels, {shown}")
        return records


def prepared(setting: Setting, small: str = "digits", paper: tuple[str, ...] = ("mnist", "svhn", "digits")) -> Study:
    """The data set and sizes of a setting."""
    there = [one.name for one in found() if one.present]
    own = small if setting.scale == "small" else next((name for name in paper if name in there), paper[0])
    name = setting.data or own
    sizes = (NUMBERS if known(name).task == "regress" else SIZES)[setting.scale]
    data = load(name, seed=setting.seed, limit=sizes.limit)
    setting.say(f"{data.name}: {len(data.pool)} rows to choose from, {len(data.test)} to test on")
    return Study(data, sizes, setting)


def ally(epsilon: float | str = CLASS_BOUND, clusters: int | None = None, name: str = "ally") -> Contender:
    """ALLY with this bound and number of clusters."""
    bound = PrimalDual(epsilon=epsilon)  # type: ignore[arg-type]
    return name, Recipe(name, Ally(clusters=clusters), Random(), bound), bound


def plain(name: str, strategy: Any) -> Contender:
    """A baseline, trained without bounds."""
    return name, Recipe(name, strategy, Random()), UNBOUNDED


def splits(study: Study) -> tuple[Split, Split]:
    """A data set of persons split by rows, as the paper seems to, and by person: nobody is in two parts."""
    data, key = study.data, Key(study.setting.seed)
    inputs = torch.cat([part.inputs(part.ids) for part in (data.pool, data.test)])
    labels = torch.cat([data.labels, data.test_labels])
    whole = Pool.of(inputs, labels=labels)
    rows = whole.ids[key.fold("rows").uniform(whole.ids).argsort()]
    test, rest = rows[: len(data.test)], rows[len(data.test) :]
    held = round(VALID * len(rest))
    by_rows = Split("rows", *(whole.subset(part.sort().values) for part in (rest[held:], test, rest[:held])))
    person_N = torch.from_numpy(_persons(data))
    persons = person_N.unique()
    out = persons[key.fold("persons").uniform(persons).argsort()[: max(1, round(VALID * len(persons)))]]
    inside = torch.isin(person_N, out)
    own = data.pool.ids
    return by_rows, Split("person", data.pool.subset(own[~inside]), data.test, data.pool.subset(own[inside]))


def _persons(data: Data) -> np.ndarray:
    """Whose each row of the pool is; each row its own person's where that is not known."""
    if data.name != "parkinsons":
        return np.arange(len(data.pool))
    columns = read_csv_columns(locate(known(data.name))[0])
    return columns["subject#"].astype(np.int64)[data.pool.ids.numpy()]


def copied(pool: Pool, copies: int) -> Pool:
    """A pool that has every row so many times."""
    inputs = pool.inputs(pool.ids)
    assert pool.labels is not None
    return Pool.of(
        inputs.repeat(copies, *[1] * (inputs.ndim - 1)), labels=pool.labels.repeat(copies), classes=pool.classes
    )


def signal_of(reader: ModelReader, pool: Pool, ids: Tensor, signal: Signal | None = None) -> Tensor:
    """A signal of these rows; their embeddings if none is named."""
    asked = signal or Embedding()
    return torch.cat([rows.tensor(asked).cpu() for rows in read(reader, pool, ids, (asked,))])


def places(all_ids: Tensor, ids: Tensor) -> Tensor:
    """Where these ids are among all."""
    order = all_ids.argsort()
    return order[torch.searchsorted(all_ids[order], ids)]
