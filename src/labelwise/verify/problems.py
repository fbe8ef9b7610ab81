"""Small random problems: arrays by name, as `labelwise.select` takes them, and the shards they become."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from labelwise.arrays import select
from labelwise.rng import Key
from labelwise.selection import Selection, Strategy
from labelwise.selection.validate import ARRAYS
from labelwise.shards import Shards, computed_in, shards_of
from labelwise.signals.spec import Basis, GradSketch, Label, LabelProbs, LogProbs, Signal, stored
from labelwise.verify.result import CheckFailed, NotApplicable

ROWS = 150  # three blocks of the smallest size
PICKS = 12
NONE = Shards([])


@dataclass(frozen=True)
class Problem:
    """Rows to choose from.

    Attributes:
        arrays: by the name of the argument of `labelwise.select`, the first axis is the rows.
        ids: (N,) distinct integers.
        k: how many rows are asked for.
        seed: the chance of the selection.
        labelled: arrays of the rows already labelled, with "ids" or without.
        device: where the arrays are put before a strategy sees them.
    """

    arrays: Mapping[str, np.ndarray]
    ids: np.ndarray
    k: int
    seed: int = 0
    labelled: Mapping[str, np.ndarray] | None = None
    device: str = "cpu"

    def ordered(self, order: np.ndarray) -> Problem:
        """The same rows in another order."""
        arrays = {name: value[order] for name, value in self.arrays.items()}
        return replace(self, arrays=arrays, ids=self.ids[order])

    def cast(self, dtype: Any) -> Problem:
        """The same rows in another precision; labels and ids stay integers."""
        behind = {k: v if v.dtype.kind in "iu" else v.astype(dtype) for k, v in (self.labelled or {}).items()}
        arrays = {name: value.astype(dtype) for name, value in self.arrays.items()}
        return replace(self, arrays=arrays, labelled=behind or None)


def random_arrays(
    n: int, seed: int = 0, classes: int = 4, width: int = 5, draws: int = 6, dtype: Any = np.float64
) -> dict[str, np.ndarray]:
    """One array of every kind that most strategies ask for."""
    rng = Key(seed).numpy()
    arrays = {
        "probs": rng.dirichlet(np.ones(classes), n).astype(dtype),
        "embedding": rng.normal(size=(n, width)).astype(dtype),
        "log_probs": np.log(rng.dirichlet(np.ones(classes), (n, draws))).astype(dtype),
        "duals": rng.exponential(size=n).astype(dtype),
        "grad_sqnorm": rng.exponential(size=n).astype(dtype),
        "grad_dot": rng.normal(size=n).astype(dtype),
    }
    return tempered(arrays)


def tempered(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With label_probs: the probabilities at temperature 2."""
    root = np.sqrt(arrays["probs"].astype(np.float64))
    return {**arrays, "label_probs": (root / root.sum(1, keepdims=True)).astype(arrays["probs"].dtype)}


def asked(strategy: Strategy, arrays: Iterable[str] | None = None) -> tuple[Signal, ...]:
    """The columns of the pool that a strategy reads, given arrays of these names; None is whatever it may ask for."""
    given = None if arrays is None else set(arrays)
    instead = strategy.needs.instead
    if given is not None and not all(signal.array in given for signal in instead):
        instead = ()
    kept: list[Signal] = []
    for signal in strategy.needs.pool + instead:
        own = isinstance(signal, Basis) and given is not None and "basis" in given
        kept.extend((signal,) if own else signal.stored())
    return tuple(dict.fromkeys(kept))


