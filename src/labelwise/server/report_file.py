"""Report: a project as one HTML file that needs no server. What was reached and saved, by whom, and how fast."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np

from labelwise.io.files import write_text
from labelwise.io.tables import number
from labelwise.project.exchange.entries import ballots, classes_of
from labelwise.project.loop.rounds import read_model, round_folder
from labelwise.project.loop.snapshot import last_seq, take_snapshot
from labelwise.project.meter.meter import losses_of
from labelwise.project.meter.sentences import figures, headline
from labelwise.project.project import Project
from labelwise.project.store import Agreement, Event
from labelwise.report.html import definition_list, html_document, table_box, text
from labelwise.stats.estimate import pool_mean

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 720.0, 320.0, 64.0, 44.0, 20.0, 20.0


def write_report(project: Project, path: str | Path) -> None:
    """Write the report to `path`, atomically."""
    write_text(path, report_html(project))


def report_html(project: Project) -> str:
    """The report as HTML text."""
    store, meter = project.store, project.meter()
    progress = store.progress()
    numbers = {one.name: f"{one.value} ({one.detail})" if one.detail else one.value for one in figures(meter)}
    words = meter.words if meter is not None else ["Nothing is measured yet. The first model needs answers."]
    return html_document(
        f"{project.settings.name}: labelling report",
        [
            f'<p class="over">{escape(project.settings.name)}</p>',
            f"<h1>{text(headline(meter, progress.labels))}</h1>",
            definition_list(numbers) if numbers else "",
            *(f'<p class="note">{text(line)}</p>' for line in words),
            _curve(project),
            "<h2>Labels</h2>",
            f"<p>{text(_progress(project))}</p>",
            _by_class(project),
            "<h2>People</h2>",
            _people(store.events()),
            f'<p class="note">{text(_agreement(store.agreement()))}</p>',
            "<h2>Rounds</h2>",
            _rounds(project),
            _excluded(project),
            "<h2>Update this report</h2>",
            f'<pre tabindex="0">labelwise report {escape(project.folder.name)}</pre>',
        ],
    )


def _curve(project: Project) -> str:
    curve, rows = curve_points(project)
    if not rows:
        return '<p class="note">No model is measured yet, because no test row has a label.</p>'
    percent = project.settings.task == "classify"
    title = "Accuracy by number of labels" if percent else "Typical error (RMSE) by number of labels; lower is better"
    show = (lambda value: f"{100 * value:.1f} %") if percent else (lambda value: f"{value:.4g}")
    cells = [[str(one.labels), show(one.value), f"{show(one.low)} to {show(one.high)}"] for one in curve]
    table = table_box(["labels", "accuracy" if percent else "RMSE", "95 % interval"], cells, title)
    caption = (
        f"The model of each round, measured on the {rows} test rows that have a label now. Test rows are drawn at "
        "random and never trained on. Shaded: 95 % interval of each point."
    )
    picture = svg(curve, title, percent) if len(curve) > 1 else ""
    figure = f"<figure>{picture}<figcaption>{text(caption)}</figcaption></figure>"
    return f"<h2>{title}</h2>{figure}<details><summary>The numbers</summary>{table}</details>"


def _progress(project: Project) -> str:
    progress = project.store.progress()
    kinds = Counter(one.kind for one in project.store.answers().values())
    rest = ", ".join(f"{kinds[kind]} {kind}" for kind in ("unsure", "split", "skip") if kinds[kind])
    pace = "" if progress.median_seconds is None else f" {progress.median_seconds:.1f} seconds each (median)."
    return f"{progress.labels} of {progress.items} rows have a label{f' ({rest})' if rest else ''}.{pace}"


def _by_class(project: Project) -> str:
    answers = [one for one in project.store.answers().values() if one.value is not None]
    if project.settings.task == "regress":
        values = [value for one in answers if (value := number(str(one.value))) is not None]
        if not values:
            return ""
        numbers = {"smallest": min(values), "median": statistics.median(values), "largest": max(values)}
        return definition_list({name: f"{value:.4g}" for name, value in numbers.items()})
    reserved = set(project.reserve.tolist())
    count = Counter((one.value, one.row in reserved) for one in answers)
    rows = [
        [name, str(count[name, False] + count[name, True]), str(count[name, False]), str(count[name, True])]
        for name in classes_of(project)
    ]
    return table_box(["class", "labels", "chosen", "test"], rows, "Labels by class") if rows else ""


def _people(events: list[Event]) -> str:
    """Answers that count and the time they took, by person."""
    found: dict[str, list[Event]] = {}
    for by in ballots(events).values():
        for who, event in by.items():
            found.setdefault(who, []).append(event)
    rows = []
    for who, own in sorted(found.items()):
        taken = [one.seconds for one in own if one.seconds is not None]
        kinds = Counter("label" if one.kind == "import" else one.kind for one in own)
        median = f"{statistics.median(taken):.1f}" if taken else "–"
        total = f"{sum(taken) / 60:.1f}" if taken else "–"
        rows.append([who, str(kinds["label"]), str(kinds["unsure"]), str(kinds["skip"]), median, total])
    if not rows:
        return "<p>There are no answers yet.</p>"
    return table_box(
        ["person", "labels", "unsure", "skipped", "seconds each (median)", "minutes in total"], rows, "People"
    )


def _agreement(found: Agreement) -> str:
    if found.share is None:
        return "Agreement is not known: no row was labelled by two people."
    chance = "" if found.alpha is None else f" (Krippendorff's alpha, which corrects for chance: {found.alpha:.2f})"
    return f"People agree in {100 * found.share:.0f} % of {found.pairs} pairs of labels for the same row{chance}."


def _rounds(project: Project) -> str:
    store = project.store
    answers = store.answers()
    rows = []
    for one in store.rounds():
        picks = store.picks(one.number)
        done = sum(pick.row in answers for pick in picks)
        rows.append([str(one.number), one.strategy, str(one.notes.get("labels", 0)), str(len(picks)), str(done)])
    titles = ["round", "chosen by", "model trained on (labels)", "picks", "answered"]
    return table_box(titles, rows, "Rounds") if rows else "<p>No round has been chosen yet.</p>"


def _excluded(project: Project) -> str:
    lines = [*project.warnings, *project.excluded[:20]]
    if not lines:
        return ""
    count = len(project.excluded)
    more = (
        f"<p>{count} rows could not be read and are excluded; left-out.txt in the project folder lists them.</p>"
        if count
        else ""
    )
    return f"<h2>Problems with the data</h2>{more}<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>"


# --- the curve -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """The score of a model by the number of labels it was trained on, with a 95 % interval; `high` may be infinite."""

    labels: int
    value: float
    low: float
    high: float


def curve_points(project: Project) -> tuple[list[Point], int]:
    """A point for each round that had a model, and the number of test rows they were measured on."""
    snapshot = take_snapshot(project.store, project.settings, project.reserve, last_seq(project.store))
    rows = list(snapshot.test)
    if not rows:
        return [], 0
    x_MD = project.pool.inputs(rows).numpy()
    label_M = np.array([snapshot.test[row] for row in rows])
    found: dict[int, Point] = {}
    for one in project.store.rounds():
        model = read_model(round_folder(project.folder, one.number))
        if model is not None:
            loss_M = losses_of(x_MD, label_M, snapshot.classes, model.weight_CD, model.bias_C, model.classes)
            found[model.labels] = _point(model.labels, loss_M, bool(snapshot.classes))
    return [found[labels] for labels in sorted(found)], len(rows)


def _point(labels: int, loss_M: np.ndarray, share: bool) -> Point:
    if share:
        right = pool_mean(1 - loss_M, np.ones(len(loss_M)), share=True)
        return Point(labels, right.value, right.low, right.high)
    error = pool_mean(loss_M, np.ones(len(loss_M)))
    low, high = (math.sqrt(max(end, 0.0)) if math.isfinite(end) else math.inf for end in (error.low, error.high))
    return Point(labels, math.sqrt(error.value), low if math.isfinite(low) else 0.0, high)


def svg(curve: list[Point], title: str, percent: bool) -> str:
    """The curve as an `<svg>` with a band of 95 % intervals. Needs two points."""
    ends = [end for one in curve for end in (one.value, one.low, one.high) if math.isfinite(end)]
    low, high = min(ends), max(ends)
    pad = 0.05 * (high - low or abs(high) or 1.0)
    low, high = (max(0.0, low - pad), min(1.0, high + pad)) if percent else (max(0.0, low - pad), high + pad)
    first, last = curve[0].labels, curve[-1].labels

    def x(labels: float) -> float:
        return _LEFT + (labels - first) / (last - first) * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        inside = min(max(value, low), high)
        return _TOP + (high - inside) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)

    def at(one: Point, value: float) -> str:
        return f"{x(one.labels):.1f},{y(value):.1f}"

    parts = [
        f'<svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img" aria-label="{escape(title)}" width="100%">',
        *(_grid_line(y(value), _axis_text(value, percent)) for value in _ticks(low, high)),
        *(_axis_label(x(labels), str(labels)) for labels in sorted({first, (curve[len(curve) // 2]).labels, last})),
        f'<text x="{_WIDTH / 2:.0f}" y="{_HEIGHT - 6:.0f}" text-anchor="middle" fill="var(--muted)">labels</text>',
    ]
    band = [at(one, one.high) for one in curve] + [at(one, one.low) for one in reversed(curve)]
    parts.append(f'<polygon points="{" ".join(band)}" fill="var(--line-0)" fill-opacity=".13"/>')
    line = " ".join(at(one, one.value) for one in curve)
    parts.append(f'<polyline points="{line}" fill="none" stroke="var(--line-0)" stroke-width="2"/>')
    for one in curve:
        parts.append(f'<circle cx="{x(one.labels):.1f}" cy="{y(one.value):.1f}" r="3" fill="var(--line-0)"/>')
    return "".join([*parts, "</svg>"])


def _grid_line(y: float, text: str) -> str:
    return (
        f'<line x1="{_LEFT:.0f}" x2="{_WIDTH - _RIGHT:.0f}" y1="{y:.1f}" y2="{y:.1f}" stroke="var(--rule)"/>'
        f'<text x="{_LEFT - 8:.0f}" y="{y + 5:.1f}" text-anchor="end" fill="var(--muted)">{text}</text>'
    )


def _axis_label(x: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{_HEIGHT - 24:.0f}" text-anchor="middle" fill="var(--muted)">{text}</text>'


def _ticks(low: float, high: float) -> list[float]:
    """About four round values between the two."""
    step = 10 ** math.floor(math.log10((high - low) / 3))
    step *= next(by for by in (1, 2, 5, 10) if (high - low) / (by * step) <= 5)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _axis_text(value: float, percent: bool) -> str:
    return f"{100 * value:.4g}&#160;%" if percent else f"{value:.4g}"
