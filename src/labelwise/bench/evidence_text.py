"""The words and tables of the report over experiments."""

from __future__ import annotations

import base64
import csv
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.report import html
from labelwise.report.paired import least_p
from labelwise.report.saved import percent
from labelwise.report.table import markdown, saved_text, seconds

if TYPE_CHECKING:
    from labelwise.bench.evidence import Experiment, Overall


def markdown_page(experiments: Sequence[Experiment], overall: Sequence[Overall], command: str) -> str:
    """The whole report as Markdown."""
    parts = ["# What the strategies were worth", "", *(f"- {line}" for line in verdicts(experiments)), ""]
    for group in overall:
        parts += [f"## Over the experiments measured by {group.metric}", ""]
        if group.ranks is not None:
            parts += [f"![Average ranks](ranks-{group.metric}.png)", "", _ranks_text(group), ""]
        parts += [_markdown(*_standings_table(experiments, group)), "", _STANDINGS_NOTE, ""]
        parts += ["### Wins / ties / losses of the row against the column", "", _markdown(*_matrix(group)), ""]
    parts += ["## Each experiment", ""]
    for one in experiments:
        parts += [f"### {one.name}", "", f"![Learning curves]({one.folder}/curves.png)", "", markdown(one.table), ""]
        parts += [_tests_text(one), ""]
    parts += ["## What was run", "", *(f"- {name}: {value}" for name, value in _run(experiments).items()), ""]
    parts += ["## Make it again", "", "```", command or "labelwise bench report RUN", "```", ""]
    return "\n".join(parts)


def html_page(experiments: Sequence[Experiment], overall: Sequence[Overall], command: str, out: Path) -> str:
    """The whole report as one HTML file; its pictures, already written into `out`, are put inside."""
    parts = ["<h1>What the strategies were worth</h1>", "<ul>"]
    parts += [f"<li>{html.text(line)}</li>" for line in verdicts(experiments)]
    parts += ["</ul>"]
    for group in overall:
        parts.append(f"<h2>Over the experiments measured by {html.text(group.metric)}</h2>")
        if group.ranks is not None:
            parts += [_picture(out / f"ranks-{group.metric}.png", "Average ranks"), _paragraph(_ranks_text(group))]
        parts += [html.box(*_standings_table(experiments, group), "Standings"), _paragraph(_STANDINGS_NOTE)]
        parts.append("<h3>Wins / ties / losses of the row against the column</h3>")
        parts.append(html.box(*_matrix(group), "Wins, ties and losses"))
    parts.append("<h2>Each experiment</h2>")
    for one in experiments:
        parts.append(f"<h3>{html.text(one.name)}</h3>")
        parts.append(_picture(out / one.folder / "curves.png", f"Learning curves of {one.name}"))
        titles, rows = _experiment_table(one)
        parts += [html.box(titles, rows, one.name), _paragraph(_tests_text(one))]
        parts.append(f'<p><a href="{one.folder}/page.html">All numbers of this experiment</a></p>')
    parts += ["<h2>What was run</h2>", html.pairs(_run(experiments)), "<h2>Make it again</h2>"]
    parts.append(f'<pre tabindex="0">{html.text(command or "labelwise bench report RUN")}</pre>')
    return html.document("Benchmark report", parts)


def verdicts(experiments: Sequence[Experiment]) -> list[str]:
    """One plain sentence for each strategy, those that beat random most often first."""
    untold, counted = [], []
    for name in {name: None for one in experiments for name in one.against if name != "oracle"}:
        # Where the seeds are too few for any outcome, "no difference" would be said of them, not of the strategy.
        able = [one for one in experiments if name in one.against and least_p(one.against[name].seeds) <= 0.05]
        if not able:
            untold.append(f"{name} cannot be compared with random yet")
            continue
        won = sum(one.against[name].won() for one in able)
        lost = sum(one.against[name].lost() for one in able)
        counted.append(((lost - won) / len(able), name, _against_random(len(able), won, lost)))
    lines = [f"{name} {said}" for _, name, said in sorted(counted)] + untold
    few = min((result.seeds for one in experiments for result in one.against.values()), default=0)
    if few > 0 and not least_p(few) <= 0.05:  # of one seed there is none
        lines.append(f"Some comparisons rest on {few} seeds, too few for any test at 5 %: six or more are needed.")
    return lines or ["Nothing was run beside random, so there is nothing to compare."]


