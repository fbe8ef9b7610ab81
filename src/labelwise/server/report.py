"""Report: what a project has reached and saved, by whom, how fast, and what to do next. On the page, and as a file.

Both show the template report_parts.html with the values made here. The file holds its images, style and script, and
asks nothing of any server.
"""

from __future__ import annotations

import base64
import math
import shlex
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from labelwise.errors import LabelwiseError
from labelwise.io.files import write_text
from labelwise.io.tables import number
from labelwise.io.text import many
from labelwise.project import label_sets
from labelwise.project.exchange.entries import ballots
from labelwise.project.meter.sentences import SHOWN, advice, figures, headline, saving
from labelwise.report.charts import Line, Point, confusion_table, line_chart, scatter, share_bar
from labelwise.report.html import html_document
from labelwise.server.context import templates

if TYPE_CHECKING:
    from labelwise.project import Project
    from labelwise.project.meter.meter import Meter
    from labelwise.project.meter.quality import Quality
    from labelwise.project.store import Agreement, Answer, Event, Round

ERRORS = 12  # examples that are shown
MATRIX = 20  # classes up to which the confusion matrix is drawn; above, the commonest confusions are listed
FEW = 5  # training labels of a class, below which the report asks for more
AGREE = 0.8  # share of equal labels below which the report asks for clearer instructions
_THUMBNAIL = 192

Image = Callable[[int], str]  # the address of the image of a row
T = TypeVar("T")


@dataclass(frozen=True)
class Step:
    """Something to do next: a sentence, a page of the server to do it on, and commands."""

    words: str
    page: str = ""
    commands: tuple[str, ...] = ()


def write_report(project: Project, path: str | Path) -> None:
    """Write the report to `path`, atomically."""
    write_text(path, report_html(project))


def report_html(project: Project) -> str:
    """The report as one HTML file."""

    def image(row: int) -> str:
        data = project.image(row, _THUMBNAIL)
        kind = "png" if data.startswith(b"\x89PNG") else "jpeg"
        return f"data:image/{kind};base64,{base64.b64encode(data).decode('ascii')}"

    values = {**report_values(project, image), "settings": project.settings, "online": False}
    body = templates().get_template("report_parts.html").render(values)
    return html_document(f"{project.settings.name}: labelling report", [body])


def certificate_text(rounds: Sequence[Round]) -> str:
    """How much of the pool the labels saw when the last round was chosen, where the recipe certifies it; else empty."""
    found: dict[str, Any] = next(
        (one.notes["certificate"] for one in reversed(rounds) if "certificate" in one.notes), {}
    )
    return str(found.get("sentence", ""))


def report_values(project: Project, image: Image) -> dict[str, Any]:
    """The values of `report_parts.html`. What cannot be read is left out and named among the problems."""
    problems: list[str] = [*project.warnings]
    store, settings = project.store, project.settings
    meter = _read(project.meter, problems)
    quality = _read(project.quality, problems) if meter is not None and meter.test else None
    suspects = len(_read(project.suspects, problems) or ())
    events, answers, progress = store.events(), store.answers(), store.progress()
    agreement = store.agreement()
    rounds = store.rounds()
    regress = settings.task == "regress"
    warning = next((one.notes.get("warning", "") for one in reversed(rounds)), "")
    return {
        "headline": headline(meter, progress.labels),
        "figures": figures(meter),
        "meter": meter,
        "saving": "" if meter is None else saving(meter),
        "regress": regress,
        "multi": settings.task == "multi",
        "steps": next_steps(project, meter, quality, suspects, agreement, answers),
        "training_warning": warning,
        "draw_warning": rounds[-1].notes.get("draw_warning", "") if rounds else "",
        "certificate": certificate_text(rounds),
        "design": _design(rounds),
        "curve": "" if quality is None or meter is None else _curve(quality, meter),
        "caption": "" if quality is None or meter is None else _caption(quality, meter),
        "numbers": [] if quality is None or meter is None else _numbers(quality, meter),
        "quality": quality,
        "classes": [] if regress else _classes(project, quality, answers),
        "confusion": _confusion(quality) if quality is not None and quality.confusion_CC else "",
        "confused": _confused(quality)[:MATRIX] if quality is not None else [],
        "scatter": _scatter(project, quality) if quality is not None and regress and quality.pairs else "",
        "spread": _spread(answers) if regress else [],
        "wrong": _errors(project, quality, image, problems),
        "people": _people(events),
        "progress": progress,
        "kinds": Counter(one.kind for one in answers.values()),
        "agreement": agreement,
        "pairs": _pairs(answers),
        "rounds": _rounds(project, answers),
        "problems": problems,
        "excluded": project.excluded,
        "commands": commands(project, meter is not None and meter.labels > 0),
        "bar": share_bar,
    }


