"""What the gradient signals cost: `python benchmarks/dynamical.py` (`--quick` for a minute).

For each network, norm and inner product of every row's gradient, beside one plain forward pass over the same rows:
ours, `torch.func` (vmap of grad, the inner product from built gradients), and BackPACK in the environment of the peers
(`python benchmarks/peers.py setup`). Each is a process of its own with one thread, in which the forward pass is timed
too, turn by turn: ratios of the fastest turns, in seconds of the processor, since machines are shared. Extra memory is
the peak above what is held before the first turn, the model and the rows; it is measured for one and for four batches.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from measure import forget_peak, peak

MB = 1e6
LIMIT = 12 << 30  # bytes of address space
SECONDS = 1800  # of the clock, for one measurement
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parent.parent / "src")}


def network(name: str) -> nn.Module:
    """A network in eval mode."""
    make: Any = getattr(importlib.import_module("labelwise.bench.models.networks"), name)
    torch.manual_seed(0)
    model: nn.Module = make()()
    return model.eval()


def ours(model: nn.Module, along: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """|g|^2 + 2 g . s of each row of a batch, by layer rules."""
    from labelwise.signals.gradients.collect import GradientRequest
    from labelwise.signals.gradients.read_gradients import RowGradients
    from labelwise.signals.model.forward import gradient_parts

    reader = RowGradients(model)
    request = GradientRequest(
        norm=True, along={name: value for (name, _), value in zip(model.named_parameters(), along)}
    )

    def run(x: Tensor) -> Tensor:
        found = []
        for part in gradient_parts(len(x), x.device):  # as the reader of a model does it
            result = reader.compute(x[part], request)
            assert result.sq_norm is not None
            assert result.dot is not None
            found.append(result.sq_norm + 2 * result.dot)
        return torch.cat(found)

    return run


def func(model: nn.Module, along: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """The same from gradients of every row, built by torch.func."""
    parameters = {name: value.detach() for name, value in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], row: Tensor) -> Tensor:
        logits = torch.func.functional_call(model, parameters, (row[None],))
        return nn.functional.cross_entropy(logits, logits.detach().argmax(1))

    by_row = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))

    def run(x: Tensor) -> Tensor:
        return delta(by_row(parameters, x).values(), along)

    return run


def backpack(model: nn.Module, along: list[Tensor]) -> Callable[[Tensor], Tensor]:
    """The same from gradients of every row, built by BackPACK."""
    package: Any = importlib.import_module("backpack")
    extensions: Any = importlib.import_module("backpack.extensions")
    extended = package.extend(model, use_converter=True)
    loss = package.extend(nn.CrossEntropyLoss(reduction="sum"))

    def run(x: Tensor) -> Tensor:
        extended.zero_grad()
        logits = extended(x)
        with package.backpack(extensions.BatchGrad()):
            loss(logits, logits.detach().argmax(1)).backward()
        return delta([p.grad_batch for p in extended.parameters()], along)

    return run


def delta(gradients: Any, along: list[Tensor]) -> Tensor:
    """|g|^2 + 2 g . s of built gradients (B, ...)."""
    found = [g.flatten(1).square().sum(1) + 2 * (g.flatten(1) @ s.flatten()) for g, s in zip(gradients, along)]
    return torch.stack(found).sum(0)


WAYS = {"ours": ours, "torch.func": func, "BackPACK": backpack}


def measure(way: str, name: str, batch: int, turns: int) -> dict[str, Any]:
    """Seconds of a forward pass and of scoring a batch, extra memory of one batch and of four, and some scores."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    torch.set_num_threads(1)
    model = network(name)
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(batch, 3, 32, 32, generator=draw)
    # From a generator of its own: the scores of the first rows are then the same at every batch size.
    draw_along = torch.Generator().manual_seed(2)
    along = [0.01 * torch.randn(p.shape, generator=draw_along) for p in model.parameters()]
    with torch.no_grad():
        model(x[:2])
    run = WAYS[way](model, along)
    scores = run(x[:8])
    forwards, spent, extra = [], [], []
    base = forget_peak()
    for more in (1, 3):
        for _ in range(more):
            run(x)
        extra.append((peak() - base) / MB)
    for _ in range(turns):
        start = time.process_time()
        with torch.no_grad():
            model(x)
        middle = time.process_time()
        run(x)
        forwards.append(middle - start)
        spent.append(time.process_time() - middle)
    return {
        "forward": min(forwards),
        "seconds": min(spent),
        "extra": extra,
        "scores": scores.double().tolist(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }


def in_process(way: str, name: str, batch: int, turns: int, python: str) -> dict[str, Any]:
    """`measure` in a process of its own; what stopped it is part of the answer."""
    command = [python, __file__, "--worker", way, "--networks", name, "--batch", str(batch), "--turns", str(turns)]
    try:
        # A peer's environment has no Labelwise, which the networks are from.
        run = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env=ENVIRONMENT)
    except subprocess.TimeoutExpired:
        return {"stopped": f"> {SECONDS} s"}
    except OSError:
        return {"stopped": "not installed"}
    if run.returncode:
        last = (run.stderr.strip().splitlines() or ["killed"])[-1]
        memory = "memory" in last.lower() or run.returncode < 0
        return {"stopped": f"out of memory ({LIMIT >> 30} GiB allowed)" if memory else last[:80]}
    found: dict[str, Any] = json.loads(run.stdout.strip().splitlines()[-1])
    return found


