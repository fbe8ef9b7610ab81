"""Write docs/results/training-rules from the records of the suites `training` and `training-images`; --check compares.

The numbers of docs/decisions/training-rule.md, between its two marks, come from the same records.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from labelwise.bench.models.registry import ModelSpec
from labelwise.bench.report.experiments import Experiment, experiment_from
from labelwise.bench.report.load_runs import RECORDS, Source, experiment_of, finished_runs, goals_of, source_of
from labelwise.bench.report.models import ModelComparison, compare, gap_text, model_table, note, section_title
from labelwise.io.files import write_text
from labelwise.io.text import many, markdown_table
from labelwise.stats.models import ModelRow, ModelTable
from labelwise.stats.record import Record
from labelwise.train import TorchLearner
from labelwise.train.torch.options import EPOCHS, LEAST_STEPS, WEIGHT_DECAY

ROOT = Path(__file__).parents[1]
RESULTS, DECISION = ROOT / "docs" / "results", ROOT / "docs" / "decisions" / "training-rule.md"
PAGE = "training-rules/README.md"
BEGIN, END = "<!-- numbers: written by scripts/make_training_rules.py -->", "<!-- end of numbers -->"
FOLDERS = {"training": "A perceptron on features", "training-images": "Small convolutional networks on pixels"}
COSINE, DEFAULT = "cosine", "default"
IN_USE = {
    "training": {COSINE: "the rule of the benchmark", DEFAULT: "`TorchLearner` without an argument"},
    "training-images": {DEFAULT: "`TorchLearner` without an argument"},
}
# The target: on each classification set of core as good as the best of these rules, and a mean over the sets.
COMPARED = ("loss", "last", "decay")
CORE = ("adult", "ag-news", "bank-marketing", "banking77", "covertype", "digits", "trec6")
WITHIN, MEAN = 0.003, 0.73


def rule_of(model: str) -> str:
    """The name of a training rule: that of the model without the network.

    >>> rule_of("lenet-cosine"), rule_of("cosine")
    ('cosine', 'cosine')
    """
    return model.rpartition("-")[2]


def experiments_of(source: Source) -> list[Experiment]:
    """The finished experiments of a folder, each named by its data set and its training rule."""
    by_name: dict[str, list[Record]] = {}
    for record in source.records:
        by_name.setdefault(experiment_of(record), []).append(record)
    goals, found = goals_of([source]), []
    for name, records in sorted(by_name.items()):
        finished = finished_runs(name, records, goals).records
        if finished:
            data, _, model = name.rpartition("/")
            found.append(replace(experiment_from(name, finished, {}), name=f"{data}/{rule_of(model)}"))
    return found


def rules_table(models: dict[str, ModelSpec], seconds: dict[str, float]) -> str:
    """What each rule is, and how long it trains against `cosine`."""
    titles = ["rule", "labels trained on", "epochs", "epoch kept", "weight decay", "rate", "time", "chosen by folds"]
    defaults = {
        name: one.default for name, one in inspect.signature(TorchLearner.__init__).parameters.items()
    }  # of `default`, and of what a rule leaves out
    rows = []
    for rule, model in models.items():
        given = {**defaults, **model.parameters}
        chosen = given["cross_validate"]
        held_out = given["keep"] in ("loss", "accuracy") and not chosen
        share = given["holdout"] if given["holdout"] is not None else 0.1
        trained = f"{100 - 100 * share:.0f} %, from {given['holdout_from']} labels on" if held_out else "all"
        time = f"{seconds[rule]:.1f}" if rule in seconds else "–"
        epoch = "last" if chosen else str(given["keep"])
        course = "falls to 0" if given["schedule"] == "cosine" and chosen != "epochs" else "constant"
        epochs = f"{EPOCHS}, or {LEAST_STEPS:,} steps" if given["epochs"] is None else str(given["epochs"])
        decay = WEIGHT_DECAY if given["weight_decay"] is None else given["weight_decay"]
        decay = "by folds" if chosen == "weight_decay" else f"{decay}"
        rows.append([rule, trained, epochs, epoch, decay, f"{given['lr']}, {course}", time, chosen or "–"])
    return markdown_table(titles, rows, texts=1)


def relative_seconds(experiments: list[Experiment]) -> dict[str, float]:
    """Seconds of training of each rule against `cosine`, over the data sets that both ran on in one environment."""
    spent: dict[str, dict[tuple[str, str], float]] = {}
    for one in experiments:
        data, _, rule = one.name.rpartition("/")
        by_place: dict[str, list[float]] = {}
        for record in one.records:
            if record.strategy == "random":
                place = repr(sorted((name, each) for name, each in record.environment.items() if name != "seed"))
                by_place.setdefault(place, []).append(record.train_seconds)
        for place, times in by_place.items():
            if sum(times) > 0:
                spent.setdefault(rule, {})[data, place] = sum(times) / len(times)
    base, found = spent.get(COSINE, {}), {}
    for rule, times_of in spent.items():
        both = set(times_of) & set(base)
        if both:
            found[rule] = sum(times_of[one] for one in both) / sum(base[one] for one in both)
    return found


def rule_in_use(table: ModelTable, in_use: dict[str, str]) -> str:
    """Which rule is best, and how far the rules in use are behind it, in sentences."""
    if table.best is None:
        return ""
    use = f", {in_use[table.best.model]}," if table.best.model in in_use else ""
    where = many(len(table.datasets), "data set") if len(table.datasets) > 1 else table.datasets[0]
    is_partly = any(not math.isfinite(row.mean) for row in table.rows)
    which = "Of the rules that ran on all of" if is_partly else "On"
    text = [
        f"{which} {where} ({_seeds(table)}), `{table.best.model}`{use} has the highest area of "
        f"{table.metric.title} ({table.metric.text(table.best.mean)}{table.metric.unit})."
    ]
    text += [
        f"The difference of `{row.model}`, {in_use[row.model]}, is {_behind(table, row)}."
        for row in table.rows
        if row.model in in_use and row is not table.best
    ]
    return " ".join(text)


def _seeds(table: ModelTable) -> str:
    fewest, most = min(table.seeds.values()), max(table.seeds.values())
    return many(most, "seed") if fewest == most else f"{fewest} to {many(most, 'seed')}"


def target(table: ModelTable, rules: Iterable[str]) -> list[str]:
    """How far the rules in use are from the target, in sentences; empty where the table has none of core's sets."""
    values = {row.model: row.values for row in table.rows}
    sets = [data for data in CORE if all(data in values.get(rule, {}) for rule in COMPARED)]
    found = []
    for rule in rules:
        behind = {
            data: max(values[other][data] for other in COMPARED) - values[rule][data]
            for data in sets
            if data in values.get(rule, {})
        }
        if table.metric.name != "accuracy" or not behind:
            continue
        far = {data: gap for data, gap in behind.items() if gap > WITHIN}
        text = f"`{rule}` is there on {len(behind) - len(far)} of {many(len(behind), 'set')}"
        text += f" (further behind: {', '.join(f'{data} {100 * gap:.2f}' for data, gap in far.items())})" if far else ""
        if len(behind) == len(CORE):
            mean = sum(values[rule][data] for data in CORE) / len(CORE)
            text += f", with a mean of {table.metric.text(mean)}{table.metric.unit}"
        found.append(text)
    if not found:
        return []
    best = "the best of " + ", ".join(f"`{rule}`" for rule in COMPARED)
    wanted = f"at most {100 * WITHIN:.1f} points behind {best} on each of core's sets of classes"
    return [f"The target: {wanted}, and a mean of {100 * MEAN:.0f} %. {'; '.join(found)}."]


