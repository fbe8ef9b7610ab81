"""Pages of the benchmark report: Markdown, HTML with its pictures inside, their tables, and the CSV."""

from __future__ import annotations

import base64
import csv
import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from labelwise.bench.report import models
from labelwise.bench.report.experiments import Experiment, MetricGroup
from labelwise.bench.report.models import ModelComparison
from labelwise.bench.report.sentences import environments, ranks_text, tests_text
from labelwise.io.text import markdown_table, percent
from labelwise.report import html
from labelwise.report.figures import CROWDED
from labelwise.report.tables import cells, footnote, header, markdown, saved_text, seconds, speed_text
from labelwise.stats.curves import labels_to_reach
from labelwise.stats.paired import FLIP
from labelwise.stats.savings import Saved, labels_saved
from labelwise.stats.summary import MEMORY_BOUND, MEMORY_NOTE, SelectionMemory, selection_memory
from labelwise.stats.verdict import ORACLE

Cells = tuple[list[str], list[list[str]]]  # titles, rows
STANDINGS_NOTE = (
    "Better, same and worse are by the paired test on the area under the curve, by seed, at 5 % (Student's t-test "
    f"below {FLIP} seeds, the sign-flip test from there on), after Holm's correction for the strategies compared on "
    "the same experiment; experiments with too few seeds do not count. `single tests` counts the same without the "
    "correction: of strategies that do not differ from random, one in twenty shows as better or worse by chance. "
    "Labels saved is the median over experiments at the best level that both reach; a speed-up of 1.5 means that two "
    "labels do the work of three random ones."
)
MATRIX_TITLE = "Wins / ties / losses of the row against the column, by single tests"
MATRIX_NOTE = (
    "Each pair has its own paired test at 5 %, without correction: one in twenty pairs that do not differ shows as a "
    "win or a loss. A pair with too few seeds for any outcome has no entry."
)
TITLE = "Benchmark report: strategies against random"
BANDS = "Each strategy and random, with 95 % bands"


@dataclass(frozen=True)
class Report:
    """What a report says: comparisons of models, experiments, groups of them by metric, and sentences for its head."""

    experiments: list[Experiment]
    groups: list[MetricGroup]
    models: list[ModelComparison]
    lines: list[str]
    training: dict[str, str] = field(default_factory=dict)  # the rule of each model, by its name

    @property
    def names(self) -> list[str]:
        """The names of the experiments."""
        return [one.name for one in self.experiments]

    @property
    def with_strategies(self) -> list[Experiment]:
        """The experiments that have a section of their own: all but those that only compare models."""
        return [one for one in self.experiments if not models.compared_only_as_models(one, self.models)]


def markdown_page(found: Report, again: str) -> str:
    """The report as Markdown; `again` has the commands that reproduce it."""
    parts = [f"# {TITLE}", "", *(f"- {line}" for line in found.lines), ""]
    for comparison in found.models:
        parts += [f"## {models.TITLE}", ""]
        for table in comparison.tables:
            parts += [f"{models.section_title(table)}:", "", markdown_table(*models.model_table(table)), ""]
        parts += [" ".join([models.note(comparison.tables[0]), *comparison.warned]), ""]
        for data in comparison.curves:
            parts += [f"On {data}:", "", f"![Models on {data}]({models.picture_name(data)})", ""]
    for group in found.groups:
        if not group.experiments:
            continue
        parts += [f"## All experiments measured by {group.metric}", ""]
        if group.ranks is not None:
            parts += [f"![Average ranks](ranks-{group.metric}.png)", ""]
        parts += [ranks_text(group), "", markdown_table(*standings_table(group)), "", standings_note(group), ""]
        parts += [f"### {MATRIX_TITLE}", "", markdown_table(*score_table(group)), "", MATRIX_NOTE, ""]
    parts += ["## Each experiment", ""] if found.with_strategies else []
    for one in found.with_strategies:
        parts += [f"### {one.name}", "", *([f"**{one.warning}**", ""] if one.warning else [])]
        parts += [f"![Learning curves]({one.folder}/curves.png)", ""]
        if len(one.curves) > CROWDED:
            parts += [f"[{BANDS}]({one.folder}/bands.png)", ""]
        parts += [markdown(one.table, True), tests_text(one), ""]
        for level in one.levels:
            parts += [f"{reach_title(one, level)}:", "", markdown_table(*reach_table(one, level)), ""]
    parts += ["## What was run", "", *(f"- {name}: {value}" for name, value in _run(found).items()), ""]
    parts += ["## Make it again", "", "```", again, "```", ""]
    return "\n".join(parts)


