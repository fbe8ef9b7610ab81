"""At which beta does SABAL's IHT converge? `LABELWISE_DATA=... python benchmarks/sabal_beta.py`.

Models are trained on random rows of data sets of suite/core.yaml, at that suite's sizes and with its network. From the
rows that are left, sabal-iht picks a batch of the suite's size with each beta; again from the same numbers rounded to
float32, and from numbers changed at random by one part in ten million. The numbers behind the page are in a JSON file
next to it; `--page` makes the page from them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

import labelwise as lw
from labelwise.bench.data.features import prepare_data, spec_to_json
from labelwise.bench.models.registry import learner_for
from labelwise.bench.suite import suite as suites
from labelwise.bench.suite.curve import first_batch
from labelwise.bench.suite.suite import DataSpec, Suite, read_suite
from labelwise.io.files import write_text
from labelwise.io.text import many
from labelwise.labels import make_oracle
from labelwise.session import Session
from labelwise.signals.read import read
from labelwise.signals.spec import Embedding, LabelProbs, LogProbs, Probs, Signal
from labelwise.stats.environment import environment
from labelwise.strategies import Sabal
from labelwise.strategies.sabal.reference import loss_vectors

SUITE = Path(suites.__file__).parent.parent / "suites" / "core.yaml"
DATA = ("digits", "trec6", "ag-news", "covertype")
LABELS, SEEDS = (100, 400), (0,)
SETTINGS = ((1e-6, 200), *((beta, 1000) for beta in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)))
ALPHA = {"gradient": 1e-8, "bayesian": 1.0}  # the paper's, of IHT
CHANGE = 1e-7
DRAWS = 50
SIGNALS: dict[str, tuple[Signal, ...]] = {
    "gradient": (Probs(), LabelProbs(), Embedding()),
    "bayesian": (LogProbs(DRAWS),),
}
Arrays = dict[str, Any]
Row = dict[str, Any]


def problems(suite: Suite, spec: DataSpec, form: str, folder: Path) -> Iterator[tuple[str, Arrays]]:
    """The arrays of the rows that are left, for every seed and number of labels."""
    data = prepare_data(spec_to_json(spec), folder, "cpu")
    strategy = Sabal("iht", form=form, draws=DRAWS)  # type: ignore[arg-type]
    for seed in SEEDS:
        for labels in LABELS:
            learner = learner_for(suite.models[0], data, strategy, "cpu")
            session = Session(data.pool, learner, strategy, classes=data.classes, task=data.task, seed=seed)
            ids = first_batch(data, labels, seed)
            session.tell(ids, make_oracle(None, data.pool)(ids))
            free = torch.from_numpy(session.free)
            parts = list(read(session.fit().reader, data.pool, free, SIGNALS[form]))
            found = {
                signal.array: torch.cat([part.tensor(signal) for part in parts]).double().numpy()
                for signal in SIGNALS[form]
            }
            if form == "bayesian" or (found["probs"] != found["label_probs"]).any():  # else every g is zero
                yield f"{spec.label}, seed {seed}, {labels} labels", found


def measured(arrays: Arrays, k: int, form: str, beta: float, most: int) -> Row:
    """What one beta does on one problem, in at most so many iterations."""

    def picks(arrays: Arrays, solver: str = "iht") -> lw.Selection:
        strategy = Sabal(solver, ALPHA[form], beta, iterations=most, form=form)  # type: ignore[arg-type]
        return lw.select(strategy, k, **arrays)

    began = time.process_time()
    found = picks(arrays)
    seconds = time.process_time() - began
    rng = np.random.default_rng(0)
    single = picks({name: array.astype(np.float32) for name, array in arrays.items()})
    changed = picks(_changed(arrays, rng))
    greedy = picks(arrays, "greedy")
    g_NM = _vectors(arrays, form)
    v_M = g_NM.mean(0)
    at_zero = float(v_M @ v_M) + beta * len(g_NM)  # the objective without rows
    return {
        "form": form,
        "beta": beta,
        "most": most,
        "iterations": found.notes["iterations"],
        "limit": found.notes["stopped"] == "iterations",
        "seconds": _short(seconds),
        "float32": _same(found, single),
        "changed": _same(found, changed),
        "bias": _short(found.notes["bias"] / float(v_M @ v_M)),
        "unit": _left(g_NM, found.ids),
        "random": _left(g_NM, rng.choice(len(g_NM), k, replace=False)),
        "unit_greedy": _left(g_NM, greedy.ids),
        "fall": _short((at_zero - found.notes["objective"]) / (at_zero - greedy.notes["objective"])),
    }


def _short(value: float) -> float:
    return float(f"{value:.6g}")


def _same(one: lw.Selection, other: lw.Selection) -> float:
    return len(np.intersect1d(one.ids, other.ids)) / len(one.ids)


def _left(g_NM: np.ndarray, rows: np.ndarray) -> float:
    """The bias with weights of one, as a share of what it is without rows."""
    v_M = g_NM.mean(0)
    left_M = g_NM[rows].mean(0) - v_M
    return _short(float(left_M @ left_M) / float(v_M @ v_M))


def _changed(arrays: Arrays, rng: np.random.Generator) -> Arrays:
    """Every number changed by one part in ten million; probabilities still sum to one."""
    found = {name: array * (1 + CHANGE * rng.uniform(-1, 1, array.shape)) for name, array in arrays.items()}
    for name in ("probs", "label_probs"):
        if name in found:
            found[name] /= found[name].sum(1, keepdims=True)
    if "log_probs" in found:
        found["log_probs"] = np.minimum(found["log_probs"], 0)
    return found


def _vectors(arrays: Arrays, form: str) -> np.ndarray:
    """g of every row (N, M)."""
    if form == "bayesian":
        return loss_vectors(arrays["log_probs"])[0]
    left_NC = arrays["probs"] - arrays["label_probs"]
    return (left_NC[:, :, None] * arrays["embedding"][:, None]).reshape(len(left_NC), -1)


def measure() -> dict[str, Any]:
    """All problems with all betas, each data set in a process of its own."""
    with ProcessPoolExecutor(len(DATA)) as processes:
        rows = [row for found in processes.map(rows_of, DATA) for row in found]
    return {"environment": environment("cpu"), "rows": rows}


def rows_of(label: str) -> list[Row]:
    """The rows of a data set."""
    suite, rows = read_suite(SUITE), []
    (spec,) = (one for one in suite.datasets if one.label == label)
    with tempfile.TemporaryDirectory() as folder:
        for form in ALPHA:
            for name, arrays in problems(suite, spec, form, Path(folder)):
                about = {"problem": name, "rows": len(next(iter(arrays.values()))), "k": spec.k}
                rows += [{**about, **measured(arrays, spec.k, form, *setting)} for setting in SETTINGS]
                print(name, form, flush=True)
    return rows


def text_of(stored: dict[str, Any]) -> str:
    """JSON with a line for each row."""
    rows = ",\n".join(json.dumps(row) for row in stored["rows"])
    return f'{{"environment": {json.dumps(stored["environment"])},\n"rows": [\n{rows}\n]}}\n'


def page(stored: dict[str, Any], command: str) -> str:
    """The page, from the stored numbers."""
    rows: list[Row] = stored["rows"]
    names = sorted({row["problem"].split(",")[0] for row in rows})
    sizes = f"{min(row['rows'] for row in rows)} to {max(row['rows'] for row in rows)}"
    shown = [
        "# SABAL: the beta of IHT",
        "",
        "`sabal-iht` with models of [the core suite](../../src/labelwise/bench/suites/core.yaml), trained on "
        f"{' or '.join(map(str, LABELS))} random rows:",
        f"{', '.join(names)}; {many(len(SEEDS), 'seed')}, {sizes} rows to choose from, batches of "
        f"{' or '.join(map(str, sorted({row['k'] for row in rows})))}.",
        "Models whose temperature is 1 are left out of the gradient form: there is no bias term. Written by",
        "",
        "```",
        f"LABELWISE_DATA=... {command}",
        "```",
    ]
    for form in ALPHA:
        some = [row for row in rows if row["form"] == form]
        count = len({row["problem"] for row in some})
        shown += ["", f"## {form.capitalize()} form, alpha = {ALPHA[form]:g}, {count} models", "", *_table(some)]
    shown += [
        "",
        "- *at the limit*: selections that made so many iterations without coming to rest.",
        "- *float32*, *changed*: mean share of picks that stay where the numbers are rounded to float32, or changed",
        "  at random by one part in ten million.",
        "- *bias, weighted*: median of |v - Phi w|^2 as a share of |v|^2 (no rows); *bias, weights 1*: the",
        "  same with every weight 1, as learners train by default; then of greedy at this beta and of random rows.",
        "- *objective*: its fall from the value without rows, as a share of what greedy reaches with the same",
        "  alpha and beta, median; 1 is as low as greedy.",
        "- *ms*: median processor time of a selection.",
        "",
        "Every number: [sabal-beta.json](sabal-beta.json).",
        "",
        ", ".join(f"{name} {value}" for name, value in stored["environment"].items()) + ".",
    ]  # fmt: skip
    return "\n".join(shown) + "\n"


def _table(rows: list[Row]) -> list[str]:
    head = (
        "beta", "limit", "at the limit", "iterations, median", "most", "float32", "changed", "bias, weighted",
        "bias, weights 1", "of greedy", "of random rows", "objective", "ms",
    )  # fmt: skip
    out = ["| " + " | ".join(head) + " |", "|---:" * len(head) + "|"]
    for beta, most in SETTINGS:
        found = {
            key: np.array([row[key] for row in rows if (row["beta"], row["most"]) == (beta, most)], dtype=float)
            for key in rows[0]
            if key not in ("problem", "form", "most")
        }
        cells = [
            f"{beta:g}",
            str(most),
            f"{found['limit'].mean():.0%}",
            f"{np.median(found['iterations']):.0f}",
            f"{found['iterations'].max():.0f}",
            *(f"{found[key].mean():.1%}" for key in ("float32", "changed")),
            *(f"{np.median(found[key]):.3g}" for key in ("bias", "unit", "unit_greedy", "random")),
            f"{np.median(found['fall']):.2f}",
            f"{1000 * np.median(found['seconds']):.0f}",
        ]
        out.append("| " + " | ".join(cells) + " |")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/results/sabal-beta.md"), help="the page")
    parser.add_argument("--page", action="store_true", help="make the page from the stored numbers; measure nothing")
    args = parser.parse_args()
    numbers = args.out.with_suffix(".json")
    if not args.page:
        write_text(numbers, text_of(measure()))
    write_text(args.out, page(json.loads(numbers.read_text()), f"python benchmarks/sabal_beta.py --out {args.out}"))


if __name__ == "__main__":
    main()
