"""The verification experiments of dynamicAL (Wang et al. 2022): figures 1, 2, 4 and 5.

Small by default: handwritten digits in minutes on two cores; --scale paper runs the paper's sizes on CIFAR-10. The
paper leaves open at which parameters the kernel and the outputs are taken, so figures 1 and 2 report both: the network
at its first weights, and trained on the labelled rows.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import torch
from torch import Tensor, nn

from labelwise.loop import rounds
from labelwise.recipes import Recipe
from labelwise.report.figures import png
from labelwise.reproduce.dynamical.setup import SIZES, Bench, Sizes, model_of, prepare_bench
from labelwise.reproduce.plots import bars, lines, points
from labelwise.reproduce.registry import Reproduction, Result, Setting
from labelwise.reproduce.times import timed
from labelwise.reproduce.verdicts import best, stat_of, word
from labelwise.session import Session
from labelwise.signals.model.reader import ModelReader
from labelwise.stats.curves import learning_curves
from labelwise.stats.record import Record
from labelwise.strategies import Dynamical, Random
from labelwise.theory.alignment import alignment, bound_term, kendall_tau, one_hot, squared_dynamics
from labelwise.theory.dynamics import Dynamics, Ratio, product
from labelwise.theory.mmd import mmd, mmd_squared
from labelwise.theory.ntk import empirical_ntk
from labelwise.train import TorchLearner
from labelwise.train.learner import Fit
from labelwise.train.torch.initialise import make_model

PAPER = "Wang et al., NeurIPS 2022"
GAMMAS = (0.0, 1.0, 2.0, float("inf"))
THEIRS = "gamma=2"  # the highest in the paper


def figure1(setting: Setting, sizes: Sizes | None = None) -> Result:
    """The discrepancy between S and S + Q and the bound term B, after one query by dynamicAL."""
    bench = prepare_bench(setting, sizes)
    ids = bench.some(bench.sizes.labelled, "labelled", bench.data.pool.ids)
    table: list[dict[str, Any]] = []
    for b in bench.sizes.queries:
        session = Session(
            bench.data.pool, bench.learner(bench.pooled()), "dynamical", classes=bench.classes, seed=setting.seed
        )
        session.tell(ids, bench.rows(ids)[1])
        picks = torch.from_numpy(session.ask(b).ids)
        inputs, labels = bench.rows(torch.cat([ids, picks]))
        y_nC = one_hot(labels, bench.classes)
        models = {"initial": make_model(bench.pooled(), bench.key.fold("init")), "trained": model_of(session.fit())}
        for when, model in models.items():
            kernel = empirical_ntk(model, inputs)
            row = {"query": b, "kernel": when, "mmd": mmd(kernel, len(ids)), "bound": bound_term(kernel, y_nC)}
            table.append(row | {"mmd_squared": mmd_squared(kernel, len(ids)), "alignment": alignment(kernel, y_nC)})
            setting.on_progress(f"b = {b}, {when}: MMD {row['mmd']:.3g}, B {row['bound']:.3g}")
    first = [row for row in table if row["kernel"] == "initial"]
    picture = bars(
        (f"MMD and B, {bench.data.name}, kernel at first weights", "query size b", ""),
        [str(row["query"]) for row in first],
        {"B": [row["bound"] for row in first], "MMD": [row["mmd"] or math.nan for row in first]},
        log=True,
    )
    below = {
        when: sum(row["mmd"] < row["bound"] for row in table if row["kernel"] == when)
        for when in ("initial", "trained")
    }
    verdict = (
        f"MMD is below B in {below['initial']} of {len(first)} cases with the kernel at first weights, as the paper "
        f"finds, and in {below['trained']} of {len(first)} with the kernel of the trained network."
    )
    return Result({"data": bench.data.name, "labelled": len(ids), "table": table}, picture, verdict)


def figure2(setting: Setting, sizes: Sizes | None = None) -> Result:
    """Kendall's tau between dynamics and alignment over random queries, at first weights and trained on S."""
    bench = prepare_bench(setting, sizes)
    ids = bench.some(bench.sizes.labelled, "labelled", bench.data.pool.ids)
    rest = bench.data.pool.ids[~torch.isin(bench.data.pool.ids, ids)]
    others = bench.some(bench.sizes.pool, "others", rest)
    b = bench.sizes.queries[0]
    inputs, labels = bench.rows(torch.cat([ids, others]))
    y_nC = one_hot(labels, bench.classes)
    models = {
        "initial": make_model(bench.pooled(), bench.key.fold("init")),
        "trained on S": _by_squared_error(bench, ids),
    }
    panels: dict[str, Any] = {}
    taus: dict[str, float] = {}
    for when, model in models.items():
        kernel, outputs = empirical_ntk(model, inputs), _outputs(model, inputs)
        pairs = []
        for draw in range(bench.sizes.draws):
            chosen = bench.some(b, f"query {draw}", torch.arange(len(others))) + len(ids)
            at = torch.cat([torch.arange(len(ids)), chosen])
            part = kernel[at][:, at]
            pairs.append((alignment(part, y_nC[at]), squared_dynamics(part, outputs[at], y_nC[at])))
        aligned, dynamics = ([float(pair[i]) for pair in pairs] for i in (0, 1))
        taus[when] = kendall_tau(aligned, dynamics)
        panels[f"{when}: tau = {taus[when]:.2f}"] = (aligned, dynamics)
        setting.on_progress(f"{when}: tau {taus[when]:.3f} over {len(pairs)} queries")
    picture = points(panels, (f"Dynamics against alignment, {bench.data.name}", "alignment A", "G, squared error"))
    verdict = _agreement(taus, bench.sizes.draws)
    numbers = {"data": bench.data.name, "labelled": len(ids), "query": b, "drawn_from": len(others), "tau": taus}
    return Result({**numbers, "points": dict(zip(taus, panels.values()))}, picture, verdict)