def html_page(found: Report, again: str, out: Path) -> str:
    """The report as one HTML file, with the pictures that were written into `out` inside."""
    parts = [f"<h1>{TITLE}</h1>", "<ul>", *(f"<li>{html.text(line)}</li>" for line in found.lines), "</ul>"]
    for comparison in found.models:
        parts.append(f"<h2>{models.TITLE}</h2>")
        for table in comparison.tables:
            title = models.section_title(table)
            parts += [f"<h3>{html.text(title)}</h3>", html.table_box(*models.model_table(table), title)]
        parts.append(_paragraph(" ".join([models.note(comparison.tables[0]), *comparison.warned])))
        for data in comparison.curves:
            parts += [_paragraph(f"On {data}:"), _picture(out / models.picture_name(data), f"Models on {data}")]
    for group in found.groups:
        if not group.experiments:
            continue
        parts.append(f"<h2>All experiments measured by {html.text(group.metric)}</h2>")
        if group.ranks is not None:
            parts.append(_picture(out / f"ranks-{group.metric}.png", "Average ranks"))
        parts += [_paragraph(ranks_text(group)), html.table_box(*standings_table(group), "Standings")]
        parts += [_paragraph(standings_note(group)), f"<h3>{MATRIX_TITLE}</h3>"]
        parts += [html.table_box(*score_table(group), "Wins, ties and losses"), _paragraph(MATRIX_NOTE)]
    if found.with_strategies:
        parts.append("<h2>Each experiment</h2>")
    for one in found.with_strategies:
        parts += _experiment(one, out)
    parts += ["<h2>What was run</h2>", html.definition_list(_run(found)), "<h2>Make it again</h2>"]
    parts.append(f'<pre tabindex="0">{html.text(again)}</pre>')
    return html.html_document("Benchmark report", parts)


def _experiment(one: Experiment, out: Path) -> list[str]:
    parts = [f"<h3>{html.text(one.name)}</h3>", f"<p><b>{html.text(one.warning)}</b></p>" if one.warning else ""]
    parts.append(_picture(out / one.folder / "curves.png", f"Learning curves of {one.name}"))
    if len(one.curves) > CROWDED:
        picture = _picture(out / one.folder / "bands.png", f"{BANDS}, {one.name}")
        parts.append(f"<details><summary>{BANDS}</summary>{picture}</details>")
    parts += [
        html.table_box(*experiment_table(one), one.name),
        _paragraph(footnote(one.table)),
        _paragraph(tests_text(one)),
    ]
    for level in one.levels:
        title = reach_title(one, level)
        parts += [_paragraph(f"{title}:"), html.table_box(*reach_table(one, level), title)]
    return [*parts, f'<p><a href="{one.folder}/page.html">All numbers of this experiment</a></p>']


def _run(found: Report) -> dict[str, str]:
    records = [record for one in found.experiments for record in one.records]
    return {
        "Experiments": ", ".join(found.names),
        **{f"Training of {name}": rule for name, rule in found.training.items()},
        "Seeds": ", ".join(map(str, sorted({record.seed for record in records}))),
        "Rounds recorded": str(len(records)),
        **environments(records),
    }