def _against_random(many: int, won: int, lost: int) -> str:
    if not won and not lost:
        return f"makes no measurable difference to random on any of {many} experiments"
    same = many - won - lost
    text = f"beats random measurably on {won} of {many} experiments" if won else f"beats random on none of {many}"
    text += f", loses to it on {lost}" if lost else ""
    return text + (f", no measurable difference on {same}" if same else "")


_STANDINGS_NOTE = (
    "Better and worse are by the paired sign-flip test on the area under the curve, by seed, at 5 %, uncorrected; "
    "`after Holm` counts those that stay after correcting for the strategies compared on the same experiment. "
    "Labels saved is the median over experiments at the best level that both reach; a speed-up of 1.5 means that two "
    "labels do the work of three random ones."
)


def _standings_table(experiments: Sequence[Experiment], group: Overall) -> tuple[list[str], list[list[str]]]:
    titles = [
        "strategy",
        "average rank",
        "better",
        "same",
        "worse",
        "after Holm",
        "labels saved",
        "speed-up",
        "seconds",
    ]
    here = [one for one in experiments if one.metric == group.metric]
    place = dict(zip(group.ranks.names, group.ranks.mean)) if group.ranks else {}
    names = sorted({name for one in here for name in one.curves}, key=lambda name: (place.get(name, math.inf), name))
    rows = []
    for name in names:
        found = [one for one in here if name in one.against]
        won = sum(one.against[name].won() for one in found)
        lost = sum(one.against[name].lost() for one in found)
        sure = sum(one.corrected[name] <= 0.05 and one.against[name].difference > 0 for one in found)
        sure_lost = sum(one.corrected[name] <= 0.05 and one.against[name].difference < 0 for one in found)
        shares = sorted(_shares(found, name))
        share = shares[len(shares) // 2] if shares else math.nan
        time = [row.select_seconds for one in here for row in one.table.rows if row.strategy == name]
        counts = [str(won), str(len(found) - won - lost), str(lost), f"+{sure} −{sure_lost}"] if found else ["–"] * 4
        rank = f"{place[name]:.1f}" if name in place else "–"
        speed = f"{1 / (1 - share):.2f}" if share < 1 else "–"
        rows.append([name, rank, *counts, percent(share), speed, seconds(_mean(time))])
    return titles, rows


def _matrix(group: Overall) -> tuple[list[str], list[list[str]]]:
    names = list(group.ranks.names) if group.ranks else []
    names += sorted({one for one, _ in group.scores} - set(names))
    rows = []
    for one in names:
        cells = [group.scores[(one, other)].text if (one, other) in group.scores else "" for other in names]
        rows.append([one, *cells])
    return ["", *names], rows


def _experiment_table(one: Experiment) -> tuple[list[str], list[list[str]]]:
    metric = one.table.metric
    titles = ["strategy", f"area{metric.unit}", "area, plain mean", "labels saved", "verdict"]
    rows = [
        [
            row.strategy,
            f"{metric.text(row.area.mean)} ± {metric.text(row.area.spread)}",
            metric.text(row.area_mean),
            saved_text(row.saved),
            row.verdict,
        ]
        for row in one.table.rows
    ]
    return titles, rows


def _tests_text(one: Experiment) -> str:
    """The paired tests of an experiment in a sentence."""
    if not one.against:
        return "Random was not run here, so nothing is tested."
    sure = [name for name in one.against if one.corrected[name] <= 0.05]
    better = [name for name in sure if one.against[name].difference > 0]
    worse = [name for name in sure if one.against[name].difference < 0]
    said = [f"better than random: {', '.join(better)}"] if better else []
    said += [f"worse: {', '.join(worse)}"] if worse else []
    tested = "; ".join(said) if said else "no strategy differs from random"
    return " ".join([f"After Holm's correction at 5 %, {tested}.", *_own_training(one)])


def _own_training(one: Experiment) -> list[str]:
    """Strategies whose model differs from random's while their labels are the same: they train in their own way."""
    first, said = one.curves["random"], []
    for name in one.against:
        own = one.curves[name]
        seeds = [seed for seed in own.seeds if seed in first.seeds]
        if own.labels_T[0] != first.labels_T[0] or not seeds:
            continue
        mine, randoms = (
            each.values_ST[[each.seeds.index(seed) for seed in seeds], 0].tolist() for each in (own, first)
        )
        if mine != randoms:
            there, here = (_value(one.metric, sum(values) / len(values)) for values in (mine, randoms))
            said.append(
                f"{name} trains by rules of its own: on the same first {int(own.labels_T[0])} labels its model has "
                f"{one.metric} {there}, random's {here}, so its curve shows training and choice together."
            )
    return said


def _value(metric: str, value: float) -> str:
    return f"{100 * value:.1f} %" if metric == "accuracy" else f"{value:.3g}"


def _ranks_text(group: Overall) -> str:
    ranks = group.ranks
    assert ranks is not None, "asked only where there are ranks"
    if math.isnan(ranks.critical):
        return "One experiment is too few to tell average ranks apart."
    differ = "the average ranks differ" if ranks.p <= 0.05 else "no difference of the average ranks can be told"
    return (
        f"Friedman's test over {ranks.experiments} experiments: p = {ranks.p:.2g}, {differ}. Strategies joined by a "
        f"bar are not told apart at 5 % (Nemenyi, critical difference {ranks.critical:.2f})."
    )


def _run(experiments: Sequence[Experiment]) -> dict[str, str]:
    records = [record for one in experiments for record in one.records]
    found: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.environment.items():
            if name != "seed":
                found.setdefault(name, {})[value] = None
    return {
        "Experiments": ", ".join(one.name for one in experiments),
        "Seeds": ", ".join(map(str, sorted({record.seed for record in records}))),
        "Rounds recorded": str(len(records)),
        **{name: ", ".join(values) for name, values in found.items()},
    }


def standings_csv(experiments: Sequence[Experiment]) -> str:
    """One line for each strategy on each experiment, with bare numbers."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    titles = "experiment metric strategy seeds area area_mean difference p p_holm saved saved_low saved_high speed_up"
    writer.writerow(titles.split())
    for one in experiments:
        for row in one.table.rows:
            test = one.against.get(row.strategy)
            tested = [test.difference, test.p, one.corrected[row.strategy]] if test else [math.nan] * 3
            saved = [row.saved.share, row.saved.low, row.saved.high] if row.saved else [math.nan] * 3
            speed = 1 / (1 - saved[0]) if saved[0] < 1 else math.nan
            numbers = [row.area.mean, row.area_mean, *tested, *saved, speed]
            bare = [f"{value:.6g}" if math.isfinite(value) else "" for value in numbers]
            writer.writerow([one.name, one.metric, row.strategy, row.seeds, *bare])
    return out.getvalue()


def _shares(found: Sequence[Experiment], name: str) -> list[float]:
    rows = [row for one in found for row in one.table.rows if row.strategy == name and row.saved is not None]
    return [row.saved.share for row in rows if row.saved is not None and math.isfinite(row.saved.share)]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return sum(finite) / len(finite) if finite else math.nan


def _markdown(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(titles) - 1)
    return "\n".join(f"| {' | '.join(line)} |" for line in (titles, rule, *rows))


def _picture(path: Path, label: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<figure><img alt="{html.text(label)}" src="data:image/png;base64,{data}" style="width:100%"></figure>'


def _paragraph(words: str) -> str:
    return f"<p>{html.text(words)}</p>"
