"""A two-layer network end to end: its tangent basis, draws by RandBSS, and the weighted sampler of theorem 4.2."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from labelwise.loop import rounds
from labelwise.pool import Pool
from labelwise.recipes import Recipe
from labelwise.reproduce.bss.setup import LAWS, NOISE, PAPER, SIZES, Sizes
from labelwise.reproduce.plots import curve_panels
from labelwise.reproduce.registry import Reproduction, Result, Setting
from labelwise.reproduce.times import timed
from labelwise.reproduce.verdicts import above, claims_text, stat_of
from labelwise.rng import Key
from labelwise.selection import Strategy
from labelwise.signals.spec import Basis
from labelwise.stats.curves import learning_curves
from labelwise.stats.record import Record
from labelwise.strategies import Bss, Leverage, Random
from labelwise.theory.measured_complexity import two_layer_outputs
from labelwise.train import TorchLearner

INPUTS = 6  # a constant among them: without it a network of ReLU is 0 at 0, and cannot learn a mean
TEST_ROWS = 2000
LEARNING_RATE = 0.03
SAMPLER = "RandBSS, sampler"
TANGENT = Basis("tangent", width=128, hidden=512)
CONTENDERS: dict[str, tuple[Strategy, bool, str]] = {  # strategy, weights in the loss, what draws minibatches
    SAMPLER: (Bss(basis=TANGENT), False, "weights"),
    "RandBSS, weighted loss": (Bss(basis=TANGENT), True, "shuffle"),
    "RandBSS, no weights": (Bss(basis=TANGENT), False, "shuffle"),
    "Leverage, sampler": (Leverage(basis=TANGENT), False, "weights"),
    "random": (Random(), False, "shuffle"),
}


class TwoLayer(nn.Module):
    """Definition 3.1: f(x) = (1/sqrt(width)) sum_r a_r relu(w_r . x), where W alone is trained and a_r = +-1."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.hidden = nn.Parameter(torch.empty(inputs, width))
        signs_M = torch.ones(width)
        signs_M[1::2] = -1.0
        self.register_buffer("signs", signs_M / math.sqrt(width))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """w_r ~ N(0, I)."""
        nn.init.normal_(self.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Outputs (N, 1)."""
        signs = self.signs
        assert isinstance(signs, Tensor)
        return ((x @ self.hidden).relu() @ signs)[:, None]


def network(setting: Setting, sizes: Sizes | None = None) -> Result:
    """Algorithm 1 with a real network, on teachers of the same kind."""
    sizes = sizes or SIZES[setting.scale]
    laws = ("Gaussian", "heavy-tailed")
    if setting.page:
        records = list(setting.saved_records)
    else:
        records = [one for law in laws for one in _runs(setting, sizes, law)]
    by_law = {law: [one for one in records if one.run.startswith(f"{law}/")] for law in laws}
    curves = {law: learning_curves(found, "rmse") for law, found in by_law.items()}
    rows = {
        law: {name: stat_of(lines.values_ST.mean(1), lines.seeds) for name, lines in by_name.items()}
        for law, by_name in curves.items()
    }
    others = [name for name in CONTENDERS if name != SAMPLER]
    claims = [above(law, other, SAMPLER) for law in laws for other in (others[-1], *others[:-1])]
    verdict = (
        "Distance to the teacher on new rows (RMSE; the teacher's deviation is 1, that of the noise "
        f"{NOISE:g}), the mean over the rounds and its deviation over seeds; lower is better.\n\n"
        + claims_text(claims, rows, {})
    )
    labels = sorted({one.labels for one in records})
    numbers = {"labels": labels, "rmse": {law: {n: s.numbers for n, s in by.items()} for law, by in rows.items()}}
    return Result(numbers, curve_panels(curves), verdict, "", tuple(records))


def _runs(setting: Setting, sizes: Sizes, law: str) -> list[Record]:
    """Every round of every run on pools of a law."""
    records: list[Record] = []
    for seed in range(setting.seed, setting.seed + (setting.seeds or sizes.networks)):
        pool, test = _data(law, sizes, seed)
        for name, (strategy, weights, sampler) in CONTENDERS.items():
            learner = TorchLearner(
                lambda: TwoLayer(INPUTS, sizes.width),
                epochs=sizes.epochs,
                lr=LEARNING_RATE,
                loss="mse",
                weight_decay=0.0,
                sampler=sampler,  # type: ignore[arg-type]
            )
            start = strategy if strategy.cold else Random()
            recipe = Recipe(name, strategy, start, weights=weights)
            run = f"{law}/two-layer/{name}/{seed}"
            records += rounds(
                *(pool, None, learner, recipe, sizes.k, sizes.rounds), test=test, task="regress", seed=seed, name=run
            )
        ends = {one.strategy: one.metrics["rmse"] for one in records[-len(CONTENDERS) * (sizes.rounds + 1) :]}
        setting.on_progress(f"{law}, seed {seed}: " + ", ".join(f"{name} {end:.3f}" for name, end in ends.items()))
    return records


def _data(law: str, sizes: Sizes, seed: int) -> tuple[Pool, tuple[Tensor, Tensor]]:
    """A pool with noisy labels of a two-layer teacher, and new rows with the teacher's own numbers."""
    key = Key(seed).fold("network", law)
    rng = key.numpy()
    rows = sizes.rows + TEST_ROWS
    x_ND = torch.cat([torch.from_numpy(LAWS[law](rng, rows, INPUTS - 1)), torch.ones(rows, 1)], 1)
    truth_N = two_layer_outputs(x_ND, "relu", width=16, count=1, seed=key.small(), scale=math.sqrt(INPUTS))[:, 0]
    truth_N = ((truth_N - truth_N.mean()) / truth_N.std()).float()
    x_ND = (x_ND / math.sqrt(INPUTS)).float()
    noise_N = torch.from_numpy(rng.normal(size=sizes.rows)).float()
    pool = Pool.of(x_ND[: sizes.rows].numpy(), labels=(truth_N[: sizes.rows] + NOISE * noise_N).numpy())
    return pool, (x_ND[sizes.rows :], truth_N[sizes.rows :])


_DIFFERENCES = (
    "The paper has no experiments: data, sizes and claims are ours.",
    "Inputs, a constant among them, are divided by sqrt(6) and not by the longest row: its weights are larger.",
    "The basis is the network's gradients at first weights, reduced by random products; the paper's only exists.",
)


def _entry(times: tuple[float, float, float]) -> Reproduction:
    name, what = "bss/network", "a two-layer network end to end, with the weighted sampler"
    return Reproduction(
        name, PAPER, what, network, (), timed(name, *times, paper_device="cpu"), differences=_DIFFERENCES
    )


REPRODUCTIONS = (_entry((3, 300, 3600)),)
