"""Table 3 of SABAL (Shen et al. 2022): how long the first query takes, the forward pass over the pool included.

A network is trained on the first labels; then each method is asked for the first batch, once to warm up and several
times for the clock, on CUDA by events. The paper's seconds are of a V100 and of BADGE's explicit gradient embeddings,
so an explicit BADGE, which keeps N x C D numbers, is timed too. What is not an experiment is listed here too.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labelwise.bench.data.features import prepare_data, spec_to_json
from labelwise.bench.data.load import Data
from labelwise.bench.models.registry import learner_for
from labelwise.bench.suite.curve import first_batch
from labelwise.bench.suite.suite import StrategySpec
from labelwise.errors import ArgumentError
from labelwise.labels import make_oracle
from labelwise.reproduce.plots import bars
from labelwise.reproduce.registry import Reproduction, Result, Setting, device_of
from labelwise.reproduce.run_tables import paper_rows
from labelwise.reproduce.sabal.tables import OWN, PAPER, SAME, first_query, vgg16
from labelwise.reproduce.tables import PaperTable, Sheet, pool_rows, suite_of
from labelwise.reproduce.times import WHERE, chosen, of_run, seconds_of
from labelwise.reproduce.verdicts import Rows, Stat, claims_text, shorter
from labelwise.rng import Key
from labelwise.session import Session
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, Probs
from labelwise.strategies import Random

REPEATS = {"smoke": 1, "small": 3, "paper": 3}
BATCH = 1024  # rows of a forward pass
EXPLICIT = "BADGE, explicit"
TABLE = PaperTable(
    "sabal/table3",
    PAPER,
    "seconds of the first query, VGG-16",
    "seconds",
    (
        Sheet("SVHN (b=1000)", "svhn", vgg16(150, 0.01), first_query("SVHN"), 1000, 1000, 1, 1, True),
        Sheet("CIFAR10 (b=3000)", "cifar10", vgg16(100, 0.001), first_query("CIFAR10"), 3000, 3000, 1, 1, True),
    ),
    (
        "The deviation is that of repeats on one trained network; the paper's is of five seeds. The first call, which "
        "sets libraries up, is not in the mean.",
        "VGG-16 has batch norm and one dense layer with an embedding of 512; the paper does not say. All is float32.",
    ),
    own=OWN,
    same=((EXPLICIT, "BADGE"), *SAME),
)  # fmt: skip


def table3(setting: Setting) -> Result:
    """Seconds of each method on each data set, with the paper's."""
    if setting.page or setting.data is not None:
        raise ArgumentError("sabal/table3 takes neither --page nor --data: it is a measurement of minutes")
    sheets, missing = chosen(TABLE, setting)
    device = device_of(setting)
    ours: dict[str, dict[str, Stat]] = {}
    first: dict[str, dict[str, float]] = {}
    about: dict[str, Any] = {}
    for sheet in sheets:
        suite = suite_of(sheet, TABLE.name, setting.seed, device, 1)
        data = prepare_data(spec_to_json(suite.datasets[0]), None, device)
        k = sheet.k
        about[sheet.row] = {"data": sheet.data, "rows": len(data.pool), "k": k, "train_rows": pool_rows(sheet)}
        setting.on_progress(f"{sheet.row}: {len(data.pool)} rows to choose from, training on {sheet.start}")
        start = first_batch(data, sheet.start, setting.seed)
        state = None
        for spec in (*sheet.strategies, None):
            session = _session(sheet, data, spec, setting.seed, device)
            if state is None:
                session.tell(start, make_oracle(None, data.pool)(start))
                session.fit()
                state = session.state()
            session.restore(state)  # one network for all: what differs is the choice
            label = EXPLICIT if spec is None else spec.label
            ask = _explicit(session, k, setting.seed, device) if spec is None else _asking(session, k)
            times = [_timed(ask, device) for _ in range(1 + REPEATS[setting.scale])]
            first.setdefault(label, {})[sheet.row] = times[0]
            spread = statistics.stdev(times[1:]) if len(times) > 2 else None
            ours.setdefault(label, {})[sheet.row] = Stat(statistics.fmean(times[1:]), spread, len(times) - 1)
            setting.on_progress(
                f"{sheet.row}, {label}: {ours[label][sheet.row].mean:.4f} s (first call {times[0]:.2f} s)"
            )
    return _result(setting, sheets, missing, ours, first, about, device)


def _session(sheet: Sheet, data: Data, spec: StrategySpec | None, seed: int, device: str) -> Session:
    strategy = Random() if spec is None else spec.strategy()
    learner = learner_for(sheet.model, data, strategy, device)
    recipe: Any = strategy if spec is None else spec.recipe()
    return Session(data.pool, learner, recipe, classes=data.classes, seed=seed, batch=BATCH)


def _asking(session: Session, k: int) -> Callable[[], Any]:
    return lambda: session.ask(k)


def _timed(run: Callable[[], Any], device: str) -> float:
    """Seconds of a call; on CUDA between two events."""
    if device == "cpu":
        began = time.perf_counter()
        run()
        return time.perf_counter() - began
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    run()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3


