"""Parts of a self-contained HTML page: escaped text, tables, pairs, the document, and the style sheet.

A page loads nothing: style, figures and the script of charts are inside, and its content security policy forbids
everything else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

_STATIC = files("labelwise.report").joinpath("static")
CHART_STYLE = _STATIC.joinpath("report.css").read_text(encoding="utf-8")
SCRIPT = _STATIC.joinpath("report.js").read_text(encoding="utf-8")
_DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode("utf-8")).digest()).decode("ascii")
_POLICY = f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{_DIGEST}'"


def html_document(title: str, parts: Sequence[str]) -> str:
    """The document around these parts; empty parts are skipped. Its one script shows the numbers of charts on hover."""
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{STYLE}{CHART_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )


def text(words: str) -> str:
    """Escaped text, with a no-break space before per cent signs."""
    return escape(words).replace(" %", "\u00a0%")


def table_box(titles: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """A table in a box that scrolls sideways."""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>{"".join(f"<td>{text(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="box" role="region" tabindex="0" aria-label="{escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def definition_list(values: Mapping[str, str]) -> str:
    """Names and values, one pair a line."""
    if not values:
        return "<p>Not recorded.</p>"
    items = "".join(f"<dt>{escape(name)}</dt><dd>{text(value)}</dd>" for name, value in values.items())
    return f"<dl>{items}</dl>"


STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f5f7f9; --ink: #1d2126; --muted: #5c6570;
  --rule: #e3e6ea; --good: #00694d; --bad: #a63f00; --line-0: #0072b2; --line-1: #d55e00;
  --line-2: #009e73; --line-3: #c76aa0; --line-4: #7a4a00; --line-5: #6622aa; }
@media (prefers-color-scheme: dark) {
  :root { --paper: #14171b; --panel: #1d2126; --ink: #e8eaed; --muted: #a3acb7; --rule: #333a42;
    --good: #4fd1a5; --bad: #ff9d66; --line-0: #4aa8e8; --line-1: #ff8340;
    --line-2: #2fc79a; --line-3: #f2a7d0; --line-4: #f0d890; --line-5: #9d6bff; } }
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: anywhere;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
main:has(.report) { max-width: 92rem; padding-top: 1.5rem; }
.over { margin: 0 0 .4rem; color: var(--muted); font-size: .9rem; }
h1 { margin: 0 0 .75rem; font-size: clamp(1.6rem, 1.2rem + 2vw, 2.4rem); line-height: 1.18; text-wrap: balance;
  letter-spacing: -.015em; }
h2 { margin: 2.75rem 0 .75rem; font-size: 1.25rem; line-height: 1.3; }
p { margin: 0 0 .9rem; max-width: 42rem; }
.lead { font-size: 1.1rem; }
.verdicts { list-style: none; margin: 1.25rem 0 0; padding: 0; border-top: 1px solid var(--rule); }
.verdicts li { display: grid; grid-template-columns: minmax(9rem, max-content) 1fr; column-gap: 1rem; padding: .7rem 0;
  border-bottom: 1px solid var(--rule); }
.verdicts .good { color: var(--good); }
.verdicts .bad, p.bad { color: var(--bad); }
.verdicts small { grid-column: 2; color: var(--muted); font-size: .9rem; }
figure { margin: 2rem 0 0; }
figure svg { display: block; height: auto; overflow: visible; }
figure svg text { font-family: inherit !important; }
figcaption, .note { color: var(--muted); font-size: .9rem; margin-top: .6rem; max-width: 46rem; }
.unseen { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }
.narrow { display: none; }
@media (max-width: 40rem) { main { padding: 1.5rem 1rem 3rem; }
  .wide { display: none; } .narrow { display: block; }
  .verdicts li { grid-template-columns: 1fr; } .verdicts small { grid-column: 1; } }
.box { overflow-x: auto; border: 1px solid var(--rule); border-radius: .5rem; overflow-wrap: normal; }
.box:focus-visible, summary:focus-visible { outline: 3px solid var(--line-0); outline-offset: 2px; }
table { border-collapse: collapse; width: 100%; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { padding: .5rem .65rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
tbody tr:last-child > * { border-bottom: 0; }
thead th { white-space: normal; min-width: 5rem;
  background: var(--panel); color: var(--muted); font-weight: 600; vertical-align: bottom; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--paper); max-width: 12rem;
  overflow: hidden; text-overflow: ellipsis; }
thead th:first-child { background: var(--panel); }
dl { display: grid; grid-template-columns: minmax(7rem, max-content) 1fr; gap: .35rem 1.25rem; margin: 0; }
dt { color: var(--muted); }
dd { margin: 0; }
@media (max-width: 40rem) { dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
pre { margin: 0; padding: .9rem 1rem; background: var(--panel); border-radius: .5rem; overflow-x: auto;
  font: .9rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: normal; }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--muted); }
details .box { margin-top: .6rem; }
@media print { .box { overflow: visible; } th, td { white-space: normal; padding: .25rem .4rem; } }
"""
