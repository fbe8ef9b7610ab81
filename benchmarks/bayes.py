"""batchbald and acs-fw compared with the peers and with plain forms of the same methods; bald for its time alone.

    python benchmarks/peers.py setup      once: the peers, in separate environments (.peers, .peers/numpy1)
    python benchmarks/bayes.py            writes docs/results/bayes.md; most of an hour of one core
    python benchmarks/bayes.py --only batchbald --smaller 20 10     the slowest at 500 and 1,000 rows
    python benchmarks/bayes.py --quick    tiny shapes, to see that everything runs; prints the page

Every measurement is a separate process with one thread, in CPU seconds, since machines are shared; ours is measured
before and after each peer, and the fastest counts. Peers that evaluate every row for every pick with 10,000
configurations take hours for a batch: they are run for the exact picks and one sampled pick, and the sampled one counts
for the rest (times marked *).
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import peers

CONFIGURATIONS = 10_000
EXACT = 5  # picks with at most CONFIGURATIONS configurations, for 10 classes
SECONDS = 1800  # of the clock, for one measurement
SLOW = ("batchbald_redux",)  # measured with fewer rows where `--smaller` asks for it
OUT = Path(__file__).resolve().parent.parent / "docs" / "results" / "bayes.md"

Shape = tuple[int, int, int, int]  # rows, draws, classes, picks
FULL: dict[str, Shape] = {"batchbald": (10_000, 100, 10, 50), "acs-fw": (50_000, 2_000, 2, 1_000)}
QUICK: dict[str, Shape] = {"batchbald": (300, 20, 10, 8), "acs-fw": (400, 60, 2, 20)}


def log_probs(rows: int, draws: int, classes: int) -> Tensor:
    """Log probabilities (N, K, C) of a last layer whose weights are drawn, on clustered features."""
    chance = torch.Generator().manual_seed(0)
    centre_CD = torch.randn(classes, 32, generator=chance)
    member_N = torch.randint(classes, (rows,), generator=chance)
    h_ND = (centre_CD[member_N] + torch.randn(rows, 32, generator=chance)).relu()
    weight_KCD = 0.5 * centre_CD + 0.15 * torch.randn(draws, classes, 32, generator=chance)
    found = torch.empty(rows, draws, classes)
    for start in range(0, rows, 1000):
        part = slice(start, start + 1000)
        found[part] = torch.einsum("nd,kcd->nkc", h_ND[part], weight_KCD).log_softmax(2)
    return found


def vectors(log_NKC: Tensor) -> Tensor:
    """The expected log-likelihoods (N, K) that Frank-Wolfe works on."""
    rows = []
    for part in log_NKC.split(1000):
        q_NC = part.exp().mean(1)
        bonus_N = 0.7 * torch.special.entr(q_NC).sum(1)
        rows.append((torch.einsum("nkc,nc->nk", part, q_NC) + bonus_N[:, None]) / math.sqrt(part.shape[1]))
    return torch.cat(rows)


def ours(name: str, shape: Shape) -> dict[str, Any]:
    """Labelwise; for acs-fw also the time without building the vectors, which the others are given."""
    import labelwise as lw

    given, spent = log_probs(*shape[:3]), [0.0]
    acs_fw: Any = importlib.import_module("labelwise.strategies.bayesian.acs_fw")
    plain = acs_fw.frank_wolfe

    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        path = plain(*arguments)
        spent[0] = time.process_time() - began
        return path

    acs_fw.frank_wolfe = timed
    strategy = lw.strategies.BatchBald(strict=True) if name == "batchbald" else name
    began = time.process_time()
    picks = lw.select(strategy, shape[3], log_probs=given)
    total = time.process_time() - began
    notes = {key: value for key, value in picks.notes.items() if isinstance(value, int | float | str)}
    return {"seconds": spent[0] or total, "total": total, "picks": picks.ids.tolist(), "notes": notes}


def redux(name: str, shape: Shape) -> dict[str, Any]:
    """batchbald_redux in float64."""
    batchbald: Any = importlib.import_module("batchbald_redux.batchbald")
    given = log_probs(*shape[:3]).double()

    def run(k: int) -> list[int]:
        found: list[int] = batchbald.get_batchbald_batch(given, k, CONFIGURATIONS, dtype=torch.double).indices
        return found

    return _continued(run, shape[3])


def baal(name: str, shape: Shape) -> dict[str, Any]:
    """baal; it samples from the first pick on, and keeps a table of all rows by all configurations."""
    heuristics: Any = importlib.import_module("baal.active.heuristics")
    # As many as would make CONFIGURATIONS of all draws need 8 GB for 10,000 rows: a tenth.
    each = max(1, CONFIGURATIONS // 10 // shape[1])
    given = log_probs(*shape[:3]).exp().permute(0, 2, 1).double().numpy()

    def run(k: int) -> list[int]:
        found: list[int] = heuristics.BatchBALD(num_samples=k, num_draw=each)(given)[:k].tolist()
        return found

    began = time.process_time()
    picks = run(shape[3])
    spent = time.process_time() - began
    return {"seconds": spent, "picks": picks, "remark": f"{each * shape[1]:,} configurations, in order of score"}


def _continued(run: Callable[[int], list[int]], k: int) -> dict[str, Any]:
    """Time of the exact picks, and of one more times the picks that are left."""
    times: list[float] = []
    picks: list[int] = []
    for count in (min(k, EXACT), min(k, EXACT + 1)):
        began = time.process_time()
        picks = run(count)
        times.append(time.process_time() - began)
    step = max(0.0, times[1] - times[0])
    return {"seconds": times[0] + step * (k - min(k, EXACT)), "picks": picks, "estimated": True, "step": step}


def plain_acs(name: str, shape: Shape) -> dict[str, Any]:
    """Frank-Wolfe as it is written on paper: one product of all rows for each step, steps until k are distinct."""
    rows_NK = vectors(log_probs(*shape[:3]))
    began = time.process_time()
    sigma_N = (rows_NK.square().sum(1) + 1e-6).sqrt()
    sigma, target_K = sigma_N.sum(), rows_NK.sum(0, dtype=torch.float64)
    at_K = torch.zeros_like(target_K)
    picks: list[int] = []
    while len(set(picks)) < shape[3]:
        gap_K = target_K - at_K
        f = int((rows_NK @ gap_K.float() / sigma_N).argmax())
        way_K = sigma / sigma_N[f] * rows_NK[f].double() - at_K
        gamma = float(((way_K @ gap_K) / (way_K @ way_K)).clamp(0, 1))
        at_K += gamma * way_K
        picks.append(f)
    gap = float((target_K - at_K).norm() / target_K.norm())
    return {"seconds": time.process_time() - began, "picks": list(dict.fromkeys(picks)), "remark": _left(gap)}


def bmdal(name: str, shape: Shape) -> dict[str, Any]:
    """bmdal-reg's Frank-Wolfe on the same vectors; it takes no row twice, so k steps are k rows."""
    selection: Any = importlib.import_module("bmdal_reg.bmdal.selection")
    features: Any = importlib.import_module("bmdal_reg.bmdal.features")
    maps: Any = importlib.import_module("bmdal_reg.bmdal.feature_maps")
    data: Any = importlib.import_module("bmdal_reg.bmdal.feature_data")
    rows_NK = vectors(log_probs(*shape[:3]))
    made = features.Features(maps.IdentityFeatureMap(n_features=rows_NK.shape[1]), data.TensorFeatureData(rows_NK))
    began = time.process_time()
    method = selection.FrankWolfeSelectionMethod(made, made, sel_with_train=False, verbosity=0)
    picks = method.select(shape[3]).tolist()
    spent = time.process_time() - began
    gap = float((method.kernel_sum_embedding - method.current_embedding).norm() / method.kernel_sum_embedding.norm())
    return {"seconds": spent, "picks": picks, "remark": _left(gap)}