def means_table(table: ModelTable) -> str:
    """The table without a column for each data set."""
    titles, rows = model_table(table)
    first = 1 if len(table.datasets) == 1 else 1 + len(table.datasets)
    return markdown_table(["rule", *titles[first:]], [[row[0], *row[first:]] for row in rows])


def _behind(table: ModelTable, row: ModelRow) -> str:
    alike = row.gap is not None and row.gap.low <= 0 <= row.gap.high
    unit = " points" if table.metric.percent else ""
    text, _, fewer = gap_text(table, row.gap).partition(", ")
    return f"{text}{unit}{fewer and f' on {fewer}'}{', not measurably worse' if alike else ''}"


def section(folder: str, results: Path) -> tuple[str, list[str]]:
    """The section of a suite, and its lines for the decision; empty where there are no records."""
    if not (results / folder / RECORDS).is_file():
        return "", []
    source = source_of(results / folder)
    experiments = experiments_of(source)
    models = {rule_of(model.name): model for suite in source.suites for model in suite.models}
    comparisons: list[ModelComparison] = compare(experiments)
    title = FOLDERS[folder]
    sentences = [text for each in comparisons if (text := rule_in_use(each.tables[0], IN_USE[folder]))]
    sentences += [text for each in comparisons for text in target(each.tables[0], IN_USE[folder])]
    parts = [f"## {title}", "", *(f"{text}\n" for text in sentences)]
    parts += [rules_table(models, relative_seconds(experiments)), ""]
    parts.append(
        "*time* is that of training against `cosine` on one machine. What a rule leaves out is as in `TorchLearner`.\n"
    )
    for each in comparisons:
        for table in each.tables:
            parts += [f"{section_title(table)}:", "", markdown_table(*model_table(table)), ""]
        parts += [" ".join([note(each.tables[0]), *each.warned]), ""]
    report = results / folder / "report.md"
    more = f" Curves: [report](../{folder}/report.md)." if report.is_file() else ""
    parts.append(f"Records: `docs/results/{folder}`; `labelwise bench run {folder}`.{more}\n")
    tables = [f"{section_title(each.tables[0])}:\n\n{means_table(each.tables[0])}\n" for each in comparisons]
    return "\n".join(parts), [f"## {title}", "", *(f"{text}\n" for text in sentences), *tables]


