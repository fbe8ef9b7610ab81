"""The experiments of ALLY (Elenter et al. 2022): figures 1 to 6.

Small by default: handwritten digits and a small perceptron, minutes on two cores; --scale paper runs the paper's sizes
(200 first labels, batches of 200, five seeds; MNIST with a 256-256 perceptron where the data set is found, or --data).
All methods train with Adam from fresh weights until 99 % of the labelled rows are right, as the authors' programme
does; no rows are held out and no labels are taken for validation, where the paper takes free ones from the pool.
Baselines train by the same loop with a bound that no loss reaches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.bench.catalogue import found
from labelwise.bench.convnets import resnet18
from labelwise.bench.curve_numbers import area_of, numbers_of
from labelwise.bench.data import Data, load
from labelwise.bench.image_rows import image_rows
from labelwise.bench.networks import mlp
from labelwise.bench.reproductions import Reproduction, Result, Setting
from labelwise.choose.dual_head import DualHead
from labelwise.keys import Key
from labelwise.loop import rounds
from labelwise.pool import Pool
from labelwise.recipes import Recipe
from labelwise.report import Record, learning_curves, png
from labelwise.signals.forward import ModelReader
from labelwise.signals.read import read
from labelwise.signals.spec import Duals, Embedding
from labelwise.strategies import Ally, Badge, Bait, Entropy, KCenter, Random
from labelwise.theory.generation import most_informative
from labelwise.train import PrimalDual, TorchLearner

PAPER = "Elenter et al., NeurIPS 2022"
UNBOUNDED = PrimalDual(epsilon=1e9)
CLASS_BOUND, NUMBER_BOUND = 0.2, 0.1  # epsilon, in nats and in variances of the target


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


SIZES = {
    "small": Sizes(40, 20, 6, 3, (64, 64), 5e-3, 200),
    "paper": Sizes(200, 200, 10, 5, (256, 256), 5e-3, 200, copies=(1, 2, 5, 10), limit=15000),
}
Contender = tuple[str, Recipe, PrimalDual]  # a name, how it chooses, how it trains


@dataclass(frozen=True)
class Study:
    """Data, sizes and model of one run."""

    data: Data
    sizes: Sizes
    setting: Setting

    def factory(self) -> Callable[[], nn.Module]:
        """A perceptron for tables and grey images, ResNet-18 for colour at the paper's scale."""
        one = self.data.pool.inputs(self.data.pool.ids[:1])
        outputs = len(self.data.classes) if self.data.classes else 1
        if self.setting.scale == "paper" and one.ndim == 4 and one.shape[1] == 3:
            return resnet18(outputs, 3)
        return mlp(one[0].numel(), outputs, self.sizes.hidden)

    def learner(self, objective: PrimalDual) -> TorchLearner:
        """Adam from fresh weights by this objective."""
        return TorchLearner(
            self.factory(),
            lr=self.sizes.lr,
            epochs=self.sizes.epochs,
            holdout=0,
            objective=objective,
            loss="mse" if self.data.task == "regress" else "cross_entropy",
        )

    def curves(self, contenders: list[Contender], pool: Pool | None = None, test: Pool | None = None) -> list[Record]:
        """Records of all contenders, seed by seed, on the same first batch and first weights."""
        source, held = self.data.pool if pool is None else pool, self.data.test if test is None else test
        records: list[Record] = []
        for seed in range(self.setting.seed, self.setting.seed + self.sizes.seeds):
            for name, recipe, objective in contenders:
                named = replace(recipe, name=name)
                records += rounds(
                    *(source, None, self.learner(objective), named, self.sizes.batch, self.sizes.rounds),
                    start=self.sizes.start,
                    test=(held, held.labels),
                    seed=seed,
                )
                shown = ", ".join(f"{what} {value:.3f}" for what, value in records[-1].metrics.items())
                self.setting.say(f"seed {seed}, {name}: {records[-1].labels} labels, {shown}")
        return records


def prepared(setting: Setting, small: str = "digits", paper: tuple[str, ...] = ("mnist", "digits")) -> Study:
    """The data set and sizes of a setting."""
    there = [one.name for one in found() if one.present]
    own = small if setting.scale == "small" else next((name for name in paper if name in there), paper[0])
    sizes = SIZES[setting.scale]
    data = load(setting.data or own, seed=setting.seed, limit=sizes.limit)
    setting.say(f"{data.name}: {len(data.pool)} rows to choose from, {len(data.test)} to test on")
    return Study(data, sizes, setting)


def ally(epsilon: float | str = CLASS_BOUND, clusters: int | None = None, name: str = "ally") -> Contender:
    """ALLY with this bound and number of clusters."""
    bound = PrimalDual(epsilon=epsilon)  # type: ignore[arg-type]
    return name, Recipe(name, Ally(clusters=clusters), Random(), bound), bound


