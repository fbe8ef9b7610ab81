"""Report: tables, figures and pages, drawn from records and from the numbers of `stats`.

The figure and the page need matplotlib (extra "bench"), which is imported when one is drawn.
"""

from labelwise.io.files import write_text
from labelwise.report.figures import png, svg
from labelwise.report.page import page_html
from labelwise.report.tables import cells, csv_text, header, markdown
from labelwise.stats.curves import (
    Band,
    Curves,
    area,
    at,
    band,
    labels_to_reach,
    labels_to_reach_by_seed,
    learning_curves,
    seed_curves,
)
from labelwise.stats.metric import Metric, metric_named
from labelwise.stats.record import Record, append, from_json, read_records, write
from labelwise.stats.savings import Saved, labels_saved
from labelwise.stats.summary import Row, Stat, Table, summarise
from labelwise.stats.verdict import Verdict, sentence, verdicts

__all__ = [
    "Band",
    "Curves",
    "Metric",
    "Record",
    "Row",
    "Saved",
    "Stat",
    "Table",
    "Verdict",
    "append",
    "area",
    "at",
    "band",
    "cells",
    "csv_text",
    "from_json",
    "header",
    "labels_saved",
    "labels_to_reach",
    "labels_to_reach_by_seed",
    "learning_curves",
    "markdown",
    "metric_named",
    "page_html",
    "png",
    "read_records",
    "seed_curves",
    "sentence",
    "summarise",
    "svg",
    "verdicts",
    "write",
    "write_text",
]
