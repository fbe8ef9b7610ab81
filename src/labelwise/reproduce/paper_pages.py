"""A page for each paper: every claim with what the paper's numbers and ours say, curves, protocol, command and cost.

Everything but the protocol is read from the pages' JSON and records; `reproduce` writes these pages after each run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from labelwise.errors import StoreError
from labelwise.io.files import write_text
from labelwise.stats.record import Record, read_records

TITLES = {
    "sabal": "SABAL: Batch active learning from the perspective of sparse approximation (Shen et al. 2022)",
    "dynamical": "dynamicAL: Deep active learning by leveraging training dynamics (Wang et al. 2022)",
    "ally": "ALLY: A Lagrangian duality approach to active learning (Elenter et al. 2022)",
    "bss": "RandBSS: Sample complexity of deep active learning",
}
# What is run at the paper's scale, in six lines each.
PROTOCOLS = {
    "sabal": (
        "Data: MNIST, SVHN, CIFAR-10 (table 2); Fashion-MNIST, CIFAR-10, CIFAR-100 with Bayesian networks (table 1).",
        "A tenth of the training rows, 500 to 2,000, is set aside with its labels, free for all methods alike.",
        "LeNet-5, VGG-16, or ResNet-18 with a variational last layer; new weights each round, equal for all methods.",
        "SGD with momentum 0.9 and weight decay 5e-4 (Adam for Bayesian networks); rates and epochs are the paper's.",
        "First labels at random, the same for all methods; the paper's batches; alpha and beta of its tables 4 and 5.",
        "Reported: area under the curve of test accuracy, by the trapezoid rule, over the range of labels.",
    ),
    "dynamical": (
        "Data: CIFAR-10 and SVHN; the tutorial CNN, VGG-11 and ResNet-18 without augmentation.",
        "500 first labels at random, the same for all methods; batches of 250, 500 or 1,000; 4 or 9 rounds.",
        "Adam at 0.001, batches of 128; networks go on from the weights of the round before, for all methods.",
        "A round ends when 97 % of the training rows were right in more than ten epochs, after 100 to 200 epochs.",
        "Baselines: random, margin, entropy, confidence, core-set, ALBL, BADGE.",
        "Reported: test accuracy of the last epoch of each round; --paper-compat reports the best of the round.",
    ),
    "ally": (
        "Data: MNIST, SVHN, CIFAR-10, STL-10 and Parkinsons; 15,000 rows to choose from (all of CIFAR-10).",
        "200 first labels at random, the same for all methods; batches of 200 or 1,000; 10 rounds.",
        "A 256-256 perceptron (MNIST, Parkinsons), or ResNet-18 with 128 features; new weights each round.",
        "Adam, 0.005 for perceptrons and 0.001 for images in colour, batches of 64; no augmentation.",
        "Classes are trained until 99 % of the labelled rows are right, for all methods; duals step by 0.05.",
        "Reported: test accuracy by labels, and labels to 97 % of the best last accuracy.",
    ),
    "bss": (
        "The paper has no experiments: all is ours, and its scales differ in rows, seeds and labels alone.",
        "Data: made-up pools, Gaussian or with Student's t(2.5) in every column, a new one for each seed.",
        "Teachers: linear, polynomial of degree 2, and the two-layer network of definition 3.1, each with noise.",
        "Fits: weighted least squares on all functions of the basis; in bss/network, the network of definition 3.1.",
        "Its minibatches are drawn in proportion to the weights (theorem 4.2), its batches on its first gradients.",
        "Reported: E |f^ - f*|^2 / E |y - f*|^2 over the pool, or the distance to the teacher on new rows.",
    ),
}
_LINE = re.compile(
    r"^- (?P<claim>.+?): \*\*(?P<verdict>[^*]+)\*\*(?: \((?P<ours>.*?)\))?"
    r"(?:; (?:by|in) the paper's own (?:means|numbers) it (?P<paper>[a-z ]+?)(?: \((?P<theirs>.*)\))?)?\.$"
)
_SEEDS = re.compile(r"(\d+) seeds?\b")


class ClaimRow(NamedTuple):
    """A claim as the page of its table or figure has it."""

    claim: str
    verdict: str
    ours: str
    paper: str  # what the paper's own numbers say about it; "" where they are a picture
    theirs: str
    seeds: str


def claim_rows(verdict: str) -> list[ClaimRow]:
    """The claims in the text of a page.

    >>> claim_rows("- A lies above B: **holds** (A 2, B 1; p = 0.01, paired t-test, 5 seeds).")[0].seeds
    '5'
    """
    rows = []
    for line in verdict.splitlines():
        found = _LINE.match(line)
        if found:
            parts = {name: value or "" for name, value in found.groupdict().items()}
            seeds = _SEEDS.search(parts["ours"])
            rows.append(ClaimRow(**parts, seeds=seeds.group(1) if seeds else "one measurement"))
    return rows


def write_paper_pages(folder: Path) -> None:
    """Write a page for each paper that has pages in the folder."""
    by_paper: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
    for path in sorted(folder.glob("*-*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict) and {"name", "what", "verdict", "command"} <= set(found):
            by_paper.setdefault(found["name"].split("/")[0], []).append((path, found))
    for paper, pages in by_paper.items():
        if paper in TITLES:
            write_text(folder / f"{paper}.md", _page(paper, pages))


def _page(paper: str, pages: Sequence[tuple[Path, dict[str, Any]]]) -> str:
    parts = [f"# {TITLES[paper]}", "Written by `labelwise reproduce` from the pages it links to."]
    head = ["| | claim | ours | seeds | numbers | the paper's own numbers |", "|---|---|---|---:|---|---|"]
    absent = "none" if paper == "bss" else "a picture"  # the paper of bss has no experiments
    lines = []
    for path, found in pages:
        link = f"[{found['name'].split('/')[1]}{_changed(found)}]({path.stem}.md)"
        rows = claim_rows(found["verdict"])
        empty = "not its claim" if any(row.paper for row in rows) else absent
        for row in rows:
            theirs = f"{row.paper}{f': {row.theirs}' if row.theirs else ''}" or empty
            lines.append(f"| {link} | {row.claim} | **{row.verdict}** | {row.seeds} | {row.ours} | {theirs} |")
    parts += ["## Claims", "\n".join([*head, *lines]) if lines else "No page states a claim."]
    parts += ["## Curves", " ".join(f"![{found['what']}]({path.stem}.png)" for path, found in pages)]
    if paper in PROTOCOLS:
        parts += ["## Protocol", "\n".join(f"{i}. {line}" for i, line in enumerate(PROTOCOLS[paper], 1))]
    costs = ["| | scale | command | device | minutes |", "|---|---|---|---|---:|"]
    for path, found in pages:
        commands = "<br>".join(f"`{line}`" for line in found["command"].splitlines())
        device = found["environment"].get("device", "")
        cells = f"{found['scale']} | {commands} | {device} | {_minutes(path, found)}"
        costs.append(f"| [{found['name']}{_changed(found)}]({path.stem}.md) | {cells} |")
    parts += ["## Commands and cost", "\n".join(costs)]
    parts.append("Minutes are those of training, reading and choosing of all runs together, from their records.")
    return "\n\n".join(parts) + "\n"


def _changed(found: dict[str, Any]) -> str:
    changes = ", ".join(f"{name}={value}" for name, value in found.get("changes", {}).items())
    return f" ({changes})" if changes else ""


def _minutes(path: Path, found: dict[str, Any]) -> str:
    records = path.with_name(f"{path.stem}.jsonl.gz")
    try:
        seconds = sum(_seconds(one) for one in read_records(records)) if records.is_file() else found["cpu_seconds"]
    except StoreError:
        return "unknown"
    return f"{seconds / 60:.1f}"


def _seconds(record: Record) -> float:
    return record.train_seconds + record.read_seconds + record.select_seconds