def _read(read: Callable[[], T], problems: list[str]) -> T | None:
    try:
        return read()
    except (LabelwiseError, OSError) as error:
        problems.append(str(error))
        return None


def place(project: Project) -> str:
    """The project folder as a command takes it, in any folder."""
    return shlex.quote(str(project.folder.resolve()))


def commands(project: Project, trained: bool) -> list[str]:
    """The commands that write what has come out."""
    folder = place(project)
    lines = [f"labelwise report {folder}", f"labelwise export {folder} --to labels.csv"]
    accept = "" if project.settings.task == "regress" else " --max-error 2%"
    more = [f"labelwise predict {folder} --to predictions.csv{accept}", f"labelwise model {folder} --to model"]
    return lines + more if trained else lines


# --- what to do next -------------------------------------------------------------------------------------------------


def next_steps(
    project: Project,
    meter: Meter | None,
    quality: Quality | None,
    suspects: int,
    agreement: Agreement,
    answers: dict[int, Answer],
) -> list[Step]:
    """What would help most now, the most important first."""
    found = []
    if meter is None:
        found.append(Step("Label the first round. The first model is trained when most of it is answered.", "/"))
    elif meter.stop:
        trained = commands(project, trained=True)
        found.append(Step(advice(meter), "", (trained[2],)))
    else:
        found.append(Step(advice(meter), "/"))
    if suspects:
        what = "label that is" if suspects == 1 else "labels that are"
        found.append(Step(f"Look at {suspects} {what} probably wrong: the gallery shows them first.", "/gallery"))
    if project.settings.task != "regress":
        reserved, multi = {row for row, one in answers.items() if one.slice == "test"}, project.settings.task == "multi"
        values = [one.value for row, one in answers.items() if row not in reserved]
        count = Counter(n for one in values for n in (label_sets.names_of(one) if multi and one else (one,)))
        few = [(name, count[name]) for name in project.store.classes() if count[name] < FEW]
        if meter is not None and few:
            names = ", ".join(f"{name} ({labels})" for name, labels in few[:8])
            rest = f" and {len(few) - 8} more" if len(few) > 8 else ""
            found.append(
                Step(
                    f"Some classes have fewer than {FEW} training labels: {names}{rest}. Label or import more of them."
                )
            )
    if quality is not None and (confused := _confused(quality)) and confused[0][2] >= 3:
        true, predicted, wrong, rows = confused[0]
        found.append(
            Step(
                f"{true} is most often taken for {predicted} ({wrong} of {rows} test items). Check that people can "
                "tell the two apart, or label more of both."
            )
        )
    if agreement.share is not None and agreement.pairs >= SHOWN and agreement.share < AGREE:
        found.append(
            Step(
                f"People agree in only {100 * agreement.share:.0f} % of the items that two have labelled. Write down "
                "how to decide the unclear cases: no model can be better than its labels."
            )
        )
    better = project.better_features()
    if better:
        found.append(Step(better[0], "", tuple(better[1:])))
    return found


# --- the learning curve ----------------------------------------------------------------------------------------------