def problem_for(
    strategy: Strategy, seed: int, n: int = ROWS, k: int = PICKS, copies: int = 1, device: str = "cpu"
) -> Problem:
    """A random problem of the arrays that the strategy needs, with each row so many times."""
    arrays = {name: np.concatenate([one] * copies) for name, one in random_arrays(n // copies, seed).items()}
    n = n // copies * copies
    if any(isinstance(signal, GradSketch) for signal in asked(strategy)):
        arrays["grad_sketch"] = Key(seed).fold("sketch").numpy().normal(size=(n, 8))
    unknown = [signal.array for signal in asked(strategy) if signal.array not in arrays]
    if unknown:
        raise NotApplicable(f"there is no random {unknown[0]} to try it on; pass arrays= of your own")
    wanted = {signal.array for signal in asked(strategy)}
    ids = Key(seed).fold("ids").numpy().permutation(10 * n)[:n] - n
    return Problem({name: value for name, value in arrays.items() if name in wanted}, ids, k, seed, device=device)


def labelled_arrays(strategy: Strategy, rows: np.ndarray, classes: int = 4) -> dict[str, np.ndarray] | None:
    """What the strategy asks about labelled rows, a function of their embeddings alone."""
    wanted = {signal.array for signal in stored(strategy.needs.labelled)}
    nearest = (np.abs(rows).sum(1).round(3) * 1000 % classes).astype(int)
    arrays = {
        "embedding": rows,
        "probs": (0.5 * np.eye(classes)[nearest] + 0.5 / classes).astype(rows.dtype),
        "y": nearest,
        "duals": np.abs(rows).sum(1),
    }
    return {name: arrays[name] for name in arrays if name in wanted} or None


def with_labelled(strategy: Strategy, problem: Problem) -> Problem:
    """The problem with random labelled rows, named by ids, instead of arrays that would stand for them."""
    behind = problem.labelled
    if behind is None and "embedding" in problem.arrays:
        rows = Key(problem.seed).fold("labelled").numpy().normal(size=(9, problem.arrays["embedding"].shape[1]))
        classes = problem.arrays["probs"].shape[1] if "probs" in problem.arrays else 4
        behind = labelled_arrays(strategy, rows, classes)
    if behind is None:
        raise NotApplicable("there are no random labelled rows for it; pass labelled= of your own")
    names = int(problem.ids.max()) + 1 + np.arange(len(next(iter(behind.values()))))
    instead = {signal.array for signal in strategy.needs.instead}
    arrays = {name: value for name, value in problem.arrays.items() if name not in instead}
    return replace(problem, arrays=arrays, labelled={"ids": names, **behind})


def chosen(strategy: Strategy, problem: Problem) -> Selection:
    """The picks of a strategy through the door that users take."""
    arrays = {name: tensor(value, problem.device) for name, value in problem.arrays.items()}
    behind = {name: tensor(value, problem.device) for name, value in (problem.labelled or {}).items()}
    ids = tensor(problem.ids, problem.device)
    return select(strategy, problem.k, **arrays, ids=ids, labelled=behind or None, seed=problem.seed)


def tensor(array: np.ndarray, device: str) -> Any:
    """The array itself on the CPU, so that the strategy sees the user's own memory; else a tensor on the device."""
    return array if device == "cpu" else torch.from_numpy(np.ascontiguousarray(array)).to(device)


def pool_of(strategy: Strategy, problem: Problem, count: int = 1) -> tuple[Strategy, Shards, Shards]:
    """The strategy in the form that suits the arrays, its pool in so many shards, and the labelled rows."""
    strategy = strategy.given(frozenset(problem.arrays))
    columns = _columns(problem, asked(strategy, problem.arrays), problem.arrays)
    ids, behind = _tensor(problem.ids, problem.device), problem.labelled
    instead = {signal.array for signal in strategy.needs.instead} & set(problem.arrays)
    if not behind or not strategy.needs.labelled or instead:
        return strategy, shards_of(ids, columns, count), NONE
    beside = _columns(problem, stored(strategy.needs.labelled), behind)
    length = len(next(iter(behind.values())))
    names = behind["ids"] if "ids" in behind else min(0, int(problem.ids.min())) - 1 - np.arange(length)
    dtype = max(computed_in(columns), computed_in(beside), key=lambda kind: kind.itemsize)
    past = shards_of(_tensor(names, problem.device), beside, 1, dtype, "labelled row")
    return strategy, shards_of(ids, columns, count, dtype), past


def _columns(problem: Problem, signals: tuple[Signal, ...], arrays: Mapping[str, np.ndarray]) -> dict[Signal, Tensor]:
    by_signal: dict[Signal, np.ndarray] = {
        signal: arrays[name] for name, (gives, _) in ARRAYS.items() if name in arrays for signal in gives
    }
    if "probs" in arrays:
        by_signal.setdefault(LabelProbs(), arrays["probs"])
    if "y" in arrays:
        by_signal[Label()] = arrays["y"]
    columns = {}
    for signal in signals:
        plain = LogProbs() if isinstance(signal, LogProbs) else Basis() if isinstance(signal, Basis) else signal
        found = by_signal.get(plain, arrays.get(signal.array))
        if found is None:
            raise NotApplicable(f"the problem has no {signal.array}; pass it in arrays=")
        columns[signal] = _tensor(found, problem.device)
    return columns


def _tensor(array: np.ndarray, device: str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device)


def same(a: Selection, b: Selection, what: str, scores: bool = True) -> None:
    """Raise CheckFailed unless two selections hold the same rows in the same order with the same numbers."""
    same_ids(b.ids.tolist(), a.ids.tolist(), what)
    if not scores:
        return
    for name, rtol, atol in (("scores", 1e-4, 1e-6), ("weights", 1e-3, 1e-5)):
        close(getattr(b, name), getattr(a, name), f"{what}: {name}", rtol, atol)


def same_ids(found: Any, expected: Any, what: str) -> None:
    """Raise CheckFailed unless the rows are these, in this order."""
    got, want = [int(i) for i in found], [int(i) for i in expected]
    if got != want:
        at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
        raise CheckFailed(
            f"{what}: expected rows {_some(want, at)}, found {_some(got, at)}, first different at pick {at + 1}"
        )


def close(found: Any, expected: Any, what: str, rtol: float = 1e-9, atol: float = 0.0) -> None:
    """Raise CheckFailed unless the numbers are near each other."""
    got, want = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    if got.shape != want.shape:
        raise CheckFailed(f"{what}: expected {want.shape} numbers, found {got.shape}")
    wrong = ~np.isclose(got, want, rtol=rtol, atol=atol)
    if wrong.any():
        at = int(np.flatnonzero(wrong.ravel())[0])
        raise CheckFailed(
            f"{what}: expected {want.ravel()[at]:.12g}, found {got.ravel()[at]:.12g} at place {at + 1} "
            f"({int(wrong.sum())} of {wrong.size} differ by more than {rtol:g})"
        )


def true(holds: bool, what: str) -> None:
    """Raise CheckFailed with this text unless it holds."""
    if not holds:
        raise CheckFailed(what)


def _some(ids: list[int], at: int) -> str:
    start = max(0, at - 2)
    shown = ", ".join(str(i) for i in ids[start : at + 4])
    return f"[{'... ' if start else ''}{shown}{' ...' if at + 4 < len(ids) else ''}]"
