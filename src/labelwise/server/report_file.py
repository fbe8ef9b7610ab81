"""The report of a project as one HTML file that needs no server: what was reached and saved, by whom, how fast."""

from __future__ import annotations

import statistics
from collections import Counter
from html import escape
from pathlib import Path

from labelwise.io.files import write_text
from labelwise.io.tables import number
from labelwise.project.exchange.entries import ballots, classes_of
from labelwise.project.project import Project
from labelwise.project.store import Agreement, Event
from labelwise.report.html import box, document, pairs, text
from labelwise.server.meter_view import headline, readout
from labelwise.server.report_curve import points, svg


def write_report(project: Project, path: str | Path) -> None:
    """Write the report to `path`, atomically."""
    write_text(path, report_html(project))


def report_html(project: Project) -> str:
    """The report as HTML text."""
    store, meter = project.store, project.meter()
    progress = store.progress()
    lines = {line.name: f"{line.value} ({line.detail})" for line in readout(meter)}
    said = meter.words if meter is not None else ["Nothing is measured yet: the first model needs answers."]
    return document(
        f"{project.settings.name}: labelling report",
        [
            f'<p class="over">{escape(project.settings.name)}</p>',
            f"<h1>{text(headline(meter, progress.labels))}</h1>",
            pairs(lines) if lines else "",
            *(f'<p class="note">{text(line)}</p>' for line in said),
            _curve(project),
            "<h2>Labels</h2>",
            f"<p>{text(_progress(project))}</p>",
            _by_class(project),
            "<h2>People</h2>",
            _people(store.events()),
            f'<p class="note">{text(_agreement(store.agreement()))}</p>',
            "<h2>Rounds</h2>",
            _rounds(project),
            _unusable(project),
            "<h2>Make it again</h2>",
            f'<pre tabindex="0">labelwise report {escape(project.folder.name)}</pre>',
        ],
    )


def _curve(project: Project) -> str:
    curve, rows = points(project)
    if not rows:
        return '<p class="note">No test row has a label yet, so no model could be measured.</p>'
    percent = project.settings.task == "classify"
    title = "Accuracy by labels" if percent else "Typical error (RMSE) by labels; lower is better"
    show = (lambda value: f"{100 * value:.1f} %") if percent else (lambda value: f"{value:.4g}")
    cells = [[str(one.labels), show(one.value), f"{show(one.low)} to {show(one.high)}"] for one in curve]
    table = box(["labels", "accuracy" if percent else "RMSE", "95 % interval"], cells, title)
    caption = (
        f"The model of each round on the {rows} test rows that have a label now: drawn at random, never trained on. "
        "Shaded: 95 % interval of each point."
    )
    drawn = svg(curve, title, percent) if len(curve) > 1 else ""
    figure = f"<figure>{drawn}<figcaption>{text(caption)}</figcaption></figure>"
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
        return pairs({name: f"{value:.4g}" for name, value in numbers.items()})
    reserved = set(project.reserve.tolist())
    count = Counter((one.value, one.row in reserved) for one in answers)
    rows = [
        [name, str(count[name, False] + count[name, True]), str(count[name, False]), str(count[name, True])]
        for name in classes_of(project)
    ]
    return box(["class", "labels", "chosen", "test"], rows, "Labels by class") if rows else ""


def _people(events: list[Event]) -> str:
    """What each person did, and how long it took them; by answers that count."""
    found: dict[str, list[Event]] = {}
    for by in ballots(events).values():
        for who, event in by.items():
            found.setdefault(who, []).append(event)
    rows = []
    for who, own in sorted(found.items()):
        taken = [one.seconds for one in own if one.seconds is not None]
        kinds = Counter("label" if one.kind == "import" else one.kind for one in own)
        middle = f"{statistics.median(taken):.1f}" if taken else "–"
        total = f"{sum(taken) / 60:.1f}" if taken else "–"
        rows.append([who, str(kinds["label"]), str(kinds["unsure"]), str(kinds["skip"]), middle, total])
    if not rows:
        return "<p>Nobody has answered anything yet.</p>"
    return box(["person", "labels", "unsure", "skipped", "seconds each (median)", "minutes in all"], rows, "People")


def _agreement(found: Agreement) -> str:
    if found.share is None:
        return "No row was labelled by two people, so agreement is not known."
    chance = "" if found.alpha is None else f"; Krippendorff's alpha, which allows for chance, is {found.alpha:.2f}"
    return f"People agree on {100 * found.share:.0f} % of {found.pairs} pairs of labels for the same row{chance}."


def _rounds(project: Project) -> str:
    store = project.store
    answers = store.answers()
    rows = []
    for one in store.rounds():
        picks = store.picks(one.number)
        done = sum(pick.row in answers for pick in picks)
        rows.append([str(one.number), one.strategy, str(one.notes.get("labels", 0)), str(len(picks)), str(done)])
    titles = ["round", "chosen by", "labels of the model", "picks", "answered"]
    return box(titles, rows, "Rounds") if rows else "<p>Nothing was picked yet.</p>"


def _unusable(project: Project) -> str:
    lines = [*project.warnings, *project.left_out[:20]]
    if not lines:
        return ""
    count = len(project.left_out)
    more = f"<p>{count} rows could not be read; left-out.txt in the project folder lists them.</p>" if count else ""
    return f"<h2>What could not be used</h2>{more}<ul>{''.join(f'<li>{text(line)}</li>' for line in lines)}</ul>"
