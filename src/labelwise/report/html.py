"""Pieces of a self-contained HTML page: escaped text, tables, pairs, and the document around them.

A page asks nothing of any server: its style and figures are inside, and a content security policy forbids the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from labelwise.report.style_sheet import STYLE

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def document(title: str, parts: Sequence[str]) -> str:
    """A whole page around these parts; empty ones are left out."""
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def text(words: str) -> str:
    """Escaped, with numbers kept beside their per cent sign."""
    return escape(words).replace(" %", "\u00a0%")


def box(titles: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
    """A table in a box of its own, which scrolls sideways by finger, mouse or arrow keys."""
    head = "".join(f'<th scope="col">{text(title)}</th>' for title in titles)
    body = "".join(
        f'<tr><th scope="row">{text(row[0])}</th>{"".join(f"<td>{text(cell)}</td>" for cell in row[1:])}</tr>'
        for row in rows
    )
    return (
        f'<div class="box" role="region" tabindex="0" aria-label="{escape(name)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def pairs(values: Mapping[str, str]) -> str:
    """Names and values, one pair a line."""
    if not values:
        return "<p>Not recorded.</p>"
    items = "".join(f"<dt>{escape(name)}</dt><dd>{text(value)}</dd>" for name, value in values.items())
    return f"<dl>{items}</dl>"
