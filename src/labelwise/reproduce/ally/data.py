"""The data of ALLY's experiments: how many rows and labels, splits by row and by person, copies, and made-up rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from labelwise.bench.data.catalogue import dataset_entry, require_files
from labelwise.bench.data.load import Data, csv_numbers
from labelwise.pool import Pool
from labelwise.rng import Key

MADE = "made"
VALID = 0.1  # share of the rows to choose from, or of the persons, that regression is validated on
WHOLE_POOLS = ("cifar10", "cifar10-full", "stl10")  # the authors take the first 15,000 rows of the others
COLOUR = (*WHOLE_POOLS, "svhn")
STL_TEST = 2000  # rows: the paper splits the 13,000 labelled rows of STL-10 in its own way
COLOUR_RATE = 1e-3  # the learning rate of ResNet-18


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
    "smoke": Sizes(20, 10, 1, 2, (16,), 1e-2, 8, epsilons=(0.2, 20.0), copies=(1, 2), images=3, limit=200),
    "small": Sizes(40, 20, 6, 8, (64, 64), 5e-3, 200),  # eight seeds: the fewest that tell five strategies from random
    "paper": Sizes(200, 200, 10, 5, (256, 256), 5e-3, 200, copies=(1, 2, 5, 10), limit=15000),
}
NUMBERS = {"smoke": SIZES["smoke"], "small": replace(SIZES["small"], start=100, batch=50), "paper": SIZES["paper"]}


@dataclass(frozen=True)
class Split:
    """Rows to choose from, to test on and, in regression, to stop training by."""

    name: str
    pool: Pool
    test: Pool
    valid: Pool | None = None


def sizes_of(task: str, scale: str, name: str) -> Sizes:
    """The sizes of a scale for a data set."""
    sizes = (NUMBERS if task == "regress" else SIZES)[scale]
    if scale == "paper" and name in COLOUR:
        sizes = replace(sizes, lr=COLOUR_RATE)
    return replace(sizes, limit=None) if scale == "paper" and name in WHOLE_POOLS else sizes


def made() -> Data:
    """Numbers to predict that need no file: they show that a study runs, and nothing else."""
    rows_ND = torch.randn(200, 8, generator=Key(0).fold(MADE).generator())
    labels_N = rows_ND[:, 0] + rows_ND[:, 1].square()
    parts = [Pool.of(rows_ND[part], labels=labels_N[part]) for part in (slice(0, 160), slice(160, 200))]
    return Data(MADE, "table", "regress", "rmse", parts[0], parts[1], None, None, "none")


def as_the_paper(data: Data, seed: int, scale: str) -> Data:
    """The data set with the paper's split, which differs from the official one for STL-10."""
    if data.name != "stl10" or scale != "paper":
        return data
    inputs = torch.cat([part.inputs(part.ids) for part in (data.pool, data.test)])
    whole = Pool.of(inputs, labels=torch.cat([data.labels, data.test_labels]), classes=data.classes)
    order = whole.ids[Key(seed).fold("stl10").uniform(whole.ids).argsort()]
    test = min(STL_TEST, len(order) // 4)
    return replace(data, pool=whole.subset(order[test:].sort().values), test=whole.subset(order[:test].sort().values))


def split_ways(data: Data, seed: int) -> tuple[Split, Split]:
    """A data set of persons split by rows, as the paper seems to, and by person: nobody is in two parts."""
    key = Key(seed)
    inputs = torch.cat([part.inputs(part.ids) for part in (data.pool, data.test)])
    labels = torch.cat([data.labels, data.test_labels])
    whole = Pool.of(inputs, labels=labels)
    rows = whole.ids[key.fold("rows").uniform(whole.ids).argsort()]
    test, rest = rows[: len(data.test)], rows[len(data.test) :]
    valid = round(VALID * len(rest))
    by_rows = Split("rows", *(whole.subset(part.sort().values) for part in (rest[valid:], test, rest[:valid])))
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
    columns = csv_numbers(require_files(dataset_entry(data.name))[0])
    return columns["subject#"].astype(np.int64)[data.pool.ids.numpy()]


def copied(pool: Pool, copies: int) -> Pool:
    """A pool that has every row several times."""
    inputs = pool.inputs(pool.ids)
    assert pool.labels is not None
    return Pool.of(
        inputs.repeat(copies, *[1] * (inputs.ndim - 1)), labels=pool.labels.repeat(copies), classes=pool.classes
    )
