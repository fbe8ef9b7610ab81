"""The experiments of ALLY (Elenter et al. 2022): figures 1 to 7. setup.py has sizes, data and training."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from labelwise.report.figures import png
from labelwise.report.tables import markdown
from labelwise.reproduce.ally import claims
from labelwise.reproduce.ally.data import Split, copied
from labelwise.reproduce.ally.setup import (
    NUMBER_BOUND,
    RIGHT,
    Study,
    ally,
    places,
    plain,
    prepare_study,
    signal_of,
    splits,
)
from labelwise.reproduce.curves import against_random, numbers_of, saved_numbers
from labelwise.reproduce.plots import curve_panels, image_rows
from labelwise.reproduce.registry import Reproduction, Result, Setting
from labelwise.reproduce.times import timed
from labelwise.reproduce.verdicts import Stat, stat_of
from labelwise.rng import Key
from labelwise.signals.model.reader import ModelReader
from labelwise.signals.spec import Duals, Probs
from labelwise.stats.curves import learning_curves
from labelwise.stats.record import Record
from labelwise.stats.summary import no_learning_warning, summarise
from labelwise.strategies import Badge, Bait, Entropy, KCenter, Random
from labelwise.strategies.ally.dual_head import DualHead
from labelwise.theory.generation import most_informative
from labelwise.train import PrimalDual

PAPER = "Elenter et al., NeurIPS 2022"
LEAST = 200  # labels of a batch
PANELS = tuple((data, batch) for data in ("mnist", "stl10", "svhn", "cifar10") for batch in (LEAST, 1000))


def figure1(setting: Setting, study: Study | None = None) -> Result:
    """Images that are predicted a low dual, and what they become as it is raised."""
    study = study or prepare_study(setting)
    pool, labels, key = study.data.pool, study.data.labels, Key(setting.seed).fold("ally")
    count = max(50, len(pool) // 10)
    ids = pool.ids[key.uniform(pool.ids).argsort()[:count]].sort().values
    classes = len(study.data.classes or ())
    fit = study.learner(PrimalDual(stop=RIGHT)).fit(
        pool, ids, labels[places(pool.ids, ids)], classes=classes, key=key.fold("train")
    )
    assert isinstance(fit.reader, ModelReader)
    head = DualHead().fit(signal_of(fit.reader, pool, ids), fit.published[Duals()], ids, key.fold("head"))
    rest = pool.ids[~torch.isin(pool.ids, ids)]
    dual_N = head(signal_of(fit.reader, pool, rest))
    class_N = labels[places(pool.ids, rest)]
    alike = _alike(dual_N, signal_of(fit.reader, pool, rest, Probs()), class_N)
    # The lowest dual of each class, so that the columns differ.
    low = [rest[(class_N == c).nonzero()[:, 0]][dual_N[class_N == c].argmin()] for c in class_N.unique().tolist()]
    starts = torch.stack(low[: study.sizes.images])
    made = most_informative(fit.reader, head, pool.inputs(starts))
    picture = image_rows(made.inputs, [f"{step} steps" for step in made.steps], made.duals, "its predicted dual")
    first, last = made.duals[0].mean(), made.duals[-1].mean()
    typical = float(fit.published[Duals()].mean())
    verdict = (
        f"Mean predicted dual of {len(starts)} images from {float(first):.3f} to {float(last):.3f} in {made.steps[-1]} "
        f"steps; the mean dual of labelled rows is {typical:.3f}. Rank correlation with the true loss of the "
        f"{len(rest)} rows without a label: predicted dual {alike['dual']:.2f}, entropy of the prediction "
        f"{alike['entropy']:.2f}."
    )
    numbers = {"data": study.data.name, "labelled": count, "ids": starts.tolist(), "steps": list(made.steps)}
    numbers |= {"rank_correlation_with_loss": alike, "head": dict(head.notes)}
    return Result({**numbers, "duals": made.duals.tolist(), "training": dict(fit.notes)}, picture, verdict)


def figure2(setting: Setting, study: Study | None = None, data: str = "mnist", batch: int = LEAST) -> Result:
    """A panel of figure 2: curves of ALLY, random, entropy, BADGE, core-set and BAIT."""
    study = study or prepare_study(setting, paper=data, times=batch // LEAST)
    records = _run_with_baselines(study)
    judged = claims.baselines(data, batch, study.data.name, records)
    k = study.sizes.batch
    panel = f"the panel {data}, b = {batch}" + (f"; here b = {k}" if k != batch else "")
    paper = "top 2 on STL-10 (b = 200), SVHN (b = 1000) and CIFAR-10 (b = 200), behind BADGE and BAIT on MNIST"
    return _result(study, records, paper, judged, f"Of figure 2 this is {panel}.")


def _run_with_baselines(study: Study) -> list[Record]:
    bait = Bait(widest=1280)  # 128 columns for ten classes
    contenders = [plain("random", Random()), plain("entropy", Entropy()), plain("badge", Badge())]
    return study.curves([*contenders, plain("kcenter", KCenter()), plain("bait", bait), ally()])


def figure3(setting: Setting, study: Study | None = None) -> Result:
    """Regression on Parkinsons telemonitoring, split by rows as the paper seems to, and by person."""
    study = study or prepare_study(setting, "parkinsons", "parkinsons")
    contenders = [plain("random", Random()), plain("kcenter", KCenter()), plain("bait", Bait()), ally(NUMBER_BOUND)]
    numbers: dict[str, Any] = {"data": study.data.name, "epsilon": NUMBER_BOUND}
    verdicts, records, tables, panels = [], [], [], {}
    for split in splits(study):
        if not setting.page:
            setting.on_progress(
                f"split by {split.name}: {len(split.pool)} rows to choose from, {len(split.test)} to test on"
            )
        ran = study.curves(contenders, split)
        numbers[split.name] = {metric: numbers_of(ran, metric) for metric in ("rmse", "r2")}
        numbers[split.name]["against_random"] = saved_numbers(ran, "rmse")
        panels[f"split by {split.name}"] = learning_curves(ran, "rmse")
        ends = {name: curve["mean"][-1] for name, curve in numbers[split.name]["r2"].items()}
        text = f"Split by {split.name}: {against_random(ran, 'rmse')} {_r2(ran, ends)}"
        verdicts.append(text if no_learning_warning(ran) else f"{text}\n\n{claims.regression(split.name, ran)}")
        tables += [f"Split by {split.name}, {kind}:\n\n{markdown(summarise(ran, kind))}" for kind in ("rmse", "r2")]
        records += ran
    verdict = "\n\n".join(verdicts) + "\n\nThe paper finds ALLY ahead of random and core-set, most at the beginning."
    return Result(numbers, curve_panels(panels), verdict, "\n".join(tables), tuple(records))


def figure4(setting: Setting, study: Study | None = None) -> Result:
    """ALLY with bounds from tight to so loose that no dual is above zero."""
    study = study or prepare_study(setting)
    contenders = [ally(epsilon, name=f"epsilon={epsilon}") for epsilon in study.sizes.epsilons]
    records = study.curves([plain("random", Random()), *contenders])
    judged = claims.tightness(study.data.name, records)
    paper = "1.05 to 1.25 times the loss without bounds works well; 20 nats say nothing"
    return _result(study, records, paper, judged)


def figure5(setting: Setting, study: Study | None = None) -> Result:
    """Every row of the pool several times: entropy, ALLY, and ALLY with a tenth of the clusters."""
    study = study or prepare_study(setting)
    few = max(1, study.sizes.batch // 10)
    low = f"ally in {_clusters(few)}"
    names = {"entropy": plain("entropy", Entropy()), "ally": ally(), low: ally(clusters=few)}
    numbers: dict[str, Any] = {"data": study.data.name}
    panels: dict[str, dict[str, Any]] = {name: {} for name in names}
    records: list[Record] = []
    for copies in study.sizes.copies:
        setting.on_progress(f"each row {copies} times")
        contenders = [(name, recipe, objective) for name, (_, recipe, objective) in names.items()]
        ran = study.curves(contenders, Split(f"copies {copies}", copied(study.data.pool, copies), study.data.test))
        numbers[f"x{copies}"] = numbers_of(ran, "accuracy")
        for name, lines in learning_curves(ran).items():
            panels[name][f"{copies} {'copy' if copies == 1 else 'copies'}"] = lines
        records += ran
    first, last = (numbers[f"x{copies}"] for copies in (study.sizes.copies[0], study.sizes.copies[-1]))
    falls = {name: first[name]["mean"][-1] - last[name]["mean"][-1] for name in names}
    lost = ", ".join(f"{100 * fall:.1f} by {name}" for name, fall in falls.items())
    verdict = (
        f"Points of accuracy lost at the last label count from {study.sizes.copies[0]} to {study.sizes.copies[-1]} "
        f"copies: {lost}. The paper: ALLY holds, the others fall.\n\n{_copies(records, study.sizes.copies)}"
    )
    table = _falls(numbers, names, study.sizes.copies)
    return Result({**numbers, "lost": falls}, curve_panels(panels, share=True), verdict, table, tuple(records))


def figure6(setting: Setting, study: Study | None = None) -> Result:
    """ALLY with one cluster up to as many as picks."""
    study = study or prepare_study(setting)
    b = study.sizes.batch
    counts = sorted({max(1, part) for part in (1, b // 10, b // 4, b // 2, b)})
    contenders = [ally(clusters=count, name=_clusters(count)) for count in counts]
    records = study.curves([plain("random", Random()), *contenders])
    judged = claims.clusters(study.data.name, [_clusters(count) for count in counts], records)
    return _result(study, records, "the more clusters the better", judged)


def figure7(setting: Setting, study: Study | None = None) -> Result:
    """Learning curves of two hundred classes, batches of 1000; the digits stand in for them at the smaller scales."""
    study = study or prepare_study(setting, paper="tiny-imagenet", times=5 if setting.scale == "paper" else 1)
    records = _run_with_baselines(study)
    return _result(study, records, "it shows the curves and says nothing of them", "")


def _result(study: Study, records: list[Record], paper: str, judged: str, first: str = "") -> Result:
    """Curves, their numbers, the order of the names by mean accuracy, what they save against random, and what the paper
    says about them with what comes of it.
    """
    numbers = numbers_of(records, "accuracy")
    area = {name: sum(curve["mean"]) / len(curve["mean"]) for name, curve in numbers.items()}
    order = sorted(area, key=lambda name: -area[name])
    verdict = (
        f"{first} Mean accuracy over the rounds: {', '.join(f'{name} {area[name]:.3f}' for name in order)}. "
        f"{against_random(records, 'accuracy')} {claims.labels_to_97(numbers)} The paper: {paper}.\n\n{judged}"
    ).strip()
    sizes = study.sizes
    about = {"data": study.data.name, "start": sizes.start, "k": sizes.batch, "seeds": sizes.seeds}
    about |= {"accuracy": numbers, "against_random": saved_numbers(records, "accuracy")}
    picture = png(learning_curves(records), spread="se")
    return Result(about, picture, verdict, markdown(summarise(records)), tuple(records))


def _clusters(count: int) -> str:
    return f"{count} cluster{'s' if count > 1 else ''}"


def _r2(ran: list[Record], ends: dict[str, float]) -> str:
    text = f"R² at the last count: {', '.join(f'{name} {value:.2f}' for name, value in ends.items())}."
    return no_learning_warning(ran) or text


def _copies(records: list[Record], copies: tuple[int, ...]) -> str:
    """The paper's claim that copies cost accuracy at the last label count."""
    last = max(record.labels for record in records)
    ends: dict[str, dict[str, Stat]] = {}
    for name in dict.fromkeys(record.strategy for record in records):
        ends[name] = {}
        for count in (copies[0], copies[-1]):
            found = {
                one.seed: 100 * one.metrics["accuracy"]
                for one in records
                if (one.strategy, one.labels) == (name, last) and one.run.split("/")[0].endswith(f"copies {count}")
            }
            ends[name][f"copies: {count}"] = stat_of(found.values(), list(found))
    return claims.redundancy(ends, f"copies: {copies[0]}", f"copies: {copies[-1]}")


