"""Write docs/results/quality.md, the goals for quality and what is reached, from the kept results; --check compares."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from make_evidence import chosen
from make_training_rules import IN_USE, experiments_of, target

from labelwise.bench.report.load_runs import experiment_of, source_of
from labelwise.bench.report.models import compare
from labelwise.io.files import write_text
from labelwise.io.text import many, percent
from labelwise.recommend import GOAL, GOAL_BETTER, read_findings
from labelwise.recommend.situation import SITUATIONS
from labelwise.stats.curves import area, half_width, learning_curves

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"
PAGE = "quality.md"
PAPER = ("Greedy", "IHT", "Entropy", "BADGE", "Random")
EXCESS = 0.02  # of weighted RandBSS after the last of eleven batches
TIES = {"random forest": 0.75, "k-NN": 0.80, "boosting": 0.56}  # accuracy of margin on a shuffled pool
NEAR = 0.02  # a sorted pool may be so much worse than a shuffled one
TITLES = ("what", "goal", "reached", "met", "if not, why")
HEAD = """# Goals for quality

Written by `python scripts/make_quality.py` from the kept results that each row links to.

"""


@dataclass(frozen=True)
class Goal:
    """A goal, what is reached, whether that is enough, and if not why."""

    what: str
    wanted: str
    reached: str
    met: bool
    why: str = ""

    @property
    def row(self) -> list[str]:
        """Its row of the table."""
        return [self.what, self.wanted, self.reached, "yes" if self.met else "no", "" if self.met else self.why]


def training(results: Path) -> Goal:
    """The area of random picks under the rules in use, against the best of three earlier ones."""
    tables = [each.tables[0] for each in compare(experiments_of(source_of(results / "training")))]
    [text] = [text for table in tables for text in target(table, IN_USE["training"])]
    wanted, _, reached = text.removeprefix("The target: ").partition(" %. ")
    return Goal(
        "[training rule](training-rules/README.md), by random picks alone",
        f"{wanted} %",
        reached.rstrip("."),
        "further behind" not in reached,
        "Digits are clean and want hardly any weight decay, noisy tables and wrong answers want it. `default` has the "
        "smaller rate that convolutional networks need, which costs on texts.",
    )


def recommendations() -> list[Goal]:
    """What the recommended recipe of each situation saves."""
    why = {
        "embeddings": "Without a model only the spread over the pool is known, not where a model would be wrong.",
        "cold-start": "It is one batch, chosen without a model: the spread over data sets is wide.",
        "regression": "It is significantly better only where inputs have heavy tails.",
        "trees": "Holm's correction is over all strategies compared; the recipe was not run again on other seeds.",
    }
    goals = []
    for name, title in SITUATIONS.items():
        found = read_findings().get(name)
        if found is None:
            continue
        tried = chosen(found)
        wanted = f"saves {percent(GOAL)}, better on {GOAL_BETTER[0]} of {GOAL_BETTER[1]}, below random on none"
        if tried is None:
            goals.append(Goal(title, wanted, "random", False, "No strategy passed [the rule](../recommend.md)."))
            continue
        saved = f"{percent(tried.saved)} ({percent(tried.low)} to {percent(tried.high)})"
        reached = (
            f"`{tried.strategy}`: {saved}, better on {tried.better} of {tried.sets}, below on {tried.below or 'none'}"
        )
        is_often = tried.better * GOAL_BETTER[1] >= tried.sets * GOAL_BETTER[0]
        is_met = tried.saved >= GOAL and is_often and not tried.below
        goals.append(Goal(title, wanted, reached, is_met, why.get(name, "")))
    return goals


def two_rules(training_by_situation: Mapping[str, Mapping[str, str]]) -> str:
    """The situations whose records are of more than one training rule, in a sentence."""
    found = [
        f"{SITUATIONS[name]} ({model}: {rule})"
        for name, rules in training_by_situation.items()
        for model, rule in rules.items()
        if "; " in rule
    ]
    return f"\nRecords of two training rules: {', '.join(found)}.\n" if found else ""


def paper(results: Path) -> Goal:
    """The areas of SABAL's table 2 on MNIST, next to the paper's."""
    page: dict[str, Any] = json.loads((results / "papers" / "sabal-table2.json").read_text(encoding="utf-8"))
    ours, papers = page["ours"]["MNIST"], page["papers"]["MNIST"]
    means = [f"{name} {ours[name]['mean']:.1f} ({papers[name]['mean']:.1f})" for name in PAPER]
    near = [abs(ours[name]["mean"] - papers[name]["mean"]) <= papers[name]["std"] for name in PAPER]
    missing = next((text for text in page["missing"] if text.startswith("MNIST")), "")
    return Goal(
        "[SABAL's table 2, MNIST](papers/sabal-table2.md), area in %",
        "the paper's means, in brackets, within its deviation",
        ", ".join(means),
        all(near),
        f"{missing.removeprefix('MNIST: ')} The last rounds, the highest of a curve, are not in these areas.",
    )


def ally(results: Path) -> Goal:
    """ALLY against random on the digits of core."""
    records = [one for one in source_of(results / "core").records if experiment_of(one) == "digits/mlp"]
    curves = learning_curves([one for one in records if one.strategy in ("ally", "random")])
    difference_S = 100 * (area(curves["ally"]) - area(curves["random"]))
    mean, half = float(difference_S.mean()), float(half_width(difference_S[:, None])[0])
    return Goal(
        "[ALLY against random on digits](core/report.md), area in points",
        "level or above",
        f"{mean:+.1f} ± {half:.1f} (95 %, {many(len(difference_S), 'seed')})".replace("-", "−"),
        mean + half >= 0,
        "The duals of so few labels say little of the rows without one.",
    )


def joint_weights(results: Path) -> Goal:
    """The excess error of weighted RandBSS after the last batch, on heavy-tailed rows."""
    path = results / "papers-small" / "bss-rounds.json"
    by_labels = json.loads(path.read_text(encoding="utf-8"))["excess"]["heavy-tailed"]["RandBSS, joint weights"]
    found = float(np.mean(by_labels[max(by_labels, key=int)]))
    return Goal(
        "[weighted RandBSS over eleven batches](papers-small/bss-rounds.md), heavy-tailed rows, excess error",
        f"at most {EXCESS}",
        f"{found:.3f}",
        found <= EXCESS,
        "The weights of earlier batches do not describe the rows that are left.",
    )


def ties(results: Path) -> Goal:
    """Margin on a pool sorted by class, with models that give many rows equal scores."""
    lines = [line.split("|") for line in (results / "ties.md").read_text(encoding="utf-8").splitlines()]
    cells = {line[1].strip(): [cell.split("±")[0].strip() for cell in line[2:-1]] for line in lines if len(line) > 5}
    shuffled, ordered = cells["model"].index("margin, shuffled"), cells["model"].index("margin, sorted")
    found = {name: (float(cells[name][shuffled]), float(cells[name][ordered])) for name in TIES}
    return Goal(
        "[margin on a pool sorted by class](ties.md), accuracy with 60 labels",
        ", ".join(f"{name} {level:.2f}" for name, level in TIES.items()) + "; what a shuffled pool gives",
        ", ".join(f"{name} {after:.2f} (shuffled {before:.2f})" for name, (before, after) in found.items()),
        all(after >= TIES[name] and after >= before - NEAR for name, (before, after) in found.items()),
        "Ties are not by lot for every model.",
    )


def page(results: Path) -> str:
    """The whole page."""
    goals = [training(results), *recommendations()]
    goals += [paper(results), ally(results), joint_weights(results), ties(results)]
    met = sum(goal.met for goal in goals)
    rows = [list(TITLES), ["---"] * len(TITLES), *(goal.row for goal in goals)]
    rules = two_rules({name: found.training for name, found in read_findings().items()})
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    lead = f"{met} of {len(goals)} are met. How recipes are chosen: [recommend](../recommend.md)."
    return f"{HEAD}{lead}\n\n{table}{rules}"


def main() -> None:
    """Write the page if it differs, or with --check say so and fail."""
    text, path = page(RESULTS), RESULTS / PAGE
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return
    if "--check" in sys.argv[1:]:
        raise SystemExit(f"{PAGE} is out of date; run python scripts/make_quality.py")
    write_text(path, text)
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