def plain(name: str, strategy: Any) -> Contender:
    """A baseline, trained without bounds."""
    return name, Recipe(name, strategy, Random()), UNBOUNDED


def figure1(setting: Setting, study: Study | None = None) -> Result:
    """Images that are predicted a low dual, and what they become as it is raised."""
    study = study or prepared(setting)
    pool, labels, key = study.data.pool, study.data.labels, Key(setting.seed).fold("ally")
    count = max(50, len(pool) // 10)
    ids = pool.ids[key.uniform(pool.ids).argsort()[:count]].sort().values
    at = torch.searchsorted(pool.ids, ids) if bool((pool.ids.diff() > 0).all()) else _places(pool.ids, ids)
    classes = len(study.data.classes or ())
    fit = study.learner(PrimalDual()).fit(pool, ids, labels[at], classes=classes, key=key.fold("train"))
    assert isinstance(fit.reader, ModelReader)
    head = DualHead().fit(_embeddings(fit.reader, pool, ids), fit.published[Duals()], ids, key.fold("head"))
    rest = pool.ids[~torch.isin(pool.ids, ids)]
    dual_N = head(_embeddings(fit.reader, pool, rest))
    class_N = labels[_places(pool.ids, rest)]
    # The lowest dual of each class, so that the columns differ.
    low = [rest[(class_N == c).nonzero()[:, 0]][dual_N[class_N == c].argmin()] for c in class_N.unique().tolist()]
    starts = torch.stack(low[: study.sizes.images])
    made = most_informative(fit.reader, head, pool.inputs(starts))
    picture = image_rows(made.inputs, [f"{step} steps" for step in made.steps], made.duals)
    first, last = made.duals[0].mean(), made.duals[-1].mean()
    typical = float(fit.published[Duals()].mean())
    verdict = (
        f"mean predicted dual of {len(starts)} images from {float(first):.3f} to {float(last):.3f} in {made.steps[-1]} "
        f"steps; the mean dual of labelled rows is {typical:.3f}."
    )
    numbers = {"data": study.data.name, "labelled": count, "ids": starts.tolist(), "steps": list(made.steps)}
    return Result({**numbers, "duals": made.duals.tolist(), "training": dict(fit.notes)}, picture, verdict)


def figure2(setting: Setting, study: Study | None = None) -> Result:
    """Learning curves of ALLY beside random, entropy, BADGE, core-set and BAIT."""
    study = study or prepared(setting)
    bait = Bait(widest=1280)  # 128 columns for ten classes
    contenders = [plain("random", Random()), plain("entropy", Entropy()), plain("badge", Badge())]
    contenders += [plain("kcenter", KCenter()), plain("bait", bait), ally()]
    return _result(study, study.curves(contenders), "top 2 in three of eight panels, behind BADGE and BAIT on MNIST")


def figure3(setting: Setting, study: Study | None = None) -> Result:
    """Regression on Parkinsons telemonitoring, split by rows as the paper seems to, and by person."""
    study = study or prepared(setting, "parkinsons", ("parkinsons",))
    contenders = [plain("random", Random()), plain("kcenter", KCenter()), plain("bait", Bait()), ally(NUMBER_BOUND)]
    numbers: dict[str, Any] = {"data": study.data.name, "epsilon": NUMBER_BOUND}
    verdicts, picture = [], b""
    for split in ("rows", "person"):
        pool, test = _by_rows(study) if split == "rows" else (study.data.pool, study.data.test)
        setting.say(f"split by {split}: {len(pool)} rows to choose from, {len(test)} to test on")
        records = study.curves(contenders, pool, test)
        numbers[split] = {metric: numbers_of(records, metric) for metric in ("rmse", "r2")}
        picture = picture or png(learning_curves(records, "rmse"))
        area = {name: area_of(records, name, "rmse") for name in numbers[split]["rmse"]}
        best = min(area, key=lambda name: area[name])
        verdicts.append(f"by {split}, lowest mean RMSE: {best} ({area[best]:.2f}, random {area['random']:.2f})")
    verdict = "; ".join(verdicts) + ". The paper finds ALLY ahead of random and core-set, most at the beginning."
    return Result(numbers, picture, verdict)


def figure4(setting: Setting, study: Study | None = None) -> Result:
    """ALLY with bounds from tight to so loose that no dual is above zero."""
    study = study or prepared(setting)
    contenders = [ally(epsilon, name=f"epsilon={epsilon}") for epsilon in study.sizes.epsilons]
    records = study.curves([plain("random", Random()), *contenders])
    return _result(study, records, "best at 1.05 to 1.25 times the loss without bounds; 20 nats say nothing")


def figure5(setting: Setting, study: Study | None = None) -> Result:
    """Every row of the pool several times: entropy, ALLY, and ALLY with a tenth of the clusters."""
    study = study or prepared(setting)
    few = max(1, study.sizes.batch // 10)
    numbers: dict[str, Any] = {"data": study.data.name}
    curves: dict[str, Any] = {}
    for copies in study.sizes.copies:
        setting.say(f"each row {copies} times")
        contenders = [plain("entropy", Entropy()), ally(), ally(clusters=few, name=f"ally, {few} clusters")]
        renamed = [(f"{name} x{copies}", recipe, objective) for name, recipe, objective in contenders]
        records = study.curves(renamed, _copied(study.data.pool, copies))
        numbers[f"x{copies}"] = numbers_of(records, "accuracy")
        curves |= learning_curves(records)
    first, last = study.sizes.copies[0], study.sizes.copies[-1]
    falls = {
        name: numbers[f"x{first}"][f"{name} x{first}"]["mean"][-1] - numbers[f"x{last}"][f"{name} x{last}"]["mean"][-1]
        for name in ("entropy", "ally", f"ally, {few} clusters")
    }
    lost = ", ".join(f"{name} {100 * fall:.1f}" for name, fall in falls.items())
    verdict = f"points of accuracy lost from {first} to {last} copies: {lost}. The paper: ALLY holds, the others fall."
    return Result({**numbers, "lost": falls}, png(curves), verdict)


def figure6(setting: Setting, study: Study | None = None) -> Result:
    """ALLY with one cluster up to as many as picks."""
    study = study or prepared(setting)
    b = study.sizes.batch
    counts = sorted({max(1, part) for part in (1, b // 10, b // 4, b // 2, b)})
    records = study.curves([ally(clusters=count, name=f"{count} clusters") for count in counts])
    return _result(study, records, "the more clusters the better")


def _result(study: Study, records: list[Record], paper: str) -> Result:
    """Curves, their numbers, and which name has the highest mean accuracy."""
    names = list(dict.fromkeys(record.strategy for record in records))
    area = {name: area_of(records, name, "accuracy") for name in names}
    order = sorted(area, key=lambda name: -area[name])
    verdict = (
        f"mean accuracy over the rounds: {', '.join(f'{name} {area[name]:.3f}' for name in order)}. Paper: {paper}."
    )
    sizes = study.sizes
    numbers = {"data": study.data.name, "start": sizes.start, "k": sizes.batch, "seeds": sizes.seeds}
    return Result({**numbers, "accuracy": numbers_of(records, "accuracy")}, png(learning_curves(records)), verdict)


def _embeddings(reader: ModelReader, pool: Pool, ids: Tensor) -> Tensor:
    return torch.cat([rows.tensor(Embedding()) for rows in read(reader, pool, ids, (Embedding(),))])


def _places(all_ids: Tensor, ids: Tensor) -> Tensor:
    """Where these ids are among all."""
    order = all_ids.argsort()
    return order[torch.searchsorted(all_ids[order], ids)]


def _copied(pool: Pool, copies: int) -> Pool:
    """A pool that has every row so many times."""
    inputs = pool.inputs(pool.ids)
    assert pool.labels is not None
    return Pool.of(
        inputs.repeat(copies, *[1] * (inputs.ndim - 1)), labels=pool.labels.repeat(copies), classes=pool.classes
    )


def _by_rows(study: Study) -> tuple[Pool, Pool]:
    """Pool and test rows of the same sizes, drawn without regard to whose they are."""
    parts = (study.data.pool, study.data.test)
    inputs = torch.cat([part.inputs(part.ids) for part in parts])
    labels = torch.cat([study.data.labels, study.data.test_labels])
    order = Key(study.setting.seed).fold("rows").uniform(torch.arange(len(labels))).argsort()
    whole = Pool.of(inputs, labels=labels)
    held = order[: len(parts[1])].sort().values
    return whole.subset(order[len(parts[1]) :].sort().values), whole.subset(held)


REPRODUCTIONS = (
    Reproduction("ally/figure1", PAPER, "images on the way to a high dual", figure1),
    Reproduction("ally/figure2", PAPER, "learning curves beside five baselines", figure2),
    Reproduction("ally/figure3", PAPER, "Parkinsons regression, split by rows and by person", figure3),
    Reproduction("ally/figure4", PAPER, "how tight the bound is", figure4),
    Reproduction("ally/figure5", PAPER, "each row of the pool several times", figure5),
    Reproduction("ally/figure6", PAPER, "number of clusters", figure6),
)