def figure4(setting: Setting, sizes: Sizes | None = None) -> Result:
    """The approximation ratio of random queries with pseudo-labels, by epochs of training."""
    bench = prepare_bench(setting, sizes)
    factory = bench.deep()
    ids = bench.some(bench.sizes.labelled, "labelled", bench.data.pool.ids)
    rest = bench.data.pool.ids[~torch.isin(bench.data.pool.ids, ids)]
    others = bench.rows(bench.some(4 * max(bench.sizes.queries), "others", rest))[0]
    table: list[dict[str, Any]] = []
    fit: Fit | None = None
    done = 0
    for epochs in bench.sizes.epochs:
        if epochs > done:
            fit = bench.trained(factory, ids, fit, epochs - done)
            done = epochs
        model = make_model(factory, bench.key.fold("train").fold("init")) if fit is None else model_of(fit)
        dynamics = Dynamics(model)
        along, guess_N = dynamics.gradient(*bench.rows(ids)), dynamics.pseudo_labels(others)
        delta_N = dynamics.changes(others, guess_N, along)
        for b in bench.sizes.queries:
            ratios = []
            for draw in range(bench.sizes.draws):
                at = bench.some(b, f"query {draw}", torch.arange(len(guess_N)))
                g_Q = dynamics.gradient(others[at], guess_N[at])
                ratios.append(Ratio(float(delta_N[at].sum()), product(g_Q, g_Q) + 2 * product(g_Q, along)))
            values = [ratio.value for ratio in ratios if ratio.change > 0]
            row: dict[str, Any] = {"epochs": epochs, "query": b, "not_positive": len(ratios) - len(values)}
            row["mean"] = statistics.fmean(values) if values else None
            row["median"] = statistics.median(values) if values else None
            table.append(row)
            setting.on_progress(f"epoch {epochs}, b = {b}: median ratio {row['median']}")
    curves = {f"b = {b}": _curve(table, b) for b in bench.sizes.queries}
    picture = lines((f"Approximation ratio, {bench.data.name}", "epochs", "median R(Q|S)"), curves, 1.0)
    last = [row["median"] for row in table if row["epochs"] == bench.sizes.epochs[-1]]
    medians = ", ".join(_format_number(value) for value in last)
    verdict = f"median ratios after {bench.sizes.epochs[-1]} epochs: {medians}; the "
    return Result(
        {"data": bench.data.name, "labelled": len(ids), "draws": bench.sizes.draws, "table": table},
        picture,
        verdict + "paper's go to 1.",
    )


def figure5(setting: Setting, sizes: Sizes | None = None) -> Result:
    """Test accuracy of the variants gamma = 0, 1, 2, inf, and random."""
    if setting.page:
        records = list(setting.saved_records)
        numbers = {name: setting.saved_numbers[name] for name in ("data", "start", "k", "rounds")}
    else:
        records, numbers = _variants(setting, prepare_bench(setting, sizes))
    curves = learning_curves(records)
    areas = {name: lines.values_ST.mean(1).tolist() for name, lines in curves.items()}
    return Result({**numbers, "mean_accuracy_by_seed": areas}, png(curves), _highest(areas), "", tuple(records))


def _variants(setting: Setting, bench: Bench) -> tuple[list[Record], dict[str, Any]]:
    """Every round of figure 5, and its sizes."""
    k = bench.sizes.queries[0] if setting.scale != "paper" else 500
    start = min(bench.sizes.labelled, k)
    recipes = [Recipe("random", Random(), Random(), restart=False)]
    recipes += [Recipe(f"gamma={gamma:g}", Dynamical(gamma=gamma), Random(), restart=False) for gamma in GAMMAS]
    records: list[Record] = []
    for seed in range(bench.sizes.seeds):
        for recipe in recipes:
            learner = bench.learner(bench.deep())
            records += rounds(
                *(bench.data.pool, None, learner, recipe, k, bench.sizes.rounds),
                start=start if setting.scale != "paper" else bench.sizes.labelled,
                test=(bench.data.test, bench.data.test.labels),
                seed=seed,
                name=f"{bench.data.name}/network/{recipe.name}/{seed}",
            )
            setting.on_progress(f"seed {seed}, {recipe.name}: {records[-1].metrics['accuracy']:.3f}")
    return records, {"data": bench.data.name, "start": records[0].labels, "k": k, "rounds": bench.sizes.rounds}


