"""What the experiments of ALLY (Elenter et al. 2022) share: sizes, data, networks, contenders, and runs of them.

Small by default: handwritten digits, or Parkinsons by the hundred, and a small perceptron, minutes on one core;
--scale paper runs the paper's sizes: 200 first labels, batches of 200, five seeds; a 256-256 perceptron, or a ResNet-18
with an embedding of 128 for colour images; on a GPU where there is one.
All methods train with Adam from fresh weights. Classes: until 99 % of the labelled rows are right, as the authors'
programme does, with no rows held out, where the paper takes free validation labels from the pool. Numbers: until the
loss of a validation set stops falling; it is the same for all methods, apart from the pool, and free for all alike.
With --paper-compat, classes stop by validation rows of the pool too (15 % of the last label count), patience 2.
Baselines train by the same loop with a bound that no loss reaches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.bench.data.catalogue import dataset_entry
from labelwise.bench.data.features import on_device
from labelwise.bench.data.load import Data, load
from labelwise.bench.models.networks import mlp, resnet18
from labelwise.bench.models.paper_training import PLAIN
from labelwise.bench.suite.job import ROWS, repeatable
from labelwise.errors import ArgumentError, StoreError
from labelwise.loop import rounds
from labelwise.pool import Pool
from labelwise.recipes import Recipe
from labelwise.reproduce.ally.data import (
    MADE,
    NUMBERS,
    Sizes,
    Split,
    as_the_paper,
    copied,
    made,
    sizes_of,
    split_ways,
)
from labelwise.reproduce.curves import CurveStore, in_processes
from labelwise.reproduce.registry import Setting, device_of, trains_together
from labelwise.reproduce.tables import present
from labelwise.rng import Key
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, Signal
from labelwise.stats.record import Record
from labelwise.strategies import Ally, Random
from labelwise.train import PrimalDual, TorchLearner
from labelwise.train.torch.together import run_together

RIGHT = 0.99  # of the labelled rows: training ends there, for every method
UNBOUNDED = PrimalDual(epsilon=1e9, stop=RIGHT)
BATCH = 64  # rows of a gradient step
CLASS_BOUND, NUMBER_BOUND = 0.2, 0.1  # epsilon, in nats and in variances of the target
AT_ONCE = 5  # seeds that are run together: what is stopped loses the curves that are not complete
COMPAT_VALID, COMPAT_PATIENCE = 0.15, 2
Contender = tuple[str, Recipe, PrimalDual]  # a name, how it chooses, how it trains


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
        if self.setting.scale != "paper":
            return mlp(one[0].numel(), outputs, self.sizes.hidden)
        colour = one.ndim == 4 and one.shape[1] == 3
        make = resnet18(outputs, 3, width=16) if colour else mlp(one[0].numel(), outputs, self.sizes.hidden)
        device = torch.device(device_of(self.setting))
        return lambda: make().to(device)

    def learner(self, objective: PrimalDual, valid: Pool | None = None) -> TorchLearner:
        """Adam from fresh weights by this objective."""
        number = self.data.task == "regress"
        stop: dict[str, Any] = {}
        if valid is not None:
            patience = COMPAT_PATIENCE if self.setting.paper_compat else self.sizes.patience
            stop = {"valid": (valid, valid.labels), "keep": "loss" if number else "accuracy", "patience": patience}
        how: dict[str, Any] = {**PLAIN, "lr": self.sizes.lr, "epochs": self.sizes.epochs, "batch": BATCH, **stop}
        return TorchLearner(self.factory(), objective=objective, loss="mse" if number else "cross_entropy", **how)

    def curves(self, contenders: list[Contender], split: Split | None = None) -> list[Record]:
        """Records of all contenders, seed by seed, on the same first batch and first weights.

        Curves stored in the folder of the setting are not run again; the others run in its processes.
        """
        part = split or self.whole
        seeds = range(self.setting.seed, self.setting.seed + self.sizes.seeds)
        tasks = [(contender, seed) for seed in seeds for contender in contenders]
        left = [task for task in tasks if not self.saved_curve(*task, part)]
        if left and trains_together(self.setting):
            for first in range(seeds.start, seeds.stop, AT_ONCE):
                some = [task for task in left if first <= task[1] < first + AT_ONCE]
                self._run_together(some, part, min(AT_ONCE, len(seeds)))
            left = []
        if self.setting.processes > 1 and self.setting.work is not None and len(left) > 1:
            quiet = replace(self.setting, on_progress=_ignore)
            jobs = [(quiet, self.data.name, self.sizes, part.name, *task) for task in left]
            for text in in_processes(_curve, jobs, min(self.setting.processes, len(left))):
                self.setting.on_progress(text)
        records: list[Record] = []
        for task in tasks:
            found = self.saved_curve(*task, part) or self.one(*task, part)
            if task in left and self.setting.processes < 2:
                self.setting.on_progress(_progress_line(found))
            records += found
        return records

    def _run_together(self, tasks: list[tuple[Contender, int]], part: Split, slots: int) -> None:
        """Run these curves round by round, all networks trained at once."""
        curves = [functools.partial(self.one, *task, part) for task in tasks]
        with repeatable(device_of(self.setting)):
            for outcome in run_together(curves, slots):
                if outcome is not None and outcome.error is not None:
                    raise outcome.error
                if outcome is not None:
                    self.setting.on_progress(_progress_line(outcome.value))

    def saved_curve(self, contender: Contender, seed: int, part: Split) -> list[Record]:
        """The stored curve of a contender; none if it was not run."""
        if not self.setting.page:
            return self._folder(part).read(contender[0], seed, repr(contender))
        name = self._run(contender[0], seed, part)
        if not (found := [record for record in self.setting.saved_records if record.run == name]):
            raise StoreError(f"--page: the records next to the page have no run {name}; run it without --page")
        return found

    def _run(self, name: str, seed: int, part: Split) -> str:
        """The name of a run in its records."""
        return f"{self.data.name}{part.name and ' by ' + part.name}/network/{name}/{seed}"

    def _folder(self, part: Split) -> CurveStore:
        """The store of curves; its file names depend on all settings but the number of seeds."""
        sizes = replace(self.sizes, seeds=0)
        what = (self.data.name, len(part.pool), part.name, sizes, self.setting.seed, self.setting.paper_compat)
        return CurveStore(self.setting.work, repr(what))

    def one(self, contender: Contender, seed: int, part: Split) -> list[Record]:
        """Run the curve of one contender and store it."""
        name, recipe, objective = contender
        folder = self._folder(part)
        part = self.with_valid(part)
        records = list(
            rounds(
                *(part.pool, None, self.learner(objective, part.valid), replace(recipe, name=name)),
                *(self.sizes.batch, self.sizes.rounds),
                start=self.sizes.start,
                test=(part.test, part.test.labels),
                seed=seed,
                batch=ROWS[device_of(self.setting)],
                name=self._run(name, seed, part),
            )
        )
        folder.write(name, seed, repr(contender), records)
        return records

    def with_valid(self, part: Split) -> Split:
        """The split with validation rows from the pool, where the setting does as the paper."""
        if not self.setting.paper_compat or part.valid is not None:
            return part
        ids, sizes = part.pool.ids, self.sizes
        count = round(COMPAT_VALID * (sizes.start + sizes.batch * sizes.rounds))
        out = ids[Key(self.setting.seed).fold("valid").uniform(ids).argsort()[:count]].sort().values
        return replace(part, pool=part.pool.subset(ids[~torch.isin(ids, out)]), valid=part.pool.subset(out))


def prepare_study(setting: Setting, small: str = "digits", paper: str = "mnist", times: int = 1) -> Study:
    """The data set and sizes of a setting, with batches `times` as large; a page is made without data."""
    if setting.page:
        return _saved_study(setting)
    own = small if setting.scale != "paper" else present(paper) or paper
    name = setting.data or own
    if setting.scale == "smoke" and name == "parkinsons" and present(name) is None:
        return Study(made(), NUMBERS["smoke"], setting)
    sizes = sizes_of(dataset_entry(name).task, setting.scale, name)
    sizes = replace(sizes, batch=times * sizes.batch, seeds=setting.seeds or sizes.seeds)
    data = as_the_paper(load(name, seed=setting.seed, limit=sizes.limit), setting.seed, setting.scale)
    labels = sizes.start + sizes.rounds * sizes.batch
    if labels > len(data.pool):
        raise ArgumentError(
            f"{name} has {len(data.pool)} rows to choose from, fewer than the {labels} labels of the {setting.scale} "
            "scale; take a smaller --scale or another --data"
        )
    setting.on_progress(f"{data.name}: {len(data.pool)} rows to choose from, {len(data.test)} to test on")
    return Study(on_device(data, device_of(setting)), sizes, setting)


def _saved_study(setting: Setting) -> Study:
    """The study of the records next to a page: with their sizes, and made-up rows, which are not read."""
    name, records = setting.saved_numbers["data"], setting.saved_records
    labels = sorted({record.labels for record in records})
    sizes = sizes_of("regress" if name == MADE else dataset_entry(name).task, setting.scale, name)
    seeds = setting.seeds or len({record.seed for record in records})
    sizes = replace(sizes, start=labels[0], batch=labels[1] - labels[0], seeds=seeds)
    return Study(replace(made(), name=name), sizes, setting)


def splits(study: Study) -> tuple[Split, Split]:
    """Both ways to split a data set of persons; their names alone where a page is made."""
    if study.setting.page:
        return Split("rows", study.data.pool, study.data.test), Split("person", study.data.pool, study.data.test)
    return split_ways(study.data, study.setting.seed)


def _ignore(text: str) -> None:
    pass


def _progress_line(records: list[Record]) -> str:
    last = records[-1]
    metrics = ", ".join(f"{what} {value:.3f}" for what, value in last.metrics.items())
    return f"seed {last.seed}, {last.strategy}: {last.labels} labels, {metrics}"


def _curve(job: tuple[Setting, str, Sizes, str, Contender, int]) -> str:
    """Run and store one curve in a worker process; return a line of text on it."""
    setting, data, sizes, split, contender, seed = job
    study = _loaded(setting, data, sizes)
    return _progress_line(study.one(contender, seed, _split_named(study, split)))


@functools.lru_cache(maxsize=2)
def _loaded(setting: Setting, data: str, sizes: Sizes) -> Study:
    if data == MADE:
        return Study(made(), sizes, setting)
    found = as_the_paper(load(data, seed=setting.seed, limit=sizes.limit), setting.seed, setting.scale)
    return Study(on_device(found, device_of(setting)), sizes, setting)


def _split_named(study: Study, name: str) -> Split:
    if name.startswith("copies "):
        return Split(name, copied(study.data.pool, int(name.split()[1])), study.data.test)
    return next((one for one in splits(study) if one.name == name), study.whole) if name else study.whole


def ally(epsilon: float | str = CLASS_BOUND, clusters: int | None = None, name: str = "ally") -> Contender:
    """ALLY with this bound and number of clusters."""
    bound = PrimalDual(epsilon=epsilon, stop=RIGHT)  # type: ignore[arg-type]
    return name, Recipe(name, Ally(clusters=clusters), Random(), bound), bound


def plain(name: str, strategy: Any) -> Contender:
    """A baseline, trained without bounds."""
    return name, Recipe(name, strategy, Random()), UNBOUNDED


def signal_of(reader: ModelReader, pool: Pool, ids: Tensor, signal: Signal | None = None) -> Tensor:
    """A signal of these rows; their embeddings if none is named."""
    wanted = signal or Embedding()
    return torch.cat([rows.tensor(wanted).cpu() for rows in read(reader, pool, ids, (wanted,))])


def places(all_ids: Tensor, ids: Tensor) -> Tensor:
    """The positions of these ids among all."""
    order = all_ids.argsort()
    return order[torch.searchsorted(all_ids[order], ids)]
