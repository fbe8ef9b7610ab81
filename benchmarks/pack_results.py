"""Make the folders under docs/results small, after a report was written into one of them.

    python benchmarks/pack_results.py

Records keep what their page is made from: metrics, seconds, memory, and which rows were picked (sorted: it compresses
better). What only a run needs to continue (weights, first batch) or no page reads is dropped. Pictures get a palette.
Files that `labelwise bench report FOLDER` makes again from the records, and that no page shows, are deleted. The
list of suites in docs/results/README.md is written from the folders.
"""

from __future__ import annotations

import gzip
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from labelwise.bench import suites
from labelwise.io.files import write_bytes, write_text
from labelwise.report.style import PALETTE
from labelwise.stats.record import Record, read_records
from labelwise.stats.training_warnings import warning_of
from labelwise.stats.verdict import ORACLE

RESULTS = Path(__file__).parent.parent / "docs" / "results"
AGAIN = ("bands.png", "table.csv", "table.md", "standings.csv", "page.html", "report.html")
EXACT = ("accuracy", "rmse", "r2")
PHOTOGRAPHS = ("ally-figure1.png",)
BEGIN, END = "<!-- suites: written by benchmarks/pack_results.py -->\n", "<!-- end of suites -->\n"
RULES = "training-rules/README.md"


def smaller(record: Record) -> Record:
    """The record with the notes that pages read, and numbers with as many digits as a page can show."""
    notes = {"memory": record.notes["memory"]} if "memory" in record.notes else {}
    if record.strategy == ORACLE:
        notes["selection"] = _rounded(record.notes.get("selection", {}))
    training = record.notes.get("training") or {}
    # The accuracy that --paper-compat reports, and what reports name: a model that had hardly learnt, and a warm start.
    shown = {name: training.get(name) for name in ("looked", "warm_start")} | {"warning": warning_of(training) or None}
    if any(value is not None for value in shown.values()):
        notes["training"] = {name: value for name, value in shown.items() if value is not None}
    seconds = {name: _rounded(getattr(record, name), 4) for name in ("select_seconds", "train_seconds", "read_seconds")}
    # The metrics of a page stay exact: a bootstrap interval may hang on two that are equal.
    metrics = {name: value if name in EXACT else _rounded(value, 4) for name, value in record.metrics.items()}
    picked = sorted(record.picked)
    return replace(record, notes=notes, metrics=metrics, peak_mb=_rounded(record.peak_mb, 3), picked=picked, **seconds)


def pack_records(path: Path) -> None:
    """Write the records of a file again, smaller."""
    lines = "".join(smaller(record).to_json() + "\n" for record in read_records(path))
    write_bytes(path, gzip.compress(lines.encode(), mtime=0))


def pack_picture(path: Path) -> None:
    """Reduce a picture to a palette, where it has none yet."""
    with Image.open(path) as picture:
        if picture.mode == "P":
            return
        colours = 256 if path.name in PHOTOGRAPHS else PALETTE
        reduced = picture.convert("RGB").quantize(colours, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    out = io.BytesIO()
    reduced.save(out, "png", optimize=True)
    write_bytes(path, out.getvalue())


def smaller_page(text: str) -> str:
    """A report without the pictures that are deleted, and without the folders of one machine in its commands."""
    text = re.sub(r"!?\[[^\]]*\]\([^)]*/bands\.png\)\n\n", "", text)
    return re.sub(r"^labelwise bench .*", lambda line: re.sub(r"(?<= )/\S*/(?=\S)", "", line[0]), text, flags=re.M)


def suite_list(results: Path) -> str:
    """A line for each packaged suite that has a report, and for the page of training rules."""
    lines = [
        f"- [{name}]({name}/report.md): {suites.summary(name)} `labelwise bench run {name}`.\n"
        for name in suites.names()
        if (results / name / "report.md").is_file()
    ]
    if (results / RULES).is_file():
        lines.append(
            f"- [training-rules]({RULES}): what the suites `training` and `training-images` say about each rule.\n"
        )
    return "".join(lines)


def list_suites(page: Path) -> None:
    """Write the list of suites into the page, between its marks."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page.name}: the lines {BEGIN.strip()!r} and {END.strip()!r} are missing")
    write_text(page, f"{before}{begin}{suite_list(page.parent)}{end}{after}")


def _rounded(value: Any, digits: int = 5) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(inner, digits) for name, inner in value.items()}
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def main() -> None:
    """Pack every folder."""
    for path in sorted(RESULTS.glob("**/*")):
        if path.name in AGAIN and path.parent.parent != RESULTS.parent:
            path.unlink()
        elif path.name.endswith(".jsonl.gz"):
            pack_records(path)
        elif path.suffix == ".png":
            pack_picture(path)
    for page in RESULTS.glob("*/report.md"):
        write_text(page, smaller_page(page.read_text(encoding="utf-8")))
    list_suites(RESULTS / "README.md")


if __name__ == "__main__":
    main()
