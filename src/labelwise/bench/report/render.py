"""The pages of the report over experiments: Markdown, and HTML with its pictures inside."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from labelwise.bench.report import tables as tables
from labelwise.bench.report.notes import environments
from labelwise.bench.report.sentences import ranks_text, tests_text
from labelwise.io.text import markdown_table
from labelwise.report import html
from labelwise.report.figures import CROWDED
from labelwise.report.tables import footnote, markdown

if TYPE_CHECKING:
    from labelwise.bench.report.report import Experiment, Found

TITLE = "What the strategies were worth"
BANDS = "Each strategy beside random, with 95 % bands"


def markdown_page(found: Found, again: str) -> str:
    """The whole report as Markdown; `again` has the commands that make it."""
    parts = [f"# {TITLE}", "", *(f"- {line}" for line in found.lines), ""]
    for group in found.overall:
        if not group.experiments:
            continue
        parts += [f"## Over the experiments measured by {group.metric}", ""]
        if group.ranks is not None:
            parts += [f"![Average ranks](ranks-{group.metric}.png)", ""]
        parts += [ranks_text(group), "", markdown_table(*tables.standings(group)), "", tables.standings_note(group), ""]
        parts += [f"### {tables.MATRIX_TITLE}", "", markdown_table(*tables.matrix(group)), "", tables.MATRIX_NOTE, ""]
    parts += ["## Each experiment", ""]
    for one in found.experiments:
        parts += [f"### {one.name}", "", *([f"**{one.nothing}**", ""] if one.nothing else [])]
        parts += [f"![Learning curves]({one.folder}/curves.png)", ""]
        if len(one.curves) > CROWDED:
            parts += [f"[{BANDS}]({one.folder}/bands.png)", ""]
        parts += [markdown(one.table, True), tests_text(one), ""]
        for level in one.levels:
            parts += [f"{tables.reach_title(one, level)}:", "", markdown_table(*tables.reach(one, level)), ""]
    parts += ["## What was run", "", *(f"- {name}: {value}" for name, value in _run(found.experiments).items()), ""]
    parts += ["## Make it again", "", "```", again, "```", ""]
    return "\n".join(parts)


def html_page(found: Found, again: str, out: Path) -> str:
    """The whole report as one HTML file; its pictures, already written into `out`, are put inside."""
    parts = [f"<h1>{TITLE}</h1>", "<ul>", *(f"<li>{html.text(line)}</li>" for line in found.lines), "</ul>"]
    for group in found.overall:
        if not group.experiments:
            continue
        parts.append(f"<h2>Over the experiments measured by {html.text(group.metric)}</h2>")
        if group.ranks is not None:
            parts.append(_picture(out / f"ranks-{group.metric}.png", "Average ranks"))
        parts += [_paragraph(ranks_text(group)), html.box(*tables.standings(group), "Standings")]
        parts += [_paragraph(tables.standings_note(group)), f"<h3>{tables.MATRIX_TITLE}</h3>"]
        parts += [html.box(*tables.matrix(group), "Wins, ties and losses"), _paragraph(tables.MATRIX_NOTE)]
    parts.append("<h2>Each experiment</h2>")
    for one in found.experiments:
        parts += _experiment(one, out)
    parts += ["<h2>What was run</h2>", html.pairs(_run(found.experiments)), "<h2>Make it again</h2>"]
    parts.append(f'<pre tabindex="0">{html.text(again)}</pre>')
    return html.document("Benchmark report", parts)


def _experiment(one: Experiment, out: Path) -> list[str]:
    parts = [f"<h3>{html.text(one.name)}</h3>", f"<p><b>{html.text(one.nothing)}</b></p>" if one.nothing else ""]
    parts.append(_picture(out / one.folder / "curves.png", f"Learning curves of {one.name}"))
    if len(one.curves) > CROWDED:
        picture = _picture(out / one.folder / "bands.png", f"{BANDS}, {one.name}")
        parts.append(f"<details><summary>{BANDS}</summary>{picture}</details>")
    parts += [html.box(*tables.experiment(one), one.name), _paragraph(footnote(one.table)), _paragraph(tests_text(one))]
    for level in one.levels:
        title = tables.reach_title(one, level)
        parts += [_paragraph(f"{title}:"), html.box(*tables.reach(one, level), title)]
    return [*parts, f'<p><a href="{one.folder}/page.html">All numbers of this experiment</a></p>']


def _run(experiments: Sequence[Experiment]) -> dict[str, str]:
    records = [record for one in experiments for record in one.records]
    return {
        "Experiments": ", ".join(one.name for one in experiments),
        "Seeds": ", ".join(map(str, sorted({record.seed for record in records}))),
        "Rounds recorded": str(len(records)),
        **environments(records),
    }


def _picture(path: Path, label: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<figure><img alt="{html.text(label)}" src="data:image/png;base64,{data}" style="width:100%"></figure>'


def _paragraph(words: str) -> str:
    return f"<p>{html.text(words)}</p>"
