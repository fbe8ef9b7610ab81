"""What is measured: the cases (strategy, shape, data), the figure each has to reach, and the inputs of a case."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

MIXTURE = 100  # Gaussians of the clustered data


@dataclass(frozen=True)
class Target:
    """What a case has to reach; None where nothing is asked."""

    times_plain: float | None = None  # at least so many times faster than plain
    extra_mb: float | None = None  # at most so many megabytes above the inputs
    reads: float | None = None  # at most so many reads of the whole input
    same_picks: bool = False  # the same picks as plain


@dataclass(frozen=True)
class Case:
    """One measurement: N rows, D embedding (0: none), C classes (0: none), k picks, on one kind of data."""

    strategy: str
    n: int
    dim: int
    classes: int
    k: int
    data: str = "random"  # or "clustered"
    target: Target = Target()
    peers: tuple[str, ...] = ()

    @property
    def shape(self) -> str:
        """N, D, C, k as text."""
        n = f"{self.n // 1000:,}k" if self.n % 1000 == 0 else f"{self.n:,}"
        return ", ".join([n, *(str(size) if size else "-" for size in (self.dim, self.classes)), str(self.k)])

    @property
    def input_bytes(self) -> int:
        return 4 * self.n * (self.dim + self.classes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(fields: dict[str, Any]) -> Case:
        return Case(**{**fields, "target": Target(**fields["target"]), "peers": tuple(fields["peers"])})


SCORED_PEERS = {
    "random": (),
    "confidence": ("scikit-activeml", "baal"),
    "margin": ("scikit-activeml", "baal"),
    "entropy": ("scikit-activeml", "baal"),
}
BADGE_PEERS = ("scikit-activeml", "scikit-learn")
KCENTER_PEERS = ("scikit-activeml", "small-text")


def full_cases() -> list[Case]:
    """The shapes the library promises figures for, and a smaller one for the two methods of cost N^2."""
    cases = [
        Case(name, 1_000_000, 0, 10, 1000, target=Target(extra_mb=100, reads=1), peers=peers)
        for name, peers in SCORED_PEERS.items()
    ]
    for dim, classes, target in (
        (512, 10, Target(times_plain=50, extra_mb=64)),
        (512, 100, Target(times_plain=25, extra_mb=128)),
        (2048, 1000, Target(times_plain=25, extra_mb=256)),
    ):
        cases += _both("badge", 50_000, dim, classes, 1000, target, BADGE_PEERS)
    cases += _both("kcenter", 50_000, 512, 0, 1000, Target(times_plain=20, same_picks=True), KCENTER_PEERS)
    cases.append(Case("typiclust", 20_000, 256, 0, 100, "clustered", peers=("scikit-activeml",)))
    cases.append(Case("probcover", 20_000, 256, 0, 100, "clustered", peers=("scikit-activeml",)))
    return cases


def quick_cases() -> list[Case]:
    """The same cases, small enough for seconds; they ask for no figure, since ratios at this size say nothing."""
    return [
        Case(
            case.strategy,
            4_000 if case.n == 1_000_000 else 1_500,
            min(case.dim, 16),
            min(case.classes, 5),
            40,
            case.data,
            peers=case.peers,
        )
        for case in full_cases()
        if case.classes <= 10
    ]


def _both(name: str, n: int, dim: int, classes: int, k: int, target: Target, peers: tuple[str, ...]) -> list[Case]:
    """A case on random and on clustered data; peers are run on the first only, their cost does not depend on it."""
    return [
        Case(name, n, dim, classes, k, "random", target, peers),
        Case(name, n, dim, classes, k, "clustered", target),
    ]


def write_inputs(case: Case, folder: Path) -> None:
    """Write the arrays of a case as .npy files, so that a measured process only loads them."""
    chance = torch.Generator().manual_seed(0)
    embedding_ND = _embedding(case, chance) if case.dim else None
    if embedding_ND is not None:
        np.save(folder / "embedding.npy", embedding_ND.numpy())
    if case.classes:
        np.save(folder / "probs.npy", _probs(case, embedding_ND, chance).numpy())


def load_inputs(folder: Path) -> dict[str, np.ndarray]:
    """The arrays of a case, read into this process's own memory."""
    return {name: np.load(path) for name in ("embedding", "probs") if (path := folder / f"{name}.npy").exists()}


def _embedding(case: Case, chance: torch.Generator) -> Tensor:
    noise_ND = torch.randn(case.n, case.dim, generator=chance)
    if case.data == "random":
        return noise_ND
    centre_MD = torch.randn(MIXTURE, case.dim, generator=chance)
    member_N = torch.randint(MIXTURE, (case.n,), generator=chance)
    return noise_ND.mul_(0.5).add_(centre_MD[member_N])


def _probs(case: Case, embedding_ND: Tensor | None, chance: torch.Generator) -> Tensor:
    """Softmax of random logits; on clustered data, of a linear head on the embeddings, as a model gives."""
    if case.data == "random" or embedding_ND is None:
        return torch.randn(case.n, case.classes, generator=chance).mul_(2).softmax(1)
    head_DC = torch.randn(case.dim, case.classes, generator=chance) * (3 / case.dim**0.5)
    return (embedding_ND @ head_DC).softmax(1)