def _falls(numbers: dict[str, Any], names: Any, copies: tuple[int, ...]) -> str:
    """Accuracy at the last label count by name and copies, in Markdown."""
    head = ["accuracy % at the last count", *(f"copies: {count}" for count in copies)]
    lines = [head, ["---"] + ["---:"] * len(copies)]
    for name in names:
        ends = [numbers[f"x{count}"][name] for count in copies]
        lines.append([name, *(f"{100 * end['mean'][-1]:.1f} ± {100 * end['sd'][-1]:.1f}" for end in ends)])
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\n± is the standard deviation over seeds.\n"


def _alike(dual_N: Tensor, p_NC: Tensor, class_N: Tensor) -> dict[str, float]:
    """How far the order of two scores is that of the true losses (Spearman)."""
    p_NC = p_NC.double().clamp_min(1e-12)
    loss_N = -p_NC.gather(1, class_N[:, None])[:, 0].log()
    scores = {"dual": dual_N.double(), "entropy": -(p_NC * p_NC.log()).sum(1)}
    ranks = {name: score.argsort().argsort().double() for name, score in {**scores, "loss": loss_N}.items()}
    return {name: float(torch.corrcoef(torch.stack([ranks[name], ranks["loss"]]))[0, 1]) for name in scores}


_TRAINING = (
    "All methods train by Adam from fresh weights in the same loop; the baselines have a bound that no loss reaches.",
    "Classes are trained until 99 % of the labelled rows are right, with no rows held out. The paper stops by "
    "validation rows from the pool that nobody pays for, patience 2: so does --paper-compat, with rows drawn once.",
    "Curves are not smoothed; the paper's are.",
)
_ROWS = (
    "MNIST with 15,000 rows to choose from, drawn at random; --data stl10 runs STL-10, which the paper has in figures "
    "4 and 5. Smaller scales take the handwritten digits.",
)
_SPLIT = (
    "The paper does not say how it splits: both ways are shown. Training stops by a validation set apart from the "
    "pool, free for all methods alike, patience 10 (2 with --paper-compat). The paper has no BAIT here.",
)
_CLASSES = (*_TRAINING, *_ROWS)