def _left(gap: float) -> str:
    return f"left over {gap:.4f}"


IMPLEMENTATIONS: dict[str, dict[str, tuple[Callable[[str, Shape], dict[str, Any]], str]]] = {
    # implementation -> function, and the environment of the peers it runs in
    "batchbald": {"ours": (ours, ""), "batchbald_redux": (redux, "."), "baal": (baal, ".")},
    "acs-fw": {"ours": (ours, ""), "bmdal-reg": (bmdal, peers.OLDER), "plain loop": (plain_acs, "")},
}


def in_process(case: str, peer: str, size: list[str], folder: Path) -> dict[str, Any]:
    """One measurement, or what stopped it."""
    environment = IMPLEMENTATIONS[case][peer][1]
    python = peers.python_of(folder / environment) if environment else sys.executable
    with tempfile.TemporaryDirectory() as answer:
        file = Path(answer) / "answer.json"
        command = [python, __file__, "--worker", case, peer, str(file), *size]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        except subprocess.TimeoutExpired:
            return {"stopped": f"> {SECONDS} s of the clock"}
        except OSError:
            return {"stopped": "not installed"}
        if run.returncode:
            return {"stopped": (run.stderr.strip().splitlines() or ["killed"])[-1][:120]}
        found: dict[str, Any] = json.loads(file.read_text())
        return found