def line(name: str, batch: int, way: str, found: dict[str, Any], reference: dict[str, Any]) -> str:
    """A row of the table."""
    if "stopped" in found:
        return f"| {name} | {batch} | {way} | {found['stopped']} | | | | |"
    agree = ""
    if "scores" in reference:
        pairs = list(zip(found["scores"], reference["scores"]))
        agree = f"{max(abs(a - b) / max(abs(b), 1e-12) for a, b in pairs):.0e}"
    ratio, forward = found["seconds"] / found["forward"], found["forward"]
    one, four = found["extra"]
    return f"| {name} | {batch} | {way} | {ratio:.1f} | {1e3 * forward:.0f} | {one:.0f} | {four:.0f} | {agree} |"


def main(arguments: list[str] | None = None) -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the tutorial network, a small batch")
    parser.add_argument("--networks", default="tutorial_cnn,vgg11,resnet18")
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--more", type=int, default=0, help="another batch size, at which ours alone is measured")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--backpack", type=Path, default=Path(".peers"), help="environment with BackPACK")
    parser.add_argument("--out", type=Path, help="also write the table here")
    parser.add_argument("--worker", choices=list(WAYS), help=argparse.SUPPRESS)
    request = parser.parse_args(arguments)
    if request.worker:
        print(json.dumps(measure(request.worker, request.networks, request.batch, request.turns)))
        return 0
    names = ["tutorial_cnn"] if request.quick else request.networks.split(",")
    batch = 32 if request.quick else request.batch
    lines = [
        "| network | batch | way | forward passes | one forward, CPU ms | extra MB, 1 batch | 4 batches | differs by |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    for name in names:
        reference: dict[str, Any] = {}
        for way in request.ways.split(","):
            peer = way == "BackPACK"
            python = str(request.backpack.absolute() / "bin" / "python") if peer else sys.executable
            found = in_process(way, name, batch, request.turns, python)
            lines.append(line(name, batch, way, found, reference))
            print(lines[-1], flush=True)
            reference = reference or found
        if request.more:
            found = in_process("ours", name, request.more, request.turns, sys.executable)
            lines.append(line(name, request.more, "ours", found, reference))
            print(lines[-1], flush=True)
        if request.out is not None:  # after each network: a long run that is stopped leaves what it has
            request.out.write_text(page(lines, " ".join(sys.argv[1:])))
    return 0


def page(lines: list[str], arguments: str) -> str:
    """The table with what it says and how it was made."""
    about = f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}, one thread"
    return "\n".join(
        [
            "# Gradient signals: cost of a row\n",
            "Squared norm and inner product with one given gradient, over all parameters, for every row of a batch of "
            "random 32 x 32 images. `forward passes` is CPU time over that of one plain forward pass in the same "
            "process, fastest turn of each; `extra MB` the peak of memory above model and rows; `differs by` the "
            "largest relative difference of scores from ours.\n",
            f"`python benchmarks/dynamical.py {arguments}`; {about}; other processes ran on the machine.\n",
            *lines,
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