def _design(rounds: Sequence[Round]) -> str:
    """The certificate of the labels with their weights; empty where rows were drawn without."""
    found = next((one.notes["design"] for one in reversed(rounds) if one.notes.get("design")), None)
    if found is None:
        return ""
    low, high = found["eigenvalues"]
    certain = ""
    if found.get("barriers"):
        certain = "; {:.2f} to {:.2f} was certain".format(*found["barriers"])
    return (
        f"Certificate: with the weights of their draws, the {found['labels']:,} labels up to the last batch give every "
        f"mean square of the {found['rank']:,} functions of an item in use, of {found['rank_available']:,}, "
        f"{low:.2f} to {high:.2f} times what all items have{certain}. They count like "
        f"{found['effective_sample_size']:,.0f} labels of equal weight."
    )


def _curve(quality: Quality, meter: Meter) -> str:
    lines = [Line("this project", _points(quality.curve), "var(--line-0)")]
    if meter.random:
        lines.append(Line("random labels", _points(meter.random, meter.measured), "var(--ink)", "7 4"))
    share = bool(quality.classes)
    return line_chart(lines, "Learning curve", _format(share), share)


def _points(curve: Any, measured: float = math.inf) -> list[Point]:
    return [
        Point(
            labels,
            one.value,
            one.low,
            math.inf if one.high is None else one.high,
            ", extrapolated" if labels > measured else "",
        )
        for labels, one in curve
    ]


def _format(share: bool) -> Callable[[float], str]:
    return (lambda value: f"{100 * value:.3g} %") if share else (lambda value: f"{value:.3g}")


def _caption(quality: Quality, meter: Meter) -> str:
    what = meter.metric.capitalize() if quality.classes else "Typical error (RMSE), lower is better,"
    own = (
        f"{what} of the model of each round on the {many(quality.rows, 'test item')} that have a label now. They are "
        "drawn at random and never trained on. Shaded: 95 % intervals."
    )
    if not meter.random:
        return f"{own} What as many random labels would have given is shown from {meter.least} labelled test items on."
    beyond = f", extrapolated above {meter.measured} labels" if meter.random[-1][0] > meter.measured else ""
    return f"{own} Dashed: what random labels would have given, measured by training on the test items{beyond}."


def _numbers(quality: Quality, meter: Meter) -> list[tuple[str, str, str, str]]:
    show = _format(bool(quality.classes))
    return [
        (name, str(labels), show(one.value), f"{show(one.low)} to {'?' if one.high is None else show(one.high)}")
        for name, curve in (("this project", quality.curve), ("random labels", meter.random))
        for labels, one in curve
    ]


# --- classes and errors ----------------------------------------------------------------------------------------------


def _classes(project: Project, quality: Quality | None, answers: dict[int, Answer]) -> list[dict[str, Any]]:
    """Labels and accuracy of each class, the least accurate first."""
    multi = project.settings.task == "multi"
    count = Counter(
        (name, one.slice == "test")
        for one in answers.values()
        for name in (label_sets.names_of(one.value) if multi and one.value is not None else (one.value,))
    )
    by_name = {} if quality is None else {one.name: one for one in quality.by_class}
    names = list(dict.fromkeys([*project.store.classes(), *(value for value, _ in count if value is not None)]))
    rows = []
    for name in names:
        one = by_name.get(name)
        share = None if one is None else one.share
        row = {"name": name, "chosen": count[name, False], "test": count[name, True], "share": share, "bar": ""}
        if one is not None and share is not None:
            high = 1.0 if share.high is None else share.high
            span = f"{100 * share.low:.0f} to {100 * high:.0f} %"
            tip = f"{name}: {one.right} of {one.rows} test items right\n95 % interval {span}"
            row |= {"bar": share_bar(share.value, share.low, high, tip), "right": f"{one.right} of {one.rows}"}
        rows.append(row)
    return sorted(rows, key=lambda row: 2.0 if row["share"] is None else row["share"].value)