def measured(case: str, size: list[str], folder: Path, smaller: list[int]) -> dict[str, dict[str, Any]]:
    """Ours, then each other implementation followed by ours; slow ones from smaller sizes where these are given."""
    found = {"ours": in_process(case, "ours", size, folder)}
    for peer in list(IMPLEMENTATIONS[case])[1:]:
        fewer = smaller and peer in SLOW
        found[peer] = from_smaller(case, peer, smaller, folder) if fewer else in_process(case, peer, size, folder)
        again = in_process(case, "ours", size, folder)
        if again.get("seconds", math.inf) < found["ours"].get("seconds", math.inf):
            found["ours"] = again
    return found


def from_smaller(case: str, peer: str, over: list[int], folder: Path) -> dict[str, Any]:
    """An implementation that would take too long, at two smaller sizes: its time grows as rows^p."""
    some, more = (in_process(case, peer, ["--over", str(one)], folder) for one in sorted(over, reverse=True))
    if "stopped" in some or "stopped" in more:
        return some if "stopped" in some else more
    ours = in_process(case, "ours", ["--over", str(min(over))], folder)
    few, many = (FULL[case][0] // one for one in sorted(over, reverse=True))
    power = math.log(more["seconds"] / some["seconds"]) / math.log(many / few)
    remark = (
        f"took {some['seconds']:.1f} s at {few:,} rows and {more['seconds']:.1f} s at {many:,}, where ours took "
        f"{ours['seconds']:.1f} s: rows^{power:.2f}"
    )
    remarks = [remark, *([more["remark"]] if "remark" in more else [])]
    seconds = more["seconds"] * (FULL[case][0] / many) ** power
    return {**more, "seconds": seconds, "scaled": True, "remark": ", ".join(remarks), "compared": ours["picks"]}


def table(case: str, shape: Shape, found: dict[str, dict[str, Any]]) -> list[str]:
    """Markdown for one method."""
    rows, draws, classes, k = shape
    lines = [
        f"## {case}: {rows:,} rows, {draws:,} draws, {classes} classes, k = {k:,}\n",
        "| implementation | CPU s | ours is faster by | first picks as ours | |",
        "|---|---|---|---|---|",
    ]
    mine = found["ours"]
    for peer, one in found.items():
        if "stopped" in one:
            lines.append(f"| {peer} | {one['stopped']} | | | |")
            continue
        compared = one.get("compared", mine.get("picks", []))
        same = next((i for i, (a, b) in enumerate(zip(one["picks"], compared)) if a != b), None)
        agree = f"{len(one['picks']) if same is None else same} of {len(one['picks'])}" if peer != "ours" else ""
        ratio = f"{one['seconds'] / mine['seconds']:.1f} x" if peer != "ours" and "seconds" in mine else ""
        mark = "*" * bool(one.get("estimated")) + "†" * bool(one.get("scaled"))
        lines.append(f"| {peer} | {one['seconds']:.1f}{mark} | {ratio} | {agree} | {_remark(one)} |")
    return [*lines, ""]


def _remark(one: dict[str, Any]) -> str:
    notes = one.get("notes", {})
    remarks = [one["remark"]] if "remark" in one else []
    remarks += [f"{one['step']:.1f} s a pick"] if "step" in one else []
    remarks += [f"{notes['steps']:,} steps"] if "steps" in notes else []
    remarks += [_left(math.sqrt(notes["objective_share"]))] if "objective_share" in notes else []
    remarks += [f"{notes['evaluated']:,} rows evaluated in full"] if "evaluated" in notes else []
    remarks += [f"{one['total']:.1f} s with building the vectors"] if "steps" in notes else []
    return ", ".join(remarks)


def page(stored: dict[str, dict[str, Any]]) -> str:
    """The tables with the commands that made them."""
    words = (
        "CPU seconds of one thread, each implementation in a separate process, ours the fastest of its runs "
        "before and after the others. *: estimated from the exact picks and one sampled one, see "
        "`benchmarks/bayes.py`. †: measured at two smaller sizes and extrapolated by the power of the rows "
        "between them; picks are compared at the larger of the two. batchbald is run with `strict=True`, so "
        "that it makes all k picks as the others do; its exact picks are those with at most 10,000 "
        "configurations, and picks after them come from separate samples. acs-fw and its peers start from the"
        " same vectors, of K numbers a row; ours and the plain loop continue until k rows are distinct, "
        "bmdal-reg takes no row twice; what is left over is |L - L_w| / |L|. Other processes ran on the "
        "machine."
    )
    parts = ["# Bayesian batches: batchbald and acs-fw\n", words + "\n"]
    for case in IMPLEMENTATIONS:
        if case in stored:
            parts += [*stored[case]["lines"], f"`{stored[case]['command']}`; {stored[case]['about']}.\n"]
    return "\n".join(parts)


def store(out: Path, case: str, lines: list[str], arguments: str) -> None:
    """Write the table of a method to the page; the other tables come from the JSON file next to it."""
    file = out.with_suffix(".json")
    stored: dict[str, dict[str, Any]] = json.loads(file.read_text()) if file.exists() else {}
    about = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}"
    command = f"python benchmarks/bayes.py {arguments}".strip()
    stored[case] = {"lines": lines, "command": command, "about": about}
    file.write_text(json.dumps(stored, indent=1) + "\n")
    out.write_text(page(stored))