def pages(results: Path) -> tuple[str, str]:
    """The page of results, and what stands between the marks of the decision."""
    found = [section(folder, results) for folder in FOLDERS]
    if not any(text for text, _ in found):
        raise SystemExit(
            f"{results}: records of the suites {' and '.join(FOLDERS)} were expected in folders of these names, found "
            "none; run `labelwise bench run training`, then `labelwise bench report`"
        )
    head = (
        "# Training rules by random picks alone\n\nWritten by `python scripts/make_training_rules.py`. No strategy "
        "chooses here, so none can favour a rule. The decision: [how models are trained by default]"
        "(../../decisions/training-rule.md).\n\n"
    )
    numbers = "\n".join(line for _, each in found for line in each).rstrip("\n")
    link = (
        "*difference* is paired by seed, with its 95 % interval; *most behind* is the largest loss against the best "
        f"rule of a data set. On each data set: [training rules](../results/{PAGE})."
    )
    return head + "\n".join(text for text, _ in found if text), f"{numbers}\n\n{link}\n"


def main() -> None:
    """Write both pages, or with --check say whether they are out of date and fail."""
    page, numbers = pages(RESULTS)
    old = DECISION.read_text(encoding="utf-8")
    before, begin, rest = old.partition(BEGIN + "\n")
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{DECISION.name}: the lines {BEGIN!r} and {END!r} are missing")
    wanted = {RESULTS / PAGE: page, DECISION: f"{before}{BEGIN}\n{numbers}{END}{after}"}
    for path, text in wanted.items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if "--check" in sys.argv[1:]:
            raise SystemExit(f"{path.name} is out of date; run python scripts/make_training_rules.py")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