def _entry(number: int, what: str, run: Any, data: str, times: tuple[float, float, float], more: Any) -> Reproduction:
    name = f"ally/figure{number}"
    return Reproduction(name, PAPER, what, run, (data,), timed(name, *times), differences=more)


def _panel(data: str, batch: int) -> Reproduction:
    """A panel of figure 2; the first has the name of the figure."""
    name = "ally/figure2" if (data, batch) == PANELS[0] else f"ally/figure2-{data}-{batch}"
    rows = {"cifar10": "all rows", "stl10": "11,000 of the 13,000 labelled rows, and 2,000 to test on,"}
    there = rows.get(data, "15,000 rows drawn at random")
    others = ", ".join(f"{one}, b = {k}" for one, k in PANELS if (one, k) != (data, batch))
    differences = (
        f"One of the eight panels of figure 2: {data}, b = {batch}. Commands of their own run {others} "
        "(`labelwise reproduce --list`).",
        f"There are {there} to choose from. Smaller scales take the handwritten digits.",
    )
    run = functools.partial(figure2, data=data, batch=batch)
    what = f"learning curves next to five baselines: {data}, b = {batch}"
    seconds = timed(name, 3, 80 * batch // LEAST, 1800 if data == "mnist" else 14400)
    return Reproduction(name, PAPER, what, run, (data,), seconds, differences=(*_TRAINING, *differences))


REPRODUCTIONS = (
    _entry(1, "images on the way to a high dual", figure1, "mnist", (2, 4, 30), _CLASSES),
    *(_panel(*panel) for panel in PANELS),
    _entry(
        *(3, "Parkinsons regression, split by rows and by person", figure3, "parkinsons"),
        *((3, 120, 1500), (_TRAINING[0], *_SPLIT, _TRAINING[2])),
    ),
    _entry(4, "how tight the bound is", figure4, "mnist", (2, 55, 1800), _CLASSES),
    _entry(5, "each row of the pool several times", figure5, "mnist", (3, 100, 3600), _CLASSES),
    _entry(6, "number of clusters", figure6, "mnist", (3, 75, 1800), _CLASSES),
    _entry(7, "learning curves on Tiny ImageNet, batches of 1000", figure7, "tiny-imagenet", (3, 80, 14400), _TRAINING),
)