def _explicit(session: Session, k: int, seed: int, device: str) -> Callable[[], Tensor]:
    """BADGE as its first programme does it: all gradient embeddings, then k-means++ with a pass over them for each."""

    def run() -> Tensor:
        ids = torch.from_numpy(session.free)
        parts = read(session.fit().reader, session.pool, ids, (Probs(), Embedding()), BATCH, device=None)
        rows = [(part.tensor(Probs()), part.tensor(Embedding())) for part in parts]
        p_NC, h_ND = (torch.cat(column).to(device) for column in zip(*rows))
        guess_NC = torch.nn.functional.one_hot(p_NC.argmax(1), p_NC.shape[1])
        g_NE = ((p_NC - guess_NC)[:, :, None] * h_ND[:, None]).flatten(1)
        chance = Key(seed).fold("explicit").generator()
        picked = [int(g_NE.square().sum(1).argmax())]
        near_N = torch.full((len(g_NE),), torch.inf, device=g_NE.device)
        for _ in range(k - 1):
            near_N = torch.minimum(near_N, (g_NE - g_NE[picked[-1]]).square().sum(1))
            total_N = near_N.cumsum(0)
            at = float(torch.rand((), generator=chance)) * float(total_N[-1])
            picked.append(min(int(torch.searchsorted(total_N, at)), len(g_NE) - 1))
        return ids[torch.tensor(picked)]

    return run


def _result(
    setting: Setting,
    sheets: list[Sheet],
    missing: list[str],
    ours: dict[str, dict[str, Stat]],
    first: dict[str, dict[str, float]],
    about: dict[str, Any],
    device: str,
) -> Result:
    paper = paper_rows(TABLE.name)
    claims = [shorter(sheet.row, TABLE.own, EXPLICIT) for sheet in sheets]
    claims += [shorter(sheet.row, TABLE.own, "BADGE") for sheet in sheets]
    their = {**paper, **{here: paper[theirs] for here, theirs in TABLE.same}}  # the paper's BADGE is the explicit one
    verdict = claims_text(claims, ours, their)
    named = {name: torch.cuda.get_device_name() for name in ("device",) if device == "cuda"}
    numbers = {"ours": _plain(ours), "papers": _plain(paper), "first_call": first, "sheets": about, **named}
    numbers["missing"] = missing
    groups = {sheet.row: [ours[name][sheet.row].mean for name in ours] for sheet in sheets}
    picture = bars(("Seconds of the first query", "", "seconds"), list(ours), groups, log=True)
    rows = [
        f"{name}: {one['data']}, {one['rows']} rows to choose from, {one['k']} picks." for name, one in about.items()
    ]
    differences = (*(line for sheet in sheets for line in sheet.changes), *missing, *TABLE.differences)
    times = _markdown(ours, their, [sheet.row for sheet in sheets], setting.scale == "paper")
    table = "\n\n".join([times, " ".join(rows)])
    return Result(numbers, picture, verdict, table, (), tuple(dict.fromkeys(differences)))


def _markdown(ours: Rows, paper: Rows, columns: list[str], ratio: bool) -> str:
    """Seconds here and in the paper, and at the paper's scale how many times as long the paper's are."""
    head = ["method", *(part for name in columns for part in (f"{name}, here", "paper, V100", "paper / here"))]
    out = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    for name, found in ours.items():
        cells = [name]
        for column in columns:
            their = paper.get(name, {}).get(column)
            spread = f" ± {found[column].std:.2g}" if found[column].std is not None else ""
            cells += [f"{found[column].mean:.4g}{spread} s", "" if their is None else f"{their} s"]
            cells += ["" if their is None or not ratio else f"{their.mean / found[column].mean:.0f}"]
        out.append("| " + " | ".join(cells) + " |")
    return "\n".join(out)


def _plain(rows: Rows) -> dict[str, Any]:
    return {row: {name: stat.numbers for name, stat in found.items()} for row, found in rows.items()}


def _seconds(setting: Setting) -> tuple[float, str]:
    """Training one network for each data set, and the queries: as measured, or else a guess."""
    sheets, device = chosen(TABLE, setting)[0], device_of(setting)
    known = [of_run(TABLE.name, setting.scale, device, sheet.name) for sheet in sheets]
    times = [one for one in known if one is not None]
    if len(times) == len(sheets):
        return sum(times), f"on {WHERE[device]}, as measured"
    whole, where = seconds_of(TABLE, setting)
    queries = {"smoke": 1, "small": 60, "paper": 60}[setting.scale]
    return whole / len(TABLE.sheets[0].strategies) + queries, where.replace("as measured", "a guess")


_CURVES = "its curves are those of {0}, and in its picture: labelwise reproduce {0}"
_VALUES = "it lists hyper-parameters, which are in {0}"
REPRODUCTIONS = (
    Reproduction("sabal/table3", PAPER, TABLE.what, table3, TABLE.data, _seconds, tables=True),
    Reproduction("sabal/figure1", PAPER, "people in the loop", None, why="it is an illustration, not an experiment"),
    Reproduction("sabal/figure2", PAPER, "curves, Bayesian", None, why=_CURVES.format("sabal/table1")),
    Reproduction("sabal/figure3", PAPER, "curves, general", None, why=_CURVES.format("sabal/table2")),
    Reproduction("sabal/table4", PAPER, "Bayesian settings", None, why=_VALUES.format("sabal/table1")),
    Reproduction("sabal/table5", PAPER, "general settings", None, why=_VALUES.format("sabal/table2")),
)
