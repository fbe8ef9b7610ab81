"""The tables of the report over experiments: standings, wins and losses, labels to reach a level; and the CSV."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from labelwise.report.tables import plus_minus, saved_text, seconds, speed_text
from labelwise.stats.curves import labels_to_reach
from labelwise.stats.memory import BOUND, NOTE, Held, held
from labelwise.stats.savings import Saved, labels_saved, percent
from labelwise.stats.verdict import ORACLE

if TYPE_CHECKING:
    from labelwise.bench.report.report import Experiment, Overall

Cells = tuple[list[str], list[list[str]]]  # titles, rows
STANDINGS_NOTE = (
    "Better, same and worse are by the paired sign-flip test on the area under the curve, by seed, at 5 %, after "
    "Holm's correction for the strategies compared on the same experiment; experiments with too few seeds for any "
    "outcome are left out. `single tests` counts the same without the correction: of strategies that are like random, "
    "one in twenty shows as better or worse by chance. Labels saved is the median over experiments at the best level "
    "that both reach; a speed-up of 1.5 means that two labels do the work of three random ones."
)
MATRIX_TITLE = "Wins / ties / losses of the row against the column, by single tests"
MATRIX_NOTE = (
    "Each pair by its own paired test at 5 %, without correction: one in twenty pairs that are alike shows as a win "
    "or a loss. A pair whose seeds are too few for any outcome has no entry."
)


def standings(group: Overall) -> Cells:
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
        found = [one.against[name] for one in here if name in one.against]
        able = [each for each in found if each.outcome != "open"]
        counts = [str(sum(each.outcome == what for each in able)) for what in ("better", "same", "worse")]
        plus, minus = (sum(each.single == what for each in able) for what in ("better", "worse"))
        counts = [*counts, f"+{plus} −{minus}"] if able else ["–"] * 4
        shares = _shares(here, name)
        share = statistics.median(shares) if shares else math.nan
        speed = f"{1 / (1 - share):.2f}" if share < 1 else "–"
        time = [row.select_seconds for one in here for row in one.table.rows if row.strategy == name]
        rank = f"{place[name]:.1f}" if name in place else "–"
        memory = [_held(here, name).text] if _memory(here) else []
        rows.append([name, rank, *counts, percent(share), speed, seconds(_mean(time)), *memory])
    return titles, rows


def matrix(group: Overall) -> Cells:
    """Scores of each pair of strategies."""
    names = list(group.ranks.names) if group.ranks else []
    names += sorted({one for one, _ in group.scores} - set(names))
    rows = []
    for one in names:
        cells = [group.scores[(one, other)].text if (one, other) in group.scores else "" for other in names]
        rows.append([one, *cells])
    return ["", *names], rows


def experiment(one: Experiment) -> Cells:
    """The table of an experiment as a page shows it, without the single label counts."""
    metric = one.table.metric
    titles = [
        "strategy",
        f"area{metric.unit}",
        "area, plain mean",
        *_cost_titles(one),
        "labels saved",
        "speed-up",
        "verdict",
    ]
    rows = [
        [
            row.strategy,
            plus_minus(metric, row.area),
            metric.text(row.area_mean),
            seconds(row.select_seconds),
            *([row.held.text] if _memory([one]) else []),
            saved_text(row.saved),
            speed_text(row.saved),
            row.verdict,
        ]
        for row in one.table.rows
    ]
    return titles, rows


def reach_title(one: Experiment, level: float) -> str:
    """What `reach` shows."""
    return f"Labels to reach {one.table.metric.title} {one.table.metric.text(level)}{one.table.metric.unit}"


def reach(one: Experiment, level: float) -> Cells:
    """How many labels each strategy needs on average to reach a level, and what that saves."""
    rows = []
    for name, lines in one.curves.items():
        needed = labels_to_reach(lines, level)
        labels = f"{needed:.0f}" if needed is not None else f"not with {int(lines.labels_T[-1])}"
        saved = _saved_at(one, name, level)
        rows.append([name, labels, saved_text(saved), speed_text(saved)])
    return ["strategy", "labels", "labels saved", "speed-up"], rows


def _saved_at(one: Experiment, name: str, level: float) -> Saved | None:
    """Labels saved at a level; None beside itself, and where both are there with their first labels."""
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
            numbers = [row.area.mean, row.area_mean, *tested, *saved, *speed, row.select_seconds, *row.held.numbers]
            bare = [f"{value:.6g}" if math.isfinite(value) else "" for value in numbers]
            counted = "no" if one.nothing else "yes"
            writer.writerow([one.name, one.metric, counted, row.strategy, row.seeds, *bare, row.held.kind])
    return out.getvalue()


def standings_note(group: Overall) -> str:
    """What the columns of `standings` mean."""
    if not _memory(group.experiments):
        return STANDINGS_NOTE
    bound = any(row.held.bound for one in group.experiments for row in one.table.rows)
    return f"{STANDINGS_NOTE} {NOTE}{BOUND if bound else ''}"


def _cost_titles(one: Experiment) -> list[str]:
    return ["seconds per selection", *(["MB per selection"] if _memory([one]) else [])]


def _memory(experiments: Sequence[Experiment]) -> bool:
    """Whether some record says what a selection held."""
    return any(math.isfinite(row.held.most) for one in experiments for row in one.table.rows)


def _held(experiments: Sequence[Experiment], name: str) -> Held:
    """Over all experiments; nothing for the oracle, which trains while it chooses."""
    return held([r for one in experiments for r in one.records if r.strategy == name != ORACLE])


def _shares(experiments: Sequence[Experiment], name: str) -> list[float]:
    rows = [row for one in experiments for row in one.table.rows if row.strategy == name]
    return [row.saved.share for row in rows if row.saved is not None and math.isfinite(row.saved.share)]


def _mean(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.fmean(finite) if finite else math.nan