def _highest(areas: dict[str, list[float]]) -> str:
    """Which gamma is highest, and whether the paper's is above all others, by seed."""
    stats = {name: stat_of(100 * value for value in values) for name, values in areas.items()}
    listed = ", ".join(f"{name} {stats[name]}" for name in sorted(stats, key=lambda name: -stats[name].mean))
    holds, tested = best("all", (THEIRS,)).ask({"all": stats})
    return (
        f"Mean accuracy over the rounds in per cent, its deviation over seeds: {listed}. The paper finds gamma = 2 "
        f"highest: **{word(holds)}** ({tested})."
    )


def _agreement(taus: dict[str, float], draws: int) -> str:
    """Whether the orders agree by more than chance: twice the deviation that tau has between unrelated orders."""
    chance = 2 * math.sqrt(2 * (2 * draws + 5) / (9 * draws * (draws - 1)))
    lines = []
    for when, tau in taus.items():
        word = (
            "holds" if tau > chance else "does not hold: the orders are opposed" if tau < -chance else "cannot be said"
        )
        lines.append(f"- {when}: tau = {tau:.2f}: **{word}**")
    return (
        "The paper finds a strong agreement between the two. Whether there is any, beyond the "
        f"{chance:.2f} that {draws} unrelated pairs reach by chance:\n\n" + "\n".join(lines)
    )


def _by_squared_error(bench: Bench, ids: Tensor) -> nn.Module:
    """The pooled CNN trained on these rows by the squared error, the loss of this theory, in whole batches."""

    def train(model: nn.Module, inputs: Any, labels: Tensor, weights: Tensor | None) -> None:
        optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
        y_nC = one_hot(labels, bench.classes).to(inputs)
        for _ in range(bench.sizes.steps):
            optimiser.zero_grad()
            (model(inputs) - y_nC).square().sum(1).mean().backward()
            optimiser.step()

    learner = TorchLearner(bench.pooled(), fit=train)
    labels, key = bench.rows(ids)[1], bench.key.fold("train")
    return model_of(learner.fit(bench.data.pool, ids, labels, classes=bench.classes, key=key))


def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    reader = ModelReader(model)
    return torch.cat([reader.logits(part) for part in inputs.split(256)])


def _curve(table: list[dict[str, Any]], b: int) -> tuple[list[float], list[float]]:
    rows = [row for row in table if row["query"] == b and row["median"] is not None]
    return [row["epochs"] for row in rows], [row["median"] for row in rows]


def _format_number(value: float | None) -> str:
    return "none above 0" if value is None else f"{value:.2f}"


__all__ = ["REPRODUCTIONS", "SIZES", "Sizes", "figure1", "figure2", "figure4", "figure5"]

_DIFFERENCES = (
    "The paper leaves open at which parameters kernel and outputs are taken: figures 1 and 2 show both the first "
    "weights and the trained ones.",
    "The kernel of a network with several outputs is its mean over the logits. CIFAR-10 is whole where it is found, "
    "else 12,000 rows of it; smaller scales take the handwritten digits.",
    "ResNet-18 has all its shortcuts; with --paper-compat none around blocks that keep their shape, as in the authors' "
    "programme.",
)
_CURVES = "it shows the curves of tables 2 to 9, each in the picture of its table: labelwise reproduce dynamical/table2"


def _entry(number: int, what: str, run: Any, times: tuple[float, float, float]) -> Reproduction:
    name = f"dynamical/figure{number}"
    return Reproduction(name, PAPER, what, run, ("cifar10",), timed(name, *times), differences=_DIFFERENCES)


REPRODUCTIONS = (
    _entry(1, "discrepancy MMD next to the bound term B, after one query", figure1, (2, 60, 300)),
    _entry(2, "Kendall's tau between training dynamics and alignment", figure2, (2, 60, 300)),
    Reproduction("dynamical/figure3", PAPER, "accuracy by round, three settings", None, why=_CURVES),
    _entry(4, "approximation ratio of random queries by epochs", figure4, (2, 60, 300)),
    _entry(5, "test accuracy of gamma = 0, 1, 2 and inf", figure5, (3, 120, 1500)),
    Reproduction("dynamical/figure6", PAPER, "accuracy by round, the other settings", None, why=_CURVES),
)