def _smaller(shape: Shape, over: int) -> Shape:
    rows, draws, classes, k = shape
    return rows // over, draws, classes, k if k < 100 else k // over


def main(arguments: list[str] | None = None) -> int:
    """Measure, and write or print the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only", choices=list(IMPLEMENTATIONS), help="one method; the table of the other one is stored"
    )
    parser.add_argument("--peers", type=Path, default=peers.DEFAULT)
    parser.add_argument("--out", type=Path, help="where the page goes; docs/results/bayes.md for a full run")
    parser.add_argument("--over", type=int, default=1, help="divides the rows, and the picks where they are many")
    parser.add_argument(
        "--smaller", type=int, nargs=2, default=[], help="divisors of the rows for slow implementations"
    )
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    shapes = QUICK if options.quick else {case: _smaller(shape, options.over) for case, shape in FULL.items()}
    if options.worker:
        torch.set_num_threads(1)
        case, peer, file = options.worker
        Path(file).write_text(json.dumps(IMPLEMENTATIONS[case][peer][0](case, shapes[case])))
        return 0
    out = options.out or (None if options.quick else OUT)
    for case in [options.only] if options.only else list(IMPLEMENTATIONS):
        size = ["--quick"] if options.quick else ["--over", str(options.over)]
        lines = table(case, shapes[case], measured(case, size, options.peers, options.smaller))
        print("\n".join(lines), flush=True)
        if out is not None:
            store(out, case, lines, " ".join(sys.argv[1:] if arguments is None else arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
