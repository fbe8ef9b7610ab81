"""SABAL by a backend of a test's choice, whatever the device: its kernels run on CPU tensors too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import labelwise as lw
from labelwise.rng import Key
from labelwise.shards import shards_of
from labelwise.signals.spec import Embedding, LabelProbs, LogProbs, Probs
from labelwise.strategies import Sabal
from tuned import changed


@dataclass(frozen=True)
class Always:
    """A backend that supports every problem."""

    backend: Any

    @property
    def name(self) -> str:
        return self.backend.name

    def supports(self, problem: Any) -> str | None:
        return None

    def solve(self, *args: Any) -> Any:
        return self.backend.solve(*args)


def select(strategy: Sabal, k: int, inputs: dict[str, np.ndarray], backend: Any) -> lw.Selection:
    """What `lw.select` gives, by this backend."""
    strategy = strategy.given(frozenset(inputs))
    draws = LogProbs(strategy.draws)
    signals = {"probs": Probs(), "label_probs": LabelProbs(), "embedding": Embedding(), "log_probs": draws}
    columns = {signals[name]: torch.as_tensor(values) for name, values in inputs.items()}
    rows = next(iter(columns.values()))
    pool = shards_of(torch.arange(len(rows), device=rows.device), columns)
    chosen = changed(strategy, backends={strategy.solver: (Always(backend),)})
    return chosen.select(pool, shards_of(torch.arange(0), {}), k, Key(0))