def _picture(path: Path, label: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<figure><img alt="{html.text(label)}" src="data:image/png;base64,{data}" style="width:100%"></figure>'


def _paragraph(words: str) -> str:
    return f"<p>{html.text(words)}</p>"


def standings_table(group: MetricGroup) -> Cells:
    """One row for each strategy, best average rank first."""
    titles = [
        "strategy",
        "average rank",
        "better",
        "same",
        "worse",
        "single tests",
        "labels saved",
        "speed-up",
        "seconds",
        *(["MB"] if _memory(group.experiments) else []),
    ]
    here = group.experiments
    place = dict(zip(group.ranks.names, group.ranks.mean)) if group.ranks else {}
    names = sorted({name for one in here for name in one.curves}, key=lambda name: (place.get(name, math.inf), name))
    rows = []
    for name in names:
        found = [one.verdicts[name] for one in here if name in one.verdicts]
        able = [each for each in found if each.outcome != "open"]
        counts = [str(sum(each.outcome == what for each in able)) for what in ("better", "same", "worse")]
        plus, minus = (sum(each.single == what for each in able) for what in ("better", "worse"))
        counts = [*counts, f"+{plus} −{minus}"] if able else ["–"] * 4
        shares = _shares(here, name)
        share = statistics.median(shares) if shares else math.nan
        speed = f"{1 / (1 - share):.2f}" if share < 1 else "–"
        time = [row.select_seconds for one in here for row in one.table.rows if row.strategy == name]
        rank = f"{place[name]:.1f}" if name in place else "–"
        memory = [_memory_of(here, name).text] if _memory(here) else []
        rows.append([name, rank, *counts, percent(share), speed, seconds(_mean(time)), *memory])
    return titles, rows


def score_table(group: MetricGroup) -> Cells:
    """Wins, ties and losses of each pair of strategies."""
    names = list(group.ranks.names) if group.ranks else []
    names += sorted({one for one, _ in group.scores} - set(names))
    rows = []
    for one in names:
        cells = [group.scores[(one, other)].text if (one, other) in group.scores else "" for other in names]
        rows.append([one, *cells])
    return ["", *names], rows


def experiment_table(one: Experiment) -> Cells:
    """The table of an experiment without the columns of single label counts."""
    hidden = range(1, 1 + len(one.table.counts))
    titles, *rows = (
        [cell for place, cell in enumerate(row) if place not in hidden]
        for row in (header(one.table), *cells(one.table))
    )
    return titles, rows


def reach_title(one: Experiment, level: float) -> str:
    """The title of `reach_table`."""
    return f"Labels to reach {one.table.metric.title} {one.table.metric.text(level)}{one.table.metric.unit}"


def reach_table(one: Experiment, level: float) -> Cells:
    """How many labels each strategy needs on average to reach a level, and what that saves."""
    rows = []
    for name, lines in one.curves.items():
        needed = labels_to_reach(lines, level)
        labels = f"{needed:.0f}" if needed is not None else f"more than {int(lines.labels_T[-1])}"
        saved = _saved_at(one, name, level)
        rows.append([name, labels, saved_text(saved), speed_text(saved)])
    return ["strategy", "labels", "labels saved", "speed-up"], rows


def _saved_at(one: Experiment, name: str, level: float) -> Saved | None:
    """Labels saved at a level; None for random itself, and where both reach it with their first labels."""
    lines, random = one.curves[name], one.curves.get("random")
    if random is None or name == "random" or not set(lines.seeds) & set(random.seeds):
        return None
    first = {labels_to_reach(each, level) == each.labels_T[0] for each in (lines, random)}
    return None if first == {True} else labels_saved(lines, random, level=level)


def standings_csv(experiments: Sequence[Experiment]) -> str:
    """One line for each strategy on each experiment, with bare numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    titles = (
        "experiment metric counted strategy seeds area area_mean difference p p_holm saved saved_low saved_high "
        "speed_up speed_up_low speed_up_high select_seconds select_mb_median select_mb_most select_mb_bound"
    )
    writer.writerow(titles.split())
    for one in experiments:
        for row in one.table.rows:
            tested = [row.found.test.difference, row.found.test.p, row.found.p] if row.found else [math.nan] * 3
            saved = [row.saved.share, row.saved.low, row.saved.high] if row.saved else [math.nan] * 3
            speed = row.saved.speed_up if row.saved else (math.nan,) * 3
            numbers = [row.area.mean, row.area_mean, *tested, *saved, *speed, row.select_seconds, *row.memory.numbers]
            bare = [f"{value:.6g}" if math.isfinite(value) else "" for value in numbers]
            counted = "no" if one.warning else "yes"
            writer.writerow([one.name, one.metric, counted, row.strategy, row.seeds, *bare, row.memory.kind])
    return out.getvalue()


def standings_note(group: MetricGroup) -> str:
    """What the columns of `standings_table` mean."""
    if not _memory(group.experiments):
        return STANDINGS_NOTE
    bound = any(row.memory.bound for one in group.experiments for row in one.table.rows)
    return f"{STANDINGS_NOTE} {MEMORY_NOTE}{MEMORY_BOUND if bound else ''}"


def _memory(experiments: Sequence[Experiment]) -> bool:
    """Whether some record has the memory of a selection."""
    return any(math.isfinite(row.memory.most) for one in experiments for row in one.table.rows)


def _memory_of(experiments: Sequence[Experiment], name: str) -> SelectionMemory:
    """Over all experiments; nothing for the oracle, which trains while it chooses."""
    return selection_memory([r for one in experiments for r in one.records if r.strategy == name != ORACLE])


def _shares(experiments: Sequence[Experiment], name: str) -> list[float]:
    rows = [row for one in experiments for row in one.table.rows if row.strategy == name]
    return [row.saved.share for row in rows if row.saved is not None and math.isfinite(row.saved.share)]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan
