"""Does the error of the models for numbers fall with more labels? RMSE of random and of recommended picks.

    python benchmarks/rising_error.py TABLE.csv --target COLUMN [--seeds 4]

Prints a line for each model and recipe: the mean over the seeds at each number of labels, and the largest rise of a
seed between two of them. "gcv" is the linear layer with the penalty of generalised cross-validation, as it was before.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import labelwise as lw
from labelwise.bench.data.load import Data
from labelwise.bench.data.own_table import read_own
from labelwise.cli.simulate import learner_for
from labelwise.train import TorchLearner

PENALTIES = torch.logspace(-4, 3, 22, dtype=torch.float64)


def gcv_learner(data: Data) -> TorchLearner:
    """A linear layer with the penalty of generalised cross-validation."""
    width = int(data.pool.inputs(data.pool.ids[:1]).shape[1])
    return TorchLearner(lambda: nn.Linear(width, 1), loss="mse", fit=_fit_gcv)


def _fit_gcv(model: nn.Module, inputs: Any, labels: Tensor, weights: Tensor | None) -> None:
    assert isinstance(model, nn.Linear)
    x_ND, y_N = inputs.double(), labels.double()
    mean_D, mean = x_ND.mean(0), y_N.mean()
    u_NM, s_M, v_MD = torch.linalg.svd(x_ND - mean_D, full_matrices=False)
    along_M = u_NM.T @ (y_N - mean)
    rest = max(float((y_N - mean).square().sum() - along_M.square().sum()), 0.0)
    keep_PM = s_M.square() / (s_M.square() + PENALTIES[:, None])
    free_P = (len(y_N) - 1 - keep_PM.sum(1)).clamp(min=1e-6 * len(y_N))
    best = int(((((1 - keep_PM) * along_M).square().sum(1) + rest) / free_P.square()).argmin())
    weight_D = (s_M / (s_M.square() + PENALTIES[best]) * along_M) @ v_MD
    with torch.no_grad():
        model.weight.copy_(weight_D[None])
        model.bias.copy_((mean - mean_D @ weight_D)[None])


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("table", type=Path)
    parser.add_argument("--target", required=True)
    parser.add_argument("--seeds", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    own = read_own(given.table, given.target, task="regress")
    makers = {
        "gcv": gcv_learner,
        "project": lambda data: learner_for(data, "random", "project"),
        "mlp": lambda data: learner_for(data, "random", "mlp"),
    }
    for name, make in makers.items():
        for recipe in ("random", "typiclust+bss"):
            runs = []
            for seed in range(given.seeds):
                data = own.data(seed, 0.2)
                test = (data.test, data.test.labels)
                records = lw.rounds(data.pool, None, make(data), recipe, 20, 8, start=20, test=test, seed=seed)
                runs.append([record.metrics["rmse"] for record in records])
            means = " ".join(f"{value:.2f}" for value in np.mean(runs, 0))
            print(
                f"{name:8} {recipe:14} {means}  largest rise {max(np.diff(run).max() for run in runs):.2f}", flush=True
            )


if __name__ == "__main__":
    main()