def _confusion(quality: Quality) -> str:
    return confusion_table(quality.classes, quality.confusion_CC) if len(quality.classes) <= MATRIX else ""


def _confused(quality: Quality) -> list[tuple[str, str, int, int]]:
    """(true, predicted, how often, test rows of the true class) of each confusion, the commonest first."""
    found = [
        (quality.classes[true], quality.classes[other], count, sum(count_C))
        for true, count_C in enumerate(quality.confusion_CC)
        for other, count in enumerate(count_C)
        if other != true and count
    ]
    return sorted(found, key=lambda one: -one[2])


def _scatter(project: Project, quality: Quality) -> str:
    pairs = [(true, predicted, project.view(row).title) for true, predicted, row in quality.pairs]
    return scatter(pairs, lambda value: f"{value:.4g}", "Predicted and true numbers of the test items")


def _spread(answers: dict[int, Answer]) -> list[tuple[str, str]]:
    values = [value for one in answers.values() if one.value is not None and (value := number(one.value)) is not None]
    if not values:
        return []
    ends = {"smallest": min(values), "median": statistics.median(values), "largest": max(values)}
    return [(name, f"{value:.4g}") for name, value in ends.items()]


def _errors(project: Project, quality: Quality | None, image: Image, problems: list[str]) -> list[dict[str, Any]]:
    """The errors that the model is surest of, as the page shows them."""
    found = []
    most = ERRORS if quality is not None and quality.classes else ERRORS // 2
    for one in quality.wrong[:most] if quality is not None else ():
        view = _read(lambda one=one: project.view(one.row), problems)  # type: ignore[misc]
        if view is None:
            continue
        address = _read(lambda one=one: image(one.row), problems) if view.image else ""  # type: ignore[misc]
        if address is not None:
            found.append({"wrong": one, "view": view, "image": address})
    return found


# --- people ----------------------------------------------------------------------------------------------------------


def _people(events: list[Event]) -> list[dict[str, Any]]:
    """Answers that count and the time they took, by person."""
    found: dict[str, list[Event]] = {}
    for by in ballots(events).values():
        for who, event in by.items():
            found.setdefault(who, []).append(event)
    rows: list[dict[str, Any]] = []
    for who, own in sorted(found.items()):
        taken = [one.seconds for one in own if one.seconds is not None]
        kinds = Counter("label" if one.kind == "import" else one.kind for one in own)
        row: dict[str, Any] = {
            "who": who,
            "labels": kinds["label"],
            "unsure": kinds["unsure"],
            "skipped": kinds["skip"],
        }
        rows.append({**row, "median": statistics.median(taken) if taken else None, "minutes": sum(taken) / 60})
    slowest = max((row["median"] for row in rows if row["median"]), default=0)
    for row in rows:
        row["bar"] = share_bar(row["median"] / slowest) if row["median"] else ""
    return rows


def _pairs(answers: dict[int, Answer]) -> list[tuple[str, str, int, int]]:
    """(person, person, items both labelled, items labelled alike), the pair that agrees least first."""
    both: Counter[tuple[str, str]] = Counter()
    equal: Counter[tuple[str, str]] = Counter()
    for one in answers.values():
        for first, second in combinations(sorted(one.votes), 2):
            both[first, second] += 1
            equal[first, second] += one.votes[first] == one.votes[second]
    rows = [(first, second, count, equal[first, second]) for (first, second), count in both.items()]
    return sorted(rows, key=lambda row: row[3] / row[2])


def _rounds(project: Project, answers: dict[int, Answer]) -> list[dict[str, Any]]:
    rows = []
    for one in reversed(project.store.rounds()):
        picks = project.store.picks(one.number)
        done = sum(pick.row in answers for pick in picks)
        labels = one.notes.get("labels", 0)
        rows.append(
            {"number": one.number, "strategy": one.strategy, "labels": labels, "picks": len(picks), "done": done}
        )
    return rows
