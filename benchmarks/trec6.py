"""Why margin saves nothing on trec6: `LABELWISE_DATA=... python benchmarks/trec6.py --out docs/results/trec6.md`.

The suites test trec6 on its official test questions, which are of another year than the pool's. Here each model is also
tested on training questions that are not in the pool. Model and rounds are those of the core suite.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import labelwise as lw
from labelwise.bench import suites
from labelwise.bench.data.features import prepare_data, spec_to_json
from labelwise.bench.models.registry import learner_for
from labelwise.bench.suite.suite import read_suite
from labelwise.io.files import write_text
from labelwise.stats.paired import paired_test

STRATEGIES = ("random", "margin", "badge", "typiclust")
POOL, TESTS = 4000, ("1,452 training questions", "500 official questions")


def curves(strategy: str, seed: int, suite: Any, data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy (rounds, 2) in per cent on both test sets, and how many labels there are of each class."""
    rows, labels = data.pool.inputs(data.pool.ids), np.asarray(data.pool.labels)
    order = np.random.default_rng(seed).permutation(len(rows))
    pool, rest = order[:POOL], order[POOL:]
    tests = ((rows[rest], labels[rest]), (data.test, np.asarray(data.test_labels)))
    learner = learner_for(suite.models[0], data, None, "cpu")
    recipe = lw.recipes.get(strategy if strategy == "random" else f"random+{strategy}")
    al = lw.Session(lw.Pool.of(rows[pool]), learner, recipe, classes=6, seed=seed)
    found = []
    for number in range(suite.datasets[1].rounds + 1):
        picks = al.ask(suite.datasets[1].k).ids
        al.tell(picks, labels[pool][picks])
        fit = al.fit()
        found.append([100 * float((np.asarray(fit.predict(x)) == y).mean()) for x, y in tests])
        assert len(al.ledger.labelled) == suite.datasets[1].k * (number + 1)
    return np.array(found), np.bincount(labels[pool][al.ledger.labelled.numpy()], minlength=6)


def page(seeds: int) -> str:
    """The page."""
    suite = read_suite(suites.find_suite("core"))
    assert suite.datasets[1].name == "trec6"
    with tempfile.TemporaryDirectory() as cache:
        data = prepare_data(spec_to_json(replace(suite.datasets[1], limit=None)), Path(cache), "cpu")
    torch.set_num_threads(1)
    runs = {name: [curves(name, seed, suite, data) for seed in range(seeds)] for name in STRATEGIES}
    value = {name: np.array([each[0] for each in found]) for name, found in runs.items()}
    lines = [
        "# trec6: where margin saves no labels",
        "",
        "The test set of trec6 is of another year than its training questions, of which the pool is made. Here the",
        f"model of the core suite is trained on {POOL:,} training questions, {seeds} seeds, and tested on the other",
        "training questions and on the official test questions. Written by",
        "",
        "```",
        f"LABELWISE_DATA=... python benchmarks/trec6.py --seeds {seeds} --out docs/results/trec6.md",
        "```",
        "",
        "| strategy | "
        + " | ".join(f"{test}: mean % | at 440 labels % | mean against random" for test in TESTS)
        + " |",
        "|---|" + "---:|---:|---:|" * 2,
    ]
    for name in STRATEGIES:
        cells = []
        for test in range(2):
            difference = (value[name] - value["random"])[:, :, test].mean(1)
            found = paired_test(difference)
            error = difference.std(ddof=1) / seeds**0.5
            against = "–" if name == "random" else f"{found.difference:+.2f} ± {error:.2f} (p = {found.p:.3f})"
            area, last = value[name][:, :, test].mean(), value[name][:, -1, test].mean()
            cells += [f"{area:.1f}", f"{last:.1f}", against.replace("-", "−")]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    names = data.classes or ()
    shares = {name: np.sum([each[1] for each in found], axis=0) for name, found in runs.items()}
    shares |= {"all training questions": np.bincount(np.asarray(data.pool.labels), minlength=6)}
    shares |= {"official test questions": np.bincount(np.asarray(data.test_labels), minlength=6)}
    lines += [
        "",
        "The mean is over the label counts, ± its standard error, p that of the paired sign-flip test by seed.",
        "Classes of the labels at the end, in %:",
        "",
        "| rows | " + " | ".join(map(str, names)) + " |",
        "|---|" + "---:|" * len(names),
    ]
    lines += [
        f"| {name} | " + " | ".join(f"{100 * part:.1f}" for part in count / count.sum()) + " |"
        for name, count in shares.items()
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Print the page, or write it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    text = page(arguments.seeds)
    print(text)
    if arguments.out:
        write_text(arguments.out, text)


if __name__ == "__main__":
    main()
